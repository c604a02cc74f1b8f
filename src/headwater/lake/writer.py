"""A task's part of a batch: reads changes, writes data files, and finds the position of every row that they replace.

Only the newest change of each key counts. A mutation becomes a row of a new file. The row that the table has of that
key is dead from then on, in whichever file it lies; a deletion kills it as well. The indexes of all files that can hold
the vbucket give the position of that row: no join, no scan. For a vbucket that is read from its beginning for the first
time nothing is looked up, since the table has no rows of it. In a table whose rows keep their ids changes are looked
up before their rows are written, some batches at a time (lake/lineage.py).

Documents that do not fit the table's shape may have a second table, the *quarantine* (lake/quarantine.py). Its rows,
and which of them die, follow from the same changes by the same rules. A change whose document fits kills the row that
the quarantine has of the key.

A task only adds files. Its result is valid for one version of the table, which the result names.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyroaring import BitMap

from headwater.invariants import invariant
from headwater.lake import lineage, row_ids
from headwater.lake.files import GROUP_BYTES, DataWriter, NewFile
from headwater.lake.index import Hashes, Indexes, hashes_of, index_of_sorted, joined, lasts_of, order_of
from headwater.lake.lineage import Ids, Lookup
from headwater.lake.log import DataFile, TableState
from headwater.lake.row_ids import IdColumns
from headwater.lake.shape import TableShape
from headwater.lake.store import TableStore
from headwater.lake.vectors import rows_of

NO_ROW = -1
NO_TEXT = "the key is not UTF-8"

LOOKUP_BYTES = GROUP_BYTES
"""The bytes of changes that are looked up together where rows keep their ids. Each look-up goes through the indexes
from one end to the other, so few large ones cost less; and so many bytes wait in memory anyway before they are
written."""


@dataclass(frozen=True)
class Portion:
    """The vbuckets that a task writes, by the rows that the table has of them.

    Args:
        vbuckets: all vbuckets of the task.
        fresh: those without any row in the table.
        replaced: those whose rows all die.
    """

    vbuckets: frozenset[int]
    fresh: frozenset[int] = frozenset()
    replaced: frozenset[int] = frozenset()

    @property
    def sought(self) -> frozenset[int]:
        """The vbuckets whose keys must be looked up."""
        return self.vbuckets - self.fresh - self.replaced


@dataclass
class TaskResult:
    """The result of a task's writing.

    Attributes:
        version: the version of the table in which rows were looked up.
        files: the new files, as the log's `add` actions.
        dead: dead rows, by path as the log writes it; new files are among them if a key came twice.
        counts: mutations, deletions, rollbacks (vbuckets).
        changes: new files of the change log, as actions.
        columns: columns that the files have and the table does not have yet, as the schema describes them.
        conflicts: messages about fields of JSON documents that did not fit.
        changes_after: digest of the log's record when its files were written.
        unread: vbuckets that could not be read up to the planned seqno. Such a batch must not be committed.
        reached: (vbucket, vb uuid, seqno) of vbuckets that were read further than planned, up to that seqno, because a
            node could no longer show the planned state.
        quarantine: the result for the quarantine, if there is one.
        times: Unix seconds at which the task `began`, had its `first` changes, had `read` all, and `ended`.
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
    reached: list[tuple[int, int, int]] = field(default_factory=list)
    quarantine: TaskResult | None = None
    times: dict[str, float] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the result as bytes, to travel from a task to the driver."""
        return json.dumps(self._as_dict()).encode()

    def _as_dict(self) -> dict[str, Any]:
        dead_rows = {path: base64.b64encode(rows.serialize()).decode() for path, rows in self.dead.items()}
        return self.__dict__ | {
            "dead": dead_rows,
            "quarantine": self.quarantine._as_dict() if self.quarantine else None,
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskResult:
        """Return the result that `to_bytes` encoded."""
        return cls._read(json.loads(data))

    @classmethod
    def _read(cls, fields: dict[str, Any]) -> TaskResult:
        dead_rows = {path: BitMap.deserialize(base64.b64decode(text)) for path, text in fields.pop("dead").items()}
        quarantine = fields.pop("quarantine")
        return cls(**fields, dead=dead_rows, quarantine=cls._read(quarantine) if quarantine else None)


class Misfits(Protocol):
    """A converter from documents that do not fit to rows of a quarantine; see lake/quarantine.py."""

    schema: pa.Schema

    def rows(self, batch: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
        """Return a row for each document, with the reason why it does not fit."""


@dataclass(frozen=True)
class TaskQuarantine:
    """A quarantine as a task needs it.

    Attributes:
        store: the quarantine's place.
        state: the version in which rows are looked up.
        indexes: the quarantine's indexes, with the table's seed.
        shape: makes its rows.
    """

    store: TableStore
    state: TableState
    indexes: Indexes
    shape: Misfits


def write(
    store: TableStore,
    state: TableState,
    indexes: Indexes,
    shape: TableShape,
    portion: Portion,
    batches: Iterable[pa.RecordBatch],
    quarantine: TaskQuarantine | None = None,
) -> TaskResult:
    """Write the changes of some vbuckets; return the data for the commit.

    Args:
        store: the table's place.
        state: the version of the table in which rows are looked up.
        indexes: indexes of the same table.
        shape: makes the table's rows.
        portion: the vbuckets.
        batches: their changes, in order within each vbucket, with the columns of `shape.SOURCE`. No rollback rows.
        quarantine: the quarantine for documents that do not fit; None for none.
    """
    # A vbucket of another task among these would have its rows killed here and written there.
    strangers = (portion.fresh | portion.replaced) - portion.vbuckets
    invariant(not strangers, "vbuckets {} are no part of what is written", strangers)
    out = DataWriter(store, shape.schema, state.layout.label("part"))
    quarantine_out = None
    if quarantine:
        quarantine_out = DataWriter(
            quarantine.store, quarantine.shape.schema, quarantine.state.layout.label("quarantine")
        )
    try:
        taking = _Taking(shape, out, state.id_columns, quarantine.shape if quarantine else None, quarantine_out)
        lookup = lineage.lookup(store, state, indexes, portion.vbuckets - portion.fresh)
        newest_changes = _TaskChanges(2 if quarantine else 1)
        for batch, hashes, ids in _looked_up(batches, indexes.seed, lookup):
            newest_changes.note(batch, hashes, taking.take(batch, ids), ids)
        newest = newest_changes.newest()
        # The files are closed, and so on the disk, before their rows are promised to the driver.
        result = _result_of(store, state, indexes, portion, newest, 0, out.close(), lookup)
        if quarantine and quarantine_out:
            files = quarantine_out.close()
            result.quarantine = _result_of(
                quarantine.store, quarantine.state, quarantine.indexes, portion, newest, 1, files
            )
    # Of a cancelled task as well nobody else knows the files.
    except BaseException:
        out.discard()
        if quarantine_out:
            quarantine_out.discard()
        raise
    result.counts = taking.counts | {"rollbacks": len(portion.replaced)}
    result.columns, result.conflicts = shape.added, sorted(shape.conflicts)
    return result


def _looked_up(
    batches: Iterable[pa.RecordBatch], seed: bytes, lookup: Lookup | None
) -> Iterator[tuple[pa.RecordBatch, Hashes, Ids | None]]:
    """Yield each batch that has rows, the hashes of its keys, and the ids of the rows that it replaces; None without
    `lookup`."""
    waiting_batches: list[tuple[pa.RecordBatch, Hashes]] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        hashes = hashes_of(batch.column("key"), batch.column("vbucket").to_numpy(), seed)
        if lookup is None:
            yield batch, hashes, None
            continue
        waiting_batches.append((batch, hashes))
        held_bytes += batch.nbytes
        if held_bytes >= LOOKUP_BYTES:
            yield from _with_ids(waiting_batches, lookup)
            waiting_batches, held_bytes = [], 0
    if lookup is not None and waiting_batches:
        yield from _with_ids(waiting_batches, lookup)


def _with_ids(
    batches: Sequence[tuple[pa.RecordBatch, Hashes]], lookup: Lookup
) -> Iterator[tuple[pa.RecordBatch, Hashes, Ids]]:
    vbuckets = np.concatenate([batch.column("vbucket").to_numpy() for batch, _ in batches])
    ids, first = lookup.ids_of(joined([hashes for _, hashes in batches]), vbuckets), 0
    for batch, hashes in batches:
        yield batch, hashes, ids[first : first + len(hashes)]
        first += len(hashes)


def _result_of(
    store: TableStore,
    state: TableState,
    indexes: Indexes,
    portion: Portion,
    newest: _Newest,
    which: int,
    files: list[NewFile],
    lookup: Lookup | None = None,
) -> TaskResult:
    """Index a table's new files, look up the rows that die, and return both as a TaskResult.

    Args:
        which: the number of the table in `newest.places`: 0 for the table, 1 for its quarantine.
        files: the table's new files.
        lookup: has looked up all changes; None if nobody has.
    """
    result, dead_files = TaskResult(state.version), _Dead()
    # A worker serves many batches: the mapping of a file that the table lost would keep its blocks on the disk.
    indexes.forget_others({file.path for file in state.files.values()})
    _index_new(indexes, files, newest, newest.places[which], newest.ids if lookup else None, dead_files, result)
    if lookup is None:
        _look_up(state, indexes, portion, newest, dead_files)
    else:
        for path, rows in lookup.dead():
            dead_files.add(path, rows)
    _replace(store, state, portion, dead_files)
    result.dead = dead_files.rows
    return result


_Placed = tuple[int, NDArray[np.int64]]
"""The number of a file, and the row of each change in it (`NO_ROW` if it has none)."""


class _Taking:
    """A writer of changes: rows to the table, and rows of documents that do not fit to the quarantine."""

    def __init__(
        self,
        shape: TableShape,
        out: DataWriter,
        columns: IdColumns | None,
        misfits: Misfits | None,
        quarantine_out: DataWriter | None,
    ) -> None:
        self._shape, self._out, self._columns = shape, out, columns
        self._misfits, self._quarantine_out = misfits, quarantine_out
        self.counts = {"mutations": 0, "deletions": 0}

    def take(self, batch: pa.RecordBatch, ids: Ids | None) -> list[_Placed]:
        """Write a batch; return the positions of its rows in each table. `ids`: of the rows it replaces, if kept."""
        mutations = pc.equal(batch.column("event"), pa.scalar("mutation")).to_numpy(zero_copy_only=False)
        is_accepted = self._shape.taken(batch)
        is_stored = mutations if is_accepted is None else mutations & is_accepted
        # The shape keeps the reasons of the batch before; a batch without any row to write would be given those.
        self._shape.misfits = []
        placed = [_placed_rows(self._out, batch, is_stored, lambda rows: self._rows(rows, is_stored, ids))]
        changes = batch.num_rows if is_accepted is None else int(is_accepted.sum())
        mutated = int(is_stored.sum())
        self.counts["mutations"] += mutated
        self.counts["deletions"] += changes - mutated
        if self._misfits is not None and self._quarantine_out is not None:
            placed.append(self._set_aside(batch, mutations, is_stored, self._misfits, self._quarantine_out))
        return placed

    def _rows(self, changes: pa.RecordBatch, is_stored: NDArray[np.bool_], ids: Ids | None) -> pa.RecordBatch:
        rows = self._shape.rows(changes)
        if self._columns is None or ids is None:
            return rows
        return rows.append_column(pa.field(self._columns.row, pa.int64()), row_ids.column(ids[is_stored]))

    def _set_aside(
        self,
        batch: pa.RecordBatch,
        mutations: NDArray[np.bool_],
        is_stored: NDArray[np.bool_],
        misfits: Misfits,
        quarantine_out: DataWriter,
    ) -> _Placed:
        reasons = np.full(batch.num_rows, None, object)
        # A deletion of such a key has no reason, so it only ends the row that the quarantine has of it.
        reasons[mutations & ~is_stored] = NO_TEXT
        if self._shape.misfits:
            reasons[is_stored] = self._shape.misfits
        is_misfit = np.array([reason is not None for reason in reasons], np.bool_)
        self.counts["quarantined"] = self.counts.get("quarantined", 0) + int(is_misfit.sum())
        return _placed_rows(
            quarantine_out, batch, is_misfit, lambda rows: misfits.rows(rows, reasons[is_misfit].tolist())
        )


def _placed_rows(
    out: DataWriter,
    batch: pa.RecordBatch,
    is_stored: NDArray[np.bool_],
    rows_of: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> _Placed:
    """Write the rows of a batch's changes that the mask `is_stored` selects; return their positions."""
    rows = np.full(batch.num_rows, NO_ROW, np.int64)
    count = int(is_stored.sum())
    if not count:
        return 0, rows
    changes = batch if count == batch.num_rows else batch.filter(pa.array(is_stored))
    number, first = out.add(rows_of(changes))
    rows[is_stored] = np.arange(first, first + count)
    row_count = out.files[number].rows
    invariant(first + count == row_count, "rows {} to {} of a file that has {}", first, first + count, row_count)
    return number, rows


