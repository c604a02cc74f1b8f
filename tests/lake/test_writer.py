import json
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap

from headwater.lake import lineage
from headwater.lake.files import GROUP_BYTES
from headwater.lake.index import Indexes, place_of
from headwater.lake.shape import TableShape
from headwater.lake.writer import LOOKUP_BYTES, Portion, TaskResult, rows_of_vbuckets, write
from tests.lake.support import SEED, Table, rows


def test_a_key_that_came_twice_keeps_its_newest_row(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "one"), ("b", 0, 2, "b"), ("a", 0, 3, "two"), ("c", 0, 4, "c"), ("c", 0, 5, None), fresh=[0])
    assert table.held() == {"a": "two", "b": "b"}


def test_changes_that_a_reconnect_repeated_out_of_order_go_by_seqno(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "one"), ("a", 0, 3, "two"), ("a", 0, 1, "one"), fresh=[0])
    assert table.held() == {"a": "two"}


def test_a_change_kills_the_row_that_the_table_has_in_whichever_file(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for n in range(4):
        table.take((f"k{n}", n, n + 1, "old"), fresh=[n])
    written = table.write([("k1", 1, 10, "new"), ("k3", 3, 11, None), ("k0", 2, 12, "another vbucket")])
    assert sorted(map(list, written.dead.values())) == [[0], [0]]
    assert written.counts == {"mutations": 2, "deletions": 1, "rollbacks": 0}
    table.commit(written)
    with pytest.raises(AssertionError, match="two rows"):
        table.held()  # k0 lives in two vbuckets, which are two rows
    table.take(("k0", 0, 13, None))
    assert table.held() == {"k0": "another vbucket", "k1": "new", "k2": "old"}


def test_a_file_that_cannot_hold_the_vbucket_is_not_looked_at(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 0, 1, "v"), fresh=[0])
    table.take(("b", 9, 1, "v"), fresh=[9])
    table.indexes = Indexes(table.store, table.log.state.id, SEED)
    for index in (tmp_path / "_index").iterdir():
        index.unlink()
    table.take(("b", 9, 2, "w"))
    assert table.indexes.rebuilt == 1
    table.take(("c", 5, 1, "fresh"), fresh=[5])
    assert table.indexes.rebuilt == 1
    assert table.held() == {"a": "v", "b": "w", "c": "fresh"}


def test_a_vbucket_that_was_rolled_back_is_replaced_whole(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("kept", 1, 2, "old"), ("lost", 1, 9, "x"), ("over", 1, 8, "x"), ("else", 2, 9, "y"), fresh=[1, 2])
    table.take(("lost2", 1, 10, "x"))
    table.take(("kept", 1, 2, "old"), ("over", 1, 1, "back"), ("removed", 1, 3, "back"), replaced=[1])
    assert table.held() == {"kept": "old", "over": "back", "removed": "back", "else": "y"}
    table.take(replaced=[1])
    assert table.held() == {"else": "y"}


def test_rows_of_vbuckets_are_found_without_the_index(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.take(("a", 1, 1, "v"), ("b", 2, 2, "v"), ("c", 1, 3, "v"), fresh=[1, 2])
    (file,) = table.log.state.files.values()
    assert rows_of_vbuckets(table.store, file.path, frozenset({1, 7})).tolist() == [0, 2]


@pytest.mark.parametrize("keeps_ids", [False, True])
def test_what_was_written_is_let_go_however_much_a_task_reads(tmp_path: Path, *, keeps_ids: bool) -> None:
    table = Table(tmp_path)
    if keeps_ids:
        lineage.begin(table.log)
    read: list[weakref.ref[Any]] = []
    held_most = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal held_most
        for number in range(24):
            made = rows((f"k{number}", 1, number + 1, chr(97 + number) * (2 << 20)))
            memory = np.frombuffer(made.serialize(), np.uint8).copy()
            read.append(weakref.ref(memory))
            yield pa.ipc.read_record_batch(pa.py_buffer(memory), made.schema)
            held_most = max(held_most, sum(item() is not None for item in read))

    write(
        table.store,
        table.log.state,
        table.indexes,
        TableShape(table.log.state.fields),
        Portion(frozenset({1})),
        batches(),
    )
    looked_up = LOOKUP_BYTES if keeps_ids else 0
    assert held_most <= (GROUP_BYTES + looked_up) // (2 << 20) + 2  # and the one at hand


def test_a_task_that_fails_leaves_no_data_file(tmp_path: Path) -> None:
    table = Table(tmp_path)
    shape = TableShape(table.log.state.fields)

    def broken() -> object:
        yield rows(("a", 1, 1, "v"))
        raise RuntimeError("the node went away")

    portion = Portion(frozenset({1}))
    with pytest.raises(RuntimeError):
        write(table.store, table.log.state, table.indexes, shape, portion, broken())  # type: ignore[arg-type]
    assert list(tmp_path.glob("*.parquet")) == []


def test_what_a_task_wrote_travels_as_bytes(tmp_path: Path) -> None:
    told = TaskResult(3, [{"path": "x"}], {"y": BitMap([1, 70_000])}, {"mutations": 4})
    assert TaskResult.from_bytes(told.to_bytes()) == told


def test_the_index_of_a_new_file_lies_beside_it_and_has_the_living_rows(tmp_path: Path) -> None:
    table = Table(tmp_path)
    written = table.write([("a", 0, 1, "v"), ("a", 0, 2, "w"), ("b", 0, 3, "v")], fresh=[0])
    (add,) = written.files
    assert sorted(table.indexes.of(add["path"]).rows.tolist()) == [1, 2]
    assert (tmp_path / place_of(add["path"])).exists()
    assert pq.ParquetFile(tmp_path / add["path"]).metadata.num_rows == json.loads(add["stats"])["numRecords"] == 3
