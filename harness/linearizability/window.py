"""The smallest part of a history that no order explains, for people to read.

A history without a certain read demands less, and so does one without the answer to a change, which becomes a "maybe".
The part that remains when nothing more can be removed has no order that explains it, and so the whole history has none
either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

from harness.linearizability.judge import Verdict, counts, is_optional, judge_key, table
from harness.linearizability.model import EMPTY, Model, State
from harness.linearizability.record import UNANSWERED, History, Kind, Operation

__all__ = ["Smaller", "report", "smallest"]

POSITIONS_MAX = 20_000
"""The most positions that are examined for one try: an answer is kept unless these suffice to prove a violation without
it.
"""
ALL_POSITIONS_MAX = 600_000
STATES_TOLD, OPERATIONS_WANTED = 6, 15


@dataclass(slots=True)
class Smaller:
    """A violation that becomes smaller.

    Attributes:
        found: the remaining part of the history. start: the document before it. unexplained: its last answer.
    """

    found: History
    start: State
    unexplained: Operation
    model: Model
    positions: int = 0

    def weaken(self, size: int, *, reads: bool) -> None:
        """Remove answers that are not needed, to reads or to changes, so many at a time, the oldest first."""
        certain = [
            operation
            for operation in self.found.operations
            if not is_optional(operation) and operation.is_read is reads
        ]
        for at in range(0, len(certain), size):
            if self.positions > ALL_POSITIONS_MAX:
                return
            piece = {id(each) for each in certain[at : at + size]}
            tried = [_weaker(operation) if id(operation) in piece else operation for operation in self.found.operations]
            part = replace(self.found, operations=tuple(each for each in tried if each is not None))
            verdict = judge_key(part, self.model, "", positions_max=POSITIONS_MAX, start=self.start)
            self.positions += verdict.positions
            if verdict.unexplained is not None:
                self.found, self.unexplained = part, verdict.unexplained


def _weaker(operation: Operation) -> Operation | None:
    """Return the operation without its answer; None for a read, which then says nothing.

    A lock keeps its answer, since its client used the token.
    """
    if operation.kind is Kind.GET_AND_LOCK:
        return operation
    return None if operation.is_read else replace(operation, result=UNANSWERED, answered=None)


def smallest(part: History, model: Model, verdict: Verdict) -> Smaller:
    """Return the part of a key's history from which no answer can be removed, with the unexplained answer."""
    last = verdict.unexplained
    assert last is not None, "there is a violation"  # noqa: S101
    operations = [operation for operation in part.operations if counts(operation) and operation.called <= last.end]
    faults = tuple(fault for fault in part.faults if fault.began <= last.end)
    began, start = _begin(operations, verdict)
    operations = [operation for operation in operations if operation.called > began or is_optional(operation)]
    faults = tuple(fault for fault in faults if fault.end > began)
    search = Smaller(replace(part, operations=tuple(operations), faults=faults), start, last, model)
    for reads in (True, False):
        size = len(operations)
        while size:
            search.weaken(size, reads=reads)
            size //= 2
    return search


def _begin(operations: list[Operation], verdict: Verdict) -> tuple[float, State]:
    """Return the last quiet moment with enough operations after it, and the document at that moment."""
    for moment, state in reversed(verdict.quiet):
        behind = [operation for operation in operations if operation.called > moment and not is_optional(operation)]
        if len(behind) >= OPERATIONS_WANTED:
            return moment, state
    return -inf, EMPTY


def report(part: History, model: Model, verdict: Verdict) -> str:
    """Return a violation in words: the answers that contradict each other, related "maybes", and faults."""
    search = smallest(part, model, verdict)
    certain = [operation for operation in search.found.operations if not is_optional(operation)]
    values = {each.result.value for each in certain} | {each.argument.value for each in certain}
    maybes = [operation for operation in search.found.operations if is_optional(operation)]
    near = [maybe for maybe in maybes if maybe.argument.value and maybe.argument.value in values]
    lines = [
        f"key {verdict.key}: no order of these explains all answers; before them there was {_in_words(search.start)}",
        table([*certain, *near, *search.found.faults], search.unexplained),
    ]
    if len(maybes) > len(near):
        lines.append(f"  (and whatever {len(maybes) - len(near)} other changes did)")
    lines += [
        f"  just before that answer there may have been {_in_words(state)}" for state in verdict.before[:STATES_TOLD]
    ]
    return "\n".join(lines)


def _in_words(state: State) -> str:
    found = state.document
    what = "nothing" if found is None else f"{found.value!r}{f', cas {found.cas}' if found.cas else ''}"
    expiry = f", expiry {found.expiry}" if found is not None and found.expiry else ""
    lock = "" if state.lock is None else f", locked by {state.lock.token or 'nobody knows whom'}"
    lock += " until then" if state.lock is not None and state.lock.is_over else ""
    older = f", and {len(state.older)} older versions" if state.older else ""
    return f"{what}{expiry}{lock}{older}"
