"""The plan that a seed gives."""

from harness.world.plan import plan_of
from harness.world.steps import Fault


def test_the_same_seed_gives_the_same_plan_and_plans_differ() -> None:
    assert plan_of(7) == plan_of(7)
    plans = [plan_of(seed) for seed in range(40)]
    assert {plan.nodes for plan in plans} == {3, 4, 5}
    assert {plan.replicas for plan in plans} == {1, 2}
    assert {plan.operations for plan in plans} == {1000}
    assert all(step.at < plan.seconds + 1.1 for plan in plans for step in plan.steps)


def test_damage_meets_a_second_bucket_and_tenants_meet_duplicated_requests() -> None:
    plans = [plan_of(seed) for seed in range(60)]
    assert any(plan.has_flips and plan.has_orders for plan in plans)
    assert any(plan.has_tenants and any(step.fault is Fault.DUPLICATED for step in plan.steps) for plan in plans)
    assert not any(plan.has_flips and any(step.fault is Fault.ANEW for step in plan.steps) for plan in plans)
