"""A simulated consumer remembers what it was told, goes on elsewhere, and leaves who is silent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from harness.simulation.cluster import SimCluster
from harness.simulation.consumers import HANDSHAKE_SECONDS, NOOP_SECONDS, Consumer
from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from harness.simulation.lines import PLACE
from harness.simulation.sockets import Link
from headwater.node.streams.stream import Stream
from headwater.protocol.dcp.producer import Producer
from headwater.protocol.dcp.producer_stream import ProducerStream
from headwater.wire.vbucket import State


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """n0 owns a vbucket, n1 follows it."""
    with SimCluster.running(2, vbuckets=1, nodes=2, consumers=1) as made:
        made.start(0)
        made.start(1)
        made.first.set_state(0, 0, State.ACTIVE)
        made.run(0.1)
        made.first.follow(1, 0, 0)
        made.run(0.5)
        yield made


def keys(consumer: Consumer) -> list[tuple[int, bytes, bytes | None]]:
    return [(seen.seqno, seen.key, seen.value) for seen in consumer.told[0]]


def test_it_is_told_every_change_and_knows_where_it_stands(cluster: SimCluster) -> None:
    (consumer,) = cluster.first.consumers
    assert consumer.connect("n0")
    cluster.first.set(0, 0, b"a")
    cluster.run(0.5)
    cluster.first.delete(0, 0, b"a")
    cluster.run(0.5)
    assert keys(consumer) == [(1, b"a", b"1"), (2, b"a", None)]
    assert consumer.position(0).seqno == 2 and consumer.position(0).complete
    assert consumer.streams(0) and consumer.idle_vbuckets() == []


def test_it_goes_on_at_another_node_from_where_it_stands(cluster: SimCluster) -> None:
    (consumer,) = cluster.first.consumers
    consumer.connect("n0")
    cluster.first.set(0, 0, b"a")
    cluster.run(0.5)
    cluster.first.follow(1, 0, 0, takeover=True)
    cluster.run(0.5)
    consumer.connect("n1")
    assert consumer.target == "n1"
    cluster.first.set(1, 0, b"b")
    cluster.run(0.5)
    assert keys(consumer) == [(1, b"a", b"1"), (2, b"b", b"2")] and consumer.rollbacks == 0


def test_it_reads_nothing_while_it_is_paused(cluster: SimCluster) -> None:
    (consumer,) = cluster.first.consumers
    consumer.connect("n0")
    cluster.run(0.5)
    consumer.pause()
    cluster.first.set(0, 0, b"a")
    cluster.run(0.5)
    assert keys(consumer) == []
    consumer.resume()
    cluster.run(0.5)
    assert keys(consumer) == [(1, b"a", b"1")]


def test_a_snapshot_that_begins_above_what_it_holds_is_found(cluster: SimCluster) -> None:
    marker, (consumer,) = Producer.marker, cluster.first.consumers

    def later(producer: Producer, stream: ProducerStream, start: int, end: int, *rest: Any) -> bytes:
        return marker(producer, stream, min(start + 1, end), end, *rest)

    consumer.connect("n0")
    with mock.patch.object(Producer, "marker", later), mock.patch.object(Stream, "_send_at_once", return_value=False):
        cluster.first.set(0, 0, b"a")
        with pytest.raises(Broken, match="complete: c0 of default was announced a snapshot from 1 on"):
            cluster.run(0.5)


def test_it_can_not_drain_a_node_that_is_down(cluster: SimCluster) -> None:
    (consumer,) = cluster.first.consumers
    cluster.crash(0, Crash.KILL)
    assert not consumer.connect("n0") and not consumer.is_connected
    consumer.connect("n1")
    cluster.run(0.5)
    cluster.crash(1, Crash.KILL)
    cluster.run(0.5)
    assert not consumer.is_connected and consumer.error == "its node hung up"


@pytest.mark.parametrize(("before", "seconds"), [(0.0, HANDSHAKE_SECONDS), (0.5, 2.0 * NOOP_SECONDS)])
def test_it_leaves_a_node_that_is_silent(cluster: SimCluster, before: float, seconds: float) -> None:
    (consumer,) = cluster.first.consumers
    consumer.connect("n0")
    cluster.run(before)
    cluster.network.set_link("n0", PLACE, Link.STALLED)
    cluster.run(seconds / 2)
    assert consumer.is_connected
    cluster.run(seconds)
    assert not consumer.is_connected and consumer.error
