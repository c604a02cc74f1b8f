"""Time passes only when nothing is left to do, and a loop does what asyncio asks of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable

import pytest

from harness.simulation import scheduler
from harness.simulation.scheduler import Runaway, Schedule, SimLoop, Threads
from harness.simulation.sockets import Network


@pytest.fixture
def schedule() -> Schedule:
    return Schedule(seed=1)


def fails() -> None:
    raise LookupError("made up")


def loop_of(schedule: Schedule, name: str = "n0") -> SimLoop:
    return SimLoop(schedule, Network(schedule), name)


def test_things_happen_at_their_time_and_then_in_the_order_they_were_asked_for(schedule: Schedule) -> None:
    seen: list[tuple[str, float]] = []

    def note(what: str) -> Callable[[], None]:
        return lambda: seen.append((what, schedule.now))

    schedule.after(2.0, note("third"))
    schedule.after(1.0, note("first"))
    schedule.after(1.0, note("second"))
    schedule.after(9.0, note("too late"))
    assert not schedule.run(3.0)
    assert seen == [("first", 1.0), ("second", 1.0), ("third", 2.0)]
    assert schedule.now == 3.0


def test_a_run_ends_when_what_is_waited_for_is_so(schedule: Schedule) -> None:
    schedule.after(1.0, lambda: None)
    schedule.after(2.0, lambda: None)
    assert schedule.run(5.0, lambda: schedule.now >= 1.0)
    assert schedule.now == 1.0


def test_what_goes_round_in_circles_is_stopped(schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "EVENTS_MAX", 100)

    def again() -> None:
        schedule.after(0.0, again)

    again()
    with pytest.raises(Runaway, match="100 events"):
        schedule.run(0.0)


def test_an_exception_that_nobody_catches_fails_the_run(schedule: Schedule) -> None:
    loop_of(schedule).call_soon(fails)
    with pytest.raises(LookupError, match="made up"):
        schedule.run(1.0)


def test_a_coroutine_waits_in_simulated_time(schedule: Schedule) -> None:
    loop = loop_of(schedule)
    assert loop.complete(asyncio.sleep(30, "awake")) == "awake"
    assert schedule.now == loop.time() == 30.0
    with pytest.raises(TimeoutError, match="n0: not done within 5 s"):
        loop.complete(asyncio.sleep(30), seconds=5.0)


def test_nothing_of_a_dead_process_runs_and_a_cancelled_timer_neither(schedule: Schedule) -> None:
    dead, alive, seen = loop_of(schedule), loop_of(schedule, "n1"), list[str]()
    dead.call_later(1.0, seen.append, "dead")
    alive.call_later(1.0, seen.append, "cancelled").cancel()
    alive.call_later(1.0, seen.append, "alive")
    dead.kill()
    schedule.run(2.0)
    assert seen == ["alive"]
    assert dead.is_closed() and not dead.is_running()


def test_each_event_of_a_loop_is_watched(schedule: Schedule) -> None:
    loop, seen = loop_of(schedule), list[SimLoop]()
    schedule.watch = seen.append
    loop.call_soon(lambda: None)
    schedule.after(0.0, lambda: None)
    schedule.run(1.0)
    assert seen == [loop]


def test_threads_take_their_time(schedule: Schedule) -> None:
    loop = loop_of(schedule)
    done: list[float] = []
    future = loop.run_in_executor(Threads(loop, seconds=0.5), lambda: done.append(schedule.now))
    assert done == []
    assert schedule.run(1.0, future.done)
    assert done == [schedule.now] and 0.0 < schedule.now <= 0.5


def test_who_waits_for_the_end_of_the_threads_does_what_is_left(schedule: Schedule) -> None:
    threads, done = Threads(loop_of(schedule)), list[str]()
    threads.submit(done.append, "first")
    failing = threads.submit(fails)
    threads.submit(done.append, "second")
    threads.shutdown()
    assert done == ["first", "second"] and threads.waiting == []
    assert isinstance(failing.exception(), LookupError)
    schedule.run(1.0)
    assert done == ["first", "second"]  # once


def test_a_task_that_had_not_begun_when_its_process_died_never_does(schedule: Schedule) -> None:
    loop = loop_of(schedule)
    begun: list[str] = []

    async def work() -> None:
        begun.append("begun")

    coroutine = work()
    loop.create_task(coroutine)
    loop.kill()
    schedule.run(1.0)
    assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
    assert not begun
