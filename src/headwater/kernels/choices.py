"""Collections: the id in front of a key (wire.md 8), and the choice of a vbucket's rows for a stream.

A stream's choice is one sorted array of numbers (uint64). The number of a document is the id of its collection, of the
creation or drop of a collection EVENTS_OF_COLLECTIONS + collection id, of its modification MODIFICATIONS + collection
id, of an event of a scope EVENTS_OF_SCOPES + scope id, of a prepare or abort PREPARES + collection id. A stream sends
only rows whose number is in the array, so the documents of a dropped collection vanish when its id leaves the array.
Only vbuckets with marked rows (index.py) are checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import inline_kernel, kernel, prepare
from headwater.kernels.index import (
    NIL,
    OFFSET_BITS,
    OFFSET_MASK,
    Table,
    frame_bytes,
    is_named,
    is_system,
    key_address,
    opcode,
    visible,
)
from headwater.kernels.intrinsics import load8, load16, load32
from headwater.kernels.offsets import BODY_LENGTH_AT, EXTRAS_LENGTH_AT, KEY_LENGTH_AT, MUTATION

EVENTS_OF_COLLECTIONS = 1 << 32
EVENTS_OF_SCOPES = 2 << 32
PREPARES = 3 << 32
NEVER_SHOWN = 4 << 32
"""The number of the mark that a prepare was committed: the document with the same seqno is sent instead."""
MODIFICATIONS = 5 << 32
SYSTEM_COLLECTION = 1
OF_COLLECTION, OF_SCOPE, OF_PREPARE, OF_MODIFIED = 0x63, 0x73, 0x70, 0x6D
"""The letters c, s, p, m, of which a system key has one before the id."""

U = np.uintp
_ZERO, _ONE, _TWO = U(0), U(1), U(2)
_LOW7, _MORE = U(0x7F), U(0x80)
_ID_MAX = U(0xFFFF_FFFF)


@inline_kernel
def collection_of(key: Any, length: Any) -> Any:
    """Return (id, its length) of the LEB128 number at the beginning of a key of `length` bytes.

    The length is 0 if the number is invalid: incomplete, not in the shortest form, above 32 bits, or without a key
    after it.
    """
    number, id_bytes, shift = _ZERO, _ZERO, _ZERO
    # Five groups of seven bits hold 32; a longer number is refused before it shifts beyond the word.
    while id_bytes < length and id_bytes < U(5):
        byte = U(load8(key + id_bytes))
        number = number | ((byte & _LOW7) << shift)
        id_bytes = id_bytes + _ONE
        if byte < _MORE:
            # A last group of 0 adds nothing. An id of two forms would make two keys of one document (wire 8).
            overlong = id_bytes > _ONE and byte == _ZERO
            if overlong or number > _ID_MAX or id_bytes >= length:
                return _ZERO, _ZERO
            return number, id_bytes
        shift = shift + U(7)
    return _ZERO, _ZERO


@inline_kernel
def choice_of(frame: Any) -> Any:
    """Return the number that a choice must contain to show a stored frame."""
    if is_named(frame) == _ZERO:
        return _ZERO
    key, length = key_address(frame), U(load16(frame + KEY_LENGTH_AT))
    if not is_system(frame):
        number, _ = collection_of(key, length)
        return number
    # 01, the kind, the id, and one byte that ends the key (a modification's seqno follows), or the document's own key
    number, _ = collection_of(key + _TWO, length - _TWO)
    kind = load8(key + _ONE)
    if kind == OF_PREPARE:
        body_bytes = U(load8(frame + EXTRAS_LENGTH_AT)) + length
        if opcode(frame) != MUTATION and body_bytes == U(load32(frame + BODY_LENGTH_AT)):
            return U(NEVER_SHOWN)
        return number + U(PREPARES)
    if kind == OF_MODIFIED:
        return number + U(MODIFICATIONS)
    return number + U(EVENTS_OF_SCOPES if kind == OF_SCOPE else EVENTS_OF_COLLECTIONS)


@inline_kernel
def place_in(choice: Any, number: Any) -> Any:
    """Return the position of a number in a choice; -1 if it is missing."""
    low, high = 0, len(choice)
    while low < high:
        middle = (low + high) >> 1
        if U(choice[middle]) < number:
            low = middle + 1
        else:
            high = middle
    return low if low < len(choice) and U(choice[low]) == number else -1


@inline_kernel
def is_shown(frame: Any, choice: Any) -> Any:
    """Return True if a stored frame is in a choice."""
    return place_in(choice, choice_of(frame)) >= 0


@inline_kernel
def _frame(locs: Any, row: Any, segments: Table) -> Any:
    place = U(locs[row])
    return segments[place >> OFFSET_BITS, 0] + (place & OFFSET_MASK)


@kernel
def next_shown(locs: Any, nexts: Any, row: Any, rows: Any, segments: Table, choice: Any) -> Any:
    """Return the first visible row from `row` on that is in the choice; `rows` if there is none."""
    while row < rows and not (visible(nexts, row, rows) and is_shown(_frame(locs, row, segments), choice)):
        row += 1
    return row


@kernel
def last_shown(locs: Any, nexts: Any, row: Any, rows: Any, segments: Table, choice: Any) -> Any:
    """Return the last visible row from `row` on that is in the choice; -1 if there is none."""
    at = rows - 1
    while at >= row and not (visible(nexts, at, rows) and is_shown(_frame(locs, at, segments), choice)):
        at -= 1
    return at if at >= row else -1


@kernel
def count_shown(locs: Any, nexts: Any, row: Any, rows: Any, segments: Table, choice: Any) -> Any:
    """Return (frames, stored bytes) of the visible rows from `row` on that are in the choice."""
    frames, total = np.int64(0), np.int64(0)
    for at in range(row, rows):
        if visible(nexts, at, rows):
            frame = _frame(locs, at, segments)
            if is_shown(frame, choice):
                frames += 1
                total += np.int64(frame_bytes(frame))
    return frames, total


@kernel
def note_newest(locs: Any, seqs: Any, row: Any, rows: Any, segments: Table, numbers: Any, newest: Any) -> Any:
    """Store the seqno of each row in `newest`, at the position of the row's number in the sorted `numbers`.

    Returns: the first row whose number is missing; `rows` if there is none.
    """
    while row < rows:
        at = place_in(numbers, choice_of(_frame(locs, row, segments)))
        if at < 0:
            break
        newest[at] = seqs[row]
        row += 1
    return row


@kernel
def link_newest(locs: Any, nexts: Any, row: Any, rows: Any, segments: Table, numbers: Any, links: Any) -> None:
    """Copy NEXT from `nexts` to `links` for rows whose number is in the sorted `numbers`: for such rows only the newest
    version of a key is shown, for all others every version.
    """
    while row < rows:
        if U(nexts[row]) != NIL and place_in(numbers, choice_of(_frame(locs, row, segments))) >= 0:
            links[row] = nexts[row]
        row += 1


@kernel
def choice_at(locs: Any, row: Any, segments: Table) -> Any:
    """Return the number of a row (`choice_of`)."""
    return choice_of(_frame(locs, row, segments))


def warm_up() -> None:
    """Build the kernels of this module."""
    locs, u32, segments, choice = (
        np.zeros(0, np.uint64),
        np.zeros(0, np.uint32),
        np.zeros((1, 2), np.uint64),
        np.zeros(0, np.uint64),
    )
    for each in (next_shown, last_shown, count_shown):
        prepare(each, locs, u32, 0, 0, segments, choice)
    prepare(note_newest, locs, choice, 0, 0, segments, choice, choice)
    prepare(link_newest, locs, u32, 0, 0, segments, choice, u32)
    prepare(choice_at, np.zeros(1, np.uint64), 0, np.zeros((1, 2), np.uint64))
