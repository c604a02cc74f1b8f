"""Two real nodes: replication that is killed and cut, and takeovers that break at every step (failover 4)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from headwater.testing.node import Node, node
from headwater.testing.proxy import Fault, FaultProxy, Way
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.subdoc import DocumentFlag, PathFlag, SubdocDictUpsert, SubdocGet
from headwater.wire.vbucket import State
from tests.node.aware import Aware
from tests.node.membership.support import stats
from tests.node.replication.support import (
    Writer,
    content,
    failover_log,
    high_seqno,
    leave,
    lost,
    put,
    replicate,
    set_state,
    state,
    until,
)

PENDING, ACTIVE = b"\3", b"\1"


@pytest.fixture(scope="module")
def owner() -> Iterator[Node]:
    with node(vbuckets=64) as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[Node]:
    with node(vbuckets=64, vbucket_state="none") as made:
        yield made


def caught_up(one: Node, two: Node, vb: int) -> bool:
    return high_seqno(one, vb) == high_seqno(two, vb)


def test_a_replica_holds_what_its_producer_holds(owner: Node, other: Node) -> None:
    for number in range(300):
        put(owner, 0, f"k{number % 40}", b"%d" % number)
    replicate(other, owner.address, "0")
    until(lambda: caught_up(owner, other, 0), "the replica is there")
    assert content(other, 0) == content(owner, 0)
    assert failover_log(other, 0) == failover_log(owner, 0)
    leave(other, owner.address)


def test_an_insert_that_a_transaction_has_staged_is_whole_at_the_replica_that_takes_its_owners_place(
    owner: Node, other: Node
) -> None:
    """The insert waits in a user's attribute of a tombstone, of which a replica had the system attributes alone."""
    staged, path, text = DocumentFlag.MKDOC | DocumentFlag.ACCESS_DELETED | DocumentFlag.CREATE_AS_DELETED, b"txn", b"7"
    attribute = {"key": b"staged", "vbucket": 62, "path_bytes": len(path), "flags": int(PathFlag.XATTR)}
    with Aware(owner.port, Feature.XATTR, Feature.XERROR) as writer:
        change = SubdocDictUpsert(**attribute, value=path + text, doc_flags=int(staged))
        assert writer.request(change).status == Status.SUBDOC_SUCCESS_DELETED
    replicate(other, owner.address, "62")
    until(lambda: caught_up(owner, other, 62), "the replica is there")
    leave(other, owner.address)
    set_state(other, 62, State.ACTIVE)
    with Aware(other.port, Feature.XATTR, Feature.XERROR) as reader:
        found = reader.request(SubdocGet(**attribute, value=path, doc_flags=int(DocumentFlag.ACCESS_DELETED)))
        assert (found.status, found.value) == (Status.SUBDOC_SUCCESS_DELETED, text)


def test_what_the_producer_answered_stands_beside_the_vbucket_that_waits_and_in_the_log(owner: Node) -> None:
    with node(vbuckets=64, vbucket_state="none", log_level="info") as waiting:
        set_state(owner, 61, State.DEAD)
        replicate(waiting, owner.address, "60-61")
        source = f"{owner.address}/default"
        problem = f"{source}:vb_61_problem"
        until(lambda: problem in stats(waiting, "replication"), "it was asked")
        told = stats(waiting, "replication")
        assert told[problem] == "the producer answered NOT_MY_VBUCKET"
        assert f"{source}:vb_60_problem" not in told
        until(
            lambda: f"replication from {source}: vbucket 61: the producer answered NOT_MY_VBUCKET" in waiting.log,
            "it is told",
        )
        set_state(owner, 61, State.ACTIVE)
        until(lambda: problem not in stats(waiting, "replication"), "it follows")
        assert stats(waiting, "replication")[f"{source}:vb_61"] == "reading"
        leave(waiting, owner.address)


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CUT_AFTER, Fault.CORRUPT])
def test_a_link_that_breaks_again_and_again_loses_nothing(owner: Node, other: Node, fault: Fault) -> None:
    seen = 0

    def every_fifth_change(way: Way, frame: Frame) -> Fault:
        nonlocal seen
        seen += frame.opcode == Opcode.DCP_MUTATION
        return fault if frame.opcode == Opcode.DCP_MUTATION and seen % 5 == 0 and seen <= 50 else Fault.NONE

    with FaultProxy(owner.address, every_fifth_change) as proxy:
        vb = 1 + list(Fault).index(fault)
        for number in range(100):
            put(owner, vb, f"k{number % 30}", b"%d" % number)
        replicate(other, proxy.address, str(vb))
        until(lambda: caught_up(owner, other, vb), "the replica is there")
        assert content(other, vb) == content(owner, vb)
        assert proxy.connections > 2
        leave(other, proxy.address)


