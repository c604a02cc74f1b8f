"""Copies and hand-overs take turns: while a vbucket changes hands, nothing else happens between the two nodes.

A hand-over is a handful of messages, each of which waits for a disk or an event loop of one of the nodes; a copy keeps
both busy, with megabytes on their way in the queues. So several vbuckets are copied nearly to the end together, then
change hands one by one, and the next ones begin. One by one, because four at the same time made each of them refuse
writes for five times as long (43 ms instead of 8, in the median, on a machine with two busy cores). While a hand-over
waits no new copy begins, so none waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Alternation:
    """A lock that admits either any number of copies, or one hand-over. A cancelled wait for a turn leaves no trace.

    Args:
        quiet_seconds: the time after the last hand-over of a turn in which nothing is copied: clients then learn the
            new owners, and repeat refused writes, which would wait for the commits of a copy.
    """

    def __init__(self, quiet_seconds: float = 0.0) -> None:
        self._quiet_seconds = quiet_seconds
        self._copying = self._due_count = 0
        self._handing_over = False
        self._quiet_timer: asyncio.TimerHandle | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    @asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        """Enclose one copy; wait first for hand-overs that run or are due, and for `quiet_seconds` after the last
        one.
        """
        while self._handing_over or self._due_count or self._quiet_timer is not None:
            await self._change()
        self._copying += 1
        try:
            yield
        finally:
            self._copying -= 1
            self._wake_waiters()

    @asynccontextmanager
    async def handing_over(self) -> AsyncIterator[None]:
        """Enclose a hand-over; wait first for running copies, and for earlier hand-overs."""
        self._due_count += 1
        try:
            while self._copying or self._handing_over:
                await self._change()
            self._handing_over = True
        finally:
            # Also if the wait was cancelled: copies that stood back for this hand-over must go on.
            self._due_count -= 1
            self._wake_waiters()
        try:
            yield
        finally:
            self._handing_over = False
            self._be_quiet()
            self._wake_waiters()

    def _be_quiet(self) -> None:
        if self._quiet_timer is not None:
            self._quiet_timer.cancel()
        self._quiet_timer = None
        # While another hand-over is due no copy begins anyway, so quiet begins behind the last one.
        if self._quiet_seconds and not self._due_count:
            self._quiet_timer = asyncio.get_running_loop().call_later(self._quiet_seconds, self._end_quiet)

    def _end_quiet(self) -> None:
        self._quiet_timer = None
        self._wake_waiters()

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake_waiters(self) -> None:
        # All are woken and look for themselves. They leave the set in a later turn of the loop, not during this one.
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
