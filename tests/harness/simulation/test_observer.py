"""The observer tells the model what a node has on disk and who says he is active; a lie is found at once."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from harness.simulation.cluster import SimCluster
from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from headwater.testing.faults import FaultyDisk
from headwater.wire.vbucket import State


@pytest.fixture
def cluster() -> Iterator[SimCluster]:
    """One node that owns a vbucket."""
    with SimCluster.running(5, vbuckets=1, nodes=1, consumers=0) as made:
        made.start(0)
        made.first.set_state(0, 0, State.ACTIVE)
        made.run(0.5)
        yield made


def test_the_model_knows_a_change_once_it_is_durable(cluster: SimCluster) -> None:
    cluster.first.set(0, 0, b"key")
    host = cluster.hosts[0]
    assert cluster.run(0.5, lambda: host.store.index.high_seqno(0) == 1)
    assert cluster.first.histories.recorded == 0
    assert cluster.run(0.5, lambda: host.store.index.durable_seqno(0) == 1)
    assert cluster.first.histories.recorded == 1
    ((seqno, change),) = cluster.first.observers[0].held(0).values()
    assert (seqno, change.key, change.value) == (1, b"key", b"1")


def test_superseded_versions_are_recorded_as_well(cluster: SimCluster) -> None:
    for _ in range(3):
        cluster.first.set(0, 0, b"key")
    cluster.run(0.5)
    assert cluster.first.histories.recorded == 3 and len(cluster.first.observers[0].held(0)) == 1


def test_a_node_that_writes_what_nobody_sent_is_found(cluster: SimCluster) -> None:
    host = cluster.hosts[0]
    host.store.staging.mutation(0, b"key", b"made up", cas=9, rev_seqno=1)
    host.committer.wrote()
    with pytest.raises(Broken, match="nobody sent"):
        cluster.run(0.5)


def test_a_node_that_makes_itself_active_is_found(cluster: SimCluster) -> None:
    cluster.first.set_state(0, 0, State.DEAD)
    cluster.run(0.5)
    host = cluster.hosts[0]
    assert host.loop is not None
    host.loop.call_soon(host.bucket.vbuckets[0].set_state, State.ACTIVE)
    with pytest.raises(Broken, match="n0 made itself active"):
        cluster.run(0.5)


def test_the_owner_is_who_was_told_to_be_and_a_replica_owns_nothing(cluster: SimCluster) -> None:
    owner = cluster.first.owners[0]
    assert (owner.holder, owner.is_certain, owner.is_vacant) == ("n0", True, False)
    assert list(owner.actives) == ["n0"]
    cluster.first.set_state(0, 0, State.REPLICA)
    cluster.run(0.5)
    assert owner.is_vacant and owner.actives == {}


def test_a_crash_that_loses_what_was_durable_is_found(cluster: SimCluster) -> None:
    cluster.first.set(0, 0, b"key")
    cluster.run(0.5)
    before = cluster.hosts[0].disk.crash(cluster.schedule.random, lose=0.0)
    cluster.first.set(0, 0, b"key")
    cluster.run(0.5)
    cluster.crash(0, Crash.KILL)
    cluster.hosts[0].disk = before
    with pytest.raises(Broken, match="kept: n0 had vbucket 0 to 2, it is 1 now"):
        cluster.start(0)


def test_a_vbucket_that_is_gone_after_a_crash_is_found(cluster: SimCluster) -> None:
    cluster.crash(0, Crash.KILL)
    cluster.hosts[0].disk = FaultyDisk()
    with pytest.raises(Broken, match="kept: n0 had vbucket 0 to 0, it is gone now"):
        cluster.start(0)


def test_a_document_that_is_missing_is_found(cluster: SimCluster) -> None:
    cluster.first.set(0, 0, b"key")
    cluster.run(0.5)
    cluster.check()
    observer = cluster.first.observers[0]
    with (
        mock.patch.object(observer, "held", lambda vb: {}),
        pytest.raises(Broken, match="complete: n0, consistent at 1"),
    ):
        cluster.check()
