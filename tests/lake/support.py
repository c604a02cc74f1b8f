"""A table without a node: changes made by hand, and the table read by somebody else's code."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.lake import vectors
from headwater.lake.commit import DOMAIN, BatchCommit, Record, commit, record_of
from headwater.lake.index import Indexes
from headwater.lake.layout import OF_DELTA, TableLayout
from headwater.lake.log import FOLDER, TableLog, creation, record, removal
from headwater.lake.places import store_of
from headwater.lake.shape import TableShape, fields
from headwater.lake.vacuum import DAY
from headwater.lake.writer import Portion, TaskResult, write

SEED = bytes(range(16))
Change = tuple[str, int, int, str | None]
"""Key, vbucket, seqno, value; None deletes."""

SCHEMA = pa.schema(
    [
        ("vbucket", pa.int32()),
        ("seqno", pa.int64()),
        ("vb_uuid", pa.string()),
        ("event", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("cas", pa.int64()),
        ("rev_seqno", pa.int64()),
        ("flags", pa.int64()),
        ("expiry", pa.int64()),
        ("datatype", pa.int32()),
    ]
)


def rows(*changes: Change) -> pa.RecordBatch:
    """Changes as the source yields them."""
    made = [
        {
            "vbucket": vb,
            "seqno": seqno,
            "vb_uuid": "0" * 16,
            "event": "deletion" if value is None else "mutation",
            "key": key.encode(),
            "value": None if value is None else value.encode(),
            "cas": 1_800_000_000_000_000_000 + seqno,
            "rev_seqno": 1,
            "flags": 0,
            "expiry": 0,
            "datatype": 0,
        }
        for key, vb, seqno, value in changes
    ]
    return pa.RecordBatch.from_pylist(made, SCHEMA)


class Table:
    """A mirror's table, driven batch by batch."""

    def __init__(self, place: str | Path, layout: TableLayout = OF_DELTA) -> None:
        self.place, self.store = place, store_of(place)
        self.log = TableLog(self.store)
        self.log.refresh()
        if not self.log.exists:
            begun = record(DOMAIN, {"v": 1, "bucket": "b", "end": {}, "batch": 0})
            assert self.log.commit([*creation(fields(), {}, "b", layout=layout), begun], "CREATE TABLE")
        self.indexes = Indexes(self.store, self.log.state.id, SEED)

    @property
    def record(self) -> Record:
        return record_of(self.store.root, self.log.state)

    def write(
        self, changes: Sequence[Change], *, fresh: Sequence[int] = (), replaced: Sequence[int] = ()
    ) -> TaskResult:
        """Write changes as a task does."""
        self.log.refresh()
        vbuckets = frozenset(vb for _, vb, _, _ in changes) | set(fresh) | set(replaced)
        portion = Portion(frozenset(vbuckets), frozenset(fresh), frozenset(replaced))
        shape = TableShape(self.log.state.fields)
        return write(self.store, self.log.state, self.indexes, shape, portion, [rows(*changes)] if changes else [])

    def commit(self, *written: TaskResult, after: str | None = None) -> Record:
        """Commit as the driver does."""
        before = self.record
        then = Record("b", {"n": before.batch + 1}, before.batch + 1)
        commit(self.log, BatchCommit(after or before.digest, then, ("app", then.batch), written))
        return then

    def take(self, *changes: Change, **known: Any) -> None:
        """A whole batch of one task."""
        self.commit(self.write(changes, **known))

    def held(self) -> dict[str, str]:
        return held(self.place)


def restore(log: TableLog, version: int) -> None:
    """Put a table back to an older version as Spark does: files and vectors of then, and no record of ours."""
    then, now = log.at(version), log.refresh()
    assert then is not None
    told = {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": version}}}
    gone = [removal(file, 1) for path, file in now.files.items() if then.files.get(path) != file]
    back = [{"add": file.add} for path, file in then.files.items() if now.files.get(path) != file]
    lines = [json.dumps(action) for action in (told, *gone, *back)]
    Path(log.store.full(f"{FOLDER}/{now.version + 1:020}.json")).write_text("\n".join(lines))


def row_ids(place: str | Path) -> dict[str, tuple[int, int]]:
    """Return each key's (row id, version of its last change), read from the log and the files as Delta's protocol says,
    "Row Tracking"; an id that is there twice, or above the mark, fails."""
    log = TableLog(store_of(place))
    state = log.refresh()
    columns = [
        state.properties[f"delta.rowTracking.materialized{each}ColumnName"] for each in ("RowId", "RowCommitVersion")
    ]
    read: dict[str, tuple[int, int]] = {}
    for file in state.files.values():
        rows = pq.read_table(log.store.full(file.path))
        dead = vectors.read(log.store, file.vector) if file.vector else ()
        places, versions = (
            rows[name].to_pylist() if name in rows.column_names else [None] * rows.num_rows for name in columns
        )
        for at, key in enumerate(rows["key"].to_pylist()):
            if at not in dead:
                kept = file.add["baseRowId"] + at if places[at] is None else places[at]
                version = file.add["defaultRowCommitVersion"] if versions[at] is None else versions[at]
                read[key.decode()] = kept, version
    given = [each for each, _ in read.values()]
    assert len({*given}) == len(given), "two rows have one id"
    mark = json.loads(state.records["delta.rowTracking"])["rowIdHighWaterMark"] if read else 0
    assert max(given, default=0) <= mark, "an id above the mark"
    return read


def held(place: str | Path) -> dict[str, str]:
    """Return the table as a reader sees it: key to value, read by Polars; a key that is there twice fails."""
    found = pl.read_delta(str(place), columns=["key", "value"]).to_dicts()
    read = {row["key"].decode(): row["value"].decode() for row in found}
    assert len(read) == len(found), "a key has two rows"
    return read


def small_files(place: Path, count: int) -> Table:
    """Return a table of small files of five documents each; each file's batch deletes the first document of the one
    before.
    """
    table = Table(place)
    for n in range(count):
        table.take(*[(f"k{n}-{i}", 0, 10 * n + i, "v") for i in range(5)], (f"k{n - 1}-0", 0, 10 * n + 9, None))
    return table


def expected(count: int) -> set[str]:
    """Return the documents of such a table."""
    return {f"k{n}-{i}" for n in range(count) for i in range(5) if i or n == count - 1}


def set_properties(table: Table, **properties: str) -> None:
    """Set some of Delta's properties of a table."""
    metadata = table.log.state.metadata
    named = {f"delta.{name}": text for name, text in properties.items()}
    changed = metadata | {"configuration": metadata["configuration"] | named}
    assert table.log.commit([{"metaData": changed}], "SET TBLPROPERTIES")


def aged(place: Path, days: float) -> None:
    """Make all files of a folder so many days old."""
    then = time.time() - days * DAY
    for folder, _, names in os.walk(place):
        for name in names:
            os.utime(Path(folder, name), (then, then))
