"""One pass over received frames: every change becomes a row of columns, everything else is listed for Python.

The kernel trusts no length that it has not compared with the end of the buffer, and writes nothing that it has not
compared with the column's capacity. It checks each frame in this order: is its header consistent (scan.py), is it
complete, is it a change with valid extras, does it fit its stream (tracker.py), is there room; only then it takes the
frame. So it always stops at a frame's first byte, with all earlier frames processed completely and that frame not at
all.

All other frames (markers, stream ends, no-ops, answers, ...) are listed as controls, (offset, row): the frame came
before the row with that number. Stream states follow markers and controls with a seqno immediately, because the changes
after them in the same buffer depend on them.

If it was negotiated, a message `headwater.wire.dcp.Before`, with the replaced version, comes in front of each change.
Both are taken together or not at all, so a stop is at the first byte of the message, and `needed` counts both.

On a connection with Collections each key begins with the id of its collection (leb128, wire.md 8). A second kernel from
the same source moves the id to its own column, and refuses a key without an id. A third kernel reads messages Before.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.builds import inline_kernel, kernel, reachable
from headwater.kernels.choices import collection_of
from headwater.kernels.copying import copy_key, copy_value
from headwater.kernels.follow import DELETION, EXPIRATION, MUTATION, STREAM_END, counted_bytes, follow_control
from headwater.kernels.intrinsics import (
    load8,
    load16,
    load32,
    load64,
    store8,
    store16_native,
    store32_native,
    store64_native,
)
from headwater.kernels.offsets import (
    BEFORE_EXPIRY_IN,
    BEFORE_EXTRAS,
    BEFORE_FLAGS_IN,
    BEFORE_REV_SEQNO_IN,
    BEFORE_SEQNO_IN,
    BEFORE_STATE_IN,
    BODY_LENGTH_AT,
    CAS_AT,
    DELETE_TIME_IN,
    DELETION_EXTRAS,
    DELETION_NMETA_IN,
    DELETION_V2_EXTRAS,
    EXPIRATION_EXTRAS,
    EXPIRY_IN,
    FLAGS_IN,
    MUTATION_EXTRAS,
    MUTATION_HEAD,
    NMETA_IN,
    OPAQUE_AT,
    REV_SEQNO_IN,
    UPR_MUTATION_EXTRAS,
    VBUCKET_AT,
)
from headwater.kernels.scan import (
    BODY_MAX,
    FLEXIBLE_REQUEST,
    FULL,
    HEADER,
    NEED_MORE,
    REQUEST,
    Stop,
    check_header,
    extras_bytes,
    framing_bytes,
    key_bytes,
)
from headwater.kernels.tracker import (
    DROPPED,
    END,
    FIELDS,
    IN_SNAPSHOT,
    LAST,
    OPAQUE,
    START,
    STATE,
    TAKEN,
    get,
    judge_seqno,
    put,
)
from headwater.wire.event_columns import BATCH, BEFORE
from headwater.wire.flags import BeforeState
from headwater.wire.opcodes import Opcode

U = np.uintp
U64 = np.uint64

# Numbers of a decode that go in and out.
ROWS: Final = 0
KEY_BYTES: Final = 1
VALUE_BYTES: Final = 2
CONSUMED: Final = 3
CONTROLS: Final = 4
FLOW_BYTES: Final = 5
DROPPED_FRAMES: Final = 6
NEEDED: Final = 7
STOP: Final = 8
BEFORE_BYTES: Final = 9
PROGRESS_FIELDS: Final = 10

BAD_COLLECTION: Final = int(Stop.BAD_COLLECTION)
BAD_EXTRAS: Final = int(Stop.BAD_EXTRAS)
CONTROLS_FULL: Final = int(Stop.CONTROLS_FULL)
EMPTY_KEY: Final = int(Stop.EMPTY_KEY)
BAD_BEFORE: Final = int(Stop.BAD_BEFORE)
REFUSED: Final = int(Stop.BAD_MAGIC)
EXTENDED_METADATA: Final = int(Stop.EXTENDED_METADATA)

NO_LAYOUT: Final = 0
METADATA_LENGTH: Final = 1
DELETE_TIME: Final = 2
FLAGS_AND_EXPIRY: Final = 3


class ColumnMemory(NamedTuple):
    """Preallocated memory for one batch: an array per column; binary columns have one for offsets and one for bytes.

    All fixed columns have the same length, the capacity in rows; those of offsets have one element more.
    `collection_id` is empty if keys have no ids, and so are the columns of replaced versions (`before_state` and
    others) if these do not come. `places` has everything for the kernel in one array, because each argument costs time:
    the capacities in rows, bytes of keys, of values and of replaced values, and the address of each array.
    """

    arrays: dict[str, NDArray[Any]]
    places: NDArray[np.uint64]


def _memory(column: str, kind: str) -> dict[str, str]:
    return {f"{column}_offsets": "int32", f"{column}_data": "uint8"} if kind == "binary" else {column: kind}


_COLUMNS: Final = BATCH | {"collection_id": "uint32"} | BEFORE
ARRAY_TYPES: Final = {name: kind for item in _COLUMNS.items() for name, kind in _memory(*item).items()}
"""The element type of each array, as numpy calls it, in order."""
_number: Final = list(ARRAY_TYPES).index
# The numbers of the arrays, which numba freezes.
VBUCKET, OPCODE, SEQNO, REV_SEQNO = _number("vbucket"), _number("opcode"), _number("seqno"), _number("rev_seqno")
CAS, FLAGS, EXPIRY, DATATYPE = _number("cas"), _number("flags"), _number("expiry"), _number("datatype")
SNAPSHOT_START, SNAPSHOT_END = _number("snapshot_start"), _number("snapshot_end")
KEY_OFFSETS, KEY_DATA, COLLECTION_ID = _number("key_offsets"), _number("key_data"), _number("collection_id")
VALUE_OFFSETS, VALUE_DATA = _number("value_offsets"), _number("value_data")
BEFORE_STATE, BEFORE_SEQNO = _number("before_state"), _number("before_seqno")
BEFORE_REV_SEQNO, BEFORE_CAS = _number("before_rev_seqno"), _number("before_cas")
BEFORE_FLAGS, BEFORE_EXPIRY = _number("before_flags"), _number("before_expiry")
BEFORE_DATATYPE = _number("before_datatype")
BEFORE_VALUE_OFFSETS, BEFORE_VALUE_DATA = _number("before_value_offsets"), _number("before_value_data")
CAPACITIES: Final = 4
"""The numbers of `ColumnMemory.places` in front of the addresses."""
_BEFORE: Final = int(Opcode.DCP_BEFORE)
_VERSION, _NOT_KEPT = U64(BeforeState.VERSION), U64(BeforeState.NOT_KEPT)


@inline_kernel
def change_layout(opcode: Any, extras: Any) -> Any:
    """Return the layout of a change's extras after by_seqno and rev_seqno, by their length (dcp.md 2.8 to 2.10).

    UPR's mutation lacks the last byte, and its expiration has the layout of a V1 deletion (dcp.md 14).
    """
    if opcode == MUTATION:
        return FLAGS_AND_EXPIRY if extras == MUTATION_EXTRAS or extras == UPR_MUTATION_EXTRAS else NO_LAYOUT
    if extras == DELETION_EXTRAS:
        return METADATA_LENGTH
    return DELETE_TIME if extras == (DELETION_V2_EXTRAS if opcode == DELETION else EXPIRATION_EXTRAS) else NO_LAYOUT


@inline_kernel
def metadata_bytes(layout: Any, extras_at: Any) -> Any:
    """Return the length of the extended metadata (nmeta); 0 if the layout has none."""
    if layout == FLAGS_AND_EXPIRY:
        return load16(extras_at + NMETA_IN)
    return load16(extras_at + DELETION_NMETA_IN) if layout == METADATA_LENGTH else np.uint16(0)


# A header's first eight bytes, key length, datatype and vbucket blanked out: a mutation with 31 bytes of extras. Nearly
# all frames of a bulk transfer begin so.
ORDINARY: Final = MUTATION_HEAD
ORDINARY_MASK: Final = 0xFFFF_0000_FF00_0000
ORDINARY_EXTRAS: Final = MUTATION_EXTRAS


@inline_kernel
def is_ordinary(head: Any, word: Any, body: Any, room: Any, row: Any, checked: Any) -> Any:
    """Return True for a valid mutation of the most common form, which needs no further checks."""
    key, extras_at = U((word >> U64(32)) & U64(0xFFFF)), head + U(HEADER)
    if (word & U64(ORDINARY_MASK)) != U64(ORDINARY) or body > U(BODY_MAX) or U(HEADER) + body > room:
        return False
    if key == U(0) or ORDINARY_EXTRAS + key > body or load16(extras_at + NMETA_IN) != 0:
        return False
    if not checked:
        return True
    seqno, last = load64(extras_at), get(row, LAST)
    is_of_stream = get(row, STATE) == U64(IN_SNAPSHOT) and get(row, OPAQUE) == U64(load32(head + OPAQUE_AT))
    return is_of_stream and last < seqno and get(row, START) <= seqno and seqno <= get(row, END)


@inline_kernel
def put_row(to: Any, index: Any, head: Any, word: Any, row: Any, extras_at: Any, flags: Any, expiry: Any) -> None:
    """Write the numbers of a change to the columns at the addresses `to`, and advance its stream."""
    seqno = load64(extras_at)
    store16_native(to[VBUCKET] + index * U(2), np.uint16(word & U64(0xFFFF)))
    store8(to[OPCODE] + index, np.uint8((word >> U64(48)) & U64(0xFF)))
    store64_native(to[SEQNO] + index * U(8), seqno)
    store64_native(to[REV_SEQNO] + index * U(8), load64(extras_at + REV_SEQNO_IN))
    store64_native(to[CAS] + index * U(8), load64(head + CAS_AT))
    store32_native(to[FLAGS] + index * U(4), flags)
    store32_native(to[EXPIRY] + index * U(4), expiry)
    store8(to[DATATYPE] + index, np.uint8((word >> U64(16)) & U64(0xFF)))
    store64_native(to[SNAPSHOT_START] + index * U(8), get(row, START))
    store64_native(to[SNAPSHOT_END] + index * U(8), get(row, END))
    put(row, LAST, seqno)


@inline_kernel
def put_offsets(to: Any, index: Any, keys: Any, values: Any) -> None:
    """Write the offsets at which a row's key and value begin (the ends of the previous row's)."""
    store32_native(to[KEY_OFFSETS] + index * U(4), np.uint32(keys))
    store32_native(to[VALUE_OFFSETS] + index * U(4), np.uint32(values))


@inline_kernel
def put_id(to: Any, index: Any, number: Any) -> None:
    """Write the id of a row's collection."""
    store32_native(to[COLLECTION_ID] + index * U(4), np.uint32(number))


