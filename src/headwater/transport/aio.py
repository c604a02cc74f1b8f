"""Wait inside asyncio: the event loop watches the channels, other tasks run meanwhile.

Several tasks may wait for one channel (many requests on one connection). The loop takes one callback for a descriptor,
so the waiters of a channel are kept in a list, and all of them wake together. One that has read on behalf of the others
wakes them once more: the bytes they were waiting for will not make the descriptor readable again.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field

from headwater.transport.blocking import Clock
from headwater.transport.channel import Channel
from headwater.transport.waiting import Ready, Resolve, Result, SocketAddress, Steps


@dataclass(slots=True)
class _Watched:
    """A channel somebody waits for; its descriptor is remembered because closing the channel forgets it."""

    descriptor: int
    waiters: list[asyncio.Future[None]] = field(default_factory=list)

    def wake(self) -> None:
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)


class Waiters:
    """Who waits for which channel, on one event loop."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._watched: dict[Channel, _Watched] = {}

    async def run(self, steps: Steps[Result]) -> Result:
        """Drive a step generator to its end and return its result; cancelling closes the generator."""
        answer: object = None
        seen: dict[Channel, int] = {}
        with closing(steps):
            while True:
                try:
                    asked = steps.send(answer)
                except StopIteration as stop:
                    return stop.value  # type: ignore[no-any-return]
                finally:
                    self._tell_others(seen)
                answer, seen = None, {}
                if isinstance(asked, Resolve):
                    answer = await resolve(asked)
                else:
                    await self._wait(asked)
                    seen = {channel: channel.progress for channel in asked.channels}

    def sweep(self) -> None:
        """Channels were closed outside of a step: stop watching them, and wake whoever waits for one."""
        self._tell_others({})

    def _tell_others(self, seen: dict[Channel, int]) -> None:
        """After a step: wake those who wait for a channel that was read, written or closed in it."""
        for channel, watched in list(self._watched.items()):
            if channel.fileno() < 0:
                self._forget(channel)
                watched.wake()
            elif seen.get(channel, channel.progress) != channel.progress:
                watched.wake()

    async def _wait(self, asked: Ready) -> None:
        timeout = None if asked.deadline is None else max(0.0, asked.deadline - self._clock())
        if timeout == 0.0 or any(channel.fileno() < 0 for channel in asked.channels):
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for channel in asked.channels:
            self._watch(channel, woken)
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(woken, timeout)
        finally:
            for channel in asked.channels:
                self._unwatch(channel, woken)

    def _watch(self, channel: Channel, woken: asyncio.Future[None]) -> None:
        loop, descriptor = asyncio.get_running_loop(), channel.fileno()
        watched = self._watched.setdefault(channel, _Watched(descriptor))
        watched.waiters.append(woken)
        loop.add_reader(descriptor, watched.wake)
        if channel.wants_to_write:
            loop.add_writer(descriptor, watched.wake)

    def _unwatch(self, channel: Channel, woken: asyncio.Future[None]) -> None:
        watched = self._watched.get(channel)
        if watched is None or woken not in watched.waiters:
            return  # closed meanwhile, and forgotten
        watched.waiters.remove(woken)
        if not watched.waiters:
            self._forget(channel)
        elif not channel.wants_to_write:
            asyncio.get_running_loop().remove_writer(watched.descriptor)

    def _forget(self, channel: Channel) -> None:
        loop, descriptor = asyncio.get_running_loop(), self._watched.pop(channel).descriptor
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)


async def resolve(asked: Resolve) -> list[SocketAddress] | OSError:
    """Look a host up without blocking the loop."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(asked.host, asked.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    return [(family, address) for family, _, _, _, address in found]
