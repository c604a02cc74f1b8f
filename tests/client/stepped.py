"""Tasks that run when a test tells them to, over a real socket whose other end the test holds.

An event loop decides in which order tasks run, and a wake-up that gets lost shows there as seconds of waiting. Here the
test decides, and asks each task whether anything has woken it.
"""

import fcntl
import os
import select
import socket
import sys
import termios

from headwater.client.pipeline import Pipeline
from headwater.client.routing import Address
from headwater.errors import HeadwaterError
from headwater.protocol.handshake import Login
from headwater.testing.clock import FakeClock
from headwater.testing.peers import Peer
from headwater.transport import blocking
from headwater.transport.waiting import Ready, Resolve, Steps
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame


class Stepped:
    """A step generator and what it waits for. `outcome` is its result or its error, None as long as it runs."""

    def __init__(self, steps: Steps[object]) -> None:
        self._steps, self._answer = steps, None
        self._asked, self._woken = Ready(), True
        self.outcome: object = None
        self.go()

    def go(self) -> None:
        """Run until it waits again or is over."""
        self._forget()
        try:
            asked = self._steps.send(self._answer)
            while isinstance(asked, Resolve):
                asked = self._steps.send(blocking.resolve(asked))
        except StopIteration as stop:
            self.outcome = stop.value if stop.value is not None else "done"
        except HeadwaterError as error:
            self.outcome = error
        else:
            self._asked, self._woken = asked, False
            if asked.signal is not None:
                asked.signal.wake = self._wake

    def go_on(self) -> None:
        """Run for as long as anything wakes it."""
        while self.is_awake:
            self.go()

    def cancel(self) -> None:
        """End it where it waits, as cancelling an asyncio task does."""
        self._forget()
        self._steps.close()
        self.outcome = "cancelled"

    @property
    def is_over(self) -> bool:
        return self.outcome is not None

    @property
    def is_awake(self) -> bool:
        """Whether anything that it waits for has come."""
        channels = self._asked.channels
        if self.is_over:
            return False
        return self._woken or any(channel.fileno() < 0 for channel in channels) or is_readable(*channels)

    def _wake(self) -> None:
        self._woken = True

    def _forget(self) -> None:
        if self._asked.signal is not None:
            self._asked.signal.wake = None


def is_readable(*sockets: object) -> bool:
    return bool(sockets) and bool(select.select(sockets, (), (), 0)[0])


class Node:
    """The other end: sees the requests, and says only what the test says."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._buffer = FrameBuffer()
        self.clock = FakeClock()
        self.pipeline = Pipeline(Address(*self._listener.getsockname()), self.clock)
        opening = Stepped(self.pipeline.open(Login("test", "default"), 10.0))
        self.socket, _ = self._listener.accept()
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = Peer(address=self._listener.getsockname())
        while not opening.is_over:
            if is_readable(self.socket):
                for request in self.requests():
                    self.say(*peer.answers(request))
            if opening.is_awake or self.pipeline.channel.wants_to_write:
                opening.go()
        assert self.pipeline.is_open, opening.outcome

    def requests(self) -> list[Frame]:
        """Return the requests that have arrived; waits until one has."""
        return self._buffer.receive_data(self.socket.recv(1 << 20))

    def say(self, *frames: Frame) -> None:
        """Send frames, and wait until they have arrived: what a task finds does not depend on the system's haste."""
        data = b"".join(frame.encode() for frame in frames)
        there = self._unread_bytes() + len(data)
        self.socket.sendall(data)
        while self._unread_bytes() < there:
            os.sched_yield()

    def _unread_bytes(self) -> int:
        count = fcntl.ioctl(self.pipeline.channel.fileno(), termios.FIONREAD, bytes(4))
        return int.from_bytes(count, sys.byteorder)

    def close(self) -> None:
        self.pipeline.close()
        self.socket.close()
        self._listener.close()
