"""Folds: small files become larger ones, and mostly dead ones are rewritten.

Folding is tiered: eight files of about the same size are folded into one of the next size, so each row is rewritten
once a tier, and a table has some dozen files however many batches it has seen. Folds run beside the batches; only the
commit of a fold stands between two batches. Rows that die during a fold are found at their new positions, since a fold
keeps the order of the live rows.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap

from headwater.failpoints import failpoint
from headwater.lake import index, row_ids, vectors
from headwater.lake.files import DataWriter, NewFile, live_mask
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.index import Hashes, Indexes, KeyIndex, hashes_of, index_of, joined
from headwater.lake.layout import OF_DELTA, TableLayout
from headwater.lake.log import Action, DataFile, TableLog, TableState, removal
from headwater.lake.places import store_of
from headwater.lake.row_ids import IdColumns
from headwater.lake.shape import arrow_schema
from headwater.lake.store import TableStore

FOLD = "fold"
"""The prefix of the names of folded files."""

FAN = 8
"""The number of files of one tier that are folded together, and the ratio of sizes between tiers."""

SMALLEST_BYTES = 128 << 10
LARGEST_BYTES = 256 << 20
DEAD_SHARE = 0.5
HANG_SECONDS, SLOWEST = 600.0, 1 << 20
"""Upkeep hangs if it takes longer than this many seconds, plus one second for each so many bytes of files."""


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
                if file.name.startswith(f"{self.label}-"):
                    with suppress(OSError):
                        store.remove(file.path)


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
