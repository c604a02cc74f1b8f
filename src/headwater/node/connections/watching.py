"""The watching of a connection's socket: by the event loop, or by rounds of a kernel where the session lets them.

    Connection --begin, end--> SocketWatch --join, leave, allow, take_back--> Rounds (node/kv/rounds.py)
                                           --add_reader, remove_reader--> the event loop

Rounds answer requests without Python, and call it when it is needed: for a request that they don't know, and for what
comes while an answer of the connection is left here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["QuickPath", "Rounds", "SocketWatch", "Watched"]


class QuickSession(Protocol):
    """The session of a connection, by what rounds ask of it."""

    @property
    def quick(self) -> QuickPath | None:
        """The facts by which rounds may answer requests without this session; None if it has to see all of them."""


class Watched(Protocol):
    """A connection, by what rounds ask of it."""

    @property
    def session(self) -> QuickSession:
        """Its session of now."""

    def readable(self) -> None:
        """Read what has come."""

    def take(self, count: int) -> None:
        """Take bytes that a round has received into the memory that all connections receive into."""

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue bytes behind everything sent before; they leave once batch `gate` is durable (0: at once)."""

    def drop(self, cause: str, *, fault: bool = True) -> None:
        """Close now; `cause` is logged if it is the peer's fault."""


class Rounds(Protocol):
    """The rounds of a kernel over all connections whose next request it may answer by itself (node/kv/rounds.py).

    A connection that has joined is watched there, instead of by the event loop, and called when Python is needed.
    """

    def join(self, connection: Watched, descriptor: int) -> bool:
        """Watch a connection; return False if that can't be done here."""

    def leave(self, descriptor: int) -> None:
        """Watch a connection no more. No answer of it may be kept."""

    def allow(self, descriptor: int, features: int | None) -> None:
        """Let the kernel answer a connection of these features; None: its next bytes are for Python."""

    def take_back(self, descriptor: int) -> tuple[bytes, int] | None:
        """Return the answer of a connection that is kept for a batch, and the batch; None if none is kept."""

    def stirred_at(self, descriptor: int) -> float:
        """Return the time at which a connection last sent a request that the kernel answered."""


class QuickPath(Protocol):
    """The facts by which rounds answer requests without their session; another object when one of them changes.

    Attributes: rounds: those of its bucket.
    """

    rounds: Rounds | None

    @property
    def features(self) -> int:
        """The features of the connection, as the kernel knows them, and whether it may write."""

    def resume(self, stop: int) -> None:
        """Let the session begin its next bytes with what a round has done of them, and why it stopped."""

    def wait_for(self, gate: int) -> None:
        """Let later answers of the session wait for a batch, for one that a round has given does."""


class SocketWatch:
    """The watching of one socket for reading.

    Args:
        loop: watches it where rounds don't.
        descriptor: the socket's.
        may_join: True if rounds can read it, which know no TLS.

    Attributes:
        is_on: True while anybody watches it.
        rounds: those that watch it; None if the loop does, or nobody.
        quick: the facts by which they answer.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, descriptor: int, *, may_join: bool) -> None:
        self.is_on: bool = False
        self.rounds: Rounds | None = None
        self.quick: QuickPath | None = None
        self._loop, self._descriptor, self._may_join = loop, descriptor, may_join

    def begin(self, connection: Watched, watch: Callable[[Callable[..., None], Callable[[], None]], None]) -> bool:
        """Have rounds watch the socket where the session lets them, else the loop.

        Args:
            watch: adds a watcher of the loop. Returns True if rounds watch it.
        """
        self.is_on = True
        self.quick = quick = connection.session.quick if self._may_join else None
        if quick is not None and quick.rounds is not None and quick.rounds.join(connection, self._descriptor):
            self.rounds = quick.rounds
            return True
        watch(self._loop.add_reader, connection.readable)
        return False

    def end(self) -> None:
        """Have nobody watch the socket. No answer may be kept by rounds."""
        self.is_on = False
        if self.rounds is None:
            self._loop.remove_reader(self._descriptor)
        else:
            self.rounds.leave(self._descriptor)
            self.rounds = None

    def is_outdated(self, connection: Watched) -> bool:
        """Return True if it is watched by other facts than the session has now."""
        return self.is_on and self._may_join and connection.session.quick is not self.quick

    def stirred_at(self, seconds: float) -> float:
        """Return the time at which a request last came, with those that rounds have answered."""
        return seconds if self.rounds is None else max(seconds, self.rounds.stirred_at(self._descriptor))

    def allow(self, *, is_at_rest: bool) -> None:
        """Let rounds answer what comes next, if nothing of earlier requests is left in Python."""
        if self.rounds is not None and self.quick is not None:
            self.rounds.allow(self._descriptor, self.quick.features if is_at_rest else None)

    def take_back(self) -> tuple[bytes, int] | None:
        """Return the answer that rounds keep for a batch, and the batch, which the session's later answers wait for as
        well; None if they keep none.
        """
        kept = None if self.rounds is None else self.rounds.take_back(self._descriptor)
        if kept is not None and self.quick is not None:
            self.quick.wait_for(kept[1])
        return kept

    def forget_session(self) -> None:
        """Drop the facts, which refer to the session, and that to its connection."""
        self.quick = None
