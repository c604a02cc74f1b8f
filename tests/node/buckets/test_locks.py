"""Locks without commands."""

from typing import Never

import pytest

from headwater.node.buckets import locks
from headwater.node.buckets.locks import CAS_OF_LOCKED, DocumentLock, Locks
from headwater.node.refused import CommandRefused
from headwater.wire.numbers import HELD_MAX


def test_a_lock_is_over_at_its_time_and_all_are_forgotten_with_the_last() -> None:
    held = Locks()
    held.take(1, b"a", DocumentLock(7, 3, until=10), now=0)
    held.take(1, b"b", DocumentLock(8, 4, until=20), now=0)
    assert held.get(1, b"a", 9) == DocumentLock(7, 3, 10)
    assert held.get(1, b"a", 10) is None and held.get(2, b"b", 9) is None
    assert held.any(19) and len(held.held[1]) == 2
    assert not held.any(20) and not held.held


def test_every_token_is_above_the_highest_cas_and_below_that_of_a_locked_document() -> None:
    held = Locks(2 * (CAS_OF_LOCKED - HELD_MAX - 1) - 3)
    tokens = [held.next_token() for _ in range(4)]
    assert tokens == [CAS_OF_LOCKED - 2, CAS_OF_LOCKED - 1, HELD_MAX + 1, HELD_MAX + 2]


def test_a_released_lock_is_no_lock() -> None:
    held = Locks()
    held.take(1, b"a", DocumentLock(7, 3, until=10), now=0)
    held.release(1, b"a")
    held.release(1, b"a")
    assert held.get(1, b"a", 5) is None and not held.any(5)


def test_there_is_an_end_to_how_many_there_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 1)
    held = Locks()
    held.take(1, b"a", DocumentLock(7, 3, until=10), now=0)
    with pytest.raises(CommandRefused):
        held.take(1, b"b", DocumentLock(7, 3, until=10), now=0)


def test_locks_that_are_over_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 3)
    held = Locks()
    for number, until in enumerate((10, 30, 10)):
        held.take(1, b"%d" % number, DocumentLock(7, 3, until), now=0)
    with pytest.raises(CommandRefused):
        held.take(1, b"more", DocumentLock(7, 3, until=40), now=9)
    for number in range(2):
        held.take(1, b"more %d" % number, DocumentLock(7, 3, until=40), now=10)
    assert held.get(1, b"1", 10) is not None
    with pytest.raises(CommandRefused):
        held.take(1, b"one more", DocumentLock(7, 3, until=40), now=10)


def test_a_vbucket_that_leaves_takes_its_locks_along_and_no_others() -> None:
    held = Locks()
    for vbucket in (1, 2):
        held.take(vbucket, b"k", DocumentLock(7, 3, 100), 10)
    held.leave(1)
    assert held.get(1, b"k", 11) is None
    assert held.get(2, b"k", 11) == DocumentLock(7, 3, 100)


def test_only_the_locks_there_are_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "LOCKS_MAX", 2)
    held, lock = Locks(), DocumentLock(7, 3, 100)
    for _ in range(3):
        held.take(1, b"again", lock, 10)
    held.take(2, b"k", lock, 10)
    held.leave(1)
    held.take(2, b"l", lock, 10)
    held.release(2, b"k")
    held.take(3, b"m", lock, 10)
    with pytest.raises(CommandRefused):
        held.take(4, b"n", lock, 10)
    assert sorted(held.held) == [2, 3]


def test_a_replica_that_has_no_locks_looks_at_none_of_the_others() -> None:
    """A replica leaves with each of its snapshots: a look at 100,000 locks took milliseconds each time."""

    class Untouched(dict[tuple[int, bytes], DocumentLock]):
        def __iter__(self) -> Never:
            raise AssertionError

    held = Locks()
    held.take(1, b"k", DocumentLock(7, 3, 100), 10)
    held.held[1] = Untouched(held.held[1])
    held.leave(2)
    assert held.get(1, b"k", 11) is not None
