"""Loops over all live documents of a vbucket, to list (GET_KEYS), count or delete (FLUSH) them, and over its system
events.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel
from headwater.kernels.changes import DELETION_BYTES, above, next_cas, write_deletion
from headwater.kernels.choices import choice_of
from headwater.kernels.index import (
    FIELDS,
    HIGH,
    LOC,
    NEXT,
    NIL,
    ROWS,
    append_row,
    find,
    frame_at,
    frame_bytes,
    has_room,
    is_named,
    is_system,
    key_address,
    key_hash,
    location,
    marks,
    opcode,
)
from headwater.kernels.intrinsics import copy, load16, load32, load32_native, load64, load64_native, store16, store32
from headwater.kernels.offsets import EXPIRY_AT, KEY_LENGTH_AT, MUTATION, OPAQUE_AT, REV_SEQNO_AT

# What delete_all() stops for
DONE = 0
GROW = 1  # the vbucket's index must grow
STAGE_FULL = 2  # the staging arena has no room

U = np.uintp
_ZERO, _ONE, _TWO, _FOUR, _EIGHT = U(0), U(1), U(2), U(4), U(8)
_NANOSECONDS = U(1_000_000_000)


@inline_kernel
def _live_frame(table: Any, vb: Any, segments: Any, row: Any) -> Any:
    """Return the address of a row's frame if it is the newest version of a live document; otherwise 0."""
    if U(load32_native(table[vb, NEXT] + row * _FOUR)) != NIL:
        return _ZERO
    frame = frame_at(segments, U(load64_native(table[vb, LOC] + row * _EIGHT)))
    return frame if opcode(frame) == MUTATION and not is_system(frame) else _ZERO


@kernel
def live_keys(table: Any, vb: Any, segments: Any, first: Any, now: Any, out: Any, collection: Any) -> Any:
    """Write (u16 length, key) of a collection's live documents from row `first` on to `out`; return (bytes used, next
    row).

    Keys have their stored form. Documents that expired by Unix second `now` are left out. `out` must have room for at
    least one key (65,537 bytes for any).
    """
    row, used = U(first), _ZERO
    start, room = U(out.ctypes.data), U(len(out))
    while row < table[vb, ROWS]:
        frame = _live_frame(table, vb, segments, row)
        if frame != _ZERO and choice_of(frame) == U(collection):
            expiry, length = U(load32(frame + EXPIRY_AT)), U(load16(frame + KEY_LENGTH_AT))
            if expiry == _ZERO or expiry > U(now):
                if _TWO + length > room - used:
                    break
                store16(start + used, np.uint16(length))
                copy(start + used + _TWO, key_address(frame), length)
                used = used + _TWO + length
        row = row + _ONE
    return used, row


@kernel
def delete_all(table: Any, vb: Any, segments: Any, first: Any, arena: Any, staged: Any, limit: Any, now_ns: Any) -> Any:
    """Stage a deletion for every live document from row `first` on.

    Args:
        arena: slot of the staging arena.
        staged, limit: bytes of the arena in use, and the most that may be.
        now_ns: Unix time in nanoseconds.

    Returns: (reason of the stop, next row, bytes of the arena in use).
    """
    # The deletions that are appended here lie behind `end`, and are not looked at again.
    row, used, end = U(first), U(staged), table[vb, ROWS]
    bytes_end = min(U(limit), segments[U(arena), 1])
    while row < end:
        frame = _live_frame(table, vb, segments, row)
        if frame != _ZERO:
            # Before `find`: growing moves every slot.
            if not has_room(table, vb):
                return GROW, row, used
            length = U(load16(frame + KEY_LENGTH_AT))
            if used > bytes_end or DELETION_BYTES + length > bytes_end - used:
                return STAGE_FULL, row, used
            key = key_address(frame)
            hashed = key_hash(table, vb, key, length)
            slot, old = find(table, vb, segments, key, length, hashed, is_named(frame))
            to = segments[U(arena), 0] + used
            cas, seqno, rev = (
                next_cas(table, vb, U(now_ns)),
                table[vb, HIGH] + _ONE,
                above(U(load64(frame + REV_SEQNO_AT))),
            )
            write_deletion(to, key, vb, length, cas, seqno, rev, U(now_ns) // _NANOSECONDS, is_named(frame))
            store32(to + OPAQUE_AT, np.uint32(marks(frame)))
            append_row(table, vb, segments, to, location(U(arena), used), hashed, slot, old)
            used = used + DELETION_BYTES + length
        row = row + _ONE
    return DONE, row, used


@kernel
def system_rows(table: Any, vb: Any, segments: Any, rows: Any) -> Any:
    """Write the rows of the newest system events to `rows` (int64), as many as fit; return the number of all of
    them.
    """
    count, row, nexts = 0, _ZERO, table[vb, NEXT]
    while row < table[vb, ROWS]:
        if U(load32_native(nexts + row * _FOUR)) == NIL:
            if is_system(frame_at(segments, U(load64_native(table[vb, LOC] + row * _EIGHT)))):
                if count < len(rows):
                    rows[count] = np.int64(row)
                count += 1
        row = row + _ONE
    return count


@kernel
def count_collections(table: Any, vb: Any, segments: Any, ids: Any, counts: Any) -> None:
    """Add the documents of a vbucket to the counts of their collections.

    Args:
        ids: uint64, sorted. counts: int64[len(ids), 3]: live documents, bytes of their frames, tombstones.
    """
    row, nexts = _ZERO, table[vb, NEXT]
    while row < table[vb, ROWS]:
        if U(load32_native(nexts + row * _FOUR)) == NIL:
            frame = frame_at(segments, U(load64_native(table[vb, LOC] + row * _EIGHT)))
            number = choice_of(frame)
            low, high = 0, len(ids)
            while low < high:
                middle = (low + high) >> 1
                if U(ids[middle]) < number:
                    low = middle + 1
                else:
                    high = middle
            if low < len(ids) and U(ids[low]) == number:
                if opcode(frame) == MUTATION:
                    counts[low, 0] += 1
                    counts[low, 1] += np.int64(frame_bytes(frame))
                else:
                    counts[low, 2] += 1
        row = row + _ONE


def warm_up() -> None:
    """Build the kernels of this module."""
    table, segments = np.zeros((1, FIELDS), np.uint64), np.zeros((3, 2), np.uint64)
    live_keys(table, 0, segments, 0, 0, np.zeros(1, np.uint8), 0)
    delete_all(table, 0, segments, 0, 0, 0, 0, 0)
    system_rows(table, 0, segments, np.zeros(1, np.int64))
    count_collections(table, 0, segments, np.zeros(0, np.uint64), np.zeros((0, 3), np.int64))
