"""Finds the frames in a received buffer; trusts no length field before it is checked.

A frame is a 24-byte header and a body; the header contains the length of the body and of its framing extras, extras and
key (wire.md 1). A buffer may end inside a frame: `consumed` is the end of the last whole frame, `needed` the size of
the next. An inconsistent header is refused as soon as it is complete, before its body arrives: the bytes after it can't
be interpreted, so the connection must be closed.

`check_header` is shared with the decoder in decode.py; both refuse the same bytes for the same reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.builds import inline_kernel, kernel, reachable
from headwater.kernels.intrinsics import load32, load64
from headwater.wire.header import BODY_BYTES_MAX, BODY_LENGTH_AT, HEADER_BYTES, Magic

U = np.uintp

HEADER: Final = HEADER_BYTES
BODY_MAX: Final = BODY_BYTES_MAX
REQUEST: Final = np.uint64(Magic.CLIENT_REQUEST)  # the four without framing extras differ in their last two bits
FLEXIBLE_REQUEST: Final = np.uint64(Magic.FLEXIBLE_REQUEST)
FLEXIBLE_RESPONSE: Final = np.uint64(Magic.FLEXIBLE_RESPONSE)


class Stop(IntEnum):
    """Reasons why a kernel stopped. BAD_MAGIC and all later ones are refusals: the frame at `consumed` breaks the
    rules, and all frames before it were processed.
    """

    NEED_MORE = 0
    """The buffer is used up, or ends inside a frame of `needed` bytes."""
    FULL = 1
    """No room in the output for the next frame; take the output away and call again from `consumed`."""
    FRAME_TOO_LARGE = 2
    """The output is empty and still too small for the next frame, which takes `needed` bytes."""
    CONTROLS_FULL = 3
    """The list of control frames is full; handle them and call again from `consumed`."""

    BAD_MAGIC = 16
    """The first byte of a header is none of 80, 81, 82, 83, 08, 18."""
    LENGTHS_EXCEED_BODY = 17
    """Framing extras, extras and key are longer together than the body they are part of."""
    BODY_TOO_LARGE = 18
    """The body is said to be larger than 30 MiB."""
    BAD_EXTRAS = 19
    """The extras of a stream message have a length its opcode does not know."""
    EXTENDED_METADATA = 20
    """nmeta is not 0: the value would end in metadata nobody negotiated."""
    BAD_MARKER = 21
    """A snapshot marker of an unknown version, of the wrong length, or that ends before it starts."""
    MARKER_BEHIND = 22
    """A snapshot marker announces a range that lies wholly at or before the last seqno."""
    NO_STREAM = 23
    """A stream message for a vbucket that no stream was opened for."""
    WRONG_OPAQUE = 24
    """A stream message that carries another stream's opaque."""
    SEQNO_ZERO = 25
    """A change with seqno 0; the first is 1."""
    SEQNO_NOT_AFTER_LAST = 26
    """A change at or before the last seqno of its vbucket."""
    SEQNO_OUTSIDE_SNAPSHOT = 27
    """A change outside the announced snapshot, or before any was announced."""
    EMPTY_KEY = 28
    """A change without a key."""
    BAD_COLLECTION = 29
    """A key that begins with no collection id (cut off, not the shortest, beyond 32 bits), or has nothing behind it, on
    a connection with Collections."""
    BAD_BEFORE = 30
    """A message Before without its change in the next message, or with numbers of a version where there was none; or a
    change without a message Before, where that was negotiated.
    """

    @property
    def refused(self) -> bool:
        """True if the peer broke the rules; False if more bytes or more room are needed."""
        return self >= Stop.BAD_MAGIC


# Kernels compare plain integers: numba reads these as constants.
NEED_MORE: Final = int(Stop.NEED_MORE)
FULL: Final = int(Stop.FULL)
BAD_MAGIC: Final = int(Stop.BAD_MAGIC)
LENGTHS_EXCEED_BODY: Final = int(Stop.LENGTHS_EXCEED_BODY)
BODY_TOO_LARGE: Final = int(Stop.BODY_TOO_LARGE)

# Fields of a scan's result.
CONSUMED: Final = 0
NEEDED: Final = 1
STOP: Final = 2