@inline_kernel
def is_before(word: Any, body: Any, extras_at: Any) -> Any:
    """Return True if a request with this header and these extras is a whole message Before.

    The seqno of a replaced version is below that of the change; without such a version, seqno and value are absent.
    """
    if extras_bytes(word) != BEFORE_EXTRAS or key_bytes(word) != U(0):
        return False
    state, seqno = U64(load8(extras_at + BEFORE_STATE_IN)), load64(extras_at + BEFORE_SEQNO_IN)
    if state == _VERSION:
        return U64(0) < seqno < load64(extras_at)
    return _VERSION < state <= _NOT_KEPT and seqno == U64(0) and body == framing_bytes(word) + BEFORE_EXTRAS


@inline_kernel
def put_replaced(places: Any, index: Any, head: Any, word: Any, extras_at: Any, at: Any, value: Any) -> None:
    """Write the version that a row replaced; its value of `value` bytes goes to offset `at`, and counts if the row is
    taken.
    """
    to = CAPACITIES
    store8(places[to + BEFORE_STATE] + index, load8(extras_at + BEFORE_STATE_IN))
    store64_native(places[to + BEFORE_SEQNO] + index * U(8), load64(extras_at + BEFORE_SEQNO_IN))
    store64_native(places[to + BEFORE_REV_SEQNO] + index * U(8), load64(extras_at + BEFORE_REV_SEQNO_IN))
    store64_native(places[to + BEFORE_CAS] + index * U(8), load64(head + CAS_AT))
    store32_native(places[to + BEFORE_FLAGS] + index * U(4), load32(extras_at + BEFORE_FLAGS_IN))
    store32_native(places[to + BEFORE_EXPIRY] + index * U(4), load32(extras_at + BEFORE_EXPIRY_IN))
    store8(places[to + BEFORE_DATATYPE] + index, np.uint8((word >> U64(16)) & U64(0xFF)))
    copy_value(places[to + BEFORE_VALUE_DATA] + at, extras_at + BEFORE_EXTRAS, value)
    store32_native(places[to + BEFORE_VALUE_OFFSETS] + index * U(4), np.uint32(at))
    store32_native(places[to + BEFORE_VALUE_OFFSETS] + (index + U(1)) * U(4), np.uint32(at + value))


