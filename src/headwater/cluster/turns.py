"""Copying and handing over take turns: while a vbucket changes hands, nothing else is copied between the two nodes.

A hand-over is a handful of messages, each of which waits for a disk or an event loop of one of the nodes; a copy keeps
both busy, with megabytes on their way in the queues. So those that are copied are brought near together, then change
hands together, and the next ones begin. Who waits to hand over lets no new copy begin, so none waits for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Either any number copies, or any number hands over."""

    def __init__(self) -> None:
        self._copying = self._handing_over = self._waiting = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def copying(self) -> AsyncIterator[None]:
        """One copy; waits for hand-overs that are under way or due."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._handing_over and not self._waiting)
            self._copying += 1
        try:
            yield
        finally:
            self._copying -= 1
            await self._tell()

    @asynccontextmanager
    async def handing_over(self) -> AsyncIterator[None]:
        """One hand-over; waits for the copies that are under way."""
        self._waiting += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not self._copying)
                self._handing_over += 1
        finally:
            self._waiting -= 1
            await self._tell()
        try:
            yield
        finally:
            self._handing_over -= 1
            await self._tell()

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
