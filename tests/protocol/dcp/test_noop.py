"""No sleeping here: time is an argument."""

import pytest

from headwater.protocol.dcp.noop import NoopTimer


def timer(interval: float = 20.0, now: float = 100.0) -> NoopTimer:
    noop = NoopTimer(interval_seconds=interval)
    noop.enable(now)
    return noop


def test_nothing_is_asked_unless_enabled() -> None:
    noop = NoopTimer()
    assert (noop.deadline, noop.due(1e9), noop.peer_is_silent(1e9)) == (None, None, False)


def test_the_first_noop_goes_out_after_one_interval_with_its_own_opaque() -> None:
    noop = timer()
    assert noop.deadline == 120.0
    assert noop.due(119.9) is None
    assert noop.due(120.0) == 10_000_001


def test_no_second_noop_while_an_answer_is_owed() -> None:
    noop = timer()
    noop.due(120.0)
    noop.heard(121.0)
    assert noop.due(150.0) is None
    assert noop.answered(10_000_001)
    assert noop.due(150.0) == 10_000_002


def test_two_quiet_intervals_mean_the_peer_is_gone() -> None:
    noop = timer()
    noop.due(120.0)
    assert noop.deadline == 140.0
    assert not noop.peer_is_silent(139.9)
    assert noop.peer_is_silent(140.0)


def test_who_looks_long_after_the_deadline_was_stopped_himself() -> None:
    noop = timer()
    assert not noop.overslept(121.9)
    assert noop.overslept(122.0)
    assert not NoopTimer().overslept(1e9)


def test_anything_that_arrives_is_a_sign_of_life() -> None:
    noop = timer()
    noop.due(120.0)
    noop.heard(139.0)
    assert not noop.peer_is_silent(178.9)
    assert noop.peer_is_silent(179.0)


def test_the_idle_timeout_bounds_a_long_interval() -> None:
    noop = timer(interval=3600.0)
    assert noop.deadline == 460.0
    assert noop.peer_is_silent(460.0)


def test_a_short_interval_still_allows_a_pause_of_two_seconds() -> None:
    noop = timer(interval=0.1)
    assert noop.due(100.1) is not None
    assert not noop.peer_is_silent(101.9)
    assert noop.peer_is_silent(102.0)


@pytest.mark.parametrize("opaque", [0, 10_000_002])
def test_the_wrong_opaque_is_no_answer(opaque: int) -> None:
    noop = timer()
    noop.due(120.0)
    assert not noop.answered(opaque)


def test_an_answer_before_any_question_is_wrong() -> None:
    assert not timer().answered(10_000_001)


def test_the_same_answer_twice_does_no_harm() -> None:
    noop = timer()
    noop.due(120.0)
    assert noop.answered(10_000_001)
    assert noop.answered(10_000_001)


def test_an_answer_after_noops_were_disabled_is_fine() -> None:
    noop = timer()
    noop.due(120.0)
    noop.disable()
    assert noop.answered(10_000_001)
    assert noop.deadline is None


def test_enabling_twice_does_not_put_the_next_noop_off() -> None:
    noop = timer()
    noop.enable(115.0)
    assert noop.deadline == 120.0
