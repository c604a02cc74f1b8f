"""Compaction of rows: chooses the rows that stay, copies their frames, and rebuilds the columns.

The rows of a vbucket from `first` up to `end` lie in the segments that are compacted. Of these the compaction removes:

- rows superseded by one of the first `history` rows, in these segments or not. (A rollback may still remove rows from
  `history` on, so a row that only these supersede stays.)
- purged tombstones, except the newest change of a collection, and tombstones with an older version before `first`,
  which would become the newest again.
- documents of dropped collections, their prepares, and the ends of these prepares, which no stream sends.

Rows that are added meanwhile change nothing here: NEXT of a row that stays only changes from NIL to a row number >=
`history`, and a removed row is superseded by a row that is on disk already.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.choices import OF_PREPARE, choice_of, collection_of, place_in
from headwater.kernels.copying import copy_value
from headwater.kernels.gather import AHEAD_BYTES, AHEAD_ROWS
from headwater.kernels.index import (
    FIELDS,
    ITEMS,
    KEYS,
    LIVE_BYTES,
    LOC,
    NIL,
    OFFSET_BITS,
    OFFSET_MASK,
    ROWS,
    Table,
    frame_at,
    frame_bytes,
    is_named,
    is_system,
    key_address,
    location,
    made_at,
    opcode,
)
from headwater.kernels.intrinsics import load8, load16, load64, load64_native, prefetch
from headwater.kernels.offsets import CAS_AT, HEADER, KEY_LENGTH_AT, MUTATION, VBUCKET_AT

U = np.uintp
_ZERO, _ONE, _TWO, _EIGHT = U(0), U(1), U(2), U(8)
ROLLBACK, DROP = U(0xF1), U(0xF2)  # control frames (node/storage/records.py)
ROLLED_BACK, DROPPED = 1, 2


@kernel
def prefix_rows(table: Table, slots: Any, counts: Any) -> None:
    """Set counts[vb] to the number of rows in chosen slots (uint8 by slot); these are a vbucket's first rows."""
    for vb in range(len(table)):
        low, high = _ZERO, table[vb, ROWS]
        while low < high:
            middle = (low + high) >> _ONE
            slot = load64_native(table[vb, LOC] + middle * _EIGHT) >> OFFSET_BITS
            if slots[slot] != 0:
                low = middle + _ONE
            else:
                high = middle
        counts[vb] = np.int64(low)


@kernel
def rows_before(locs: Any, rows: Any, slots: Any) -> Any:
    """Return the number of rows, among the first `rows`, that lie in chosen slots (uint8 by slot); these are the first
    ones.
    """
    low, high = 0, rows
    while low < high:
        middle = (low + high) // 2
        if slots[U(locs[middle]) >> OFFSET_BITS] != 0:
            low = middle + 1
        else:
            high = middle
    return low


@inline_kernel
def _purgeable(frame: Any, before: Any) -> Any:
    """Return True for a tombstone that is older than Unix second `before`."""
    return opcode(frame) != MUTATION and np.int64(made_at(frame)) < before


@inline_kernel
def _goes_back_beyond(prevs: Any, row: Any, first: Any) -> Any:
    """Return True if a row before `first` is an older version of the row's key."""
    before = U(prevs[row])
    while before != NIL and before >= U(first):
        before = U(prevs[before])
    return before != NIL


@inline_kernel
def _dropped_at(frame: Any, dropped_collections: Any) -> Any:
    """Return the seqno at which the collection of a document or prepare was dropped; 0 if it was not dropped."""
    key, length = key_address(frame), U(load16(frame + KEY_LENGTH_AT))
    if is_system(frame):
        if load8(key + _ONE) != OF_PREPARE:
            return _ZERO
        key, length = key + _TWO, length - _TWO
    number = _ZERO
    if is_named(frame) != _ZERO:
        number, _ = collection_of(key, length)
    for i in range(len(dropped_collections)):
        if U(dropped_collections[i, 0]) == number:
            return U(dropped_collections[i, 1])
    return _ZERO


@inline_kernel
def _find_newest_rows(locs: Any, first: Any, history: Any, segments: Table, numbers: Any, newest: Any) -> None:
    """Write the last row of [`first`, `history`) for each of `numbers` (kernels/choices.py); -1 if it has none."""
    newest[:] = -1
    remaining = len(numbers)
    row = history - 1
    while row >= first and remaining > 0:
        if row - AHEAD_ROWS >= first:
            prefetch(frame_at(segments, U(locs[row - AHEAD_ROWS])))
        at = place_in(numbers, choice_of(frame_at(segments, U(locs[row]))))
        if at >= 0 and newest[at] < 0:
            newest[at] = row
            remaining -= 1
        row -= 1


