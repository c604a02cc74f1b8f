"""A node or the mover is killed at every step of a takeover, while somebody writes; then the same move is asked for
again. One owner, one history, nothing lost (failover 4, with its table of failures)."""

from __future__ import annotations

import pytest

from headwater.cluster.proxied import Limits
from headwater.wire.vbucket import State
from tests.battery import few_of

from .nodes import command
from .support import AT_ONCE, PATIENT, QUICK, SECONDS, Case

GIVING_BACK_SECONDS = 6.0


KILLED = [(name, step) for name in "ab" for step in (1, 4, 6, 7, 8, 9, 10, 11, 12)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "step"),
    few_of(KILLED, ("a", 4), ("a", 8), ("b", 7), ("b", 10), ("a", 12)),
    ids=lambda value: {"a": "source", "b": "target"}.get(value, value),
)
def test_a_node_is_killed_at_a_step_and_comes_back(pair, name, step):
    with Case(pair) as case:
        killed = case.kill_at(step, name)
        case.move_to(step, AT_ONCE)
        assert killed.wait(SECONDS)
        case.heal()
        pair.nodes[name].restart()
        pair.move(case.vb, PATIENT)
        case.check()


@pytest.mark.slow
@pytest.mark.parametrize("step", few_of([7, 8, 9], 8))
def test_a_target_that_dies_before_it_could_be_active_gives_the_vbucket_back_at_once(pair, step):
    with Case(pair) as case:
        killed = case.kill_at(step, "b")
        briefly = Limits(connect_seconds=10.0, liveness=QUICK, patience_seconds=GIVING_BACK_SECONDS)
        assert case.move_to(step, briefly)
        assert killed.wait(SECONDS)
        assert pair.state("a", case.vb) is State.ACTIVE
        assert case.nomad.wait(5, node="a"), "the old owner takes no writes"
        case.heal()
        pair.nodes["b"].restart()
        pair.move(case.vb, PATIENT)
        case.check()


TYPED_AGAIN = ("move.taking_over", "move.pending_answered", "move.active_answered")
MOVER_STEPS = [
    "move.connected",
    "move.replica_made",
    "move.copying",
    "move.persisted",
    "move.closed",
    "move.taking_over",
    "move.pending_sent",
    "move.pending_answered",
    "move.active_sent",
    "move.active_answered",
    "move.owned",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", few_of(MOVER_STEPS, "move.copying", "move.taking_over", "move.pending_sent", "move.active_answered")
)
def test_the_mover_is_killed_at_a_step_and_the_same_is_typed_again(pair, place):
    with Case(pair) as case:
        ends = [str(endpoint.address) for endpoint in pair.endpoints()]
        typed = ["move", "--from", ends[0], "--to", ends[1], "--takeover", "--vbuckets", str(case.vb)]
        assert command(*typed, failpoints=f"{place}=kill")[0] == -9
        if place in TYPED_AGAIN:
            status, _, told = command(*typed)
            # A part of a bucket that is taken over leaves two owners: the advice is all that may be told.
            assert status == 0 and (told == "" or "no cluster map leads clients to both nodes" in told)
            assert told.count("\n") <= 1
        else:
            pair.move(case.vb, PATIENT)  # the same, without a new process
        case.check()
