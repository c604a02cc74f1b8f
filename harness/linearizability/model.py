"""One document as its clients may see it: the states that may follow a state when an operation takes effect.

    strict     a change that was answered is there until another one takes its place
    plain      as strict, but a failover may bring a document back to an older version: any since the newest change that
               was written at a durability level. A version that was lost that way is lost for ever.

In both a lock ends by its time, and may end by a fault, since it is kept in memory alone. A durable write with the
lock's token that was sent before still happens: it was accepted while the lock held, and no other client can write
meanwhile. The time at which a node reads its clock lies between the call of an operation and its answer, give or take
the error of the clocks: where that leaves open whether a document has expired or a lock is over, both are possible.

A CAS that no answer showed (0, of a change without an answer) may have any value. Pure, and it shares no code with the
product. Source: kv.md 2; docs/replication.md, "Durable writes"; docs/howto/cluster.md, "A node is dead".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from harness.linearizability.record import Fault, FaultKind, Kind, Operation, Outcome

__all__ = ["EMPTY", "Document", "DocumentLock", "Model", "State"]

LOCK_SECONDS_DEFAULT, LOCK_SECONDS_MAX = 15, 30
WRAP = 1 << 64


class Document(NamedTuple):
    """A version of a document.

    Attributes:
        cas: 0 if no answer showed it.
        is_guess: True if no answer shows that it ever existed.
    """

    value: str
    cas: int = 0
    expiry: int = 0
    is_guess: bool = False


class DocumentLock(NamedTuple):
    """A lock of a document, which is over at some time from `earliest` to `latest`, Unix seconds.

    Attributes:
        token: 0 if no answer showed it.
        is_over: True if it has ended, and the document is as it was then.
    """

    token: int
    earliest: float
    latest: float
    is_over: bool = False


class State(NamedTuple):
    """The document now, None if there is none; and older versions that a failover may bring back, oldest first."""

    document: Document | None = None
    lock: DocumentLock | None = None
    older: tuple[Document | None, ...] = ()


EMPTY = State()


def is_locked(state: State) -> bool:
    """Return True if a lock holds."""
    return state.lock is not None and not state.lock.is_over


def unlocked(state: State) -> State:
    """Return the state after its lock has ended by itself."""
    return state if state.lock is None else state._replace(lock=state.lock._replace(is_over=True))


class _Effect(NamedTuple):
    """An operation's outcome in a state; `shown` is the version that its answer shows."""

    outcome: Outcome
    state: State
    shown: Document | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """The rules.

    Args:
        plain_may_be_lost: True if a failover may lose plain writes; see the head of this module.
    """

    plain_may_be_lost: bool = False
    clock_error_seconds: float = 1.5

    def steps(self, state: State, event: Operation | Fault) -> Iterator[State]:
        """Yield the states that may follow; none if the answer can't have come in this state.

        Of a "maybe" and of a fault, only the states in which it had an effect.
        """
        if isinstance(event, Fault):
            yield from self._after_fault(state, event)
            return
        for seen in self._seen(state, event):
            effect = self._effect(seen, event)
            if event.outcome is Outcome.MAYBE:
                if effect.state != seen:
                    yield effect.state
            elif (after := _matched(effect, event)) is not None:
                yield after

    def _after_fault(self, state: State, fault: Fault) -> Iterator[State]:
        if is_locked(state):
            yield unlocked(state)
        if fault.kind is FaultKind.FAILOVER:
            for at, version in enumerate(state.older):
                yield State(version, None, state.older[:at])

    def _seen(self, state: State, operation: Operation) -> Iterator[State]:
        """Yield the states that a node may see when it reads its clock."""
        first, last = operation.called - self.clock_error_seconds, operation.end + self.clock_error_seconds
        lock = state.lock
        if lock is None or lock.is_over or first <= lock.latest:
            yield from self._not_expired(state, first)
        if lock is not None and not lock.is_over and last >= lock.earliest:
            yield from self._not_expired(unlocked(state), first)
        if state.document is not None and state.document.expiry and last >= state.document.expiry:
            yield self._changed(state, None, is_durable=False)

    @staticmethod
    def _not_expired(state: State, first: float) -> Iterator[State]:
        if state.document is None or not state.document.expiry or first < state.document.expiry:
            yield state

    def _changed(self, state: State, document: Document | None, *, is_durable: bool, is_blind: bool = False) -> State:
        """Return the state after the next version. A durable version, and all before it, are never taken back.

        Args:
            is_blind: True if the change did not depend on the version before. That version need not be remembered if it
                is a guess: the same guess can be made when a failover is to bring it back.
        """
        if is_durable or not self.plain_may_be_lost:
            return State(document)
        if is_blind and state.document is not None and state.document.is_guess:
            return State(document, None, state.older)
        return State(document, None, (*state.older, state.document))

    # --- operations -------------------------------------------------------------------------------------------------

    def _effect(self, state: State, operation: Operation) -> _Effect:
        if operation.kind is Kind.GET:
            return _Effect(Outcome.MISSING if state.document is None else Outcome.DONE, state, state.document)
        if operation.kind is Kind.GET_AND_LOCK:
            return self._locked(state, operation)
        if operation.kind is Kind.UNLOCK:
            return _unlocked(state, operation)
        cas = operation.argument.cas
        has_token = state.lock is not None and 0 < cas == state.lock.token
        if is_locked(state) and not has_token:
            return _Effect(Outcome.LOCKED, state)
        if has_token and (is_locked(state) or self._was_accepted(state, operation)):
            cas = 0
        return self._written(state, operation, cas)

    def _was_accepted(self, state: State, operation: Operation) -> bool:
        """Return True if a durable write may have been accepted while its key's lock, which is over by now, still
        held.
        """
        if state.lock is None or not operation.argument.level or operation.outcome is Outcome.EXISTS:
            return False
        return operation.called - self.clock_error_seconds <= state.lock.latest

    def _locked(self, state: State, operation: Operation) -> _Effect:
        if state.document is None:
            return _Effect(Outcome.MISSING, state)
        if is_locked(state):
            return _Effect(Outcome.LOCKED, state)
        seconds = min(operation.argument.seconds or LOCK_SECONDS_DEFAULT, LOCK_SECONDS_MAX)
        error = self.clock_error_seconds
        token = operation.result.cas if operation.outcome is Outcome.DONE else 0
        lock = DocumentLock(token, operation.called + seconds - error, operation.end + seconds + error)
        return _Effect(Outcome.DONE, state._replace(lock=lock), state.document)

    def _written(self, state: State, operation: Operation, cas: int) -> _Effect:
        """Return the effect of a change of a document that is not locked; `cas` 0 stands for any."""
        document, kind, argument = state.document, operation.kind, operation.argument
        if refusal := _refusal(document, operation, cas):
            return _Effect(refusal, state)
        if kind in {Kind.TOUCH, Kind.GET_AND_TOUCH} and document is not None and document.expiry == argument.expiry:
            return _Effect(Outcome.DONE, state, document)
        new = None if kind is Kind.DELETE else _new(document, operation)
        is_blind = kind is Kind.SET and not argument.cas
        after = self._changed(state, new, is_durable=argument.level > 0, is_blind=is_blind)
        return _Effect(Outcome.DONE, after, new)


