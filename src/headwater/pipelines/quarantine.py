"""The quarantine of a mirror's table, as its driver keeps it; its content and its rules: lake/quarantine.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headwater.errors import TableError
from headwater.lake.commit import Record
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.places import QUARANTINE as SUFFIX
from headwater.lake.quarantine import bring_back, clear, columns, is_level
from headwater.lake.writer import TaskResult
from headwater.pipelines.table import QUARANTINE, Making, Table
from headwater.pipelines.tasks import SEED
from headwater.protocol.dcp.position import Position
from headwater.spark.offsets import Offset

NOBODYS = 1
"""A branch that no node has: of a vbucket that stands on it, everything is read anew and replaced."""


class QuarantineTable(Table):
    """The quarantine of a table; created if there is none.

    Args:
        table: the table; both have the same seed, so that a key is hashed once for both.
        making, created: as of `Table`.
    """

    def __init__(self, table: Table, making: Making = Making.CLEAR, created: set[str] | None = None) -> None:
        state = table.log.state
        seed = state.properties[SEED]
        place = f"{table.place}{SUFFIX}"
        super().__init__(
            place,
            table.bucket,
            QUARANTINE,
            columns(),
            vectors=state.vectors,
            seed=seed,
            formats=iceberg.formats_of(state),
            catalog=iceberg.neighbour_in_catalog(state, SUFFIX),
            making=making,
            created=created,
        )
        if self.log.state.properties[SEED] != seed:
            raise TableError(self.place, f"it is not the quarantine of {table.place}: remove it, and it is made anew")

    def level(self, version: int | None) -> bool:
        """Restore the quarantine to the version in the table's record.

        Returns: False if that is impossible; the quarantine is empty then, and the bucket has to be read anew.
        """
        self.refresh()
        if version is not None and (is_level(self.log, version) or bring_back(self.log, version)):
            return True
        clear(self.log)
        return False

    def append(self, results: Sequence[TaskResult], version: int, transaction: tuple[str, int] | None = None) -> int:
        """Add the documents that a batch's tasks set aside; return the version for the table's record.

        Args:
            results: the tasks' results for the quarantine.
            version: the version that the table's record names now.
            transaction: (application, version).

        Raises:
            TableChanged: plan the batch anew.
        """
        record = self.refresh()
        changed = [result for result in results if result.files or result.dead]
        if not changed and is_level(self.log, version):
            return version
        new_record = replace(self.next(record.end), quarantine=None)
        self.put(record.digest, new_record, changed, transaction, may_commit=lambda log: is_level(log, version))
        return self.log.state.version


def read_anew(record: Record, held: Collection[int] = ()) -> Mapping[str, Any]:
    """Return an offset on a branch that no node has: the next batch reads all vbuckets again and replaces all rows.

    Args:
        held: vbuckets of which the table may have rows although the record has nothing of them.
    """
    end = Offset.from_json(record.end)
    seqnos = dict.fromkeys(held, 1) | {vb: place.seqno for vb, place in end.positions.items() if place.seqno}
    positions = {vb: Position(vb, NOBODYS, seqno, 0, seqno) for vb, seqno in seqnos.items()}
    return Offset(positions, coverage=end.coverage).to_json()
