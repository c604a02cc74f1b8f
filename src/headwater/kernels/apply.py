"""A consumer node's fast path: the changes in a received buffer become staged and indexed changes of their replicas.

One call takes every MUTATION, DELETION and EXPIRATION that is in order: it belongs to an open stream (tracker.py),
carries the stream's opaque, and its seqno lies above the last one and inside the announced snapshot (dcp.md 9). A
change keeps its seqno, CAS and revision, and is stored in the layout of the log: the opaque holds only marks and the
age of a tombstone, deletions have the V2 layout, keys of the default collection come without its id. Any other frame
stops the kernel: Python handles this one frame, answers it with the specified error if it breaks a rule, and calls the
kernel again for the rest. So the kernel only detects that a rule is broken; Python determines which.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.choices import SYSTEM_COLLECTION, collection_of
from headwater.kernels.history import DONE, GROW
from headwater.kernels.index import (
    FIELDS,
    HIGH,
    NAMED_MARK,
    Table,
    append_row,
    find,
    frame_at,
    has_room,
    is_named,
    key_address,
    key_hash,
    location,
    opcode,
    since_of,
)
from headwater.kernels.intrinsics import copy, load8, load16, load32, load64, store8, store16, store32
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    CAS_AT,
    DELETE_TIME_AT,
    DELETE_TIME_IN,
    DELETION_EXTRAS,
    DELETION_NMETA_AT,
    DELETION_V2_EXTRAS,
    EXPIRATION,
    EXPIRATION_EXTRAS,
    EXTRAS_LENGTH_AT,
    HEADER,
    KEY_LENGTH_AT,
    MUTATION,
    MUTATION_EXTRAS,
    NMETA_AT,
    NRU_AT,
    OPAQUE_AT,
    REQUEST,
    REV_SEQNO_AT,
    SEQNO_AT,
    UNUSED_AT,
    UPR_MUTATION_EXTRAS,
)
from headwater.kernels.tracker import FIELDS as STREAM_FIELDS
from headwater.kernels.tracker import LAST, TAKEN, judge_seqno, put
from headwater.kernels.values import is_readable
from headwater.wire import numbers
from headwater.wire.header import BODY_BYTES_MAX, KEY_BYTES_MAX

__all__ = ["ARENA_FULL", "DONE", "GROW", "PLAIN", "apply", "warm_up"]

# What apply() stops for, besides DONE (the buffer is used up, or ends inside a frame) and GROW.
ARENA_FULL: Final = 7
PLAIN: Final = 9  # the frame is for Python
_TAKEABLE: Final = 10

U = np.uintp
U64 = np.uint64
_TWO, _EIGHT = U(2), U(8)
_KEY_MAX: Final = KEY_BYTES_MAX
_BODY_MAX: Final = BODY_BYTES_MAX
_HELD_MAX = U64(numbers.HELD_MAX)
_SEQNO_MAX = U64(numbers.SEQNO_MAX)


@inline_kernel
def _is_whole_change(kind: Any, word: Any, frame: Any, body: Any, collections: Any) -> Any:
    """Return True if lengths, datatype, metadata and value are those of an ordinary change.

    UPR's mutations have extras of 30 bytes, its expirations 18 (dcp.md 14). Deletions with a value (surviving xattrs)
    are left to Python.
    """
    extras, key, datatype = (
        (word >> U64(24)) & U64(0xFF),
        (word >> U64(32)) & U64(0xFFFF),
        (word >> U64(16)) & U64(0xFF),
    )
    # With Collections one byte more, for the shortest id: a longest key behind a longer id goes to Python.
    if key == U64(0) or key > U64(_KEY_MAX) + U64(collections) or extras + key > body:
        return False
    if kind == MUTATION:
        return (
            (extras == MUTATION_EXTRAS or extras == UPR_MUTATION_EXTRAS)
            and datatype <= U64(7)
            and load16(frame + NMETA_AT) == 0
            and is_readable(U(frame) + HEADER + U(extras + key), U(body - extras - key), datatype)
        )
    if datatype != U64(0) or extras + key != body:
        return False
    full_extras = EXPIRATION_EXTRAS if kind == EXPIRATION else DELETION_V2_EXTRAS
    return extras == full_extras or (extras == DELETION_EXTRAS and load16(frame + DELETION_NMETA_AT) == 0)


@inline_kernel
def _judge(streams: Any, table: Table, frame: Any, available: Any, collections: Any) -> Any:
    """Classify the frame; return (code, vbucket, frame length, seqno).

    The code is DONE if the frame is incomplete, PLAIN if Python must handle it, _TAKEABLE if the kernel may store it.
    """
    if available < HEADER:
        return DONE, np.int64(0), U(0), U64(0)
    word, body = load64(frame), U64(load32(frame + BODY_LENGTH_AT))
    kind, vb = (word >> U64(48)) & U64(0xFF), np.int64(word & U64(0xFFFF))
    if (word >> U64(56)) != REQUEST or kind < MUTATION or kind > EXPIRATION or body > U64(_BODY_MAX):
        return PLAIN, vb, U(0), U64(0)
    length = HEADER + U(body)
    # Nothing behind the header is read before the frame is known to be whole.
    if available < length:
        return DONE, vb, length, U64(0)
    cas = load64(frame + CAS_AT)
    # "A CAS of 0 or all-ones is regenerated" (dcp 9): Python does that.
    if vb >= len(table) or cas == U64(0) or cas > _HELD_MAX:
        return PLAIN, vb, length, U64(0)
    if not _is_whole_change(kind, word, frame, body, collections) or (collections and not _has_collection(frame)):
        return PLAIN, vb, length, U64(0)
    seqno = load64(frame + SEQNO_AT)
    if seqno > _SEQNO_MAX or load64(frame + REV_SEQNO_AT) > _HELD_MAX:
        return PLAIN, vb, length, seqno
    row = U(streams.ctypes.data) + U(vb) * U(8 * STREAM_FIELDS)
    # Above the last seqno of the stream and of the vbucket as well, which may be further than a new stream has begun.
    if judge_seqno(row, U64(load32(frame + OPAQUE_AT)), seqno) != TAKEN or seqno <= U64(table[vb, HIGH]):
        return PLAIN, vb, length, seqno
    return _TAKEABLE, vb, length, seqno


@inline_kernel
def _has_collection(frame: Any) -> Any:
    """Return True if a change's key begins with the id of a collection, and its layout is that of the log."""
    extras = U(load8(frame + EXTRAS_LENGTH_AT))
    if extras == DELETION_EXTRAS or extras == UPR_MUTATION_EXTRAS:
        return False
    number, id_bytes = collection_of(key_address(frame), U(load16(frame + KEY_LENGTH_AT)))
    return id_bytes != U(0) and number != U(SYSTEM_COLLECTION)


