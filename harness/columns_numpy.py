"""A second implementation of the decoder of kernels/decode.py, without compiled code, against which the kernel is
checked.

    Arena(decoder=columns_numpy.decode)

It reaches the same rows, controls, stream table and refusals in another way: the frames are found first
(frames_numpy.py), then every rule is evaluated for all of them at once *as if all earlier ones had been accepted*, and
decoding ends at the first frame that breaks a rule (or finds no room). Up to that frame the assumption holds, so the
result is exact; values computed after it are dropped. A stream's state before each frame follows from the last frame of
a kind before it in the same vbucket (`_before`). Some 0.8 M frames a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from harness.frames_numpy import Flags, Frames, Ints, Words, find, numbers
from headwater.kernels import decode as kernel
from headwater.kernels import follow, tracker
from headwater.kernels.decode import ColumnMemory
from headwater.kernels.scan import Stop
from headwater.kernels.tracker import TrackedState
from headwater.wire.leb128 import COLLECTION_ID_MAX
from headwater.wire.opcodes import Opcode

ID_BYTES_MAX: Final = 5
SEQNO_EXTRAS: Final = {
    Opcode.DCP_SEQNO_ADVANCED: 8,
    Opcode.DCP_SYSTEM_EVENT: 13,
    Opcode.DCP_PREPARE: 31,
    Opcode.DCP_COMMIT: 16,
    Opcode.DCP_ABORT: 16,
}
DROPPED: Final = tracker.DROPPED


@dataclass(slots=True)
class _Layout:
    """The frames whose layout fits their opcode (dcp.md 2), so that their numbers can be read."""

    change: Flags
    mutation: Flags
    timed: Flags
    advance: Flags
    marker: Flags
    numbered: Flags
    wrong_extras: Flags
    wrong_marker: Flags


@dataclass(slots=True)
class _Streams:
    """The numbers that frames carry for their streams, and the state of each frame's stream before it."""

    opaque: Words
    seqno: Words
    marker_start: Words
    marker_end: Words
    dropping: Flags
    state: Ints
    last: Words
    start: Words
    end: Words


def _before(where: Flags, vbucket: Ints) -> Ints:
    """Return for each frame the index of the last frame before it in its vbucket for which `where` holds, or -1."""
    order = np.argsort(vbucket, kind="stable")
    place = np.arange(len(order))
    first = np.concatenate(([True], np.diff(vbucket[order]) != 0)) if len(order) else np.zeros(0, bool)
    group = np.maximum.accumulate(np.where(first, place, 0))
    latest = np.maximum.accumulate(np.where(where[order], place, -1))
    before = np.concatenate(([-1], latest[:-1])) if len(order) else latest
    result = np.empty(len(order), np.int64)
    result[order] = np.where(before >= group, order[before], -1)
    return result


def _lay_out(view: NDArray[np.uint8], frames: Frames) -> _Layout:
    """Compare every length with the opcode's layouts."""
    mutation = frames.only(follow.MUTATION) & np.isin(frames.extras, (30, 31))
    timed = frames.only(follow.DELETION) & (frames.extras == 21)
    timed |= frames.only(follow.EXPIRATION) & (frames.extras == 20)
    changes = frames.only(follow.MUTATION, follow.DELETION, follow.EXPIRATION)
    change = mutation | timed | (changes & ~frames.only(follow.MUTATION) & (frames.extras == 18))
    advance = np.zeros(len(frames.start), bool)
    for opcode, extras in SEQNO_EXTRAS.items():
        advance |= frames.only(opcode) & (frames.extras == extras)
    markers = frames.only(follow.MARKER)
    versioned = markers & (frames.extras == 1)
    version = numbers(view, "u1", frames.extras_at, versioned)
    v2 = versioned & (((version == 0) & (frames.value == 36)) | ((version == 2) & (frames.value == 52)))
    numbered = (frames.key == 0) & (v2 | (markers & (frames.extras == 20) & (frames.value == 0)))
    bare = markers & (frames.size == frames.extras_at - frames.start)  # nothing behind the framing extras
    return _Layout(
        change=change,
        mutation=mutation,
        timed=timed,
        advance=advance,
        marker=numbered | bare,
        numbered=numbered,
        wrong_extras=(changes & ~change) | (frames.only(*SEQNO_EXTRAS) & ~advance),
        wrong_marker=markers & ~(numbered | bare),
    )


