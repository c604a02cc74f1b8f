"""One pass over received frames: every change becomes a row of columns, everything else is listed for Python.

The kernel trusts nothing it has not compared with the end of the buffer, and writes nothing it has not compared with
the capacity of the column. For each frame, in this order: is its header honest (scan.py), is it all here, is it a
change with extras its opcode knows, does it fit its stream (tracker.py), is there room; only then is it taken. So a
stop, for whatever reason, is always at a frame's first byte with all before it done and nothing of it.

What is not a change (markers, stream ends, no-ops, answers, ...) goes into the list of controls as (offset, row): it
came before the row with that number. Markers, and controls that carry a seqno, are followed here as well, since the
changes behind them in the same buffer depend on them.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.follow import DELETION, EXPIRATION, MUTATION, STREAM_END, counted_bytes, follow_control
from headwater.kernels.intrinsics import copy, load16, load32, load64
from headwater.kernels.jit import inline_kernel, kernel, reachable
from headwater.kernels.scan import FULL, HEADER, NEED_MORE, Stop, check_header, extras_bytes, framing_bytes, key_bytes
from headwater.kernels.tracker import DROPPED, END, FIELDS, LAST, START, TAKEN, get, judge_seqno, put

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
PROGRESS_FIELDS: Final = 9

BAD_EXTRAS: Final = int(Stop.BAD_EXTRAS)
CONTROLS_FULL: Final = int(Stop.CONTROLS_FULL)
EMPTY_KEY: Final = int(Stop.EMPTY_KEY)
EXTENDED_METADATA: Final = int(Stop.EXTENDED_METADATA)

NO_LAYOUT: Final = 0
METADATA_LENGTH: Final = 1
DELETE_TIME: Final = 2
FLAGS_AND_EXPIRY: Final = 3


class Columns(NamedTuple):
    """Preallocated memory for one batch: an array per column, the binary ones as offsets and bytes.

    All of the fixed columns have the same length, the capacity in rows; `key_offsets` and `value_offsets` one more.
    """

    vbucket: NDArray[np.uint16]
    opcode: NDArray[np.uint8]
    seqno: NDArray[np.uint64]
    rev_seqno: NDArray[np.uint64]
    cas: NDArray[np.uint64]
    flags: NDArray[np.uint32]
    expiry: NDArray[np.uint32]
    datatype: NDArray[np.uint8]
    snapshot_start: NDArray[np.uint64]
    snapshot_end: NDArray[np.uint64]
    key_offsets: NDArray[np.int32]
    key_data: NDArray[np.uint8]
    value_offsets: NDArray[np.int32]
    value_data: NDArray[np.uint8]


COLUMN_TYPES: Final = {
    "vbucket": np.uint16,
    "opcode": np.uint8,
    "seqno": np.uint64,
    "rev_seqno": np.uint64,
    "cas": np.uint64,
    "flags": np.uint32,
    "expiry": np.uint32,
    "datatype": np.uint8,
    "snapshot_start": np.uint64,
    "snapshot_end": np.uint64,
    "key_offsets": np.int32,
    "key_data": np.uint8,
    "value_offsets": np.int32,
    "value_data": np.uint8,
}
"""The element type of each member of `Columns`, in order."""


@inline_kernel
def change_layout(opcode: Any, extras: Any) -> Any:
    """What follows by_seqno and rev_seqno in the extras of a change, by their length (dcp.md 2.8 to 2.10, and 14 for
    UPR, whose mutation lacks the last byte and whose expiration is laid out as a V1 deletion)."""
    if opcode == MUTATION:
        return FLAGS_AND_EXPIRY if extras == U(31) or extras == U(30) else NO_LAYOUT
    if extras == U(18):
        return METADATA_LENGTH
    return DELETE_TIME if extras == (U(21) if opcode == DELETION else U(20)) else NO_LAYOUT


@inline_kernel
def metadata_bytes(layout: Any, extras_at: Any) -> Any:
    """nmeta, where the layout has it."""
    if layout == FLAGS_AND_EXPIRY:
        return load16(extras_at + U(28))
    return load16(extras_at + U(16)) if layout == METADATA_LENGTH else np.uint16(0)


@kernel
def decode_frames(
    base: Any, length: Any, columns: Any, controls: Any, streams: Any, progress: Any, checked: Any
) -> None:
    """Append the changes among the frames of [base, base + length) to `columns`.

    Args:
        base, length: address of the received bytes and how many there are.
        columns: a `Columns`; rows from progress[ROWS] on are written.
        controls: int64[n, 2] that takes (offset, row) of each control frame of this call.
        streams: `StreamTable.rows`.
        progress: int64[PROGRESS_FIELDS]. ROWS, KEY_BYTES and VALUE_BYTES go in and out; out come CONSUMED, CONTROLS,
            FLOW_BYTES, DROPPED_FRAMES, NEEDED and STOP of this call.
        checked: whether changes are held against `streams`.
    """
    start, end, position = U(base), U(length), U(0)
    table = U(streams.ctypes.data)
    rows, row_capacity = U(progress[ROWS]), U(len(columns.seqno))
    keys, key_capacity = U(progress[KEY_BYTES]), U(len(columns.key_data))
    values, value_capacity = U(progress[VALUE_BYTES]), U(len(columns.value_data))
    key_data, value_data = U(columns.key_data.ctypes.data), U(columns.value_data.ctypes.data)
    count, count_capacity = U(0), U(len(controls))
    flow, dropped = U(0), 0
    stop, needed = NEED_MORE, U(HEADER)
    columns.key_offsets[rows] = np.int32(keys)
    columns.value_offsets[rows] = np.int32(values)
    while end - position >= U(HEADER):
        head = start + position
        word = load64(head)
        body = U(load32(head + U(8)))
        stop = check_header(word, body)
        if stop != 0:
            break
        needed = U(HEADER) + body
        if needed > end - position:
            break
        opcode = np.int64((word >> U64(48)) & U64(0xFF))
        request = (word >> U64(56)) == U64(0x80) or (word >> U64(56)) == U64(0x08)
        row = table + U(word & U64(0xFFFF)) * U(8 * FIELDS)
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
            seqno = load64(extras_at)
            code = judge_seqno(row, U64(load32(head + U(12))), seqno) if checked else TAKEN
            if code > 0:
                stop = code
                break
            if code == DROPPED:
                dropped += 1
            else:
                value = body - framing_bytes(word) - extras - key
                if rows == row_capacity or key > key_capacity - keys or value > value_capacity - values:
                    stop = FULL
                    break
                columns.vbucket[rows] = np.uint16(word & U64(0xFFFF))
                columns.opcode[rows] = np.uint8(opcode)
                columns.seqno[rows] = seqno
                columns.rev_seqno[rows] = load64(extras_at + U(8))
                columns.cas[rows] = load64(head + U(16))
                columns.datatype[rows] = np.uint8((word >> U64(16)) & U64(0xFF))
                mutated = layout == FLAGS_AND_EXPIRY
                columns.flags[rows] = load32(extras_at + U(16)) if mutated else np.uint32(0)
                columns.expiry[rows] = (
                    load32(extras_at + (U(20) if mutated else U(16))) if layout != METADATA_LENGTH else np.uint32(0)
                )
                columns.snapshot_start[rows] = get(row, START)
                columns.snapshot_end[rows] = get(row, END)
                key_at = extras_at + extras
                copy(key_data + keys, key_at, key)
                copy(value_data + values, key_at + key, value)
                keys += key
                values += value
                rows += U(1)
                columns.key_offsets[rows] = np.int32(keys)
                columns.value_offsets[rows] = np.int32(values)
                put(row, LAST, seqno)
            flow += needed
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
                flow += counted_bytes(opcode, needed)
            if code == DROPPED:
                dropped += 1
            else:
                controls[count, 0] = np.int64(position)
                controls[count, 1] = np.int64(rows)
                count += U(1)
        position += needed
        needed = U(HEADER)
    progress[ROWS] = np.int64(rows)
    progress[KEY_BYTES] = np.int64(keys)
    progress[VALUE_BYTES] = np.int64(values)
    progress[CONSUMED] = np.int64(position)
    progress[CONTROLS] = np.int64(count)
    progress[FLOW_BYTES] = np.int64(flow)
    progress[DROPPED_FRAMES] = dropped
    progress[NEEDED] = np.int64(needed)
    progress[STOP] = stop


def decode(
    view: NDArray[np.uint8],
    columns: Columns,
    controls: NDArray[np.int64],
    table: NDArray[np.uint64],
    progress: NDArray[np.int64],
    checked: bool,
) -> None:
    """Call the kernel for an array of bytes; the arguments are those of `decode_frames`."""
    with reachable(view):
        decode_frames(view.ctypes.data, len(view), columns, controls, table, progress, checked)
