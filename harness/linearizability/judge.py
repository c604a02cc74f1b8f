"""Our judge of a history: is there one order of its operations that explains every answer, key by key?

    for verdict in judge(history, Model()):
        if verdict.is_violation: ...

The search is Wing and Gong's, as Lowe made it quick: an operation is put into the order just in time, when its answer
is reached, and a state that was reached before with the same operations in the order is not examined again (G. Lowe,
"Testing for linearizability", 2017; W. Wing and C. Gong, 1993). Instead of one order after the other it keeps all
*positions* that are possible at a moment: a position is a state with the set of running operations that have taken
effect in it. If an answer leaves no position, no order explains that answer.

A "maybe", and a fault, may take effect or not. So of two positions in the same state, the one that has used fewer of
these events can reach every state that the other can; only the first is kept. The same holds for a position with more
older versions to go back to; versions that an unused "maybe" could make again are not counted for this. Of "maybes"
that request the same, the oldest is used first.

Most histories have an order, and to find one is much cheaper than to find all: before the search a *descent* goes from
answer to answer with one position at a time, and back where no position is left. It puts as few events as possible
before each answer, AHEAD_MAX at most. An order that it finds is a proof; only the search can prove that there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from harness.linearizability.model import EMPTY, Document, DocumentLock, Model, State
from harness.linearizability.record import Fault, History, Kind, Operation, Outcome

__all__ = ["POSITIONS_MAX", "Verdict", "judge", "judge_key", "table"]

Event: TypeAlias = Operation | Fault
Moment: TypeAlias = tuple[float, bool, int, Event]
"""The time, True for an end or False for a beginning, and the event that begins or ends: its number, and itself."""
MAKERS = frozenset({Kind.SET, Kind.ADD, Kind.REPLACE})
"""Operations whose new version does not depend on the one before."""
POSITIONS_MAX = 1_000_000
"""The most positions that are examined for a key; a key that needs more is left undecided."""
COMPARISONS_EACH = 20
"""The most comparisons for a key, as a multiple of POSITIONS_MAX; a key that needs more is left undecided as well."""
DESCENT_SHARE = 0.1
"""The share of a key's positions that the descent may use."""
AHEAD_MAX = 3
"""The most events that the descent puts before an answer, besides those that took effect earlier."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judgement of one key.

    Attributes:
        unexplained: the first answer for which no order exists; None if there is one.
        is_undecided: True if the search was given up.
        before: states that were possible just before that answer.
        positions: how many positions the search or the descent has looked at.
        quiet: moments at which no operation was in progress and only one state was possible, each with that state.
    """

    key: str
    unexplained: Operation | None = None
    is_undecided: bool = False
    before: tuple[State, ...] = ()
    positions: int = 0
    quiet: tuple[tuple[float, State], ...] = ()

    @property
    def is_violation(self) -> bool:
        """True if no order explains the answers."""
        return self.unexplained is not None


def judge(history: History, model: Model, *, positions_max: int = POSITIONS_MAX) -> list[Verdict]:
    """Judge every key of a history by itself: linearizability is a property of each (Herlihy and Wing, 1990)."""
    return [judge_key(history.of(key), model, key, positions_max=positions_max) for key in history.keys]


def judge_key(
    part: History, model: Model, key: str, *, positions_max: int = POSITIONS_MAX, start: State = EMPTY
) -> Verdict:
    """Judge a history of one key, which begins in a state."""
    moments = list(_moments(part))
    descent = _Descent(model, moments, int(positions_max * DESCENT_SHARE))
    if descent.finds_an_order(start):
        return Verdict(key, positions=descent.looked_at)
    return _searched(moments, _Search(model, positions_max, start), key)


