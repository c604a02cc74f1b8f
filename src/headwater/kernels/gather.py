"""Reads a view: the visible frames of a vbucket, in seqno order, in the layout of a consumer.

`gather` copies frames from the log, sets the opaque of each to the stream's, and changes the layout if the consumer did
not negotiate the stored one. Frames that need more work (extended attributes, compression, a frame larger than the
buffer) are left to Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.choices import is_shown
from headwater.kernels.copying import copy_value
from headwater.kernels.index import (
    NIL,
    OFFSET_BITS,
    OFFSET_MASK,
    Table,
    frame_bytes,
    is_named,
    is_system,
    opcode,
    visible,
)
from headwater.kernels.intrinsics import (
    copy,
    load8,
    load16,
    load32,
    load64,
    prefetch,
    store8,
    store16,
    store32,
    store64,
)
from headwater.kernels.offsets import (
    BEFORE_EXPIRY_IN,
    BEFORE_EXTRAS,
    BEFORE_FLAGS_IN,
    BEFORE_HEAD,
    BEFORE_REV_SEQNO_IN,
    BEFORE_SEQNO_IN,
    BEFORE_STATE_IN,
    BODY_LENGTH_AT,
    CAS_AT,
    DATATYPE_AT,
    DELETE_TIME_AT,
    DELETION,
    DELETION_EXTRAS,
    DELETION_NMETA_AT,
    DELETION_V2_EXTRAS,
    EXPIRATION,
    EXPIRATION_EXTRAS,
    EXPIRY_AT,
    EXTRAS_LENGTH_AT,
    FLAGS_AT,
    FLAGS_IN,
    HEADER,
    KEY_LENGTH_AT,
    MUTATION,
    MUTATION_EXTRAS,
    OPAQUE_AT,
    OPCODE_AT,
    REV_SEQNO_AT,
    SEQNO_AT,
    UNUSED_AT,
    UPR_MUTATION_EXTRAS,
    VBUCKET_AT,
)
from headwater.wire.flags import BeforeState

# What a consumer asked for, see gather()
DELETE_TIMES = 1  # OPEN with IncludeDeleteTimes: deletions in the V2 form
EXPIRY_OPCODE = 2  # CONTROL enable_expiry_opcode: expirations as such
NO_VALUE = 4  # OPEN with NoValue: values stay here, the datatype becomes RAW
KEEP_DATATYPE = 8  # OPEN with NoValueWithUnderlyingDatatype: values stay here, the JSON bit goes
NO_DELETES = 16  # OPEN with SkipDeletesInInitialBackfill, for a view that starts from 0
UPR = 32  # the layouts of UPR: mutations without the last byte, deletions and expirations of 18 bytes
KEEP_OPAQUE = 64  # the stored opaque, which counts the nodes that TAP brought the change through, and not the stream's

COLLECTIONS = 128  # keys begin with the id of their collection, also in the default one

# What is sent in front of each change, see gather()
NO_BEFORES = 0  # nothing
NOT_KEPT = 1  # that the version which it replaced is not kept
BEFORES = 2  # that version
SURE_BEFORES = 3  # that version; and where the index knows of none, that there was none

# What stopped gather()
END = 0  # no row is left
BUDGET = 1  # the budget is used up
SPACE = 2  # the next frame does not fit behind the others
PLAIN = 3  # the next frame is for Python

U = np.uintp
_ZERO, _ONE, _TWO, _FOUR, _EIGHT = U(0), U(1), U(2), U(4), U(8)
_JSON = U(1)
_VERSION, _NONE, _NOT_KEPT = U(BeforeState.VERSION), U(BeforeState.NONE), U(BeforeState.NOT_KEPT)


# A vbucket's frames lie among those of the others: each is a cache miss, and a page-table walk. Asking for a frame some
# rows before it is copied makes the waits overlap (1.7 times the speed for 64 vbuckets written in turn).
AHEAD_ROWS = 8
AHEAD_BYTES = 384


@inline_kernel
def _fetch(locs: Any, row: Any, segments: Table) -> None:
    """Prefetch the frame of a row."""
    place = U(locs[row])
    frame = segments[place >> OFFSET_BITS, 0] + (place & OFFSET_MASK)
    for at in range(0, AHEAD_BYTES, 64):
        prefetch(frame + U(at))


@inline_kernel
def fetch_ahead(locs: Any, nexts: Any, row: Any, rows: Any, segments: Table) -> None:
    """Prefetch the frame of a row if the row is visible."""
    if row < rows and visible(nexts, row, rows):
        _fetch(locs, row, segments)


@inline_kernel
def fetch_replaced_ahead(locs: Any, prevs: Any, row: Any, rows: Any, segments: Table) -> None:
    """Prefetch the frame of the version that a row replaced."""
    if row < rows and U(prevs[row]) != NIL:
        _fetch(locs, prevs[row], segments)


@kernel
def next_visible(nexts: Any, row: Any, rows: Any) -> Any:
    """Return the first visible row from `row` on; `rows` if there is none."""
    while row < rows and not visible(nexts, row, rows):
        row += 1
    return row


@kernel
def count_visible(locs: Any, nexts: Any, row: Any, rows: Any, segments: Table) -> Any:
    """Return (frames, stored bytes) of the visible rows from `row` on."""
    frames, total = np.int64(0), np.int64(0)
    for at in range(row, rows):
        if visible(nexts, at, rows):
            place = U(locs[at])
            frames += 1
            total += np.int64(frame_bytes(segments[place >> OFFSET_BITS, 0] + (place & OFFSET_MASK)))
    return frames, total


@inline_kernel
def extras_out(kind: Any, encoding: Any) -> Any:
    """Return the length of a frame's extras as sent with this encoding."""
    if encoding & UPR:
        return UPR_MUTATION_EXTRAS if kind == MUTATION else DELETION_EXTRAS
    if kind == MUTATION:
        return MUTATION_EXTRAS
    if kind == EXPIRATION and encoding & EXPIRY_OPCODE:
        return EXPIRATION_EXTRAS
    return DELETION_V2_EXTRAS if encoding & DELETE_TIMES else DELETION_EXTRAS


