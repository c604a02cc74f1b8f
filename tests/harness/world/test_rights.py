"""Rights of guests: which change may be in force where, and what breaks the promise."""

from __future__ import annotations

import pytest

from harness.linearizability.record import Argument, Kind, Operation, Outcome, Result
from harness.simulation.histories import Broken
from harness.world.rights import Change, Guest, check_operations, check_shown

N0, N1 = "127.0.0.1:11000", "127.0.0.1:11001"
BOTH = frozenset((N0, N1))
GIVEN = Change(("read", "write", "stream"), 1.0, 2.0, BOTH, is_everywhere=True)


def taken(began: float, ended: float | None, nodes: frozenset[str] = BOTH, *, is_everywhere: bool = False) -> Change:
    return Change((), began, ended, nodes if ended is not None else frozenset(), is_everywhere)


def guest_with(*changes: Change) -> Guest:
    return Guest("guest-0", "secret", list(changes))


def test_who_was_never_given_a_right_has_none() -> None:
    assert not guest_with().may("read", N0, 0.0, 99.0)


def test_a_right_may_be_had_from_when_it_is_asked_for() -> None:
    guest = guest_with(GIVEN)
    assert not guest.may("read", N0, 0.0, 0.9)
    assert guest.may("read", N0, 0.0, 1.1)


def test_a_right_is_gone_where_the_change_is_acknowledged_and_not_before() -> None:
    guest = guest_with(GIVEN, taken(5.0, 6.0, frozenset((N0,))))
    assert guest.may("read", N0, 5.9, 5.95)
    assert not guest.may("read", N0, 6.1, 6.2)
    assert guest.may("read", N1, 6.1, 6.2)


def test_what_came_to_no_end_may_be_in_force_until_somebody_knew_of_it_everywhere() -> None:
    half_done = Change(("read",), 7.0)
    guest = guest_with(GIVEN, taken(5.0, 6.0), half_done, taken(8.0, 9.0, is_everywhere=True))
    assert guest.may("read", N0, 9.5, 9.6)
    later = guest_with(GIVEN, taken(5.0, 6.0), half_done, taken(80.0, 81.0, is_everywhere=True))
    assert not later.may("read", N0, 81.5, 81.6)


def test_of_two_changes_that_knew_nothing_of_each_other_either_may_win() -> None:
    here, there = Change(("read",), 3.0, 4.0, frozenset((N0,))), taken(5.0, 6.0, frozenset((N1,)))
    assert guest_with(here, there).may("read", N1, 7.0, 7.1)
    at_the_same_time = taken(3.5, 4.5, BOTH)
    assert guest_with(here, at_the_same_time).may("read", N1, 7.0, 7.1)


def asked(kind: Kind, outcome: Outcome, called: float, value: str = "v7-") -> Operation:
    argument = Argument(value=value if kind is Kind.SET else "")
    return Operation(100, "k", kind, argument, Result(outcome, node=N0), called, called + 0.1)


def judged(guest: Guest, operation: Operation, *, is_stored: bool = False) -> int:
    return check_operations([guest], [(guest, operation)], [N0, N1], noon=0.0, is_stored=lambda *_: is_stored)


@pytest.mark.parametrize("outcome", [Outcome.DONE, Outcome.MISSING])
def test_an_answer_without_the_right_breaks_the_promise(outcome: Outcome) -> None:
    guest = guest_with(GIVEN, taken(5.0, 6.0))
    assert judged(guest, asked(Kind.GET, outcome, 5.5)) == 1
    with pytest.raises(Broken, match="rights: guest-0 may not read"):
        judged(guest, asked(Kind.GET, outcome, 6.5))
    with pytest.raises(Broken, match="rights: guest-0 may not write"):
        judged(guest, asked(Kind.SET, outcome, 6.5))


def test_a_write_that_was_refused_or_could_not_be_allowed_may_never_take_effect() -> None:
    guest = guest_with(GIVEN, taken(5.0, 6.0))
    assert judged(guest, asked(Kind.SET, Outcome.REFUSED, 5.5)) == 0
    for outcome, called in ((Outcome.REFUSED, 5.5), (Outcome.MAYBE, 6.5)):
        with pytest.raises(Broken, match="its write took effect"):
            judged(guest, asked(Kind.SET, outcome, called), is_stored=True)
    assert judged(guest, asked(Kind.SET, Outcome.MAYBE, 5.5), is_stored=True) == 0


def test_a_stream_shows_nothing_that_was_written_when_nobody_could_let_the_guest_stream() -> None:
    guest = guest_with(GIVEN, taken(5.0, 6.0))
    check_shown(guest, [N0, N1], 5.5, 7.0, "a change")
    with pytest.raises(Broken, match="rights: guest-0 may stream from no node"):
        check_shown(guest, [N0, N1], 6.5, 7.0, "a change")
