"""The faults of a run: which come, and when."""

from random import Random

from harness.world.steps import Fault, Step, steps_of


def test_a_seed_decides_the_steps_and_they_come_in_the_order_of_time() -> None:
    one, same, other = (steps_of(Random(seed), 3, 30.0) for seed in (1, 1, 2))
    assert one == same != other
    assert list(one) == sorted(one, key=lambda step: step.at)
    assert all(0 <= step.node < 3 and step.lasts >= 0 for step in one)


def test_every_fault_comes_in_some_run() -> None:
    found = {step.fault for seed in range(60) for step in steps_of(Random(seed), 3, 30.0)}
    assert found == set(Fault)


def test_a_step_is_told_in_a_line() -> None:
    assert str(Step(1.5, Fault.ONE_WAY, 2, 1, 0.25, 0.5)) == "  1.500 one_way n2/1 0.250s 0.50"
