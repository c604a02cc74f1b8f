"""The consumer's end of a DCP connection, from the first stream request on: bytes in, rows and events out.

The kernels do the bulk: every change is checked against its stream and becomes a row of the arena (kernels/decode.py).
All other frames come here one at a time, with the number of the row that they came before: answers to stream requests,
markers, ends, no-ops. There is no socket, thread or clock: `data_to_send` has the bytes to send, time is an argument,
and `deadline` is the time at which to call `tick`.

A stream is ASKED until its request is answered, then OPEN until it ends. Each result is an event:

    Opened    accepted, with the failover log        Refused         the request was answered with a status
    Ended     the producer's STREAM_END              RollbackNeeded  ROLLBACK: the histories differ

The caller decides how to continue. A broken rule is a RemoteProtocolError that names opcode and numbers. Source: dcp.md
2, 6, 7 and 9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwater.errors import RemoteProtocolError
from headwater.invariants import invariant
from headwater.kernels.columns import Arena, Decoded, Stop, StreamTable
from headwater.kernels.tracker import HELD_END, HELD_START, LAST
from headwater.protocol.dcp.answers import SystemNews, complaint, label, may_be_log, read_any_system_event
from headwater.protocol.dcp.consumer_changes import read_marker
from headwater.protocol.dcp.consumer_core import ConsumerCore, ends_whole
from headwater.protocol.dcp.consumer_stream import ConsumerStream, Phase, Step
from headwater.protocol.dcp.events import (
    Advanced,
    Boundary,
    CollectionsChanged,
    CollectionsTold,
    DeletionsMissed,
    Ended,
    Marked,
    Opened,
    PositionNeeded,
    Refused,
    RollbackNeeded,
    Rows,
    StreamEvent,
)
from headwater.protocol.dcp.position import ENDLESS, Position, place, shared_seqno
from headwater.protocol.dcp.window import ConsumerWindow
from headwater.protocol.end import PeerGone
from headwater.wire import dcp
from headwater.wire.dialect import Dialect
from headwater.wire.header import HEADER, HEADER_BYTES, Frame, Magic, lengths
from headwater.wire.opcodes import Opcode
from headwater.wire.records import log_entries

_MARKER, _END = dcp.SnapshotMarker.layout.extras_struct, dcp.StreamEnd.layout.extras_struct
MARKER_EXTRAS_BYTES = _MARKER.size
MARKER_BYTES = HEADER_BYTES + MARKER_EXTRAS_BYTES
"""A snapshot marker V1; its flags are at its end."""

REQUESTS = (Magic.CLIENT_REQUEST, Magic.FLEXIBLE_REQUEST)
ANSWERS = (Magic.CLIENT_RESPONSE, Magic.FLEXIBLE_RESPONSE)

_ACK = int(dcp.SnapshotFlag.ACK)
# By names of their own, as members are slow to look up and a drain may have a thousand streams.
_PHASE_ASKED: Final = Phase.ASKED
_PHASE_OPEN: Final = Phase.OPEN
_ENDED: Final = Step.ENDED
_UPR: Final = Dialect.UPR
_ACTIVE_VB_ONLY = int(dcp.StreamFlag.ACTIVE_VB_ONLY)

Head: TypeAlias = tuple[int, ...]
"""The nine numbers of a header."""


class Drain:
    """All streams of one connection.

    Args:
        arena: target of the rows; may be shared with other connections of the same thread.
        peer: "host:port", for messages.
        window_bytes: the flow-control window that was agreed on; 0 for none.
        silence_seconds: the time without a message after which the producer counts as gone; None without no-ops.
        answer_seconds: the longest time without an answer to a stream request.
        now: the current time.
        markers: True to get snapshot markers as events.
        with_ids: Collections were negotiated: keys begin with the id of their collection (the arena must have a column
            for it), and system events come.
        checks_purges: True to report DeletionsMissed if a marker's purge seqno shows that deletions after the start
            were purged. Only for streams of the whole bucket on a connection with ids: for a choice of collections a
            producer may start below its purge seqno without loss (failover 2, rule 2).

    Attributes:
        events: (row, event) pairs in order: the event came before the row with that number. The caller clears the list.
        full: True if the arena has no room for the next change; take the batch, then call `receive` with the rest.
        needed: size in bytes of the incomplete frame, the least size of the receive buffer.
        heard_at: time at which the last bytes arrived.
    """

    def __init__(
        self,
        arena: Arena,
        peer: str,
        *,
        window_bytes: int,
        silence_seconds: float | None,
        answer_seconds: float,
        now: float,
        markers: bool = False,
        with_ids: bool = False,
        checks_purges: bool = False,
    ) -> None:
        self.arena: Arena = arena
        self.peer: str = peer
        # A producer that took a control, for flow or for no-ops, is none of UPR's.
        took_control = window_bytes > 0 or silence_seconds is not None
        self._core = ConsumerCore(
            Dialect.DCP if took_control else Dialect.AUTO,
            ConsumerWindow(window_bytes),
            runs_ahead=True,
            unknown_is_rollback=True,
            with_ids=with_ids,
        )
        self.table: StreamTable = self._core.table
        self.window: ConsumerWindow = self._core.window
        self.streams: dict[int, ConsumerStream] = self._core.streams
        self.events: list[tuple[int, StreamEvent]] = []
        self.full: bool = False
        self.needed: int = HEADER_BYTES
        self.heard_at: float = now
        self._silence_seconds, self._answer_seconds = silence_seconds, answer_seconds
        self._markers, self._with_ids = markers, with_ids
        self._checks_purges = checks_purges and with_ids
        # The newest of each stream, by vbucket, with Collections: where events without a row lie.
        self._snapshots: dict[int, tuple[int, int]] = {}
        self._awaiting = self._core.awaiting
        # The first of their opaques, their vbuckets, and where they stand; made when it is needed.
        self._awaited: tuple[int, NDArray[Any], NDArray[np.uint64]] | None = None
        self._buffer = bytearray()

    # ------------------------------------------------------------------ what the caller asks for

    def request(self, position: Position, end_seqno: int, now: float, value: bytes = b"", purge_seqno: int = 0) -> None:
        """Request the changes of a vbucket after `position`, up to the snapshot that contains `end_seqno`.

        Args:
            value: value of the request (`Coverage.encode`).
            purge_seqno: the purge seqno in `value`; 0 for none.
        """
        stream = ConsumerStream(position.vbucket, end_seqno=end_seqno, failover_log=position.failover_log, value=value)
        stream.purge_seqno = purge_seqno
        self.streams[position.vbucket] = stream
        self._snapshots.pop(position.vbucket, None)
        self._ask(stream, position, self.arena.rows, now)

    def _ask(self, stream: ConsumerStream, position: Position, row: int, now: float) -> None:
        # A replica may lag, or be left behind for good; what it calls a rollback is none (dcp.md 2.4, flag 0x10).
        stream.flags = 0 if self._core.dialect is _UPR else _ACTIVE_VB_ONLY
        stream.requested_at, self._awaited = now, None
        rollback = self._core.ask(stream, position)
        if rollback is not None:
            self._give_up(replace(rollback, seqno=position.snapshot_start), position, row)

    def position(self, vbucket: int) -> Position:
        """Return the position of a stream, rows in the arena included."""
        stream = self.streams[vbucket]
        # Until the producer has accepted, the position is what was asked for: the row of the table already has the
        # numbers of the request.
        if stream.request_position is not None and (stream.phase is _PHASE_ASKED or not stream.opaque):
            return stream.request_position
        coverage = None if stream.request_position is None else stream.request_position.coverage
        return place(vbucket, *self.table.held(vbucket), stream.failover_log, coverage)

    def processed(self, now: float, keep_bytes: int = 0) -> None:
        """Report that all rows and events returned so far are processed, except for `keep_bytes` of them."""
        self.window.process(now, keep_bytes)
        self._core.acknowledge(now)

    # ------------------------------------------------------------------ the five methods (protocol/end.py)

    @property
    def deadline(self) -> float | None:
        """The time at which to call `tick`; None for never."""
        oldest = self._oldest
        moments = [
            self.window.deadline,
            None if self._silence_seconds is None else self.heard_at + self._silence_seconds,
            None if oldest is None else oldest.requested_at + self._answer_seconds,
        ]
        return min((moment for moment in moments if moment is not None), default=None)

    @property
    def _oldest(self) -> ConsumerStream | None:
        """The stream that has waited for its answer for the longest time."""
        return next(iter(self._awaiting.values()), None)

    def receive_data(self, data: bytes, now: float) -> list[StreamEvent | Rows | PeerGone]:
        """Take received bytes; return rows and events in the order of the wire.

        Each call also reports the results of the previous call as processed, as `processed` does.

        Raises:
            RemoteProtocolError: the producer broke the rules.
        """
        self.processed(now)
        self._buffer += data
        items: list[StreamEvent | Rows | PeerGone] = []
        while len(self._buffer) >= self.needed:
            del self._buffer[: self.receive(bytes(self._buffer), now)]
            self._hand_out(items)
            if not self.full:
                break
        return items

    def _hand_out(self, items: list[StreamEvent | Rows | PeerGone]) -> None:
        """Append the rows of the arena and the events to `items`, in the order of the wire."""
        events, self.events = self.events, []
        rows, at = self.arena.rows, 0
        batch = self.arena.batch() if rows else None
        for row, event in (*events, (rows, None)):
            invariant(at <= row <= rows, "an event before row {}, behind row {} of {}", row, at, rows)
            if batch is not None and row > at:
                items.append(Rows(batch.slice(at, row - at)))
                at = row
            if event is not None:
                items.append(event)

    def receive_eof(self) -> list[StreamEvent | Rows | PeerGone]:
        """Report that the producer closed the connection; streams without an end can continue on another node."""
        return [PeerGone()]

    def receive(self, data: bytes | bytearray | memoryview, now: float) -> int:
        """Take received bytes; leave the rows in the arena and the events in `events`. Returns the number of bytes
        used, whole frames only; pass the rest again with later bytes.

        For callers that share the arena among connections, or have their own buffer.

        Raises:
            RemoteProtocolError: the producer broke the rules. Rows not taken yet should be dropped as well.
        """
        self.heard_at = now
        view, at, counted, self.full = memoryview(data), 0, 0, False
        while True:
            decoded = self.arena.decode(view[at:], self.table)
            counted += decoded.flow_bytes
            self._take_controls(view[at:], decoded, now)
            at += decoded.consumed
            invariant(at <= len(view), "{} bytes are decoded of {}", at, len(view))
            if decoded.stop is Stop.FRAME_TOO_LARGE:
                self.arena.grow(decoded.needed)
            elif decoded.stop is not Stop.CONTROLS_FULL:
                break
        # In front of the check that may raise: what was received counts, whatever becomes of it (dcp 7).
        self.window.receive(counted)
        if decoded.stop.refused:
            raise RemoteProtocolError(complaint(view[at:], decoded.stop, self.table))
        self.full, self.needed = decoded.stop is Stop.FULL, decoded.needed
        if counted and self._awaiting:
            self._check_order()
        if self._core.owes_markers:  # answered once the last seqno of its range has been processed (dcp.md 2.7)
            self._core.answer_markers()
        return at

    def tick(self, now: float) -> list[StreamEvent | Rows | PeerGone]:
        """Check the clock: return `PeerGone` after too long a silence, or an unanswered stream request."""
        if self._silence_seconds is not None and now >= self.heard_at + self._silence_seconds:
            return [PeerGone(now - self.heard_at)]
        oldest = self._oldest
        if oldest is not None and now >= oldest.requested_at + self._answer_seconds:
            return [PeerGone(now - oldest.requested_at, f"stream request for vbucket {oldest.vbucket}")]
        self._core.acknowledge(now)
        return []

    @property
    def wants_to_send(self) -> bool:
        """True if `data_to_send` has something."""
        return bool(self._core.out)

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        return self._core.data_to_send()

    # ------------------------------------------------------------------ control frames

    def _take_controls(self, view: memoryview, decoded: Decoded, now: float) -> None:
        unpack, handler_of = HEADER.unpack_from, _HANDLERS.get
        for offset, row in decoded.controls.tolist():
            head = unpack(view, offset)
            handler = handler_of(head[:2])
            if handler is None:
                problem = f"a frame with magic 0x{head[0]:02x} that we did not ask for"
                raise RemoteProtocolError(f"{label(head[1])}: {problem}")
            handler(self, head, view[offset:], row, now)

    # A stream begins with an answer and a marker and ends with an end, and a drain may have a thousand of them: these
    # three, as they nearly always are, are understood by their header, and the frame is not cut. Framing extras would
    # show in the header as a key.

    def _stream_answer(self, head: Head, view: memoryview, row: int, now: float) -> None:
        _, _, key, extras, _, status, size, opaque, _ = head
        if status or key or extras or not may_be_log(size) or opaque not in self._awaiting:
            self._handle_answer(_frame(view), row, now)
            return
        stream = self._awaiting.pop(opaque)
        if stream is not None:
            self._core.accept(stream, log_entries(view[HEADER_BYTES : HEADER_BYTES + size]))
            self._open_stream(stream, opaque, row)

    def _marker(self, head: Head, view: memoryview, row: int, now: float) -> None:
        """Handle a marker, whose snapshot the kernel has entered; only an event or an answer needs more work."""
        if self._markers or head[2] or head[3] != MARKER_EXTRAS_BYTES or view[MARKER_BYTES - 1] & _ACK:
            self._handle_marker(_frame(view), row)
        elif self._with_ids:
            self._snapshots[head[5]] = _MARKER.unpack_from(view, HEADER_BYTES)[:2]

    def _end(self, head: Head, view: memoryview, row: int, now: float) -> None:
        _, _, key, extras, _, vbucket, size, opaque, _ = head
        is_plain = not key and (extras, size) == (4, 4)
        reason = _END.unpack_from(view, HEADER_BYTES)[0] if is_plain else dcp.StreamEnd.decode(_frame(view)).status
        self._handle_end(vbucket, opaque, reason, row)

    def _open_stream(self, stream: ConsumerStream, opaque: int, row: int) -> None:
        if self._awaited is not None:
            first, vbuckets, seqnos = self._awaited
            in_order = opaque == first  # as nearly always
            self._awaited = (first + 1, vbuckets[1:], seqnos[1:]) if in_order else None
        self.events.append((row, Opened(stream, stream.failover_log)))
        if stream.request_seqno < stream.purge_seqno:
            self._check_quoted(stream, row)

    def _check_quoted(self, stream: ConsumerStream, row: int) -> None:
        """Report DeletionsMissed if the purge seqno in the request comes from a history that the producer does not
        share.

        A producer compares the number alone (failover 2, rule 2). After a failover, another history may have purged, up
        to the same seqno, deletions that this drain never received.
        """
        position, quoted = stream.request_position, stream.purge_seqno
        log = () if position is None else position.failover_log
        if log and stream.request_seqno > 0 and shared_seqno(log, stream.failover_log) < quoted:
            stream.step(Step.CLOSED)
            self.events.append((row, DeletionsMissed(stream, stream.request_seqno, quoted)))

    def _handle_answer(self, frame: Frame, row: int, now: float) -> None:
        stream = self._awaiting.get(frame.opaque)
        # A refusal must come before any change of its stream; the kernel has taken what stood in front of it already,
        # so this is the place to look.
        if stream is not None and frame.status:
            self._expect_nothing_yet(stream)
            self._awaited = None
            stream.requested_at = now  # if it is asked again
        match self._core.answered(frame):
            case Opened(stream=stream):
                self._open_stream(stream, frame.opaque, row)
            case PositionNeeded(stream=stream) if stream.request_position is not None:
                self._ask(stream, stream.request_position, row, now)
            case RollbackNeeded(stream=stream) as rollback if stream.request_position is not None:
                self._give_up(rollback, stream.request_position, row)
            case Refused() as refusal:
                self.events.append((row, refusal))

    def _give_up(self, rollback: RollbackNeeded, position: Position, row: int) -> None:
        """Report a rollback as an event: only the caller can undo what it did with the rows."""
        rollback.stream.request_position = position
        rollback.stream.step(Step.CLOSED)
        self.events.append((row, rollback))

    def _handle_marker(self, frame: Frame, row: int) -> None:
        stream = self.streams[frame.vbucket]
        if frame.extras:
            start, end, flags, purge_seqno, _ = read_marker(frame)
            if purge_seqno:
                self._note_purge(stream, start, min(purge_seqno, end), row)
        else:  # the bare marker of UPR: a boundary without numbers
            start, end, flags = 0, ENDLESS, 0
            self.events.append((row, Boundary(stream, goes_on=True)))
        if self._with_ids:
            # Behind `_note_purge`, which needs the snapshot before this one.
            self._snapshots[frame.vbucket] = start, end
        if flags & dcp.SnapshotFlag.ACK:
            self._core.marked(stream, end, wants_answer=True)
        if self._markers:
            self.events.append((row, Marked(stream, start, end, flags)))

    def _note_purge(self, stream: ConsumerStream, start: int, purge_seqno: int, row: int) -> None:
        """Record the purge seqno of a snapshot ("highest tombstone seqno removed by purging", dcp 8.2); report
        DeletionsMissed if this drain lacks purged deletions.

        A producer rejects a start between 0 and its purge seqno unless the request quotes that seqno (failover 2, rule
        2), and "purged tombstones are never sent" (dcp 8.1). So deletions are missed if the snapshot continues from
        below the purge seqno: from the start of the request for the first snapshot, from the end of the previous one
        for a later snapshot.
        """
        held_seqno = stream.request_seqno
        if before := self._snapshots.get(stream.vbucket):
            held_seqno = max(held_seqno, min(before[1], start))
        earlier, stream.purge_seqno = stream.purge_seqno, purge_seqno
        if self._checks_purges and 0 < held_seqno < purge_seqno != earlier and stream.phase is _PHASE_OPEN:
            # Given up rather than gone on with: a reader that missed a deletion keeps a document for ever, and nothing
            # would ever tell.
            stream.step(Step.CLOSED)
            self.events.append((row, DeletionsMissed(stream, held_seqno, purge_seqno)))

    def _handle_end(self, vbucket: int, opaque: int, reason: int, row: int) -> None:
        stream = self.streams.get(vbucket)
        # The end of a stream that is long gone is ignored (dcp.md 9).
        if stream is None or stream.opaque != opaque or stream.phase is not _PHASE_OPEN:
            return
        stream.step(_ENDED)
        if ends_whole(stream, reason):
            self.table.rows[stream.vbucket, HELD_START : HELD_END + 1] = self.table.rows[stream.vbucket, LAST]
            self.events.append((row, Boundary(stream, goes_on=False)))
        self.events.append((row, Ended(stream, reason)))

    def _advance(self, head: Head, view: memoryview, row: int, now: float) -> None:
        self._advanced(_frame(view), row)

    def _advanced(self, frame: Frame, row: int) -> None:
        snapshot = self._snapshots.get(frame.vbucket, (0, 0))
        self.events.append((row, Advanced(self.streams[frame.vbucket], dcp.seqno_of(frame.extras), snapshot)))

    def _system_event(self, head: Head, view: memoryview, row: int, now: float) -> None:
        frame = _frame(view)
        if not self._with_ids:
            self._advanced(frame, row)
            return
        message, stream = read_any_system_event(frame), self.streams[frame.vbucket]
        snapshot = self._snapshots.get(frame.vbucket, (0, 0))
        if isinstance(message, SystemNews):
            self.events.append((row, CollectionsTold(stream, message, snapshot)))
        else:
            self.events.append((row, CollectionsChanged(stream, message.message, snapshot, message.history)))

    def _succeed(self, head: Head, view: memoryview, row: int, now: float) -> None:
        self._core.succeed(_frame(view))

    def _ignore(self, head: Head, view: memoryview, row: int, now: float) -> None:
        """Ignore an answer that producers should not send, though some do (erratum P3)."""

    # ------------------------------------------------------------------ after a buffer

    def _check_order(self) -> None:
        if self._awaited is None:
            queued = [stream for stream in self._awaiting.values() if stream is not None]
            seqnos = np.array([stream.request_seqno for stream in queued], np.uint64)
            self._awaited = next(iter(self._awaiting)), np.array([stream.vbucket for stream in queued]), seqnos
        _, vbuckets, seqnos = self._awaited
        # One comparison for all streams in the usual case; a change in front of its acceptance would be of a stream
        # that may yet be refused.
        if (self.table.rows[vbuckets, LAST] != seqnos).any():
            for stream in filter(None, self._awaiting.values()):
                self._expect_nothing_yet(stream)

    def _expect_nothing_yet(self, stream: ConsumerStream) -> None:
        if self.table.held(stream.vbucket)[0] != stream.request_seqno:
            raise RemoteProtocolError(
                f"vbucket {stream.vbucket}: changes came before the stream request {stream.opaque} was accepted"
            )


def _frame(view: memoryview) -> Frame:
    """Return the frame that begins a view."""
    sizes = lengths(view)
    return Frame.cut(view[: sizes.frame], sizes)


Handler = Callable[[Drain, Head, memoryview, int, float], None]

_HANDLERS: dict[tuple[int, ...], Handler] = {
    # By magic and opcode. What is not here was not negotiated: to skip it could mean to skip a change.
    (int(magic), int(opcode)): handler
    for magics, opcode, handler in (
        (ANSWERS, Opcode.DCP_STREAM_REQ, Drain._stream_answer),
        (ANSWERS, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, Drain._ignore),
        (REQUESTS, Opcode.DCP_STREAM_END, Drain._end),
        (REQUESTS, Opcode.DCP_SNAPSHOT_MARKER, Drain._marker),
        (REQUESTS, Opcode.DCP_NOOP, Drain._succeed),
        # Only a takeover sends this, and we never ask for one; but it must always be answered (dcp.md 2.12).
        (REQUESTS, Opcode.DCP_SET_VBUCKET_STATE, Drain._succeed),
        (REQUESTS, Opcode.DCP_SEQNO_ADVANCED, Drain._advance),
        (REQUESTS, Opcode.DCP_SYSTEM_EVENT, Drain._system_event),
    )
    for magic in magics
}