def _unlocked(state: State, operation: Operation) -> _Effect:
    if state.document is None:
        return _Effect(Outcome.MISSING, state)
    if state.lock is None or state.lock.is_over:
        return _Effect(Outcome.NOT_LOCKED, state)
    if not state.lock.token or operation.argument.cas != state.lock.token:
        return _Effect(Outcome.LOCKED, state)
    return _Effect(Outcome.DONE, state._replace(lock=None))


def _refusal(document: Document | None, operation: Operation, cas: int) -> Outcome | None:
    """Return why a change does not happen; None if it does."""
    if document is None:
        return _refusal_of_nothing(operation, cas)
    if operation.kind is Kind.ADD or (cas and not _may_be(document, operation, cas)):
        return Outcome.EXISTS
    is_counter = operation.kind in {Kind.INCREMENT, Kind.DECREMENT}
    return Outcome.NOT_A_NUMBER if is_counter and not _is_number(document.value) else None


def _refusal_of_nothing(operation: Operation, cas: int) -> Outcome | None:
    kind = operation.kind
    if kind is Kind.APPEND:
        return Outcome.NOT_STORED
    if kind is Kind.ADD or (kind is Kind.SET and not cas):
        return None
    is_counter = kind in {Kind.INCREMENT, Kind.DECREMENT}
    return None if is_counter and operation.argument.initial is not None else Outcome.MISSING


def _may_be(document: Document, operation: Operation, cas: int) -> bool:
    """Return True if a CAS may be the document's. If no answer showed the document's own CAS, any may be, unless the
    write's answer was EXISTS.
    """
    return cas == document.cas if document.cas else operation.outcome is not Outcome.EXISTS


def _is_number(value: str) -> bool:
    return 0 < len(value) <= 20 and value.isascii() and value.isdigit() and int(value) < WRAP


def _new(old: Document | None, operation: Operation) -> Document:
    """Return the version that a change makes, with the CAS of its answer."""
    argument, kind = operation.argument, operation.kind
    is_guess = operation.outcome is Outcome.MAYBE
    cas = 0 if is_guess else operation.result.cas
    if old is None or kind in {Kind.SET, Kind.ADD, Kind.REPLACE}:
        value = argument.value if argument.initial is None else str(argument.initial)
        return Document(value, cas, argument.expiry, is_guess)
    if kind in {Kind.TOUCH, Kind.GET_AND_TOUCH}:
        return Document(old.value, cas, argument.expiry, is_guess)
    if kind is Kind.APPEND:
        return Document(old.value + argument.value, cas, old.expiry, is_guess)
    number, delta = int(old.value), argument.delta
    counted = (number + delta) % WRAP if kind is Kind.INCREMENT else max(0, number - delta)
    return Document(str(counted), cas, old.expiry, is_guess)


SHOWS_VALUE = {Kind.GET, Kind.GET_AND_LOCK, Kind.GET_AND_TOUCH, Kind.INCREMENT, Kind.DECREMENT}
SHOWS_CAS = {Kind.GET, Kind.TOUCH, Kind.GET_AND_TOUCH}


def _matched(effect: _Effect, operation: Operation) -> State | None:
    """Return the state after an answer that this effect can have, None for another answer; the document's CAS may
    become known.
    """
    result, state, shown = operation.result, effect.state, effect.shown
    if effect.outcome is not result.outcome:
        return None
    if result.outcome is not Outcome.DONE:
        return _with(state, state.document)
    if shown is None:
        return state
    is_shown = operation.kind in SHOWS_VALUE and result.value is not None
    is_wrong = is_shown and result.value != shown.value
    is_wrong |= operation.kind is Kind.GET and result.is_locked != is_locked(state)
    tells_cas = operation.kind in SHOWS_CAS and result.cas
    is_wrong |= bool(tells_cas and shown.cas and shown.cas != result.cas)
    if is_wrong:
        return None
    return _with(state, shown._replace(cas=result.cas) if tells_cas else shown)


def _with(state: State, document: Document | None) -> State:
    """Return the state with the document that an answer showed, which is no guess any more; unchanged for None."""
    return state if document is None else state._replace(document=document._replace(is_guess=False))
