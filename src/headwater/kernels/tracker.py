"""The state of each vbucket's stream at a consumer while frames arrive, in a table that kernels update.

One row of eight unsigned numbers (a cache line) for each of the 65536 vbuckets a header can name; unused rows cost no
memory. The decoder (decode.py) checks every change against its row and updates the row in the same pass, so it notices
every change that is outside its snapshot or out of order. The rules are those of a consumer (dcp.md 9): seqnos of a
vbucket only rise, and lie inside the announced snapshot.

A stream is opened here when it is *requested*, not when it is granted: the first changes may arrive in the same buffer
as the answer. If the request is refused, close it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.builds import inline_kernel
from headwater.kernels.intrinsics import load64_native, store64_native
from headwater.kernels.scan import Stop
from headwater.wire.vbucket import VBUCKET_NUMBERS

U = np.uintp
U64 = np.uint64


# Fields of a row.
STATE: Final = 0
OPAQUE: Final = 1
LAST: Final = 2
START: Final = 3
END: Final = 4
HELD_START: Final = 5
HELD_END: Final = 6
FIELDS: Final = 8

_ROW: Final = struct.Struct("=7Q")
_HELD: Final = struct.Struct("=5Q")  # from LAST to HELD_END


class TrackedState(IntEnum):
    """The state of a vbucket's stream at a consumer."""

    NONE = 0
    """No stream: whatever arrives for it is refused."""
    OPEN = 1
    """Requested; a snapshot marker must come before the first change."""
    IN_SNAPSHOT = 2
    """Open, and a snapshot was announced."""
    DROPPING = 3
    """Closed by us: what is still on its way is counted and dropped (dcp.md 9: "stream dead: drop silently")."""


NONE: Final = int(TrackedState.NONE)
OPEN: Final = int(TrackedState.OPEN)
IN_SNAPSHOT: Final = int(TrackedState.IN_SNAPSHOT)
DROPPING: Final = int(TrackedState.DROPPING)

# What the note_... kernels answer besides a refusal.
TAKEN: Final = 0
DROPPED: Final = -1

NO_STREAM: Final = int(Stop.NO_STREAM)
WRONG_OPAQUE: Final = int(Stop.WRONG_OPAQUE)
SEQNO_ZERO: Final = int(Stop.SEQNO_ZERO)
SEQNO_NOT_AFTER_LAST: Final = int(Stop.SEQNO_NOT_AFTER_LAST)
SEQNO_OUTSIDE_SNAPSHOT: Final = int(Stop.SEQNO_OUTSIDE_SNAPSHOT)


@dataclass(frozen=True, slots=True)
class TrackedStream:
    """One vbucket's row. `snapshot_start` and `snapshot_end` are those of the last marker, or of the request."""

    state: TrackedState
    opaque: int
    seqno: int
    snapshot_start: int
    snapshot_end: int


