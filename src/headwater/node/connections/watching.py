"""Watch a connection's socket with the event loop, or, if the session allows it, with rounds of a kernel.

    Connection --begin, end--> SocketWatch --join, leave, allow, take_back--> Rounds (node/kv/rounds.py)
                                           --add_reader, remove_reader--> the event loop

Rounds answer requests without Python. They call Python for a request that the kernel does not know, and for bytes that
arrive while the kernel keeps an answer of the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["QuickPath", "Rounds", "SocketWatch", "Watched"]


class QuickSession(Protocol):
    """The interface of a connection's session that rounds need."""

    @property
    def quick(self) -> QuickPath | None:
        """The facts with which rounds may answer requests without this session; None if it must see all requests."""


class Watched(Protocol):
    """The interface of a connection that rounds need."""

    @property
    def session(self) -> QuickSession:
        """The current session of the connection."""

    def readable(self) -> None:
        """Read the bytes that have arrived."""

    def take(self, count: int) -> None:
        """Handle `count` bytes that a round has received into the shared receive buffer."""

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue bytes after all earlier output; they are sent once batch `gate` is durable (0: at once)."""

    def drop(self, cause: str, *, fault: bool = True) -> None:
        """Close now; `cause` is logged as a warning if `fault` is True: the peer broke a rule."""


class Rounds(Protocol):
    """The rounds of a kernel over all connections whose next request the kernel may answer (node/kv/rounds.py).

    The rounds watch a joined connection instead of the event loop, and call it when Python is needed.
    """

    def join(self, connection: Watched, descriptor: int) -> bool:
        """Watch a connection; return False if rounds can't watch it."""

    def leave(self, descriptor: int) -> None:
        """Stop watching a connection. Before this call, `take_back` must have taken an answer that the kernel keeps."""

    def allow(self, descriptor: int, features: int | None) -> None:
        """Allow the kernel to answer a connection with these features; None leaves its next bytes to Python."""

    def take_back(self, descriptor: int) -> tuple[bytes, int] | None:
        """Take back the answer that the kernel keeps until a batch is durable; return it and the batch's number, or
        None if the kernel keeps no answer of the connection.
        """

    def stirred_at(self, descriptor: int) -> float:
        """Return the time at which a connection last sent a request that the kernel answered (loop.time() seconds)."""


class QuickPath(Protocol):
    """The facts with which rounds answer requests of a session; a change of a fact replaces the whole object.

    Attributes:
        rounds: the rounds of the session's bucket; None if the bucket has no rounds.
    """

    rounds: Rounds | None

    @property
    def features(self) -> int:
        """The connection's features in the kernel's encoding, including the right to write."""

    def resume(self, stop: int) -> None:
        """Prepare the session for bytes that a round has executed in part; `stop` says why the round stopped."""

    def wait_for(self, gate: int) -> None:
        """Make later answers of the session wait for batch `gate`, because an answer of a round waits for it."""


class SocketWatch:
    """The watching of one socket for reading.

    Args:
        loop: watches the socket if rounds don't.
        descriptor: descriptor of the socket.
        may_join: True if rounds can read the socket: they do not support TLS.

    Attributes:
        is_on: True while the socket is watched.
        rounds: the rounds that watch the socket; None if the loop watches it, or nothing does.
        quick: the facts with which the rounds answer; None if the session must see all requests.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, *, may_join: bool) -> None:
        self.is_on: bool = False
        self.rounds: Rounds | None = None
        self.quick: QuickPath | None = None
        self._loop, self._descriptor, self._may_join = loop, descriptor, may_join

    def begin(self, connection: Watched, watch: Callable[[Callable[..., None], Callable[[], None]], None]) -> bool:
        """Watch the socket with rounds if the session allows it, otherwise with the loop; return True for rounds.

        Args:
            connection: the connection of the socket.
            watch: adds a watcher to the loop.
        """
        self.is_on = True
        self.quick = quick = connection.session.quick if self._may_join else None
        if quick is not None and quick.rounds is not None and quick.rounds.join(connection, self._descriptor):
            self.rounds = quick.rounds
            return True
        watch(self._loop.add_reader, connection.readable)
        return False

    def end(self) -> None:
        """Stop watching the socket. Before this call, `take_back` must have taken any answer that rounds keep."""
        self.is_on = False
        if self.rounds is None:
            self._loop.remove_reader(self._descriptor)
        else:
            self.rounds.leave(self._descriptor)
            self.rounds = None

    def is_outdated(self, connection: Watched) -> bool:
        """Return True if the session's facts for rounds have changed since `begin`."""
        return self.is_on and self._may_join and connection.session.quick is not self.quick

    def stirred_at(self, seconds: float) -> float:
        """Return the later of `seconds` and the time of the last request that rounds answered."""
        return seconds if self.rounds is None else max(seconds, self.rounds.stirred_at(self._descriptor))

    def allow(self, *, is_at_rest: bool) -> None:
        """Allow rounds to answer the next requests if `is_at_rest`: no bytes or answers of earlier requests are left in
        Python.
        """
        if self.rounds is not None and self.quick is not None:
            self.rounds.allow(self._descriptor, self.quick.features if is_at_rest else None)

    def take_back(self) -> tuple[bytes, int] | None:
        """Take back the answer that rounds keep until a batch is durable; return it and the batch's number, or None.

        Later answers of the session then wait for that batch as well.
        """
        answer = None if self.rounds is None else self.rounds.take_back(self._descriptor)
        if answer is not None and self.quick is not None:
            self.quick.wait_for(answer[1])
        return answer

    def forget_session(self) -> None:
        """Drop the facts, which refer to the session and, through it, to the connection."""
        self.quick = None