@inline_kernel
def _later_row(row: Any, frame: Any, history: Any, numbers: Any, newest: Any) -> Any:
    """Return a row between `row` and `history` with the same number as the frame (kernels/choices.py); -1 if there is
    none.
    """
    if len(numbers) == 0:
        later = row + 1 if row + 1 < history else -1
    else:
        at = place_in(numbers, choice_of(frame))
        later = newest[at] if at >= 0 and newest[at] > row else -1
    return np.int64(later)


@kernel
def survivors(
    columns: Any,
    first: Any,
    end: Any,
    history: Any,
    segments: Table,
    before: Any,
    limit: Any,
    numbers: Any,
    newest: Any,
    keep: Any,
    dropped_collections: Any,
) -> Any:
    """Write the rows that stay, of those from `first` up to `end`, to `keep` (uint32[end - first]).

    Args:
        columns: (seq, loc, prev, next) arrays.
        before: purge tombstones that are older than this Unix second; 0 for none.
        limit: purge tombstones up to this seqno only, and only if their collection has a newer row.
        numbers: the numbers of all rows (kernels/choices.py), sorted; empty if all rows are documents of the default
            collection.
        newest: int64[len(numbers)], scratch memory.
        dropped_collections: uint64[n, 2], (id, seqno of the drop), sorted by id, of collections whose drop no rollback
            can undo.

    Returns: (number of rows that stay, rollback floor, purge seqno). States below the floor can't be rebuilt from the
    remaining rows; tombstones up to the purge seqno are missing. Both are 0 if nothing was removed that matters for
    them.
    """
    seqs, locs, prevs, nexts = columns
    count, floor, purge = 0, _ZERO, _ZERO
    # Without a purge nobody looks at them, and the empty range costs nothing.
    _find_newest_rows(locs, first, history if before > 0 else first, segments, numbers, newest)
    for row in range(first, end):
        after = U(nexts[row])
        if before > 0 and row + AHEAD_ROWS < min(history, end) and U(nexts[row + AHEAD_ROWS]) == NIL:
            prefetch(frame_at(segments, U(locs[row + AHEAD_ROWS])))
        # Superseded by a row that nothing takes back any more. States between the two need this version, so the floor
        # rises to the row behind it.
        if after != NIL and after < U(history):
            floor = max(floor, U(seqs[after]))
            continue
        if before > 0 and after == NIL and row < history and U(seqs[row]) <= U(limit):
            # "[...] and not (coll defined and coll <= start and coll <= purge)" (failover 2, step 2): who reads one
            # collection hears of what was purged by its newest seqno, so a row that has it, or a higher one, stays.
            # Nor may a rollback take that row away and leave the purge: the floor rises to it.
            frame = frame_at(segments, U(locs[row]))
            later = _later_row(row, frame, history, numbers, newest) if _purgeable(frame, before) else np.int64(-1)
            if later >= 0 and not _goes_back_beyond(prevs, row, first):
                purge, floor = max(purge, U(seqs[row])), max(floor, U(seqs[later]))
                continue
        if len(dropped_collections) > 0 and after == NIL and row < history:
            dropped_seqno = _dropped_at(frame_at(segments, U(locs[row])), dropped_collections)
            if dropped_seqno != _ZERO and not _goes_back_beyond(prevs, row, first):
                # What ends a prepare comes after the drop, and stands for the prepare in front of it, which goes too.
                floor = max(floor, dropped_seqno, U(seqs[row]))
                continue
        keep[count] = np.uint32(row)
        count += 1
    # States below the purge seqno would lack tombstones, so they can't be rebuilt either.
    return count, max(floor, purge), purge


@kernel
def first_younger(locs: Any, first: Any, rows: Any, segments: Table, cas_min: Any) -> Any:
    """Return the first row from `first` on whose CAS is at least `cas_min`; `rows` if there is none."""
    for row in range(first, rows):
        if row + AHEAD_ROWS < rows:
            prefetch(frame_at(segments, U(locs[row + AHEAD_ROWS])))
        if U(load64(frame_at(segments, U(locs[row])) + CAS_AT)) >= U(cas_min):
            return np.int64(row)
    return np.int64(rows)