@dataclass(frozen=True)
class _Places:
    """The positions of rows in one table: of each key's newest change, and of the rows that later changes of the batch
    replaced.
    """

    files: NDArray[np.int32]
    rows: NDArray[np.int64]
    outdated: list[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True)
class _Newest:
    """The newest change of each key, sorted by hash, the positions of its rows in each table, and the ids of the rows
    that it replaces, if they are kept."""

    hashes: Hashes
    vbuckets: NDArray[np.int32]
    places: list[_Places]
    ids: Ids | None = None


class _TaskChanges:
    """All changes of a task: hash, vbucket, seqno, and the positions of their rows.

    Args:
        tables: number of tables to which rows are written.
    """

    def __init__(self, tables: int = 1) -> None:
        self._tables = tables
        self._hashes: list[Hashes] = []
        self._columns: list[tuple[NDArray[Any], ...]] = []
        self._ids: list[Ids] = []

    def note(self, batch: pa.RecordBatch, hashes: Hashes, placed: Sequence[_Placed], ids: Ids | None) -> None:
        """Remember a batch, the positions of its rows in each table, and the ids of the rows that it replaces."""
        vbuckets = batch.column("vbucket").to_numpy()
        self._hashes.append(hashes)
        if ids is not None:
            self._ids.append(ids)
        # Copies: a view would keep the memory of all that was read until the task ends.
        columns: list[NDArray[Any]] = [vbuckets.astype(np.int32), batch.column("seqno").to_numpy().copy()]
        for number, rows in placed:
            columns += [np.full(len(rows), number, np.int32), rows]
        self._columns.append(tuple(columns))

    def newest(self) -> _Newest:
        """Return the newest change of each key. A vbucket's changes come in order, but a connection that was opened
        again may have repeated some, so the highest seqno counts."""
        hashes = joined(self._hashes)
        if not self._columns:
            nothing = np.zeros(0, np.int64)
            none = _Places(nothing.astype(np.int32), nothing, [])
            return _Newest(hashes, nothing.astype(np.int32), [none] * self._tables)
        vbuckets, seqnos, *columns = [np.concatenate(parts) for parts in zip(*self._columns, strict=True)]
        order = order_of(hashes)
        lasts = lasts_of(hashes.take(order))
        # Only among changes of one key does a lower seqno behind a higher one matter, and it is rare: the costly sort
        # by seqno is done when it happened.
        falls = seqnos[order[1:]] < seqnos[order[:-1]]
        if (falls & ~lasts[:-1]).any():
            order = np.lexsort((seqnos, hashes.low, hashes.high))
        newest_places, older_places = order[lasts], order[~lasts]
        changes = len(seqnos)
        invariant(len(hashes) == len(order) == changes, "{} keys of {} changes", len(hashes), changes)
        places = [
            _places(files, rows, newest_places, older_places)
            for files, rows in zip(columns[::2], columns[1::2], strict=True)
        ]
        ids = np.concatenate(self._ids)[newest_places] if self._ids else None
        return _Newest(hashes.take(newest_places), vbuckets[newest_places], places, ids)


