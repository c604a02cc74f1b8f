"""Histories by hand, in one line an operation, and random ones: as one node would have answered, and then changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from harness.linearizability.judge import counts, is_optional
from harness.linearizability.model import EMPTY, Model, State
from harness.linearizability.record import (
    Argument,
    Fault,
    FaultKind,
    History,
    Kind,
    Level,
    Operation,
    Outcome,
    Result,
)

KEY = "k"
NOW = 1_800_000_000.0


def did(
    called: float,
    answered: float | None,
    kind: Kind,
    value: str = "",
    *,
    shows: str | None = None,
    outcome: Outcome = Outcome.DONE,
    cas: int = 0,
    shows_cas: int = 0,
    is_locked: bool = False,
    client: int = 1,
    key: str = KEY,
    **argument: int | Level | None,
) -> Operation:
    """An operation on the only key; times are seconds from the beginning."""
    end = None if answered is None else NOW + answered
    given = Argument(value, cas, **argument)  # type: ignore[arg-type]
    result = Result(Outcome.MAYBE if answered is None else outcome, shows, shows_cas, is_locked)
    return Operation(client, key, kind, given, result, NOW + called, end)


def failover(began: float, ended: float) -> Fault:
    """A failover within these seconds."""
    return Fault(FaultKind.FAILOVER, NOW + began, NOW + ended)


def restart(began: float, ended: float) -> Fault:
    """A restart within these seconds."""
    return Fault(FaultKind.RESTART, NOW + began, NOW + ended)


def history(*events: Operation | Fault) -> History:
    """A history of the only key."""
    operations = [event for event in events if isinstance(event, Operation)]
    return History(tuple(operations), tuple(event for event in events if isinstance(event, Fault)))


def has_an_order(part: History, model: Model) -> bool:
    """Try every order of every choice of what took effect, one after the other."""
    events = [*filter(counts, part.operations), *part.faults]

    def begin(event: Operation | Fault) -> float:
        return event.began if isinstance(event, Fault) else event.called

    def orders(state: State, left: Sequence[Operation | Fault]) -> bool:
        if all(map(is_optional, left)):
            return True
        for at, event in enumerate(left):
            others = [*left[:at], *left[at + 1 :]]
            # Whoever must be over before this one begins: what may have no effect is left out by that.
            late = [other for other in others if other.end < begin(event)]
            if not all(map(is_optional, late)):
                continue
            rest = [other for other in others if other not in late]
            if any(orders(after, rest) for after in model.steps(state, event)):
                return True
        return False

    return orders(EMPTY, events)


# --- random ones ------------------------------------------------------------------------------------------------------

_KINDS = [Kind.GET, Kind.GET, Kind.GET, Kind.SET, Kind.SET, *Kind]


@st.composite
def arguments(draw: st.DrawFn, kind: Kind, known: Sequence[int], number: int) -> Argument:
    """A random request: values are new, a CAS is one that was told, or none."""
    is_counter = kind in {Kind.INCREMENT, Kind.DECREMENT}
    value = draw(st.sampled_from([f"v{number}", str(number)]))
    needs_cas = kind is Kind.UNLOCK
    may_have_cas = kind in {Kind.SET, Kind.REPLACE, Kind.DELETE, Kind.APPEND}
    choices = [*known, 5] if needs_cas else [0, 0, *known] if may_have_cas else [0]
    takes_level = kind not in {Kind.GET, Kind.GET_AND_LOCK, Kind.UNLOCK, Kind.TOUCH, Kind.GET_AND_TOUCH}
    takes_expiry = kind in {Kind.SET, Kind.ADD, Kind.TOUCH, Kind.GET_AND_TOUCH}
    return Argument(
        value=value if kind in {Kind.SET, Kind.ADD, Kind.REPLACE, Kind.APPEND} else "",
        cas=draw(st.sampled_from(choices)),
        expiry=draw(st.sampled_from([0, 0, 0, int(NOW) + number + 3])) if takes_expiry else 0,
        delta=draw(st.integers(0, 3)) if is_counter else 0,
        initial=draw(st.none() | st.integers(0, 9)) if is_counter else None,
        seconds=draw(st.integers(1, 4)) if kind is Kind.GET_AND_LOCK else 0,
        level=draw(st.sampled_from([Level.NONE, Level.MAJORITY])) if takes_level else Level.NONE,
    )


class Node:
    """One node that does one thing after the other, and forgets plain writes by failovers. It is not the model."""

    def __init__(self) -> None:
        self.versions: list[tuple[str, int, int] | None] = [None]
        self.lock: tuple[int, int] | None = None
        self.durable = 0
        self.cas = 100

    def look(self, now: int) -> tuple[str, int, int] | None:
        """The document at a time."""
        found = self.versions[-1]
        if found is not None and found[2] and found[2] <= now:
            self.versions.append(None)
            self.lock = None
        if self.lock is not None and self.lock[1] <= now:
            self.lock = None
        return self.versions[-1]

    def fail_over(self, back: int) -> None:
        """Go back some versions, as far as may be."""
        del self.versions[max(self.durable + 1, len(self.versions) - back) :]
        self.lock = None

    def do(self, kind: Kind, argument: Argument, now: int) -> Result:
        """Answer a request."""
        found = self.look(now)
        cas = argument.cas
        if kind is Kind.GET:
            if found is None:
                return Result(Outcome.MISSING)
            return Result(Outcome.DONE, found[0], 0 if self.lock else found[1], self.lock is not None)
        if kind is Kind.UNLOCK:
            if found is None:
                return Result(Outcome.MISSING)
            if self.lock is None:
                return Result(Outcome.NOT_LOCKED)
            if self.lock[0] != cas:
                return Result(Outcome.LOCKED)
            self.lock = None
            return Result(Outcome.DONE)
        if kind is Kind.GET_AND_LOCK and found is None:
            return Result(Outcome.MISSING)
        if self.lock is not None:
            if cas != self.lock[0]:
                return Result(Outcome.LOCKED)
            cas = 0
        if kind is Kind.GET_AND_LOCK:
            assert found is not None
            self.cas += 1
            self.lock = (self.cas, now + argument.seconds)
            return Result(Outcome.DONE, found[0], self.cas)
        return self._change(kind, argument, found, cas)

    def _change(self, kind: Kind, argument: Argument, found: tuple[str, int, int] | None, cas: int) -> Result:
        is_counter = kind in {Kind.INCREMENT, Kind.DECREMENT}
        value, expiry = argument.value, argument.expiry
        shown = None
        if found is None:
            if kind is Kind.APPEND:
                return Result(Outcome.NOT_STORED)
            if kind in {Kind.REPLACE, Kind.DELETE, Kind.TOUCH, Kind.GET_AND_TOUCH} or cas:
                return Result(Outcome.MISSING)
            if is_counter and argument.initial is None:
                return Result(Outcome.MISSING)
            if is_counter:
                value = shown = str(argument.initial)
        else:
            if kind is Kind.ADD or (cas and cas != found[1]):
                return Result(Outcome.EXISTS)
            if is_counter:
                if not found[0].isdigit():
                    return Result(Outcome.NOT_A_NUMBER)
                number = int(found[0])
                counted = number + argument.delta if kind is Kind.INCREMENT else max(0, number - argument.delta)
                value, shown, expiry = str(counted), str(counted), found[2]
            elif kind in {Kind.TOUCH, Kind.GET_AND_TOUCH}:
                shown = found[0] if kind is Kind.GET_AND_TOUCH else None
                if found[2] == expiry:
                    return Result(Outcome.DONE, shown, found[1])
                value = found[0]
            elif kind is Kind.APPEND:
                value, expiry = found[0] + value, found[2]
        self.cas += 1
        self.versions.append(None if kind is Kind.DELETE else (value, self.cas, expiry))
        self.lock = None
        if argument.level:
            self.durable = len(self.versions) - 1
        return Result(Outcome.DONE, shown, self.cas)


@st.composite
def sequential(draw: st.DrawFn, *, length: int = 12, faults: bool = True, mixed: bool = False) -> History:
    """The answers of one node that did one thing after the other; answers came late, or not at all.

    mixed: some answers are exchanged, so that mostly nothing explains them any more.
    """
    node, known = Node(), [7]
    events: list[Operation | Fault] = []
    for number in range(draw(st.integers(1, length))):
        at = NOW + number + 0.5
        if faults and draw(st.integers(0, 9)) == 0:
            node.fail_over(draw(st.integers(0, 3)))
            events.append(Fault(FaultKind.FAILOVER, at - draw(_SPREAD), at + draw(_SPREAD)))
            continue
        kind = draw(st.sampled_from(_KINDS))
        argument = draw(arguments(kind, tuple(known[-3:]), number))
        called, answered = at - draw(_SPREAD), at + draw(_SPREAD)
        fate = draw(st.integers(0, 11))  # of its answer
        if fate == 0:  # it never came to the node
            events.append(Operation(number % 4, KEY, kind, argument, Result(Outcome.MAYBE), called, None))
            continue
        result = node.do(kind, argument, int(at))
        if fate == 1:
            events.append(Operation(number % 4, KEY, kind, argument, Result(Outcome.MAYBE), called, None))
            continue
        known += [result.cas] if result.cas else []
        if mixed and draw(st.integers(0, 3)) == 0:
            result = replace(result, **draw(st.sampled_from(_LIES)))
        events.append(Operation(number % 4, KEY, kind, argument, result, called, answered))
    return history(*events)


_LIES: list[dict[str, Any]] = [{"outcome": each} for each in (Outcome.DONE, Outcome.MISSING, Outcome.EXISTS)]
_LIES += [{"value": each} for each in ("v0", "v1", "0", "1")] + [{"cas": each} for each in (100, 101)]
_SPREAD = st.floats(0.01, 3.0)


def changed_reads(part: History) -> Iterator[History]:
    """The same with one reading that tells a value that was never there."""
    for at, each in enumerate(part.operations):
        if each.kind is Kind.GET and each.outcome is Outcome.DONE:
            wrong = replace(each, result=replace(each.result, value="never", cas=0))
            yield replace(part, operations=(*part.operations[:at], wrong, *part.operations[at + 1 :]))