def _searched(moments: Sequence[Moment], search: _Search, key: str) -> Verdict:
    """Judge by all positions that are possible at each moment."""
    quiet: list[tuple[float, State]] = []
    try:
        for moment, is_end, number, event in moments:
            if not is_end:
                search.opened(number, event)
            elif isinstance(event, Fault):
                search.passed(number)
            elif not search.answered(number):
                return Verdict(key, event, before=search.states(), positions=search.looked_at, quiet=tuple(quiet))
            elif (state := search.certain_state()) is not None:
                quiet.append((moment, state))
    except _TooMany:
        return Verdict(key, is_undecided=True, positions=search.looked_at)
    return Verdict(key, positions=search.looked_at)


def counts(operation: Operation) -> bool:
    """Return True if an operation constrains the order: neither a refused one nor a read without an answer does."""
    is_silent_read = operation.kind is Kind.GET and operation.outcome is Outcome.MAYBE
    return operation.outcome is not Outcome.REFUSED and not is_silent_read


def is_optional(event: Event) -> bool:
    """Return True if an event may have no effect at all."""
    return isinstance(event, Fault) or event.outcome is Outcome.MAYBE


def _moments(part: History) -> Iterator[Moment]:
    """Yield beginnings and ends in the order of time, at one time beginnings first; an event that never ends has no
    end.
    """
    events: list[Event] = [*(operation for operation in part.operations if counts(operation)), *part.faults]
    moments: list[tuple[float, bool, int]] = []
    for number, event in enumerate(events):
        moments.append((event.began if isinstance(event, Fault) else event.called, False, number))
        if event.end != float("inf"):
            moments.append((event.end, True, number))
    for moment, is_end, number in sorted(moments):
        yield moment, is_end, number, events[number]


class _TooMany(Exception):  # noqa: N818 - says what happened
    """The search is given up."""


Older: TypeAlias = tuple[Document | None, ...]
Position: TypeAlias = tuple[State, int]
"""A state, and a bit for each event under way that has taken effect."""


class _Descent:
    """A search for one order, depth first.

    Attributes:
        looked_at: the number of positions so far.
    """

    def __init__(self, model: Model, moments: Sequence[Moment], positions_max: int) -> None:
        self.looked_at = 0
        self._model, self._positions_max = model, positions_max
        self._ends = list(_ends(moments))

    def finds_an_order(self, start: State) -> bool:
        """Return True if it has found an order; False if there is none, or more positions would be needed to find
        it.
        """
        tried: set[tuple[int, State, int]] = set()
        waiting = [iter([(start, 0)])]
        try:
            while waiting:
                at, position = len(waiting) - 1, next(waiting[-1], None)
                if position is None:
                    waiting.pop()
                elif at == len(self._ends):
                    return True
                elif (place := (at, *position)) not in tried:
                    tried.add(place)
                    waiting.append(self._behind(*self._ends[at], position))
        except _TooMany:
            return False
        return False

    def _behind(self, number: int, under_way: Sequence[tuple[int, Event]], position: Position) -> Iterator[Position]:
        """Yield the positions in which an event has taken effect, first those that needed the fewest other events."""
        (state, used), bit, events = position, 1 << number, dict(under_way)
        if used & bit or isinstance(events[number], Fault):
            yield state, used & ~bit
        if used & bit:
            return
        level, seen = [position], {position}
        for ahead in range(AHEAD_MAX + 1):
            for state, used in level:
                for after in self._steps(state, events[number]):
                    yield after, used
            if ahead < AHEAD_MAX:
                level = [each for place in level for each in self._with_another(place, number, under_way, seen)]

    def _with_another(
        self, position: Position, ended: int, under_way: Sequence[tuple[int, Event]], seen: set[Position]
    ) -> Iterator[Position]:
        """Yield the positions in which one more of the running events has taken effect."""
        state, used = position
        for number, event in under_way:
            if number == ended or used >> number & 1:
                continue
            for after in self._steps(state, event):
                place = after, used | 1 << number
                if place not in seen:
                    seen.add(place)
                    yield place

    def _steps(self, state: State, event: Event) -> Iterator[State]:
        for after in self._model.steps(state, event):
            self.looked_at += 1
            if self.looked_at > self._positions_max:
                raise _TooMany
            yield after