def _places(
    files: NDArray[np.int32], rows: NDArray[np.int64], newest: NDArray[np.int64], older: NDArray[np.int64]
) -> _Places:
    # A deletion that a later change of the batch replaced has no row that could die.
    older = older[rows[older] != NO_ROW]
    outdated = [(int(number), rows[older[files[older] == number]]) for number in np.unique(files[older])]
    return _Places(files[newest], rows[newest], outdated)


class _Dead:
    """Dead rows, by path as the log writes it."""

    def __init__(self) -> None:
        self.rows: dict[str, BitMap] = {}

    def add(self, path: str, rows: NDArray[Any]) -> None:
        """Mark these rows of a file as dead."""
        if len(rows):
            bitmap = rows_of(rows)
            self.rows[path] = self.rows[path] | bitmap if path in self.rows else bitmap


def _index_new(
    indexes: Indexes,
    files: list[NewFile],
    newest: _Newest,
    places: _Places,
    ids: Ids | None,
    dead_files: _Dead,
    result: TaskResult,
) -> None:
    outdated = dict(places.outdated)
    for number, file in enumerate(files):
        # A change without a row has file number 0 as well, so the rows decide.
        is_in_file = (places.files == number) & (places.rows != NO_ROW)
        hashes = newest.hashes if is_in_file.all() else newest.hashes.take(is_in_file)
        live, old = int(is_in_file.sum()), len(outdated.get(number, ()))
        # A row that is neither indexed nor dead would live for ever: no later change could find it.
        invariant(live + old == file.rows, "{}: {} rows, {} live and {} not", file.path, file.rows, live, old)
        row_ids_ = None if ids is None else ids[is_in_file]
        indexes.write(file.path, index_of_sorted(hashes, places.rows[is_in_file], row_ids_), file.rows)
        dead_rows = outdated.get(number)
        if dead_rows is not None:
            dead_files.add(file.path, dead_rows)
        result.files.append(file.to_add(is_whole=dead_rows is None))


