"""The order of work on the event loop's thread, in which even many busy connections do not delay the others for long.

A connection gives way after a time slice. A hundred busy connections would still run a hundred slices between two polls
of the sockets. So one iteration of the loop has a quantum for all connections; when the quantum is used up, the other
work waits in the queue for the next iterations. Work that has had no slice yet runs before work that has had one: so a
short request does not wait for all long ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_SECONDS: Final = 0.004
"""The length of a time slice, while few connections wait."""
CROWDED: Final = 8
"""If more pieces of work than this wait behind others, a time slice is a quarter as long."""
QUANTUM_SECONDS: Final = 0.016
"""The time for all connections in one iteration of the loop."""
QUEUE_SECONDS: Final = QUANTUM_SECONDS / 2
"""The part of the quantum for queued work; the rest is for sockets that become readable."""
LARGE_AT_ONCE: Final = 4
"""The number of requests that may hold a document of up to 20 MiB over several turns; no budget counts these
documents.
"""
LARGE_BYTES: Final = 256 << 10
"""A document from this size on takes longer than most requests: thirty such documents take one or two slices."""
NOTICE_SECONDS: Final = 0.002
"""Less spent time than this is not reset at the next iteration, to save the call; it adds up."""


class RunQueue:
    """The queue of work for the iterations of an event loop.

    Attributes:
        is_spent: True if this iteration's quantum is used up: new work should be queued.
        slice_seconds: the length of a time slice.
        large: a semaphore for work that holds a large document over several turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.is_spent: bool = False
        self.slice_seconds: float = SLICE_SECONDS
        self.large: Final = asyncio.Semaphore(LARGE_AT_ONCE)
        self._loop = loop
        self._spent = 0.0
        self._is_due = False
        self._waited = False  # True if the work in `_behind` has had no turn in the last iteration
        self._first: deque[Callable[[], object]] = deque()
        self._behind: deque[Callable[[], object]] = deque()

    def __len__(self) -> int:
        """Return the number of queued pieces of work."""
        return len(self._first) + len(self._behind)

    def spend(self, seconds: float) -> None:
        """Count time that was spent in this iteration."""
        self._spent += seconds
        if self._spent >= NOTICE_SECONDS:
            self.is_spent = self._spent >= QUANTUM_SECONDS
            self._ask()

    def first(self, work: Callable[[], object]) -> None:
        """Queue work that has had no time slice yet. The work must report its time with `spend`."""
        self._first.append(work)
        self._ask()

    def behind(self, work: Callable[[], object]) -> None:
        """Queue work that has had a time slice, behind all other work. The work must report its time with `spend`."""
        self._behind.append(work)
        self._look_at_crowd()
        self._ask()

    async def turn(self) -> None:
        """Wait in the queue behind all other work. When the coroutine is woken, a whole slice counts as spent."""
        future: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)
                self.spend(self.slice_seconds)

        self.behind(wake)
        await future

    def _look_at_crowd(self) -> None:
        self.slice_seconds = SLICE_SECONDS if len(self._behind) <= CROWDED else SLICE_SECONDS / 4

    def _ask(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        """Begin an iteration: run queued work until QUEUE_SECONDS are used up, but at least one piece, and each piece
        at most once.
        """
        self._is_due = self.is_spent = False
        self._spent = 0.0
        # Work that is added later waits for the next call.
        lines = [(self._first, len(self._first)), (self._behind, len(self._behind))]
        try:
            for line, length in lines:
                # If the first queue has used up the quantum, the second one waits, but not in two iterations in a row.
                if line is self._behind:
                    self._waited = length > 0 and self.is_spent and not self._waited
                    if self._waited:
                        break
                for number in range(length):
                    if number and self._spent >= QUEUE_SECONDS:
                        break
                    work = line.popleft()
                    self._look_at_crowd()
                    work()
        finally:  # also after an error, the remaining work gets its turn
            if self._first or self._behind:
                self._ask()


class Slices:
    """The time slices of a coroutine's work; create it when the work begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: RunQueue) -> None:
        self._loop, self._queue = loop, queue
        self._ends = loop.time() + queue.slice_seconds

    async def breathe(self) -> None:
        """If this slice is used up, wait until other work has run, and begin a new slice. Call this often: usually it
        only reads the clock.
        """
        if self._loop.time() >= self._ends:
            await self._queue.turn()
            self._ends = self._loop.time() + self._queue.slice_seconds