def _follow(view: NDArray[np.uint8], frames: Frames, layout: _Layout, table: Words, checked: bool) -> _Streams:
    """Compute each stream's state before each frame, as if all frames before it were accepted."""
    own = table[frames.vbucket]
    dropping = (own[:, tracker.STATE] == TrackedState.DROPPING) & checked
    moves = layout.change | layout.advance
    # A commit and an abort name the seqno of their prepare first.
    seqno_at = frames.extras_at + 8 * frames.only(Opcode.DCP_COMMIT, Opcode.DCP_ABORT)
    seqno = numbers(view, ">u8", seqno_at, moves)
    moved = _before(moves & ~dropping, frames.vbucket)
    last = np.where(moved >= 0, seqno[moved], own[:, tracker.LAST])
    numbers_at = frames.extras_at + (frames.extras == 1)
    marker_start = np.where(layout.numbered, numbers(view, ">u8", numbers_at, layout.numbered), last)
    marker_end = np.where(
        layout.numbered, numbers(view, ">u8", numbers_at + 8, layout.numbered), np.uint64(follow.WIRE_SEQNO_MAX)
    )
    marked = _before(layout.marker & ~dropping, frames.vbucket)
    ended = _before(frames.only(follow.STREAM_END) & (frames.opaque == own[:, tracker.OPAQUE]), frames.vbucket)
    state = np.where(marked > ended, int(TrackedState.IN_SNAPSHOT), own[:, tracker.STATE].astype(np.int64))
    return _Streams(
        opaque=own[:, tracker.OPAQUE],
        seqno=seqno,
        marker_start=marker_start,
        marker_end=marker_end,
        dropping=dropping,
        state=np.where(ended > marked, int(TrackedState.NONE), state),
        last=last,
        start=np.where(marked >= 0, marker_start[marked], own[:, tracker.START]),
        end=np.where(marked >= 0, marker_end[marked], own[:, tracker.END]),
    )


def _ids(view: NDArray[np.uint8], frames: Frames, changes: Flags) -> tuple[Ints, Ints]:
    """Return the collection ids in front of the changes' keys, and their lengths: 0 if there is none (wire.md 8)."""
    number, taken = np.zeros(len(frames.start), np.int64), np.zeros(len(frames.start), np.int64)
    more = changes & (frames.key > 0)
    for at in range(ID_BYTES_MAX):
        more &= frames.key > at + 1  # the key goes on behind the id
        byte = numbers(view, "u1", frames.key_at + at, more).astype(np.int64)
        number += (byte & 0x7F) << 7 * at
        ends = more & (byte < 0x80) & ((byte > 0) | (at == 0))
        taken[ends] = at + 1
        more &= byte >= 0x80
    taken[number > COLLECTION_ID_MAX] = 0
    return number, taken