def _ends(moments: Sequence[Moment]) -> Iterator[tuple[int, list[tuple[int, Event]]]]:
    """Yield each end, by its event's number, with all events that are running just before it."""
    under_way: dict[int, Event] = {}
    for _, is_end, number, event in moments:
        if is_end:
            yield number, list(under_way.items())
            del under_way[number]
        else:
            under_way[number] = event


class _Versions:
    """The versions of a document that a search has met, as bits, and which of them a "maybe" could make again.

    A failover may bring a version back that nobody saw: that of a plain write without an answer. A position that has
    not used that write can go back to the version before, and let the write take effect then. So it can reach as many
    states as a position that has the version.
    """

    def __init__(self) -> None:
        self._numbers: dict[Document | None, int] = {}
        self._words: dict[Older, str] = {}
        self._older: dict[str, tuple[Older, int]] = {"": ((), 0)}
        self._makers: dict[Document, tuple[int, Kind]] = {}
        self._again: dict[int, int] = {}

    def word(self, older: Older) -> str:
        """Return older versions as a text with a character for each, which is much cheaper to hash and to compare."""
        word = self._words.get(older)
        if word is None:
            numbers = [self._number(version) for version in older]
            word = self._words[older] = "".join(map(chr, numbers))
            self._older[word] = older, sum(1 << number for number in set(numbers))
        return word

    def older(self, word: str) -> Older:
        """Return the versions of which a word was made."""
        return self._older[word][0]

    def of(self, word: str) -> int:
        """Return the versions of a word as bits, whatever their order."""
        return self._older[word][1]

    def opened(self, number: int, event: Event) -> None:
        """Note that an event has begun. A "maybe" that always makes the same version is remembered as that version's
        maker; if two events make it, neither counts.
        """
        if isinstance(event, Fault) or event.outcome is not Outcome.MAYBE or event.kind not in MAKERS:
            return
        argument = event.argument
        if argument.cas or argument.level:
            return
        version = Document(argument.value, 0, argument.expiry, is_guess=True)
        self._makers[version] = (0 if version in self._makers else 1 << number, event.kind)
        self._again.clear()

    def again(self, events: int) -> int:
        """Return the versions that these events make, as bits."""
        found = self._again.get(events)
        if found is None:
            found = 0
            for version, (maker, _) in self._makers.items():
                if maker & events:
                    found |= 1 << self._number(version)
            self._again[events] = found
        return found

    def are_among(self, some: str, longer: str, events: int) -> bool:
        """Return True if the versions of `some` are among those of `longer`, in the same order, apart from those that
        `events` could make again.
        """
        if longer.startswith(some):
            return True
        if not events and len(some) >= len(longer):
            return False
        at = 0
        for place, letter in enumerate(some):
            next_at = longer.find(letter, at) + 1
            if next_at:
                at = next_at
                continue
            maker = self._maker_of(some, place) & events if events and place else 0
            if not maker:
                return False
            events &= ~maker
        return True

    def _maker_of(self, word: str, place: int) -> int:
        older = self.older(word)
        return self._maker(older[place - 1], older[place])

    def _maker(self, before: Document | None, version: Document | None) -> int:
        """Return the event that makes a version after the one before, whenever it happens; 0 for none."""
        if version is None:
            return 0
        maker, kind = self._makers.get(version, (0, Kind.SET))
        if kind is Kind.ADD and before is not None:
            return 0
        if kind is Kind.SET and before is not None and before.is_guess:
            return 0  # it would not be remembered behind that, see Model._changed
        if kind is Kind.REPLACE and (before is None or before.expiry):
            return 0
        return maker

    def _number(self, version: Document | None) -> int:
        return self._numbers.setdefault(version, len(self._numbers))