def test_an_owner_that_crashed_gives_up_its_branch_when_it_follows_the_old_one(owner: Node) -> None:
    """Both wrote seqno 2. The branch of the crash is empty, the one before it is not: only of that may be gone back."""
    with node(vbuckets=64, vbucket_state="none") as promoted:
        put(owner, 8, "both have this", b"1")
        replicate(promoted, owner.address, "8")
        until(lambda: caught_up(owner, promoted, 8), "the replica is there")
        leave(promoted, owner.address)
        set_state(promoted, 8, State.ACTIVE)
        put(promoted, 8, "of the new owner", b"2")
        put(owner, 8, "of the old owner", b"2")
        promoted.kill()
        promoted.start()
        set_state(promoted, 8, State.REPLICA)
        replicate(promoted, owner.address, "8")
        until(lambda: failover_log(promoted, 8) == failover_log(owner, 8), "it follows")
        until(lambda: caught_up(owner, promoted, 8), "the replica is there")
        assert content(promoted, 8) == content(owner, 8)


def test_a_chain_of_replicas_ends_equal(owner: Node, other: Node) -> None:
    with node(vbuckets=64, vbucket_state="none") as third, FaultProxy(owner.address) as proxy:
        replicate(other, proxy.address, "9")
        until(lambda: state(other, 9) is State.REPLICA, "the replica is made")
        replicate(third, other.address, "9")
        writer = Writer(owner, 9)
        writer.start()
        for _ in range(10):
            until(lambda: len(writer.acknowledged) > 20, "writes")
            proxy.cut()
        written = writer.finish()
        until(lambda: caught_up(owner, third, 9), "the end of the chain is there")
        assert content(third, 9) == content(other, 9) == content(owner, 9)
        assert {key: value for key, (*_, value) in content(third, 9).items()} == written
        leave(other, proxy.address)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["owner", "replica"])
def test_kill_nine_of_either_end_loses_nothing(victim: str) -> None:
    with node(vbuckets=4) as source, node(vbuckets=4, vbucket_state="none") as replica:
        replicate(replica, source.address, "0")
        writer = Writer(source, 0)
        writer.start()
        for _ in range(3):
            before = high_seqno(source, 0)
            until(lambda: high_seqno(replica, 0) > before + 5, "the replica follows")  # noqa: B023
            killed = source if victim == "owner" else replica
            killed.kill()
            killed.start()
            replicate(replica, source.address, "0")
        written = writer.finish()
        until(lambda: caught_up(source, replica, 0), "the replica is there")
        until(lambda: failover_log(replica, 0) == failover_log(source, 0), "it follows the newest branch")
        assert content(replica, 0) == content(source, 0)
        assert not lost(written, content(replica, 0))