@inline_kernel
def datatype_out(frame: Any, encoding: Any) -> Any:
    """Return the datatype with which a document is sent."""
    if encoding & KEEP_DATATYPE:
        return U(load8(frame + DATATYPE_AT)) & _JSON
    return _ZERO if encoding & NO_VALUE else U(load8(frame + DATATYPE_AT))


@inline_kernel
def _reshape(out: Any, frame: Any, kind: Any, extras: Any, value: Any, encoding: Any, prefix: Any) -> None:
    """Write a frame with other extras, without its value, or with `prefix` zero bytes before its key.

    V1 deletions end with nmeta 0, V2 deletions with an unused byte.
    """
    old_extras = U(load8(frame + EXTRAS_LENGTH_AT))
    key = U(load16(frame + KEY_LENGTH_AT))
    copy(out, frame, FLAGS_AT)
    if kind == EXPIRATION and not encoding & EXPIRY_OPCODE:
        store8(out + OPCODE_AT, np.uint8(DELETION))
    store8(out + EXTRAS_LENGTH_AT, np.uint8(extras))
    store32(out + BODY_LENGTH_AT, np.uint32(extras + prefix + key + value))
    if encoding & (NO_VALUE | KEEP_DATATYPE):
        store8(out + DATATYPE_AT, np.uint8(datatype_out(frame, encoding)))
    if kind == MUTATION:
        copy(out + FLAGS_AT, frame + FLAGS_AT, extras - FLAGS_IN)
    elif extras == DELETION_EXTRAS:
        store16(out + DELETION_NMETA_AT, np.uint16(0))
    else:
        store32(out + DELETE_TIME_AT, load32(frame + DELETE_TIME_AT))
        if extras == DELETION_V2_EXTRAS:
            store8(out + UNUSED_AT, np.uint8(0))
    if prefix != _ZERO:
        store16(out + KEY_LENGTH_AT, np.uint16(prefix + key))
        store8(out + HEADER + extras, np.uint8(0))
    copy(out + HEADER + extras + prefix, frame + HEADER + old_extras, key + value)


# Numba counts the references to arrays that it hands to a function, unless that has few branches: two atomic additions
# for each array and row, which cost more than all else here. So these functions have few.


@inline_kernel
def is_left_out(nexts: Any, before: Any, rows: Any, merged_from: Any) -> Any:
    """Return True if row `before` is left out for the reader, who then holds an older version of the key."""
    return before >= U(merged_from) and not visible(nexts, before, rows)