@dataclass(slots=True)
class _Front:
    """Positions without those that a better one makes superfluous.

    A position is better if it is in the same state, has used no more of the optional events, and could go back by a
    failover to all versions that the other could go back to, or make them again.

    Attributes:
        optional: the events that may have no effect. versions, compared: the search's.
        found: the positions: by document, lock and the set of used events that are not optional, then by the set of
            used optional ones, the words of their older versions.
    """

    optional: int
    versions: _Versions
    compared: Callable[[int], None]
    found: dict[tuple[Document | None, DocumentLock | None, int], dict[int, dict[str, int]]] = field(
        default_factory=dict
    )

    def add(self, state: State, used: int) -> bool:
        """Add a position; return False if it, or a better one, is there already."""
        word, spent = self.versions.word(state.older), used & self.optional
        known = self.found.setdefault((state.document, state.lock, used & ~self.optional), {})
        self.compared(sum(map(len, known.values())))
        if word in known.get(spent, ()) or self._is_superfluous(known, spent, word):
            return False
        versions = self.versions.of(word)
        for other, found in known.items():
            if not spent & ~other:
                more = other & ~spent
                missing = ~(versions | self.versions.again(more))
                worse = [each for each, bits in found.items() if not bits & missing]
                for each in worse:
                    if self.versions.are_among(each, word, more):
                        del found[each]
        known.setdefault(spent, {})[word] = versions
        return True

    def _is_superfluous(self, known: dict[int, dict[str, int]], spent: int, word: str) -> bool:
        versions = self.versions.of(word)
        for other, found in known.items():
            if not other & ~spent:
                more = spent & ~other
                needed = versions & ~self.versions.again(more)
                for each, bits in found.items():
                    if not needed & ~bits and self.versions.are_among(word, each, more):
                        return True
        return False

    def has(self, state: State, used: int) -> bool:
        """Return True if a position was not replaced by a better one."""
        known = self.found.get((state.document, state.lock, used & ~self.optional), {})
        return self.versions.word(state.older) in known.get(used & self.optional, ())

    def positions(self) -> Iterator[Position]:
        """Yield all positions that are left."""
        for (document, lock, certain), known in self.found.items():
            for spent, found in known.items():
                for word in found:
                    yield State(document, lock, self.versions.older(word)), certain | spent


class _Search:
    """The positions that are possible at a moment of a history.

    Attributes:
        looked_at: the number of positions so far.
    """

    def __init__(self, model: Model, positions_max: int, start: State) -> None:
        self.looked_at = 0
        self._held_against_others = 0
        self._model, self._positions_max = model, positions_max
        self._open: dict[int, Event] = {}
        self._twin_before: dict[int, int] = {}
        self._optional = 0
        self._versions = _Versions()
        self._positions: list[Position] = [(start, 0)]

    def states(self) -> tuple[State, ...]:
        """The states of all positions, without repetition."""
        return tuple(dict.fromkeys(state for state, _ in self._positions))

    def certain_state(self) -> State | None:
        """Return the only state that is possible, if all running events have had no effect; None otherwise."""
        if len(self._positions) > 1 or not all(map(is_optional, self._open.values())):
            return None
        state, used = self._positions[0]
        return None if used else state

    def opened(self, number: int, event: Event) -> None:
        """Note that an operation was requested, or a fault began."""
        if is_optional(event):
            self._optional |= 1 << number
            self._versions.opened(number, event)
            twin = [each for each, other in self._open.items() if _are_twins(event, other)]
            if twin:
                self._twin_before[number] = 1 << twin[-1]
        self._open[number] = event

    def answered(self, number: int) -> bool:
        """Keep the positions in which an operation has taken effect by now; False if there are none."""
        found = self._with(number)
        if found:
            self._close(number, found)
        return bool(found)

    def passed(self, number: int) -> None:
        """Note that a fault is over: it had its effect, or it had none."""
        self._close(number, [*self._positions, *self._with(number)])

    def _close(self, number: int, positions: list[Position]) -> None:
        """Continue with these positions; whether they used the event makes no difference any more."""
        bit = 1 << number
        self._optional &= ~bit
        front = _Front(self._optional, self._versions, self._compared)
        for state, used in positions:
            front.add(state, used & ~bit)
        self._positions = list(front.positions())
        del self._open[number]

    def _with(self, number: int) -> list[Position]:
        """Return the positions in which an event has taken effect, after any other events."""
        bit = 1 << number
        done, seen = (
            _Front(self._optional, self._versions, self._compared),
            _Front(self._optional, self._versions, self._compared),
        )
        waiting: list[Position] = []
        for position in self._positions:
            if position[1] & bit:
                done.add(*position)
            elif seen.add(*position):
                waiting.append(position)
        while waiting:
            later: list[Position] = []
            for position in waiting:
                if seen.has(*position):
                    self._go_on(position, bit, done, seen, later)
            waiting = later
        return list(done.positions())

    def _go_on(self, position: Position, wanted: int, done: _Front, seen: _Front, later: list[Position]) -> None:
        """Let one more event take effect in a position; positions with the wanted event are done, others are continued
        later.
        """
        state, used = position
        for number, event in self._open.items():
            bit = 1 << number
            if used & bit or self._twin_before.get(number, 0) & ~used:
                continue
            for after in self._model.steps(state, event):
                self._count()
                if bit == wanted:
                    done.add(after, used | bit)
                elif seen.add(after, used | bit):
                    later.append((after, used | bit))

    def _count(self) -> None:
        self.looked_at += 1
        if self.looked_at > self._positions_max:
            raise _TooMany

    def _compared(self, others: int) -> None:
        """Count comparisons, since many positions of which none is better make each new one expensive; give up after
        too many.
        """
        self._held_against_others += others
        if self._held_against_others > COMPARISONS_EACH * self._positions_max:
            raise _TooMany


