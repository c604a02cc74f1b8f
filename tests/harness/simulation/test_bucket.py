"""Two buckets on three simulated nodes: each has a model of its own, and what gets from one to the other is found."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from harness.simulation.bucket import SimBucket
from harness.simulation.cluster import SimCluster
from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from harness.simulation.sockets import Link
from headwater.node.buckets import catalog, folder
from headwater.node.kv.session import KvSession


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """Three nodes with two buckets, whose vbuckets n0 owns."""
    with SimCluster.running(3) as made:
        for at in range(3):
            made.start(at)
        made.first.found()
        made.make_bucket()
        assert made.run(5.0, lambda: len(made.buckets_in_use) == 2)
        made.run(0.5)
        yield made


def write(bucket: SimBucket) -> None:
    """The same keys in each bucket."""
    for number in range(10):
        bucket.set(0, number % 2, b"key-%d" % number)


def at_rest(cluster: SimCluster) -> None:
    cluster.settle()
    cluster.check_everything()


def test_both_take_writes_and_a_consumer_of_one_is_told_nothing_of_the_other(cluster: SimCluster) -> None:
    for bucket in cluster.buckets:
        for consumer in bucket.consumers:
            consumer.connect("n0")
        write(bucket)
    cluster.run(1.0)
    assert [bucket.acknowledged for bucket in cluster.buckets] == [10, 10]
    first, second = ({seen.value for seen in bucket.consumers[0].told[0]} for bucket in cluster.buckets)
    assert len(first) == len(second) == 5 and not first & second
    at_rest(cluster)


@pytest.mark.parametrize("how", Crash)
@pytest.mark.parametrize("seconds", [0.0005, 0.002, 0.004, 0.02])
def test_a_node_that_dies_while_it_drops_the_bucket_has_all_of_it_or_nothing(
    cluster: SimCluster, seconds: float, how: Crash
) -> None:
    write(cluster.bucket(1))
    cluster.run(1.0)
    cluster.drop_bucket()
    cluster.run(seconds)
    cluster.crash(1, how)
    cluster.start(1)
    at_rest(cluster)
    assert [host.folders() for host in cluster.hosts] == [set()] * 3


@pytest.mark.parametrize("seconds", [0.0005, 0.002, 0.004, 0.02])
def test_a_node_that_dies_while_it_makes_the_bucket_has_it_after_all(cluster: SimCluster, seconds: float) -> None:
    write(cluster.bucket(1))
    cluster.drop_bucket()
    cluster.run(1.0)
    assert len(cluster.buckets_in_use) == 1
    cluster.make_bucket()
    cluster.run(seconds)
    cluster.crash(1, Crash.POWER)
    cluster.start(1)
    at_rest(cluster)
    assert not any(observer.held(0) for observer in cluster.bucket(1).observers)
    write(cluster.bucket(1))
    cluster.run(1.0)
    assert cluster.bucket(1).acknowledged == 10


def test_what_a_durable_write_replaced_is_told_from_what_it_did_not(cluster: SimCluster) -> None:
    bucket = cluster.first
    bucket.set(0, 0, b"a")
    cluster.run(1.0)
    (value,) = bucket.histories.newest(0, bucket.placed[0].bucket.vbuckets[0].failover.entries, 1).values()
    bucket.set_durably(0, 0, b"a", level=1, timeout_ms=500)
    bucket.set(0, 0, b"a", meanwhile=True)  # before or after: nobody knows
    bucket.set(0, 0, b"b")
    cluster.run(1.0)
    assert bucket.superseded == {(0, b"a"): {value[1].value}}


def test_a_write_meanwhile_does_not_wait_for_a_durable_one(cluster: SimCluster) -> None:
    cluster.network.set_link("n0", "n1", Link.STALLED)
    cluster.network.set_link("n0", "n2", Link.STALLED)
    cluster.first.set_durably(0, 0, b"a", level=1, timeout_ms=60_000)
    cluster.first.set(0, 0, b"b", meanwhile=True)
    cluster.first.set(0, 0, b"c")
    cluster.run(1.0)
    assert set(cluster.first.observers[0].held(0)) == {b"b"}


def test_a_write_that_lands_in_the_other_bucket_is_found(cluster: SimCluster) -> None:
    with mock.patch.object(KvSession, "select"):
        cluster.bucket(1).hang_up(0)
        write(cluster.bucket(1))
        with pytest.raises(Broken, match="which nobody sent"):
            cluster.run(1.0)


def test_a_bucket_that_is_there_again_after_it_was_dropped_is_found(cluster: SimCluster) -> None:
    kept = mock.patch.object(catalog.Catalog, "_list_drop", lambda *_: None)
    with kept, mock.patch.object(catalog.Catalog, "_removed", lambda *_: None):
        cluster.drop_bucket()
        cluster.run(1.0)
    cluster.crash(2, Crash.KILL)
    with pytest.raises(Broken, match="on n2 it is there, though it was dropped"):
        cluster.start(2)


def test_a_bucket_that_is_not_on_the_disk_when_it_is_said_to_be_made_is_found(cluster: SimCluster) -> None:
    cluster.drop_bucket()
    cluster.run(1.0)
    with mock.patch.object(catalog.Catalog, "_save", lambda catalog, known: setattr(catalog, "_known", known)):
        cluster.make_bucket()
        cluster.run(1.0)
    cluster.crash(2, Crash.POWER)
    with pytest.raises(Broken, match="on n2 it is not there, though it was made"):
        cluster.start(2)


def test_a_folder_that_is_left_behind_is_found(cluster: SimCluster) -> None:
    with mock.patch.object(folder, "remove", lambda *_: None):
        cluster.drop_bucket()
        cluster.run(1.0)
    with pytest.raises(Broken, match="n0 has 1 buckets, and the folders"):
        at_rest(cluster)
