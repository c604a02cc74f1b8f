"""Incoming bytes that no session has consumed yet: at most one incomplete message, or more while a session pauses.

New bytes are received after these, so a frame is always contiguous. A small rest is kept aside, and copied to the
beginning of the server's shared arena before the next receive (the usual case: a chunk ends inside a frame of some
hundred bytes). A larger frame gets its own buffer, which doubles as bytes arrive, up to the size in its header: a peer
that announces 30 MiB and sends one byte costs one byte.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable

from headwater.errors import RemoteProtocolError
from headwater.node.process.memory import MAPPED_BYTES_MIN, mapped
from headwater.wire.header import BODY_BYTES_MAX, HEADER_BYTES, Frame, frame_bytes, lengths

OWN_BYTES_MIN = 64 << 10


class ConnectionInbox:
    """The input of one connection. `arena` is shared by all connections, and used only between room() and keep().

    Attributes:
        memory_bytes: the memory of the waiting bytes.
        measure: returns the size of the first message in bytes. While the size is unknown, it returns a number above
            the count of bytes passed. Raises RemoteProtocolError if the message is too long.
    """

    def __init__(self, arena: memoryview) -> None:
        self.measure: Callable[[memoryview], int] = _frame_wanted
        self._arena = arena
        self._small_max = len(arena) // 2
        self._held: bytearray | mmap.mmap = (
            bytearray()
        )  # the unconsumed bytes; a growing buffer may be longer than `_used`
        self._used = 0
        self._growing = False
        self.memory_bytes: int = 0

    @property
    def held_bytes(self) -> int:
        """The number of bytes that wait here."""
        return self._used

    def room(self) -> memoryview:
        """Return the memory to receive into; call `received` afterwards."""
        if not self._used:  # the usual case
            self._growing = False
            return self._arena
        if self._used <= self._small_max:
            self._growing = False
            self._arena[: self._used] = memoryview(self._held)[: self._used]
            return self._arena[self._used :]
        self._growing = True
        if self._used == len(self._held):
            self._grow()
        return memoryview(self._held)[self._used :]

    def received(self, count: int) -> memoryview:
        """Return all waiting bytes after `count` more arrived; empty while a large frame is incomplete.

        Raises:
            RemoteProtocolError: a header announces a body above BODY_BYTES_MAX (wire.md 1.3). No buffer for the body is
                allocated before.
        """
        if not self._growing:
            return self._arena[: self._used + count]
        self._used += count
        whole = self._used >= self._wanted()
        return memoryview(self._held)[: self._used] if whole else memoryview(b"")

    def pending(self) -> memoryview:
        """Return all waiting bytes, without receiving new ones."""
        self._growing = True
        return memoryview(self._held)[: self._used]

    def keep(self, data: memoryview, consumed: int) -> None:
        """Keep the rest of `data`, which came from `received` or `pending`, after the first `consumed` bytes."""
        rest = len(data) - consumed
        if not rest:
            if self._used:
                self.clear()
            return
        if self._growing and consumed == 0:
            return
        remaining = _buffer(rest)
        remaining[:] = data[consumed:]
        self._held = remaining
        self._used = self.memory_bytes = rest
        if rest > self._small_max:
            self._wanted()

    def clear(self) -> None:
        """Drop all bytes."""
        self._held, self._used, self.memory_bytes = bytearray(), 0, 0

    def _wanted(self) -> int:
        """Return the size of the first message, as `measure` does."""
        return self.measure(memoryview(self._held)[: self._used])

    def _grow(self) -> None:
        # The buffer doubles as bytes arrive, up to the size in the header: a header alone that claims 30 MiB costs
        # nothing.
        size = max(OWN_BYTES_MIN, min(2 * self._used, max(self._wanted(), self._used + OWN_BYTES_MIN)))
        if isinstance(self._held, mmap.mmap) and _resized(self._held, size):
            self.memory_bytes = size
            return
        larger = _buffer(size)
        larger[: self._used] = memoryview(self._held)[: self._used]
        self._held, self.memory_bytes = larger, size


def _buffer(size: int) -> bytearray | mmap.mmap:
    """Return a buffer of `size` zero bytes."""
    return mapped(size) if size >= MAPPED_BYTES_MIN else bytearray(size)


def _resized(held: mmap.mmap, size: int) -> bool:
    """Enlarge a buffer in place, where the system can move pages without copying: 0.1 ms instead of 10 ms for 10 MiB.

    Returns False if the system can't, or a view of the buffer still exists.
    """
    try:
        held.resize(size)
    except (BufferError, SystemError, OSError):
        return False
    return True


def _frame_wanted(data: memoryview) -> int:
    """Return the size of the first frame in bytes; HEADER_BYTES while its header is incomplete."""
    if len(data) < HEADER_BYTES:
        return HEADER_BYTES
    size = frame_bytes(data)
    # "Body > 30 MiB: close the socket, no error response" (wire 1.3).
    if size > HEADER_BYTES + BODY_BYTES_MAX:
        body = size - HEADER_BYTES
        raise RemoteProtocolError(f"a frame claims a body of {body} bytes; the limit is {BODY_BYTES_MAX}")
    return size


def whole_frame(data: memoryview, offset: int) -> int:
    """Return the size in bytes of the frame at `offset`, 0 while it is incomplete; raise BadFrame if its header is
    invalid.
    """
    if len(data) - offset < HEADER_BYTES:
        return 0
    size = lengths(data, offset).frame
    return size if size <= len(data) - offset else 0


def next_frame(data: memoryview, offset: int) -> Frame | None:
    """Return the frame at `offset` with copies of its sections, or None while it is incomplete; raise BadFrame if its
    header is invalid.
    """
    if len(data) - offset < HEADER_BYTES:
        return None
    frame_lengths = lengths(data, offset)
    end = offset + frame_lengths.frame
    return Frame.cut(data[offset:end], frame_lengths) if end <= len(data) else None
