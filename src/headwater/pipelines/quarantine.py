"""The quarantine of a mirror's table, as its driver keeps it; its content and its rules: lake/quarantine.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from headwater.spark.offsets import Offset

NOBODYS = 1
"""A branch that no node has: of a vbucket that stands on it, everything is read anew and replaced."""


class QuarantineTable(Table):
    """The quarantine of a table; created if there is none.

    Args:
        table: the table; both have the same seed, so that a key is hashed once for both.
        making, seen: as of `Table`.
    """

    def __init__(self, table: Table, making: Making = Making.CLEAR, seen: set[str] | None = None) -> None:
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
            seen=seen,
        )
        if self.log.state.properties[SEED] != seed:
            raise TableError(self.place, f"it is not the quarantine of {table.place}: remove it, and it is made anew")

    def level(self, named: int | None) -> bool:
        """Restore the quarantine to the version in the table's record.

        Returns: False if that is impossible; the quarantine is empty then, and the bucket has to be read anew.
        """
        self.refresh()
        if named is not None and (is_level(self.log, named) or bring_back(self.log, named)):
            return True
        clear(self.log)
        return False

    def append(self, written: Sequence[TaskResult], named: int, transaction: tuple[str, int] | None = None) -> int:
        """Add the documents that a batch's tasks set aside; return the version for the table's record.

        Args:
            written: the tasks' results for the quarantine.
            named: the version that the table's record names now.
            transaction: (application, version).

        Raises:
            TableChanged: plan the batch anew.
        """
        record = self.refresh()
        changed = [each for each in written if each.files or each.dead]
        if not changed and is_level(self.log, named):
            return named
        then = replace(self.next(record.end), quarantine=None)
        self.put(record.digest, then, changed, transaction, stands=lambda log: is_level(log, named))
        return self.log.state.version


def read_anew(record: Record) -> Mapping[str, Any]:
    """Return an offset from which all that a table has is read once more and replaced: a branch that no node has."""
    end = Offset.from_json(record.end)
    positions = {
        vb: replace(place, vb_uuid=NOBODYS, snapshot_start=0, snapshot_end=place.seqno)
        for vb, place in end.positions.items()
        if place.seqno
    }
    return Offset(positions, coverage=end.coverage).to_json()
