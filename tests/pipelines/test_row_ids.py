"""A mirror whose rows keep their ids: what Delta's readers and Iceberg's find, whatever the bucket did meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder

from harness.nodes import diverge
from headwater.lake.log import TableLog
from headwater.lake.places import store_of
from headwater.lake.verify import check_indexes
from headwater.pipelines.mirror import mirror
from headwater.pipelines.tables import fold, open_table, vacuum
from headwater.testing.node import Node, node
from tests.lake.iceberg.support import by_pyiceberg, for_linux, queried
from tests.lake.support import row_ids
from tests.pipelines.support import becomes, change, documents, put_into, table

KEYS = [f"a{i}" for i in range(60)]
FORMS: list[dict[str, Any]] = [{}, {"format": "delta,iceberg"}, {"format": "iceberg"}, {"copy_on_write": True}]
in_each_form = pytest.mark.parametrize("form", FORMS, ids=["delta", "both", "iceberg", "copies"])


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        put(running, "one")
        yield running


def put(bucket: Node, value: str) -> None:
    with bucket.client() as client:
        assert client.set_many((key, value.encode()) for key in KEYS) == {}


def run(bucket: Node, place: Path, **asked: Any) -> None:
    mirror(None, bucket.url, place, once=True, workers=0, **asked)


def ids(place: Path) -> dict[str, int]:
    return {key: number for key, (number, _) in row_ids(place).items()}


def quiet(done: int, total: int) -> None:
    pass


@in_each_form
def test_after_ten_overwrites_of_all_keys_with_folds_each_has_its_first_id(
    form: dict[str, Any], bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    run(bucket, place, row_ids=True, **form)
    first = ids(place)
    assert sorted(first) == sorted(KEYS)
    for turn in range(10):
        put(bucket, f"{turn}")
        run(bucket, place)  # once it began, a table goes on
        if turn % 5 == 4:
            fold(str(place), quiet, everything=True)
            vacuum(str(place), quiet, seconds=3600.0)
    assert ids(place) == first
    assert table(place) == documents(bucket) == dict.fromkeys(map(str.encode, KEYS), b"9")
    counted = QueryBuilder().register("t", DeltaTable(place)).execute("SELECT count(*) AS rows FROM t").read_all()
    assert counted["rows"][0].as_py() == len(KEYS)
    if "iceberg" in form.get("format", ""):
        assert by_pyiceberg(place) == documents(bucket)
    if "copy_on_write" in form:
        assert DeltaTable(place).to_pyarrow_dataset().to_table(columns=["key"]).num_rows == len(KEYS)


@for_linux
@in_each_form
def test_a_failover_leaves_the_ids_of_keys_that_were_there_on_both_branches(
    form: dict[str, Any], bucket: Node, tmp_path: Path
) -> None:
    place = tmp_path / "t"
    run(bucket, place, row_ids=True, **form)
    first = ids(place)

    def lost() -> None:
        change(bucket, "lost")
        run(bucket, place)

    diverge(bucket, lost=lost)
    with bucket.client() as client:
        assert client.set_many((key, b"won") for key in KEYS[:30]) == {}
    run(bucket, place)
    now = ids(place)
    assert table(place) == documents(bucket) and sorted(now) == sorted(KEYS)
    gone = {f"a{i}" for i in range(20, 40)}  # deleted on the lost branch: readers saw them go, they are new rows
    assert {key: number for key, number in now.items() if key not in gone} == {
        key: number for key, number in first.items() if key not in gone
    }
    assert not {now[key] for key in gone} & {*first.values()}
    if "iceberg" in form.get("format", ""):
        assert {key.decode(): number for key, number in queried(place, "key, _row_id")} == now


def test_a_table_that_exists_begins_and_its_documents_keep_what_they_got(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, format="delta,iceberg")
    change(bucket, "two")
    run(bucket, place, row_ids=True)
    first = ids(place)
    put(bucket, "three")
    run(bucket, place)
    now = ids(place)
    assert {key: now[key] for key in first} == first and table(place) == documents(bucket)


def test_its_indexes_are_good_for_who_verifies_it(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, row_ids=True)
    put(bucket, "two")
    run(bucket, place)
    log, indexes = open_table(str(place))
    assert indexes is not None and check_indexes(log.store, log.state, indexes) == []


def test_a_table_for_each_collection_keeps_ids_of_its_own(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket:
        becomes(bucket, 1, a=8, b=9)
        for number in (8, 9):
            put_into(bucket, number, "k1", "k2", value="one")
        mirror(None, bucket.url, tmp_path, scope="shop", once=True, workers=0, row_ids=True)
        first = [ids(tmp_path / "shop" / name) for name in "ab"]
        assert [sorted(each) for each in first] == [["k1", "k2"]] * 2
        put_into(bucket, 8, "k1", "k2", "k3", value="two")
        mirror(None, bucket.url, tmp_path, scope="shop", once=True, workers=0)
        now = [ids(tmp_path / "shop" / name) for name in "ab"]
        assert now[1] == first[1] and {key: now[0][key] for key in first[0]} == first[0]


def test_without_the_option_a_table_is_as_it_was(bucket: Node, tmp_path: Path) -> None:
    run(bucket, tmp_path / "t")
    log = TableLog(store_of(tmp_path / "t"))
    state = log.refresh()
    assert not state.gives_row_ids and all(file.first_row is None for file in state.files.values())


@pytest.mark.spark
@pytest.mark.battery
def test_spark_reads_the_ids_and_keeps_them_where_it_writes(spark: Any, bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"

    def seen() -> dict[str, tuple[int, int]]:
        columns = "CAST(key AS STRING) AS key, _metadata.row_id, _metadata.row_commit_version"
        rows = spark.sql(f"SELECT {columns} FROM delta.`{place}`").collect()
        return {row.key: (row.row_id, row.row_commit_version) for row in rows}

    mirror(spark, bucket.url, place, once=True, row_ids=True)
    first = ids(place)
    assert seen() == row_ids(place)
    put(bucket, "two")
    mirror(spark, bucket.url, place, once=True)
    fold(str(place), quiet, everything=True)
    assert seen() == row_ids(place) and ids(place) == first
    with bucket.client() as client:
        assert client.set_many((key, b"three") for key in KEYS[:20]) == {}
    mirror(spark, bucket.url, place, once=True)
    version = TableLog(store_of(place)).refresh().version
    spark.sql(f"OPTIMIZE delta.`{place}`")
    assert seen() == row_ids(place) and ids(place) == first
    put(bucket, "four")
    mirror(spark, bucket.url, place, once=True)
    assert seen() == row_ids(place) and ids(place) == first
    spark.sql(f"RESTORE TABLE delta.`{place}` TO VERSION AS OF {version}")
    assert seen() == row_ids(place) and ids(place) == first
    mirror(spark, bucket.url, place, once=True)
    assert seen() == row_ids(place) and ids(place) == first
    assert table(place) == documents(bucket)
