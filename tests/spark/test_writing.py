"""A task's writes to a real node, without Spark."""

import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from headwater.client import Client
from headwater.client import connect as client_connect
from headwater.client.blocking import CollectionClient
from headwater.errors import (
    BucketMadeAnew,
    CollectionMadeAnew,
    ConnectionLost,
    NoAccess,
    OptionError,
    RowsRefused,
    UnknownCollection,
)
from headwater.spark.rows import rows
from headwater.spark.settings import WriteSettings, parse_write
from headwater.spark.target import DcpBatchWriter, DcpStreamWriter, WrittenByTask
from headwater.spark.writing import WriteCounts, _Task, connect, write
from headwater.testing.embedded import WallClock, embedded
from headwater.testing.faults import FaultyDisk
from headwater.testing.node import Node, node
from tests.client.test_made_anew import make, make_anew, url
from tests.pipelines.support import becomes


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def go(
    bucket: Node, rows: list[dict[str, Any]], *, name: str = "task", opener: Any = connect, **options: str
) -> WriteCounts:
    batch = pa.RecordBatch.from_pylist(rows)
    settings = parse_write({"url": bucket.url, "retrySeconds": "5"} | options)
    return write(settings, tuple(batch.schema.names), [batch], "task", opener)


def test_upserts_and_deletions_are_counted(bucket: Node) -> None:
    rows = [{"key": f"k{i}", "value": "v", "deleted": False} for i in range(30)]
    assert go(bucket, rows) == WriteCounts(stored=30)
    rows = [{"key": f"k{i}", "value": None, "deleted": True} for i in range(29, 31)]
    assert go(bucket, rows) == WriteCounts(deleted=1, absent=1)
    with bucket.client() as client:
        assert len(client.get_many([f"k{i}" for i in range(30)])) == 29


def test_a_repeated_batch_changes_nothing(bucket: Node) -> None:
    with bucket.client() as client:
        cas, other = client.set("a", "1"), client.set("b", "1")
    rows = [
        {"key": "a", "value": "2", "flags": 5, "cas": cas},
        {"key": "b", "value": "2", "flags": 0, "cas": other},
        {"key": "c", "value": "2", "flags": 0, "cas": 0},
    ]
    assert go(bucket, rows) == WriteCounts(stored=3)
    assert go(bucket, rows) == WriteCounts(stored=1, repeated=2)
    with bucket.client() as client:
        client.set("b", "somebody else's")
        with pytest.raises(RowsRefused, match=r"1 rows were refused for good, the first has the key b'b'"):
            go(bucket, rows)
        found = client.get_many(["a", "b", "c"])
    assert {key: (document.value, document.flags) for key, document in found.items()} == {
        b"a": (b"2", 5),
        b"b": (b"somebody else's", 0),
        b"c": (b"2", 0),
    }


def test_refused_rows_go_to_the_dead_letters_and_the_others_are_written(bucket: Node, tmp_path: Path) -> None:
    rows = [
        {"key": "good", "value": "v", "expiry": 0},
        {"key": "k" * 251, "value": "v", "expiry": 0},
        {"key": "soon", "value": "v", "expiry": 60},
    ]
    assert go(bucket, rows, deadLetters=str(tmp_path / "refused")) == WriteCounts(stored=1, refused=2)
    told = pq.read_table(tmp_path / "refused").to_pylist()
    assert sorted((row["key"][:4], "Unix time" in row["reason"]) for row in told) == [(b"kkkk", False), (b"soon", True)]


def test_what_is_behind_in_revision_changes_nothing(bucket: Node) -> None:
    row = {"key": b"k", "value": b"v", "event": "mutation", "cas": 500, "rev_seqno": 5}
    assert go(bucket, [row], withMeta="true") == WriteCounts(stored=1)
    assert go(bucket, [row, row | {"rev_seqno": 4}], withMeta="true") == WriteCounts(behind=2)
    assert go(bucket, [row | {"rev_seqno": 6, "event": "deletion", "value": None}], withMeta="true") == WriteCounts(
        deleted=1
    )


