"""Making a failing run smaller."""

from harness.world.plan import WorldPlan
from harness.world.run import WorldOutcome
from harness.world.shrinking import promise_of, run_seed, shrink, without
from harness.world.steps import Fault, Step


def plan(*amounts: float) -> WorldPlan:
    steps = tuple(Step(float(at), Fault.KILL, 0, 0, 1.0, amount) for at, amount in enumerate(amounts))
    return WorldPlan(1, 3, 2, 1, 3, 4, 10, 1.0, 0.0, steps)


def test_steps_are_left_out_by_their_numbers() -> None:
    assert [step.amount for step in without(plan(0.1, 0.2, 0.3), [0, 2]).steps] == [0.2]


def test_what_a_failure_does_not_need_is_left_out() -> None:
    tried: list[int] = []

    def again(smaller: WorldPlan) -> WorldOutcome:
        tried.append(len(smaller.steps))
        amounts = {step.amount for step in smaller.steps}
        return WorldOutcome(smaller, "kept: lost" if {0.3, 0.7} <= amounts else "")

    begun = WorldOutcome(plan(0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), "kept: lost")
    gone, less = shrink(begun, again=again)
    assert gone == [0, 1, 3, 4, 5, 7]
    assert [step.amount for step in less.plan.steps] == [0.3, 0.7]
    assert len(tried) <= 60


def test_another_promise_that_breaks_is_no_smaller_failure() -> None:
    begun = WorldOutcome(plan(0.1, 0.2), "kept: lost")
    gone, less = shrink(begun, again=lambda smaller: WorldOutcome(smaller, "equal: differ"))
    assert (gone, less) == ([], begun)
    assert promise_of(WorldOutcome(plan())) == ""


def test_a_seed_is_run_without_some_of_its_steps() -> None:
    assert run_seed(3, 20, range(1000)).plan.steps == ()