@inline_kernel
def follows(before: Any, word: Any, head: Any, seqno: Any) -> Any:
    """Return True if a change is the one to which the message Before at address `before` belongs."""
    if before == U(0):
        return False
    same = load16(before + VBUCKET_AT) == np.uint16(word & U64(0xFFFF))
    extras_at = before + U(HEADER) + framing_bytes(load64(before))
    return same and load32(before + OPAQUE_AT) == load32(head + OPAQUE_AT) and load64(extras_at) == seqno


@inline_kernel
def decode_rows(
    view: Any, places: Any, controls: Any, streams: Any, progress: Any, checked: Any, with_ids: Any, with_befores: Any
) -> None:
    """Implement the decoding kernels; `with_ids` and `with_befores` are compile-time constants where they are known, so
    each kernel contains only its own code.
    """
    start, end, position = U(view.ctypes.data), U(len(view)), U(0)
    table = U(streams.ctypes.data)
    fixed = (places[4], places[5], places[6], places[7], places[8], places[9], places[10], places[11], places[12])
    to = (*fixed, places[13], places[14], places[15], places[16], places[17], places[18])
    # The message whose change is to come: its address (0: none), its size, and the bytes of its value.
    before, ahead, before_value = U(0), U(0), U(0)
    befores, before_capacity = U(progress[BEFORE_BYTES]), places[3]
    rows, row_capacity = U(progress[ROWS]), places[0]
    keys, key_capacity = U(progress[KEY_BYTES]), places[1]
    values, value_capacity = U(progress[VALUE_BYTES]), places[2]
    count, count_capacity = U(0), U(len(controls))
    flow, dropped_frames = U(0), 0
    stop, bytes_needed = NEED_MORE, U(HEADER)
    # The first offset of a batch, which has no row before it that would write it.
    put_offsets(to, rows, keys, values)
    if with_befores:
        store32_native(places[CAPACITIES + BEFORE_VALUE_OFFSETS] + rows * U(4), np.uint32(befores))
    while end - position >= U(HEADER):
        head = start + position
        word = load64(head)
        body = U(load32(head + BODY_LENGTH_AT))
        # No bound is checked: the table has a row for each of the 65,536 numbers that a header can hold.
        row = table + U(word & U64(0xFFFF)) * U(8 * FIELDS)
        if is_ordinary(head, word, body, end - position, row, checked):
            key, extras_at = U((word >> U64(32)) & U64(0xFFFF)), head + U(HEADER)
            value = body - ORDINARY_EXTRAS - key
            key_at = extras_at + ORDINARY_EXTRAS
            if with_befores and not follows(before, word, head, load64(extras_at)):
                stop, bytes_needed = BAD_BEFORE, U(HEADER) + body
                break
            if with_ids:
                number, prefix = collection_of(key_at, key)
                if prefix == U(0):
                    stop, bytes_needed = BAD_COLLECTION, U(HEADER) + body
                    break
                key_at += prefix
                key -= prefix
            # By subtractions, which can't wrap: what is used never passes the capacity.
            if rows == row_capacity or key > key_capacity - keys or value > value_capacity - values:
                stop, bytes_needed = FULL, U(HEADER) + body
                break
            flags, expiry = load32(extras_at + FLAGS_IN), load32(extras_at + EXPIRY_IN)
            put_row(to, rows, head, word, row, extras_at, flags, expiry)
            if with_ids:
                put_id(to, rows, number)
            copy_key(to[KEY_DATA] + keys, key_at, key)
            copy_value(to[VALUE_DATA] + values, key_at + key, value)
            keys += key
            values += value
            rows += U(1)
            put_offsets(to, rows, keys, values)
            flow += U(HEADER) + body
            position += U(HEADER) + body
            if with_befores:
                flow += ahead
                befores += before_value
                before, ahead = U(0), U(0)
            continue
        stop = check_header(word, body)
        if stop != 0:
            break
        bytes_needed = U(HEADER) + body
        # The frame is not whole yet. `stop` is NEED_MORE here, for that is 0 as well.
        if bytes_needed > end - position:
            break
        opcode = np.int64((word >> U64(48)) & U64(0xFF))
        request = (word >> U64(56)) == REQUEST or (word >> U64(56)) == FLEXIBLE_REQUEST
        if with_befores:
            framed = head + U(HEADER) + framing_bytes(word)
            if request and opcode == _BEFORE:
                if before != U(0) or not is_before(word, body, framed):
                    stop = BAD_BEFORE
                    break
                before_value = body - framing_bytes(word) - BEFORE_EXTRAS
                if rows == row_capacity or before_value > before_capacity - befores:
                    stop = FULL
                    break
                put_replaced(places, rows, head, word, framed, befores, before_value)
                before, ahead = head, bytes_needed
                position += bytes_needed
                bytes_needed, stop = U(HEADER), NEED_MORE
                continue
            is_change = request and MUTATION <= opcode <= EXPIRATION
            if is_change and extras_bytes(word) < U(8):
                stop = BAD_EXTRAS
                break
            if not follows(before, word, head, load64(framed)) if is_change else before != U(0):
                stop = BAD_BEFORE
                break
        if request and MUTATION <= opcode <= EXPIRATION:
            extras, key = extras_bytes(word), key_bytes(word)
            extras_at = head + U(HEADER) + framing_bytes(word)
            layout = change_layout(opcode, extras)
            if layout == NO_LAYOUT:
                stop = BAD_EXTRAS
                break
            if metadata_bytes(layout, extras_at) != 0:
                stop = EXTENDED_METADATA
                break
            if key == U(0):
                stop = EMPTY_KEY
                break
            value = body - framing_bytes(word) - extras - key
            key_at = extras_at + extras
            if with_ids:
                number, prefix = collection_of(key_at, key)
                if prefix == U(0):
                    stop = BAD_COLLECTION
                    break
                key_at += prefix
                key -= prefix
            # Behind all checks of the frame itself: what stops here has an intact frame, so the answer is about its
            # stream.
            code = judge_seqno(row, U64(load32(head + OPAQUE_AT)), load64(extras_at)) if checked else TAKEN
            if code > 0:
                stop = code
                break
            if code == DROPPED:
                dropped_frames += 1
            else:
                if rows == row_capacity or key > key_capacity - keys or value > value_capacity - values:
                    stop = FULL
                    break
                mutated = layout == FLAGS_AND_EXPIRY
                flags = load32(extras_at + FLAGS_IN) if mutated else np.uint32(0)
                dated = layout != METADATA_LENGTH
                expiry = load32(extras_at + (EXPIRY_IN if mutated else DELETE_TIME_IN)) if dated else np.uint32(0)
                put_row(to, rows, head, word, row, extras_at, flags, expiry)
                if with_ids:
                    put_id(to, rows, number)
                copy_key(to[KEY_DATA] + keys, key_at, key)
                copy_value(to[VALUE_DATA] + values, key_at + key, value)
                keys += key
                values += value
                rows += U(1)
                put_offsets(to, rows, keys, values)
            # A dropped change counts as well: every counted message does, "also those it rejects, ignores or that
            # belong to dead/closed streams" (dcp 7).
            flow += bytes_needed
            if with_befores:
                flow += ahead
                befores += before_value if code == TAKEN else U(0)
                before, ahead = U(0), U(0)
        else:
            if count == count_capacity:
                stop = CONTROLS_FULL
                break
            code = TAKEN
            if request and opcode >= STREAM_END:
                code = follow_control(head, word, opcode, body, row, checked)
                if code > 0:
                    stop = code
                    break
                flow += counted_bytes(opcode, bytes_needed)
            if code == DROPPED:
                dropped_frames += 1
            else:
                controls[count, 0] = np.int64(position)
                controls[count, 1] = np.int64(rows)
                count += U(1)
        position += bytes_needed
        bytes_needed = U(HEADER)
    if with_befores:
        if before != U(0) and stop < REFUSED:
            position -= ahead
            bytes_needed += ahead
        progress[BEFORE_BYTES] = np.int64(befores)
    progress[ROWS] = np.int64(rows)
    progress[KEY_BYTES] = np.int64(keys)
    progress[VALUE_BYTES] = np.int64(values)
    progress[CONSUMED] = np.int64(position)
    progress[CONTROLS] = np.int64(count)
    progress[FLOW_BYTES] = np.int64(flow)
    progress[DROPPED_FRAMES] = dropped_frames
    progress[NEEDED] = np.int64(bytes_needed)
    progress[STOP] = stop