def _judge(
    view: NDArray[np.uint8], frames: Frames, layout: _Layout, streams: _Streams, checked: bool, nameless: Flags
) -> Ints:
    """Return for each frame 0, DROPPED or its refusal's reason (dcp.md 9); `nameless`: keys without an id."""
    nmeta_at = frames.extras_at + np.where(layout.mutation, 28, 16)
    nmeta = numbers(view, ">u2", nmeta_at, layout.change & ~layout.timed)
    reversed_range = layout.marker & (streams.marker_start > streams.marker_end)
    changes, markers = (layout.change | layout.advance) & checked, layout.marker & checked
    outside = (streams.seqno < streams.start) | (streams.seqno > streams.end)
    behind = (streams.marker_start < streams.last) & (streams.marker_end <= streams.last)
    rules: list[tuple[Flags, int]] = [  # the first that applies decides
        (layout.wrong_extras, Stop.BAD_EXTRAS),
        (nmeta != 0, Stop.EXTENDED_METADATA),
        (layout.change & (frames.key == 0), Stop.EMPTY_KEY),
        (layout.change & nameless, Stop.BAD_COLLECTION),
        (layout.wrong_marker | reversed_range, Stop.BAD_MARKER),
        ((changes | markers) & (streams.state == TrackedState.DROPPING), DROPPED),
        ((changes | markers) & (streams.state == TrackedState.NONE), Stop.NO_STREAM),
        ((changes | markers) & (frames.opaque != streams.opaque), Stop.WRONG_OPAQUE),
        (changes & (streams.seqno == 0), Stop.SEQNO_ZERO),
        (changes & (streams.seqno <= streams.last), Stop.SEQNO_NOT_AFTER_LAST),
        (changes & ((streams.state != TrackedState.IN_SNAPSHOT) | outside), Stop.SEQNO_OUTSIDE_SNAPSHOT),
        (markers & behind, Stop.MARKER_BEHIND),
    ]
    codes = np.zeros(len(frames.start), np.int64)
    for applies, code in reversed(rules):
        codes[applies] = int(code)
    return codes


def _limit(frames: Frames, codes: Ints, room: tuple[int, int, int, int]) -> Ints:
    """Return the codes with the frames for which there is no room: for rows, key bytes, value bytes or controls."""
    changes = frames.only(follow.MUTATION, follow.DELETION, follow.EXPIRATION)
    rows, listed = changes & (codes == 0), ~changes & (codes == 0)
    full = np.cumsum(rows) > room[0]
    full |= np.cumsum(np.where(rows, frames.key, 0)) > room[1]
    full |= np.cumsum(np.where(rows, frames.value, 0)) > room[2]
    limited = np.where(rows & full, int(Stop.FULL), codes)
    return np.where(~changes & (np.cumsum(listed) - listed >= room[3]), int(Stop.CONTROLS_FULL), limited)


def _gather(
    view: NDArray[np.uint8], at: Ints, lengths: Ints, offsets: NDArray[np.int32], data: NDArray[np.uint8]
) -> int:
    """Append pieces of the buffer to a binary column whose first free offset is offsets[0]; return its end."""
    ends = int(offsets[0]) + np.cumsum(lengths)
    offsets[1 : len(at) + 1] = ends
    total = int(lengths.sum())
    source = np.arange(total) + np.repeat(at - (np.cumsum(lengths) - lengths), lengths)
    data[int(offsets[0]) : int(offsets[0]) + total] = view[source]
    return int(offsets[0]) + total


def _write_rows(
    view: NDArray[np.uint8],
    frames: Frames,
    layout: _Layout,
    streams: _Streams,
    taken: Ints,
    first: int,
    arrays: dict[str, NDArray[Any]],
) -> tuple[int, int]:
    """Write the frames with these indices as rows from `first` on; return the new ends of the key and value bytes."""
    extras_at, mutation, timed = frames.extras_at[taken], layout.mutation[taken], layout.timed[taken]
    rows = slice(first, first + len(taken))
    arrays["vbucket"][rows] = frames.vbucket[taken]
    arrays["opcode"][rows] = frames.opcode[taken]
    arrays["seqno"][rows] = streams.seqno[taken]
    arrays["rev_seqno"][rows] = numbers(view, ">u8", extras_at + 8, np.ones(len(taken), bool))
    arrays["cas"][rows] = frames.cas[taken]
    arrays["flags"][rows] = numbers(view, ">u4", extras_at + 16, mutation)
    arrays["expiry"][rows] = numbers(view, ">u4", extras_at + np.where(mutation, 20, 16), mutation | timed)
    arrays["datatype"][rows] = frames.datatype[taken]
    arrays["snapshot_start"][rows] = streams.start[taken]
    arrays["snapshot_end"][rows] = streams.end[taken]
    key, value = frames.key[taken], frames.value[taken]
    keys = _gather(view, frames.key_at[taken], key, arrays["key_offsets"][first:], arrays["key_data"])
    return keys, _gather(view, frames.key_at[taken] + key, value, arrays["value_offsets"][first:], arrays["value_data"])


