"""Planner, tasks and queries on a bucket of two real nodes whose vbuckets move and fail over meanwhile."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, IntegerType, LongType, StructType

from harness.nodes import HandMade, cluster, diverge
from headwater.errors import ConnectionLost, HistoryChanged
from headwater.spark.nodes import SourceNodes
from headwater.spark.offsets import Offset
from headwater.spark.planner import pack, plan, ranges
from headwater.spark.reader import read
from headwater.spark.settings import SourceSettings, parse
from headwater.spark.source import DcpBatchReader, DcpDataSource
from headwater.testing.node import node
from tests.node.replication.support import leave, put
from tests.pipelines.support import KEEP_TOMBSTONES, compact

Drain = Callable[..., list[Any]]
NAMES = ("vbucket", "seqno", "event", "key")
VBUCKETS = 4


@pytest.fixture
def two() -> Iterator[HandMade]:
    with cluster(2, VBUCKETS) as made:
        yield made


def write(two: HandMade, name: str, count: int = 100) -> None:
    with two.client() as client:
        assert client.set_many((f"{name}{i}", name) for i in range(count)) == {}


def planned(settings: SourceSettings, start: Offset) -> tuple[Offset, list[Any], str]:
    """The end of a batch, its partitions, and where the tasks begin to look."""
    nodes = SourceNodes(settings)
    end = plan(start, nodes.observe(all_owners=True))
    url = nodes.known().url
    nodes.close()
    return end, pack(ranges(start, end), 2), url


def rows_of(url: str, partitions: list[Any]) -> list[dict[str, Any]]:
    settings = parse({"url": url}, streaming=True)
    return [row for parts in partitions for batch in read(settings, NAMES, parts) for row in batch.to_pylist()]


def test_what_moves_between_planning_and_reading_is_read_where_it_is_by_then(two: HandMade) -> None:
    write(two, "a")
    end, partitions, url = planned(parse({"url": two.url}, streaming=True), Offset())
    two.take_over(0, 1)
    two.take_over(1, 1)
    two.publish()
    two.take_over(2, 1)  # the map says so when the task has begun to look
    told = threading.Timer(0.3, two.publish)
    told.start()
    rows = rows_of(url, partitions)
    told.join()
    assert Counter(row["event"] for row in rows) == {"mutation": 100}
    assert len({row["key"] for row in rows}) == 100
    write(two, "b")
    again, partitions, url = planned(parse({"url": two.url}, streaming=True), end)
    assert not again.rollbacks
    assert {row["key"] for row in rows_of(url, partitions)} == {b"b%d" % i for i in range(100)}


def test_a_task_finds_the_cluster_when_the_node_of_the_url_is_gone(two: HandMade) -> None:
    write(two, "a")
    for vb in range(VBUCKETS):
        two.take_over(vb, 1)
    two.publish()
    _, partitions, url = planned(parse({"url": two.url}, streaming=True), Offset())
    two.nodes[0].kill()
    assert len(rows_of(url, partitions)) == 100


def fail_over_with_loss(two: HandMade, vb: int, lose: Callable[[], None]) -> None:
    """Vbucket `vb` goes to the second node, without what `lose` writes to the first."""
    two.follow(vb, 1)
    leave(two.nodes[1], two.nodes[0].address)
    lose()
    two.fail_over(vb, 1)
    two.publish()


def test_a_former_owner_that_was_cut_off_is_not_asked_by_tasks() -> None:
    """A task comes first to who knows neither the failover nor the new map. What the task does not find there
    would be missing for ever: it can tell the planner nothing."""
    with node(vbuckets=VBUCKETS) as first, node(vbuckets=VBUCKETS, vbucket_state="none") as second:
        made = HandMade([first, second], VBUCKETS)
        put(first, 1, "old", b"v")
        for vb in range(VBUCKETS):
            made.follow(vb, 1)
            made.fail_over(vb, 1)
        made.publish(1)  # the first hears of nobody
        put(second, 1, "new", b"v")
        put(first, 1, "of nobody", b"v")
        schema = StructType().add("key", BinaryType())
        reader = DcpDataSource({"url": second.url, "retrySeconds": "5"}).streamReader(schema)
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        tasks = reader.partitions(reader.initialOffset(), end)
        keys = {row["key"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()}
        assert keys == {b"old", b"new"}
        second.kill()  # who knows is away: that is not to be taken for the end of the history
        with pytest.raises(ConnectionLost, match=r"cluster map .*, and the batch was planned by 1\."):
            list(reader.read(tasks[0]))
        reader.stop()


def test_of_two_nodes_that_are_no_cluster_the_one_that_comes_first_in_the_url_is_read() -> None:
    """Each has a map of itself, and that of the one which began later counts as the newer."""
    with node(vbuckets=VBUCKETS) as first, node(vbuckets=VBUCKETS, vbucket_state="none") as second:
        put(first, 1, "here", b"v")
        url = f"couchbase://{first.address},{second.address}/default"
        reader = DcpDataSource({"url": url, "retrySeconds": "5"}).streamReader(StructType().add("key", BinaryType()))
        end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        tasks = reader.partitions(reader.initialOffset(), end)
        assert [row["key"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist()] == [b"here"]
        reader.stop()


@pytest.mark.battery
@pytest.mark.spark
def test_a_query_follows_takeovers_and_tells_of_what_a_failover_took_back(two: HandMade, drain: Drain) -> None:
    write(two, "a")
    rows = drain(two.url)
    two.take_over(0, 1)
    two.publish()
    write(two, "b")
    rows += drain(two.url)
    assert Counter(row.event for _, row in rows) == {"mutation": 200}
    assert len({bytes(row.key) for _, row in rows}) == 200

    def lose() -> None:
        put(two.nodes[0], 1, "lost", b"v")
        assert [bytes(row.key) for _, row in drain(two.url)] == [b"lost"]

    fail_over_with_loss(two, 1, lose)
    put(two.nodes[1], 1, "new", b"v")
    after = [row for _, row in drain(two.url)]
    assert (after[0].vbucket, after[0].event) == (1, "rollback")
    assert {row.vbucket for row in after} == {1}
    assert b"new" in {bytes(row.key) for row in after[1:]} and b"lost" not in {bytes(row.key) for row in after[1:]}
    assert drain(two.url) == []


BATCH = StructType().add("vbucket", IntegerType()).add("seqno", LongType())
BATCH = BATCH.add("key", BinaryType()).add("value", BinaryType())


def batch(url: str, **options: str) -> tuple[DcpBatchReader, list[Any]]:
    """A batch read, and its partitions as it planned them."""
    reader = DcpBatchReader(parse({"url": url, **options}, streaming=False), BATCH, 2)
    return reader, list(reader.partitions())


def read_rows(reader: DcpBatchReader, partitions: list[Any]) -> list[dict[str, Any]]:
    return [row for partition in partitions for rows in reader.read(partition) for row in rows.to_pylist()]


def test_a_batch_read_has_each_document_that_was_there_when_it_was_planned() -> None:
    """The newest version of it, where the node can't show any more how it was then: other servers never can."""
    with node(vbuckets=VBUCKETS) as bucket, bucket.client() as client:
        client.set_many((f"a{i}", b"one") for i in range(40))
        planned_high = client.seqnos()
        whole, cut = batch(bucket.url), batch(bucket.url, endingOffsets=json.dumps(planned_high))
        client.set_many((f"a{i}", b"two") for i in range(20))
        compact(bucket, VBUCKETS, KEEP_TOMBSTONES)
        found = {row["key"]: row["value"] for row in read_rows(*whole)}
        assert found == {f"a{i}".encode(): b"two" if i < 20 else b"one" for i in range(40)}
        bounded = read_rows(*cut)
        assert all(row["seqno"] <= planned_high[row["vbucket"]] for row in bounded), "an end that was given is an end"
        rest = {vb: seqno for vb, seqno in planned_high.items() if seqno}
        bounded += read_rows(*batch(bucket.url, startingOffsets=json.dumps(rest)))
        assert {row["key"]: row["value"] for row in bounded} == found


def test_a_batch_read_whose_history_was_taken_back_meanwhile_fails_instead_of_lacking_rows() -> None:
    with node(vbuckets=VBUCKETS) as bucket:
        with bucket.client() as client:
            client.set_many((f"a{i}", b"one") for i in range(40))
        made: list[Any] = []

        def lost() -> None:
            with bucket.client() as client:
                client.set_many((f"a{i}", b"lost") for i in range(20))
            made.append(batch(bucket.url))

        diverge(bucket, lost=lost)
        with bucket.client() as client:
            client.set_many((f"a{i}", b"won") for i in range(40))
        with pytest.raises(HistoryChanged, match="read again"):
            read_rows(*made[0])
