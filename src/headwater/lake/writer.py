"""A task's part of a batch: changes come in, files go out, with the positions of every row that they replace.

Of each key the newest change counts. A mutation becomes a row of a new file; the row that the table has of that key,
in whichever file, is dead from then on, as it is when the change is a deletion. Where that row lies tells the index of
each file that can hold the vbucket: no join, no scan.

* A vbucket that is read from its beginning for the first time has no rows in the table: nothing to look up.
* One that was rolled back is replaced whole: every row of it in the table is dead, and the task reads the vbucket from
  0 to its end, in one reading. So what the table then has of it is one state of one node's history, whatever the lost
  branch had overwritten, deleted or purged (docs/decisions/0025).

A task only ever adds files. What it found is true of one version of the table, and it says of which.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap

from headwater.lake.files import DataWriter, NewFile
from headwater.lake.index import Hashes, Indexes, hashes_of, joined, lasts_of, made, order_of
from headwater.lake.log import DataFile, TableState
from headwater.lake.shape import TableShape
from headwater.lake.store import TableStore
from headwater.lake.vectors import rows_of

NO_ROW = -1


@dataclass(frozen=True)
class Portion:
    """Which vbuckets a task writes, and what is known of their rows in the table.

    Args:
        vbuckets: all of them.
        fresh: those without any row in the table.
        replaced: those whose rows all die.
    """

    vbuckets: frozenset[int]
    fresh: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()

    @property
    def sought(self) -> frozenset[int]:
        """Those whose keys have to be looked up."""
        return self.vbuckets - self.fresh - self.replaced


@dataclass
class TaskResult:
    """The result of a task's writing.

    Attributes:
        version: the version of the table that was looked through.
        files: the new files, as the log's `add` actions.
        dead: rows that die, by path as the log writes it; new files are among them when a key came twice.
        counts: mutations, deletions, rollbacks (vbuckets).
        changes: new files of the change log, as actions.
        columns: those that the files have and the table did not, as the schema describes them.
        conflicts: fields of JSON documents that did not fit, in words.
        changes_after: digest of the record that the log had when they were written.
        unread: vbuckets of which not all could be read that was planned. Such a batch must not be committed.
    """

    version: int
    files: list[dict[str, Any]] = field(default_factory=list)
    dead: dict[str, BitMap] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    changes: list[dict[str, Any]] = field(default_factory=list)
    changes_after: str = ""
    columns: list[dict[str, Any]] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    unread: list[int] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return it as it travels from a task to the driver."""
        dead = {path: base64.b64encode(rows.serialize()).decode() for path, rows in self.dead.items()}
        return json.dumps(self.__dict__ | {"dead": dead}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskResult:
        """Read what `to_bytes` made."""
        told = json.loads(data)
        dead = {path: BitMap.deserialize(base64.b64decode(text)) for path, text in told.pop("dead").items()}
        return cls(**told, dead=dead)


def write(
    store: TableStore,
    state: TableState,
    indexes: Indexes,
    shape: TableShape,
    portion: Portion,
    batches: Iterable[pa.RecordBatch],
) -> TaskResult:
    """Write the changes of some vbuckets; return what a commit needs.

    Args:
        store: the table's place.
        state: the version of the table to look through.
        indexes: of the same table.
        shape: makes the table's rows.
        portion: the vbuckets.
        batches: their changes, in order within each vbucket, with the columns of `shape.SOURCE`. No rollback rows.
    """
    out = DataWriter(store, shape.schema)
    try:
        seen = _Seen(indexes.seed)
        for batch in map(shape.accepted, batches):
            if batch.num_rows:
                seen.note(batch, _placed(out, shape, batch))
        files = out.close()
        newest = seen.newest()
        written = TaskResult(state.version, counts=seen.counts | {"rollbacks": len(portion.replaced)})
        written.columns, written.conflicts = shape.added, sorted(shape.conflicts)
        dead = _Dead()
        _index_new(indexes, files, newest, dead, written)
        _look_up(state, indexes, portion, newest, dead)
        _replace(store, state, portion, dead)
    except BaseException:
        out.discard()
        raise
    written.dead = dead.rows
    return written


def _placed(out: DataWriter, shape: TableShape, batch: pa.RecordBatch) -> tuple[int, NDArray[np.int64]]:
    """Write a batch's mutations; return the number of their file, and each change's row there (`NO_ROW` for others)."""
    mutations = pc.equal(batch.column("event"), pa.scalar("mutation"))
    rows = np.full(batch.num_rows, NO_ROW, np.int64)
    count = mutations.true_count
    if not count:
        return 0, rows
    kept = batch if count == batch.num_rows else batch.filter(mutations)
    number, first = out.add(shape.rows(kept))
    rows[mutations.to_numpy(zero_copy_only=False)] = np.arange(first, first + count)
    return number, rows


@dataclass(frozen=True)
class _Newest:
    """The newest change of each key, sorted by hash; and the rows that a later change of the same batch replaced."""

    hashes: Hashes
    vbuckets: NDArray[np.int32]
    files: NDArray[np.int32]
    rows: NDArray[np.int64]
    outdated: list[tuple[int, NDArray[np.int64]]]


class _Seen:
    """All changes of a task: hash, vbucket, seqno, and where their rows were written."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._hashes: list[Hashes] = []
        self._columns: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]] = []
        self.counts = {"mutations": 0, "deletions": 0}

    def note(self, batch: pa.RecordBatch, placed: tuple[int, NDArray[np.int64]]) -> None:
        """Remember a batch whose rows were written to file `placed[0]`, at `placed[1]`."""
        number, rows = placed
        vbuckets = batch.column("vbucket").to_numpy()
        self._hashes.append(hashes_of(batch.column("key"), vbuckets, self._seed))
        files = np.full(len(rows), number, np.int32)
        # Copies: a view would keep the memory of all that was read until the task ends.
        self._columns.append((vbuckets.astype(np.int32), batch.column("seqno").to_numpy().copy(), files, rows))
        stored = int((rows != NO_ROW).sum())
        self.counts["mutations"] += stored
        self.counts["deletions"] += len(rows) - stored

    def newest(self) -> _Newest:
        """Return the newest change of each key. A vbucket's changes come in order, but a connection that had to be
        made anew may have repeated some, so equal keys go by seqno."""
        hashes = joined(self._hashes)
        columns = [np.concatenate(parts) for parts in zip(*self._columns, strict=True)] if self._columns else []
        if not columns:
            nothing = np.zeros(0, np.int64)
            return _Newest(hashes, nothing.astype(np.int32), nothing.astype(np.int32), nothing, [])
        vbuckets, seqnos, files, rows = columns
        order = order_of(hashes)
        lasts = lasts_of(hashes.take(order))
        falls = seqnos[order[1:]] < seqnos[order[:-1]]
        if (falls & ~lasts[:-1]).any():
            order = np.lexsort((seqnos, hashes.low, hashes.high))
        gone = order[~lasts]
        gone = gone[rows[gone] != NO_ROW]
        outdated = [(int(number), rows[gone[files[gone] == number]]) for number in np.unique(files[gone])]
        kept = order[lasts]
        return _Newest(hashes.take(kept), vbuckets[kept], files[kept], rows[kept], outdated)


class _Dead:
    """Dead rows, by path as the log writes it."""

    def __init__(self) -> None:
        self.rows: dict[str, BitMap] = {}

    def add(self, path: str, rows: NDArray[Any]) -> None:
        """These rows of a file die."""
        if len(rows):
            found = rows_of(rows)
            self.rows[path] = self.rows[path] | found if path in self.rows else found


def _index_new(indexes: Indexes, files: list[NewFile], newest: _Newest, dead: _Dead, written: TaskResult) -> None:
    outdated = dict(newest.outdated)
    for number, file in enumerate(files):
        mine = (newest.files == number) & (newest.rows != NO_ROW)
        indexes.write(file.path, made(newest.hashes.take(mine), newest.rows[mine]), file.rows)
        gone = outdated.get(number)
        if gone is not None:
            dead.add(file.path, gone)
        written.files.append(file.to_add(whole=gone is None))


def _look_up(state: TableState, indexes: Indexes, portion: Portion, newest: _Newest, dead: _Dead) -> None:
    sought = portion.sought
    if not sought:
        return
    wanted = newest.hashes
    if len(sought) < len(portion.vbuckets):
        wanted = wanted.take(np.isin(newest.vbuckets, np.fromiter(sought, np.int32)))
    if len(wanted):
        for file in candidates(state, sought):
            dead.add(file.add["path"], indexes.of(file.path).find(wanted))


def _replace(store: TableStore, state: TableState, portion: Portion, dead: _Dead) -> None:
    if portion.replaced:
        for file in candidates(state, portion.replaced):
            dead.add(file.add["path"], rows_of_vbuckets(store, file.path, portion.replaced))


def candidates(state: TableState, vbuckets: frozenset[int]) -> Iterator[DataFile]:
    """Yield the files that can hold rows of some of these vbuckets."""
    lowest, highest = min(vbuckets), max(vbuckets)
    return (file for file in state.files.values() if file.may_hold(lowest, highest))


def rows_of_vbuckets(store: TableStore, path: str, vbuckets: frozenset[int]) -> NDArray[np.int64]:
    """Return the rows of a file that belong to these vbuckets: one column is read, a few KiB for a million rows."""
    wanted = np.fromiter(vbuckets, np.int32)
    with pq.ParquetFile(store.opened(path)) as opened:
        column: Any = opened.read(columns=["vbucket"]).column("vbucket")
    return np.flatnonzero(np.isin(column.fill_null(NO_ROW).to_numpy(), wanted))
