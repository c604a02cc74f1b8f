"""Putting right what a hand-over left: what is looked at, what is set, and in which order."""

import asyncio
import json

import pytest

from headwater.client.routing import Address
from headwater.cluster.patience import CopyPosition
from headwater.cluster.settling import Settling
from headwater.errors import ConnectionLost, MoveError
from headwater.wire.vbucket import State

from .fakes import FakeNode
from .views import A, B, C, a_map

VB = 0
PROBLEM = ConnectionLost(str(B), "reset")


def settle(source, target, active_sent=None, *, alone=False):
    """Return the result of `settle`, and the states it set at both nodes, in order."""
    target.calls = source.calls

    async def work():
        settling = Settling(source, target)
        if active_sent is not None:
            settling.active_sent[VB] = active_sent
        return await (settling.settle_alone(VB, PROBLEM) if alone else settling.settle(VB))

    return asyncio.run(work()), source.calls


def test_before_a_move_the_target_is_made_a_replica():
    assert settle(FakeNode(A, "A"), FakeNode(B, ".")) == (False, [(B, "set_state", VB, State.REPLICA)])
    assert settle(FakeNode(A, "A"), FakeNode(B, "r")) == (False, [])


def test_a_target_that_follows_somebody_by_itself_lets_go_of_this_vbucket_first():
    target = FakeNode(B, "p r", follows={"node-c:11210/beer": [0, 1]})
    owned, calls = settle(FakeNode(A, "A A"), target)
    deeds = [(B, "stop_replicating", "node-c:11210/beer", [VB]), (B, "set_state", VB, State.REPLICA)]
    assert not owned and calls[-2:] == deeds
    assert target.follows == {"node-c:11210/beer": [1]}


def settled(target, **how):
    """The vbuckets in which a target goes on to follow the source, and what was done to it."""

    async def work():
        settling = Settling(FakeNode(A, "A"), target)
        assert not await settling.settle(VB, **how)
        return settling

    settling = asyncio.run(work())
    return settling, target.calls


def test_a_replica_that_follows_the_source_by_itself_does_so_until_it_is_let_go():
    source = str(FakeNode(A).endpoint)
    settling, calls = settled(FakeNode(B, "r", follows={source: [VB]}), follows=True)
    assert (settling.followed, calls) == ({VB}, [])
    asyncio.run(settling.let_go(VB))
    assert settling.followed == set() and calls == [(B, "stop_replicating", source, [VB])]
    assert settled(FakeNode(B, "r", follows={source: [VB]}))[1] == calls, "where no stream of its own is wanted"


@pytest.mark.parametrize("state", ["r", "p"])
def test_a_target_that_follows_another_node_or_takes_over_by_itself_or_is_no_replica_is_let_go_at_once(state):
    source = str(FakeNode(A).endpoint)
    for producer, takes_over in (("node-c:11210/default", ()), (source, {VB})):
        target = FakeNode(B, state, follows={producer: [VB]})
        target.takes_over = frozenset(takes_over)
        settling, calls = settled(target, follows=True)
        assert settling.followed == set() and (B, "stop_replicating", producer, [VB]) in calls
    waiting = FakeNode(B, state, follows={source: [VB]})
    waiting.streams = "waiting"
    assert settled(waiting, follows=True)[0].followed == set()
    settling, calls = settled(FakeNode(B, "p", follows={source: [VB]}), follows=True)
    assert settling.followed == set() and calls[-1] == (B, "set_state", VB, State.REPLICA)


def test_a_copy_between_owners_is_asked_behind_a_barrier():
    source, target = FakeNode(A, "d"), FakeNode(B, "p")
    settle(source, target)
    for node, state in ((source, State.DEAD), (target, State.PENDING)):
        assert ("copies", [VB]) in node.asked[node.asked.index(("set_state", VB, state)) :]
    calm = FakeNode(A, "A")
    settle(calm, FakeNode(B, "r"))
    assert not any(question[0] == "set_state" for question in calm.asked)


def test_a_hand_over_that_broke_off_at_its_end_is_finished():
    owned, calls = settle(FakeNode(A, "d"), FakeNode(B, "p"))
    assert owned and calls[-1] == (B, "set_state", VB, State.ACTIVE)


def test_what_the_target_lacks_sends_it_back_and_the_source_is_made_active_first():
    owned, calls = settle(FakeNode(A, "d", seqnos=[12]), FakeNode(B, "p", seqnos=[10]))
    assert not owned and calls[-2:] == [(A, "set_state", VB, State.ACTIVE), (B, "set_state", VB, State.REPLICA)]


def test_a_target_whose_disk_was_found_damaged_since_is_a_replica_again_and_the_source_the_owner():
    target = FakeNode(B, "p")
    target.damage = {VB: 1}
    owned, calls = settle(FakeNode(A, "d"), target)
    assert not owned and calls[-2:] == [(A, "set_state", VB, State.ACTIVE), (B, "set_state", VB, State.REPLICA)]