def _look_up(state: TableState, indexes: Indexes, portion: Portion, newest: _Newest, dead_files: _Dead) -> None:
    sought = portion.sought
    if not sought:
        return
    # Deletions are among them: they have no row in a new file, and kill the one that the table has.
    hashes = newest.hashes
    if len(sought) < len(portion.vbuckets):
        # Keys of a fresh or replaced vbucket have no row that could be found, or die with all of it.
        hashes = hashes.take(np.isin(newest.vbuckets, np.fromiter(sought, np.int32)))
    if len(hashes):
        for file in candidates(state, sought):
            dead_files.add(file.add["path"], indexes.of(file.path).find(hashes))


def _replace(store: TableStore, state: TableState, portion: Portion, dead_files: _Dead) -> None:
    if portion.replaced:
        for file in candidates(state, portion.replaced):
            dead_files.add(file.add["path"], rows_of_vbuckets(store, file.path, portion.replaced))


def candidates(state: TableState, vbuckets: frozenset[int]) -> Iterator[DataFile]:
    """Yield the files that may hold rows of some of these vbuckets."""
    lowest, highest = min(vbuckets), max(vbuckets)
    return (file for file in state.files.values() if file.may_hold(lowest, highest))


def rows_of_vbuckets(store: TableStore, path: str, vbuckets: frozenset[int]) -> NDArray[np.int64]:
    """Return the rows of a file that belong to these vbuckets. One column is read, a few KiB for a million rows."""
    numbers = np.fromiter(vbuckets, np.int32)
    with store.parquet(path) as parquet_file:
        column: Any = parquet_file.read(columns=["vbucket"]).column("vbucket")
    # A null stands for a row of another writer without a vbucket, which is nobody's to replace.
    return np.flatnonzero(np.isin(column.fill_null(NO_ROW).to_numpy(), numbers))
