"""Faults and their pairs, counted over plans."""

from __future__ import annotations

from dataclasses import replace

from harness.world.meetings import met, told
from harness.world.plan import WorldPlan, plan_of
from harness.world.steps import Fault, Step

EXCLUSIVE = ["anew and flip", "flip and rights"]


def plan_with(*steps: Step) -> WorldPlan:
    return replace(plan_of(1, 20), steps=steps)


def test_faults_meet_while_both_are_in_force() -> None:
    power, slow = Step(1.0, Fault.POWER, 0, 0, 0.1, 0.5), Step(1.9, Fault.SLOW_DISK, 1, 0, 5.0, 0.5)
    killed_later = Step(6.0, Fault.ADD, 1, 0, 90.0, 0.5)
    late = Step(7.5, Fault.POWER, 0, 0, 0.1, 0.5)
    found = list(met(plan_with(power, slow, killed_later, late)))
    assert found == [frozenset((Fault.POWER, Fault.SLOW_DISK)), frozenset((Fault.SLOW_DISK, Fault.ADD))]


def test_a_fault_that_meets_another_of_its_kind_is_a_pair_too() -> None:
    assert list(met(plan_with(*[Step(1.0, Fault.KILL, node, 0, 1.0, 0.5) for node in (0, 1)]))) == [{Fault.KILL}]


def test_the_table_counts_each_fault_and_names_the_pairs_that_never_meet() -> None:
    lines = told([plan_with(Step(1.0, Fault.KILL, 0, 0, 1.0, 0.5))]).splitlines()
    assert lines[1].split()[:3] == ["kill", "1", "1"]
    pairs = len(Fault) * (len(Fault) + 1) // 2
    assert lines[len(Fault) + 1] == f"{pairs} pairs, {pairs} that never meet" and "  kill and power" in lines


def test_in_200_worlds_each_fault_meets_each_other_but_for_those_that_exclude_each_other() -> None:
    never = told(map(plan_of, range(200))).partition("that never meet\n")[2].splitlines()
    assert sorted(each.strip() for each in never) == EXCLUSIVE
