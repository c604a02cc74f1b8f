"""One direction of a proxied DCP connection: bytes in, the same bytes out, with a look at a few of the frames. No I/O.

    room() -> fill it -> received(n) -> piece() -> send it -> sent(n) -> ... until piece() is None -> room() again

A kernel finds the frames, so that hundreds of thousands pass without Python. Only those of a few opcodes are looked at
before they are passed on, and may be kept back (the answers to the mover's own requests). The mover's requests go out
between two frames. The buffer has a fixed size and is refilled only when it is sent: a slow receiver stops the reading,
and so the other end. Lengths are checked before they are used (wire.md 1.3).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import BadFrame, RemoteProtocolError
from headwater.kernels.scan import scan
from headwater.wire.header import HEADER_BYTES, Frame, lengths
from headwater.wire.opcodes import Opcode, name_of
from headwater.wire.vbucket import VBUCKET_NUMBERS

BUFFER_BYTES = 512 * 1024
HELD_BYTES_MAX = 4096
"""A frame up to this size is passed on whole. A larger frame is passed on as it comes, so it can't be inspected."""

CHANGES = (
    Opcode.DCP_MUTATION,
    Opcode.DCP_DELETION,
    Opcode.DCP_EXPIRATION,
    Opcode.DCP_PREPARE,
    Opcode.DCP_COMMIT,
    Opcode.DCP_ABORT,
)


class Pipe:
    """One direction of a proxied connection: it receives frames from one end and hands them out for the other.

    Args:
        opcodes: the opcodes of the frames to inspect.
        inspect: called with each of these frames, before later ones are passed on; False holds the frame back.

    Attributes:
        changes, change_bytes: the numbers of changes, and of their bytes, that were passed on, by vbucket.
        passed_bytes: the bytes of all frames.
    """

    def __init__(
        self, opcodes: Iterable[int], inspect: Callable[[Frame], bool], buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self.changes: Final = np.zeros(VBUCKET_NUMBERS, np.int64)
        self.change_bytes: Final = np.zeros(VBUCKET_NUMBERS, np.int64)
        self.passed_bytes: int = 0
        self._inspect = inspect
        self._watched, self._is_change = _table(opcodes), _table(CHANGES)
        self._buffer = memoryview(bytearray(buffer_bytes))
        self._bytes = np.frombuffer(self._buffer, np.uint8)
        self._scanned = self._end = 0
        self._open_frame = 0  # bytes still to come of a frame whose beginning was passed on
        self._pieces: deque[memoryview] = deque()
        self._inserts: deque[bytes] = deque()

    # --- in -----------------------------------------------------------------------------------------------------------

    def room(self) -> memoryview:
        """Return the memory to receive into; empty while output waits to be sent."""
        return self._buffer[:0] if self._pieces else self._buffer[self._end :]

    def received(self, count: int) -> None:
        """Count bytes that were put into `room`.

        Raises:
            BadFrame: they are no frames. None of these bytes is passed on.
            RemoteProtocolError: a frame that must be looked at is too large.
        """
        self._end += count
        if self._open_frame:
            passed = min(self._open_frame, self._end - self._scanned)
            self._pass(self._scanned, self._scanned + passed)
            self._open_frame -= passed
            self._scanned += passed
        if not self._open_frame:
            self._insert_waiting()
            self._cut_frames()
        if not self._pieces:
            self._compact()

    def insert(self, frame: Frame) -> None:
        """Queue a frame of our own, which goes out at the next boundary between frames."""
        data = frame.encode()
        if self._open_frame:
            self._inserts.append(data)
        else:
            self._pieces.append(memoryview(data))

    def _cut_frames(self) -> None:
        """Find the frames in the new bytes, look at some, and pass them on."""
        begin, new_bytes = self._scanned, self._buffer[self._scanned : self._end]
        frames = scan(new_bytes)
        if frames.stop.refused:
            raise BadFrame(f"byte {frames.consumed} of {len(new_bytes)} received: {frames.stop.name.lower()}")
        offsets = frames.offsets
        opcodes = self._bytes[offsets + (begin + 1)]
        # Counted before the frames are looked at, for a frame that is kept back moves `_scanned`.
        self._count(offsets, frames.consumed, opcodes)
        for offset in offsets[self._watched[opcodes]]:
            self._examine(begin + int(offset))
        self._pass(self._scanned, begin + frames.consumed)
        self._scanned = begin + frames.consumed
        self._begin_large(frames.needed)

    def _examine(self, at: int) -> None:
        size = lengths(self._buffer, at).frame
        if size > HELD_BYTES_MAX:
            raise RemoteProtocolError(f"{name_of(self._buffer[at + 1])}: {size} bytes; {HELD_BYTES_MAX} are allowed")
        if not self._inspect(Frame.decode(self._buffer[at : at + size])):
            self._pass(self._scanned, at)
            self._scanned = at + size

    def _begin_large(self, frame_bytes: int) -> None:
        """Pass on the first part of a large last frame that is incomplete."""
        have = self._end - self._scanned
        if have < HEADER_BYTES or frame_bytes <= HELD_BYTES_MAX:
            return
        opcode = self._buffer[self._scanned + 1]
        if self._watched[opcode]:
            raise RemoteProtocolError(f"{name_of(opcode)}: {frame_bytes} bytes; {HELD_BYTES_MAX} are allowed")
        self._count(np.zeros(1, np.int64), frame_bytes, self._bytes[self._scanned + 1 : self._scanned + 2])
        self._pass(self._scanned, self._end)
        self._scanned, self._open_frame = self._end, frame_bytes - have

    def _count(self, offsets: NDArray[np.int64], consumed: int, opcodes: NDArray[np.uint8]) -> None:
        """Add the changes of each vbucket to the totals."""
        are_changes = self._is_change[opcodes]
        if not are_changes.any():
            return
        at = offsets[are_changes] + self._scanned
        sizes = np.diff(offsets, append=consumed)[are_changes]
        # Bytes 6 and 7 of a request are its vbucket (wire 1). Answers have their status there, so only the totals of
        # the way down mean anything.
        vbuckets = self._bytes[at + 6].astype(np.int64) << 8 | self._bytes[at + 7]
        highest = int(vbuckets.max()) + 1
        self.changes[:highest] += np.bincount(vbuckets)
        self.change_bytes[:highest] += np.bincount(vbuckets, weights=sizes).astype(np.int64)

    # --- out ----------------------------------------------------------------------------------------------------------

    def piece(self) -> memoryview | None:
        """Return the bytes to send next; None when all is sent."""
        return self._pieces[0] if self._pieces else None

    def sent(self, count: int) -> None:
        """Count bytes of `piece` that were sent."""
        if count < len(self._pieces[0]):
            self._pieces[0] = self._pieces[0][count:]
        else:
            self._pieces.popleft()
        if not self._pieces:
            self._compact()

    def _pass(self, start: int, end: int) -> None:
        if end > start:
            self._pieces.append(self._buffer[start:end])
            self.passed_bytes += end - start

    def _insert_waiting(self) -> None:
        while self._inserts:
            self._pieces.append(memoryview(self._inserts.popleft()))

    def _compact(self) -> None:
        """Move the remaining bytes, less than a small frame, to the front once all else is sent."""
        remaining = bytes(self._buffer[self._scanned : self._end])
        self._buffer[: len(remaining)] = remaining
        self._scanned, self._end = 0, len(remaining)


def _table(opcodes: Iterable[int]) -> NDArray[np.bool_]:
    """Return a look-up table with True for these of the 256 opcodes."""
    table = np.zeros(256, np.bool_)
    table[list(opcodes)] = True
    return table