def test_a_document_that_was_prolonged_is_stored_though_its_version_of_before_ran_out_here() -> None:
    clock, ran_out = WallClock(), int(time.time()) + 3600
    row = {"key": b"k", "value": b"v", "event": "mutation", "cas": 500, "rev_seqno": 5, "expiry": ran_out}
    prolonged = row | {"cas": 501, "rev_seqno": 6, "expiry": ran_out + 36_000}
    with embedded(disk=FaultyDisk(), clock=clock, vbuckets=4) as target:
        bucket: Any = SimpleNamespace(url=f"couchbase://127.0.0.1:{target.port}/default")
        assert go(bucket, [row], withMeta="true") == WriteCounts(stored=1)
        clock.shift_seconds = 4000
        with client_connect(bucket.url) as client:
            assert client.get_many(["k"]) == {}
            assert go(bucket, [row], withMeta="true") == WriteCounts(behind=1)
            assert go(bucket, [prolonged], withMeta="true") == WriteCounts(stored=1)
            assert go(bucket, [row, prolonged], withMeta="true") == WriteCounts(behind=2)
            assert client.get("k").value == b"v"


def test_a_rollback_row_is_never_a_dead_letter(bucket: Node, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="headwater copy"):
        go(bucket, [{"key": None, "value": None, "event": "rollback"}], deadLetters=str(tmp_path))


def test_a_connection_that_breaks_under_a_write_costs_a_repetition(bucket: Node) -> None:
    def breaking(settings: WriteSettings) -> Client:
        client = connect(settings)
        whole, broken = client.write_many, []

        def once_broken(writes: Any) -> Any:
            failed = whole(writes)
            if not broken:
                broken.append(True)
                raise ConnectionLost("127.0.0.1", "reset")
            return failed

        client.write_many = once_broken  # type: ignore[method-assign]
        return client

    with bucket.client() as client:
        cas = client.set("a", "1")
    assert go(bucket, [{"key": "a", "value": "2", "cas": cas}], opener=breaking) == WriteCounts(repeated=1)


def test_what_says_nothing_about_the_row_fails_the_task(bucket: Node, tmp_path: Path) -> None:
    def forbidden(settings: WriteSettings) -> Client:
        client = connect(settings)
        client.write_many = lambda writes: {0: NoAccess("set")}  # type: ignore[method-assign]
        return client

    with pytest.raises(NoAccess):
        go(bucket, [{"key": "a", "value": "2"}], opener=forbidden, deadLetters=str(tmp_path))


def test_rows_go_to_the_collection_of_the_option_or_of_their_columns(bucket: Node) -> None:
    becomes(bucket, 1, a=8, b=9)
    assert go(bucket, [{"key": "k", "value": "a"}], collection="shop.a") == WriteCounts(stored=1)
    rows = [
        {"key": "k", "value": "b", "scope": "shop", "collection": "b", "deleted": False},
        {"key": "k", "value": "default", "scope": None, "collection": None, "deleted": False},
        {"key": "x", "value": None, "scope": "shop", "collection": "a", "deleted": True},
    ]
    assert go(bucket, rows) == WriteCounts(stored=2, absent=1)
    with bucket.client() as client:
        assert [client.collection(f"shop.{name}").get("k").value for name in "ab"] == [b"a", b"b"]
        assert client.get("k").value == b"default"
    with pytest.raises(UnknownCollection):
        go(bucket, rows, collection="shop.c")
    with pytest.raises(OptionError, match="like scope"):
        go(bucket, rows, collection="shop")