@pytest.mark.slow
@pytest.mark.parametrize("point", ["log.before_sync=kill@6", "log.after_sync=kill@6"])
def test_a_backfill_of_many_megabytes_goes_on_after_a_crash_in_its_midst(point: str) -> None:
    with (
        node(vbuckets=2) as source,
        node(vbuckets=2, vbucket_state="none", environment={"HEADWATER_FAILPOINTS": point}) as replica,
    ):
        for number in range(60):
            put(source, 0, f"k{number}", bytes([number]) * 500_000)
        replicate(replica, source.address, "0")
        replica.wait()
        replica.environment = {}
        replica.start()
        replicate(replica, source.address, "0")
        until(lambda: caught_up(source, replica, 0), "the replica is there")
        assert content(replica, 0) == content(source, 0)
        replica.restart()  # every checksum is verified
        assert content(replica, 0) == content(source, 0)


def test_an_old_owner_that_comes_back_gives_up_what_the_new_one_never_had(owner: Node, other: Node) -> None:
    for number in range(20):
        put(owner, 10, f"k{number}", b"shared")
    replicate(other, owner.address, "10")
    until(lambda: caught_up(owner, other, 10), "the replica is there")
    leave(other, owner.address)
    until(lambda: put(owner, 10, "k3", b"lost") is None, "a write the replica misses")
    put(owner, 10, "lost", b"lost")
    set_state(other, 10, State.ACTIVE)
    put(other, 10, "new", b"new")
    set_state(owner, 10, State.REPLICA)
    replicate(owner, other.address, "10")
    until(lambda: failover_log(owner, 10) == failover_log(other, 10) and caught_up(owner, other, 10), "it is back")
    assert content(owner, 10) == content(other, 10)
    assert content(owner, 10)[b"k3"][3] == b"shared"
    leave(owner, other.address)


def is_answer(frame: Frame, opcode: int, number: int, seen: list[int]) -> bool:
    """The n-th response to an opcode that passes."""
    if frame.opcode != opcode or not frame.is_response:
        return False
    seen[0] += 1
    return seen[0] == number


STEPS = [
    ("the stream request", lambda frame, seen: frame.opcode == Opcode.DCP_STREAM_REQ and not frame.is_response),
    ("its answer", lambda frame, seen: is_answer(frame, Opcode.DCP_STREAM_REQ, 1, seen)),
    ("a marker", lambda frame, seen: frame.opcode == Opcode.DCP_SNAPSHOT_MARKER and not frame.is_response),
    ("a change", lambda frame, seen: frame.opcode == Opcode.DCP_MUTATION),
    ("a marker's answer", lambda frame, seen: is_answer(frame, Opcode.DCP_SNAPSHOT_MARKER, 1, seen)),
    ("pending", lambda frame, seen: frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and frame.extras == PENDING),
    ("pending's answer", lambda frame, seen: is_answer(frame, Opcode.DCP_SET_VBUCKET_STATE, 1, seen)),
    ("active", lambda frame, seen: frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and frame.extras == ACTIVE),
    ("active's answer", lambda frame, seen: is_answer(frame, Opcode.DCP_SET_VBUCKET_STATE, 2, seen)),
    ("the end", lambda frame, seen: frame.opcode == Opcode.DCP_STREAM_END),
]


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.CUT_AFTER], ids=["before", "after"])
@pytest.mark.parametrize("step", range(len(STEPS)), ids=[name.replace(" ", "_") for name, _ in STEPS])
def test_a_takeover_cut_at_any_step_has_one_owner_at_most_and_loses_no_write(
    owner: Node, other: Node, step: int, fault: Fault
) -> None:
    vb = 20 + 2 * step + (fault is Fault.CUT)
    seen = [0]

    def judge(way: Way, frame: Frame) -> Fault:
        if not proxy.refuses and STEPS[step][1](frame, seen):
            proxy.refuses = True
            return fault
        return Fault.NONE

    for number in range(20):
        put(owner, vb, f"k{number}", b"before")
    writer = Writer(owner, vb)
    writer.start()
    with FaultProxy(owner.address) as proxy:
        proxy.before = judge
        replicate(other, proxy.address, str(vb), takeover=True)
        until(lambda: proxy.refuses, f"the cut at {STEPS[step][0]}")
        leave(other, proxy.address)
        written = writer.finish()
        assert settle(owner, other, vb) == 1
        holder = owner if state(owner, vb) is State.ACTIVE else other
        assert not lost(written, content(holder, vb))
        assert writer.statuses <= {0, 7}
        put(holder, vb, "after", b"after")


