"""The judge of a reader's time in a simulated world."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.simulation.histories import Broken, Change
from harness.world.completeness import Times
from harness.world.plan import plan_of, with_times
from harness.world.run import run
from harness.world.steps import Fault

EARLY, LATE = Change(b"k", b"v", 5, 1, 0, 0), Change(b"k", b"w", 9, 2, 0, 0)


def test_a_change_that_is_older_than_what_was_said_breaks_the_promise() -> None:
    times = Times()
    times.says(7)
    times.wrote("n1", 0, LATE)
    with pytest.raises(Broken, match="before what"):
        times.wrote("n1", 0, EARLY)


def test_a_change_that_was_made_before_may_be_found_again() -> None:
    times = Times()
    times.wrote("n1", 0, EARLY)
    times.says(7)
    times.wrote("n2", 0, EARLY)


def test_a_time_that_goes_back_breaks_the_promise() -> None:
    times = Times()
    times.says(7)
    with pytest.raises(Broken, match="complete until 6"):
        times.says(6)


def test_clocks_jump_in_each_world_with_a_reader_of_the_time() -> None:
    plan = with_times(plan_of(3, 150))
    assert plan.has_times and plan.clock_error_seconds and plan == with_times(plan_of(3, 150))
    assert sum(step.fault is Fault.CLOCK_JUMPS for step in plan.steps) >= 5


def test_a_reader_says_its_time_in_a_world_without_faults_but_clocks() -> None:
    plan = with_times(plan_of(3, 60))
    calm = replace(plan, steps=tuple(step for step in plan.steps if step.fault is Fault.CLOCK_JUMPS))
    outcome = run(calm)
    assert outcome.broken == "" and outcome.counts["times said"] > 3
