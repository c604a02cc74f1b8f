"""Cuts a stream of bytes into frames; reads and encodes framing extras.

`FrameBuffer` keeps the bytes of an incomplete frame. It checks a header as soon as its 24 bytes have arrived, so a peer
that announces more than 30 MiB, or sections that do not fit their body, is refused before its body takes memory.

Framing extras (magics 0x08, 0x18) are a sequence of objects: a byte with the id in its high half and the length in its
low half, then the data. A half of 15 means 15 plus the value of a following byte; if both do, the byte of the id comes
first. Source: specification, wire.md 1.3 and 1.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from headwater.errors import BadFrame, BadMessage, LocalProtocolError
from headwater.wire.codec import NUMBERS
from headwater.wire.durability import DurabilityLevel
from headwater.wire.header import HEADER_BYTES, Frame, lengths
from headwater.wire.status import Status

__all__ = [
    "DurabilityInfo",
    "FrameBuffer",
    "FrameInfo",
    "RequestInfo",
    "decode_durability",
    "decode_framing",
    "durability_framing",
    "encode_framing",
    "stream_id_framing",
    "stream_id_of",
]


class FrameBuffer:
    """Cuts received bytes, split at any point, into frames.

    After a bad header the buffer is unusable: `failure` is set, and every further call raises it.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.failure: BadFrame | None = None

    @property
    def pending_bytes(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._buffer)

    def receive_data(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Return the frames that `data` completes, oldest first.

        Frames before a bad header are still returned; check `failure` after each call, or call again.

        Raises:
            BadFrame: the header is bad (`header.lengths`), and no whole frame came before it. Close the connection.
        """
        if self.failure is None:
            self._buffer += data
            frames = list(self._whole_frames())
            # Frames in front of a bad header are whole and were meant: they are handed out before the error.
            if frames or self.failure is None:
                return frames
        raise self.failure

    def _whole_frames(self) -> Iterator[Frame]:
        """Yield the whole frames, then drop their bytes; check each header as soon as it is complete."""
        at, end = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            try:
                while end - at >= HEADER_BYTES and (sizes := lengths(view, at)).frame <= end - at:
                    yield Frame.cut(view[at : at + sizes.frame], sizes)
                    at += sizes.frame
            except BadFrame as failure:
                # What lies behind a bad header can't be cut into frames any more, so none of it is kept.
                self.failure, at = failure, end
        del self._buffer[:at]


class RequestInfo(IntEnum):
    """Ids of the objects in a request's framing extras; 3 is retired."""

    BARRIER = 0
    DURABILITY = 1
    STREAM_ID = 2
    IMPERSONATE_USER = 4
    PRESERVE_TTL = 5
    EXTRA_PRIVILEGE = 6
    IMPERSONATE_TOKEN = 7


class FrameInfo(NamedTuple):
    """One object of the framing extras: its id (0 to 270) and data (0 to 270 bytes)."""

    id: int
    data: bytes


_ESCAPE = 15
_NIBBLE_MAX = _ESCAPE + 0xFF


def encode_framing(objects: Iterable[FrameInfo]) -> bytes:
    """Return framing extras with `objects` in this order."""
    return b"".join(_encode_object(info) for info in objects)


def _encode_object(info: FrameInfo) -> bytes:
    if not 0 <= info.id <= _NIBBLE_MAX or len(info.data) > _NIBBLE_MAX:
        raise LocalProtocolError(f"frame info {info.id} with {len(info.data)} bytes: both go up to {_NIBBLE_MAX}")
    halves = [min(info.id, _ESCAPE), min(len(info.data), _ESCAPE)]
    length_bytes = [number - _ESCAPE for number in (info.id, len(info.data)) if number >= _ESCAPE]
    return bytes([halves[0] << 4 | halves[1], *length_bytes]) + info.data


def decode_framing(framing: bytes) -> list[FrameInfo]:
    """Return the objects of a frame's framing extras.

    Raises:
        BadMessage: an object is cut short.
    """
    objects, at = [], 0
    while at < len(framing):
        info, at = _decode_object(framing, at)
        objects.append(info)
    return objects


def _decode_object(framing: bytes, at: int) -> tuple[FrameInfo, int]:
    first, at = framing[at], at + 1
    numbers = [first >> 4, first & 0x0F]
    # "If both escape, the id continuation byte precedes the length continuation byte" (wire 1.4).
    for which in (0, 1):
        if numbers[which] == _ESCAPE:
            numbers[which] += int.from_bytes(_take(framing, at, 1))
            at += 1
    return FrameInfo(numbers[0], _take(framing, at, numbers[1])), at + numbers[1]


def _take(framing: bytes, at: int, count: int) -> bytes:
    if len(framing) - at < count:
        raise BadMessage("framing extras", 0, f"{count} bytes expected at offset {at} of {len(framing)}")
    return framing[at : at + count]


class DurabilityInfo(NamedTuple):
    """The framing object that requests a durable write: level, and timeout in milliseconds (None for the default)."""

    level: DurabilityLevel
    timeout_ms: int | None


def decode_durability(data: bytes) -> DurabilityInfo:
    """Return the content of a DURABILITY object.

    Raises:
        BadMessage: the object is neither 1 nor 3 bytes long, or its level is unknown (status DURABILITY_INVALID_LEVEL).
    """
    if len(data) not in (1, 3):
        raise BadMessage("framing extras", 0, f"an object of {len(data)} bytes, expected (1, 3)")
    number, at = NUMBERS[8].read(data, 0)
    try:
        level = DurabilityLevel(number)
    except ValueError:
        problem = f"durability level {number} is not 1, 2 or 3"
        raise BadMessage("framing extras", 0, problem, Status.DURABILITY_INVALID_LEVEL) from None
    return DurabilityInfo(level, NUMBERS[16].read(data, at)[0] if at < len(data) else None)


def durability_framing(level: DurabilityLevel, timeout_ms: int | None = None) -> bytes:
    """Return the framing extras that request a durable write; `timeout_ms` is its timeout, 1 to 65534 milliseconds."""
    data = NUMBERS[8].write(level) + (b"" if timeout_ms is None else NUMBERS[16].write(timeout_ms))
    return encode_framing([FrameInfo(RequestInfo.DURABILITY, data)])


def stream_id_framing(stream_id: int) -> bytes:
    """Return the framing extras 22 hi lo that name a stream of a vbucket (1 to 65535). Source: dcp.md 2.21."""
    return encode_framing([FrameInfo(RequestInfo.STREAM_ID, NUMBERS[16].write(stream_id))])


def stream_id_of(framing: bytes) -> int | None:
    """Return the stream id in a frame's framing extras, or None when there is none."""
    for info in decode_framing(framing):
        if info.id == RequestInfo.STREAM_ID:
            if len(info.data) != 2:
                raise BadMessage("stream id", RequestInfo.STREAM_ID, f"{len(info.data)} bytes, expected 2")
            return NUMBERS[16].read(info.data, 0)[0]
    return None