def settle(owner: Node, other: Node, vb: int) -> int:
    """Decide as a mover does (failover 4, failures); how many owners there are then. Never two before either."""
    states = state(owner, vb), state(other, vb)
    assert states.count(State.ACTIVE) < 2, states
    if State.ACTIVE not in states:
        set_state(owner, vb, State.ACTIVE)
        set_state(other, vb, State.REPLICA)
    return (state(owner, vb), state(other, vb)).count(State.ACTIVE)


def test_a_takeover_under_load_moves_the_vbucket_and_keeps_its_history(owner: Node, other: Node) -> None:
    put(owner, 50, "k", b"v")
    log = failover_log(owner, 50)
    writer = Writer(owner, 50)
    writer.start()
    replicate(other, owner.address, "50", takeover=True)
    until(lambda: state(other, 50) is State.ACTIVE, "the takeover")
    written = writer.finish()
    assert state(owner, 50) is State.DEAD
    assert failover_log(other, 50) == log
    assert {key: value for key, (*_, value) in content(other, 50).items()} == written | {b"k": b"v"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("who", "point"),
    [
        ("owner", "takeover.pending_sent"),
        ("owner", "takeover.pending_acked"),
        ("owner", "takeover.dead"),
        ("owner", "takeover.active_sent"),
        ("owner", "takeover.active_acked"),
        ("other", "replica.marker"),
        ("other", "replica.state"),
        ("other", "replica.state=kill@2"),
    ],
)
def test_a_crash_at_any_step_of_a_takeover_has_one_owner_at_most_and_loses_no_write(who: str, point: str) -> None:
    armed = {"HEADWATER_FAILPOINTS": point if "=" in point else f"{point}=kill"}
    with (
        node(vbuckets=2, environment=armed if who == "owner" else None) as source,
        node(vbuckets=2, vbucket_state="none", environment=armed if who == "other" else None) as target,
    ):
        put(source, 0, "k", b"v")
        writer = Writer(source, 0)
        writer.start()
        with suppress(ConnectionError):  # the crash may come before the answer
            replicate(target, source.address, "0", takeover=True)
        victim = source if who == "owner" else target
        victim.wait()
        victim.environment = {}
        victim.start()
        leave(target, source.address)
        written = writer.finish()
        assert settle(source, target, 0) == 1
        holder = source if state(source, 0) is State.ACTIVE else target
        assert not lost(written, content(holder, 0))


@pytest.mark.slow
def test_a_takeover_that_takes_too_long_refuses_writes_until_it_is_over() -> None:
    with node(vbuckets=2, takeover_seconds=1) as source, node(vbuckets=2, vbucket_state="none") as target:
        put(source, 0, "k", b"v")
        writer = Writer(source, 0)
        writer.start()
        with FaultProxy(source.address) as proxy:
            # The answer to "pending" never comes, so the takeover can not go on.
            proxy.before = lambda way, frame: (
                Fault.DROP if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and frame.is_response else Fault.NONE
            )
            replicate(target, proxy.address, "0", takeover=True)
            until(lambda: 0x86 in writer.statuses, "writes are refused")
            # A busy machine may still have been catching up when the time was over; from now on that has an end.
            until(lambda: state(target, 0) is State.PENDING, "all that there is was sent")
            assert state(source, 0) is State.ACTIVE
            leave(target, proxy.address)
        writer.statuses.clear()
        until(lambda: 0 in writer.statuses, "writes are taken again")
        writer.finish()