def _are_twins(one: Event, other: Event) -> bool:
    """Return True if two "maybes" request the same, so that it makes no difference which of them took effect."""
    if isinstance(one, Fault) or isinstance(other, Fault):
        return False
    same = (one.kind, one.argument) == (other.kind, other.argument)
    return same and one.outcome is other.outcome is Outcome.MAYBE


# --- for people -------------------------------------------------------------------------------------------------------


def table(events: Iterable[Event], unexplained: Operation | None = None) -> str:
    """Return a table of operations and faults, in the order of their requests; times are relative to the first."""
    ordered = sorted(events, key=lambda each: each.began if isinstance(each, Fault) else each.called)
    if not ordered:
        return ""
    first = ordered[0].began if isinstance(ordered[0], Fault) else ordered[0].called
    lines = []
    for each in ordered:
        begin = (each.began if isinstance(each, Fault) else each.called) - first
        end = f"{each.end - first:9.4f}" if each.end != float("inf") else "         "
        mark = "  <- nothing explains this answer" if each is unexplained else ""
        who = "fault   " if isinstance(each, Fault) else f"client {each.client}"
        lines.append(f"  {begin:9.4f} .. {end}  {who}  {_in_words(each)}{mark}")
    return "\n".join(lines)


def _in_words(event: Event) -> str:
    if isinstance(event, Fault):
        return f"{event.kind} {event.text}".rstrip()
    argument, result = event.argument, event.result
    given = [repr(argument.value)] if argument.value else []
    given += [f"{name} {value}" for name in ("cas", "expiry", "delta", "seconds") if (value := getattr(argument, name))]
    given += [f"initial {argument.initial}"] if argument.initial is not None else []
    given += [argument.level.name.lower()] if argument.level else []
    shown = [repr(result.value)] if result.value is not None else []
    shown += [f"{name} {value}" for name in ("cas", "seqno", "node", "text") if (value := getattr(result, name))]
    shown += ["locked"] if result.is_locked else []
    asked = f"{event.kind} {event.key}{' ' if given else ''}{', '.join(given)}"
    return f"{asked:40} -> {event.outcome} {', '.join(shown)}".rstrip()
