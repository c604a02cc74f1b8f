"""The faults of a run: which come, and when."""

from random import Random

from harness.world.plan import WorldPlan, plan_of
from harness.world.steps import (
    Fault,
    Step,
    anew_of,
    duplicates_of,
    flips_of,
    histories_of,
    owners_of,
    rights_of,
    steps_of,
    stops_of,
)

MAKERS = (steps_of, duplicates_of, flips_of, rights_of, anew_of, owners_of, histories_of)


def test_a_seed_decides_the_steps_and_they_come_in_the_order_of_time() -> None:
    one, same, other = (steps_of(Random(seed), 3, 30.0) for seed in (1, 1, 2))
    assert one == same != other
    assert list(one) == sorted(one, key=lambda step: step.at)
    assert all(0 <= step.node < 3 and step.lasts >= 0 for step in one)


def test_every_fault_comes_in_some_run() -> None:
    chosen = [step for seed in range(60) for step in _all_of(seed)]
    assert {step.fault for step in chosen} == set(Fault)


def test_processes_are_stopped_in_half_of_the_worlds_soon_after_they_began() -> None:
    plans = [[step for step in plan_of(seed).steps if step.fault is Fault.STOP] for seed in range(40)]
    assert 10 < sum(map(bool, plans)) < 30
    begun = Step(1.0, Fault.ADD, 0, 0, 0.0, 0.5), Step(2.0, Fault.POWER, 0, 0, 0.0, 0.5)
    stops = [step for seed in range(40) for step in stops_of(Random(seed), begun, 3, 30.0)]
    assert stops and all(1.0 <= step.at <= 6.0 and 0 <= step.lasts <= 30.0 for step in stops)


def test_what_comes_to_some_worlds_alone_changes_no_other_step_of_them() -> None:
    plans = [plan_of(seed) for seed in range(20)]
    having = [plan for plan in plans if any(step.fault is Fault.FLIP for step in plan.steps)]
    assert 0 < len(having) < len(plans)
    for plan in plans:
        alone = steps_of(_random_before_steps(plan), plan.nodes, plan.seconds)
        # A history brings purges of its own, which come by chance to all worlds as well.
        common = [step for step in plan.steps if step.fault is not Fault.PURGE or step in alone]
        assert tuple(step for step in common if step.fault.value[1]) == alone
        assert plan.has_users == any(step.fault is Fault.RIGHTS for step in plan.steps)
        is_made_anew = any(step.fault is Fault.ANEW for step in plan.steps)
        assert is_made_anew == (plan.has_orders and not plan.has_flips)
    assert 0 < sum(plan.has_orders for plan in plans) < len(plans)
    assert 0 < sum(plan.has_users for plan in plans) < len(plans)


def _all_of(seed: int) -> list[Step]:
    chosen = [step for maker in MAKERS for step in maker(Random(seed), 3, 30.0)]
    return [*chosen, *stops_of(Random(seed), chosen, 3, 30.0)]


def _random_before_steps(plan: WorldPlan) -> Random:
    random = Random(plan.seed)
    random.choice([3, 3, 3, 4, 5])
    random.choice([0.0, 0.0, 5.0])
    return random


def test_a_step_is_told_in_a_line() -> None:
    assert str(Step(1.5, Fault.ONE_WAY, 2, 1, 0.25, 0.5)) == "  1.500 one_way n2/1 0.250s 0.50"