def _advance(frames: Frames, layout: _Layout, streams: _Streams, cut: int, table: Words) -> None:
    """Leave the stream table as it is after the first `cut` frames."""
    moves = (layout.change | layout.advance) & ~streams.dropping
    ends = frames.only(follow.STREAM_END) & (frames.opaque == streams.opaque)
    for index in np.flatnonzero((layout.marker & ~streams.dropping) | ends):
        if index < cut and ends[index]:
            table[frames.vbucket[index], tracker.STATE] = TrackedState.NONE
        elif index < cut:
            row = table[frames.vbucket[index]]
            last, start, end = streams.last[index], streams.marker_start[index], streams.marker_end[index]
            held_start, held_end = row[tracker.HELD_START], row[tracker.HELD_END]
            inside = layout.numbered[index] and held_start < last < held_end
            row[tracker.HELD_START] = min(held_start if inside else last, start)
            row[tracker.HELD_END] = max(held_end if inside else last, end)
            row[[tracker.STATE, tracker.START, tracker.END]] = TrackedState.IN_SNAPSHOT, start, end
    moved = np.flatnonzero(moves[:cut])
    table[frames.vbucket[moved], tracker.LAST] = streams.seqno[moved]  # of one vbucket the last one stays


def decode(
    view: NDArray[np.uint8],
    columns: ColumnMemory,
    controls: NDArray[np.int64],
    table: Words,
    progress: NDArray[np.int64],
    checked: bool,
    with_ids: bool,
) -> None:
    """Do the work of `decode.decode` on an array of bytes, with the same arguments."""
    frames, stop, needed = find(view)
    layout = _lay_out(view, frames)
    streams = _follow(view, frames, layout, table, checked)
    arrays = columns.arrays
    first, keys, values = progress[[kernel.ROWS, kernel.KEY_BYTES, kernel.VALUE_BYTES]].tolist()
    room = (
        len(arrays["seqno"]) - first,
        len(arrays["key_data"]) - keys,
        len(arrays["value_data"]) - values,
        len(controls),
    )
    numbers_of, prefix = _ids(view, frames, layout.change & with_ids)
    judged = _judge(view, frames, layout, streams, checked, (prefix == 0) & with_ids)
    frames = replace(frames, key=frames.key - prefix, key_at=frames.key_at + prefix)
    codes = _limit(frames, judged, room)
    broken = np.flatnonzero(codes > 0)
    cut = int(broken[0]) if len(broken) else len(codes)
    if len(broken):
        stop, needed = Stop(int(codes[cut])), int(frames.size[cut])
    consumed = int(frames.size[:cut].sum())
    head = np.arange(len(codes)) < cut
    changes = head & frames.only(follow.MUTATION, follow.DELETION, follow.EXPIRATION)
    taken, listed = np.flatnonzero(changes & (codes == 0)), np.flatnonzero(head & ~changes & (codes == 0))
    arrays["key_offsets"][first], arrays["value_offsets"][first] = keys, values
    keys, values = _write_rows(view, frames, layout, streams, taken, first, arrays)
    if with_ids:
        arrays["collection_id"][first : first + len(taken)] = numbers_of[taken]
    controls[: len(listed), 0] = frames.start[listed]
    controls[: len(listed), 1] = first + np.searchsorted(taken, listed)
    _advance(frames, layout, streams, cut, table)
    counted = head & frames.only(*follow.COUNTED_OPCODES)
    flow = int(frames.size[counted].sum()) + 2 * int((head & frames.only(Opcode.DCP_PREPARE)).sum())
    dropped = int((codes[:cut] == DROPPED).sum())
    progress[: kernel.STOP + 1] = first + len(taken), keys, values, consumed, len(listed), flow, dropped, needed, stop