@inline_kernel
def is_flexible(word: Any) -> Any:
    """Return True for a header (first eight bytes) with framing extras (wire.md 1.2: magic 08 and 18)."""
    magic = word >> np.uint64(56)
    return magic == FLEXIBLE_REQUEST or magic == FLEXIBLE_RESPONSE


@inline_kernel
def framing_bytes(word: Any) -> Any:
    """Return the length of the framing extras: byte 2 in the flexible layout, none in the classic one."""
    return U((word >> np.uint64(40)) & np.uint64(0xFF)) if is_flexible(word) else U(0)


@inline_kernel
def key_bytes(word: Any) -> Any:
    """Return the length of the key: bytes 2-3, or byte 3 alone in the flexible layout."""
    return U((word >> np.uint64(32)) & (np.uint64(0xFF) if is_flexible(word) else np.uint64(0xFFFF)))


@inline_kernel
def extras_bytes(word: Any) -> Any:
    """Return the length of the extras: byte 4."""
    return U((word >> np.uint64(24)) & np.uint64(0xFF))


@inline_kernel
def check_header(word: Any, body: Any) -> Any:
    """Return 0, or the reason why a header makes the connection unusable.

    wire.md 1.3: any other magic, sections longer than the body, or a body over 30 MiB make the stream unrecoverable.

    Args: the first eight bytes as a big-endian number; the body length.
    """
    magic = word >> np.uint64(56)
    if (magic & np.uint64(0xFC)) != REQUEST and not is_flexible(word):
        return BAD_MAGIC
    # The sum can't wrap: each length has 16 bits at most.
    if framing_bytes(word) + extras_bytes(word) + key_bytes(word) > body:
        return LENGTHS_EXCEED_BODY
    if body > U(BODY_MAX):
        return BODY_TOO_LARGE
    return 0


@kernel
def scan_frames(base: Any, length: Any, offsets: Any, result: Any) -> Any:
    """Write the offset of each whole frame of [base, base + length); return their number.

    Args:
        base, length: address of the buffer, and its number of valid bytes.
        offsets: int64 array for the offsets; its length is the capacity.
        result: int64[3], set to CONSUMED (bytes of whole frames), NEEDED (bytes of the frame at CONSUMED, 24 while its
            header is incomplete) and STOP.
    """
    start, end, position = U(base), U(length), U(0)
    count, stop, bytes_needed = 0, NEED_MORE, U(HEADER)
    while end - position >= U(HEADER):
        head = start + position
        body = U(load32(head + U(BODY_LENGTH_AT)))
        code = check_header(load64(head), body)
        if code != 0:
            stop = code
            break
        bytes_needed = U(HEADER) + body
        if bytes_needed > end - position:
            break
        if count == len(offsets):
            stop = FULL
            break
        offsets[count] = np.int64(position)
        count += 1
        position += bytes_needed
        bytes_needed = U(HEADER)
    result[CONSUMED] = np.int64(position)
    result[NEEDED] = np.int64(bytes_needed)
    result[STOP] = stop
    return count


@dataclass(frozen=True, slots=True)
class Scanned:
    """The frames found in a buffer.

    Attributes:
        offsets: int64, where each whole frame starts, in order.
        consumed: bytes of whole frames; the rest is the beginning of the next frame.
        needed: bytes of the frame at `consumed`, 24 while its header is incomplete.
        stop: NEED_MORE, FULL (the capacity is used up) or a refusal of the frame at `consumed`.
    """

    offsets: NDArray[np.int64]
    consumed: int
    needed: int
    stop: Stop


def scan(buffer: bytes | bytearray | memoryview | NDArray[np.uint8], capacity: int | None = None) -> Scanned:
    """Find the frames of a buffer, at most `capacity` of them (None for all)."""
    view = np.frombuffer(buffer, np.uint8)
    offsets = np.empty(len(view) // HEADER if capacity is None else capacity, np.int64)
    result = np.zeros(3, np.int64)
    with reachable(view):
        count = int(scan_frames(view.ctypes.data, len(view), offsets, result))
    return Scanned(offsets[:count], int(result[CONSUMED]), int(result[NEEDED]), Stop(int(result[STOP])))


def warm_up() -> None:
    """Build the kernels of this module."""
    scan(b"")
