"""A task's part of a batch: changes come in, files go out, with the positions of every row that they replace.

Of each key the newest change counts. A mutation becomes a row of a new file; the row that the table has of that key,
in whichever file, is dead from then on, as it is when the change is a deletion. Where that row lies tells the index of
each file that can hold the vbucket: no join, no scan.

* A vbucket that is read from its beginning for the first time has no rows in the table: nothing to look up.
* One that was rolled back is replaced whole: every row of it in the table is dead, and the task reads the vbucket from
  0 to its end, in one reading. So what the table then has of it is one state of one node's history, whatever the lost
  branch had overwritten, deleted or purged (docs/decisions/0025).

Documents that do not fit the table's shape may have a second table, the *quarantine* (lake/quarantine.py): what is
written there, and which of its rows die, is found by the same rules from the same changes. A change whose document fits
is, to the quarantine, the end of the row that it has of the key.

A task only ever adds files. What it found is true of one version of the table, and it says of which.
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

from headwater.lake.files import DataWriter, NewFile
from headwater.lake.index import Hashes, Indexes, hashes_of, joined, lasts_of, made_of_sorted, order_of
from headwater.lake.log import DataFile, TableState
from headwater.lake.shape import TableShape
from headwater.lake.store import TableStore
from headwater.lake.vectors import rows_of

NO_ROW = -1
NO_TEXT = "the key is not UTF-8"


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
        reached: (vbucket, vb uuid, seqno) where more was read than was planned, up to that seqno: a node could not show
            what was planned any more.
        aside: the same of the quarantine, if there is one.
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
    aside: TaskResult | None = None
    times: dict[str, float] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return it as it travels from a task to the driver."""
        return json.dumps(self._told()).encode()

    def _told(self) -> dict[str, Any]:
        dead = {path: base64.b64encode(rows.serialize()).decode() for path, rows in self.dead.items()}
        return self.__dict__ | {"dead": dead, "aside": self.aside._told() if self.aside else None}

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskResult:
        """Read what `to_bytes` made."""
        return cls._read(json.loads(data))

    @classmethod
    def _read(cls, told: dict[str, Any]) -> TaskResult:
        dead = {path: BitMap.deserialize(base64.b64decode(text)) for path, text in told.pop("dead").items()}
        aside = told.pop("aside")
        return cls(**told, dead=dead, aside=cls._read(aside) if aside else None)


class Misfits(Protocol):
    """The rows of a quarantine; see lake/quarantine.py."""

    schema: pa.Schema

    def rows(self, batch: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
        """Return the rows of documents, and why each is here."""


@dataclass(frozen=True)
class Aside:
    """A quarantine, as a task sees it: its place, the version to look through, its indexes (of the same seed as the
    table's), and how its rows are made."""

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
    aside: Aside | None = None,
) -> TaskResult:
    """Write the changes of some vbuckets; return what a commit needs.

    Args:
        store: the table's place.
        state: the version of the table to look through.
        indexes: of the same table.
        shape: makes the table's rows.
        portion: the vbuckets.
        batches: their changes, in order within each vbucket, with the columns of `shape.SOURCE`. No rollback rows.
        aside: where documents go that do not fit; None for nowhere.
    """
    out = DataWriter(store, shape.schema)
    beside = DataWriter(aside.store, aside.shape.schema, "quarantine") if aside else None
    try:
        taking = _Taking(shape, out, aside.shape if aside else None, beside)
        seen = _Seen(indexes.seed, 2 if aside else 1)
        for batch in batches:
            if batch.num_rows:
                seen.note(batch, taking.take(batch))
        newest = seen.newest()
        written = _found(store, state, indexes, portion, newest, 0, out.close())
        if aside and beside:
            files = beside.close()
            written.aside = _found(aside.store, aside.state, aside.indexes, portion, newest, 1, files)
    except BaseException:
        out.discard()
        if beside:
            beside.discard()
        raise
    written.counts = taking.counts | {"rollbacks": len(portion.replaced)}
    written.columns, written.conflicts = shape.added, sorted(shape.conflicts)
    return written


def _found(
    store: TableStore,
    state: TableState,
    indexes: Indexes,
    portion: Portion,
    newest: _Newest,
    which: int,
    files: list[NewFile],
) -> TaskResult:
    """Index a table's new files, and find its rows that die."""
    written, dead = TaskResult(state.version), _Dead()
    _index_new(indexes, files, newest, newest.places[which], dead, written)
    _look_up(state, indexes, portion, newest, dead)
    _replace(store, state, portion, dead)
    written.dead = dead.rows
    return written


_Placed = tuple[int, NDArray[np.int64]]
"""The number of a file, and each change's row there (`NO_ROW` where it has none)."""


