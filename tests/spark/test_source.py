"""The source inside a real Spark, against a real node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import window

from harness.nodes import cluster, diverge, leave, put
from headwater.spark.source import DcpDataSource, DcpStreamReader
from headwater.testing.node import Node, node
from tests.pipelines.support import becomes, put_into

pytestmark = pytest.mark.spark

Drain = Callable[..., list[Any]]


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def write(bucket: Node, keys: Iterator[str] | list[str], value: bytes = b"v") -> None:
    with bucket.client() as client:
        assert client.set_many((key, value) for key in keys) == {}


def test_a_batch_read_counts_exactly_what_is_in_the_node(spark: Any, bucket: Node) -> None:
    write(bucket, [f"k{i}" for i in range(500)])
    with bucket.client() as client:
        client.set("k7", b"again", flags=0xFFFF_FFFF)
        client.delete("k8")
        uuids = {f"{client.failover_log(vb)[0][0]:016x}" for vb in range(4)}
    frame = spark.read.format("dcp").load(bucket.url)
    rows = frame.collect()
    assert Counter(row.event for row in rows) == {"mutation": 499, "deletion": 1}
    assert {row.vb_uuid for row in rows} == uuids
    held = {bytes(row.key): row for row in rows}
    assert len(held) == len(rows) == frame.count()
    assert (bytes(held[b"k7"].value), held[b"k7"].flags) == (b"again", 0xFFFF_FFFF)
    assert (held[b"k8"].value, held[b"k8"].event) == (None, "deletion")
    assert all(row.snapshot_start <= row.seqno <= row.snapshot_end for row in rows)
    assert frame.rdd.getNumPartitions() == 2  # slots, not vbuckets


def test_the_time_of_a_change_makes_windows_and_watermarks(spark: Any, bucket: Node, tmp_path: Path) -> None:
    write(bucket, [f"k{i}" for i in range(100)])
    reading = spark.readStream.format("dcp").schema("event string, modified_at timestamp").load(bucket.url)
    windows = reading.withWatermark("modified_at", "10 minutes").groupBy(window("modified_at", "1 hour")).count()
    query = windows.writeStream.format("memory").queryName("windows").outputMode("complete")
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.sql("SELECT count, window.end > now() - INTERVAL 2 HOURS AS fresh FROM windows").collect()
    assert sum(row["count"] for row in rows) == 100 and all(row.fresh for row in rows)
    assert "watermark" in query.lastProgress.eventTime


def test_a_batch_read_between_offsets_takes_these_columns_of_these_vbuckets(spark: Any, bucket: Node) -> None:
    write(bucket, [f"k{i}" for i in range(100)])
    reading = spark.read.format("dcp").schema("seqno bigint, key string, vbucket int")
    options = {"keyFormat": "string", "startingOffsets": '{"1": 3}', "endingOffsets": '{"1": 7, "2": 2}'}
    rows = reading.options(**options).load(bucket.url).collect()
    assert {(row.vbucket, row.seqno) for row in rows} == {(1, 4), (1, 5), (1, 6), (1, 7), (2, 1), (2, 2)}
    assert all(row.key.startswith("k") for row in rows)


def test_a_stream_that_is_stopped_and_started_yields_each_change_once(bucket: Node, drain: Drain) -> None:
    rows = []
    for part in range(3):
        write(bucket, [f"k{part}:{i}" for i in range(100)])
        rows += drain(bucket.url)
        assert len(rows) == 100 * (part + 1)
    assert len({(row.vbucket, row.seqno, bytes(row.key)) for _, row in rows}) == 300
    assert drain(bucket.url) == []


def test_a_trigger_takes_no_more_changes_than_it_may(bucket: Node, drain: Drain) -> None:
    write(bucket, [f"k{i}" for i in range(250)])
    rows = drain(bucket.url, maxChangesPerTrigger="100")
    assert Counter(number for number, _ in rows) == {0: 100, 1: 100, 2: 50}
    assert len({bytes(row.key) for _, row in rows}) == 250


def test_latest_begins_with_what_is_written_after_the_first_start(bucket: Node, drain: Drain) -> None:
    write(bucket, ["before"])
    assert drain(bucket.url, startingOffsets="latest") == []
    write(bucket, ["after"])
    assert [bytes(row.key) for _, row in drain(bucket.url, startingOffsets="latest")] == [b"after"]


def test_a_lost_branch_is_announced_before_what_replaces_it(bucket: Node, drain: Drain) -> None:
    def lost() -> None:
        write(bucket, [f"b{i}" for i in range(40)])
        assert len(drain(bucket.url)) == 80

    write(bucket, [f"a{i}" for i in range(40)])
    diverge(bucket, lost=lost)
    write(bucket, ["c"])
    rows = [row for _, row in drain(bucket.url)]
    assert {row.vbucket for row in rows if row.event == "rollback"} == set(range(4))
    assert {bytes(row.key) for row in rows if row.event == "mutation"} == {b"c", *(b"a%d" % i for i in range(40))}
    for vbucket in range(4):
        assert next(row.event for row in rows if row.vbucket == vbucket) == "rollback"
    assert drain(bucket.url) == []


def test_a_lost_branch_comes_as_rows_that_undo_it_where_a_folder_is_given(
    bucket: Node, drain: Drain, tmp_path: Path
) -> None:
    options = {"undoFolder": str(tmp_path / "undo"), "keyFormat": "string"}

    def lost() -> None:
        write(bucket, ["b"])
        assert [row.sequence.generation for _, row in drain(bucket.url, **options)] == [0, 0]

    write(bucket, ["a"])
    diverge(bucket, lost=lost)
    rows = [row for _, row in drain(bucket.url, **options)]
    assert [(row.event, row.key, row.sequence.generation) for row in rows] == [("deletion", "b", 1)]


def test_rollback_policy_fail_ends_the_query_with_the_numbers(bucket: Node, drain: Drain) -> None:
    def lost() -> None:
        write(bucket, [f"b{i}" for i in range(40)])
        drain(bucket.url, rollbackPolicy="fail")

    write(bucket, ["a"])
    diverge(bucket, lost=lost)
    with pytest.raises(PySparkException, match=r"vbucket 0: cannot continue from seqno \d+.*rollbackPolicy is fail"):
        drain(bucket.url, rollbackPolicy="fail")


def test_a_node_that_crashed_and_came_back_costs_no_change(bucket: Node, drain: Drain) -> None:
    write(bucket, [f"a{i}" for i in range(20)])
    rows = drain(bucket.url)
    bucket.kill()
    bucket.restart()
    write(bucket, [f"b{i}" for i in range(20)])
    rows += drain(bucket.url)
    # A crash is a new branch. Behind one batch alone only the beginning is held for certain, and a replay from there is
    # announced as one: it may lack deletions that were purged, so what was held must go first (decision 0025).
    held: dict[bytes, int] = {}
    for _, row in rows:
        if row.event == "rollback":
            assert row.seqno == 0
            held = {key: vbucket for key, vbucket in held.items() if vbucket != row.vbucket}
        else:
            assert row.event == "mutation"
            held[bytes(row.key)] = row.vbucket
    assert set(held) == {b"%s%d" % (name, i) for name in (b"a", b"b") for i in range(20)}


def test_a_task_that_fails_is_run_again_and_leaves_no_trace(spark: Any, bucket: Node, tmp_path: Path) -> None:
    write(bucket, [f"k{i}" for i in range(200)])
    fault = tmp_path / "fault"
    fault.touch()

    class Flaky(DcpStreamReader):
        def read(self, partition: Any) -> Iterator[Any]:
            yield from super().read(partition)
            if fault.exists():
                fault.unlink(missing_ok=True)
                raise RuntimeError("the executor fails after its last row")

    class FlakySource(DcpDataSource):
        @classmethod
        def name(cls) -> str:
            return "dcp_flaky"

        def streamReader(self, schema: Any) -> Flaky:
            made = super().streamReader(schema)
            made.__class__ = Flaky
            return made

    spark.dataSource.register(FlakySource)
    stream = spark.readStream.format("dcp_flaky").load(bucket.url)
    writing = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writing.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
    assert query.awaitTermination(400)
    assert not fault.exists()
    assert spark.read.parquet(str(tmp_path / "out")).select("vbucket", "seqno").distinct().count() == 200
    assert spark.read.parquet(str(tmp_path / "out")).count() == 200


def test_a_bad_option_fails_at_load_and_says_what_is_allowed(spark: Any) -> None:
    for options, told in (
        ({"maxChangesPerTriger": "5"}, "did you mean maxChangesPerTrigger"),
        ({"vbuckets": "0-1024"}, "1024 is out of range"),
        ({"keyFormat": "text"}, 'option "keyFormat": "text" is not binary or string'),
    ):
        with pytest.raises(PySparkException, match=told):
            spark.readStream.format("dcp").options(**options).load("couchbase://127.0.0.1:1/default")


def test_text_that_is_none_fails_and_is_named(spark: Any, bucket: Node) -> None:
    write(bucket, ["k"], b"\xff\xfe")
    reading = spark.read.format("dcp").option("valueFormat", "string").load(bucket.url)
    with pytest.raises(PySparkException, match=r"the value of vbucket \d, seqno 1 is not UTF-8; read it as binary"):
        reading.collect()


@pytest.mark.battery
def test_collections_come_with_their_names_and_a_checkpoint_goes_on_with_the_same_choice_only(
    spark: Any, bucket: Node, drain: Drain
) -> None:
    becomes(bucket, 1, a=8, b=9)
    put_into(bucket, 0, "k1", value="default")
    put_into(bucket, 8, "k1", "k2", value="a")
    put_into(bucket, 9, "k1", value="b")
    frame = spark.read.format("dcp").option("collections", "all").load(bucket.url)
    assert frame.columns[-2:] == ["scope", "collection"]
    found = {(row.scope, row.collection, bytes(row.key)): bytes(row.value) for row in frame.collect()}
    assert found == {
        ("_default", "_default", b"k1"): b"default",
        ("shop", "a", b"k1"): b"a",
        ("shop", "a", b"k2"): b"a",
        ("shop", "b", b"k1"): b"b",
    }
    assert spark.read.format("dcp").load(bucket.url).columns == frame.columns[:-2]
    narrow = spark.read.format("dcp").option("scope", "shop").schema("collection string, key binary").load(bucket.url)
    assert sorted((row.collection, bytes(row.key)) for row in narrow.collect()) == [
        ("a", b"k1"),
        ("a", b"k2"),
        ("b", b"k1"),
    ]
    chosen = {"collections": "shop.a,shop.b"}
    assert len(drain(bucket.url, **chosen)) == 3
    put_into(bucket, 9, "k3", value="b")
    put_into(bucket, 0, "k4", value="default")
    assert [(row.collection, bytes(row.key)) for _, row in drain(bucket.url, **chosen)] == [("b", b"k3")]
    for other in ({"collections": "shop.a"}, {"scope": "shop"}, {}):
        with pytest.raises(PySparkException, match=r"saved with: collections shop\.a, shop\.b"):
            drain(bucket.url, **other)
    with pytest.raises(PySparkException, match=r"no collection shop\.c"):
        spark.read.format("dcp").option("collections", "shop.c").load(bucket.url).count()
    becomes(bucket, 2, b=9)
    put_into(bucket, 9, "k5", value="b")
    assert [(row.collection, bytes(row.key)) for _, row in drain(bucket.url, **chosen)] == [("b", b"k5")]
    becomes(bucket, 3)
    put_into(bucket, 0, "k6", value="default")
    assert [drain(bucket.url, **chosen) for _ in range(2)] == [[], []]


@pytest.mark.battery
def test_who_waits_for_the_copies_is_given_nothing_that_the_owner_alone_has(spark: Any, drain: Drain) -> None:
    """The replica stops following, so what is stored then is on the owner's disk alone."""
    with cluster(2, 4) as two:
        owner, replica = two.nodes
        for number in range(5):
            put(owner, 3, f"kept-{number}", b"v")
        two.replicas = {vb: [1] for vb in range(4)}
        two.publish()
        for vb in range(4):
            two.follow(vb, 1)
        leave(replica, owner.address)
        put(owner, 3, "lost", b"v")
        url = f"couchbase://{owner.address},{replica.address}/default"

        def keys(**options: str) -> set[bytes]:
            rows = spark.read.format("dcp").options(**options).load(url).select("key").collect()
            return {bytes(row.key) for row in rows}

        kept = {b"kept-%d" % number for number in range(5)}
        assert keys(minPersisted="all") == keys(minPersisted="majority") == keys(minPersisted="2") == kept
        assert keys(minPersisted="1") == keys() == kept | {b"lost"}
        assert {bytes(row.key) for _, row in drain(url, "patient", minPersisted="all")} == kept
        assert len(drain(url, "hasty")) == 6
