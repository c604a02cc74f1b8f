"""Shrinks a failed run: finds the faults that it needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from harness.world.plan import WorldPlan, plan_of, with_times
from harness.world.run import WorldOutcome, run

TRIES_MAX = 60


def without(plan: WorldPlan, left_out: Collection[int]) -> WorldPlan:
    """Return the plan without the steps with these numbers, from 0."""
    return replace(plan, steps=tuple(step for at, step in enumerate(plan.steps) if at not in left_out))


def run_seed(seed: int, operations: int, left_out: Collection[int] = (), *, times: bool = False) -> WorldOutcome:
    """Run one seed without some of its steps, perhaps with a reader of the time; return the outcome."""
    plan = plan_of(seed, operations)
    return run(without(with_times(plan) if times else plan, left_out))


def shrink(
    outcome: WorldOutcome, tries: int = TRIES_MAX, again: Callable[[WorldPlan], WorldOutcome] = run
) -> tuple[list[int], WorldOutcome]:
    """Leave steps out as long as the same promise is broken: halves first, then ever smaller pieces.

    A step that is left out changes all later random numbers, so the smallest run need not be found.

    Returns: the numbers of the steps that are left out, and the outcome without them.
    """
    plan, promise = outcome.plan, promise_of(outcome)
    gone: list[int] = []
    size = max(1, len(plan.steps) // 2)
    while tries > 0:
        kept = [at for at in range(len(plan.steps)) if at not in gone]
        is_less = False
        for begin in range(0, len(kept), size):
            if tries <= 0:
                break
            tries -= 1
            tried = sorted([*gone, *kept[begin : begin + size]])
            attempt = again(without(plan, tried))
            if promise_of(attempt) == promise:
                gone, outcome, is_less = tried, attempt, True
                break
        if not is_less:
            if size == 1:
                break
            size //= 2
    return gone, outcome


def promise_of(outcome: WorldOutcome) -> str:
    """Return the name of the broken promise; "" if none was broken."""
    return outcome.broken.partition(":")[0]