@kernel
def history_within(columns: Any, first: Any, rows: Any, segments: Table, budget: Any, dropped_bytes: Any) -> Any:
    """Return (first row of a history, bytes): the longest history whose superseded versions have `budget` bytes at
    most.

    Args:
        columns: (seq, loc, prev) arrays.
        first, rows: the history begins at `first` or later, and ends before `rows`.
        dropped_bytes: int64[n, 2], for each drop of a collection, newest first, its seqno and the bytes of the
            documents that it superseded.
    """
    seqs, locs, prevs = columns
    used, row, drop = np.int64(0), np.int64(rows), 0
    while row > first:
        if row - 1 - AHEAD_ROWS >= first and U(prevs[row - 1 - AHEAD_ROWS]) != NIL:
            prefetch(frame_at(segments, U(locs[prevs[row - 1 - AHEAD_ROWS]])))
        row_bytes = np.int64(0)
        if U(prevs[row - 1]) != NIL:
            row_bytes = np.int64(frame_bytes(frame_at(segments, U(locs[prevs[row - 1]]))))
        while drop < len(dropped_bytes) and U(seqs[row - 1]) <= U(dropped_bytes[drop, 0]):
            row_bytes, drop = row_bytes + np.int64(dropped_bytes[drop, 1]), drop + 1
        if used + row_bytes > budget:
            break
        used, row = used + row_bytes, row - 1
    return row, used


@kernel
def bytes_of(locs: Any, rows: Any, segments: Table) -> Any:
    """Return the total size of the frames of `rows` in bytes."""
    total = _ZERO
    for i in range(len(rows)):
        if i + AHEAD_ROWS < len(rows):
            prefetch(frame_at(segments, U(locs[rows[i + AHEAD_ROWS]])))
        total += frame_bytes(frame_at(segments, U(locs[rows[i]])))
    return np.int64(total)


@kernel
def superseded_bytes(locs: Any, nexts: Any, rows: Any, segments: Table) -> Any:
    """Return the total size in bytes of the frames among `rows` that a newer version of their key supersedes."""
    total = _ZERO
    for i in range(len(rows)):
        if U(nexts[rows[i]]) != NIL:
            total += frame_bytes(frame_at(segments, U(locs[rows[i]])))
    return np.int64(total)


@kernel
def add_bytes(locs: Any, rows: Any, segments: Table, totals: Any) -> None:
    """Add the size of each row's frame to the total of its slot in `totals` (int64 by slot)."""
    for i in range(len(rows)):
        if i + AHEAD_ROWS < len(rows):
            prefetch(frame_at(segments, U(locs[rows[i + AHEAD_ROWS]])))
        place = U(locs[rows[i]])
        totals[place >> OFFSET_BITS] += np.int64(frame_bytes(frame_at(segments, place)))


@kernel
def taken_back(segments: Table, slot: Any, bodies: Any, kinds: Any) -> None:
    """Mark in `kinds` (uint8 by vbucket) the vbuckets of rollback and drop records in a segment: ROLLED_BACK, DROPPED,
    or both.

    Args:
        bodies: int64[n, 2], begin and end of the frames of each of its batches.
    """
    base = segments[slot, 0]
    for batch in range(len(bodies)):
        at, end = base + U(bodies[batch, 0]), base + U(bodies[batch, 1])
        while at + HEADER <= end:
            kind = opcode(at)
            if kind == ROLLBACK or kind == DROP:
                vb = np.int64(load16(at + VBUCKET_AT))
                if vb < len(kinds):
                    kinds[vb] |= np.uint8(ROLLED_BACK if kind == ROLLBACK else DROPPED)
            at = at + frame_bytes(at)


@inline_kernel
def _fetch_ahead(locs: Any, rows: Any, i: Any, segments: Table) -> None:
    """Prefetch the frame of a row that will be copied soon (why: gather.py)."""
    if i < len(rows):
        frame = frame_at(segments, U(locs[rows[i]]))
        for at in range(0, AHEAD_BYTES, 64):
            prefetch(frame + U(at))


@kernel
def copy_rows(locs: Any, rows: Any, first: Any, segments: Table, out: Any, place: Any, places: Any) -> Any:
    """Copy the frames of rows[first:] one after the other to `out`, whose LOC will be `place`; places[i] is the new LOC
    of rows[i].

    Returns: (number of frames that fit, bytes).
    """
    start = U(out.ctypes.data)
    at, end = start, start + U(len(out))
    for i in range(first, len(rows)):
        _fetch_ahead(locs, rows, i + AHEAD_ROWS, segments)
        frame = frame_at(segments, U(locs[rows[i]]))
        length = frame_bytes(frame)
        # By subtraction, which can't wrap: `at` never passes `end`.
        if length > end - at:
            return np.int64(i - first), np.int64(at - start)
        copy_value(at, frame, length)
        places[i] = U(place) + (at - start)
        at = at + length
    return np.int64(len(rows) - first), np.int64(at - start)


