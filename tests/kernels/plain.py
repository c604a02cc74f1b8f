"""The third opinion: what the decoders must come to, said frame by frame with the messages of headwater.wire."""

from __future__ import annotations

from dataclasses import dataclass, field

from headwater.errors import BadFrame, BadMessage, RemoteProtocolError
from headwater.kernels.columns import Stop, TrackedState
from headwater.wire import dcp, leb128, upr
from headwater.wire.flags import BeforeState
from headwater.wire.header import HEADER_BYTES, Frame, Magic, lengths
from headwater.wire.opcodes import Opcode

STRUCTURE = {Stop.BAD_EXTRAS, Stop.EXTENDED_METADATA, Stop.EMPTY_KEY, Stop.BAD_MARKER}
HEADERS = {Stop.BAD_MAGIC, Stop.LENGTHS_EXCEED_BODY, Stop.BODY_TOO_LARGE}
SEQNO_AT = {
    Opcode.DCP_SEQNO_ADVANCED: (8, 0),
    Opcode.DCP_SYSTEM_EVENT: (13, 0),
    Opcode.DCP_PREPARE: (31, 0),
    Opcode.DCP_COMMIT: (16, 8),
    Opcode.DCP_ABORT: (16, 8),
}
UNCOUNTED = {Opcode.DCP_NOOP, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, Opcode.DCP_CONTROL, Opcode.DCP_FLUSH}


class Refused(Exception):  # noqa: N818
    """The frame at hand breaks a rule; `stops` are the codes that name it."""

    def __init__(self, *stops: Stop) -> None:
        super().__init__(stops)
        self.stops = set(stops)


@dataclass
class Vbucket:
    """One stream, as a consumer keeps it."""

    state: TrackedState
    opaque: int
    seqno: int = 0
    start: int = 0
    end: int = 0

    def admit(self, opaque: int) -> bool:
        """Whether a frame counts for this stream; False: it is to be dropped."""
        if self.state is TrackedState.DROPPING:
            return False
        if self.state is TrackedState.NONE:
            raise Refused(Stop.NO_STREAM)
        if opaque != self.opaque:
            raise Refused(Stop.WRONG_OPAQUE)
        return True

    def advance(self, seqno: int) -> None:
        """Take a change."""
        if seqno == 0:
            raise Refused(Stop.SEQNO_ZERO)
        if seqno <= self.seqno:
            raise Refused(Stop.SEQNO_NOT_AFTER_LAST)
        if self.state is not TrackedState.IN_SNAPSHOT or not self.start <= seqno <= self.end:
            raise Refused(Stop.SEQNO_OUTSIDE_SNAPSHOT)
        self.seqno = seqno


@dataclass
class Plain:
    """The result of the plain twin."""

    vbuckets: dict[int, Vbucket]
    with_ids: bool = False
    with_befores: bool = False
    rows: list[dict[str, object]] = field(default_factory=list)
    controls: list[tuple[int, int]] = field(default_factory=list)
    flow_bytes: int = 0
    dropped: int = 0
    consumed: int = 0
    refusal: set[Stop] = field(default_factory=set)
    _ahead: tuple[dcp.Before, int] | None = None

    def decode(self, data: bytes) -> Plain:
        """Read frame after frame until the data or the rules end."""
        at = 0
        try:
            while len(data) - at >= HEADER_BYTES and at + lengths(data, at).frame <= len(data):
                size = lengths(data, at).frame
                self._frame(Frame.decode(data[at : at + size]), at, size)
                at += size
        except BadFrame:
            self.refusal = HEADERS
        except BadMessage:
            self.refusal = STRUCTURE
        except Refused as refused:
            self.refusal = refused.stops
        self.consumed = at
        if self._ahead and not self.refusal:  # what a change replaced is taken together with it
            self.consumed -= self._ahead[1]
        return self

    def _frame(self, frame: Frame, at: int, size: int) -> None:
        request = frame.magic in (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)
        vbucket = self.vbuckets.get(frame.vbucket, Vbucket(TrackedState.NONE, 0))
        if self.with_befores and request and frame.opcode == Opcode.DCP_BEFORE:
            self._announce(frame, size)
            return
        (ahead, more), self._ahead = self._ahead or (None, 0), None
        is_change = request and Opcode.DCP_MUTATION <= frame.opcode <= Opcode.DCP_EXPIRATION
        if self.with_befores and is_change and len(frame.extras) < 8:
            raise Refused(*STRUCTURE)
        if ahead is not None or (self.with_befores and is_change):
            ours = frame.vbucket, frame.opaque, frame_seqno(frame) if is_change else -1
            if ahead is None or (ahead.vbucket, ahead.opaque, ahead.by_seqno) != ours:
                raise Refused(Stop.BAD_BEFORE)
        size += more
        if request and Opcode.DCP_MUTATION <= frame.opcode <= Opcode.DCP_EXPIRATION:
            row = _row(frame) | (_named(frame.key) if self.with_ids else {}) | _replaced(ahead)
            if vbucket.admit(frame.opaque):
                vbucket.advance(frame_seqno(frame))
                self.rows.append(row | {"snapshot_start": vbucket.start, "snapshot_end": vbucket.end})
            else:
                self.dropped += 1
            self.flow_bytes += size
            return
        taken = self._control(frame, vbucket) if request else True
        self.dropped += not taken
        if taken:
            self.controls.append((at, len(self.rows)))
        if request and Opcode.DCP_STREAM_END <= frame.opcode <= Opcode.DCP_CACHE_TRANSFER_END:
            counted = frame.opcode not in {*UNCOUNTED, Opcode.DCP_SEQNO_ACKNOWLEDGED}
            self.flow_bytes += counted * (size + 2 * (frame.opcode == Opcode.DCP_PREPARE))

    def _announce(self, frame: Frame, size: int) -> None:
        try:
            before = dcp.Before.decode(frame)
        except BadMessage:
            raise Refused(Stop.BAD_BEFORE) from None
        is_version = before.state == BeforeState.VERSION and 0 < before.before_seqno < before.by_seqno
        is_none = before.state != BeforeState.VERSION and not before.before_seqno and not before.value
        if self._ahead or not (is_version or is_none):
            raise Refused(Stop.BAD_BEFORE)
        self._ahead = before, size

    def _control(self, frame: Frame, vbucket: Vbucket) -> bool:
        if frame.opcode == Opcode.DCP_STREAM_END and frame.opaque == vbucket.opaque:
            vbucket.state = TrackedState.NONE
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER:
            start, end = _range(frame, vbucket.seqno)
            if start > end:
                raise Refused(Stop.BAD_MARKER)
            if not vbucket.admit(frame.opaque):
                return False
            if start < vbucket.seqno and end <= vbucket.seqno:
                raise Refused(Stop.MARKER_BEHIND)
            vbucket.state, vbucket.start, vbucket.end = TrackedState.IN_SNAPSHOT, start, end
        if frame.opcode in SEQNO_AT:
            extras, at = SEQNO_AT[Opcode(frame.opcode)]
            if len(frame.extras) != extras:
                raise Refused(Stop.BAD_EXTRAS)
            if not vbucket.admit(frame.opaque):
                return False
            vbucket.advance(int.from_bytes(frame.extras[at : at + 8]))
        return True


