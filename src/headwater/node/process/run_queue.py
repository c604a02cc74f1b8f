"""The order of work on the event loop's thread, in which even many busy connections do not delay the others for long.

A connection gives way after a time slice. A hundred busy connections would still run a hundred slices between two polls
of the sockets. So one iteration of the loop has a quantum for all connections; when it is used up, the rest waits in
the queue for the next iterations. Work without a slice so far runs before work that has had one: a short request does
not wait for all long ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

SLICE_SECONDS: Final = 0.004
"""So long may one connection keep all others waiting, while few want to run."""
CROWDED: Final = 8
"""With more than so many in line a slice is a quarter of that."""
QUANTUM_SECONDS: Final = 0.016
"""So long may all of them, in one iteration of the loop."""
QUEUE_SECONDS: Final = QUANTUM_SECONDS / 2
"""Of which those in line have this; the rest is for whom the sockets tell of next."""
LARGE_AT_ONCE: Final = 4
"""So many may hold a document of up to 20 MiB while others have their turn: no budget counts it."""
LARGE_BYTES: Final = 256 << 10
"""From this size on a document takes longer than most requests do: thirty of them take the time of a slice or two."""
NOTICE_SECONDS: Final = 0.002
"""Less than this is carried over to the next iteration instead of waking at its beginning."""


class RunQueue:
    """The work for one iteration of an event loop, and the work that must wait for the next.

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
        self._waited = False  # those behind, for one iteration
        self._first: deque[Callable[[], object]] = deque()
        self._behind: deque[Callable[[], object]] = deque()

    def __len__(self) -> int:
        """Return the number of queued pieces of work."""
        return len(self._first) + len(self._behind)

    def spend(self, seconds: float) -> None:
        """Subtract time from this iteration's quantum."""
        self._spent += seconds
        if self._spent >= NOTICE_SECONDS:
            self.is_spent = self._spent >= QUANTUM_SECONDS
            self._ask()

    def first(self, work: Callable[[], object]) -> None:
        """Queue work that has not begun. It must report its time by `spend`."""
        self._first.append(work)
        self._ask()

    def behind(self, work: Callable[[], object]) -> None:
        """Queue work that has had its slice, at the end. It must report its time by `spend`."""
        self._behind.append(work)
        self._look_at_crowd()
        self._ask()

    async def turn(self) -> None:
        """Wait at the end of the queue, in a coroutine; a whole slice counts as spent when the coroutine is woken."""
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
        """Run queued work, each piece at most once, until a share of the new iteration's quantum is used up; at least
        one piece.
        """
        self._is_due = self.is_spent = False
        self._spent = 0.0
        lines = [(self._first, len(self._first)), (self._behind, len(self._behind))]  # who comes now is next time's
        try:
            for line, length in lines:
                # After one of the first that took all the time, those behind have theirs an iteration later.
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
        finally:  # whatever one of them does, the others are not forgotten
            if self._first or self._behind:
                self._ask()


class Slices:
    """The time slices of a coroutine's work; create it when the work begins."""

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: RunQueue) -> None:
        self._loop, self._queue = loop, queue
        self._ends = loop.time() + queue.slice_seconds

    async def breathe(self) -> None:
        """Let other work run first if this slice is used up. Call it often: it only reads the clock."""
        if self._loop.time() >= self._ends:
            await self._queue.turn()
            self._ends = self._loop.time() + self._queue.slice_seconds
