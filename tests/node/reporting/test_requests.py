"""Counting requests: by opcode and status, and by when the bytes came and the batch was on disk."""

from __future__ import annotations

from collections.abc import Iterator

from headwater.node.reporting.requests import Requests, Uncounted


class Clock:
    def __init__(self) -> None:
        self.now, self.looks = 100.0, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


class Kernel:
    def counts(self) -> Iterator[tuple[int, int, int]]:
        yield 0x11, 0, 7


def took(requests: Requests, opcode: int) -> tuple[int, float]:
    """How many, and how long altogether."""
    durations = requests.durations[opcode]
    return durations.at_most()[-1][1], durations.total_seconds


def test_what_waits_for_no_batch_takes_until_its_piece_is_done() -> None:
    clock = Clock()
    requests = Requests(clock=clock)
    requests.begin()
    requests.ran(0x00, 40, 0)
    requests.ran(0x00, 2, 0)
    requests.ran(0x0A, 1, 0)
    clock.now += 0.25
    requests.end()
    assert took(requests, 0x00) == (42, 42 * 0.25) and took(requests, 0x0A) == (1, 0.25)
    requests.begin()
    requests.end()
    assert took(requests, 0x00) == (42, 42 * 0.25), "counted twice"


def test_what_waits_for_a_batch_takes_until_that_is_on_disk() -> None:
    clock = Clock()
    requests = Requests(clock=clock)
    requests.begin()
    requests.ran(0x01, 1000, 5)
    clock.now += 1
    requests.end()
    requests.begin()
    requests.ran(0x01, 10, 6)
    requests.end()
    assert 0x01 not in requests.durations
    clock.now += 2
    requests.settled(5)
    assert took(requests, 0x01) == (1000, 3000.0)
    clock.now += 4
    requests.settled(6)
    assert took(requests, 0x01) == (1010, 3060.0)


def test_who_lost_a_batch_was_not_answered() -> None:
    requests = Requests(clock=Clock())
    requests.begin()
    requests.ran(0x01, 3, 5)
    requests.lost()
    requests.settled(9)
    assert requests.durations == {}


def test_one_that_was_put_off_takes_from_its_own_beginning() -> None:
    clock = Clock()
    requests = Requests(clock=clock)
    requests.begin()
    begun_at = requests.begun_at
    clock.now += 5
    requests.begin()
    requests.finished(0x20, begun_at)
    assert took(requests, 0x20) == (1, 5.0)


def test_the_clock_is_not_looked_at_for_each_request() -> None:
    clock = Clock()
    requests = Requests(clock=clock)
    requests.begin()
    for _ in range(10_000):
        requests.ran(0x01, 1, 5)
        requests.ran(0x00, 1, 0)
    requests.end()
    requests.settled(5)
    assert clock.looks == 3


def test_what_the_kernel_answered_is_counted_as_well() -> None:
    requests = Requests(Kernel())
    requests.answered(0x11, 0)
    requests.answered(0x11, 2)
    assert requests.counts() == {(0x11, 0): 8, (0x11, 2): 1}
    assert requests.counts() == {(0x11, 0): 8, (0x11, 2): 1}, "looking changes nothing"


def test_without_metrics_nothing_is_counted_and_no_clock_is_looked_at() -> None:
    clock = Clock()
    requests = Uncounted(Kernel(), clock)
    requests.begin()
    requests.answered(0x00, 0)
    requests.ran(0x00, 2, 0)
    requests.ran(0x01, 1, 7)
    requests.finished(0x92, 99.0)
    requests.end()
    requests.settled(7)
    assert (clock.looks, requests.durations, requests.counts()) == (0, {}, {})
