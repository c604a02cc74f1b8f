"""Who runs next: a quantum for each iteration of the loop, and a line for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from headwater.node.process.run_queue import CROWDED, QUANTUM_SECONDS, QUEUE_SECONDS, SLICE_SECONDS, RunQueue, Slices


class Loop:
    """A clock, and what an iteration would call; `iterate` is one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.soon: list[Callable[[], None]] = []

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def iterate(self) -> None:
        calls, self.soon = self.soon, []
        for call in calls:
            call()


def made() -> tuple[Loop, RunQueue]:
    loop = Loop()
    return loop, RunQueue(loop)  # type: ignore[arg-type]


def worker(queue: RunQueue, told: list[str], name: str, seconds: float = SLICE_SECONDS) -> Callable[[], None]:
    def work() -> None:
        told.append(name)
        queue.spend(seconds)

    return work


def test_an_iteration_is_spent_when_its_quantum_is_and_not_before() -> None:
    loop, queue = made()
    queue.spend(QUANTUM_SECONDS - 0.001)
    assert not queue.is_spent
    queue.spend(0.001)
    assert queue.is_spent
    loop.iterate()
    assert not queue.is_spent


def test_little_work_asks_for_no_iteration() -> None:
    loop, queue = made()
    queue.spend(0.0001)
    assert loop.soon == []


def test_those_in_line_run_as_far_as_their_part_goes_and_the_rest_in_later_iterations() -> None:
    loop, queue = made()
    told: list[str] = []
    for number in range(5):
        queue.behind(worker(queue, told, str(number)))
    loop.iterate()
    assert len(told) == QUEUE_SECONDS / SLICE_SECONDS == 2
    assert len(queue) == 3
    loop.iterate()
    loop.iterate()
    assert told == ["0", "1", "2", "3", "4"]
    loop.iterate()  # it begins a quantum, and nobody is left
    assert loop.soon == []


def test_work_that_was_put_off_goes_before_work_that_had_its_slice_and_one_of_each_always_runs() -> None:
    loop, queue = made()
    told: list[str] = []
    queue.behind(worker(queue, told, "slow"))
    for name in ("one", "two", "three"):
        queue.first(worker(queue, told, name))
    loop.iterate()
    assert told == ["one", "two", "slow"]


def test_after_one_that_took_all_the_time_those_behind_wait_for_one_iteration_and_no_longer() -> None:
    loop, queue = made()
    told: list[str] = []
    queue.behind(worker(queue, told, "slow"))
    for name in ("large", "larger", "largest"):
        queue.first(worker(queue, told, name, QUANTUM_SECONDS))
    loop.iterate()
    assert told == ["large"], "a turn is as long as one of them"
    loop.iterate()
    assert told == ["large", "larger", "slow"]


def test_who_comes_back_in_line_waits_for_the_next_iteration() -> None:
    loop, queue = made()
    told: list[int] = []

    def again() -> None:
        told.append(1)
        queue.behind(again)

    queue.first(again)
    loop.iterate()
    assert told == [1]
    loop.iterate()
    assert told == [1, 1]


def test_an_error_of_one_of_them_forgets_nobody_else() -> None:
    loop, queue = made()
    told: list[str] = []
    queue.first(lambda: 1 // 0)
    queue.first(worker(queue, told, "after"))
    with pytest.raises(ZeroDivisionError):
        loop.iterate()
    loop.iterate()
    assert told == ["after"]


def test_slices_are_short_in_a_crowd() -> None:
    _, queue = made()
    assert queue.slice_seconds == SLICE_SECONDS
    for _ in range(CROWDED + 1):
        queue.behind(bool)
    assert queue.slice_seconds < SLICE_SECONDS


def test_a_coroutine_breathes_when_its_slice_is_over_and_not_before() -> None:
    async def work() -> list[str]:
        loop, queue = made()
        told = list[str]()

        async def long() -> None:
            slices = Slices(loop, queue)  # type: ignore[arg-type]
            await slices.breathe()
            told.append("first")
            loop.now += SLICE_SECONDS
            await slices.breathe()
            told.append("second")

        task = asyncio.ensure_future(long())
        await asyncio.sleep(0)
        assert (told, len(queue)) == (["first"], 1)
        loop.iterate()
        await task
        return told

    assert asyncio.run(work()) == ["first", "second"]