def test_a_damaged_source_gets_back_what_a_sound_target_has_not_received_to_the_end():
    """Its node is being replaced, and the connection breaks in the hand-over: 11 and 12 were acknowledged there."""
    source = FakeNode(A, "d", seqnos=[12])
    source.damage = {VB: 1}
    owned, calls = settle(source, FakeNode(B, "p", seqnos=[10]))
    assert not owned and calls[-2:] == [(A, "set_state", VB, State.ACTIVE), (B, "set_state", VB, State.REPLICA)]


def test_where_both_copies_are_damaged_none_becomes_active():
    source, target = FakeNode(A, "d"), FakeNode(B, "p")
    source.damage, target.damage = {VB: 1}, {VB: 2}
    with pytest.raises(MoveError, match="the target has damaged changes; the source has damaged changes") as refused:
        settle(source, target)
    assert not refused.value.retriable and (source.held, target.held) == ({VB: State.DEAD}, {VB: State.PENDING})


def test_a_target_that_is_gone_and_was_never_asked_gives_the_vbucket_back_but_can_not_go_on():
    source = FakeNode(A, "d")
    with pytest.raises(MoveError, match="never told to become active") as waits:
        settle(source, FakeNode(B, is_gone=True), active_sent=False)
    assert waits.value.retriable and "start the node" in waits.value.advice
    assert source.held == {VB: State.ACTIVE}


@pytest.mark.parametrize("active_sent", [True, None])
def test_a_target_that_is_gone_and_may_own_it_is_waited_for(active_sent):
    source = FakeNode(A, "d")
    with pytest.raises(MoveError, match="which may own it") as waits:
        settle(source, FakeNode(B, is_gone=True), active_sent)
    assert waits.value.retriable and source.held == {VB: State.DEAD}


def test_two_owners_are_for_the_operator():
    source, target = FakeNode(A, "A"), FakeNode(B, "A")
    with pytest.raises(MoveError, match="both nodes say") as refused:
        settle(source, target)
    assert not refused.value.retriable and "set the states by hand" in refused.value.advice and source.calls == []


def test_what_belongs_to_a_third_node_by_the_newest_map_is_not_touched():
    older, newer = (a_map(chain, rev=rev).to_json(None) for chain, rev in (("A", 3), ("C", 4)))
    source, target = FakeNode(A, "r", config=older), FakeNode(B, "r", config=newer)
    with pytest.raises(MoveError, match=f"it belongs to {C}"):
        settle(source, target)
    assert source.calls == []


def test_a_map_of_one_node_names_no_third_owner():
    alone = json.loads(a_map("A", servers=(A,)).to_json(None))
    source = FakeNode(Address("node-z", 1), "r", config=json.dumps(alone).encode())
    with pytest.raises(MoveError, match="the source does not own it"):
        settle(source, FakeNode(B, "r"))


def test_what_the_mover_knew_counts_once():
    async def work():
        source, target = FakeNode(A, "d"), FakeNode(B, is_gone=True)
        settling = Settling(source, target)
        settling.active_sent[VB] = False
        with pytest.raises(MoveError):
            await settling.settle(VB)
        return settling.active_sent

    assert asyncio.run(work()) == {}


def test_what_the_target_holds_is_told_as_far_as_it_can_be_asked():
    async def held(target):
        return await Settling(FakeNode(A, "A"), target).held(VB)

    assert asyncio.run(held(FakeNode(B, "r", seqnos=[7]))) == CopyPosition(0xAB, 7)
    assert asyncio.run(held(FakeNode(B, is_gone=True))) is None


def test_asking_what_the_target_holds_sets_nothing_for_it_may_just_be_becoming_active():
    target = FakeNode(B, "p", seqnos=[7])
    assert asyncio.run(Settling(FakeNode(A, "d"), target).held(VB)) == CopyPosition(0xAB, 7)
    assert target.calls == []


# --------------------------------------------------------------------------- without a connection


def test_without_a_connection_nothing_is_done_while_both_nodes_answer():
    for states in (("A", "r"), ("d", "p")):
        source, target = map(FakeNode, (A, B), states)
        with pytest.raises(ConnectionLost, match="reset"):
            settle(source, target, alone=True)
        assert source.held == {VB: State.ACTIVE if states[0] == "A" else State.DEAD}


def test_without_a_connection_a_target_that_owns_it_is_found():
    assert settle(FakeNode(A, "d"), FakeNode(B, "A"), alone=True)[0] is None


def test_a_source_that_died_after_it_was_told_is_not_needed():
    target = FakeNode(B, "p")
    settle(FakeNode(A, is_gone=True), target, active_sent=True, alone=True)
    assert target.held == {VB: State.ACTIVE}


def test_a_source_that_died_before_anybody_was_told_is_waited_for():
    target = FakeNode(B, "p")
    with pytest.raises(MoveError, match=r"the source, which may own it, can't be asked \(node-a:11210: connection"):
        settle(FakeNode(A, is_gone=True), target, active_sent=False, alone=True)
    assert target.held == {VB: State.PENDING}
