"""The effects of frames between changes on the streams: markers, ends, controls that take a seqno; flow control.

Python handles these frames, but only after the whole buffer. The validity of later changes in the buffer depends on
them, so the decoder applies their effects to the streams first (dcp.md 2.6, 2.7, 2.16 to 2.18).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from headwater.kernels.builds import inline_kernel
from headwater.kernels.intrinsics import load8, load32, load64
from headwater.kernels.offsets import (
    COMMIT_EXTRAS,
    COMMIT_SEQNO_IN,
    END_IN,
    MARKER_EXTRAS,
    MARKER_V2_BYTES,
    MARKER_V2_EXTRAS,
    MARKER_V22_BYTES,
    OPAQUE_AT,
    PREPARE_EXTRAS,
    SEQNO_ADVANCED_EXTRAS,
    START_IN,
    SYSTEM_EVENT_EXTRAS,
)
from headwater.kernels.scan import HEADER, Stop, extras_bytes, framing_bytes, key_bytes
from headwater.kernels.tracker import (
    DROPPED,
    DROPPING,
    END,
    HELD_END,
    HELD_START,
    IN_SNAPSHOT,
    LAST,
    NO_STREAM,
    NONE,
    OPAQUE,
    START,
    STATE,
    TAKEN,
    WRONG_OPAQUE,
    get,
    judge_seqno,
    put,
)
from headwater.wire.opcodes import Opcode

U = np.uintp
U64 = np.uint64

WIRE_SEQNO_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF

BAD_EXTRAS: Final = int(Stop.BAD_EXTRAS)
BAD_MARKER: Final = int(Stop.BAD_MARKER)
MARKER_BEHIND: Final = int(Stop.MARKER_BEHIND)

STREAM_END: Final = int(Opcode.DCP_STREAM_END)
MARKER: Final = int(Opcode.DCP_SNAPSHOT_MARKER)
MUTATION: Final = int(Opcode.DCP_MUTATION)
DELETION: Final = int(Opcode.DCP_DELETION)
EXPIRATION: Final = int(Opcode.DCP_EXPIRATION)
SYSTEM_EVENT: Final = int(Opcode.DCP_SYSTEM_EVENT)
PREPARE: Final = int(Opcode.DCP_PREPARE)
COMMIT: Final = int(Opcode.DCP_COMMIT)
ABORT: Final = int(Opcode.DCP_ABORT)
SEQNO_ADVANCED: Final = int(Opcode.DCP_SEQNO_ADVANCED)

# dcp.md 7: what takes room in the flow-control window; no-ops and answers don't.
COUNTED_OPCODES: Final = (
    *(STREAM_END, MARKER, MUTATION, DELETION, EXPIRATION, SYSTEM_EVENT, PREPARE, COMMIT, ABORT, SEQNO_ADVANCED),
    *(int(Opcode.DCP_SET_VBUCKET_STATE), int(Opcode.DCP_OSO_SNAPSHOT)),
    *(int(Opcode.DCP_CACHE_TRANSFER), int(Opcode.DCP_CACHE_TRANSFER_END)),
)
COUNTED: Final = sum(1 << (opcode - STREAM_END) for opcode in COUNTED_OPCODES)  # as a bit set, from STREAM_END on


@inline_kernel
def counted_bytes(opcode: Any, size: Any) -> Any:
    """Return the bytes of a stream message in the flow-control window: its wire size, plus two for a prepare, which
    both ends count as 57 bytes (dcp.md 7).
    """
    # An opcode below the first one wraps around to a large number, and so takes none.
    place = U64(opcode) - U64(STREAM_END)
    if place > U64(18) or (U64(COUNTED) >> place) & U64(1) == U64(0):
        return U(0)
    return size + U(2) if opcode == PREPARE else size


@inline_kernel
def marker_range(extras: Any, extras_bytes: Any, key_bytes: Any, value_bytes: Any, last: Any) -> Any:
    """Return (reason of refusal or 0, start, end) of the snapshot marker with extras at this address (dcp.md 2.7).

    V1 has 20 bytes of extras. V2 has one byte, the version: 0 with a value of 36 bytes, 2 with 52. The bare marker of
    UPR is a boundary without numbers (dcp.md 14): its snapshot begins after the last seqno, and its end is unknown
    until the next marker or the end of the stream.
    """
    numbers = extras
    if extras_bytes == U(0) and key_bytes == U(0) and value_bytes == U(0):
        return 0, last, U64(WIRE_SEQNO_MAX)
    if extras_bytes == MARKER_V2_EXTRAS and key_bytes == U(0):
        version = load8(extras)
        if not (
            (version == 0 and value_bytes == MARKER_V2_BYTES) or (version == 2 and value_bytes == MARKER_V22_BYTES)
        ):
            return BAD_MARKER, U64(0), U64(0)
        numbers = extras + MARKER_V2_EXTRAS
    elif extras_bytes != MARKER_EXTRAS or key_bytes != U(0) or value_bytes != U(0):
        return BAD_MARKER, U64(0), U64(0)
    start, end = load64(numbers + START_IN), load64(numbers + END_IN)
    return (BAD_MARKER if start > end else 0), start, end


@inline_kernel
def judge_marker(row: Any, opaque: Any, start: Any, end: Any) -> Any:
    """Return TAKEN, DROPPED or the reason why a snapshot marker is refused; change nothing.

    dcp.md 9: "start < last seqno and end <= last seqno: ERANGE". A marker that arrives before the previous snapshot is
    complete replaces that snapshot.
    """
    state, last = get(row, STATE), get(row, LAST)
    if state == U64(DROPPING):
        return DROPPED
    if state == U64(NONE):
        return NO_STREAM
    if get(row, OPAQUE) != opaque:
        return WRONG_OPAQUE
    return MARKER_BEHIND if start < last and end <= last else TAKEN


@inline_kernel
def enter_snapshot(row: Any, start: Any, end: Any) -> None:
    """Enter the snapshot that the following changes belong to.

    HELD_START to HELD_END is the snapshot range of a resume (protocol/dcp/position.py): the consumer's data is
    consistent at HELD_START and will be again at HELD_END. A snapshot that replaces an incomplete one widens the range
    instead of starting a new one: versions that the incomplete snapshot had replaced by newer ones may never have
    arrived. If LAST is at either end, the data is consistent now.
    """
    last = get(row, LAST)
    if last < get(row, HELD_END) and get(row, HELD_START) < last:
        put(row, HELD_START, min(get(row, HELD_START), start))
        put(row, HELD_END, max(get(row, HELD_END), end))
    else:
        put(row, HELD_START, min(last, start))
        put(row, HELD_END, max(last, end))
    put(row, STATE, IN_SNAPSHOT)
    put(row, START, start)
    put(row, END, end)


@inline_kernel
def end_stream(row: Any, opaque: Any) -> None:
    """Close the stream whose opaque a stream end carries; ignore the end of an older one (dcp.md 9)."""
    if get(row, OPAQUE) == opaque:
        put(row, STATE, NONE)


@inline_kernel
def seqno_extras(opcode: Any) -> Any:
    """Return the size of the extras of a control with a seqno (dcp.md 2.16 to 2.18); 0 for other messages."""
    if opcode == SEQNO_ADVANCED:
        return SEQNO_ADVANCED_EXTRAS
    if opcode == SYSTEM_EVENT:
        return SYSTEM_EVENT_EXTRAS
    if opcode == PREPARE:
        return PREPARE_EXTRAS
    return COMMIT_EXTRAS if opcode in (COMMIT, ABORT) else U(0)


@inline_kernel
def follow_seqno(row: Any, opaque: Any, opcode: Any, extras: Any, extras_at: Any, checked: Any) -> Any:
    """Advance the stream to the seqno of a control; no change is missing below it."""
    expected = seqno_extras(opcode)
    if expected == U(0):
        return TAKEN
    if extras != expected:
        return BAD_EXTRAS
    # A commit and an abort name the seqno of their prepare first.
    seqno = load64(extras_at + COMMIT_SEQNO_IN) if expected == COMMIT_EXTRAS else load64(extras_at)
    code = judge_seqno(row, opaque, seqno) if checked else TAKEN
    if code == TAKEN:
        put(row, LAST, seqno)
    return code


@inline_kernel
def follow_marker(row: Any, opaque: Any, word: Any, body: Any, extras_at: Any, checked: Any) -> Any:
    """Enter the snapshot that a marker announces; return TAKEN, DROPPED or the reason of refusal."""
    extras, keys = extras_bytes(word), key_bytes(word)
    value = body - framing_bytes(word) - extras - keys
    code, start, end = marker_range(extras_at, extras, keys, value, get(row, LAST))
    if code == 0 and checked:
        code = judge_marker(row, opaque, start, end)
    if code == TAKEN:
        if extras == U(0):  # the boundary of UPR: what came before it is whole
            put(row, HELD_END, get(row, LAST))
        enter_snapshot(row, start, end)
    return code


@inline_kernel
def follow_control(head: Any, word: Any, opcode: Any, body: Any, row: Any, checked: Any) -> Any:
    """Apply a message other than a change to its stream; return TAKEN, DROPPED or the reason of refusal."""
    opaque = U64(load32(head + OPAQUE_AT))
    extras_at = head + U(HEADER) + framing_bytes(word)
    if opcode == STREAM_END:
        end_stream(row, opaque)
        return TAKEN
    if opcode == MARKER:
        return follow_marker(row, opaque, word, body, extras_at, checked)
    return follow_seqno(row, opaque, opcode, extras_bytes(word), extras_at, checked)
