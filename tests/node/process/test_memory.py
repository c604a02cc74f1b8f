"""Memory goes back: large buffers with their last reference, the allocator's rest when there is enough of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headwater.node.process import memory
from headwater.node.process.memory import (
    LOOK_PARTS,
    TRIM_BYTES_MIN,
    Trimmer,
    free_bytes_of_libc,
    mapped,
    mapped_copy,
    trim_libc,
)

DEADLINE_SECONDS = 60.0


class Heap:
    """An allocator that tells what the test says, and counts how often it is told to give back."""

    def __init__(self) -> None:
        self.free, self.looks, self.trims, self.seconds = 0, 0, 0, 0.0
        self.threads: set[int] = set()

    def free_bytes(self) -> int:
        self.looks += 1
        self.seconds += 1
        self.threads.add(threading.get_ident())
        return self.free

    def trim(self) -> None:
        self.trims += 1


@contextmanager
def trimming(heap: Heap) -> Iterator[Trimmer]:
    trimmer = Trimmer(asyncio.get_running_loop(), heap.free_bytes, heap.trim)
    trimmer.start()
    try:
        yield trimmer
    finally:
        trimmer.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.001)


async def looked(heap: Heap, times: int = 3) -> None:
    """Wait until it has looked so many times more."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        wanted = heap.looks + times
        while heap.looks < wanted:
            await asyncio.sleep(0.001)


def test_a_copy_is_what_was_copied_and_zeros_are_zeros() -> None:
    assert bytes(mapped_copy(memoryview(b"abcdef")[2:])) == b"cdef"
    assert mapped(5)[:] == bytes(5)


def test_much_that_was_freed_is_given_back_once() -> None:
    async def scenario() -> None:
        heap = Heap()
        with trimming(heap) as trimmer:
            heap.free = TRIM_BYTES_MIN - 1
            await looked(heap)
            assert heap.trims == 0
            heap.free = TRIM_BYTES_MIN
            await looked(heap)
            assert heap.trims == trimmer.trims == 1

    asyncio.run(scenario())


def test_what_was_used_again_and_freed_again_is_given_back_again() -> None:
    async def scenario() -> None:
        heap = Heap()
        with trimming(heap):
            for round_ in range(1, 4):
                heap.free = 5 * TRIM_BYTES_MIN
                await looked(heap)
                assert heap.trims == round_
                heap.free = 4 * TRIM_BYTES_MIN
                await looked(heap)

    asyncio.run(scenario())


def test_a_look_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        heap = Heap()
        with trimming(heap):
            await looked(heap)
        assert threading.get_ident() not in heap.threads

    asyncio.run(scenario())


def test_a_look_that_takes_long_is_taken_seldom() -> None:
    async def scenario() -> None:
        heap = Heap()
        trimmer = Trimmer(asyncio.get_running_loop(), heap.free_bytes, heap.trim, lambda: heap.seconds)
        trimmer.start()
        await looked(heap, 1)
        async with asyncio.timeout(DEADLINE_SECONDS):
            while trimmer.pause_seconds < LOOK_PARTS:
                await asyncio.sleep(0.001)
        trimmer.stop()
        assert (heap.looks, trimmer.pause_seconds) == (1, LOOK_PARTS)

    asyncio.run(scenario())


def test_an_allocator_that_does_not_tell_is_left_alone() -> None:
    async def scenario() -> None:
        heap = Heap()
        trimmer = Trimmer(asyncio.get_running_loop(), None, heap.trim)
        trimmer.start()
        await asyncio.sleep(0)
        trimmer.stop()
        assert heap.trims == 0

    asyncio.run(scenario())


def test_the_library_here_tells_and_obeys() -> None:
    free = free_bytes_of_libc()
    if free is None:
        pytest.skip("the C library does not tell what is free")
    kept = [bytes(100_000) for _ in range(300)]
    del kept[::2]
    assert free() > 10_000_000
    trim_libc()
