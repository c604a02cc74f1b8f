"""Statistics of the plans of many worlds: how often each fault occurs, and how often two are in force at once.

    print(told(map(plan_of, range(200))))

A plan decides all of that, so nothing is run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import combinations, combinations_with_replacement

from harness.world.plan import WorldPlan
from harness.world.steps import JOBS, WORKS, Fault, Step

Pair = frozenset[Fault]
WORK_SECONDS = 1.0
"""The approximate duration of an operator's work, and of the effects of a fault that is over at once (a reset, a
death).
"""
LASTS = Fault.__members__.values() - WORKS.keys() - JOBS


def ends(step: Step) -> float:
    """Return the time when a fault is over, in seconds after the clients began. For an operator's work WORK_SECONDS
    stand in place of `lasts`, which is the time until the operator is killed.
    """
    return step.at + (max(step.lasts, WORK_SECONDS) if step.fault in LASTS else WORK_SECONDS)


def met(plan: WorldPlan) -> Iterator[Pair]:
    """Yield each pair of faults of a plan that are in force at once; a fault that meets itself is a pair of one."""
    for one, other in combinations(plan.steps, 2):  # in the order in which they begin
        if other.at <= ends(one):
            yield frozenset((one.fault, other.fault))


def told(plans: Iterable[WorldPlan]) -> str:
    """Return a table of all faults: how often each occurs, in how many worlds, and the two that it meets least; then
    the pairs that never meet.
    """
    steps: Counter[Fault] = Counter()
    worlds: Counter[Fault] = Counter()
    pairs: Counter[Pair] = Counter()
    for plan in plans:
        steps.update(step.fault for step in plan.steps)
        worlds.update({step.fault for step in plan.steps})
        pairs.update(met(plan))
    lines = [f"{'fault':16} {'times':>7} {'worlds':>7}   meets least"]
    for fault in Fault:
        fewest = sorted(Fault, key=lambda other, fault=fault: pairs[frozenset((fault, other))])[:2]  # type: ignore[misc]
        least = ", ".join(f"{other.name.lower()} {pairs[frozenset((fault, other))]}" for other in fewest)
        lines.append(f"{fault.name.lower():16} {steps[fault]:7,} {worlds[fault]:7}   {least}")
    every = [frozenset(pair) for pair in combinations_with_replacement(Fault, 2)]
    never = [" and ".join(sorted(each.name.lower() for each in pair)) for pair in every if not pairs[pair]]
    lines.append(f"{len(every)} pairs, {len(never)} that never meet" + "".join(f"\n  {each}" for each in never))
    return "\n".join(lines)
