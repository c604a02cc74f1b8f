"""The frames of a buffer as arrays, without compiled code, for columns_numpy.py.

Only finding where each frame starts is a loop; the headers are then read and checked all at once (wire.md 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.scan import BODY_MAX, HEADER, Stop
from headwater.wire import header
from headwater.wire.header import Magic

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]
Flags = NDArray[np.bool_]

MAGICS: Final = [int(magic) for magic in Magic]
HEADER_FIELDS: Final = {
    "magic": (0, "u1"),
    "opcode": (header.OPCODE_AT, "u1"),
    "key": (header.KEY_LENGTH_AT, ">u2"),
    "extras": (header.EXTRAS_LENGTH_AT, "u1"),
    "datatype": (header.DATATYPE_AT, "u1"),
    "vbucket": (header.VBUCKET_AT, ">u2"),
    "body": (header.BODY_LENGTH_AT, ">u4"),
}
WIDE_FIELDS: Final = {"opaque": (header.OPAQUE_AT, ">u4"), "cas": (header.CAS_AT, ">u8")}
FLEXIBLE: Final = [int(magic) for magic in header.FLEXIBLE]
REQUESTS: Final = [int(Magic.CLIENT_REQUEST), int(Magic.FLEXIBLE_REQUEST)]


@dataclass(slots=True)
class Frames:
    """The whole frames of a buffer, an element each: header fields, and the offsets of the sections."""

    start: Ints
    size: Ints
    request: Flags
    opcode: Ints
    datatype: Ints
    vbucket: Ints
    opaque: Words
    cas: Words
    extras: Ints
    extras_at: Ints
    key: Ints
    key_at: Ints
    value: Ints

    def only(self, *opcodes: int) -> Flags:
        """Return a mask of the requests with one of these opcodes."""
        return self.request & np.isin(self.opcode, opcodes)


def find(view: NDArray[np.uint8]) -> tuple[Frames, int, int]:
    """Return the whole frames at the head of a buffer, a code for why they end, and the size of the frame after
    them.
    """
    at, starts, data = 0, [], view.data
    while len(view) - at >= HEADER:
        starts.append(at)
        at += header.frame_bytes(data, at)
    headers = headers_at(view, np.array(starts, np.int64))
    magic, framing = headers["magic"], np.where(headers["flexible"], headers["key"] >> 8, 0)
    key = np.where(headers["flexible"], headers["key"] & 0xFF, headers["key"])
    value = headers["body"] - framing - headers["extras"] - key
    codes = np.where(headers["body"] > BODY_MAX, int(Stop.BODY_TOO_LARGE), 0)
    codes = np.where(value < 0, int(Stop.LENGTHS_EXCEED_BODY), codes)
    codes = np.where(np.isin(magic, MAGICS), codes, int(Stop.BAD_MAGIC))
    start, size = headers["start"], HEADER + headers["body"]
    stopped = np.flatnonzero((codes != 0) | (start + size > len(view)))
    whole = int(stopped[0]) if len(stopped) else len(start)
    stop = int(codes[whole]) if len(stopped) else 0
    needed = int(size[whole]) if len(stopped) and stop == 0 else HEADER
    extras_at = start + HEADER + framing
    columns = (start, size, np.isin(magic, REQUESTS), headers["opcode"], headers["datatype"], headers["vbucket"])
    parts = (headers["extras"], extras_at, key, extras_at + headers["extras"], value)
    everything: tuple[NDArray[Any], ...] = (*columns, headers["opaque"], headers["cas"], *parts)
    frames = Frames(*(column[:whole] for column in everything))
    return frames, stop, needed


def headers_at(view: NDArray[np.uint8], start: Ints) -> dict[str, NDArray[Any]]:
    """Return the fields of the headers that start at these bytes."""
    everywhere = np.ones(len(start), bool)
    fields = {
        name: numbers(view, kind, start + offset, everywhere).astype(np.int64)
        for name, (offset, kind) in HEADER_FIELDS.items()
    }
    wide = {name: numbers(view, kind, start + offset, everywhere) for name, (offset, kind) in WIDE_FIELDS.items()}
    return {"start": start, "flexible": np.isin(fields["magic"], FLEXIBLE), **fields, **wide}


def numbers(view: NDArray[np.uint8], kind: str, at: Ints, where: Flags) -> Words:
    """Return the big-endian numbers that start at these bytes, 0 where the mask is False."""
    numbers = np.zeros(len(at), np.uint64)
    if where.any():
        dtype = np.dtype(kind)
        overlapping = np.ndarray((len(view) - dtype.itemsize + 1,), dtype, view, 0, (1,))
        numbers[where] = overlapping[at[where]]
    return numbers
