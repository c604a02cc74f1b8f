"""The producer's end of a DCP connection, after OPEN: requests in, events out, and a check on all that is sent.

Frames go in by `receive_frame`, with the time; events come out, for whoever owns vbuckets and sockets. What must be
said because of them waits in `data_to_send`. Changes themselves never pass through here: there are millions. Their
owner reports each run of them (`sent_changes`), so that the flow-control ledger and the state of each stream stay
exact, and a message that would break the protocol is refused before it leaves.

Source: dcp 1, 2, 6, 7, 8.5, 9 (error responses).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from headwater.errors import BadMessage, LocalProtocolError, RemoteProtocolError
from headwater.protocol.controls import Negotiated, Settings, apply, settings_for
from headwater.protocol.flow import FlowLedger
from headwater.protocol.markers import encode_end, encode_marker
from headwater.protocol.noop import NoopTimer
from headwater.protocol.producer_events import (
    Event,
    FailoverLogRequested,
    MarkerAnswered,
    NotDcp,
    PeerGone,
    StateAnswered,
    StreamClosed,
    StreamRequested,
    WindowOpened,
)
from headwater.protocol.producer_stream import ProducerStream, Sent, StreamState
from headwater.protocol.stream_request import Accepted, Facts, StreamKey, judge, read_plain_request, read_stream_request
from headwater.protocol.upr import settled_by, state_number
from headwater.wire import dcp
from headwater.wire.dcp import EndReason, SnapshotFlag
from headwater.wire.dialect import Dialect
from headwater.wire.framing import stream_id_framing, stream_id_of
from headwater.wire.header import Frame, plain_response, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of, without_xerror
from headwater.wire.vbucket import State


class Producer:
    """One connection that was opened as producer.

    Args:
        negotiated: what HELLO and OPEN settled.
        now: seconds of a monotonic clock, as in every later call.

    `receive_frame` and `tick` raise RemoteProtocolError when the only answer is to hang up; the methods that send
    raise LocalProtocolError when the caller is about to break the protocol.
    """

    def __init__(self, negotiated: Negotiated, now: float) -> None:
        self.negotiated = negotiated
        self.settings: Settings = settings_for(negotiated)
        self.dialect = Dialect.DCP if negotiated.speaks_dcp else Dialect.AUTO
        self.flow = FlowLedger()
        self.noop = NoopTimer()
        self.noop.heard(now)
        self.streams: dict[StreamKey, ProducerStream] = {}
        self._out = bytearray()
        self._ends: deque[bytes] = deque()

    # --- input ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When to call `tick`; None for never."""
        return self.noop.deadline

    def receive_frame(self, frame: Frame, now: float) -> list[Event]:
        """Take one frame from the consumer."""
        self.noop.heard(now)
        if frame.is_response:
            return self._receive_response(frame)
        # What only a producer may send, sent to a producer, is answered by hanging up (dcp 1).
        if frame.opcode in CONSUMER_COMMANDS:
            raise RemoteProtocolError(f"opcode 0x{frame.opcode:02x} was sent to a producer; only a consumer takes it")
        handler = _HANDLERS.get(frame.opcode)
        if handler is None:
            return [NotDcp(frame)]
        if frame.datatype:
            self.refuse(frame, Status.EINVAL)
            return []
        try:
            return handler(self, frame, now)
        except BadMessage as bad:
            self.refuse(frame, Status(bad.status))
            return []

    def receive_plain_request(self, data: memoryview, offset: int, now: float) -> StreamRequested | None:
        """As `receive_frame`, for the stream request that begins at `offset`; they come by the thousand.

        None, and nothing has happened, if what is there is anything but an ordinary one: let `receive_frame` have it.
        """
        if self.dialect is Dialect.UPR or (request := read_plain_request(data, offset)) is None:
            return None
        self.noop.heard(now)
        self.dialect = Dialect.DCP
        return StreamRequested(request)

    def tick(self, now: float) -> list[Event]:
        """The deadline has come."""
        if self.noop.peer_is_silent(now):
            return [PeerGone(self.noop.silence_seconds_max)]
        opaque = self.noop.due(now)
        if opaque is not None:
            self._out += dcp.Noop(opaque=opaque).encode()
        return []

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def waiting_bytes(self) -> int:
        """How much `data_to_send` would return."""
        return len(self._out)

    def data_to_send(self) -> bytes:
        """Take the bytes that wait to be sent."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def refuse(self, frame: Frame, status: Status, value: bytes = b"") -> None:
        """Answer a request with an error that the client understands (wire 3.1)."""
        if not self.negotiated.xerror:
            told = without_xerror(status, collections=self.negotiated.collections)
            if told is None:
                raise RemoteProtocolError(f"{name_of(status)} can not be told to a client without XERROR")
            status = Status(told)
        self._out += response(frame, status, value=value).encode()

    def answer_stream(self, asked: StreamRequested, facts: Facts | None, log: bytes) -> ProducerStream | None:
        """Decide about a stream and answer; the stream, or None if it was refused.

        Args:
            asked: the event.
            facts: what is known of the vbucket; None if it is not here.
            log: its failover log as it is sent.
        """
        request = asked.request
        verdict = judge(request, facts, negotiated=self.negotiated, settings=self.settings, live=self.streams.keys())
        if not isinstance(verdict, Accepted):
            self.refuse(asked.frame, verdict.status, verdict.value)
            return None
        self._out += plain_response(Opcode.DCP_STREAM_REQ, request.opaque, log)
        stream = ProducerStream(
            verdict.key, request.opaque, verdict, last_seqno=verdict.start_seqno, dialect=self.dialect
        )
        stream.snapshot_end_seqno = verdict.start_seqno
        if verdict.key[1] is not None:
            stream.framing = stream_id_framing(verdict.key[1])
        self.streams[verdict.key] = stream
        return stream

    def answer_log(self, asked: FailoverLogRequested, log: bytes | None) -> None:
        """Answer with a failover log, or with NOT_MY_VBUCKET if there is none."""
        if log is None:
            self.refuse(asked.frame, Status.NOT_MY_VBUCKET)
        else:
            self._out += response(asked.frame, value=log).encode()

    def marker(
        self, stream: ProducerStream, start_seqno: int, end_seqno: int, flags: SnapshotFlag, purge_seqno: int = 0
    ) -> bytes:
        """The snapshot marker to send next; it is entered into the ledger. `purge_seqno`: 0 for nothing to tell.

        All seqnos of the snapshot lie above the snapshot before it and up to `end_seqno` (dcp 8.2).
        """
        if not start_seqno <= end_seqno or end_seqno <= stream.snapshot_end_seqno:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: a marker [{start_seqno}, {end_seqno}] after one that ended at "
                f"{stream.snapshot_end_seqno}"
            )
        data = encode_marker(stream, start_seqno, end_seqno, flags, purge_seqno)
        self._send(stream, Sent.MARKER, len(data))
        stream.snapshot_end_seqno = end_seqno
        stream.unanswered_markers += bool(int(flags) & _ACK) and stream.dialect is not Dialect.UPR
        return data

    def sent_snapshot(self, stream: ProducerStream, end_seqno: int, size_bytes: int) -> None:
        """Enter a marker and all changes up to its end, which go out now in one piece; the window has room for all."""
        if not stream.last_seqno < end_seqno or stream.state is not StreamState.BETWEEN:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: a snapshot up to {end_seqno} after seqno {stream.last_seqno}, "
                f"on a stream that is {stream.state.value}"
            )
        self.flow.send(size_bytes)
        stream.snapshot_end_seqno = stream.last_seqno = end_seqno

    def set_state(self, stream: ProducerStream, state: State) -> None:
        """Tell the consumer which state the vbucket has there: a step of a takeover, which it must answer."""
        as_printed = self.negotiated.upr_states_as_printed and stream.dialect is Dialect.UPR
        number = state_number(state, as_printed=as_printed)
        data = dcp.SetVbucketState(vbucket=stream.vbucket, opaque=stream.opaque, state=number).encode()
        self._send(stream, Sent.STATE, len(data))
        self._out += data

    def sent_changes(self, stream: ProducerStream, size_bytes: int, last_seqno: int) -> None:
        """Enter a run of changes that goes out now: its wire size, and the seqno of its last."""
        if not stream.last_seqno < last_seqno <= stream.snapshot_end_seqno:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: seqno {last_seqno} after {stream.last_seqno}, in a snapshot that ends at "
                f"{stream.snapshot_end_seqno}"
            )
        is_last = last_seqno == stream.snapshot_end_seqno
        self._send(stream, Sent.LAST_CHANGE if is_last else Sent.CHANGES, size_bytes)
        stream.last_seqno = last_seqno

    def end_stream(self, stream: ProducerStream, reason: EndReason) -> None:
        """End a stream: it is forgotten now; its STREAM_END goes out as soon as the window has room."""
        stream.step(Sent.END_OK if reason is EndReason.OK else Sent.CUT)
        del self.streams[stream.key]
        self._ends.append(encode_end(stream, reason))
        self._flush_ends()

    def _send(self, stream: ProducerStream, sent: Sent, size_bytes: int) -> None:
        if self.flow.is_full:
            raise LocalProtocolError(f"vbucket {stream.vbucket}: {sent.value} through a window that is full")
        stream.step(sent)
        self.flow.send(size_bytes)

    def _flush_ends(self) -> None:
        while self._ends and not self.flow.is_full:
            self.flow.send(len(self._ends[0]))
            self._out += self._ends.popleft()

    # --- requests ---------------------------------------------------------------------------------------------------

    def _stream_request(self, frame: Frame, _: float) -> list[Event]:
        dialect = settled_by(frame, self.dialect)
        request = read_stream_request(frame, collections=self.negotiated.collections, dialect=dialect)
        self.dialect = dialect
        return [StreamRequested(request)]

    def _close_stream(self, frame: Frame, _: float) -> list[Event]:
        """dcp 2.3: KEY_ENOENT without a stream; 8d if stream ids are used wrongly, or only others are open."""
        vbucket = dcp.CloseStream.decode(frame).vbucket
        stream_id = stream_id_of(frame.framing)
        stream = self.streams.get((vbucket, stream_id))
        if (stream_id is not None) != self.settings.stream_ids:
            self.refuse(frame, Status.DCP_STREAMID_INVALID)
        elif stream is None:
            others = any(key[0] == vbucket for key in self.streams)
            self.refuse(frame, Status.DCP_STREAMID_INVALID if others else Status.KEY_ENOENT)
        else:
            self._out += response(frame).encode()
            self._close(stream)
            return [StreamClosed(stream)]
        return []

    def _close(self, stream: ProducerStream) -> None:
        """A STREAM_END tells of it only if the consumer asked for that."""
        if self.settings.stream_end_on_client_close:
            self.end_stream(stream, EndReason.CLOSED)
        else:
            stream.step(Sent.CUT)
            del self.streams[stream.key]

    def _failover_log(self, frame: Frame, _: float) -> list[Event]:
        dcp.GetFailoverLog.decode(frame)
        return [FailoverLogRequested(frame)]

    def _buffer_ack(self, frame: Frame, _: float) -> list[Event]:
        """Never answered when it is well-formed (erratum P3)."""
        self.flow.acknowledge(dcp.BufferAck.decode(frame).acked_bytes)
        self._flush_ends()
        return [WindowOpened()]

    def _control(self, frame: Frame, now: float) -> list[Event]:
        control = dcp.Control.decode(frame)
        if self.dialect is Dialect.AUTO:
            self.dialect = Dialect.DCP
        status = apply(self.settings, self.negotiated, control.key, control.value)
        if status is not Status.SUCCESS:
            self.refuse(frame, status)
            return []
        self._out += response(frame).encode()
        self.noop.interval_seconds = self.settings.noop_interval_seconds
        if self.settings.enable_noop:
            self.noop.enable(now)
        else:
            self.noop.disable()
        if self.settings.window_bytes != self.flow.window_bytes:
            self.flow.resize(self.settings.window_bytes)
            self._flush_ends()
        return [WindowOpened()]

    def _second_open(self, frame: Frame, _: float) -> list[Event]:
        """The same socket may not be opened twice (dcp 2.1)."""
        self.refuse(frame, Status.EINVAL)
        return []

    def _seqno_acknowledged(self, frame: Frame, _: float) -> list[Event]:
        """Only with synchronous writes, which this producer does not send (dcp 2.17)."""
        self.refuse(frame, Status.EINVAL)
        return []

    def _flush(self, frame: Frame, _: float) -> list[Event]:
        """Retired (dcp 2.11)."""
        self.refuse(frame, Status.NOT_SUPPORTED)
        return []

    # --- responses --------------------------------------------------------------------------------------------------

    def _receive_response(self, frame: Frame) -> list[Event]:
        """Answers to no-ops must be right; "no such stream" stops that stream; other errors end it all (dcp 9)."""
        if frame.opcode == Opcode.DCP_NOOP:
            if frame.status or not self.noop.answered(frame.opaque):
                raise RemoteProtocolError(
                    f"a no-op was answered with {name_of(frame.status)} and opaque {frame.opaque:#x}"
                )
            return []
        if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
            return [StateAnswered(stream, frame.status) for stream in self._streams_of(frame)]
        if frame.opcode == Opcode.DCP_SNAPSHOT_MARKER and frame.status == Status.SUCCESS:
            return [self._marker_answered(stream) for stream in self._streams_of(frame)]
        if frame.status == Status.SUCCESS or frame.status in self._tolerated:
            return self._drop_unknown(frame) if frame.status in _NO_SUCH_STREAM else []
        raise RemoteProtocolError(
            f"the consumer answered opcode 0x{frame.opcode:02x} with {name_of(frame.status)}; it can not follow"
        )

    def _streams_of(self, frame: Frame) -> list[ProducerStream]:
        """The live stream with the opaque of a response; none if it is over."""
        return [each for each in self.streams.values() if each.opaque == frame.opaque]

    def _marker_answered(self, stream: ProducerStream) -> MarkerAnswered:
        stream.unanswered_markers = max(0, stream.unanswered_markers - 1)
        return MarkerAnswered(stream)

    @property
    def _tolerated(self) -> frozenset[Status]:
        """Before the codes of version 7 were negotiated, the general ones said the same."""
        return _STREAM_ERRORS if self.settings.v7_status_codes else _STREAM_ERRORS | _OLD_STREAM_ERRORS

    def _drop_unknown(self, frame: Frame) -> list[Event]:
        """The consumer does not have this stream (any more): it is closed without a word (dcp 2.3)."""
        dropped = self._streams_of(frame)
        for stream in dropped:
            stream.step(Sent.CUT)
            del self.streams[stream.key]
        return [StreamClosed(stream) for stream in dropped]


_ACK = int(SnapshotFlag.ACK)  # with plain numbers: a live change has a marker of its own

CONSUMER_COMMANDS = frozenset(
    {
        Opcode.DCP_ADD_STREAM,
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_SET_VBUCKET_STATE,
        Opcode.DCP_NOOP,
        Opcode.DCP_SYSTEM_EVENT,
        Opcode.DCP_PREPARE,
        Opcode.DCP_COMMIT,
        Opcode.DCP_ABORT,
        Opcode.DCP_SEQNO_ADVANCED,
        Opcode.DCP_OSO_SNAPSHOT,
        Opcode.DCP_CACHE_TRANSFER,
        Opcode.DCP_CACHE_TRANSFER_END,
    }
)
"""What a producer sends and never takes."""

_STREAM_ERRORS = frozenset({Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH})
_OLD_STREAM_ERRORS = frozenset({Status.KEY_ENOENT, Status.KEY_EEXISTS})
_NO_SUCH_STREAM = frozenset({Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND})

_HANDLERS: dict[int, Callable[[Producer, Frame, float], list[Event]]] = {
    Opcode.DCP_OPEN: Producer._second_open,
    Opcode.DCP_CLOSE_STREAM: Producer._close_stream,
    Opcode.DCP_STREAM_REQ: Producer._stream_request,
    Opcode.DCP_GET_FAILOVER_LOG: Producer._failover_log,
    Opcode.DCP_FLUSH: Producer._flush,
    Opcode.DCP_BUFFER_ACKNOWLEDGEMENT: Producer._buffer_ack,
    Opcode.DCP_CONTROL: Producer._control,
    Opcode.DCP_SEQNO_ACKNOWLEDGED: Producer._seqno_acknowledged,
}