def test_a_write_whose_tasks_wrote_to_two_buckets_of_one_name_fails(bucket: Node) -> None:
    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    writer = DcpBatchWriter({"url": bucket.url}, schema, overwrite=False)
    buckets: set[tuple[str, int]] = set()
    batch = pa.RecordBatch.from_pylist([{"key": "k", "value": "v"}])
    write(writer.settings, ("key", "value"), [batch], "task", buckets=buckets)
    first = WrittenByTask({"stored": 1}, *buckets)
    writer.commit([first, first, None])
    later = WrittenByTask({"stored": 1}, ("f" * 32, 8))
    with pytest.raises(BucketMadeAnew, match=r"with 4 vbuckets, and is f{32} with 8\. Nothing that was written before"):
        writer.commit([first, later])
    with pytest.raises(BucketMadeAnew):
        DcpStreamWriter({"url": bucket.url}, schema).commit([first, later], 3)


def test_a_task_whose_collection_is_made_again_between_two_of_its_calls_ends(bucket: Node) -> None:
    becomes(bucket, 1, a=8, b=9)

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"key": "a", "value": "v"}])
        becomes(bucket, 2, b=9)
        becomes(bucket, 3, a=10, b=9)
        yield pa.RecordBatch.from_pylist([{"key": "b", "value": "v"}])

    settings = parse_write({"url": bucket.url, "retrySeconds": "5", "collection": "shop.a"})
    with pytest.raises(
        CollectionMadeAnew, match=r"shop\.a .* had id 0x8, and has 0xa\. Nothing that was written before"
    ):
        write(settings, ("key", "value"), batches(), "task")
    ids = dict[str, int]()
    write(
        settings, ("key", "value"), [pa.RecordBatch.from_pylist([{"key": "b", "value": "v"}])], "task", collections=ids
    )
    assert ids == {"shop.a": 10}


def test_a_task_notes_the_collection_that_it_wrote_to_though_a_read_behind_it_meets_another(
    bucket: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row whose CAS does not match is compared with the document there."""
    becomes(bucket, 1, a=8, b=9)
    read = CollectionClient.get_many

    def late(documents: CollectionClient, keys: Any) -> Any:
        becomes(bucket, 2, a=10, b=9)
        return read(documents, keys)

    monkeypatch.setattr(CollectionClient, "get_many", late)
    batch = pa.RecordBatch.from_pylist([{"key": "k", "value": "v", "cas": 7}, {"key": "new", "value": "v", "cas": 0}])
    with bucket.client() as client:
        client.collection("shop.a").set("k", "v")
        task = _Task(parse_write({"url": bucket.url, "retrySeconds": "5", "collection": "shop.a"}), client)
        written, _ = task.write(list(rows(batch, ("key", "value", "cas"))))
        assert (written.stored, task.ids) == (1, {"shop.a": 8})


def test_a_write_whose_tasks_wrote_to_two_collections_of_one_name_fails(bucket: Node) -> None:
    schema = StructType([StructField("key", StringType()), StructField("value", StringType())])
    writer = DcpBatchWriter({"url": bucket.url}, schema, overwrite=False)
    first, other, later = (
        WrittenByTask({"stored": 1}, ("f" * 32, 4), ids) for ids in ({"shop.a": 8}, {"shop.b": 9}, {"shop.a": 10})
    )
    writer.commit([first, other, None, first])
    with pytest.raises(CollectionMadeAnew):
        writer.commit([first, other, later])


@pytest.mark.parametrize("collection", [{}, {"collection": "shop.a"}], ids=["default", "shop.a"])
@pytest.mark.parametrize("vbuckets", [8, 64])
def test_a_task_whose_bucket_is_made_anew_between_two_of_its_calls_ends(
    bucket: Node, vbuckets: int, collection: dict[str, str]
) -> None:
    """A task that Spark runs again then writes all of its rows to the new one, whose collection has the same id."""
    make(bucket, 8, "a")

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"key": "a", "value": "v"}])
        make_anew(bucket, vbuckets, "a")
        yield pa.RecordBatch.from_pylist([{"key": "b", "value": "v"}])

    settings = parse_write({"url": url(bucket), "retrySeconds": "5"} | collection)
    with pytest.raises(BucketMadeAnew, match=f"it was .* with 8 vbuckets, and is .* with {vbuckets}"):
        write(settings, ("key", "value"), batches(), "task")
