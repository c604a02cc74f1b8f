"""Operations on whole ranges of rows: growing, becoming durable, being undone, being replayed.

index.py has layout and field names. Each kernel here handles all vbuckets, or all of one vbucket, in one call: called
per vbucket and batch, the calls would cost more than the work itself. The kernels read only the columns, except when a
version becomes the newest of its key or stops being it: the sums need its length and kind.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.choices import choice_of, place_in
from headwater.kernels.index import (
    CAPACITY,
    DURABLE_HIGH,
    DURABLE_ROWS,
    EXPIRY,
    FIELDS,
    FROZEN_HIGH,
    FROZEN_ROWS,
    HASH,
    HIGH,
    KEYS,
    KEYS_MAX,
    LOC,
    MASK,
    NEXT,
    NIL,
    OFFSET_MASK,
    PREV,
    ROWS,
    SEQ,
    TABLE,
    Table,
    add_row,
    count_in,
    count_out,
    frame_bytes,
    frame_of,
    has_key,
    is_named,
    is_system,
    key_address,
    key_hash,
    link_row,
    location,
    opcode,
)
from headwater.kernels.intrinsics import (
    load8,
    load16,
    load32,
    load32_native,
    load64,
    load64_native,
    prefetch,
    store32_native,
    store64_native,
)
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    DELETION,
    DELETION_V2_EXTRAS,
    EXPIRATION,
    EXPIRATION_EXTRAS,
    EXPIRY_AT,
    EXTRAS_LENGTH_AT,
    HEADER,
    KEY_LENGTH_AT,
    MUTATION,
    MUTATION_EXTRAS,
    SEQNO_AT,
    VBUCKET_AT,
)

U = np.uintp
_ZERO, _ONE, _FOUR, _EIGHT = U(0), U(1), U(4), U(8)

# What replay() stops for
DONE = 0
GROW = 1  # the vbucket has no room for a row, then go on at the same frame
CONTROL = 2  # a control frame is for Python
BAD_LENGTH = 3  # a frame does not fit its batch, or its parts do not fit the frame
BAD_VBUCKET = 4  # a vbucket the store does not have
BAD_SEQNO = 5  # not above the one before it
BAD_KIND = 6  # an opcode, or extras of a length, that this version never wrote
CONTROL_FIRST = U(0xF0)

AHEAD_FRAMES = 8
AHEAD_ROWS = U(16)


@kernel
def fill_slots(slots: Any, hashes: Any, nexts: Any, rows: Any) -> None:
    """Build a hash table (uint32, its length a power of two, all NIL before) from the newest row of every key."""
    mask = U(len(slots) - 1)
    for row in range(rows):
        if U(nexts[row]) == NIL:
            at = U(hashes[row]) & mask
            while U(slots[at]) != NIL:
                at = (at + _ONE) & mask
            slots[at] = np.uint32(row)


@kernel
def make_durable(table: Table, arena: Any, segment: Any, body: Any) -> None:
    """Mark the frozen rows of all vbuckets as durable; offset x in the arena becomes offset body + x in the segment."""
    for vb in range(len(table)):
        locs = table[vb, LOC]
        row, end = table[vb, DURABLE_ROWS], table[vb, FROZEN_ROWS]
        # Only the frozen rows: those staged since lie in the other arena, and are not on disk.
        while row < end:
            offset = load64_native(locs + row * _EIGHT) & OFFSET_MASK
            store64_native(locs + row * _EIGHT, location(U(segment), U(body) + offset))
            row = row + _ONE
        table[vb, DURABLE_ROWS] = end
        table[vb, DURABLE_HIGH] = table[vb, FROZEN_HIGH]


@inline_kernel
def _slot_of(table: Table, vb: Any, row: Any) -> Any:
    """Return the hash table slot of a row that is the newest of its key."""
    slots, mask = table[vb, TABLE], table[vb, MASK]
    slot = U(load32_native(table[vb, HASH] + row * _FOUR)) & mask
    while U(load32_native(slots + slot * _FOUR)) != row:
        slot = (slot + _ONE) & mask
    return slot


@inline_kernel
def _free_slot(table: Table, vb: Any, slot: Any) -> None:
    """Empty a slot, and move later rows of its probe sequence up, so that no search ends early (Knuth 6.4, algorithm
    R).
    """
    slots, mask, hashes = table[vb, TABLE], table[vb, MASK], table[vb, HASH]
    hole, at = slot, slot
    while True:
        at = (at + _ONE) & mask
        row = U(load32_native(slots + at * _FOUR))
        if row == NIL:
            break
        home = U(load32_native(hashes + row * _FOUR)) & mask
        # A row may move up only if its home is not behind the hole, or a probe from there would miss it. The mask makes
        # distances of places that wrap around.
        if ((at - home) & mask) >= ((at - hole) & mask):
            store32_native(slots + hole * _FOUR, np.uint32(row))
            hole = at
    store32_native(slots + hole * _FOUR, np.uint32(NIL))


@inline_kernel
def _undo(table: Table, vb: Any, segments: Table, keep: Any) -> None:
    row = table[vb, ROWS]
    while row > keep:
        row = row - _ONE
        slot = _slot_of(table, vb, row)
        count_out(table, vb, frame_of(table, vb, segments, row))
        before = U(load32_native(table[vb, PREV] + row * _FOUR))
        if before == NIL:
            _free_slot(table, vb, slot)
            table[vb, KEYS] -= _ONE
        else:
            # The slot led to the row that goes; from now on the version before is the newest again.
            store32_native(table[vb, TABLE] + slot * _FOUR, np.uint32(before))
            store32_native(table[vb, NEXT] + before * _FOUR, np.uint32(NIL))
            count_in(table, vb, frame_of(table, vb, segments, before))
    table[vb, ROWS] = row


@kernel
def out_of_order(table: Table) -> Any:
    """Return the first vbucket with inconsistent counters; -1 if there is none.

    Rows must satisfy durable <= frozen <= staged <= capacity, and keys <= staged; seqnos must satisfy durable <= frozen
    <= highest.
    """
    for vb in range(len(table)):
        rows, frozen, high = table[vb, ROWS], table[vb, FROZEN_ROWS], table[vb, FROZEN_HIGH]
        if table[vb, DURABLE_ROWS] > frozen or frozen > rows or rows > table[vb, CAPACITY] or table[vb, KEYS] > rows:
            return vb
        if table[vb, DURABLE_HIGH] > high or high > table[vb, HIGH]:
            return vb
    return -1


@kernel
def undo_rows(table: Table, vb: Any, segments: Table, keep: Any) -> None:
    """Remove the rows of one vbucket from `keep` on, newest first; the previous version of each key is the newest
    again.
    """
    _undo(table, vb, segments, U(keep))


@kernel
def undo_staged(table: Table, segments: Table) -> None:
    """Remove every row that is not durable, in all vbuckets."""
    for vb in range(len(table)):
        if table[vb, ROWS] > table[vb, DURABLE_ROWS]:
            _undo(table, vb, segments, table[vb, DURABLE_ROWS])
        # The seqnos of what is undone are given again: nobody has seen them, for answers and streams wait for the disk.
        table[vb, HIGH] = table[vb, DURABLE_HIGH]
        table[vb, FROZEN_ROWS] = table[vb, DURABLE_ROWS]
        table[vb, FROZEN_HIGH] = table[vb, DURABLE_HIGH]


@kernel
def count_frames(frames: Any, used: Any) -> Any:
    """Return the number of frames that fill exactly the first `used` bytes; -1 if they do not.

    The position of a frame is known only from the length before it. The kernel prefetches some frames ahead, on the
    assumption that they have equal sizes.
    """
    at, end, count = U(frames.ctypes.data), U(frames.ctypes.data) + U(used), 0
    if used > len(frames):
        return -1
    while at + HEADER <= end:
        length = frame_bytes(at)
        prefetch(at + U(AHEAD_FRAMES) * length)
        at = at + length
        count += 1
    return count if at == end else -1


@inline_kernel
def check_frame(frame: Any, end: Any) -> Any:
    """Return DONE for a complete document frame with its opcode's extras, CONTROL for a control frame, or an error
    code.

    The frame must lie before `end`.
    """
    # The header must lie before the end before its length is read, and then the body.
    if end - frame < HEADER or end - frame - HEADER < U(load32(frame + BODY_LENGTH_AT)):
        return BAD_LENGTH
    kind, extras = opcode(frame), U(load8(frame + EXTRAS_LENGTH_AT))
    if extras + U(load16(frame + KEY_LENGTH_AT)) > U(load32(frame + BODY_LENGTH_AT)):
        return BAD_LENGTH
    if kind >= CONTROL_FIRST:
        return CONTROL
    if (
        (kind == MUTATION and extras == MUTATION_EXTRAS)
        or (kind == DELETION and extras == DELETION_V2_EXTRAS)
        or (kind == EXPIRATION and extras == EXPIRATION_EXTRAS)
    ):
        return DONE
    return BAD_KIND


@kernel
def count_rows(segments: Table, slot: Any, bodies: Any, counts: Any) -> None:
    """Add the number of rows that `replay` may add from a segment to `counts` (int64 by vbucket); stop at the same
    frame.
    """
    base = segments[slot, 0]
    for batch in range(len(bodies)):
        at, end = base + U(bodies[batch, 0]), base + U(bodies[batch, 1])
        while at < end:
            code = check_frame(at, end)
            if code != DONE and code != CONTROL:
                return
            vb = U(load16(at + VBUCKET_AT))  # of a frame that is too long it may lie behind the segment
            if vb >= U(len(counts)):
                return
            if code == DONE:
                counts[vb] += 1
            length = frame_bytes(at)
            prefetch(at + U(AHEAD_FRAMES) * length)
            at = at + length


@kernel
def replay(
    table: Table, segments: Table, slot: Any, bodies: Any, first: Any, offset: Any, first_vb: Any, end_vb: Any
) -> Any:
    """Add a row for each frame of many batches of one segment; `link` then enters the rows in the hash table.

    Args:
        slot: slot of the segment.
        bodies: int64[n, 2], begin and end of the frames of each batch.
        first, offset: the batch and byte to start at.
        first_vb, end_vb: the range of vbuckets to replay; frames of others are skipped.

    Returns: (reason of the stop, batch, offset of the frame, its length for CONTROL or its vbucket for GROW, BAD_SEQNO
    and BAD_VBUCKET).
    """
    base = segments[slot, 0]
    for batch in range(first, len(bodies)):
        at = U(offset) if batch == first else U(bodies[batch, 0])
        end = U(bodies[batch, 1])
        while at < end:
            frame = base + at
            code = check_frame(frame, base + end)
            if code != DONE and code != CONTROL:
                return code, batch, np.int64(at), np.int64(0)
            vb = np.int64(load16(frame + VBUCKET_AT))
            if vb >= len(table):
                return BAD_VBUCKET, batch, np.int64(at), vb
            length = frame_bytes(frame)
            prefetch(frame + U(AHEAD_FRAMES) * length)
            if vb < first_vb or vb >= end_vb:
                at = at + length
                continue
            if code == CONTROL:
                return CONTROL, batch, np.int64(at), np.int64(length)
            seqno, rows = U(load64(frame + SEQNO_AT)), table[vb, ROWS]
            if rows > _ZERO:
                last = U(load64_native(table[vb, SEQ] + (rows - _ONE) * _EIGHT))
                # The mark that a prepare is over has the seqno of the document that it became.
                ends = is_system(frame) and opcode(frame) != MUTATION
                if seqno < last or (seqno == last and not ends):
                    return BAD_SEQNO, batch, np.int64(at), vb
            # Behind all checks of the frame: what stops here is offered again once there is room.
            if rows >= table[vb, CAPACITY]:
                return GROW, batch, np.int64(at), vb
            hashed = key_hash(table, vb, key_address(frame), U(load16(frame + KEY_LENGTH_AT)))
            add_row(table, vb, frame, location(U(slot), at), hashed)
            at = at + length
    return DONE, np.int64(len(bodies)), np.int64(0), np.int64(0)


@inline_kernel
def _find_row(table: Table, vb: Any, segments: Table, row: Any) -> Any:
    """Return (slot, row) of the key of an added row, as `find` does; reads frames only if hashes are equal."""
    slots, mask, hashes = table[vb, TABLE], table[vb, MASK], table[vb, HASH]
    hashed = U(load32_native(hashes + row * _FOUR))
    slot = hashed & mask
    while True:
        other_row = U(load32_native(slots + slot * _FOUR))
        if other_row == NIL:
            return slot, np.int64(-1)
        if U(load32_native(hashes + other_row * _FOUR)) == hashed:
            frame = frame_of(table, vb, segments, row)
            key, length = key_address(frame), U(load16(frame + KEY_LENGTH_AT))
            if has_key(frame_of(table, vb, segments, other_row), key, length, is_named(frame)):
                return slot, np.int64(other_row)
        slot = (slot + _ONE) & mask


@kernel
def link(table: Table, vb: Any, segments: Table, first: Any) -> Any:
    """Enter the rows of a vbucket from `first` on in the hash table; return the first row that had no room, or the row
    count.
    """
    row, rows, hashes = U(first), table[vb, ROWS], table[vb, HASH]
    while row < rows and table[vb, KEYS] < table[vb, KEYS_MAX]:
        if row + AHEAD_ROWS < rows:
            ahead = U(load32_native(hashes + (row + AHEAD_ROWS) * _FOUR))
            prefetch(table[vb, TABLE] + (ahead & table[vb, MASK]) * _FOUR)
        slot, old = _find_row(table, vb, segments, row)
        link_row(table, vb, segments, row, slot, old)
        row = row + _ONE
    return np.int64(row)


@kernel
def find_expired(table: Table, vb: Any, segments: Table, now: Any, alive: Any, expired: Any) -> Any:
    """Write the rows of live documents with 0 < expiry <= now to `expired` (int64), as many as fit; return their
    number.

    `alive` (uint64, sorted) has the ids of existing collections; documents of others are left to compaction.

    If all rows were read, EXPIRY becomes the smallest expiry of a live document, expired ones included; if `expired`
    was full before, EXPIRY stays.
    """
    count, earliest, row = 0, _ZERO, _ZERO
    nexts = table[vb, NEXT]
    while row < table[vb, ROWS] and count < len(expired):
        if U(load32_native(nexts + row * _FOUR)) == NIL:
            frame = frame_of(table, vb, segments, row)
            expiry = U(load32(frame + EXPIRY_AT)) if opcode(frame) == MUTATION else _ZERO
            if expiry != _ZERO and place_in(alive, choice_of(frame)) >= 0:
                if expiry <= U(now):
                    expired[count] = np.int64(row)
                    count += 1
                if earliest == _ZERO or expiry < earliest:
                    earliest = expiry
        row = row + _ONE
    if row == table[vb, ROWS]:
        table[vb, EXPIRY] = earliest
    return count


def warm_up() -> None:
    """Build the kernels of this module."""
    table, u32 = np.zeros((1, FIELDS), np.uint64), np.zeros(0, np.uint32)
    segments, pairs = np.zeros((1, 2), np.uint64), np.zeros((1, 2), np.int64)
    prepare(fill_slots, u32, u32, u32, 0)
    prepare(make_durable, table, 0, 0, 0)
    prepare(out_of_order, table)
    prepare(undo_rows, table, 0, segments, 0)
    prepare(undo_staged, table, segments)
    prepare(count_frames, np.zeros(0, np.uint8), 0)
    prepare(count_rows, segments, 0, pairs, np.zeros(0, np.int64))
    prepare(replay, table, segments, 0, pairs, 0, 0, 0, 0)
    prepare(link, table, 0, segments, 0)
    prepare(find_expired, table, 0, segments, 0, np.zeros(0, np.uint64), np.zeros(0, np.int64))
