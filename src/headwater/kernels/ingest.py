"""Changes in bulk: a buffer of DCP frames becomes staged and indexed changes in one call, for replicas and loads.

Each MUTATION, DELETION (V1 or V2) or EXPIRATION keeps its seqno, CAS and revision; it is stored in the form of the log:
opaque 0, deletions in the V2 form. Everything else stops the kernel and is for Python, which goes on behind it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels import history
from headwater.kernels.history import CONTROL, DONE, GROW
from headwater.kernels.index import (
    DELETION,
    EXPIRATION,
    FIELDS,
    HEADER,
    HIGH,
    MUTATION,
    Table,
    append_row,
    find,
    frame_at,
    frame_bytes,
    has_room,
    key_address,
    key_hash,
    location,
    opcode,
)
from headwater.kernels.intrinsics import copy, load8, load16, load32, load64, store8, store32
from headwater.kernels.jit import inline_kernel, kernel, prepare

# What ingest() stops for, besides history.DONE, GROW, CONTROL (any other frame) and BAD_...
ARENA_FULL = 7
PARTIAL = 8  # the buffer ends inside a frame

U = np.uintp
_ONE, _TWO, _FOUR, _EIGHT = U(1), U(2), U(4), U(8)
_V1, _V2 = U(18), U(21)
_ALL_ONES = U(0xFFFFFFFFFFFFFFFF)


@inline_kernel
def _judge(table: Table, frame: Any, end: Any) -> Any:
    """DONE when the frame can be taken as it is."""
    if end - frame < HEADER or end - frame - HEADER < U(load32(frame + _EIGHT)):
        return PARTIAL
    kind, extras = opcode(frame), U(load8(frame + _FOUR))
    if U(load8(frame)) != U(0x80) or kind < MUTATION or kind > EXPIRATION:
        return CONTROL
    if extras + U(load16(frame + _TWO)) > U(load32(frame + _EIGHT)):
        return history.BAD_LENGTH
    if not (
        (kind == MUTATION and extras == U(31))
        or (kind == DELETION and extras == _V1)
        or (kind == DELETION and extras == _V2)
        or (kind == EXPIRATION and extras == U(20))
    ):
        return history.BAD_KIND
    cas = U(load64(frame + U(16)))
    if cas == U(0) or cas == _ALL_ONES:
        return CONTROL
    vb = np.int64(load16(frame + U(6)))
    if vb >= len(table):
        return history.BAD_VBUCKET
    if U(load64(frame + HEADER)) <= table[vb, HIGH]:
        return history.BAD_SEQNO
    return DONE


@inline_kernel
def _widened(out: Any, frame: Any, length: Any, kept: Any, extras: Any) -> Any:
    """Copy a frame with the first `kept` bytes of its extras, which become `extras` long; returns its length."""
    had = U(load8(frame + _FOUR))
    copy(out, frame, HEADER + kept)
    store8(out + _FOUR, np.uint8(extras))
    store32(out + _EIGHT, np.uint32(length - HEADER + extras - had))
    copy(out + HEADER + extras, frame + HEADER + had, length - HEADER - had)
    return length + extras - had


@inline_kernel
def as_logged(out: Any, frame: Any, length: Any, now: Any) -> Any:
    """Copy a frame in the form of the log; returns its length there, three bytes more at most.

    V1 deletions become V2 ones, UPR's expirations DCP's: both get a delete time. UPR's mutations get an NRU byte.
    """
    extras, made = U(load8(frame + _FOUR)), length
    if extras == _V1:
        if opcode(frame) == EXPIRATION:
            made = _widened(out, frame, length, U(16), U(20))
        else:
            made = _widened(out, frame, length, U(16), _V2)
            store8(out + U(44), np.uint8(0))
        store32(out + U(40), np.uint32(now))
    elif extras == U(30):
        made = _widened(out, frame, length, U(30), U(31))
        store8(out + U(54), np.uint8(0))
    else:
        copy(out, frame, length)
    store32(out + U(12), np.uint32(0))
    return made


@kernel
def ingest(
    table: Table, segments: Table, data: Any, offset: Any, end: Any, slot: Any, used: Any, limit: Any, now: Any
) -> Any:
    """Stage the frames of data[offset:end] (a uint8 array).

    Args:
        slot, used, limit: the staging arena, how full it is and may become.
        now: the delete time, in Unix seconds, of V1 deletions, which carry none.

    Returns: (why it stopped, offset of the frame it stopped at, arena bytes used, frames, that frame's vbucket).
    """
    base, frames = U(data.ctypes.data), 0
    at, last, fill = base + U(offset), base + U(min(end, len(data))), U(used)
    while at < last:
        code = _judge(table, at, last)
        if code != DONE:
            vb = np.int64(load16(at + U(6))) if code != PARTIAL else np.int64(-1)
            return code, np.int64(at - base), np.int64(fill), frames, vb
        vb, length = np.int64(load16(at + U(6))), frame_bytes(at)
        if fill + length + U(3) > U(limit):
            return ARENA_FULL, np.int64(at - base), np.int64(fill), frames, vb
        if not has_room(table, vb):
            return GROW, np.int64(at - base), np.int64(fill), frames, vb
        place = location(U(slot), fill)
        frame = frame_at(segments, place)
        fill = fill + as_logged(frame, at, length, U(now))
        key, key_length = key_address(frame), U(load16(frame + _TWO))
        hashed = key_hash(table, vb, key, key_length)
        into, old = find(table, vb, segments, key, key_length, hashed)
        append_row(table, vb, segments, frame, place, hashed, into, old)
        frames += 1
        at = at + length
    return DONE, np.int64(at - base), np.int64(fill), frames, np.int64(-1)


def warm_up() -> None:
    """Build the kernels of this module."""
    table, segments = np.zeros((1, FIELDS), np.uint64), np.zeros((1, 2), np.uint64)
    prepare(ingest, table, segments, np.zeros(0, np.uint8), 0, 0, 0, 0, 0, 0)
