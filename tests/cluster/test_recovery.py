"""The failure table of failover 4, row by row; and that no situation at all can end with two owners."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster.answers import HAS_GAP, IS_DAMAGED
from headwater.cluster.recovery import Action, CopyState, Situation, decide
from headwater.wire.vbucket import State

LOG = ((0xA1, 10), (0xA0, 0))
OTHER_LOG = ((0xB1, 10), (0xA0, 0))


def seen(state, seqno=20, log=LOG, flaw=""):
    return CopyState(state, seqno, log, flaw)


def action(source, target, **more):
    return decide(Situation(source, target, **more)).action


@pytest.mark.parametrize("state", [None, State.REPLICA, State.PENDING, State.DEAD])
def test_lost_before_step_8_nothing_happened_and_the_move_begins_again(state):
    assert action(seen(State.ACTIVE), seen(state, 7)) is Action.BEGIN


def test_lost_after_step_8_the_target_is_made_active_if_it_has_everything():
    assert action(seen(State.DEAD), seen(State.PENDING)) is Action.FINISH


def test_lost_after_step_8_the_source_is_made_active_if_the_target_lacks_something():
    assert action(seen(State.DEAD, 20), seen(State.PENDING, 19)) is Action.GIVE_BACK


@pytest.mark.parametrize("flaw", [IS_DAMAGED, HAS_GAP])
def test_a_target_that_was_found_flawed_since_gives_the_vbucket_back(flaw):
    now = Situation(seen(State.DEAD), seen(State.PENDING, flaw=flaw))
    assert decide(now).action is Action.GIVE_BACK and f"the target {flaw}" in decide(now).reason


@pytest.mark.parametrize(("seqno", "flaw"), [(20, IS_DAMAGED), (19, IS_DAMAGED), (19, HAS_GAP)])
def test_of_a_damaged_source_and_a_target_with_a_flaw_none_is_made_active(seqno, flaw):
    now = Situation(seen(State.DEAD, flaw=IS_DAMAGED), seen(State.PENDING, seqno, flaw=flaw))
    assert decide(now).action is Action.REFUSE and f"the source {IS_DAMAGED}" in decide(now).reason


def test_a_damaged_source_gets_back_what_it_owned_where_the_target_lacks_what_it_alone_has():
    assert action(seen(State.DEAD, flaw=IS_DAMAGED), seen(State.PENDING, 19)) is Action.GIVE_BACK
    assert action(seen(State.DEAD, flaw=HAS_GAP), seen(State.PENDING, 19)) is Action.REFUSE


def test_a_damaged_source_does_not_keep_a_whole_target_from_owning_it():
    assert action(seen(State.DEAD, flaw=IS_DAMAGED), seen(State.PENDING)) is Action.FINISH


def test_a_flawed_copy_waits_for_the_other_node_while_that_does_not_answer():
    assert action(None, seen(State.PENDING, flaw=IS_DAMAGED), active_sent=True) is Action.WAIT
    assert action(seen(State.DEAD, flaw=IS_DAMAGED), None, active_sent=False) is Action.WAIT


def test_lost_after_step_11_all_is_done():
    for state in (State.DEAD, State.REPLICA, None):
        assert action(seen(state), seen(State.ACTIVE)) is Action.DONE
    assert action(None, seen(State.ACTIVE)) is Action.DONE


def test_a_target_that_crashed_and_was_never_told_gives_the_vbucket_back():
    assert action(seen(State.DEAD), None, active_sent=False) is Action.GIVE_BACK


@pytest.mark.parametrize("active_sent", [True, None])
def test_a_target_that_does_not_answer_and_may_be_active_is_waited_for(active_sent):
    assert action(seen(State.DEAD), None, active_sent=active_sent) is Action.WAIT


def test_a_source_that_crashed_after_step_10_is_not_needed_any_more():
    assert action(None, seen(State.PENDING), active_sent=True) is Action.FINISH


@pytest.mark.parametrize("active_sent", [False, None])
def test_a_source_that_does_not_answer_and_may_be_active_is_waited_for(active_sent):
    assert action(None, seen(State.PENDING), active_sent=active_sent) is Action.WAIT


def test_nobody_answers():
    assert action(None, None) is Action.WAIT


def test_two_owners_are_not_touched():
    assert action(seen(State.ACTIVE), seen(State.ACTIVE)) is Action.REFUSE


def test_a_vbucket_that_the_source_does_not_own_is_not_touched():
    for source, target in itertools.product((None, State.REPLICA, State.PENDING), (None, State.REPLICA, State.PENDING)):
        assert action(seen(source), seen(target)) is Action.REFUSE


def test_a_hand_over_from_elsewhere_is_not_finished():
    assert action(seen(State.DEAD, 20), seen(State.PENDING, 21)) is Action.REFUSE
    assert action(seen(State.DEAD), seen(State.PENDING, log=OTHER_LOG)) is Action.REFUSE
    assert action(seen(State.DEAD), seen(State.PENDING), owner="127.0.0.1:3") is Action.REFUSE


STATES = st.sampled_from([None, *State])
COPIES = st.none() | st.builds(
    CopyState, STATES, st.integers(0, 3), st.sampled_from([LOG, OTHER_LOG]), st.sampled_from(["", IS_DAMAGED, HAS_GAP])
)


@given(COPIES, COPIES, st.sampled_from([None, True, False]))
def test_nobody_is_made_active_unless_the_other_is_known_not_to_be(source, target, active_sent):
    decided = action(source, target, active_sent=active_sent)
    if decided is Action.FINISH:
        assert target.state is State.PENDING and not target.flaw
        assert (source is not None and source.state is State.DEAD) or (source is None and active_sent)
    if decided is Action.GIVE_BACK:
        assert source.state is State.DEAD and (not source.flaw or not target.flaw)
        assert (target is not None and target.state is State.PENDING) or (target is None and active_sent is False)
