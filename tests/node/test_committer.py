"""Group commit with a store that obeys: what is in which batch, who is told when, and what a lost batch takes along."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from typing import Any
from unittest import mock

from headwater.node.committer import Committer
from headwater.node.process.threads import Inline


class Disk:
    """A store whose writes end when told to."""

    def __init__(self) -> None:
        self.staged: list[str] = []
        self.durable: list[str] = []
        self.batches: list[list[str]] = []
        self.may_end = threading.Semaphore(0)
        self.error: Exception | None = None
        self.full = False

    def more_room(self) -> bool:
        return False

    def freeze(self) -> list[str] | None:
        batch, self.staged = self.staged, []
        return batch or None

    def write(self, batch: list[str]) -> None:
        self.may_end.acquire(timeout=120)
        if self.error:
            raise self.error

    def settle(self, batch: list[str]) -> None:
        self.durable += batch
        self.batches.append(batch)

    def abandon(self, batch: list[str], error: BaseException) -> list[int]:
        self.staged.clear()
        return [7]


class Waiter:
    def __init__(self) -> None:
        self.flushed, self.dropped = 0, ""

    def flush(self) -> None:
        self.flushed += 1

    def drop(self, cause: str, *, fault: bool = True) -> None:
        self.dropped = cause


def run(story: Callable[[Disk, Committer], Awaitable[None]]) -> None:
    async def main() -> None:
        disk = Disk()
        committer = Committer(disk, asyncio.get_running_loop())
        try:
            await story(disk, committer)
        finally:
            disk.may_end.release(100)
            committer.close()

    asyncio.run(main())


def test_what_is_staged_while_a_batch_is_written_goes_into_the_next() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        disk.staged.append("a")
        first = committer.wrote()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        disk.staged += ["b", "c"]
        second = committer.wrote()
        assert second == first + 1 and committer.gate() == second
        disk.may_end.release()
        assert await committer.wait(first) and disk.durable == ["a"]
        disk.may_end.release()
        assert await committer.wait(second) and disk.batches == [["a"], ["b", "c"]]
        assert committer.gate() == 0 and committer.durable == second

    run(story)


def test_a_reader_of_what_is_in_flight_waits_for_that_batch_only() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        disk.staged.append("a")
        first = committer.wrote()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert committer.gate() == first
        disk.may_end.release()
        assert await committer.wait(committer.gate())

    run(story)


def test_a_batch_that_turns_out_empty_is_durable_as_it_stands() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        waiter = Waiter()
        committer.waiting.add(waiter)
        gate = committer.wrote()
        assert await committer.wait(gate) and waiter.flushed == 1 and disk.batches == []

    run(story)


def test_a_lost_batch_drops_those_who_wait_and_resolves_nothing_as_durable() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        told: list[tuple[str, list[int]]] = []
        committer.on_failure.append(lambda error, lost: told.append((str(error), lost)))
        disk.error = OSError("the disk is gone")
        disk.staged.append("a")
        gate, waiter = committer.wrote(), Waiter()
        committer.waiting.add(waiter)
        disk.may_end.release()
        assert not await committer.wait(gate)
        assert "the disk is gone" in waiter.dropped and disk.durable == [] and told == [("the disk is gone", [7])]
        disk.error = None
        disk.staged.append("b")
        later = committer.wrote()
        disk.may_end.release()
        assert later > gate and await committer.wait(later) and disk.durable == ["b"]

    run(story)


def test_what_is_staged_by_who_hears_of_a_lost_batch_is_not_durable_before_it_is_on_disk() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        gates: list[int] = []

        def make_up_for_it(_: BaseException, __: list[int]) -> None:
            disk.error = None
            disk.staged.append("again")
            gates.append(committer.wrote())

        committer.on_failure.append(make_up_for_it)
        disk.error = OSError("the disk is gone")
        disk.staged.append("a")
        lost = committer.wrote()
        disk.may_end.release()
        assert not await committer.wait(lost)
        assert disk.durable == [] and committer.durable < gates[0]
        disk.may_end.release()
        assert await committer.wait(gates[0]) and disk.durable == ["again"]

    run(story)


def test_who_waits_no_more_is_forgotten_though_nobody_writes() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        class Answer(asyncio.Future[bool]):
            def __init__(self) -> None:
                super().__init__()
                answers.add(self)

        answers = weakref.WeakSet[Answer]()
        committer._loop = mock.Mock(wraps=asyncio.get_running_loop(), create_future=Answer)
        for _ in range(100):
            waiting = asyncio.ensure_future(committer.wait(committer.durable + 1))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        del waiting
        gc.collect()
        assert len(answers) <= 1

    run(story)


def test_whoever_waits_for_room_is_called_when_the_arena_is_empty() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        called = asyncio.Event()
        disk.staged.append("a")
        committer.when_room(called.set)
        await asyncio.wait_for(called.wait(), 120)
        assert disk.staged == []
        disk.may_end.release()
        await committer.drain()

    run(story)


def test_whoever_waits_for_room_on_a_full_disk_asks_now_and_then_and_not_all_the_time() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        disk.full, asked, over = True, 0, asyncio.Event()

        def ask() -> None:
            nonlocal asked
            asked += 1
            if disk.full:
                committer.when_room(ask)
            else:
                over.set()

        committer.when_room(ask)
        for _ in range(1000):
            await asyncio.sleep(0)
        assert asked == 0
        disk.full = False
        await asyncio.wait_for(over.wait(), 120)
        assert asked == 1

    run(story)


def test_readers_hear_of_each_commit() -> None:
    async def story(disk: Disk, committer: Committer) -> None:
        heard: list[int] = []
        committer.on_durable.append(lambda: heard.append(committer.durable))
        for _ in range(3):
            disk.staged.append("x")
            disk.may_end.release()
            await committer.wait(committer.wrote())
        assert heard == [1, 2, 3]

    run(story)


def test_what_is_staged_when_it_closes_is_never_written() -> None:
    """A start that is refused has staged a new branch."""

    async def story(disk: Disk, committer: Committer) -> None:
        disk.staged.append("a")
        committer.wrote()
        committer.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert disk.staged == ["a"] and committer.commits == 0

    run(story)


class NoThread(Executor):
    """Takes no work for a while."""

    def __init__(self) -> None:
        self.refuses = True

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.refuses:
            raise RuntimeError("can't start new thread")
        return Inline().submit(fn, *args, **kwargs)


def test_a_batch_that_no_thread_takes_is_lost_and_the_next_one_is_written() -> None:
    async def main() -> None:
        disk, waiter, thread = Disk(), Waiter(), NoThread()
        committer = Committer(disk, asyncio.get_running_loop(), thread)
        disk.may_end.release(100)
        disk.staged.append("a")
        lost = committer.wrote()
        committer.waiting.add(waiter)
        assert not await committer.wait(lost) and "can't start new thread" in waiter.dropped
        thread.refuses = False
        disk.staged.append("b")
        assert await committer.wait(committer.wrote()) and disk.durable == ["b"]
        await committer.drain()

    asyncio.run(main())


def test_when_the_index_can_not_follow_the_log_the_node_ends() -> None:
    class Broken(Disk):
        def settle(self, batch: list[str]) -> None:
            raise MemoryError

    async def main() -> None:
        disk, ended = Broken(), asyncio.Event()
        committer = Committer(disk, asyncio.get_running_loop(), halt=ended.set)
        disk.may_end.release(100)
        disk.staged.append("a")
        committer.wrote()
        await asyncio.wait_for(ended.wait(), 120)
        assert committer.durable == 0
        committer.close()

    asyncio.run(main())


def test_a_waiter_that_fails_is_hung_up_on_and_the_others_are_woken() -> None:
    class Failing(Waiter):
        def flush(self) -> None:
            raise MemoryError

    async def story(disk: Disk, committer: Committer) -> None:
        failing, others = Failing(), [Waiter() for _ in range(10)]
        disk.staged.append("a")
        gate = committer.wrote()
        committer.waiting |= {failing, *others}
        disk.may_end.release()
        assert await committer.wait(gate)
        assert failing.dropped == "internal error" and all(one.flushed == 1 for one in others)

    run(story)
