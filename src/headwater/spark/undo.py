"""Reads a task's vbuckets for a flow that applies changes by key: each row has a place in the order of its document's
versions, and a rollback comes as rows that undo, instead of a `rollback` row.

The order is (generation, seqno). Seqnos begin again on another branch of history, so the offset counts, for each
vbucket, how often delivered changes were taken back: its generation. A key lives in one vbucket, so any two versions of
a document compare.

At a rollback the vbucket is read from 0, and of each document that comes with the rows that were delivered before
(keylog.py): the version is yielded, in the new generation, unless it was certainly the last one delivered and still
stands. A document that was delivered and does not come is gone: a deletion is yielded in its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.protocol.dcp.position import Position
from headwater.spark.columns import ROLLBACK, RowMaker
from headwater.spark.keyfile import SCHEMA, KeyWriter, Reach
from headwater.spark.keylog import Delivered, Identity, KeyLog
from headwater.spark.offsets import hex_uuid
from headwater.spark.planner import Range
from headwater.spark.reader import further, read
from headwater.spark.settings import SourceSettings
from headwater.wire.vbucket import VBUCKET_NUMBERS

SEQUENCE = "sequence"
SEQUENCE_TYPE: Final = pa.struct([("generation", pa.int64()), ("seqno", pa.int64())])
_NEEDED = ("vbucket", "seqno", "event", "key", "snapshot_end")
_NAMED = ("scope", "collection")


def read_undoing(
    settings: SourceSettings, names: Sequence[str], parts: Sequence[Range], positions: Mapping[int, Position]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of these ranges as Arrow batches, with the column `sequence` if it is wanted.

    Args:
        settings: the options, `undo_folder` among them.
        names: wanted columns, in order.
        positions: of the ranges that roll back, where the reader stood before.

    Raises:
        NotesError: the folder is lost, another query's or damaged. Others as `headwater.spark.reader.read`.
    """
    log = KeyLog(settings.undo_folder or "", settings.notes)
    with log.writer([_reach(part) for part in parts]) as writer:
        task = _Task(settings, names, parts, log, writer)
        yield from task.plain()
        yield from task.rolled_back(positions)


def _reach(part: Range) -> Reach:
    """Return what an attempt reads of a range; of one that rolls back, the vbucket from its beginning."""
    return Reach(part.vbucket, part.generation, -1 if part.rollback else part.start_seqno, part.end_seqno)


@dataclass
class _Repair:
    """A vbucket that is set right while it is read from 0.

    Attributes:
        seqno: the seqno of the deletions that undo.
        delivered: the last row delivered of each document.
        seen: documents that the vbucket has, deleted ones included.
    """

    part: Range
    seqno: int
    delivered: Mapping[Identity, Delivered]
    seen: set[Identity] = field(default_factory=set)

    def wants(self, identity: Identity, seqno: int, standing: int) -> bool:
        """Return True unless this version was certainly the last one delivered and still stands; note its document.

        Args:
            standing: the seqno up to which the delivered history is the node's.
        """
        self.seen.add(identity)
        last = self.delivered.get(identity)
        return last is None or last.seqno != seqno or seqno > standing or not last.certain

    def gone(self) -> list[Identity]:
        """Return the documents that were delivered, not certainly as deletions, and that the vbucket has not."""
        return [
            key for key, last in self.delivered.items() if not (last.deleted and last.certain) and key not in self.seen
        ]


