"""Is the table whole, is it what the bucket is, and is each index what its file is? Everything is looked at, nothing
sampled."""

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
    """Yield the living rows of a file, and where each lies in it."""
    dead = vectors.read(store, file.vector) if file.vector else None
    with store.parquet(file.path) as opened:
        alive, at = live_mask(opened.metadata.num_rows, dead), 0
        for batch in opened.iter_batches(columns=list(columns)):
            mine = alive[at : at + batch.num_rows]
            yield batch.filter(pa.array(mine)), (mine.nonzero()[0] + at).tolist()
            at += batch.num_rows


def strays(log: TableLog) -> list[str]:
    """Return the commits behind a gap in the log, by path: no reader comes to them, and some refuse the table for them.
    `log` is refreshed."""
    listed = [each.path for each in log.store.list(FOLDER) if COMMIT.fullmatch(each.path.rpartition("/")[2])]
    # Somebody may have committed since, and a look through a large folder leaves out some of what came meanwhile: what
    # follows without a gap, when the look is over, is no stray.
    following = log.state.version + 1
    while log.store.exists(f"{FOLDER}/{following:020d}.json"):
        following += 1
    return sorted(path for path in listed if path > f"{FOLDER}/{following:020d}.json")


def missing(store: TableStore, state: TableState) -> dict[str, list[str]]:
    """Return the files of the table of which something is not there, the data or the deletion vector: path as the log
    writes it, to what is missing."""
    found = {
        path: [name for name in names_of(file.add) if not store.exists(name)] for path, file in state.files.items()
    }
    return {path: names for path, names in found.items() if names}


def without(state: TableState, paths: Iterable[str]) -> TableState:
    """Return a state without some of its files, by path as the log writes it."""
    gone = set(paths)
    return replace(state, files={path: file for path, file in state.files.items() if path not in gone})


Tell: TypeAlias = Callable[[int], None]
"""Told how many files were read."""


def _nobody(done: int) -> None:
    pass


def check_indexes(store: TableStore, state: TableState, indexes: Indexes, tell: Tell = _nobody) -> list[str]:
    """Return what is wrong with indexes: living rows that one does not lead to. One that is missing or damaged is
    among them, though nothing is lost by it: it is built again when it is needed."""
    problems = []
    for done, file in enumerate(state.files.values()):
        tell(done)
        if not indexes.is_good(file.path):
            problems.append(f"{file.path}: its index is missing or damaged; it is built again when it is needed")
            continue
        known, missed = indexes.of(file.path), 0
        for batch, rows in rows_of(store, file):
            wanted = hashes_of(batch.column("key"), batch.column("vbucket").to_numpy(), indexes.seed)
            found = known.find(wanted.take(order_of(wanted)))
            missed += len(set(rows) - set(found.tolist()))
        if missed:
            problems.append(f"{file.path}: its index does not lead to {missed} of its rows; remove {file.path}'s index")
    return problems


def of_table(store: TableStore, state: TableState, tell: Tell = _nobody) -> tuple[Held, list[str]]:
    """Return what a table holds, and which keys it holds twice."""
    held: Held = {}
    twice = []
    for done, file in enumerate(state.files.values()):
        tell(done)
        for batch, _ in rows_of(store, file):
            columns = (batch.column(name).to_pylist() for name in COLUMNS)
            for key, vbucket, seqno, cas in zip(*columns, strict=True):
                name = (vbucket, key.encode() if isinstance(key, str) else key)
                if name in held:
                    twice.append(f"vbucket {vbucket}, key {name[1]!r} has more than one row")
                held[name] = (seqno, cas)
    return held, twice


def check_quarantine(table: Held, aside: Held) -> list[str]:
    """Return which rows of a quarantine are not of a document that the table has, or of another change of it; those
    whose keys are no text are there only."""
    wrong = [name for name, place in aside.items() if table.get(name, None if is_text(name[1]) else place) != place]
    return [f"{len(wrong)} rows of the quarantine are not of the table's documents: {_shown(wrong)}"] if wrong else []


def left_out(state: TableState, bucket: Held) -> Held:
    """Return the documents that a table can't have, for it keeps keys as text and theirs are no UTF-8: without a
    quarantine they are in none."""
    texts = any(column["name"] == "key" and column["type"] == "string" for column in state.fields)
    return {name: place for name, place in bucket.items() if texts and not is_text(name[1])}


def stale_records(table: Held, bucket: Held) -> int:
    """Return how many rows are records of transactions that the bucket has no more, or has otherwise. A mirror leaves
    records out, so those that an older release brought into its table stay as they were."""
    return sum(key.startswith(TRANSACTIONS) and bucket.get((vb, key)) != at for (vb, key), at in table.items())


def compare(table: Held, bucket: Held) -> list[str]:
    """Return how a table differs from a bucket, a line for each kind, but for records of transactions."""
    kinds = {
        "only in the bucket": bucket.keys() - table.keys(),
        "only in the table": table.keys() - bucket.keys(),
        "of another seqno or CAS": {name for name, at in table.items() if bucket.get(name, at) != at},
    }
    kept = {what: [name for name in names if not name[1].startswith(TRANSACTIONS)] for what, names in kinds.items()}
    return [f"{len(names)} documents are {what}: {_shown(names)}" for what, names in kept.items() if names]


def _shown(names: Iterable[tuple[int, bytes]]) -> str:
    first = sorted(names)[: SHOWN_MAX + 1]
    text = ", ".join(f"vbucket {vb} {key!r}" for vb, key in first[:SHOWN_MAX])
    return text + (", ..." if len(first) > SHOWN_MAX else "")
