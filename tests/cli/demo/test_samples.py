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
    samples = sampled((0, 0, 0), (1, 50, 50), (2, 100, 50), (5, 100, 50), (6, 100, 100))
    assert samples.lag_seconds() == [(1.0, 0.0), (2.0, 1.0), (5.0, 4.0), (6.0, 0.0)]


def test_the_start_of_the_mirror_is_no_lag() -> None:
    samples = sampled((0, 0, 0), (2, 100, 0), (60, 100, 0), (61, 100, 40), (62, 100, 100), (63, 120, 100))
    assert max(lag for _, lag in samples.lag_seconds()) == 1.0


def test_the_wait_for_the_mirror_is_drawn_as_one_second() -> None:
    samples = sampled((0, 0, 0), (2, 100, 0), (62, 100, 100), (65, 100, 100))
    samples.waited = (2.0, 62.0)
    assert [samples.drawn(each) for each in (0.0, 1.5, 2.0, 2.5, 30.0, 62.0, 65.0)] == [0, 1.5, 2, 2.5, 3, 3, 6]
    samples.waited = (2.0, 2.5)  # shorter than a second: as it was
    assert [samples.drawn(each) for each in (2.0, 2.5, 4.0)] == [2, 2.5, 4]


def test_time_begins_when_it_is_told_to() -> None:
    clock = Clock()
    samples = Samples(clock)
    clock.now = 150.0
    samples.begin()
    clock.now = 151.0
    assert samples.add(10, 0).seconds == 1.0 and samples.rows[0].seconds == 0.0


def test_a_table_that_counts_more_than_the_node_has_no_lag() -> None:
    assert sampled((0, 10, 12)).rows[0].lag == 0


def test_the_first_batch_took_all_of_the_wait() -> None:
    samples = sampled((0, 0, 0), (2, 100, 0), (41, 100, 0), (42, 100, 100))
    samples.waited = (2.0, 41.0)
    assert samples.rates()[-1] == (42.0, 0.0, 2.5)
