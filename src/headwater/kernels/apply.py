"""A consumer node's fast path: the changes in a received buffer become staged and indexed changes of their replicas.

One call takes every MUTATION, DELETION and EXPIRATION that is plainly right: it belongs to an open stream (tracker.py),
carries the stream's opaque, and its seqno lies above the last one and inside the announced snapshot (dcp.md 9). It
keeps its seqno, CAS and revision, and is stored in the form of the log (ingest.py). Whatever is not plainly right, or
is no change, stops the kernel: Python looks at that one frame, answers the specified error if it deserves one, and
calls again behind it. So the rules are applied here, and told apart there.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.kernels.history import DONE, GROW
from headwater.kernels.index import (
    EXPIRATION,
    FIELDS,
    HEADER,
    HIGH,
    MUTATION,
    Table,
    append_row,
    find,
    frame_at,
    has_room,
    key_address,
    key_hash,
    location,
)
from headwater.kernels.ingest import ARENA_FULL, as_logged
from headwater.kernels.intrinsics import load16, load32, load64
from headwater.kernels.jit import inline_kernel, kernel, prepare
from headwater.kernels.tracker import FIELDS as STREAM_FIELDS
from headwater.kernels.tracker import LAST, TAKEN, judge_seqno, put
from headwater.wire.header import BODY_BYTES_MAX, KEY_BYTES_MAX

__all__ = ["ARENA_FULL", "DONE", "GROW", "PLAIN", "apply", "warm_up"]

# What apply() stops for, besides DONE (the buffer is used up, or ends inside a frame), GROW and ARENA_FULL.
PLAIN: Final = 9  # the frame is for Python
_TAKEABLE: Final = 10

U = np.uintp
U64 = np.uint64
_TWO, _EIGHT = U(2), U(8)
_KEY_MAX: Final = KEY_BYTES_MAX
_BODY_MAX: Final = BODY_BYTES_MAX
_ALL_ONES = U64(0xFFFFFFFFFFFFFFFF)


@inline_kernel
def _is_whole_change(kind: Any, word: Any, frame: Any, body: Any) -> Any:
    """Whether lengths, datatype and metadata are those of a change without anything out of the ordinary. "By extras
    length" (dcp.md 14): mutations of 30 bytes and expirations of 18 are UPR's. Deletions with a value (surviving
    xattrs) are for Python."""
    extras, key, datatype = (
        (word >> U64(24)) & U64(0xFF),
        (word >> U64(32)) & U64(0xFFFF),
        (word >> U64(16)) & U64(0xFF),
    )
    if key == U64(0) or key > U64(_KEY_MAX) or extras + key > body:
        return False
    if kind == U64(MUTATION):
        return (extras == U64(31) or extras == U64(30)) and datatype <= U64(7) and load16(frame + U(52)) == 0
    if datatype != U64(0) or extras + key != body:
        return False
    whole = U64(20) if kind == U64(EXPIRATION) else U64(21)
    return extras == whole or (extras == U64(18) and load16(frame + U(40)) == 0)


@inline_kernel
def _judge(streams: Any, table: Table, frame: Any, left: Any) -> Any:
    """(DONE: nothing whole is left, PLAIN or _TAKEABLE; vbucket, frame length, seqno)."""
    if left < HEADER:
        return DONE, np.int64(0), U(0), U64(0)
    word, body = load64(frame), U64(load32(frame + _EIGHT))
    kind, vb = (word >> U64(48)) & U64(0xFF), np.int64(word & U64(0xFFFF))
    if (word >> U64(56)) != U64(0x80) or kind < U64(MUTATION) or kind > U64(EXPIRATION) or body > U64(_BODY_MAX):
        return PLAIN, vb, U(0), U64(0)
    length = HEADER + U(body)
    if left < length:
        return DONE, vb, length, U64(0)
    cas = load64(frame + U(16))
    if vb >= len(table) or cas == U64(0) or cas == _ALL_ONES or not _is_whole_change(kind, word, frame, body):
        return PLAIN, vb, length, U64(0)
    seqno = load64(frame + HEADER)
    row = U(streams.ctypes.data) + U(vb) * U(8 * STREAM_FIELDS)
    if judge_seqno(row, U64(load32(frame + U(12))), seqno) != TAKEN or seqno <= U64(table[vb, HIGH]):
        return PLAIN, vb, length, seqno
    return _TAKEABLE, vb, length, seqno


@kernel
def apply(
    streams: Any,
    table: Table,
    segments: Table,
    data: Any,
    offset: Any,
    slot: Any,
    used: Any,
    limit: Any,
    now: Any,
) -> Any:
    """Stage the changes of data[offset:] (a uint8 array).

    Args:
        streams: `StreamTable.rows` of the connection; the last seqno of each stream moves on.
        table, segments: the store's.
        slot, used, limit: the staging arena, how full it is and may become.
        now: the delete time, in Unix seconds, of tombstones that carry none (V1 deletions, UPR's expirations).

    Returns: (why it stopped, offset of the first frame not taken, arena bytes used, changes taken, vbucket of the frame
        it stopped at).
    """
    base, taken = U(data.ctypes.data), 0
    at, end, fill = base + U(offset), base + U(len(data)), U(used)
    while True:
        code, vb, length, seqno = _judge(streams, table, at, end - at)
        if code == DONE or code == PLAIN:
            break
        if fill + length + U(3) > U(limit):
            code = ARENA_FULL
            break
        if not has_room(table, vb):
            code = GROW
            break
        place = location(U(slot), fill)
        frame = frame_at(segments, place)
        fill = fill + as_logged(frame, at, length, U(now))
        key, key_length = key_address(frame), U(load16(frame + _TWO))
        hashed = key_hash(table, vb, key, key_length)
        into, old = find(table, vb, segments, key, key_length, hashed)
        append_row(table, vb, segments, frame, place, hashed, into, old)
        put(U(streams.ctypes.data) + U(vb) * U(8 * STREAM_FIELDS), LAST, seqno)
        taken += 1
        at = at + length
    return code, np.int64(at - base), np.int64(fill), taken, vb


def warm_up() -> None:
    """Build the kernels of this module."""
    streams, table = np.zeros((1, STREAM_FIELDS), np.uint64), np.zeros((1, FIELDS), np.uint64)
    prepare(apply, streams, table, np.zeros((1, 2), np.uint64), np.zeros(0, np.uint8), 0, 0, 0, 0, 0)
