"""Delays double, spread, and have an end."""

from headwater.transport.backoff import Backoff


def test_delays_double_up_to_the_longest():
    backoff = Backoff(1.0, 5.0, chance=lambda: 1.0)
    assert [backoff.next_seconds() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_chance_takes_up_to_half_of_a_delay_away():
    assert Backoff(1.0, 5.0, chance=lambda: 0.0).next_seconds() == 0.5


def test_success_starts_from_the_beginning():
    backoff = Backoff(1.0, 5.0, chance=lambda: 1.0)
    backoff.next_seconds()
    backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() == 1.0


def test_weeks_of_failures_are_still_a_number():
    assert Backoff(1.0, 5.0, chance=lambda: 1.0, failures=1_000_000).next_seconds() == 5.0


def test_what_only_a_mend_can_change_is_tried_seldom_at_once_until_something_works():
    backoff = Backoff(1.0, 5.0, chance=lambda: 1.0)
    backoff.slow_down()
    assert backoff.next_seconds() == 5.0
    backoff.reset()
    assert backoff.next_seconds() == 1.0
