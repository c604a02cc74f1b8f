"""The plan that a seed gives."""

from harness.world.plan import plan_of


def test_the_same_seed_gives_the_same_plan_and_plans_differ() -> None:
    assert plan_of(7) == plan_of(7)
    plans = [plan_of(seed) for seed in range(40)]
    assert {plan.nodes for plan in plans} == {3, 4, 5}
    assert {plan.replicas for plan in plans} == {1, 2}
    assert {plan.operations for plan in plans} == {1000}
    assert all(step.at < plan.seconds + 1.1 for plan in plans for step in plan.steps)
