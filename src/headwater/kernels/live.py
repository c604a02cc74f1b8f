"""Writes a live stream's next snapshot in one call: the marker, and all changes that became durable since the last one.

Most snapshots of a live stream have a change or two; a view and a search for its changes would cost ten times as much
as copying them. If all new changes can be sent unchanged, in one piece, this kernel writes the whole snapshot.
Otherwise it writes nothing, returns (0, 0), and the stream takes the general path (node/streams).

Source: dcp 2.7 (the V1 marker), 8.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headwater.kernels.builds import kernel, prepare
from headwater.kernels.copying import copy_value
from headwater.kernels.gather import KEEP_DATATYPE, NO_VALUE, extras_out
from headwater.kernels.index import (
    DURABLE_ROWS,
    LOC,
    NEXT,
    NIL,
    OFFSET_BITS,
    OFFSET_MASK,
    SEQ,
    Table,
    frame_bytes,
    opcode,
)
from headwater.kernels.intrinsics import load8, load32_native, load64_native, store32, store64
from headwater.kernels.offsets import (
    BODY_LENGTH_AT,
    CAS_AT,
    DATATYPE_AT,
    END_AT,
    EXTRAS_LENGTH_AT,
    HEADER,
    MARKER_EXTRAS,
    MARKER_FLAGS_AT,
    MARKER_HEAD,
    OPAQUE_AT,
    START_AT,
)
from headwater.wire.dcp import SnapshotFlag

MARKER_BYTES = int(HEADER + MARKER_EXTRAS)
ROWS_MAX = 1024  # what is further behind is a backlog, and no matter of microseconds

U = np.uintp
U64 = np.uint64
HISTORY = U64(SnapshotFlag.HISTORY)


@kernel
def gather_live(
    table: Table, vb: Any, segments: Table, numbers: Any, out: Any, opaque: Any, encoding: Any, slow: Any, room: Any
) -> Any:
    """Write a snapshot marker and the frames of all durable changes after a seqno into `out`.

    Args:
        table, segments: the store's index.
        numbers: uint64[4]: the seqno after which to begin, the last seqno, start seqno and flags of the marker. With
            the flag History every version is written, otherwise the newest of each key.
        out: uint8 array.
        encoding, slow: as in `gather.gather`.
        room: the largest number of bytes to write.

    Returns: (bytes written, changes); (0, 0) if the changes up to the last seqno do not fit, or can't be sent as
    stored.
    """
    nothing = (np.int64(0), np.int64(0))
    after, last, rows = numbers[0], numbers[1], table[vb, DURABLE_ROWS]
    seqs, locs, nexts = table[vb, SEQ], table[vb, LOC], table[vb, NEXT]
    first = rows
    # From the end: there are one or two new rows as a rule, and ROWS_MAX bounds what counts.
    while first > U(0) and load64_native(seqs + (first - U(1)) * U(8)) > after:
        first -= U(1)
    # The last seqno is the caller's: had another batch become durable since, the marker would not cover it.
    if first == rows or rows - first > U(ROWS_MAX) or load64_native(seqs + (rows - U(1)) * U(8)) != last:
        return nothing
    start, of_all = U(out.ctypes.data), (numbers[3] & HISTORY) != U64(0)
    at, end, count = start + U(MARKER_BYTES), start + min(U(len(out)), U(room)), np.int64(0)
    if at > end or encoding & (NO_VALUE | KEEP_DATATYPE):
        return nothing
    for row in range(first, rows):
        following = U(load32_native(nexts + row * U(4)))
        if not of_all and following != NIL and following < rows:
            continue  # superseded by a change that is on its way as well
        place = load64_native(locs + row * U(8))
        slot, offset = place >> OFFSET_BITS, place & OFFSET_MASK
        frame = segments[slot, 0] + offset
        length = frame_bytes(frame)
        as_stored = extras_out(opcode(frame), encoding) == U(load8(frame + EXTRAS_LENGTH_AT))
        if U(load8(frame + DATATYPE_AT)) & U(slow) or offset + length > segments[slot, 1]:
            return nothing
        if not as_stored or length > end - at:
            return nothing
        copy_value(at, frame, length)
        store32(at + OPAQUE_AT, np.uint32(opaque))
        at += length
        count += 1
    # The marker last, into the room kept for it: only now it is known that all of its changes are there.
    store64(start, U64(MARKER_HEAD) | U64(vb))
    store32(start + BODY_LENGTH_AT, np.uint32(MARKER_EXTRAS))
    store32(start + OPAQUE_AT, np.uint32(opaque))
    store64(start + CAS_AT, U64(0))
    store64(start + START_AT, numbers[2])
    store64(start + END_AT, last)
    store32(start + MARKER_FLAGS_AT, np.uint32(numbers[3]))
    return np.int64(at - start), count


def warm_up() -> None:
    """Build the kernel of this module."""
    table, numbers = np.zeros((1, 2), np.uint64), np.zeros(4, np.uint64)
    prepare(gather_live, table, 0, table, numbers, np.zeros(0, np.uint8), 0, 0, 0, 0)