@inline_kernel
def _of_collection(out: Any, frame: Any, length: Any) -> Any:
    """Copy a frame of a connection with Collections to `out` in the layout of the log; return its length there."""
    key = key_address(frame)
    if load8(key) != 0:
        copy(out, frame, length)
        store32(out + OPAQUE_AT, np.uint32(NAMED_MARK))
        return length
    head = key - frame
    # The id of the default collection, one byte of 0, is left out: in the log its keys stand as they are.
    copy(out, frame, head)
    store16(out + KEY_LENGTH_AT, np.uint16(load16(frame + KEY_LENGTH_AT) - 1))
    store32(out + BODY_LENGTH_AT, np.uint32(length - HEADER - U(1)))
    store32(out + OPAQUE_AT, np.uint32(0))
    copy(out + head, key + U(1), length - head - U(1))
    return length - U(1)


@inline_kernel
def _widened(out: Any, frame: Any, length: Any, old_extras: Any, extras: Any) -> Any:
    """Copy a frame with longer extras, `old_extras` bytes of the old ones, `extras` in all; return the new length."""
    extras_before = U(load8(frame + EXTRAS_LENGTH_AT))
    copy(out, frame, HEADER + old_extras)
    store8(out + EXTRAS_LENGTH_AT, np.uint8(extras))
    store32(out + BODY_LENGTH_AT, np.uint32(length - HEADER + extras - extras_before))
    copy(out + HEADER + extras, frame + HEADER + extras_before, length - HEADER - extras_before)
    return length + extras - extras_before