def frame_seqno(frame: Frame) -> int:
    """The seqno of a change."""
    return int.from_bytes(frame.extras[:8])


def _replaced(before: dcp.Before | None) -> dict[str, object]:
    """The columns of what a change replaced."""
    if before is None:
        return {}
    row: dict[str, object] = {"before_state": before.state, "before_seqno": before.before_seqno}
    row |= {"before_rev_seqno": before.rev_seqno, "before_cas": before.cas, "before_flags": before.flags}
    row |= {"before_expiry": before.expiration, "before_datatype": before.datatype}
    return row | {"before_value": before.value}


def _named(key: bytes) -> dict[str, object]:
    """The collection of a key, and the key without its id."""
    try:
        collection, logical = leb128.split_key(key)
    except RemoteProtocolError:
        raise Refused(Stop.BAD_COLLECTION) from None
    return {"collection_id": collection, "key": logical}


def _row(frame: Frame) -> dict[str, object]:
    """A change as a row, without its snapshot; BadMessage when it is none."""
    row: dict[str, object] = {"vbucket": frame.vbucket, "opcode": frame.opcode, "seqno": frame_seqno(frame)}
    row |= {"cas": frame.cas, "datatype": frame.datatype, "flags": 0, "expiry": 0}
    row |= {"key": frame.key, "value": frame.value}
    kinds = {
        (Opcode.DCP_MUTATION, 30): upr.Mutation,
        (Opcode.DCP_DELETION, 21): dcp.DeletionV2,
        (Opcode.DCP_DELETION, 18): dcp.Deletion,
        (Opcode.DCP_EXPIRATION, 18): upr.Expiration,
        (Opcode.DCP_EXPIRATION, 20): dcp.Expiration,
    }
    change = kinds.get((Opcode(frame.opcode), len(frame.extras)), dcp.Mutation).decode(frame)
    if getattr(change, "nmeta", 0):
        raise Refused(Stop.EXTENDED_METADATA)
    row["rev_seqno"] = change.rev_seqno
    row["flags"] = getattr(change, "flags", 0)
    row["expiry"] = getattr(change, "expiration", getattr(change, "delete_time", 0))
    return row


def _range(frame: Frame, last: int) -> tuple[int, int]:
    """The snapshot that a marker announces."""
    if not frame.extras:
        upr.SnapshotMarker.decode(frame)
        return last, 0xFFFF_FFFF_FFFF_FFFF
    kind = dcp.SnapshotMarker
    if len(frame.extras) == 1:
        kind = dcp.SnapshotMarkerV22 if frame.extras == b"\x02" else dcp.SnapshotMarkerV2  # type: ignore[assignment]
    marker = kind.decode(frame)
    return marker.start_seqno, marker.end_seqno
