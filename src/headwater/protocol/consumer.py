"""The consumer node's end of a DCP connection, after OPEN: frames in, events out, answers and requests to send.

The same object serves both ways a node comes to follow another: a mover that speaks ADD_STREAM on the socket over which
the producer's frames arrive, and a connection this node opened itself. Changes that are plainly right never pass
through here, a kernel takes them (kernels/apply.py) and shares the table of streams; their owner reports their bytes
(`counted`). Everything else comes one frame at a time to `receive_frame`:

    ADD_STREAM -> StreamWanted, add() -> controls, one at a time -> PositionNeeded, ask() -> STREAM_REQ
    its answer -> Opened | Refused | RollbackNeeded, ask() again; ADD_STREAM is answered only then (dcp 2.2)

A producer that answers the first stream request with EINVAL is asked again in UPR, and then spoken to in UPR (dcp 14).
There a marker is a Boundary, without numbers: what lies between two of them is whole, and may be resumed from.

A message that does not fit its stream is answered with the error of dcp 9 and changes nothing; one that no consumer may
get ends the connection. Answers are collected for `data_to_send`; the owner holds them back until what they tell of is
durable. Source: dcp 1, 2, 3, 6, 7, 9.
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.kernels.follow import COUNTED_OPCODES
from headwater.kernels.tracker import END, IN_SNAPSHOT, LAST, STATE
from headwater.protocol.consumer_events import (
    Advanced,
    Boundary,
    Changed,
    Ended,
    Event,
    Opened,
    PositionNeeded,
    Refused,
    RollbackNeeded,
    StateWanted,
    StreamWanted,
)
from headwater.protocol.consumer_messages import STREAM_MESSAGES
from headwater.protocol.consumer_stream import ConsumerStream, PassiveState, Step, stream_request
from headwater.protocol.consumer_streams import LiveStreams, refusal
from headwater.protocol.controls import Negotiated
from headwater.protocol.negotiation import NOOP, V7_CODES, WINDOW, ConsumerSettings, Negotiation, wanted_controls
from headwater.protocol.position import SEQNO_MAX, Position, older_histories
from headwater.protocol.producer_events import NotDcp, PeerGone
from headwater.protocol.stream import named, read_failover_log, read_rollback
from headwater.protocol.window import SMALL_ACK_BYTES, ConsumerWindow
from headwater.wire import dcp
from headwater.wire.dcp import StreamFlag
from headwater.wire.dialect import Dialect
from headwater.wire.header import FLEXIBLE, Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of, without_xerror

ROLLBACKS_MAX = 64
"""A producer that sends us back more often than that for one stream is not going to accept."""
_FLAGS_KNOWN = sum(StreamFlag)


class Consumer:
    """One connection on which this node consumes.

    Args:
        negotiated: what HELLO and OPEN settled.
        settings: what to ask of the producer.
        now: seconds of a monotonic clock, as in every later call.

    Attributes:
        streams: those that live, by vbucket. table: the same for the kernel, which judges changes by it.
        window: bytes received, processed, acknowledged.

    `receive_frame` raises RemoteProtocolError when the only answer is to hang up.
    """

    def __init__(self, negotiated: Negotiated, settings: ConsumerSettings, now: float) -> None:
        self.negotiated = negotiated
        self.settings = settings
        self._live = LiveStreams(
            Dialect.DCP if negotiated.speaks_dcp else settings.dialect, negotiated.upr_states_as_printed
        )
        self.streams, self.table = self._live.by_vbucket, self._live.table
        self.window = ConsumerWindow(0, owed_bytes_max=SMALL_ACK_BYTES)
        self.heard_at = now
        self._opaque = 0
        self._asked: dict[int, ConsumerStream | None] = {}  # by opaque; None: nobody waits for the answer any more
        self._out = bytearray()
        self._negotiation = Negotiation(wanted_controls(settings), self._next_opaque)

    # --- input ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When to call `tick`; None for never."""
        idle = self.heard_at + self.settings.idle_seconds if NOOP in self._negotiation.accepted else None
        moments = [moment for moment in (idle, self.window.deadline) if moment is not None]
        return min(moments, default=None)

    def receive_frame(self, frame: Frame, now: float) -> list[Event]:
        """Take one frame from the producer, or the mover."""
        self.heard_at = now
        if frame.is_response:
            handler = _ANSWERS.get(frame.opcode)
            return handler(self, frame) if handler else []
        # A consumer's commands, sent to a consumer, are answered by hanging up (dcp 1).
        if frame.opcode in PRODUCER_COMMANDS:
            raise RemoteProtocolError(f"{named(frame.opcode)} was sent to a consumer; only a producer takes it")
        self._count(frame, now)
        if frame.opcode not in _REQUESTS and frame.opcode not in STREAM_MESSAGES:
            return [NotDcp(frame)]
        try:
            if frame.magic in FLEXIBLE:  # "a consumer node rejects frames with a stream id (EINVAL)" (dcp 2.21)
                raise BadMessage("stream message", frame.opcode, "framing extras were not negotiated")
            if frame.opcode in STREAM_MESSAGES:
                return STREAM_MESSAGES[frame.opcode](self._live, frame)
            return _REQUESTS[frame.opcode](self, frame)
        except BadMessage as bad:
            self._refuse(frame, bad.status)
            return []

    def counted(self, size_bytes: int, now: float, *, more_waits: bool = False) -> None:
        """The kernel took changes of so many bytes: they are processed. `more_waits`: there is more to take at once."""
        self.heard_at = now
        self.window.receive(size_bytes)
        self.window.process(now)
        self._acknowledge(now, more_waits=more_waits)

    def tick(self, now: float) -> list[Event]:
        """The deadline has come."""
        if NOOP in self._negotiation.accepted and now >= self.heard_at + self.settings.idle_seconds:
            return [PeerGone(self.settings.idle_seconds)]
        self._acknowledge(now)
        return []

    # --- what the owner decides -------------------------------------------------------------------------------------

    def add(self, vbucket: int, flags: int, mover: Frame | None = None) -> tuple[ConsumerStream, list[Event]]:
        """Begin a stream that the owner has found possible; its PositionNeeded comes now, or after the controls."""
        stream = ConsumerStream(vbucket, self._next_opaque(), flags, mover)
        self.streams[vbucket] = stream
        self._out += self._negotiation.begin()
        return stream, [PositionNeeded(stream)] if self._negotiation.is_over else []

    def refuse_stream(self, wanted: StreamWanted, status: Status) -> None:
        """ADD_STREAM fails for a reason of ours: "the opaque in extras is 0 when the failure was local" (dcp 2.2)."""
        self._out += response(wanted.frame, self._told(status), extras=bytes(4)).encode()

    def ask(self, stream: ConsumerStream, position: Position) -> list[Event]:
        """Send the stream request.

        "A UPR consumer may resume only from the last completed boundary" (dcp 14): go back there first, if need be.
        """
        if self._live.dialect is Dialect.UPR and not position.complete:
            return [RollbackNeeded(stream, position.seqno)]
        stream.step(Step.ASKED)
        stream.asked = position
        if not stream.rollbacks:
            stream.histories = older_histories(position)
        self._request(stream, position, position.vb_uuid)
        return []

    def close(self, stream: ConsumerStream, status: Status = Status.NOT_MY_VBUCKET) -> list[Event]:
        """The stream is over for us; if its ADD_STREAM waits, that is answered with `status`."""
        if stream.state is PassiveState.ENDED:
            return []
        if stream.state is PassiveState.ASKED:
            self._asked[stream.opaque] = None
        if stream.mover is not None and stream.state is not PassiveState.OPEN:
            self._out += response(stream.mover, self._told(status), extras=bytes(4)).encode()
        stream.step(Step.CLOSED)
        self._live.forget(stream)
        return [Ended(stream, None)]

    def ask_producer_to_close(self, stream: ConsumerStream) -> list[Event]:
        """End the stream at both ends."""
        self._out += dcp.CloseStream(vbucket=stream.vbucket, opaque=self._next_opaque()).encode()
        return self.close(stream)

    def stop_changes(self, stream: ConsumerStream) -> None:
        """The vbucket is ours now: what may still come on the stream is its end, no change."""
        self.table.close(stream.vbucket)

    def announced(self, vbucket: int) -> int:
        """How many seqnos of the snapshot in hand are still to come; 0 where that is unknown, as it is in UPR."""
        state, last, end = (int(self.table.rows[vbucket, field]) for field in (STATE, LAST, END))
        return end - last if state == IN_SNAPSHOT and last < end < SEQNO_MAX else 0

    def applied(self, change: Changed | Advanced) -> None:
        """A change that came as an event is staged."""
        self.table.rows[change.stream.vbucket, LAST] = change.seqno

    def answer_state(self, wanted: StateWanted, status: Status = Status.SUCCESS) -> None:
        """SET_VBUCKET_STATE is always answered: the takeover depends on it (dcp 2.12)."""
        self._out += response(wanted.frame, self._told(status)).encode()

    # --- output -----------------------------------------------------------------------------------------------------

    def answer_markers(self) -> bool:
        """Answer the markers with flag ACK whose last seqno was processed (dcp 2.7); whether there were any."""
        reached = self._live.take_reached()
        for stream in reached:
            self._out += dcp.SnapshotMarkerResponse(opaque=stream.opaque).encode()
        return bool(reached)

    def data_to_send(self) -> bytes:
        """Take the bytes that wait to be sent."""
        data = bytes(self._out)
        self._out.clear()
        return data

    # --- answers ----------------------------------------------------------------------------------------------------

    def _control_answered(self, frame: Frame) -> list[Event]:
        self._out += self._negotiation.answered(frame)
        if not self._negotiation.is_over:
            return []
        if WINDOW in self._negotiation.accepted:
            self.window.window_bytes = self.settings.window_bytes
        self._live.speaks_v7 = V7_CODES in self._negotiation.accepted
        waiting = [stream for stream in self.streams.values() if stream.state is PassiveState.QUEUED]
        return [PositionNeeded(stream) for stream in waiting]

    def _stream_answered(self, frame: Frame) -> list[Event]:
        if frame.opaque not in self._asked:  # "response with unknown opaque: disconnect" (dcp 9)
            raise RemoteProtocolError(
                f"{named(frame.opcode)}: an answer with opaque {frame.opaque}, which was not asked"
            )
        stream = self._asked.pop(frame.opaque)
        if stream is None:
            return []
        if frame.status == Status.SUCCESS:
            return self._accepted(stream, read_failover_log(frame))
        is_upr = stream.dialect is Dialect.UPR
        if frame.status == Status.ROLLBACK or (is_upr and frame.status == Status.KEY_ENOENT):
            return self._rolled_back(stream, frame)
        # A producer that took a control is none of UPR's; one that takes neither control nor request may be.
        may_be_upr = self._live.dialect is not Dialect.DCP and not self._negotiation.accepted
        if frame.status == Status.EINVAL and not is_upr and may_be_upr:
            self._live.dialect = Dialect.UPR
            stream.step(Step.ROLLED_BACK)
            return [PositionNeeded(stream)]
        return self._refused(stream, frame.status)

    def _accepted(self, stream: ConsumerStream, log: tuple[tuple[int, int], ...]) -> list[Event]:
        stream.step(Step.ACCEPTED)
        self.table.open(stream.vbucket, stream.opaque, stream.asked.seqno if stream.asked else 0)
        self._answer_mover(stream, Status.SUCCESS)
        self._live.dialect = stream.dialect
        if stream.dialect is Dialect.UPR:
            self._live.open_snapshot(stream)
            return [Opened(stream, log), Boundary(stream, goes_on=True)]
        return [Opened(stream, log)]

    def _rolled_back(self, stream: ConsumerStream, frame: Frame) -> list[Event]:
        """dcp 9: "if seqno is 0 and the consumer's newest entry's seqno equals the start it asked with: drop that
        entry, retry with the previous uuid". Otherwise the owner gives up what the producer does not share."""
        seqno, asked = read_rollback(frame), stream.asked
        if asked is None or seqno > asked.seqno:
            begun = 0 if asked is None else asked.seqno
            raise RemoteProtocolError(
                f"{named(frame.opcode)}: vbucket {stream.vbucket}, asked from seqno {begun}, is sent forward to {seqno}"
            )
        stream.rollbacks += 1
        if stream.rollbacks > ROLLBACKS_MAX:
            return self._refused(stream, frame.status)
        if seqno == 0 and stream.histories:  # those of which that is so
            self._request(stream, asked, stream.histories.pop(0))
            return []
        stream.step(Step.ROLLED_BACK)
        stream.histories = []
        return [RollbackNeeded(stream, seqno)]

    def _refused(self, stream: ConsumerStream, status: int) -> list[Event]:
        stream.step(Step.REFUSED)
        self._answer_mover(stream, status)
        self._live.forget(stream)
        return [Refused(stream, status)]

    # --- requests ---------------------------------------------------------------------------------------------------

    def _add_stream(self, frame: Frame) -> list[Event]:
        if not self.settings.takes_movers:
            raise RemoteProtocolError(f"{named(frame.opcode)} came from a producer that this node called")
        wanted = dcp.AddStream.decode(frame)
        if wanted.flags & ~_FLAGS_KNOWN and self._live.dialect is not Dialect.UPR:  # UPR ignores them (erratum A3)
            self._out += response(frame, Status.EINVAL, extras=bytes(4)).encode()
            return []
        return [StreamWanted(wanted.vbucket, wanted.flags, frame)]

    def _close_stream(self, frame: Frame) -> list[Event]:
        """Success or stream not found; what comes later for that vbucket has no stream (dcp 2.3)."""
        stream = self.streams.get(dcp.CloseStream.decode(frame).vbucket)
        if stream is None:
            self._refuse(frame, self._live.no_stream)
            return []
        events = self.close(stream, Status.KEY_ENOENT)
        self._out += response(frame).encode()
        return events

    def _noop(self, frame: Frame) -> list[Event]:
        dcp.Noop.decode(frame)
        self._out += response(frame).encode()
        return []

    def _second_open(self, frame: Frame) -> list[Event]:
        raise refusal(frame, Status.EINVAL, "the same socket may not be opened twice")

    # --- inside -----------------------------------------------------------------------------------------------------

    def _next_opaque(self) -> int:
        self._opaque += 1
        return self._opaque

    def _request(self, stream: ConsumerStream, position: Position, vb_uuid: int) -> None:
        self._asked[stream.opaque] = stream
        stream.dialect = Dialect.UPR if self._live.dialect is Dialect.UPR else Dialect.DCP
        self._out += stream_request(stream, position, vb_uuid)

    def _answer_mover(self, stream: ConsumerStream, status: int) -> None:
        if stream.mover is not None:
            self._out += response(stream.mover, self._told(status), extras=stream.opaque.to_bytes(4)).encode()

    def _refuse(self, frame: Frame, status: int) -> None:
        self._out += response(frame, self._told(status)).encode()

    def _told(self, status: int) -> int:
        """The status in words the peer understands (wire 3.1)."""
        if self.negotiated.xerror:
            return status
        old = without_xerror(status, collections=self.negotiated.collections)
        if old is None:
            raise RemoteProtocolError(f"{name_of(status)} can not be told to a peer without XERROR")
        return old

    def _count(self, frame: Frame, now: float) -> None:
        """dcp 7: "count every counted message, also those it rejects, ignores or that belong to dead streams"."""
        if frame.opcode in COUNTED_OPCODES:
            self.window.receive(len(frame) + 2 * (frame.opcode == Opcode.DCP_PREPARE))
            self.window.process(now)
            self._acknowledge(now)

    def _acknowledge(self, now: float, *, more_waits: bool = False) -> None:
        if due := self.window.due(now, more_waits=more_waits):
            self._out += dcp.BufferAck(acked_bytes=due).encode()


PRODUCER_COMMANDS = frozenset(
    {
        Opcode.DCP_STREAM_REQ,
        Opcode.DCP_GET_FAILOVER_LOG,
        Opcode.DCP_BUFFER_ACKNOWLEDGEMENT,
        Opcode.DCP_CONTROL,
        Opcode.DCP_SEQNO_ACKNOWLEDGED,
    }
)
"""What a consumer sends and never takes."""

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
