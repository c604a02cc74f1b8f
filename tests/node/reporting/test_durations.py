"""Durations, counted by bounds."""

from headwater.node.reporting.durations import BOUNDS_SECONDS, Durations


def test_each_bound_has_all_that_took_no_longer() -> None:
    durations = Durations()
    for seconds in (0.0001, 0.0005, 0.0006, 0.3, 99.0):
        durations.add(seconds)
    told = dict(durations.at_most())
    assert (told["0.0005"], told["0.001"], told["0.25"], told["0.5"], told["2.5"], told["+Inf"]) == (2, 3, 3, 4, 4, 5)
    assert len(told) == len(BOUNDS_SECONDS) + 1
    assert durations.total_seconds == 0.0001 + 0.0005 + 0.0006 + 0.3 + 99.0
