"""The smallest part of a history that nobody can explain, for people to read.

Leaving a reading out asks for less, and so does taking the answer to a change away, which makes a "maybe" of it. What
is left when no more can be taken away has no order that explains it, and then the whole has none either.
"""

from __future__ import annotations

from dataclasses import replace

from harness.linearizability.judge import Verdict, counts, is_optional, judge_key, table
from harness.linearizability.model import Model
from harness.linearizability.record import UNANSWERED, History, Operation

__all__ = ["report", "smallest"]

POSITIONS_MAX = 20_000
STATES_TOLD = 6


def smallest(part: History, model: Model, verdict: Verdict) -> tuple[History, Operation]:
    """Return what is left of a key's history when no answer can be taken away, and the one that is not explained."""
    last = verdict.unexplained
    assert last is not None, "there is a violation"  # noqa: S101
    operations = [each for each in part.operations if counts(each) and each.called <= last.end]
    rest = replace(part, faults=tuple(each for each in part.faults if each.began <= last.end))
    size = len(operations)
    while size:
        operations = _weaker(operations, rest, model, size)
        size //= 2
    found = replace(rest, operations=tuple(operations))
    return found, judge_key(found, model, verdict.key).unexplained or last


def _weaker(operations: list[Operation], rest: History, model: Model, size: int) -> list[Operation]:
    """The operations without the answers that can be taken away, so many at a time; from the newest on."""
    for at in range(len(operations) - size, -size, -size):
        begin = max(at, 0)
        piece = operations[begin : at + size]
        if all(map(is_optional, piece)):
            continue
        less = [replace(each, result=UNANSWERED, answered=None) for each in piece if not each.is_read]
        tried = [*operations[:begin], *less, *operations[at + size :]]
        part = replace(rest, operations=tuple(tried))
        if judge_key(part, model, "", positions_max=POSITIONS_MAX).is_violation:
            operations = tried
    return operations


def report(part: History, model: Model, verdict: Verdict) -> str:
    """Tell a violation: the answers that contradict each other, "maybes" that have to do with them, and faults."""
    found, unexplained = smallest(part, model, verdict)
    certain = [each for each in found.operations if not is_optional(each)]
    values = {each.result.value for each in certain} | {each.argument.value for each in certain}
    maybes = [each for each in found.operations if is_optional(each)]
    near = [each for each in maybes if each.argument.value and each.argument.value in values]
    lines = [
        f"key {verdict.key}: no order of these explains all answers",
        table([*certain, *near, *found.faults], unexplained),
    ]
    if len(maybes) > len(near):
        lines.append(f"  (and whatever {len(maybes) - len(near)} other changes did)")
    before = judge_key(found, model, verdict.key).before
    lines += [f"  before it, possibly: {state}" for state in before[:STATES_TOLD]]
    return "\n".join(lines)