@inline_kernel
def _is_removed(number: Any, first: Any, end: Any, new_rows: Any) -> Any:
    return number >= U(first) and number < U(end) and new_rows[number - U(first)] == np.uint32(NIL)


@inline_kernel
def _new_row(row: Any, links: Any, first: Any, end: Any, kept_count: Any, new_rows: Any) -> Any:
    """Return the new number of `row`, or of the next row along `links` that stays if `row` is removed; NIL if there is
    none.
    """
    number = U(row)
    # With nothing in front none is left: all versions older than one that goes go too, and all that are newer than one
    # that stays do.
    while first > 0 and number != NIL and _is_removed(number, first, end, new_rows):
        number = U(links[number])
    if number == NIL:
        return np.uint32(NIL)
    if number < U(first):
        return np.uint32(number)
    if number < U(end):
        return new_rows[number - U(first)]
    return np.uint32(number - (U(end) - U(first)) + U(kept_count))


@kernel
def rebuild(
    table: Table,
    vb: Any,
    segments: Table,
    old: Any,
    new: Any,
    first: Any,
    end: Any,
    keep: Any,
    places: Any,
    slots: Any,
    new_rows: Any,
) -> None:
    """Fill new columns from old ones: of the rows from `first` up to `end` only those in `keep`, at their new places;
    all rows outside that range unchanged.

    If the successor of a version before `first` is removed, the next remaining successor follows it, as in a replay of
    the compacted log.

    Args:
        old, new: (seq, loc, hash, prev, next) arrays; the table's ROWS counts the old ones.
        places: LOC of each kept row, with the number of its new segment in place of the slot.
        slots: the slot of each new segment.
        new_rows: uint32[end - first], scratch memory.

    Subtracts removed rows that were the newest of their key from KEYS, LIVE_BYTES and ITEMS.
    """
    seq, loc, hashes, prev, nexts = old
    seq_new, loc_new, hash_new, prev_new, next_new = new
    new_rows[:] = np.uint32(NIL)
    kept_count = len(keep)
    for i in range(kept_count):
        new_rows[keep[i] - first] = np.uint32(first + i)
    for row in range(first, end):
        if new_rows[row - first] == np.uint32(NIL) and U(nexts[row]) == NIL:
            table[vb, KEYS] -= _ONE
            frame = frame_at(segments, U(loc[row]))
            table[vb, LIVE_BYTES] -= frame_bytes(frame)
            if opcode(frame) == MUTATION and not is_system(frame):  # of a dropped collection
                table[vb, ITEMS] -= _ONE
    into = 0
    for row in range(np.int64(table[vb, ROWS])):
        place = U(loc[row])
        if row >= first and row < end:
            if new_rows[row - first] == np.uint32(NIL):
                continue
            new_place = U(places[into - first])
            place = location(U(slots[new_place >> OFFSET_BITS]), new_place & OFFSET_MASK)
        seq_new[into] = seq[row]
        loc_new[into] = place
        hash_new[into] = hashes[row]
        prev_new[into] = _new_row(prev[row], prev, first, end, kept_count, new_rows)
        next_new[into] = _new_row(nexts[row], nexts, first, end, kept_count, new_rows)
        into += 1


def warm_up() -> None:
    """Build the kernels of this module."""
    table, segments = np.zeros((1, FIELDS), np.uint64), np.zeros((1, 2), np.uint64)
    u64, u32, signed, out = (np.zeros(0, kind) for kind in (np.uint64, np.uint32, np.int64, np.uint8))
    columns = (u64, u64, u32, u32, u32)
    prepare(prefix_rows, table, out, signed)
    prepare(rows_before, u64, 0, out)
    seqno, dropped = np.uint64(0), np.zeros((0, 2), np.uint64)
    prepare(survivors, (u64, u64, u32, u32), 0, 0, 0, segments, 0, seqno, u64, signed, u32, dropped)
    prepare(first_younger, u64, 0, 0, segments, seqno)
    prepare(history_within, (u64, u64, u32), 0, 0, segments, 0, np.zeros((0, 2), np.int64))
    prepare(bytes_of, u64, u32, segments)
    prepare(superseded_bytes, u64, u32, u32, segments)
    prepare(add_bytes, u64, u32, segments, signed)
    prepare(taken_back, segments, 0, np.zeros((0, 2), np.int64), out)
    prepare(copy_rows, u64, u32, 0, segments, out, np.uint64(0), u64)
    prepare(rebuild, table, 0, segments, columns, columns, 0, 0, u32, u64, signed, u32)
