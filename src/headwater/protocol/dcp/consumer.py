"""The consumer node's end of a DCP connection, after OPEN: frames in, events out, answers and requests to send.

The same object serves both ways in which a node follows another: a mover that sends ADD_STREAM on the socket over which
the producer's frames arrive, and a connection that this node opened itself. A kernel (kernels/apply.py) takes the
changes that are in order, so they never pass through this object. The kernel shares the table of streams with it, and
the owner reports the bytes of the kernel's changes (`counted`). Every other frame goes to `receive_frame`:

    ADD_STREAM -> StreamWanted, add() -> controls, one at a time -> PositionNeeded, ask() -> STREAM_REQ
    its answer -> Opened | Refused | RollbackNeeded, ask() again; ADD_STREAM is answered only then (dcp 2.2)

If the producer answers the first stream request with EINVAL, the request is sent again in UPR, and the connection stays
in UPR (dcp 14). A marker of UPR is a Boundary, without numbers: the changes between two markers are a whole snapshot,
after which a stream may resume.

A message that does not fit its stream is answered with the error of dcp 9 and changes nothing; a message that no
consumer may receive ends the connection. Answers are collected for `data_to_send`; the owner holds them back until the
changes that they confirm are durable. Source: dcp 1, 2, 3, 6, 7, 9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.invariants import invariant
from headwater.kernels.follow import COUNTED_OPCODES
from headwater.kernels.tracker import END, IN_SNAPSHOT, LAST, STATE
from headwater.protocol.dcp.answers import label
from headwater.protocol.dcp.consumer_core import OPAQUES, ROLLBACKS_MAX, ConsumerCore
from headwater.protocol.dcp.consumer_messages import STREAM_MESSAGES
from headwater.protocol.dcp.consumer_stream import ConsumerStream, Phase, Step
from headwater.protocol.dcp.consumer_streams import LiveStreams, refusal
from headwater.protocol.dcp.controls import DELETED_REVS, Negotiated
from headwater.protocol.dcp.events import (
    Advanced,
    Boundary,
    Changed,
    DurabilityChanged,
    Ended,
    Event,
    ManifestChanged,
    Opened,
    PositionNeeded,
    Refused,
    StateWanted,
    StreamWanted,
)
from headwater.protocol.dcp.negotiation import (
    NOOP,
    SYNC_WRITES,
    V7_CODES,
    WINDOW,
    ConsumerSettings,
    Negotiation,
    wanted_controls,
)
from headwater.protocol.dcp.position import WIRE_SEQNO_MAX, Position
from headwater.protocol.dcp.producer_events import NotDcp
from headwater.protocol.dcp.refusals import Refusals
from headwater.protocol.dcp.window import SMALL_ACK_BYTES, ConsumerWindow
from headwater.protocol.end import PeerGone, each_frame
from headwater.wire import dcp, numbers
from headwater.wire.dcp import StreamFlag
from headwater.wire.dialect import Dialect
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import FLEXIBLE, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of

__all__ = ["PRODUCER_COMMANDS", "ROLLBACKS_MAX", "Consumer"]

_FLAGS_KNOWN = sum(StreamFlag)


class Consumer:
    """One connection on which this node consumes.

    Args:
        negotiated: results of HELLO and OPEN.
        settings: settings to request from the producer.
        now: seconds of a monotonic clock, as in every later call.
        opaques: those of its requests; once all were used, a request raises LocalProtocolError.

    Attributes:
        streams: open streams, by vbucket. table: the same for the kernel, which checks changes against it.
        window: bytes received, processed, acknowledged. refusals: the refused messages and the reasons, for the log.

    `receive_frame` raises RemoteProtocolError if the connection must be closed.
    """

    def __init__(
        self, negotiated: Negotiated, settings: ConsumerSettings, now: float, opaques: range = OPAQUES
    ) -> None:
        self.negotiated = negotiated
        self.settings = settings
        self.refusals: Refusals = Refusals(negotiated)
        self._core = ConsumerCore(
            Dialect.DCP if negotiated.speaks_dcp else settings.dialect,
            ConsumerWindow(0, owed_bytes_max=SMALL_ACK_BYTES),
            # A node's changes go into its store: none may get there before the answer that accepts its stream is
            # handled.
            runs_ahead=False,
            unknown_is_rollback=False,
            opaques=opaques,
        )
        self._live = LiveStreams(self._core, negotiated.upr_states_as_printed, knows_collections=negotiated.collections)
        self.streams: dict[int, ConsumerStream] = self._core.streams
        self.table: Final = self._core.table
        self.window: Final = self._core.window
        self.heard_at: float = now
        self._owed_since: float | None = None  # an answer to a control, before the producer shows that it lives
        self._buffer = FrameBuffer()
        self._out = self._core.out
        self._negotiation = Negotiation(wanted_controls(settings), self._core.next_opaque)

    # --- input ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """The time at which to call `tick`; None for never."""
        idle = self._silent_at
        moments = [moment for moment in (idle, self.window.deadline) if moment is not None]
        return min(moments, default=None)

    @property
    def _silent_at(self) -> float | None:
        """The time at which the producer has been silent for too long; None if it owes no message.

        With no-ops enabled the producer must send them. Before that it owes only answers to controls. These have a
        deadline as well: a machine that loses power during the negotiation does not even close its connection, and
        without a deadline the stream would wait forever.
        """
        if NOOP in self._negotiation.accepted:
            return self.heard_at + self.settings.idle_seconds
        if not self._negotiation.is_under_way:
            return None
        if self._owed_since is None:
            return self.heard_at  # `tick` notes the time: the negotiation began outside of it
        return max(self.heard_at, self._owed_since) + self.settings.idle_seconds

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take received bytes. Apply all returned events, which already count as applied in order; then call
        `processed`.

        Raises:
            RemoteProtocolError: the connection must be closed.
        """
        return each_frame(self._buffer, data, now, self._receive_and_apply)

    def _receive_and_apply(self, frame: Frame, now: float) -> list[Event]:
        events = self.receive_frame(frame, now)
        for event in events:
            # Within the loop over frames: the next frame is checked against the last seqno that this one sets.
            if isinstance(event, Changed | Advanced | ManifestChanged | DurabilityChanged):
                self.applied(event)
        return events

    def processed(self, now: float) -> None:
        """Report that all events returned so far are applied and durable; acknowledge them if that was requested."""
        self.answer_markers()
        self._core.acknowledge(now)

    def receive_eof(self) -> list[Event]:
        """Report that the producer closed the connection: all streams are over."""
        return [PeerGone()]

    def receive_frame(self, frame: Frame, now: float) -> list[Event]:
        """Take one frame, for owners that cut frames themselves; return its events.

        Seqnos of changes are checked against the last change reported by `applied`.
        """
        self.heard_at = now
        if frame.is_response:
            handler = _ANSWERS.get(frame.opcode)
            return handler(self, frame) if handler else []
        # A consumer's commands, sent to a consumer, are answered by hanging up (dcp 1).
        if frame.opcode in PRODUCER_COMMANDS:
            raise RemoteProtocolError(f"{label(frame.opcode)} was sent to a consumer; only a producer takes it")
        # In front of every check: "count every counted message, also those it rejects" (dcp 7), or the producer's
        # window never opens again.
        self._count(frame, now)
        if frame.opcode not in _REQUESTS and frame.opcode not in STREAM_MESSAGES:
            return [NotDcp(frame)]
        try:
            if frame.magic in FLEXIBLE:  # "a consumer node rejects frames with a stream id (EINVAL)" (dcp 2.21)
                raise BadMessage("stream message", frame.opcode, "framing extras were not negotiated")
            if frame.opcode in STREAM_MESSAGES:
                return STREAM_MESSAGES[frame.opcode](self._live, frame)
            if frame.datatype:
                raise BadMessage("request", frame.opcode, f"datatype 0x{frame.datatype:02x} where none belongs")
            return _REQUESTS[frame.opcode](self, frame)
        except BadMessage as error:
            self._refuse(frame, error.status, error.problem)
            return []

    def counted(self, size_bytes: int, now: float, *, more_waits: bool = False) -> None:
        """Report that the kernel has processed changes of `size_bytes`; `more_waits` is True if more bytes came."""
        self.heard_at = now
        self.counted_elsewhere(size_bytes, now, more_waits=more_waits)

    def counted_elsewhere(self, size_bytes: int, now: float, *, more_waits: bool = False) -> None:
        """Report `size_bytes` of messages that another end of this connection processed; this end acknowledges them."""
        self.window.receive(size_bytes)
        self.window.process(now)
        self._core.acknowledge(now, more_waits=more_waits)

    def tick(self, now: float) -> list[Event]:
        """Act on the deadline: acknowledge bytes that are due; return `PeerGone` if the producer was silent for too
        long.
        """
        if self._owed_since is None and self._negotiation.is_under_way:
            self._owed_since = now
        silent_at = self._silent_at
        if silent_at is not None and now >= silent_at:
            return [PeerGone(self.settings.idle_seconds)]
        self._core.acknowledge(now)
        return []

    # --- what the owner decides -------------------------------------------------------------------------------------

    def add(self, vbucket: int, flags: int, mover: Frame | None = None) -> tuple[ConsumerStream, list[Event]]:
        """Add a stream, and begin the controls unless they have begun.

        Returns the stream and its events: PositionNeeded, if the controls are over; otherwise it comes after them.
        """
        stream = ConsumerStream(vbucket, self._core.next_opaque(), flags, mover)
        self.streams[vbucket] = stream
        self._out += self._negotiation.begin()
        return stream, [PositionNeeded(stream)] if self._negotiation.is_over else []

    def negotiate(self) -> None:
        """Send the first control, unless it was sent before. For an end whose connection has its streams at another
        end.
        """
        self._out += self._negotiation.begin()

    @property
    def controls(self) -> Mapping[str, str] | None:
        """The controls that the producer accepted, with their values; None until the producer has answered all."""
        return self._negotiation.accepted if self._negotiation.is_over else None

    def knows(self, opaque: int) -> bool:
        """Return True if a stream of this end has this opaque, or had it before it was over."""
        return opaque in self._core.past or any(stream.opaque == opaque for stream in self.streams.values())

    def refuse_stream(self, wanted: StreamWanted, status: Status, reason: str) -> None:
        """Answer an ADD_STREAM: "the opaque in extras is 0 when the failure was local" (dcp 2.2)."""
        self._out += self.refusals.answer(wanted.frame, status, reason, extras=bytes(4))

    def ask(self, stream: ConsumerStream, position: Position) -> list[Event]:
        """Send the stream request for the changes after `position`.

        Returns a RollbackNeeded instead of sending if the dialect is UPR and the position lies inside a snapshot: UPR
        resumes from whole snapshots only.
        """
        rollback = self._core.ask(stream, position)
        return [] if rollback is None else [rollback]

    def close(self, stream: ConsumerStream, status: Status = Status.NOT_MY_VBUCKET) -> list[Event]:
        """Close the stream at this end; if its ADD_STREAM waits for an answer, `status` is the answer."""
        if stream.phase is Phase.ENDED:
            return []
        # The answer is still to come, and must find that nobody waits for it.
        if stream.phase is Phase.ASKED:
            self._core.awaiting[stream.opaque] = None
        if stream.mover is not None and stream.phase is not Phase.OPEN:
            reason = "the stream was closed before the producer had answered"
            self._out += self.refusals.answer(stream.mover, status, reason, extras=bytes(4))
        stream.step(Step.CLOSED)
        self._core.forget(stream)
        return [Ended(stream, None)]

    def ask_producer_to_close(self, stream: ConsumerStream) -> list[Event]:
        """Close the stream at both ends."""
        # The producer is told first, then this end forgets: messages that cross have no stream here and are answered so
        # (dcp 2.3).
        self._out += dcp.CloseStream(vbucket=stream.vbucket, opaque=self._core.next_opaque()).encode()
        return self.close(stream)

    def stop_changes(self, stream: ConsumerStream) -> None:
        """Accept no more changes on a stream, only its end, because the vbucket is now owned here."""
        self.table.close(stream.vbucket)

    def lacking(self, change: Frame) -> ConsumerStream | None:
        """Return the stream to which a refused change belongs; None if the change came after its stream's end.

        The stream is the one with the change's opaque, whatever its vbucket; without such a stream, the vbucket's.
        """
        if change.opaque in self._core.past:
            return None
        by_opaque = (stream for stream in self.streams.values() if stream.opaque == change.opaque)
        return next(by_opaque, self.streams.get(change.vbucket))

    def announced(self, vbucket: int) -> int:
        """Return the number of seqnos between the last change and the end of the announced snapshot; 0 if the end is
        unknown (UPR).
        """
        state, last, end = (int(self.table.rows[vbucket, field]) for field in (STATE, LAST, END))
        return end - last if state == IN_SNAPSHOT and last < end < WIRE_SEQNO_MAX else 0

    def applied(self, change: Changed | Advanced | ManifestChanged | DurabilityChanged) -> None:
        """Report that a change returned as an event is staged; its seqno becomes the last seqno of the stream."""
        vb, seqno = change.stream.vbucket, change.seqno
        last = self._core.last(vb)
        invariant(last < seqno, "vbucket {}: seqno {} is applied behind seqno {}", vb, seqno, last)
        self.table.rows[vb, LAST] = seqno

    @property
    def takes_durable_writes(self) -> bool:
        """True if the producer sends prepares, commits and aborts."""
        return self._live.takes_durable_writes

    def acknowledge_prepares(self, stream: ConsumerStream, seqno: int) -> None:
        """Report that every prepare up to a seqno is on disk here, in snapshots that arrived whole (dcp 10)."""
        if self._live.takes_durable_writes:
            self._out += dcp.SeqnoAcknowledged(
                vbucket=stream.vbucket, opaque=stream.opaque, prepared_seqno=seqno
            ).encode()

    def answer_state(self, wanted: StateWanted, status: Status = Status.SUCCESS, why: str = "") -> None:
        """Answer SET_VBUCKET_STATE, which always gets an answer, because the takeover waits for it (dcp 2.12).

        `why` is the reason of a refusal, for people.
        """
        if status is Status.SUCCESS:
            self._core.succeed(wanted.frame)
        else:
            refusal = f"the vbucket can not become {wanted.state.name.lower()} now"
            self._refuse(wanted.frame, status, f"{refusal}: {why}" if why else refusal)

    # --- output -----------------------------------------------------------------------------------------------------

    def answer_markers(self) -> bool:
        """Answer the markers with flag ACK whose last seqno was processed (dcp 2.7); return True if there were any."""
        return self._core.answer_markers()

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        return self._core.data_to_send()

    # --- answers ----------------------------------------------------------------------------------------------------

    def _control_answered(self, frame: Frame) -> list[Event]:
        self._out += self._negotiation.answered(frame)
        if not self._negotiation.is_over:
            return []
        # A producer that refused the window sends without one, and wants no acknowledgements.
        if WINDOW in self._negotiation.accepted:
            self.window.window_bytes = self.settings.window_bytes
        # A producer that took a control is none of UPR's; one that takes neither control nor request may be.
        if self._negotiation.accepted and self._core.dialect is Dialect.AUTO:
            self._core.dialect = Dialect.DCP
        self._live.speaks_v7 = V7_CODES in self._negotiation.accepted
        self._live.tells_deleted_rev = DELETED_REVS in self._negotiation.accepted
        self._live.takes_durable_writes = SYNC_WRITES in self._negotiation.accepted
        # Streams begin only behind the controls: a stream's encoding is settled when it begins (dcp 1, step 3).
        queued = [stream for stream in self.streams.values() if stream.phase is Phase.QUEUED]
        return [PositionNeeded(stream) for stream in queued]

    def _stream_answered(self, frame: Frame) -> list[Event]:
        event = self._core.answered(frame)
        match event:
            case None:
                return []
            case Opened(stream=stream, failover_log=log):
                # A branch so high could never be followed by another one here, and would be kept for good with the
                # vbucket's record.
                if (highest := max(seqno for _, seqno in log)) > numbers.SEQNO_MAX:
                    raise RemoteProtocolError(
                        f"{label(frame.opcode)}: vbucket {stream.vbucket} has a branch at {highest}"
                    )
                self._answer_mover(stream, Status.SUCCESS)
                if stream.dialect is Dialect.UPR:
                    self._live.open_snapshot(stream)
                    # A UPR stream needs no marker to begin: the first one closes nothing (dcp 14).
                    return [event, Boundary(stream, goes_on=True)]
            case Refused(stream=stream, status=status):
                self._answer_mover(stream, status, event.said)
                self._core.forget(stream)
        return [event]

    # --- requests ---------------------------------------------------------------------------------------------------

    def _add_stream(self, frame: Frame) -> list[Event]:
        if not self.settings.takes_movers:
            raise RemoteProtocolError(f"{label(frame.opcode)} came from a producer that this node called")
        request = dcp.AddStream.decode(frame)
        if request.flags & ~_FLAGS_KNOWN and self._core.dialect is not Dialect.UPR:  # UPR ignores them (erratum A3)
            reason = f"flags 0x{request.flags & ~_FLAGS_KNOWN:x} are unknown or retired"
            self._out += self.refusals.answer(frame, Status.EINVAL, reason, extras=bytes(4))
            return []
        return [StreamWanted(request.vbucket, request.flags, frame)]

    def _close_stream(self, frame: Frame) -> list[Event]:
        """Answer CLOSE_STREAM with success or "stream not found"; later messages of the vbucket have no stream (dcp
        2.3).
        """
        stream = self.streams.get(dcp.CloseStream.decode(frame).vbucket)
        if stream is None:
            self._refuse(frame, self._live.no_stream, "no stream")
            return []
        events = self.close(stream, Status.KEY_ENOENT)
        self._core.succeed(frame)
        return events

    def _noop(self, frame: Frame) -> list[Event]:
        dcp.Noop.decode(frame)
        self._core.succeed(frame)
        return []

    def _second_open(self, frame: Frame) -> list[Event]:
        raise refusal(frame, Status.EINVAL, "the same socket may not be opened twice")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _answer_mover(self, stream: ConsumerStream, status: int, explanation: str = "") -> None:
        if stream.mover is None:
            return
        answer = dcp.AddStreamResponse(stream_opaque=stream.opaque, opaque=stream.mover.opaque)
        if status == Status.SUCCESS:
            self._out += answer.encode()
        else:
            reason = f"the producer answered {name_of(status)}" + f" ({explanation})" * bool(explanation)
            self._out += self.refusals.answer(stream.mover, status, reason, extras=answer.frame().extras)

    def _refuse(self, frame: Frame, status: int, reason: str) -> None:
        self._out += self.refusals.answer(frame, status, reason)

    def _count(self, frame: Frame, now: float) -> None:
        """Count the bytes of a message for flow control: "also those it rejects, ignores or that belong to dead
        streams" (dcp 7).
        """
        if frame.opcode in COUNTED_OPCODES:
            # 57 and not 55 bytes for a PREPARE: "a client counting real bytes under-acks 2 bytes per prepare and will
            # eventually stall" (dcp 7).
            self.window.receive(len(frame) + 2 * (frame.opcode == Opcode.DCP_PREPARE))
            self.window.process(now)
            self._core.acknowledge(now)


PRODUCER_COMMANDS = frozenset(
    {
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_GET_FAILOVER_LOG,
        Opcode.DCP_BUFFER_ACKNOWLEDGEMENT,
        Opcode.DCP_CONTROL,
        Opcode.DCP_SEQNO_ACKNOWLEDGED,
    }
)
"""Requests that a consumer sends and never receives."""

_ANSWERS: dict[int, Callable[[Consumer, Frame], list[Event]]] = {
    # Other answers tell nothing: to a close, or to an acknowledgement, which some producers answer (erratum P3).
    Opcode.DCP_CONTROL: Consumer._control_answered,
    Opcode.DCP_STREAM_REQ: Consumer._stream_answered,
}

_REQUESTS: dict[int, Callable[[Consumer, Frame], list[Event]]] = {
    Opcode.DCP_OPEN: Consumer._second_open,
    Opcode.DCP_ADD_STREAM: Consumer._add_stream,
    Opcode.DCP_CLOSE_STREAM: Consumer._close_stream,
    Opcode.DCP_NOOP: Consumer._noop,
}