class StreamTable:
    """The streams of one connection.

    Args:
        checked: True if changes must belong to an open stream, and their seqnos must rise and lie in the snapshot.
            False to accept any frames (such as recorded traffic) and only follow the markers.
        with_ids: True if keys begin with the id of their collection: Collections were negotiated.

    Attributes:
        rows: uint64[65536, 8], read and written by kernels. Not thread safe: one connection, one thread at a time.
    """

    def __init__(self, *, checked: bool = True, with_ids: bool = False) -> None:
        self.checked: bool = checked
        self.with_ids: bool = with_ids
        # Pages of its own, zero until they are touched and given back with the table: 4 MiB that come from a heap which
        # had them before are written full of zeros, and a node may have thousands of connections.
        self._pages = mmap.mmap(-1, VBUCKET_NUMBERS * FIELDS * 8)
        self.rows: NDArray[np.uint64] = np.frombuffer(self._pages, np.uint64).reshape(VBUCKET_NUMBERS, FIELDS)

    def open(self, vbucket: int, opaque: int, seqno: int = 0, snapshot_start: int = 0, snapshot_end: int = 0) -> None:
        """Open the row of a stream whose request, with this opaque and these numbers, is sent now."""
        # A start equal to the snapshot's says that nothing of it was received, so nothing is held in part (failover 2,
        # rule 5).
        snapshot = (snapshot_start, snapshot_end) if snapshot_start < seqno else (seqno, seqno)
        _ROW.pack_into(self._pages, vbucket * 8 * FIELDS, OPEN, opaque, seqno, snapshot_start, snapshot_end, *snapshot)

    def held(self, vbucket: int) -> tuple[int, int, int]:
        """Return (last seqno, start, end): the range is the snapshot that is held in part (see
        follow.enter_snapshot).
        """
        last, _, _, held_start, held_end = _HELD.unpack_from(self._pages, 8 * (vbucket * FIELDS + LAST))
        return last, held_start, held_end

    def enter(self, vbucket: int, start: int, end: int) -> None:
        """Enter a valid snapshot that was announced on an open stream."""
        row = self.rows[vbucket]
        row[STATE], row[START], row[END] = TrackedState.IN_SNAPSHOT, start, end

    def is_open(self, vbucket: int) -> bool:
        """Return True if the stream accepts changes, now or after the next marker."""
        return int(self.rows[vbucket, STATE]) in (TrackedState.OPEN, TrackedState.IN_SNAPSHOT)

    def takes(self, vbucket: int, seqno: int) -> bool:
        """Return True if a seqno lies in the announced snapshot."""
        row = self.rows[vbucket]
        return int(row[STATE]) == TrackedState.IN_SNAPSHOT and int(row[START]) <= seqno <= int(row[END])

    def drop(self, vbucket: int) -> None:
        """Drop and count the changes that still arrive for a stream whose end was requested; its position stays."""
        self.rows[vbucket, STATE] = TrackedState.DROPPING

    def close(self, vbucket: int) -> None:
        """Accept no more messages of the stream; its position stays readable until the vbucket is opened again."""
        self.rows[vbucket, STATE] = TrackedState.NONE

    def stream(self, vbucket: int) -> TrackedStream:
        """Return the row of a vbucket's stream."""
        state, opaque, seqno, start, end = (int(field) for field in self.rows[vbucket, :5])
        return TrackedStream(TrackedState(state), opaque, seqno, start, end)


@inline_kernel
def get(row: Any, field: Any) -> Any:
    """Return a field of the row at this address."""
    return load64_native(row + U(8) * U(field))


@inline_kernel
def put(row: Any, field: Any, value: Any) -> None:
    """Set a field of the row at this address."""
    store64_native(row + U(8) * U(field), value)


@inline_kernel
def judge_seqno(row: Any, opaque: Any, seqno: Any) -> Any:
    """Return TAKEN, DROPPED or the reason why a change with this seqno is refused.

    Changes nothing: the caller sets LAST once it has room for the change. The checks are those of dcp.md 9, after the
    stream's state and opaque: "by_seqno 0: EINVAL. by_seqno <= last seqno: ERANGE. Outside the current snapshot, or no
    snapshot yet: ERANGE".
    """
    last, state = get(row, LAST), get(row, STATE)
    # The rule for nearly all changes, first and in one comparison; whichever part of it fails is named below.
    if state == U64(IN_SNAPSHOT) and get(row, OPAQUE) == opaque and last < seqno:
        return TAKEN if get(row, START) <= seqno <= get(row, END) else SEQNO_OUTSIDE_SNAPSHOT
    if state == U64(DROPPING):
        return DROPPED
    if state == U64(NONE):
        return NO_STREAM
    if get(row, OPAQUE) != opaque:
        return WRONG_OPAQUE
    if seqno == U64(0):
        return SEQNO_ZERO
    return SEQNO_NOT_AFTER_LAST if seqno <= last else SEQNO_OUTSIDE_SNAPSHOT
