"""The link fails at every step of a takeover, while somebody writes; then the same move is asked for again. One owner,
one history, nothing lost (failover 4, with its table of failures)."""

from __future__ import annotations

import pytest

from headwater.cluster.proxied import Limits
from headwater.testing.proxy import Fault
from tests.battery import few_of

from .scripts import STEPS
from .support import AT_ONCE, PATIENT, Case


def test_a_takeover_without_faults_keeps_the_history_and_every_write(pair):
    with Case(pair) as case:
        case.break_at(0, lambda: Fault.NONE)
        moved = pair.move(case.vb, Limits())
        case.check()
        assert case.script.seen == set(STEPS)
        assert (moved.attempts, case.log()) == (1, case.before)


LINK_FAULTS = [
    *((step, Fault.CUT_AFTER if step == 8 else Fault.CUT) for step in STEPS),
    *((step, Fault.STALL) for step in STEPS),
    *((step, Fault.CORRUPT) for step in (1, 3, 7, 9, 11)),
]


SHORT = [(4, Fault.CUT), (8, Fault.CUT_AFTER), (11, Fault.CUT), (2, Fault.STALL), (10, Fault.STALL), (7, Fault.CORRUPT)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "fault"), few_of(LINK_FAULTS, *SHORT), ids=lambda value: getattr(value, "name", value)
)
def test_the_link_fails_at_a_step_and_the_move_is_asked_for_again(pair, step, fault):
    with Case(pair) as case:
        case.break_at(step, lambda: fault)
        failed = case.move_to(step, AT_ONCE)
        # Once the target has everything (10), the mover finds that out before it gives up, or has done all of it (12).
        assert failed or step >= 10
        case.heal()
        pair.move(case.vb, PATIENT)
        case.check()


@pytest.mark.slow
@pytest.mark.parametrize("step", few_of([1, 4, 6, 7, 8, 9, 10, 11, 12], 4, 8, 11))
def test_the_link_fails_at_a_step_and_the_mover_goes_on_by_itself(pair, step):
    with Case(pair) as case:
        case.break_at(step, lambda: Fault.CUT)
        pair.move(case.vb, PATIENT)
        assert step in case.script.seen
        case.check()
