"""Checks that a table is whole, equals the bucket, and has indexes that match its files. All rows are read, no
sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa

from headwater.lake import vectors
from headwater.lake.files import live_mask
from headwater.lake.index import Indexes, hashes_of, order_of
from headwater.lake.log import COMMIT, FOLDER, DataFile, TableLog, TableState, names_of
from headwater.lake.store import TableStore
from headwater.lake.unfold import is_text
from headwater.wire.documents import TRANSACTIONS

Held = dict[tuple[int, bytes], tuple[int, int]]
"""(vbucket, key) to (seqno, cas)."""

COLUMNS = ["key", "vbucket", "seqno", "cas"]
SHOWN_MAX = 5


def rows_of(
    store: TableStore, file: DataFile, columns: Sequence[str] = COLUMNS
) -> Iterator[tuple[pa.RecordBatch, list[int]]]:
    """Yield batches of the live rows of a file, with the position of each row in the file."""
    dead_rows = vectors.read(store, file.vector) if file.vector else None
    with store.parquet(file.path) as parquet_file:
        alive, at = live_mask(parquet_file.metadata.num_rows, dead_rows), 0
        for batch in parquet_file.iter_batches(columns=list(columns)):
            is_alive = alive[at : at + batch.num_rows]
            yield batch.filter(pa.array(is_alive)), (is_alive.nonzero()[0] + at).tolist()
            at += batch.num_rows


def strays(log: TableLog) -> list[str]:
    """Return the paths of commits behind a gap in the log: no reader reaches them, and some refuse the table because of
    them. `log` must have been refreshed.
    """
    commits = [file.path for file in log.store.list(FOLDER) if COMMIT.fullmatch(file.path.rpartition("/")[2])]
    # Somebody may have committed since, and a look through a large folder leaves out some of what came meanwhile: what
    # follows without a gap, when the look is over, is no stray.
    following = log.state.version + 1
    while log.store.exists(f"{FOLDER}/{following:020d}.json"):
        following += 1
    return sorted(path for path in commits if path > f"{FOLDER}/{following:020d}.json")


def missing(store: TableStore, state: TableState) -> dict[str, list[str]]:
    """Return the files of the table that lack something: path as the log writes it -> the missing files (data or
    deletion vector)."""
    parts = {
        path: [name for name in names_of(file.add) if not store.exists(name)] for path, file in state.files.items()
    }
    return {path: names for path, names in parts.items() if names}


def without(state: TableState, paths: Iterable[str]) -> TableState:
    """Return a state without some of its files, given by path as the log writes it."""
    removed_paths = set(paths)
    return replace(state, files={path: file for path, file in state.files.items() if path not in removed_paths})


Tell: TypeAlias = Callable[[int], None]
"""A function that is called with the number of files read so far."""


def _nobody(done: int) -> None:
    pass


def check_indexes(store: TableStore, state: TableState, indexes: Indexes, tell: Tell = _nobody) -> list[str]:
    """Return the problems of indexes: live rows that an index does not find, and indexes that are missing or damaged.

    A missing or damaged index loses nothing, since it is built again when it is needed.
    """
    problems = []
    columns = state.id_columns
    indexes.keep_ids(columns.row if columns else None)
    for count, file in enumerate(state.files.values()):
        tell(count)
        if not indexes.is_good(file.path):
            problems.append(f"{file.path}: its index is missing or damaged; it is built again when it is needed")
            continue
        index, missed = indexes.of(file.path), 0
        for batch, rows in rows_of(store, file):
            hashes = hashes_of(batch.column("key"), batch.column("vbucket").to_numpy(), indexes.seed)
            rows_found = index.find(hashes.take(order_of(hashes)))
            missed += len(set(rows) - set(rows_found.tolist()))
        if missed:
            problems.append(f"{file.path}: its index does not lead to {missed} of its rows; remove {file.path}'s index")
    return problems


def of_table(store: TableStore, state: TableState, tell: Tell = _nobody) -> tuple[Held, list[str]]:
    """Return the documents that a table holds, and a message for each key that it holds twice."""
    rows: Held = {}
    twice = []
    for count, file in enumerate(state.files.values()):
        tell(count)
        for batch, _ in rows_of(store, file):
            columns = (batch.column(name).to_pylist() for name in COLUMNS)
            for key, vbucket, seqno, cas in zip(*columns, strict=True):
                name = (vbucket, key.encode() if isinstance(key, str) else key)
                if name in rows:
                    twice.append(f"vbucket {vbucket}, key {name[1]!r} has more than one row")
                rows[name] = (seqno, cas)
    return rows, twice


def check_quarantine(table: Held, quarantine: Held) -> list[str]:
    """Return problems of a quarantine: rows of no document of the table, or of another change of it. Documents whose
    keys are not text need not be in the table."""
    wrong = [
        name for name, place in quarantine.items() if table.get(name, None if is_text(name[1]) else place) != place
    ]
    return [f"{len(wrong)} rows of the quarantine are not of the table's documents: {_keys(wrong)}"] if wrong else []


def left_out(state: TableState, bucket: Held) -> Held:
    """Return the documents of the bucket that a table with text keys can't have, because their keys are not UTF-8.

    Without a quarantine these documents are in no table.
    """
    texts = any(column["name"] == "key" and column["type"] == "string" for column in state.fields)
    return {name: place for name, place in bucket.items() if texts and not is_text(name[1])}


def stale_records(table: Held, bucket: Held) -> int:
    """Return the number of rows that are records of transactions and that the bucket no longer has, or has changed. A
    mirror leaves such records out, so those that an older release wrote into the table stay unchanged."""
    return sum(key.startswith(TRANSACTIONS) and bucket.get((vb, key)) != at for (vb, key), at in table.items())


def compare(table: Held, bucket: Held) -> list[str]:
    """Return the differences between a table and a bucket, one line for each kind, without records of transactions."""
    kinds = {
        "only in the bucket": bucket.keys() - table.keys(),
        "only in the table": table.keys() - bucket.keys(),
        "of another seqno or CAS": {name for name, at in table.items() if bucket.get(name, at) != at},
    }
    keys_by_kind = {
        kind: [name for name in names if not name[1].startswith(TRANSACTIONS)] for kind, names in kinds.items()
    }
    return [f"{len(names)} documents are {kind}: {_keys(names)}" for kind, names in keys_by_kind.items() if names]


def _keys(names: Iterable[tuple[int, bytes]]) -> str:
    first = sorted(names)[: SHOWN_MAX + 1]
    text = ", ".join(f"vbucket {vb} {key!r}" for vb, key in first[:SHOWN_MAX])
    return text + (", ..." if len(first) > SHOWN_MAX else "")