@kernel
def decode_frames(view: Any, places: Any, controls: Any, streams: Any, progress: Any, checked: Any) -> None:
    """Append the changes among the frames of `view` to columns.

    Args:
        view: uint8, the received bytes.
        places: `ColumnMemory.places`; rows from progress[ROWS] on are written.
        controls: int64[n, 2], filled with (offset, row) of each control frame of this call.
        streams: `StreamTable.rows`.
        progress: int64[PROGRESS_FIELDS]. ROWS, KEY_BYTES and VALUE_BYTES are input and output; CONSUMED, CONTROLS,
            FLOW_BYTES, DROPPED_FRAMES, NEEDED and STOP are output.
        checked: True to check changes against `streams`.
    """
    decode_rows(view, places, controls, streams, progress, checked, False, False)


@kernel
def decode_frames_with_ids(view: Any, places: Any, controls: Any, streams: Any, progress: Any, checked: Any) -> None:
    """Append changes as `decode_frames` does; keys begin with a collection's id, which goes to its own column."""
    decode_rows(view, places, controls, streams, progress, checked, True, False)


@kernel
def decode_frames_with_befores(
    view: Any, places: Any, controls: Any, streams: Any, progress: Any, checked: Any, with_ids: Any
) -> None:
    """Append changes as `decode_frames` does; a message Before comes in front of each, whose version has its own
    columns.

    Args:
        with_ids: True if keys begin with the id of their collection.
        progress: BEFORE_BYTES goes in and out as well.
    """
    decode_rows(view, places, controls, streams, progress, checked, with_ids, True)


def decode(
    view: NDArray[np.uint8],
    columns: ColumnMemory,
    controls: NDArray[np.int64],
    table: NDArray[np.uint64],
    progress: NDArray[np.int64],
    checked: bool,
    with_ids: bool,
) -> None:
    """Call the kernel for an array of bytes; the arguments are those of `decode_frames`. Columns with room for replaced
    versions get them.
    """
    with reachable(*columns.arrays.values(), columns.places):
        if len(columns.arrays["before_state"]):
            decode_frames_with_befores(view, columns.places, controls, table, progress, checked, with_ids)
            return
        run = decode_frames_with_ids if with_ids else decode_frames
        run(view, columns.places, controls, table, progress, checked)
