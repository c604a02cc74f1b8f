"""How long attempts that fail are gone on with: what counts as a gain, and what does not."""

from __future__ import annotations

import pytest

from headwater.cluster.patience import CopyPosition, Patience

OLD, NEW = 0xAA, 0xBB


def holds(seqno: int, uuid: int = OLD) -> CopyPosition:
    return CopyPosition(uuid, seqno)


def gains(*attempts: CopyPosition | None, passed: bool = True) -> list[bool]:
    """Whether each failed attempt at copying gained something, by what the target held after it."""
    patience = Patience(10.0, 0.0)
    return [patience.failed(1.0, held, passed=passed) for held in attempts]


def test_the_target_must_hold_more_than_ever_before() -> None:
    assert gains(holds(5), holds(5), holds(6), holds(4), holds(6), holds(7)) == [True, False, True, False, False, True]


def test_a_target_that_was_rolled_back_begins_anew() -> None:
    assert gains(holds(900), holds(3, NEW), holds(3, NEW), holds(4, NEW)) == [True, True, False, True]


def test_bytes_count_once_while_the_target_can_not_be_asked() -> None:
    assert gains(None, None, None) == [True, False, False]
    assert gains(None, None, passed=False) == [False, False]
    assert gains(holds(1), None, None, holds(1), None, holds(2), None) == [
        True,
        True,
        False,
        False,
        True,
        True,
        True,
    ]


def test_a_hand_over_that_fails_gains_nothing_but_the_first_complete_copy_does() -> None:
    patience = Patience(10.0, 0.0)
    for now in (5.0, 12.0):
        patience.begin()
        patience.note_copied(now)
        assert not patience.failed(now + 1, holds(int(now)), passed=True)
    assert not patience.is_over(14.9) and patience.is_over(15.0)


@pytest.mark.parametrize("seconds", [0.0, 10.0])
def test_it_ends_so_many_seconds_after_the_last_gain(seconds: float) -> None:
    patience = Patience(seconds, 100.0)
    assert patience.is_over(100.0 + seconds)
    patience.failed(105.0, holds(1), passed=True)
    assert patience.is_over(105.0 + seconds) and not (seconds and patience.is_over(104.0 + seconds))