class _Task:
    def __init__(
        self, settings: SourceSettings, names: Sequence[str], parts: Sequence[Range], log: KeyLog, writer: KeyWriter
    ) -> None:
        self._settings, self._names, self._log, self._writer = settings, names, log, writer
        self._parts = {part.vbucket: part for part in parts}
        needed = _NEEDED + (_NAMED if settings.chooses else ())
        # Spark asks for the columns in their order; what is needed here only comes behind them.
        wanted = [name for name in names if name != SEQUENCE]
        self._read_names = (*wanted, *(name for name in needed if name not in wanted))
        self._maker = RowMaker(self._read_names, settings.key_format, settings.value_format)
        self._generations = np.zeros(VBUCKET_NUMBERS, np.int64)
        for part in parts:
            self._generations[part.vbucket] = part.generation
        self._repairs: dict[int, _Repair] = {}
        self._standing: dict[int, int] = {}

    def plain(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the ranges that do not roll back."""
        parts = [part for part in self._parts.values() if not part.rollback]
        if parts:
            yield from self._rows(read(self._settings, self._read_names, parts))
            yield from self._deletions(set())

    def rolled_back(self, positions: Mapping[int, Position]) -> Iterator[pa.RecordBatch]:
        """Yield what sets the vbuckets right that roll back, and their new rows."""
        parts = [part for part in self._parts.values() if part.rollback]
        if not parts:
            return
        delivered = self._delivered(parts)
        # The end of the range is behind all that another attempt had of this generation, which may be gone as well.
        self._repairs = {part.vbucket: _Repair(part, part.end_seqno, delivered[part.vbucket]) for part in parts}
        self._standing = dict.fromkeys(self._repairs, 0)
        unread: set[int] = set()
        rows = read(
            self._settings,
            self._read_names,
            [replace(part, start_seqno=0, rollback=False) for part in parts],
            unread=unread,
            begins_again=True,
            # Up to a whole state: a document whose newest change lies above the range is not gone.
            reached=further(self._settings),
            had={part.vbucket: positions[part.vbucket] for part in parts},
            kept_seqnos=self._standing,
        )
        yield from self._rows(rows)
        # What could not be read rolls back again, in the next batch.
        yield from self._deletions(unread)

    def _rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.column("event")[0].as_py() == ROLLBACK:
                self._begin_again(batch)
                continue
            wanted = self._wanted(batch)
            if wanted.num_rows:
                yield self._noted(wanted)

    def _begin_again(self, rollbacks: pa.RecordBatch) -> None:
        """Set vbuckets right that the task itself begins again, because deletions were purged while it read."""
        for row in rollbacks.select(["vbucket", "snapshot_end"]).to_pylist():
            vbucket, purge_seqno = int(row["vbucket"]), int(row["snapshot_end"])
            part = self._parts[vbucket]
            # The rows that this task has yielded count as well; a deletion of them has a purged seqno at most.
            self._repairs[vbucket] = _Repair(part, purge_seqno, self._delivered([part])[vbucket])
            self._standing.setdefault(vbucket, 0)

    def _delivered(self, parts: Sequence[Range]) -> dict[int, dict[Identity, Delivered]]:
        """Return, by vbucket, the last row of each document that may have been delivered, in this generation too.

        Rows of this generation are never certain: they are those of other attempts, or of a batch that Spark has
        forgotten with the end of its checkpoint.
        """
        delivered = self._log.last({part.vbucket: part.generation + 1 for part in parts})
        for part in parts:
            rows = delivered[part.vbucket]
            rows |= {
                identity: row._replace(certain=False)
                for identity, row in rows.items()
                if row.generation == part.generation
            }
        return delivered

    def _wanted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self._repairs:
            return batch
        vbuckets, seqnos = batch.column("vbucket").to_numpy().tolist(), batch.column("seqno").to_numpy().tolist()
        mask = []
        for vbucket, seqno, identity in zip(vbuckets, seqnos, self._identities(batch), strict=True):
            repair = self._repairs.get(vbucket)
            mask.append(repair is None or repair.wants(identity, seqno, self._standing[vbucket]))
        return batch.filter(pa.array(mask, pa.bool_()))

    def _identities(self, batch: pa.RecordBatch) -> list[Identity]:
        keys: list[Any] = batch.column("key").cast(pa.binary()).to_pylist()
        scopes, names = (
            batch.column(name).to_pylist() if self._settings.chooses else [None] * len(keys) for name in _NAMED
        )
        return list(zip(scopes, names, keys, strict=True))

    def _deletions(self, unread: set[int]) -> Iterator[pa.RecordBatch]:
        """Yield a deletion for each document that is gone."""
        for vbucket, repair in self._repairs.items():
            gone = repair.gone() if vbucket not in unread else []
            if gone:
                yield self._noted(self._deleted(repair, gone))
        self._repairs = {}

    def _deleted(self, repair: _Repair, gone: list[Identity]) -> pa.RecordBatch:
        count = len(gone)
        values: Mapping[str, list[Any]] = {
            "vbucket": [repair.part.vbucket] * count,
            "seqno": [repair.seqno] * count,
            "vb_uuid": [hex_uuid(repair.part.vb_uuid)] * count,
            "event": ["deletion"] * count,
            "key": [key for _, _, key in gone],
            "snapshot_start": [repair.seqno] * count,
            "snapshot_end": [repair.seqno] * count,
            "scope": [scope for scope, _, _ in gone],
            "collection": [name for _, name, _ in gone],
        }
        arrays = [
            (pa.array(values[kind.name]) if kind.name in values else pa.nulls(count)).cast(kind.type)
            for kind in self._maker.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._maker.schema)

    def _noted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Note the keys of rows, and return the rows as Spark wants them."""
        generations = pa.array(self._generations[batch.column("vbucket").to_numpy()])
        scopes, names = (
            batch.column(name) if self._settings.chooses else pa.nulls(batch.num_rows, pa.string()) for name in _NAMED
        )
        arrays = [
            batch.column("vbucket"),
            generations,
            batch.column("seqno"),
            scopes,
            names,
            batch.column("key").cast(pa.binary()),
            pc.not_equal(batch.column("event"), pa.scalar("mutation")),
        ]
        self._writer.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
        sequences = pa.StructArray.from_arrays([generations, batch.column("seqno")], fields=list(SEQUENCE_TYPE))
        columns = [sequences if name == SEQUENCE else batch.column(name) for name in self._names]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema())

    def _schema(self) -> pa.Schema:
        kinds = {kind.name: kind.type for kind in self._maker.schema} | {SEQUENCE: SEQUENCE_TYPE}
        return pa.schema([(name, kinds[name]) for name in self._names])
