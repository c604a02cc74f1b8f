"""The demo's measurements, with a clock that is told the time."""

from headwater.cli.demo.samples import Samples


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def sampled(*looks: tuple[float, int, int]) -> Samples:
    clock = Clock()
    samples = Samples(clock)
    for seconds, node, table in looks:
        clock.now = 100.0 + seconds
        samples.add(node, table)
    return samples


def test_rates_are_differences_over_the_time_between_two_looks() -> None:
    assert sampled((1, 0, 0), (3, 100, 40), (4, 100, 100)).rates() == [(3.0, 50.0, 20.0), (4.0, 0.0, 60.0)]


def test_two_looks_at_once_have_no_rate() -> None:
    assert sampled((1, 0, 0), (1, 10, 0)).rates() == []


def test_lag_is_the_time_since_the_node_had_what_the_table_has() -> None:
    assert sampled((0, 0, 0), (2, 100, 0), (5, 100, 100)).lag_seconds() == [(0.0, 0.0), (2.0, 2.0), (5.0, 0.0)]


def test_a_table_that_counts_more_than_the_node_has_no_lag() -> None:
    assert sampled((0, 10, 12)).rows[0].lag == 0