class _Taking:
    """Writes the rows of changes: into the table, and of documents that do not fit into the quarantine, too."""

    def __init__(self, shape: TableShape, out: DataWriter, misfits: Misfits | None, beside: DataWriter | None) -> None:
        self._shape, self._out, self._misfits, self._beside = shape, out, misfits, beside
        self.counts = {"mutations": 0, "deletions": 0}

    def take(self, batch: pa.RecordBatch) -> list[_Placed]:
        """Write a batch; return where its rows are, by table."""
        mutations = pc.equal(batch.column("event"), pa.scalar("mutation")).to_numpy(zero_copy_only=False)
        taken = self._shape.taken(batch)
        stored = mutations if taken is None else mutations & taken
        self._shape.misfits = []
        placed = [_placed(self._out, batch, stored, self._shape.rows)]
        changes = batch.num_rows if taken is None else int(taken.sum())
        mutated = int(stored.sum())
        self.counts["mutations"] += mutated
        self.counts["deletions"] += changes - mutated
        if self._misfits is not None and self._beside is not None:
            placed.append(self._set_aside(batch, mutations, stored, self._misfits, self._beside))
        return placed

    def _set_aside(
        self,
        batch: pa.RecordBatch,
        mutations: NDArray[np.bool_],
        stored: NDArray[np.bool_],
        misfits: Misfits,
        beside: DataWriter,
    ) -> _Placed:
        reasons = np.full(batch.num_rows, None, object)
        reasons[mutations & ~stored] = NO_TEXT
        if self._shape.misfits:
            reasons[stored] = self._shape.misfits
        bad = np.array([reason is not None for reason in reasons], np.bool_)
        self.counts["quarantined"] = self.counts.get("quarantined", 0) + int(bad.sum())
        return _placed(beside, batch, bad, lambda kept: misfits.rows(kept, reasons[bad].tolist()))


def _placed(
    out: DataWriter,
    batch: pa.RecordBatch,
    stored: NDArray[np.bool_],
    rows_of: Callable[[pa.RecordBatch], pa.RecordBatch],
) -> _Placed:
    """Write the rows of those changes of a batch that have one."""
    rows = np.full(batch.num_rows, NO_ROW, np.int64)
    count = int(stored.sum())
    if not count:
        return 0, rows
    kept = batch if count == batch.num_rows else batch.filter(pa.array(stored))
    number, first = out.add(rows_of(kept))
    rows[stored] = np.arange(first, first + count)
    return number, rows


@dataclass(frozen=True)
class _Places:
    """Of one table: the row of each key's newest change, and the rows that a later change of the batch replaced."""

    files: NDArray[np.int32]
    rows: NDArray[np.int64]
    outdated: list[tuple[int, NDArray[np.int64]]]


@dataclass(frozen=True)
class _Newest:
    """The newest change of each key, sorted by hash, and where its rows are, by table."""

    hashes: Hashes
    vbuckets: NDArray[np.int32]
    places: list[_Places]


class _Seen:
    """All changes of a task: hash, vbucket, seqno, and where their rows were written.

    Args:
        seed: of the hashes.
        tables: to how many tables rows are written.
    """

    def __init__(self, seed: bytes, tables: int = 1) -> None:
        self._seed, self._tables = seed, tables
        self._hashes: list[Hashes] = []
        self._columns: list[tuple[NDArray[Any], ...]] = []

    def note(self, batch: pa.RecordBatch, placed: Sequence[_Placed]) -> None:
        """Remember a batch, and where its rows were written, by table."""
        vbuckets = batch.column("vbucket").to_numpy()
        self._hashes.append(hashes_of(batch.column("key"), vbuckets, self._seed))
        # Copies: a view would keep the memory of all that was read until the task ends.
        columns: list[NDArray[Any]] = [vbuckets.astype(np.int32), batch.column("seqno").to_numpy().copy()]
        for number, rows in placed:
            columns += [np.full(len(rows), number, np.int32), rows]
        self._columns.append(tuple(columns))

    def newest(self) -> _Newest:
        """Return the newest change of each key. A vbucket's changes come in order, but a connection that had to be
        made anew may have repeated some, so equal keys go by seqno."""
        hashes = joined(self._hashes)
        if not self._columns:
            nothing = np.zeros(0, np.int64)
            none = _Places(nothing.astype(np.int32), nothing, [])
            return _Newest(hashes, nothing.astype(np.int32), [none] * self._tables)
        vbuckets, seqnos, *columns = [np.concatenate(parts) for parts in zip(*self._columns, strict=True)]
        order = order_of(hashes)
        lasts = lasts_of(hashes.take(order))
        falls = seqnos[order[1:]] < seqnos[order[:-1]]
        if (falls & ~lasts[:-1]).any():
            order = np.lexsort((seqnos, hashes.low, hashes.high))
        kept, gone = order[lasts], order[~lasts]
        places = [_places(files, rows, kept, gone) for files, rows in zip(columns[::2], columns[1::2], strict=True)]
        return _Newest(hashes.take(kept), vbuckets[kept], places)


def _places(
    files: NDArray[np.int32], rows: NDArray[np.int64], kept: NDArray[np.int64], gone: NDArray[np.int64]
) -> _Places:
    gone = gone[rows[gone] != NO_ROW]
    outdated = [(int(number), rows[gone[files[gone] == number]]) for number in np.unique(files[gone])]
    return _Places(files[kept], rows[kept], outdated)


class _Dead:
    """Dead rows, by path as the log writes it."""

    def __init__(self) -> None:
        self.rows: dict[str, BitMap] = {}

    def add(self, path: str, rows: NDArray[Any]) -> None:
        """These rows of a file die."""
        if len(rows):
            found = rows_of(rows)
            self.rows[path] = self.rows[path] | found if path in self.rows else found


def _index_new(
    indexes: Indexes, files: list[NewFile], newest: _Newest, places: _Places, dead: _Dead, written: TaskResult
) -> None:
    outdated = dict(places.outdated)
    for number, file in enumerate(files):
        mine = (places.files == number) & (places.rows != NO_ROW)
        hashes = newest.hashes if mine.all() else newest.hashes.take(mine)
        indexes.write(file.path, made_of_sorted(hashes, places.rows[mine]), file.rows)
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
    with store.parquet(path) as opened:
        column: Any = opened.read(columns=["vbucket"]).column("vbucket")
    return np.flatnonzero(np.isin(column.fill_null(NO_ROW).to_numpy(), wanted))
