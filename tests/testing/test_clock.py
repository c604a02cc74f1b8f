import pytest

from headwater.testing.clock import FakeClock


def test_a_clock_stands_still_until_it_is_told_to_go_on():
    clock = FakeClock(5.0)
    assert [clock(), clock(), clock.advance(2.5), clock()] == [5.0, 5.0, 7.5, 7.5]


def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="backwards"):
        FakeClock().advance(-1)
