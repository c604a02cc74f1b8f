"""Care for a table: folds small files, rewrites mostly dead ones, writes checkpoints, removes unneeded files.

Folding is tiered: eight files of about the same size are folded into one of the next size, so each row is rewritten
once a tier, and a table has some dozen files however many batches it has seen. Folds run beside the batches; only the
commit of a fold stands between two batches. Rows that die during a fold are found at their new positions, since a fold
keeps the order of the live rows.
"""

from __future__ import annotations

import json
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap

from headwater import tracing
from headwater.errors import TableAway
from headwater.failpoints import failpoint
from headwater.lake import checkpoints, index, removals, row_ids, vectors
from headwater.lake.files import DataWriter, NewFile, live_mask
from headwater.lake.freshness import complete_text
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.iceberg.place import CATALOG
from headwater.lake.index import Hashes, Indexes, KeyIndex, hashes_of, index_of, joined
from headwater.lake.layout import OF_DELTA, TableLayout
from headwater.lake.log import AWAY, FOLDER, Action, DataFile, TableLog, TableState, names_of, removal
from headwater.lake.places import QUARANTINE, store_of
from headwater.lake.row_ids import IdColumns
from headwater.lake.shape import arrow_schema
from headwater.lake.store import DRAFT_PREFIX, Listed, TableStore

FOLD = "fold"
"""The prefix of the names of folded files."""

FAN = 8
"""The number of files of one tier that are folded together, and the ratio of sizes between tiers."""

SMALLEST_BYTES = 128 << 10
LARGEST_BYTES = 256 << 20
DEAD_SHARE = 0.5
CHECKPOINT_EVERY = 100
VACUUM_SECONDS = 3600.0
HANG_SECONDS, SLOWEST = 600.0, 1 << 20
"""Upkeep hangs if it takes longer than this many seconds, plus one second for each so many bytes of files."""

UNDER_WAY_SECONDS = 3600.0
"""The longest time that a batch may be under way. A vacuum by the clock leaves files that are not older than the newest
commit by this much: the clock may be wrong, and removing the files of a batch before its commit breaks the table."""

LOOK_EVERY = 100
"""The number of removed files after which a vacuum checks again that the table is still in its place."""

REST_SECONDS, LONGEST_REST_SECONDS = 1.0, 300.0
"""The pause after a failure of upkeep, and the longest pause; each further failure doubles it."""

