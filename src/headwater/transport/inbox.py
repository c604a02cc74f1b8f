"""The receive buffer of a connection, reused for its whole life.

Half a MiB holds two of the chunks that a node sends, and stays in the processor's cache while it is decoded; with a
smaller buffer the cost of each decoder call becomes noticeable (measured). For a larger frame the buffer grows only as
the frame's bytes arrive: at most to twice its size each time, never beyond two of the largest frames (a change and its
message Before are decoded together). So a peer can't allocate memory here by announcing a large frame. The buffer is
not filled with zeros, which took 0.2 ms for each connection and made half a MiB resident: a page becomes resident when
bytes arrive in it.
"""

from __future__ import annotations

import mmap

from headwater.errors import LocalProtocolError
from headwater.transport.channel import Channel
from headwater.wire.header import FRAME_BYTES_MAX, HEADER_BYTES

INBOX_BYTES = 512 * 1024
NEEDED_BYTES_MAX = 2 * FRAME_BYTES_MAX


class Inbox:
    """Received bytes, oldest first: `unread` returns them, `consume` drops those that were handled."""

    __slots__ = ("_buffer", "_end", "_start")

    def __init__(self, size_bytes: int = INBOX_BYTES) -> None:
        self._buffer = _buffer(size_bytes)
        self._start = self._end = 0

    @property
    def unread(self) -> memoryview:
        """The bytes not consumed yet; valid until the next call of `fill`."""
        return self._buffer[self._start : self._end]

    @property
    def room_bytes(self) -> int:
        """The number of bytes that `fill` could receive now without growing."""
        return len(self._buffer) - (self._end - self._start)

    def consume(self, count: int) -> None:
        """Drop the oldest `count` bytes."""
        if not 0 <= count <= self._end - self._start:
            raise LocalProtocolError(f"{count} bytes consumed of {self._end - self._start} received")
        self._start += count
        if self._start == self._end:
            self._start = self._end = 0

    def fill(self, channel: Channel, byte_count: int = HEADER_BYTES) -> int | None:
        """Receive available bytes after the unread ones; the result is that of `Channel.receive_into`.

        Args:
            byte_count: size of the frame at the beginning of `unread`, so that the buffer becomes large enough.
        """
        self._make_room(byte_count)
        count = channel.receive_into(self._buffer[self._end :])
        self._end += count or 0
        return count

    def _make_room(self, byte_count: int) -> None:
        unread_bytes, size = self._end - self._start, len(self._buffer)
        if unread_bytes == size and size < min(byte_count, NEEDED_BYTES_MAX):
            size = min(2 * size, max(byte_count, size), NEEDED_BYTES_MAX)
        if self._start == 0 and size == len(self._buffer):
            return
        target = self._buffer if size == len(self._buffer) else _buffer(size)
        # The rest is less than a frame; when it is moved within one buffer, bytes() keeps the ranges from overlapping.
        target[:unread_bytes] = bytes(self._buffer[self._start : self._end])
        self._buffer, self._start, self._end = target, 0, unread_bytes


def _buffer(size_bytes: int) -> memoryview:
    return memoryview(mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