@inline_kernel
def _as_logged(out: Any, frame: Any, length: Any, now: Any) -> Any:
    """Copy a frame to `out` in the layout of the log; return its length there, at most three bytes more.

    V1 deletions become V2 deletions, UPR's expirations become DCP's: both get a delete time. UPR's mutations get an NRU
    byte.
    """
    extras, stored_length = U(load8(frame + EXTRAS_LENGTH_AT)), length
    if extras == DELETION_EXTRAS:
        if opcode(frame) == EXPIRATION:
            stored_length = _widened(out, frame, length, DELETE_TIME_IN, EXPIRATION_EXTRAS)
        else:
            stored_length = _widened(out, frame, length, DELETE_TIME_IN, DELETION_V2_EXTRAS)
            store8(out + UNUSED_AT, np.uint8(0))
        store32(out + DELETE_TIME_AT, np.uint32(now))
    elif extras == UPR_MUTATION_EXTRAS:
        stored_length = _widened(out, frame, length, UPR_MUTATION_EXTRAS, MUTATION_EXTRAS)
        store8(out + NRU_AT, np.uint8(0))
    else:
        copy(out, frame, length)
    store32(out + OPAQUE_AT, np.uint32(0))
    return stored_length


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
    collections: Any,
) -> Any:
    """Stage the changes of data[offset:] (a uint8 array).

    Args:
        streams: `StreamTable.rows` of the connection; the kernel updates the last seqno of each stream.
        table, segments: the index and the segments of the store (kernels/index.py).
        slot, used, limit: the staging arena, its used bytes and their limit.
        now: Unix seconds: the delete time of tombstones without one (V1 deletions, UPR's expirations); a tombstone with
            a much older delete time counts its age from now.
        collections: 1 if keys begin with the id of their collection, else 0.

    Returns: (reason of the stop, offset of the first frame not stored, arena bytes used, number of changes stored,
    vbucket of the frame at that offset).
    """
    base, change_count = U(data.ctypes.data), 0
    at, end, fill = base + U(offset), base + U(len(data)), U(used)
    while True:
        code, vb, length, seqno = _judge(streams, table, at, end - at, collections)
        if code == DONE or code == PLAIN:
            break
        # The layout of the log is three bytes longer at most (`_as_logged`).
        if fill + length + U(3) > U(limit):
            code = ARENA_FULL
            break
        # Before `find`: growing moves every slot, and the one that it gave would be another's.
        if not has_room(table, vb):
            code = GROW
            break
        place = location(U(slot), fill)
        frame = frame_at(segments, place)
        stored_length = _of_collection(frame, at, length) if collections else _as_logged(frame, at, length, U(now))
        if opcode(frame) != MUTATION:
            since_hours = since_of(load32(frame + DELETE_TIME_AT), U(now))
            store32(frame + OPAQUE_AT, np.uint32(U(load32(frame + OPAQUE_AT)) | since_hours))
        fill = fill + stored_length
        key, key_length = key_address(frame), U(load16(frame + KEY_LENGTH_AT))
        hashed = key_hash(table, vb, key, key_length)
        into, old = find(table, vb, segments, key, key_length, hashed, is_named(frame))
        append_row(table, vb, segments, frame, place, hashed, into, old)
        # Only now, when the change is staged: a frame at which this stops is offered again.
        put(U(streams.ctypes.data) + U(vb) * U(8 * STREAM_FIELDS), LAST, seqno)
        change_count += 1
        at = at + length
    return code, np.int64(at - base), np.int64(fill), change_count, vb


def warm_up() -> None:
    """Build the kernels of this module."""
    streams, table = np.zeros((1, STREAM_FIELDS), np.uint64), np.zeros((1, FIELDS), np.uint64)
    prepare(apply, streams, table, np.zeros((1, 2), np.uint64), np.zeros(0, np.uint8), 0, 0, 0, 0, 0, 0)
