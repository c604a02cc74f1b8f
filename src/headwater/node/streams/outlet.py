"""The output of streams: an arena that all connections share, and the connection that gets its content.

In its turn a connection fills the arena once and sends it; the connection keeps the bytes that the socket does not
accept. So a slow client costs one arena and at most one large frame, however many changes wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

OUTLET_BYTES = 256 << 10
"""As many bytes as a socket accepts at once; a larger arena would not stay in the processor's cache."""

MARGIN_BYTES = 128
"""The arena counts as full with fewer free bytes; with so many, a marker always has room."""


class Pieces(NamedTuple):
    """A message in two pieces, one after the other, so that a value of 20 MiB is not copied before it is sent.

    Attributes:
        head: header, framing extras, extras and key.
        value: the value in its sent form; may be memory of the store, valid until the turn is over.
    """

    head: bytes
    value: bytes | memoryview = b""


class Sink(Protocol):
    """The part of a connection that an outlet needs."""

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue bytes; the caller may reuse the buffer when the call returns."""


class Outlet:
    """The memory into which a connection's streams write while the connection has its turn to send.

    Attributes:
        is_over: True if the turn is over because a message did not fit, although some room may be left.
        is_late: returns True if the turn should end because other connections wait; streams call it after each step
            that takes time.
    """

    def __init__(self, arena: NDArray[np.uint8] | None = None) -> None:
        self._arena = np.zeros(OUTLET_BYTES, np.uint8) if arena is None else arena
        self._view = self._arena.data
        self._size = len(self._arena)
        self._used = 0
        self._sink: Sink | None = None
        self.is_over: bool = False
        self.is_late: Callable[[], bool] = bool

    def begin(self, sink: Sink, is_late: Callable[[], bool] = bool) -> None:
        """Begin a connection's turn."""
        self._sink, self._used, self.is_over, self.is_late = sink, 0, False, is_late

    def leave(self, sink: Sink) -> None:
        """Forget a closed connection, if it is the one that has the turn."""
        if self._sink is sink:
            self._sink, self.is_late = None, bool

    @property
    def room(self) -> int:
        """The number of free bytes."""
        return self._size - self._used

    @property
    def is_low(self) -> bool:
        """True if a frame that does not fit should wait for the next turn, when the arena is empty."""
        return self.room < self._size // 8

    @property
    def is_full(self) -> bool:
        """True if nothing more fits."""
        return self.is_over or self._size - self._used < MARGIN_BYTES

    @property
    def free(self) -> NDArray[np.uint8]:
        """The free part of the arena, for a kernel; pass the number of bytes used to `fill`."""
        return self._arena[self._used :]

    def fill(self, size_bytes: int) -> None:
        """Count `size_bytes` of the free room as filled."""
        self._used += size_bytes

    def write(self, head: bytes, value: bytes | memoryview = b"") -> None:
        """Append a message, whole or in two pieces.

        A message that does not fit is sent after the others and ends the turn. A message larger than the arena is not
        copied: the sink gets its pieces directly.
        """
        size = len(head) + len(value)
        if size > self.room:
            # The order of a stream is the order on the wire: the content of the arena is sent before a message that
            # does not go through it.
            self.flush()
            self.is_over = True
        if size > self.room:
            sink = self._to()
            sink.send(head)
            if value:
                sink.send(value)
            return
        value_at, end = self._used + len(head), self._used + size
        self._view[self._used : value_at] = head
        self._view[value_at:end] = value
        self._used = end

    def flush(self) -> int:
        """Send the content of the arena; return its size."""
        used, self._used = self._used, 0
        if used:
            self._to().send(self._view[:used])
        return used

    def _to(self) -> Sink:
        if self._sink is None:
            raise ValueError("nobody's turn: call begin first")
        return self._sink