DAY = 86_400.0
RETENTION, LOG_RETENTION = 7 * DAY, 30 * DAY
_SECONDS = {"microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3600.0}
_SECONDS |= {"day": DAY, "week": 7 * DAY, "month": 30 * DAY}
_INTERVAL = re.compile(r"\s*(?:interval\s+)?((?:\d+\s+[a-z]+\s*)+)", re.IGNORECASE)
_UNITS = re.compile(r"(\d+)\s+([a-z]+?)s?(?![a-z])", re.IGNORECASE)


def seconds_of(text: str | None, otherwise: float) -> float:
    """Return a property such as `interval 30 days 12 hours` in seconds; `otherwise` if it is None.

    A text that can't be read gives infinity, so that no file is removed that the owner may want to keep.
    """
    if text is None:
        return otherwise
    match = _INTERVAL.fullmatch(text)
    units = _UNITS.findall(match[1]) if match else [("1", "")]
    # An unknown unit weighs infinitely, as a text that can't be read does: rather keep too much.
    return sum(int(count) * _SECONDS.get(unit.lower(), math.inf) for count, unit in units)


def live_bytes(file: DataFile) -> float:
    """Return the approximate number of live bytes in a file."""
    return file.size * (1 - file.dead / file.rows) if file.rows else float(file.size)


def tier_of(file: DataFile) -> int | None:
    """Return a file's tier by its live bytes; None for a file that is large enough."""
    size = live_bytes(file)
    if size >= LARGEST_BYTES:
        return None
    return max(0, math.floor(math.log(max(size / SMALLEST_BYTES, 1), FAN)) + (size >= SMALLEST_BYTES))


def choose(state: TableState) -> list[DataFile]:
    """Return the files to fold next: a full tier, smallest first, or mostly dead files. Empty if nothing is due."""
    tiers: dict[int, list[DataFile]] = {}
    for file in state.files.values():
        tier = tier_of(file)
        # A file of another writer without statistics stays out: how many of its rows are dead can't be known.
        if tier is not None and file.rows is not None:
            tiers.setdefault(tier, []).append(file)
    for _, files in sorted(tiers.items()):
        if len(files) >= FAN:
            return files
    return [file for file in state.files.values() if file.rows and file.dead > DEAD_SHARE * file.rows]


@dataclass
class FoldedFile:
    """A file that was folded.

    Attributes:
        file: the file as it was when the fold read it.
        alive: mask of its live rows.
        runs: (rank of the run's first live row, number of the new file, row there), by rank.
    """

    file: DataFile
    alive: NDArray[np.bool_]
    runs: list[tuple[int, int, int]] = field(default_factory=list)

    def all_rows(self) -> BitMap:
        """Return all rows of the file."""
        return BitMap(range(len(self.alive)))

    def revived(self, dead_rows: BitMap) -> bool:
        """Return True if rows are live again that were dead when the fold read the file (after a RESTORE)."""
        # The rows that this fold left out must all be dead still: a RESTORE may have made the vector smaller, and the
        # rows that it revived are in no new file.
        left_out = ~self.alive
        return int(left_out[vectors.positions_of(dead_rows)].sum()) < int(left_out.sum())

    def moved(self, rows: BitMap) -> Iterable[tuple[int, NDArray[np.int64]]]:
        """Yield (new file, rows there) for rows that died after the fold had read them."""
        # A fold keeps the order of the live rows, so a row's rank among them leads to its place in the new files.
        old = vectors.positions_of(rows)
        old = old[self.alive[old]]
        ranks = np.cumsum(self.alive)[old] - 1
        starts = np.array([start for start, _, _ in self.runs], np.int64)
        which = np.searchsorted(starts, ranks, side="right") - 1
        for run in np.unique(which):
            start, number, first = self.runs[run]
            yield number, ranks[which == run] - start + first


@dataclass
class Folded:
    """New files with the live rows of others.

    Attributes:
        columns: in which the rows keep their ids; None if they keep none.
    """

    files: list[NewFile]
    sources: list[FoldedFile]
    columns: IdColumns | None = None


def fold(
    store: TableStore,
    fields: Sequence[Any],
    indexes: Indexes | None,
    files: Sequence[DataFile],
    dead_rows: Mapping[str, BitMap] | None = None,
    label: str = FOLD,
    columns: IdColumns | None = None,
) -> Folded:
    """Write the live rows of some files to new files, with their indexes; the table does not have them yet.

    Args:
        store: the table's place.
        fields: its columns.
        indexes: indexes to write to; None for a table without (a change log).
        files: files as the newest version has them.
        dead_rows: rows to leave out besides the version's dead rows, by path as the log writes it.
        label: beginning of the new files' paths.
        columns: in which the rows keep their ids; None if they need not.
    """
    schema = arrow_schema(fields)
    if columns is not None:
        schema = pa.schema([*schema, *columns.folded])
    if indexes is not None:
        indexes.keep_ids(columns.row if columns else None)
    bounds = [name for name in ("vbucket", "seqno") if name in schema.names]
    out = DataWriter(store, schema, label, bounds)
    moved_rows: list[_MovedRows] = []
    sources = []
    try:
        for file in files:
            new_dead = (dead_rows or {}).get(file.add["path"])
            sources.append(_copy(store, out, file, indexes.seed if indexes else None, columns, moved_rows, new_dead))
            failpoint("lake.folding")
        new_files = out.close()
        for number, new in enumerate(new_files if indexes else ()):
            if indexes is not None:
                indexes.write(new.path, _index_of([row for row in moved_rows if row.file == number]), new.rows)
    # A cancellation as well: what no log names takes room until a vacuum finds it by its age.
    except BaseException:
        out.discard()
        raise
    return Folded(new_files, sources, columns)


@dataclass(frozen=True, slots=True)
class _MovedRows:
    """Rows that stand in a new file.

    Attributes:
        file: its number.
        first: the row there of the first of them.
        hashes: of their keys.
        ids: of the rows; None if they are not kept.
    """

    file: int
    first: int
    hashes: Hashes
    ids: NDArray[np.int64] | None


def _index_of(moved_rows: Sequence[_MovedRows]) -> KeyIndex:
    """Return the index of a file with these rows."""
    # They come from several sources, each in an order of its own, so the hashes are sorted anew.
    rows = [np.arange(row.first, row.first + len(row.hashes)) for row in moved_rows]
    ids = [row.ids for row in moved_rows if row.ids is not None]
    hashes = joined([row.hashes for row in moved_rows])
    return index_of(hashes, np.concatenate(rows), np.concatenate(ids) if ids else None)


@dataclass(frozen=True)
class FoldTask:
    """A fold that runs elsewhere, perhaps in another process: it carries all its inputs and nothing open.

    Attributes:
        place: place of the table.
        id: id of the table.
        fields: columns of the table.
        seed: seed of its indexes; None for a table without.
        files: files to fold, as the newest version has them.
        layout: of the table.
        columns: as of `fold`.
        label: prefix of the new files' names, by which they are found if no result arrives.
    """

    place: str
    id: str
    fields: Sequence[Any]
    seed: bytes | None
    files: Sequence[DataFile]
    layout: TableLayout = OF_DELTA
    columns: IdColumns | None = None
    # The random part of the name leads `discard` to the files of a process that died without an answer.
    label: str = field(default_factory=lambda: f"{FOLD}-{uuid.uuid4().hex[:12]}")

    def run(self) -> Folded:
        """Write the new files."""
        store = store_of(self.place)
        indexes = Indexes(store, self.id, self.seed) if self.seed else None
        label = self.layout.label(self.label)
        return fold(store, self.fields, indexes, self.files, label=label, columns=self.columns)

    @property
    def seconds(self) -> float:
        """The time in seconds after which this fold counts as hanging."""
        return HANG_SECONDS + sum(file.size for file in self.files) / SLOWEST

    def discard(self) -> None:
        """Remove the files that it wrote, if any, because they will not be committed."""
        # Opened anew: the process that wrote the files is gone, and nothing open travels with the task.
        store = store_of(self.place)
        for folder in (self.layout.data, index.FOLDER):
            for file in store.list(folder):
                if _base(file).startswith(f"{self.label}-"):
                    with suppress(OSError):
                        store.remove(file.path)


T = TypeVar("T")


class Doer(Protocol):
    """A runner of folds and checkpoints beside the batches."""

    def submit(self, work: Callable[[], T], seconds: float, /) -> Future[T]:
        """Start the work. If it takes longer than `seconds`, it is ended where that is possible."""


class _InThread:
    """A runner of work in a thread of this process, which can't be ended."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self._thread = thread

    def submit(self, work: Callable[[], T], seconds: float, /) -> Future[T]:
        return self._thread.submit(work)


class _Chore:
    """One kind of upkeep. After a failure it pauses, and longer after each further failure.

    Args:
        work: does the work that is due; returns True if something succeeded.
        clock: returns seconds.
    """

    def __init__(self, work: Callable[[], bool], clock: Callable[[], float]) -> None:
        self._work, self._clock = work, clock
        self._failures, self._rests_until = 0, -math.inf

    def tried(self) -> str:
        """Run the work unless it pauses; return the problem of the last failure, or an empty text."""
        if self._clock() < self._rests_until:
            return ""
        try:
            if self._work():
                self._failures = 0
        except Exception as error:  # whatever it is, the mirror goes on, and the caller tells it
            pause_seconds = min(REST_SECONDS * 2.0 ** min(self._failures, 32), LONGEST_REST_SECONDS)
            self._failures, self._rests_until = self._failures + 1, self._clock() + pause_seconds
            return f"upkeep: {str(error) or type(error).__name__}"
        return ""


def _copy(
    store: TableStore,
    out: DataWriter,
    file: DataFile,
    seed: bytes | None,
    columns: IdColumns | None,
    moved_rows: list[_MovedRows],
    new_dead: BitMap | None = None,
) -> FoldedFile:
    dead_rows = vectors.read(store, file.vector) if file.vector else None
    if new_dead is not None:
        dead_rows = new_dead if dead_rows is None else dead_rows | new_dead
    with store.parquet(file.path) as parquet_file:
        source = FoldedFile(file, live_mask(parquet_file.metadata.num_rows, dead_rows))
        at = rank = 0
        for batch in _batches(parquet_file):
            alive = source.alive[at : at + batch.num_rows]
            places = at + np.flatnonzero(alive)
            at += batch.num_rows
            rows = _conformed_rows(batch if alive.all() else batch.filter(pa.array(alive)), out.schema)
            # A row group without a live row has no run: `moved` looks up ranks of live rows only.
            if not rows.num_rows:
                continue
            if columns is not None:
                rows = row_ids.with_kept(rows, columns, places, file.first_row, file.commit)
            number, first = out.add(rows)
            source.runs.append((rank, number, first))
            rank += rows.num_rows
            if seed is not None:
                hashes = hashes_of(rows.column("key"), rows.column("vbucket").to_numpy(), seed)
                ids = None if columns is None else row_ids.array(rows.column(columns.row))
                moved_rows.append(_MovedRows(number, first, hashes, ids))
    return source


def _batches(parquet_file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    """Yield a file's rows one row group at a time. Arrow would fill a batch across groups, and 65,536 rows of a MiB
    each are more than the memory holds."""
    for group in range(parquet_file.num_row_groups):
        yield from parquet_file.iter_batches(batch_size=1 << 16, row_groups=[group])


def _conformed_rows(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows of a file with the table's columns; older files lack newer columns."""
    arrays: list[Any] = []
    for column in schema:
        if column.name in batch.schema.names:
            values = batch.column(column.name)
            arrays.append(values if values.type == column.type else values.cast(column.type))
        else:
            arrays.append(pa.nulls(batch.num_rows, column.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def commit(log: TableLog, folded: Folded) -> bool:
    """Replace the sources of a fold by its new files; return False, with nothing changed, if all sources or a new file
    are gone, or if rows that were left out are live again.

    A source that the table lost meanwhile has no row there any more: they died, or somebody else moved them to another
    file. So they are dead in the new files. A key that each batch overwrites makes such a source of every fold.

    No batch may be under way: it would have looked rows up in the sources.
    """
    failpoint("lake.before_fold")
    # The process that folded has synced the bytes of its files; a power cut could still take their names.
    log.store.settle(log.state.layout.data)
    # A fold may lie for hours until it is brought in, and a vacuum by the clock take its files for those of a failed
    # attempt.
    if not all(log.store.exists(new.path) for new in folded.files):
        return False
    while True:
        state = log.refresh()
        # A fold from a time without ids would give each row a new one.
        if state.id_columns is not None and folded.columns != state.id_columns:
            return False
        died: dict[str, BitMap] = {}
        actions: list[Action] = []
        for source in folded.sources:
            now = state.files.get(source.file.add["path"])
            dead_rows = source.all_rows() if now is None else _dead_in(log, now)
            if now is not None:
                # What is live again would be in no file: the fold is thrown away, and the files are folded anew. Also
                # when their rows got ids after the fold had read them.
                if source.revived(dead_rows) or now.first_row != source.file.first_row:
                    return False
                # With the vector of now and not of the fold's reading: the pair of both is what the log removes.
                actions.append(removal(now, int(time.time() * 1000), data_change=False))
            for number, rows in source.moved(dead_rows):
                path = folded.files[number].path
                died[path] = died.get(path, BitMap()) | vectors.rows_of(rows)
        # Without vectors nothing can mark the rows that died meanwhile, so they would come back to life.
        if not actions or (died and not state.vectors):
            return False
        removed_count, descriptors = len(actions), vectors.write(log.store, died, state.layout.vectors)
        for new in folded.files:
            # A new file whose rows have all died meanwhile does not go in at all.
            if len(died.get(new.path, ())) < new.rows:
                vector = {"deletionVector": descriptors[new.path]} if new.path in descriptors else {}
                actions.append({"add": new.to_add(data_change=False, is_whole=not vector) | vector})
        metrics = {"numRemovedFiles": removed_count, "numAddedFiles": len(folded.files)}
        if log.commit(actions, "OPTIMIZE", metrics):
            failpoint("lake.after_fold")
            iceberg.publish(log)
            return True


def _dead_in(log: TableLog, file: DataFile) -> BitMap:
    return vectors.read(log.store, file.vector) if file.vector else BitMap()


def _nobody(done: int, total: int) -> None:
    pass


def optimize(
    log: TableLog,
    indexes: Indexes | None,
    *,
    everything: bool = False,
    tell: Callable[[int, int], None] = _nobody,
) -> int:
    """Fold until nothing is due, or with `everything` into as few files as possible; return the number folded.

    Args:
        tell: called with the number of folded files and the expected total.
    """
    count = 0
    while files := list(log.refresh().files.values()) if everything and not count else choose(log.state):
        tell(count, count + len(files))
        label = log.state.layout.label(FOLD)
        folded = fold(log.store, log.state.fields, indexes, files, label=label, columns=log.state.id_columns)
        if not commit(log, folded):
            # Another writer changed the sources; `choose` looks at the table as it is now.
            continue
        count += len(files)
    return count


def checkpoint(log: TableLog, now: float | None = None) -> str:
    """Write a checkpoint of the newest version, without expired removals; return its path.

    Raises:
        TableAway: there is no table, or not the one that was read.
    """
    log_with_removals = _with_removals(log)
    state = log_with_removals.state
    # An expired removal keeps no file any more, and a checkpoint that carried all of them would grow for ever.
    oldest = 1000 * ((now or time.time()) - retention(state))
    removed_rows = removals.of_checkpoint(log_with_removals.removals(), state.files, oldest)
    # Writing takes seconds, in which another mirror may put the table away and make the next one here: this one's state
    # would be the newest checkpoint of that.
    with log_with_removals.holding() as is_still_ours:
        return checkpoints.write(log.store, FOLDER, state.version, state.actions(), removed_rows, is_still_ours)


def checkpoint_at(place: str, table: str) -> str:
    """Write a checkpoint of the table with this id at a place; see `checkpoint`."""
    return checkpoint(_opened_log(place, table))


def vacuum_at(place: str, table: str) -> list[str]:
    """Vacuum the table with this id at a place, by the clock; see `vacuum`."""
    return vacuum(_opened_log(place, table))


def _opened_log(place: str, table: str) -> TableLog:
    log = TableLog(store_of(place))
    # The work may begin long after it was ordered, when another table lies at the place.
    if log.refresh().version < 0 or log.state.id != table:
        raise TableAway(log.store.root, AWAY)
    return log


def _with_removals(log: TableLog) -> TableLog:
    """Return the same table's log, read anew with its removals; a log that is only followed does not keep them.

    Raises:
        TableAway: there is no table, or another one than the one that was read.
    """
    log.refresh(sure=True)
    log_with_removals = TableLog(log.store, removals=True)
    if log_with_removals.refresh().version < 0 or log_with_removals.state.id != log.state.id:
        raise TableAway(log.store.root, AWAY)
    return log_with_removals


def retention(state: TableState) -> float:
    """Return the number of seconds for which a removed file stays for readers of older versions."""
    return seconds_of(state.properties.get("delta.deletedFileRetentionDuration"), RETENTION)


def vacuum(
    log: TableLog,
    seconds: float | None = None,
    now: float | None = None,
    *,
    dry: bool = False,
    tell: Callable[[int, int], None] = _nobody,
) -> list[str]:
    """Remove files that no version within the retention needs: removed files, and files of failed attempts.

    Args:
        log: log of the table.
        seconds: the retention; None for the table's own (7 days unless it says otherwise).
        now: Unix seconds.
        dry: remove nothing, only return the paths.
        tell: called with the number of removed files and the total.

    Returns: the paths.

    Raises:
        TableAway: there is no table, or another one; without the log every file would seem unneeded.
    """
    clock = now or time.time()
    kept_for = retention(log.refresh(sure=True)) if seconds is None else seconds
    if not dry:
        iceberg.expire(log, kept_for, clock)  # its newest snapshot may have files that the log has no more
    log = _with_removals(log)
    # The state is read before the folder is listed. A file that is committed in between looks unneeded; its age
    # protects it, see below.
    state = log.state
    oldest = clock - kept_for
    # By the bare name, for the log may give a path as a url or absolute; names are random, so no two files share one.
    names = {name for file in state.files.values() for name in _bare_names(file.add)}
    live = {file.path.rpartition("/")[2] for file in state.files.values()}
    places = state.layout.folders
    listing = {folder: log.store.list(folder) for folder in (*places, FOLDER, index.FOLDER)}
    unneeded = [file for place in places for file in listing[place] if _is_data(file) and _base(file) not in names]
    unneeded += [file for file in listing[index.FOLDER] if _base(file).removesuffix(index.SUFFIX) not in live]
    unneeded += [file for files in listing.values() for file in files if _is_half(file)]
    # The newest commit's own time comes from the same disk as the files' times, so a clock of ours that is ahead can't
    # make the files of a batch under way look old.
    if seconds is None:
        oldest = min(oldest, max((file.modified for file in listing[FOLDER]), default=oldest) - UNDER_WAY_SECONDS)
    aged = [file for file in unneeded if file.modified < oldest]
    # Age alone does not do: a file that was written long ago may have been removed from the table a minute ago, and
    # readers of the version before still need it.
    still = _still_needed(log, {_base(file) for file in aged if _is_data(file)}, 1000 * (clock - kept_for))
    old = [file.path for file in aged if _base(file) not in still]
    if seconds is None:
        old += _old_log(log, clock, listing[FOLDER])
    old += [file.path for file in iceberg.unneeded(log, clock)]
    if not dry:
        for count, path in enumerate(old):
            tell(count, len(old))
            # Removing thousands of files takes minutes, in which the table may be moved away and another made here.
            if count % LOOK_EVERY == 0:
                log.look()
            # Commits of another table that is made here meanwhile have the same names.
            if path.startswith(f"{FOLDER}/"):
                with log.holding() as is_still_ours:
                    log.store.remove(path, is_still_ours)
            else:
                log.store.remove(path)
    return old


def _still_needed(log: TableLog, candidates: set[str], since_ms: float) -> set[str]:
    """Return those of `candidates`, file names, that were removed from the table at `since_ms` or later.

    Readers of older versions still need these files.

    Args:
        since_ms: time in milliseconds.
    """
    if not candidates:
        return set()
    return candidates.intersection(name.rpartition("/")[2] for name in removals.names(log.removals(), since_ms))


def _bare_names(action: Action) -> Iterator[str]:
    """Yield the names of an action's files without folders, since the log may write the same path in several forms."""
    return (path.rpartition("/")[2] for path in names_of(action))


def _base(file: Listed) -> str:
    return file.path.rpartition("/")[2]


def _is_data(file: Listed) -> bool:
    name = _base(file)
    return name.endswith(".parquet") or (name.startswith("deletion_vector_") and name.endswith(".bin"))


def _is_half(file: Listed) -> bool:
    return _base(file).startswith(DRAFT_PREFIX)


def _old_log(log: TableLog, now: float, listing: Sequence[Listed]) -> list[str]:
    """Return the paths of the oldest commits and checkpoints that can be removed, without a gap up to the first that
    stays.

    They are older than the log's retention, and older than a readable checkpoint that is past the retention itself.
    """
    if not log.state.says("delta.enableExpiredLogCleanup", otherwise=True):
        return []
    oldest = now - seconds_of(log.state.properties.get("delta.logRetentionDuration"), LOG_RETENTION)
    # Commits, checkpoints and compactions all begin with the 20 digits of their version.
    numbered = [(int(_base(file)[:20]), file) for file in listing if _base(file)[:20].isdigit()]
    young = {file.path for _, file in numbered if file.modified >= oldest}
    # A checkpoint that is young itself does not count: readers of a version within the retention may need the commits
    # below it.
    bases = [number for number, parts in checkpoints.complete(listing).items() if not young.intersection(parts)]
    # Only up to the checkpoint that this process began with: of that one it knows that it can be read.
    first = max((number for number in bases if number <= log.checkpointed), default=0)
    first = min([first, *(number for number, file in numbered if file.path in young)])
    # After a feature was dropped the versions before that one go all at once or not at all (checkpointProtection).
    if first < int(log.state.properties.get("delta.requireCheckpointProtectionBeforeVersion", 0)):
        return []
    old = [(number, file) for number, file in numbered if file.modified < oldest]
    return [file.path for number, file in old if number < first or (number == first and _is_compaction(file))]


def _is_compaction(file: Listed) -> bool:
    """Return True for a file with several compacted commits, which the log also has one by one."""
    return file.path.endswith(".compacted.json")


class Maintenance:
    """The upkeep of a table while batches are written to it; the work runs in a thread of its own.

    Args:
        log: log of the driver.
        seed: seed of the table's indexes; None for a table without.
        clock: returns seconds.
        folds: runs the folds; None for the same thread, where a fold holds the interpreter's lock against the batches.
    """

    def __init__(
        self,
        log: TableLog,
        seed: bytes | None,
        clock: Callable[[], float] = time.monotonic,
        folds: Doer | None = None,
    ) -> None:
        self._log, self._clock, self._seed = log, clock, seed
        self._thread = ThreadPoolExecutor(1, "lake-upkeep")
        self._folds: Doer = folds or _InThread(self._thread)
        self._folding: tuple[FoldTask, Future[Folded]] | None = None
        self._files_max: int | None = None
        self._fold_began = 0.0
        self._vacuuming: Future[list[str]] | None = None
        self._checkpoint: tuple[int, Future[str]] | None = None
        self._checkpointed = log.checkpointed
        self._vacuumed = clock()
        self._chores = [_Chore(work, clock) for work in (self._fold, self._write_checkpoint, self._vacuum)]
        self._closing = False
        self.problem: str = ""

    def step(self) -> None:
        """Do the upkeep that is due, between two batches. A failure never ends a mirror: the work is tried again."""
        problems = [chore.tried() for chore in self._chores]
        self.problem = next(filter(None, problems), "")

    def close(self, *, finish: bool = False, seconds: float | None = None) -> None:
        """End the thread. With `finish`, first commit the fold that is under way, if it ends within `seconds`."""
        self._closing, self.problem = True, ""
        under_way: list[Future[Any]] = [piece[1] for piece in (self._folding, self._checkpoint) if piece is not None]
        if finish and under_way:
            wait(under_way, seconds)
            self.step()
        # Work that has not begun is dropped. What runs in this thread is waited for, since threads can't be ended.
        for future in under_way:
            future.cancel()
        self._thread.shutdown()

    def _fold(self) -> bool:
        brought = False
        if self._folding is not None and self._folding[1].done():
            (task, folding), self._folding = self._folding, None
            # Only here, between two batches: a batch under way has looked rows up in the files that the fold replaces.
            brought = self._bring_in(task, folding)
        if self._folding is None and not self._closing and (files := choose(self._log.state)[: self._files_max]):
            state = self._log.state
            identity = self._log.store.root, state.id
            task = FoldTask(*identity, state.fields, self._seed, files, state.layout, state.id_columns)
            self._fold_began = time.time()
            self._folding = task, self._folds.submit(task.run, task.seconds)
        return brought

    def _bring_in(self, task: FoldTask, folding: Future[Folded]) -> bool:
        try:
            folded = folding.result()
        except Exception:  # raised again
            # Its process died, perhaps for its memory: fewer files want less. Nobody else knows what it had written.
            self._files_max = max(2, len(task.files) // 2)
            self._thread.submit(task.discard)
            raise
        if not commit(self._log, folded):
            self._thread.submit(task.discard)
            return False
        numbers = {"files": len(folded.sources), "into": len(folded.files)}
        tracing.past("batch.fold", self._fold_began, time.time(), **numbers)
        self._files_max = None
        return True

    def _write_checkpoint(self) -> bool:
        """Write a checkpoint by the runner of folds: the first one would take seconds here, since Arrow imports pandas
        for it.
        """
        is_written = False
        if self._checkpoint is not None and self._checkpoint[1].done():
            (version, future), self._checkpoint = self._checkpoint, None
            future.result()
            self._checkpointed, is_written = version, True
        versions = self._log.state.version - self._checkpointed
        if self._checkpoint is None and not self._closing and versions >= CHECKPOINT_EVERY:
            work = partial(checkpoint_at, self._log.store.root, self._log.state.id)
            self._checkpoint = self._log.state.version, self._folds.submit(work, HANG_SECONDS)
        return is_written

    def _vacuum(self) -> bool:
        has_ended = False
        if self._vacuuming is not None and self._vacuuming.done():
            future, self._vacuuming = self._vacuuming, None
            future.result()
            has_ended = True
        is_due = self._clock() - self._vacuumed >= VACUUM_SECONDS
        if self._closing or not is_due or self._vacuuming is not None:
            return has_ended
        # Set before the work: a vacuum that fails is due again after an hour, and not at once.
        self._vacuumed = self._clock()
        # The driver's state is the driver's: it is read anew.
        self._vacuuming = self._thread.submit(vacuum_at, self._log.store.root, self._log.state.id)
        return has_ended


def describe(log: TableLog) -> dict[str, Any]:
    """Return facts about a table: versions, sizes, numbers of rows. A quarantine's facts are under `quarantine`."""
    facts = _table_facts(log)
    if "quarantine" in json.loads(log.state.records.get("headwater.mirror", "{}")) and facts["kind"] == "documents":
        quarantine = TableLog(store_of(f"{log.store.root}{QUARANTINE}"))
        facts["quarantine"] = _table_facts(quarantine) if quarantine.refresh().version >= 0 else None
    return facts


def _table_facts(log: TableLog) -> dict[str, Any]:
    state = log.refresh()
    files = list(state.files.values())
    mirror = json.loads(state.records.get("headwater.mirror", "{}"))
    return {
        "place": log.store.root,
        "kind": mirror.get("kind", "documents"),
        "version": state.version,
        "bucket": mirror.get("bucket"),
        "batches": mirror.get("batch"),
        # RESTORE leaves the record, whose time is not that of the rows that came back.
        "complete_until": None if log.restored else complete_text(mirror.get("end", {})),
        "files": len(files),
        "bytes": sum(file.size for file in files),
        "rows": sum((file.rows or 0) - file.dead for file in files),
        "dead_rows": sum(file.dead for file in files),
        "columns": len(state.fields),
        "formats": iceberg.formats_of(state).split(","),
        "catalog": state.properties.get(CATALOG),
        "removed_files_kept": log.count_removals(),
    }


def history(log: TableLog, count_max: int = 50) -> list[dict[str, Any]]:
    """Return facts about the newest commits, newest first, as far as the log has them.

    Each has `version`, `timestamp` (milliseconds), `operation` and `operationMetrics` (numbers as text); the last two
    are empty if a writer left them out.
    """
    commits: list[dict[str, Any]] = []
    for version in range(log.state.version, max(-1, log.state.version - count_max), -1):
        try:
            text = log.store.read(f"{FOLDER}/{version:020}.json")
        except FileNotFoundError:
            break
        infos = (json.loads(line).get("commitInfo") for line in text.splitlines() if b'"commitInfo"' in line)
        info: dict[str, Any] = next((entry for entry in infos if entry), {})
        empty = {"timestamp": 0, "operation": "", "operationMetrics": {}}
        commits.append({"version": version} | empty | info)
    return commits
