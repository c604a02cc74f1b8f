"""The change log: every change once, whatever is read again."""

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from headwater.lake.changes import ROLLBACK, ChangeWriter, fields, known
from headwater.lake.log import TableLog, creation
from headwater.lake.shape import modified_at
from headwater.lake.store import TableStore
from tests.lake.support import Change, rows


class Logbook:
    def __init__(self, place: Path) -> None:
        self.place, self.store, self.batch = place, TableStore(place), 0
        self.log = TableLog(self.store)
        assert self.log.commit(creation(fields(), {}, "b"), "CREATE TABLE")

    def append(self, *changes: Change, above: dict[int, int] | None = None, back: dict[int, int] | None = None) -> None:
        self.batch += 1
        writer = ChangeWriter(self.store, self.batch, known(self.store, self.log.state, above or {}), back or {})
        for vb, seqno in (back or {}).items():
            writer.take(told(("", vb, seqno, None), event=ROLLBACK), always=True)
        writer.take(told(*changes))
        assert self.log.commit([{"add": file.to_add()} for file in writer.close()], "APPEND")

    def seen(self) -> list[tuple[Any, ...]]:
        if not self.log.state.files:
            return []
        read = pl.read_delta(str(self.place)).sort("batch", "vbucket", "seqno")
        return read.select("batch", "event", "vbucket", "seqno").rows()


def told(*changes: Change, event: str | None = None) -> pa.RecordBatch:
    batch = rows(*changes)
    if event:
        batch = batch.set_column(3, "event", pa.array([event] * batch.num_rows))
    seqnos = batch.column("seqno")
    batch = batch.append_column("snapshot_start", seqnos).append_column("snapshot_end", seqnos)
    return batch.append_column("modified_at", modified_at(batch.column("cas")))


def test_what_is_read_again_is_left_out(tmp_path: Path) -> None:
    book = Logbook(tmp_path)
    book.append(("a", 0, 1, "v"), ("b", 0, 3, "v"), ("c", 1, 1, "v"))
    book.append(("a", 0, 1, "v"), ("x", 0, 2, "v"), ("b", 0, 3, "v"), ("d", 0, 4, "v"), above={0: 0})
    assert book.seen() == [
        (1, "mutation", 0, 1),
        (1, "mutation", 0, 3),
        (1, "mutation", 1, 1),
        (2, "mutation", 0, 2),
        (2, "mutation", 0, 4),
    ]


def test_after_a_rollback_what_it_made_void_is_no_longer_known(tmp_path: Path) -> None:
    book = Logbook(tmp_path)
    book.append(("a", 0, 1, "v"), ("b", 0, 2, "lost"))
    book.append(("a", 0, 1, "v"), ("c", 0, 2, "won"), back={0: 1})
    assert book.seen()[2:] == [(2, ROLLBACK, 0, 1), (2, "mutation", 0, 2)]
    assert known(book.store, book.log.state, {0: 0, 7: 0})[0].tolist() == [1, 2]
    book.append(("c", 0, 2, "won"), ("d", 0, 3, "v"), above={0: 1})
    assert book.seen()[4:] == [(3, "mutation", 0, 3)]


def test_an_empty_log_knows_nothing(tmp_path: Path) -> None:
    book = Logbook(tmp_path)
    assert known(book.store, book.log.state, {0: 0}) == {}
    book.append()
    assert book.seen() == []


def test_a_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    book = Logbook(tmp_path)
    writer = ChangeWriter(book.store, 1, {}, {})
    writer.take(told(("a", 0, 1, "v")))
    writer.discard()
    assert list(tmp_path.glob("*.parquet")) == []