@inline_kernel
def state_of(frame: Any, seqno: Any) -> Any:
    """Return the BeforeState of a change that replaced this frame.

    A row that was lost (node/storage/quarantine.py) points to a frame that is not its own.
    """
    if U(load64(frame + SEQNO_AT)) != seqno:
        return _NOT_KEPT
    return _VERSION if opcode(frame) == MUTATION else _NONE


@kernel
def find_replaced(
    seqs: Any, locs: Any, prevs: Any, nexts: Any, row: Any, rows: Any, merged_from: Any, segments: Table, befores: Any
) -> Any:
    """Return (state, place) of the version that a row replaced, as `gather` finds them."""
    before = U(prevs[row])
    if befores == NOT_KEPT or before == NIL:
        return (_NONE if befores == SURE_BEFORES else _NOT_KEPT), _ZERO
    place = U(locs[before])
    frame = segments[place >> OFFSET_BITS, 0] + (place & OFFSET_MASK)
    left_out = is_left_out(nexts, before, rows, merged_from)
    return (_NOT_KEPT if left_out else state_of(frame, U(seqs[before]))), place


@inline_kernel
def put_before(out: Any, change: Any, state: Any, before: Any, value: Any, opaque: Any, encoding: Any) -> None:
    """Write the message Before of a change; if `state` is VERSION, with the numbers of the frame at address `before`
    and its last `value` bytes.
    """
    extras = out + HEADER
    store64(out, np.uint64(BEFORE_HEAD))
    store16(out + VBUCKET_AT, load16(change + VBUCKET_AT))
    store32(out + BODY_LENGTH_AT, np.uint32(BEFORE_EXTRAS + value))
    store32(out + OPAQUE_AT, np.uint32(opaque))
    store64(extras, load64(change + SEQNO_AT))
    store8(extras + BEFORE_STATE_IN, np.uint8(state))
    if state != _VERSION:
        store64(out + CAS_AT, np.uint64(0))
        store64(extras + BEFORE_SEQNO_IN, np.uint64(0))
        store64(extras + BEFORE_REV_SEQNO_IN, np.uint64(0))
        store32(extras + BEFORE_FLAGS_IN, np.uint32(0))
        store32(extras + BEFORE_EXPIRY_IN, np.uint32(0))
        return
    store8(out + DATATYPE_AT, np.uint8(datatype_out(before, encoding)))
    store64(out + CAS_AT, load64(before + CAS_AT))
    store64(extras + BEFORE_SEQNO_IN, load64(before + SEQNO_AT))
    store64(extras + BEFORE_REV_SEQNO_IN, load64(before + REV_SEQNO_AT))
    store32(extras + BEFORE_FLAGS_IN, load32(before + FLAGS_AT))
    store32(extras + BEFORE_EXPIRY_IN, load32(before + EXPIRY_AT))
    copy_value(extras + BEFORE_EXTRAS, before + frame_bytes(before) - value, value)


