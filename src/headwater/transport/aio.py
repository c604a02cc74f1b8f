"""Waits inside asyncio: the event loop watches the channels, and other tasks run meanwhile.

A channel has one waiter at a time. Another task may close it meanwhile: then it is removed from the loop at once,
before its descriptor can belong to another connection.
"""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing
from dataclasses import dataclass

from headwater.transport.blocking import Clock, no_name
from headwater.transport.channel import Channel, SocketAddress
from headwater.transport.waiting import Ready, Resolve, Result, Steps


@dataclass(slots=True)
class _WatchedChannel:
    """A channel that the loop watches; `descriptor` is kept here because a closed channel no longer has it."""

    descriptor: int
    woken: asyncio.Future[None]
    for_room: bool = False

    def for_room_too(self) -> None:
        """Wait for room to write as well."""
        if not self.for_room:
            self.for_room = True
            asyncio.get_running_loop().add_writer(self.descriptor, _wake, self.woken)


class Waiters:
    """The tasks that wait for channels, on one event loop."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._watched: dict[Channel, _WatchedChannel] = {}

    async def run(self, steps: Steps[Result]) -> Result:
        """Run a step generator to its end and return its result; cancellation closes the generator."""
        answer: object = None
        with closing(steps):
            while True:
                try:
                    wait = steps.send(answer)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                finally:
                    self.sweep()
                answer = None
                if isinstance(wait, Resolve):
                    answer = await resolve(wait)
                else:
                    await self._wait(wait)

    def sweep(self) -> None:
        """Update the watched channels after a task has worked on them.

        A closed channel is removed, and its waiting task woken. If a task left unsent bytes in a channel, the loop also
        watches that channel for room, and the waiting task sends them: their sender waits for an answer, not for room.
        """
        for channel, watched in list(self._watched.items()):
            if channel.fileno() < 0:
                _wake(self._unwatch(channel))
            elif channel.wants_to_write:
                watched.for_room_too()

    async def _wait(self, ready: Ready) -> None:
        timeout = None if ready.deadline is None else max(0.0, ready.deadline - self._clock())
        if timeout == 0.0 or any(channel.fileno() < 0 for channel in ready.channels):
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()
        for channel in ready.channels:
            self._watch(channel, woken)
        if ready.signal is not None:
            ready.signal.wake = lambda: _wake(woken)
        timer = None if timeout is None else loop.call_later(timeout, _wake, woken)
        try:
            # Not asyncio.wait_for: in Python 3.11 a task that is cancelled in the turn in which it is woken goes on.
            # Nor asyncio.timeout: that takes longer than all else here, and cancels the task where a timer can wake it.
            await woken
        finally:
            if timer is not None:
                timer.cancel()
            for channel in ready.channels:
                if channel in self._watched:
                    self._unwatch(channel)
            if ready.signal is not None:
                ready.signal.wake = None

    def _watch(self, channel: Channel, woken: asyncio.Future[None]) -> None:
        loop, descriptor = asyncio.get_running_loop(), channel.fileno()
        watched = self._watched[channel] = _WatchedChannel(descriptor, woken)
        loop.add_reader(descriptor, _wake, woken)
        if channel.wants_to_write:
            watched.for_room_too()

    def _unwatch(self, channel: Channel) -> asyncio.Future[None]:
        loop, watched = asyncio.get_running_loop(), self._watched.pop(channel)
        loop.remove_reader(watched.descriptor)
        loop.remove_writer(watched.descriptor)
        return watched.woken


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


async def resolve(request: Resolve) -> list[SocketAddress] | OSError:
    """Look up a host without blocking the loop."""
    loop = asyncio.get_running_loop()
    try:
        entries = await loop.getaddrinfo(request.host, request.port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:
        return no_name()
    return [(family, address) for family, _, _, _, address in entries]
