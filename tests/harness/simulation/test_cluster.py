"""A simulated cluster told what to do by hand, and that the same seed is the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from harness.simulation.cluster import SimCluster
from harness.simulation.histories import Broken
from harness.simulation.host import Crash
from harness.simulation.sockets import Link
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State


def begun(cluster: SimCluster) -> None:
    for at in range(3):
        cluster.start(at)
    for vb in cluster.vbuckets:
        cluster.first.set_state(0, vb, State.ACTIVE)
    cluster.run(0.1)
    for vb in cluster.vbuckets:
        cluster.first.follow(1, 0, vb)
        cluster.first.follow(2, 0, vb)
    cluster.run(0.5)


def story(seed: int) -> tuple[int, int, float]:
    """A takeover, a stalled link and a crash of the new owner; what it came to."""
    with SimCluster.running(seed) as cluster:
        begun(cluster)
        cluster.first.consumers[0].connect("n2")
        for number in range(50):
            cluster.first.set(0, number % 2, b"key-%d" % (number % 7), size=number * 10)
            cluster.run(0.001)
        cluster.first.follow(1, 0, 0, takeover=True)
        cluster.network.set_link("n1", "n2", Link.STALLED)
        cluster.run(1.0)
        assert cluster.first.owners[0].holder == "n1" and cluster.hosts[0].bucket.state(0) is State.DEAD
        cluster.crash(1, Crash.POWER)
        cluster.run(1.0)
        cluster.settle()
        cluster.check_everything()
        assert cluster.first.acknowledged == 50 and cluster.first.owners[0].discarded == 0
        return cluster.schedule.events, cluster.first.histories.recorded, cluster.schedule.now


def test_a_takeover_and_a_crash_of_the_new_owner_lose_nothing() -> None:
    assert story(7) == story(7)


def test_a_node_that_ends_itself_fails_the_run_and_does_not_end_it() -> None:
    def differs(_: object) -> None:
        raise ValueError("the index is another one")

    with SimCluster.running(1) as cluster:
        begun(cluster)
        cluster.hosts[0].committer._store.settle = differs  # type: ignore[method-assign]
        cluster.first.set(0, 0, b"key")
        with pytest.raises(Broken, match="a node ended itself with status 1"):
            cluster.run(0.5)


def test_a_replica_that_is_changed_behind_everybodys_back_is_found() -> None:
    with SimCluster.running(1) as cluster:
        begun(cluster)
        cluster.first.set(0, 0, b"key")
        cluster.run(0.5)
        store = cluster.hosts[1].store
        store.staging.mutation(0, b"key", b"never sent", cas=9, rev_seqno=9)
        cluster.hosts[1].committer.wrote()
        with pytest.raises(Broken, match="identity: n1"):
            cluster.run(0.5)


def test_two_requests_to_become_active_on_the_way_at_once_are_two() -> None:
    with SimCluster.running(0) as cluster:
        begun(cluster)
        cluster.first.follow(1, 0, 1, takeover=True)
        cluster.run(0.5)
        assert cluster.first.owners[1].holder == "n1"
        for state in (State.ACTIVE, State.DEAD, State.ACTIVE):
            cluster.first.set_state(0, 1, state)
        cluster.run(0.5)
        assert cluster.first.owners[1].holder == "n0"


@pytest.mark.parametrize("crashes", [1, 2])
def test_an_owner_that_crashed_gives_up_its_branch_when_it_follows_the_old_one(crashes: int) -> None:
    """Both wrote the same seqno, each in a branch of its own; the branches of the crashes are empty."""
    with SimCluster.running(4) as cluster:
        begun(cluster)
        cluster.first.set(0, 0, b"both have this")
        cluster.run(0.5)
        cluster.network.set_link("n0", "n1", Link.DOWN)
        cluster.network.cut("n0", "n1")
        cluster.first.set_state(1, 0, State.ACTIVE)
        cluster.run(0.5)
        cluster.first.set(1, 0, b"of the new owner")
        cluster.first.set(0, 0, b"of the old owner")
        cluster.run(0.5)
        cluster.first.consumers[0].connect("n1")
        for _ in range(crashes):
            cluster.crash(1, Crash.KILL)
            cluster.start(1)
        cluster.run(0.5)
        cluster.first.consumers[0].connect("n1")
        cluster.run(0.5)
        assert cluster.first.consumers[0].position(0).seqno == 2
        cluster.first.set_state(0, 0, State.DEAD)
        cluster.run(0.1)
        cluster.first.set_state(0, 0, State.ACTIVE)
        cluster.run(0.5)
        cluster.settle()
        cluster.check_everything()
        assert set(cluster.first.observers[1].held(0)) == {b"both have this", b"of the old owner"}


def test_an_owner_that_nobody_reached_while_it_was_failed_over_has_no_majority_when_it_hears_of_that() -> None:
    with SimCluster.running(6) as cluster:
        bucket = cluster.first
        bucket.has_map = True
        for at in range(3):
            cluster.start(at)
        for at in range(3):
            bucket.send_map(at, 1, [0, 1, 2])
        for vb in cluster.vbuckets:
            bucket.set_state(0, vb, State.ACTIVE)
        cluster.run(1.0)
        bucket.set_durably(0, 0, b"of before", level=1, timeout_ms=60_000)
        cluster.run(1.0)
        assert bucket.durable_answers == {"SUCCESS": 1}

        cut_off(cluster, "n0", Link.STALLED)
        for number in range(6):
            bucket.set_durably(0, number % 2, b"waits %d" % number, level=1, timeout_ms=60_000)
        cluster.run(1.0)
        for at in (1, 2):
            bucket.send_map(at, 2, [1, 2])
        cluster.run(0.5)
        for vb in cluster.vbuckets:
            bucket.set_state(1, vb, State.ACTIVE)
        cluster.run(1.0)
        bucket.set_durably(1, 0, b"of the new owner", level=1, timeout_ms=60_000)
        cluster.run(1.0)
        assert bucket.durable_answers == {"SUCCESS": 2}

        cut_off(cluster, "n0", Link.UP)
        assert cluster.run(30.0, lambda: bucket.durable_answers.total() == 8)  # it asks its peers, and hears
        # One after the other on one connection: the first had its prepare, the others were not begun.
        assert bucket.durable_answers == {"SUCCESS": 2, "SYNC_WRITE_AMBIGUOUS": 1, "NOT_MY_VBUCKET": 5}
        assert cluster.hosts[0].bucket.state(0) is State.DEAD
        assert set(bucket.observers[1].held(0)) == {b"of before", b"of the new owner"}


def cut_off(cluster: SimCluster, name: str, link: Link) -> None:
    """Give a node such links to the other nodes."""
    for host in cluster.hosts:
        if host.name != name:
            cluster.network.set_link(name, host.name, link)
            if link is Link.UP:
                cluster.network.cut(name, host.name)


def test_a_consumer_that_held_what_a_failover_gave_up_goes_back() -> None:
    with SimCluster.running(3) as cluster:
        begun(cluster)
        cluster.network.set_link("n0", "n1", Link.STALLED)
        cluster.first.consumers[0].connect("n0")
        cluster.first.set(0, 0, b"given up")
        cluster.run(0.5)
        assert cluster.first.consumers[0].position(0).seqno == 1
        cluster.first.set_state(1, 0, State.ACTIVE)
        cluster.run(0.5)
        cluster.settle()
        cluster.check_everything()
        assert cluster.first.consumers[0].rollbacks == 1 and cluster.first.consumers[0].told[0] == []


@contextmanager
def received_and_promoted_in_one_batch() -> Iterator[tuple[SimCluster, list[int | None]]]:
    """n2 is dead, still receives what the owner has acknowledged, and is to be the owner while that is not on its disk.

    Which of the three comes first is the schedule's: the first seed is taken in which they come so.
    Yields what n2 answers, as it comes: a status, or None when it hangs up.
    """
    for seed in range(30):
        with SimCluster.running(seed) as cluster:
            if (answers := promoted_before_its_disk_has_anything(cluster)) is not None:
                yield cluster, answers
                return
    raise AssertionError("30 schedules, and in none did it come so")


def promoted_before_its_disk_has_anything(cluster: SimCluster) -> list[int | None] | None:
    begun(cluster)
    cluster.first.set_state(2, 0, State.DEAD)
    cluster.run(0.1)
    host, answers = cluster.hosts[2], list[int | None]()

    def has_acknowledged_changes_in_memory_only() -> bool:
        on_disk, received = host.store.index.durable_seqno(0), host.store.index.high_seqno(0)
        return any(on_disk < seqno <= received for _, seqno in cluster.first.owners[0].acknowledged)

    cluster.first.set(0, 0, b"key")
    if not cluster.run(0.1, has_acknowledged_changes_in_memory_only):
        return None
    cluster.first.owners[0].promise("n2")
    cluster.first.admins[2].ask(
        Opcode.SET_VBUCKET,
        lambda answer: answers.append(None if answer is None else answer.status),
        extras=bytes([State.ACTIVE]),
        vbucket=0,
    )
    assert cluster.run(0.1, lambda: host.bucket.state(0) is State.ACTIVE)
    return answers if host.store.index.durable_seqno(0) == 0 else None


@pytest.mark.parametrize("how", [None, Crash.KILL, Crash.POWER])
def test_a_promotion_that_did_not_come_to_the_disk_is_not_answered_and_changes_nothing(how: Crash | None) -> None:
    """The batch that failed had both what was received and the new branch: the node is dead again, with less."""
    with received_and_promoted_in_one_batch() as (cluster, answers):
        assert cluster.first.owners[0].holder == "n2" and answers == []
        assert cluster.hosts[2].store.index.durable_seqno(0) == 0 and len(cluster.first.owners[0].acknowledged) == 1
        if how is None:
            cluster.hosts[2].disk.fail(1)
            cluster.run(0.1)
        else:
            cluster.crash(2, how)
            cluster.start(2)
        assert answers == [None]
        assert cluster.hosts[2].bucket.state(0) is State.DEAD and cluster.hosts[0].bucket.state(0) is State.ACTIVE
        cluster.run(0.5)
        cluster.settle()
        cluster.check_everything()
        assert cluster.first.owners[0].holder == "n0" and len(cluster.first.owners[0].acknowledged) == 1