@kernel
def gather(
    seqs: Any,
    locs: Any,
    prevs: Any,
    nexts: Any,
    row: Any,
    rows: Any,
    segments: Table,
    out: Any,
    opaque: Any,
    encoding: Any,
    slow: Any,
    budget: Any,
    choice: Any,
    mixed: Any,
    befores: Any,
    merged_from: Any,
) -> Any:
    """Copy the visible frames of rows [row, rows) into `out`.

    Args:
        seqs, locs, prevs, nexts: the view's columns.
        segments: (address, length) by slot.
        out: uint8 array.
        encoding: sum of the encoding bits (DELETE_TIMES and others).
        slow: datatype bits; frames with one of them are left to Python.
        budget: stop once this many bytes are written; the frame that reaches it is still written.
        choice, mixed: the choice of frames (choices.py), applied if `mixed` is true; otherwise all are written. System
            events are left to Python.
        befores: what is written before each change: NO_BEFORES and others. The UPR layouts have no such message.
        merged_from: the row from which on NEXT tells which versions are left out; earlier rows are all shown.

    Returns: (next row, bytes, frames, reason of the stop).
    """
    start = U(out.ctypes.data)
    at, end, frames = start, start + U(len(out)), np.int64(0)
    strip = encoding & (NO_VALUE | KEEP_DATATYPE)
    while row < rows:
        fetch_ahead(locs, nexts, row + AHEAD_ROWS, rows, segments)
        if befores > NOT_KEPT:
            fetch_replaced_ahead(locs, prevs, row + AHEAD_ROWS, rows, segments)
        if not visible(nexts, row, rows):
            row += 1
            continue
        if np.int64(at - start) >= budget:
            return row, np.int64(at - start), frames, BUDGET
        place = U(locs[row])
        slot, offset = place >> OFFSET_BITS, place & OFFSET_MASK
        frame = segments[slot, 0] + offset
        if mixed and not is_shown(frame, choice):
            row += 1
            continue
        kind, old_extras, length = opcode(frame), U(load8(frame + EXTRAS_LENGTH_AT)), frame_bytes(frame)
        if kind != MUTATION and encoding & NO_DELETES:
            row += 1
            continue
        key = U(load16(frame + KEY_LENGTH_AT))
        prefix = _ONE if encoding & COLLECTIONS and is_named(frame) == _ZERO else _ZERO
        if mixed and is_system(frame):
            return row, np.int64(at - start), frames, PLAIN
        # Nothing is copied from behind a segment, whatever length a header in memory claims.
        if U(load8(frame + DATATYPE_AT)) & U(slow) or offset + length > segments[slot, 1]:
            return row, np.int64(at - start), frames, PLAIN
        extras = extras_out(kind, encoding)
        value = length - HEADER - old_extras - key
        if strip:
            value = _ZERO
        frame_out_bytes = HEADER + extras + prefix + key + value
        if befores != NO_BEFORES:
            before_row, slot, offset, before = U(prevs[row]), _ZERO, _ZERO, _ZERO
            ahead, before_value, state = HEADER + BEFORE_EXTRAS, _ZERO, _NOT_KEPT
            if befores != NOT_KEPT and before_row != NIL:
                if not is_left_out(nexts, before_row, rows, merged_from):
                    place = U(locs[before_row])
                    slot, offset = place >> OFFSET_BITS, place & OFFSET_MASK
                    before = segments[slot, 0] + offset
                    state = state_of(before, U(seqs[before_row]))
            elif befores == SURE_BEFORES:
                state = _NONE
            if state == _VERSION:
                head = HEADER + U(load8(before + EXTRAS_LENGTH_AT)) + U(load16(before + KEY_LENGTH_AT))
                size = frame_bytes(before)
                if U(load8(before + DATATYPE_AT)) & U(slow) or offset + size > segments[slot, 1] or head > size:
                    return row, np.int64(at - start), frames, PLAIN
                before_value = _ZERO if strip else size - head
            ahead = ahead + before_value
            if ahead + frame_out_bytes > end - at:
                return row, np.int64(at - start), frames, SPACE if at > start else PLAIN
            put_before(at, frame, state, before, before_value, opaque, encoding)
            at = at + ahead
        if frame_out_bytes > end - at:
            # A frame that an empty buffer does not hold is for Python, which sends it in parts.
            return row, np.int64(at - start), frames, SPACE if at > start else PLAIN
        if frame_out_bytes == length and extras == old_extras and not strip:
            copy_value(at, frame, length)
        else:
            _reshape(at, frame, kind, extras, value, encoding, prefix)
        # The stored opaque has marks and counts of ours; a stream's messages carry the one of its request (dcp 2).
        if not encoding & KEEP_OPAQUE:
            store32(at + OPAQUE_AT, np.uint32(opaque))
        at = at + frame_out_bytes
        frames += 1
        row += 1
    return row, np.int64(at - start), frames, END


def warm_up() -> None:
    """Build the kernels of this module."""
    locs, u32, out = np.zeros(0, np.uint64), np.zeros(0, np.uint32), np.zeros(0, np.uint8)
    segments = np.zeros((1, 2), np.uint64)
    prepare(next_visible, u32, 0, 0)
    prepare(count_visible, locs, u32, 0, 0, segments)
    prepare(find_replaced, locs, locs, u32, u32, 0, 0, 0, segments, 0)
    prepare(gather, locs, locs, u32, u32, 0, 0, segments, out, np.uint32(0), 0, 0, 0, locs, 0, 0, 0)
