"""The change log beside a mirror's table: it advances with the table, and is repaired when the two differ.

A batch is committed to the log first. The log's record has the digests of the table's records before and after its last
batch, so three cases can be told apart when the next one is planned:

* The table's record has the second digest: both are level.
* It has the first, or a vbucket of the log is ahead of the table's: the log has a batch that never got into the table.
  While the vbucket's branch is the same, that batch was right and its changes are left out when they come again. If a
  failover came between, they may belong to a lost branch: a `rollback` row takes them back.
* It has neither: the log was switched on for an existing table, or was off for a while, or one of the two was restored
  to an earlier version. Then the log begins anew with all documents of the table, its *base*: a `rollback` row to 0 for
  the old rows, and a `mutation` for each document. A vbucket that returns to a place before its base is taken back
  whole, for the base lacks what held there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import TableChanged
from headwater.lake import changes
from headwater.lake.changes import ChangeWriter
from headwater.lake.commit import Record
from headwater.lake.iceberg.place import CatalogName
from headwater.lake.layout import Formats
from headwater.lake.shape import CHANGES as COLUMNS
from headwater.lake.shape import KEPT
from headwater.lake.verify import rows_of
from headwater.lake.writer import TaskResult, candidates
from headwater.pipelines.table import CHANGES, Making, Table
from headwater.spark.columns import RowMaker
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range

_NAMES = tuple(COLUMNS)[:-1]
_OF_TABLE = tuple(name for name in _NAMES if name in KEPT)


class ChangeLog(Table):
    """A change log; created if there is none.

    Args:
        place: a path or file: url.
        bucket: name of the bucket.
        befores: True to let the log have what each change replaced, from then on.
        vectors: as of `Table`. The log's rows never die, but readers check the features of a table.
        formats, catalog, making, created: as of `Table`.
    """

    def __init__(
        self,
        place: str | Path,
        bucket: str,
        *,
        befores: bool = False,
        vectors: bool = True,
        formats: Formats = Formats.DELTA,
        catalog: CatalogName | None = None,
        making: Making = Making.CLEAR,
        created: set[str] | None = None,
    ) -> None:
        columns = changes.fields(befores=befores)
        super().__init__(
            place,
            bucket,
            CHANGES,
            columns,
            vectors=vectors,
            formats=formats,
            catalog=catalog,
            making=making,
            created=created,
        )
        self.add_missing(columns)
        self._reads_befores: bool = self.has_befores
        self._base, self._base_seqnos = self.record.base, dict[int, int]()

    @property
    def has_befores(self) -> bool:
        """True if the log has what each change replaced."""
        return changes.has_befores(self.log.state)

    def require_columns(self) -> None:
        """Check that the log has the columns with which it was opened, by which tasks know what to read.

        Raises:
            TableChanged: another mirror has added some; open the log anew.
        """
        if self.has_befores != self._reads_befores:
            raise TableChanged(self.place, "another mirror added columns of what changes replaced; it is opened anew")

    def append(
        self,
        results: Sequence[TaskResult],
        end: Mapping[str, Any],
        digests: tuple[str, str],
        transaction: tuple[str, int] | None = None,
    ) -> None:
        """Add the logged rows of a batch's tasks to the log.

        Args:
            results: the tasks' results; empty for a batch without changes.
            end: the offset at which the batch ends.
            digests: digests of the table's record before it and after it.
            transaction: (application, version).

        Raises:
            TableChanged: the log has moved on, or was put back to an older version; plan the batch anew.
        """
        record = self.refresh()
        if self.log.restored:
            raise TableChanged(self.place, "somebody put the change log back to an older version; it begins anew")
        self.require_columns()
        digests_before = {result.changes_after for result in results} or {record.digest}
        if len(digests_before) > 1:
            raise TableChanged(self.place, "tasks saw different versions of the change log")
        if not results and digests[0] not in record.table_digests:
            return  # it has to be put right first, with the next batch
        # The digest is compared; the versions that were looked through are the table's, not the log's.
        logged = [TaskResult(self.log.state.version, result.changes) for result in results]
        end_offset = _furthest(Offset.from_json(record.end), Offset.from_json(end)).to_json()
        # Behind the version that the tasks saw: only against that one did they leave out what was logged already.
        self.put(digests_before.pop(), self._next_record(end_offset, digests), logged, transaction)

    def level(self, table: Table, end: Offset | None = None) -> None:
        """Repair the log if it differs from the table.

        Args:
            table: the table, as far as its log was read.
            end: the end of the next batch; None if none is planned yet.

        Raises:
            TableChanged: another process repaired it at the same time; plan the batch anew.
        """
        record, table_offset, digest = self.refresh(), Offset.from_json(table.record.end), table.record.digest
        logged = Offset.from_json(record.end)
        # A log that was put back to an older version may have rows of which its record says nothing any more.
        held = self.log.state.vbuckets if self.log.restored else frozenset[int]()
        rewritten: Collection[int] = ()
        rollback_seqnos: dict[int, int] = {}
        if digest not in record.table_digests or self.log.restored:
            rewritten = table_offset.positions.keys() | logged.positions.keys() | held
        elif end is not None:
            # A rollback that the table has not seen took back what it has: only the table tells that now.
            rewritten = logged.rollbacks if record.table_digests[-1] != digest else ()
            rollback_seqnos = {
                vb: table_offset.position(vb).seqno
                for vb in _doubtful(logged, table_offset, end)
                if vb not in rewritten
            }
        if rewritten or rollback_seqnos:
            positions = dict(logged.positions) | {
                vb: table_offset.position(vb) for vb in (*rewritten, *rollback_seqnos)
            }
            end_offset = Offset(dict(sorted(positions.items())), coverage=table_offset.coverage)
            new_record = self._next_record(end_offset.to_json(), (digest, digest))
            rollback_seqnos |= dict.fromkeys(set(rewritten) & (logged.positions.keys() | held), 0)
            if rewritten:
                new_record = replace(new_record, base=new_record.batch)
            self._put_right(table, record.digest, new_record, frozenset(rewritten), rollback_seqnos)
        self._note_base()

    def logged_anew(self, parts: Iterable[Range]) -> frozenset[int]:
        """Return the vbuckets that a batch returns to a place before the base of the log.

        A planner remembers places of before a base that was made while it ran. Documents that held there, and were
        replaced or deleted before the base, are in none of the log's rows.
        """
        return frozenset(
            part.vbucket
            for part in parts
            if part.rollback and part.start_seqno < self._base_seqnos.get(part.vbucket, 0)
        )

    def _note_base(self) -> None:
        """Remember how far the log was when it began anew, whichever process let it, since this one opened it."""
        if self.record.base != self._base:
            positions = Offset.from_json(self.record.end).positions
            self._base, self._base_seqnos = self.record.base, {vb: at.seqno for vb, at in positions.items()}

    def _next_record(self, end: Mapping[str, Any], digests: tuple[str, str]) -> Record:
        return Record(self.bucket, end, self.record.batch + 1, CHANGES, digests, base=self.record.base)

    def _put_right(
        self,
        table: Table,
        after: str,
        new_record: Record,
        rewritten: frozenset[int],
        rollback_seqnos: Mapping[int, int],
    ) -> None:
        writer = ChangeWriter(self.store, new_record.batch, {}, {}, befores=self.has_befores)
        try:
            writer.take(_rollbacks(rollback_seqnos), always=True)
            for batch in _base(table, rewritten):
                writer.take(batch)
            files = [file.to_add() for file in writer.close()]
        except BaseException:
            writer.discard()
            raise
        # From here on the files stay: a commit that fails may have been made all the same.
        self.put(after, new_record, [TaskResult(self.log.state.version, files)])


def _furthest(logged: Offset, end: Offset) -> Offset:
    """Return the offset of the log after a batch: the batch's end, but the log's own position where that is further."""
    positions = dict(end.positions)
    for vbucket, at in logged.positions.items():
        if vbucket not in end.rollbacks and at.seqno > end.position(vbucket).seqno:
            positions[vbucket] = at
    return Offset(dict(sorted(positions.items())), end.rollbacks, coverage=end.coverage)


def _doubtful(logged: Offset, table_offset: Offset, end: Offset) -> Iterator[int]:
    """Yield the vbuckets in which the log is ahead of the table with changes of a branch that may be lost.

    A vbucket that the batch itself rolls back is left out: its own rollback row has a seqno that is no higher.
    """
    for vbucket, at in logged.positions.items():
        ahead = at.seqno > table_offset.position(vbucket).seqno
        if ahead and at.vb_uuid != end.position(vbucket).vb_uuid and vbucket not in end.rollbacks:
            yield vbucket


def _rollbacks(rollback_seqnos: Mapping[int, int]) -> pa.RecordBatch:
    parts = [
        Range(vbucket, 0, seqno, seqno, seqno, rollback=True) for vbucket, seqno in sorted(rollback_seqnos.items())
    ]
    return RowMaker(_NAMES, "binary", "binary").rollbacks(parts)


def _base(table: Table, vbuckets: frozenset[int]) -> Iterator[pa.RecordBatch]:
    """Yield a table's documents of some vbuckets, as changes."""
    if not vbuckets:
        return
    numbers = pa.array(sorted(vbuckets), pa.int32())
    schema = RowMaker(_NAMES, "binary", "binary").schema
    for file in candidates(table.log.state, vbuckets):
        for batch, _ in rows_of(table.store, file, _OF_TABLE):
            rows = batch.filter(pc.is_in(batch.column("vbucket"), numbers))
            if rows.num_rows:
                yield _as_changes(rows, schema)


def _as_changes(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays: list[Any] = []
    for column in schema:
        if column.name == "event":
            arrays.append(pa.array(["mutation"] * rows.num_rows, column.type))
        elif column.name in _OF_TABLE:
            arrays.append(rows.column(column.name).cast(column.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
