"""Compaction's work on rows: which of them stay, their frames, and the columns without the others.

A vbucket's first `prefix` rows lie in the segments that are compacted. Of those go: rows superseded by one of the first
`history` rows (history <= prefix; whatever superseded a row later than that may still be taken back), and purged
tombstones. Nothing here depends on rows that come while it runs: NEXT of a row that stays only ever changes from NIL
to a row number >= history, and a row that goes is superseded by one that exists already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.copying import copy_value
from headwater.kernels.gather import AHEAD_BYTES, AHEAD_ROWS
from headwater.kernels.index import (
    FIELDS,
    KEYS,
    LIVE_BYTES,
    LOC,
    MUTATION,
    NIL,
    OFFSET_BITS,
    OFFSET_MASK,
    ROWS,
    Table,
    frame_at,
    frame_bytes,
    location,
    opcode,
)
from headwater.kernels.intrinsics import load32, load64_native, prefetch
from headwater.kernels.jit import inline_kernel, kernel, prepare

U = np.uintp
_ZERO, _ONE, _EIGHT = U(0), U(1), U(8)


@kernel
def prefix_rows(table: Table, chosen: Any, found: Any) -> None:
    """found[vb] = how many rows lie in chosen slots (uint8 by slot); these are a vbucket's first rows."""
    for vb in range(len(table)):
        low, high = _ZERO, table[vb, ROWS]
        while low < high:
            middle = (low + high) >> _ONE
            slot = load64_native(table[vb, LOC] + middle * _EIGHT) >> OFFSET_BITS
            if chosen[slot] != 0:
                low = middle + _ONE
            else:
                high = middle
        found[vb] = np.int64(low)


@inline_kernel
def _purgeable(frame: Any, before: Any) -> Any:
    """A tombstone older than Unix second `before` (delete time at byte 40 of both kinds)."""
    return opcode(frame) != MUTATION and np.int64(load32(frame + U(40))) < before


@kernel
def survivors(
    seqs: Any, locs: Any, nexts: Any, prefix: Any, history: Any, segments: Table, before: Any, limit: Any, keep: Any
) -> Any:
    """Write the rows that stay into `keep` (uint32[prefix]).

    Args:
        before: tombstones deleted before this Unix second go, 0: none ...
        limit: ... as far as their seqno is at or below this one.

    Returns: (how many stay, rollback floor, purge seqno): below the floor states can't be rebuilt from what stays, up
    to the purge seqno tombstones are missing; 0 when nothing of the kind goes.
    """
    count, floor, purge = 0, _ZERO, _ZERO
    for row in range(prefix):
        after = U(nexts[row])
        if before > 0 and row + AHEAD_ROWS < history and U(nexts[row + AHEAD_ROWS]) == NIL:
            prefetch(frame_at(segments, U(locs[row + AHEAD_ROWS])))
        if after != NIL and after < U(history):
            floor = max(floor, U(seqs[after]))
            continue
        may_go = before > 0 and after == NIL and row < history and U(seqs[row]) <= U(limit)
        if may_go and _purgeable(frame_at(segments, U(locs[row])), before):
            purge = max(purge, U(seqs[row]))
            continue
        keep[count] = np.uint32(row)
        count += 1
    return count, max(floor, purge), purge


@inline_kernel
def _fetch_ahead(locs: Any, rows: Any, i: Any, segments: Table) -> None:
    """Bring the frame of a row closer that will be copied soon (why: gather.py)."""
    if i < len(rows):
        frame = frame_at(segments, U(locs[rows[i]]))
        for at in range(0, AHEAD_BYTES, 64):
            prefetch(frame + U(at))


@kernel
def copy_rows(locs: Any, rows: Any, first: Any, segments: Table, out: Any, place: Any, places: Any) -> Any:
    """Copy the frames of rows[first:] one behind the other into `out`, which will lie at LOC `place`; places[i] = their
    new LOC. Returns (how many fit, bytes)."""
    start = U(out.ctypes.data)
    at, end = start, start + U(len(out))
    for i in range(first, len(rows)):
        _fetch_ahead(locs, rows, i + AHEAD_ROWS, segments)
        frame = frame_at(segments, U(locs[rows[i]]))
        length = frame_bytes(frame)
        if length > end - at:
            return np.int64(i - first), np.int64(at - start)
        copy_value(at, frame, length)
        places[i] = U(place) + (at - start)
        at = at + length
    return np.int64(len(rows) - first), np.int64(at - start)


@inline_kernel
def _moved(row: Any, prefix: Any, kept: Any, where: Any) -> Any:
    """The new number of a row: NIL when it went."""
    number = U(row)
    if number == NIL:
        return np.uint32(NIL)
    if number < U(prefix):
        return where[number]
    return np.uint32(number - U(prefix) + U(kept))


@kernel
def rebuild(
    table: Table, vb: Any, segments: Table, old: Any, new: Any, prefix: Any, keep: Any, places: Any, slots: Any
) -> None:
    """Fill new columns from old ones: of the first `prefix` rows only `keep`, at their new places, then all others.

    Args:
        old, new: (seq, loc, hash, prev, next) arrays; the table's ROWS counts the old ones.
        places: LOC of each kept row, with the number of its new segment in place of the slot.
        slots: the slot of each new segment.

    Subtracts from KEYS and LIVE_BYTES what was the newest of its key and went (purged tombstones).
    """
    seq, loc, hashes, prev, nexts = old
    seq_new, loc_new, hash_new, prev_new, next_new = new
    where = np.empty(prefix, np.uint32)
    where[:] = np.uint32(NIL)
    kept = len(keep)
    for i in range(kept):
        where[keep[i]] = np.uint32(i)
    for row in range(prefix):
        if where[row] == np.uint32(NIL) and U(nexts[row]) == NIL:
            table[vb, KEYS] -= _ONE
            table[vb, LIVE_BYTES] -= frame_bytes(frame_at(segments, U(loc[row])))
    for i in range(kept):
        row = keep[i]
        place = U(places[i])
        seq_new[i] = seq[row]
        loc_new[i] = location(U(slots[place >> OFFSET_BITS]), place & OFFSET_MASK)
        hash_new[i] = hashes[row]
        prev_new[i] = _moved(prev[row], prefix, kept, where)
        next_new[i] = _moved(nexts[row], prefix, kept, where)
    i = kept
    for row in range(prefix, np.int64(table[vb, ROWS])):
        seq_new[i] = seq[row]
        loc_new[i] = loc[row]
        hash_new[i] = hashes[row]
        prev_new[i] = _moved(prev[row], prefix, kept, where)
        next_new[i] = _moved(nexts[row], prefix, kept, where)
        i += 1


def warm_up() -> None:
    """Build the kernels of this module."""
    table, segments = np.zeros((1, FIELDS), np.uint64), np.zeros((1, 2), np.uint64)
    u64, u32, signed, out = (np.zeros(0, kind) for kind in (np.uint64, np.uint32, np.int64, np.uint8))
    columns = (u64, u64, u32, u32, u32)
    prepare(prefix_rows, table, out, signed)
    prepare(survivors, u64, u64, u32, 0, 0, segments, 0, np.uint64(0), u32)
    prepare(copy_rows, u64, u32, 0, segments, out, np.uint64(0), u64)
    prepare(rebuild, table, 0, segments, columns, columns, 0, u32, u64, signed)
