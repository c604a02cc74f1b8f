"""The producer's end of a DCP connection, after OPEN: requests in, events out, and checks of everything that is sent.

`receive_frame` takes a frame and the time, and returns events for the owner of vbuckets and sockets; `data_to_send`
returns the bytes to send. Changes, which come by the million, do not pass through this object: their owner encodes and
sends them, and reports each run (`sent_changes`). So the flow-control ledger and the state of each stream stay exact,
and a message that would break the protocol is refused before it is sent.

Source: dcp 1, 2, 6, 7, 8.5, 9 (error responses).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from headwater.errors import BadMessage, LocalProtocolError, RemoteProtocolError
from headwater.protocol.dcp.controls import ControlSettings, Negotiated, apply, settings_for, why_refused
from headwater.protocol.dcp.flow import FlowLedger
from headwater.protocol.dcp.markers import NOTHING_PURGED, Purged, encode_end, encode_marker
from headwater.protocol.dcp.noop import NoopTimer
from headwater.protocol.dcp.producer_events import (
    Event,
    FailoverLogRequested,
    MarkerAnswered,
    NotDcp,
    PreparesAcknowledged,
    StateAnswered,
    StreamClosed,
    StreamRequested,
    WindowOpened,
)
from headwater.protocol.dcp.producer_stream import ProducerState, ProducerStream, SentMessage
from headwater.protocol.dcp.refusals import Refusals
from headwater.protocol.dcp.stream_request import (
    Accepted,
    Facts,
    StreamKey,
    judge,
    read_plain_request,
    read_stream_request,
)
from headwater.protocol.dcp.upr import settled_by, state_number
from headwater.protocol.end import PeerGone, each_frame
from headwater.wire import dcp
from headwater.wire.dcp import EndReason, SnapshotFlag
from headwater.wire.dialect import Dialect
from headwater.wire.framing import FrameBuffer, stream_id_framing, stream_id_of
from headwater.wire.header import Frame, plain_response, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status, name_of
from headwater.wire.vbucket import State

Change: TypeAlias = dcp.Mutation | dcp.Deletion | dcp.DeletionV2 | dcp.Expiration


class Producer:
    """One connection that was opened as producer.

    Args:
        negotiated: results of HELLO and OPEN.
        now: seconds of a monotonic clock, as in every later call.

    Attributes:
        controls_obeyed: number of CONTROLs that changed the settings; after each, owners build the encoders of streams
            again.
        refusals: requests that were refused, and why, for the log.

    `receive_frame` and `tick` raise RemoteProtocolError if the connection must be closed; the methods that send raise
    LocalProtocolError if the message would break the protocol.
    """

    def __init__(self, negotiated: Negotiated, now: float) -> None:
        self.negotiated = negotiated
        self.settings: ControlSettings = settings_for(negotiated)
        self.controls_obeyed: int = 0
        self.dialect = Dialect.DCP if negotiated.speaks_dcp else Dialect.AUTO
        self.flow: FlowLedger = FlowLedger()
        self.refusals: Refusals = Refusals(negotiated)
        self.noop: NoopTimer = NoopTimer()
        self.noop.heard(now)
        self.streams: dict[StreamKey, ProducerStream] = {}
        self._out = bytearray()
        self._ends: deque[bytes] = deque()
        self._buffer = FrameBuffer()

    # --- input ------------------------------------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """The time at which to call `tick`; None for never."""
        return self.noop.deadline

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take received bytes; answer each event before the next call.

        Raises:
            RemoteProtocolError: the connection must be closed.
        """
        return each_frame(self._buffer, data, now, self.receive_frame)

    def receive_eof(self) -> list[Event]:
        """Note that the consumer closed the connection, which ends all streams; return PeerGone."""
        return [PeerGone()]

    def receive_frame(self, frame: Frame, now: float) -> list[Event]:
        """Take one frame, for owners that cut frames themselves."""
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
            self.refuse(frame, Status.EINVAL, f"datatype 0x{frame.datatype:02x} where none belongs")
            return []
        try:
            return handler(self, frame, now)
        except BadMessage as error:
            self.refuse(frame, error.status, error.problem)
            return []

    def receive_plain_request(self, data: memoryview, offset: int, now: float) -> StreamRequested | None:
        """Handle the stream request at `offset` of `data` as `receive_frame` would, but faster: requests come by the
        thousand.

        Returns None, without any effect, if the frame is not an ordinary stream request: then call `receive_frame`.
        """
        if self.dialect is _UPR or (request := read_plain_request(data, offset)) is None:
            return None
        self.noop.heard(now)
        self.dialect = _DCP
        return StreamRequested(request)

    def tick(self, now: float) -> list[Event]:
        """Act on the deadline: send a no-op, or return `PeerGone` for a silent consumer."""
        # This process stood still itself: the consumer's answers may lie unread in the socket, and it must not be cut
        # for them.
        if self.noop.overslept(now):
            self.noop.heard(now)
        if self.noop.peer_is_silent(now):
            return [PeerGone(self.noop.silence_seconds_max)]
        opaque = self.noop.due(now)
        if opaque is not None:
            self._out += dcp.Noop(opaque=opaque).encode()
        return []

    # --- output -----------------------------------------------------------------------------------------------------

    @property
    def ends_waiting(self) -> int:
        """The number of STREAM_ENDs that wait for room in the window. Only the owner limits it."""
        return len(self._ends)

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that `data_to_send` would return."""
        return len(self._out)

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them."""
        data = bytes(self._out)
        self._out.clear()
        return data

    def refuse(self, frame: Frame, status: int, reason: str, value: bytes = b"") -> None:
        """Answer a request with an error that the client understands (wire 3.1); `reason` is for people."""
        self._out += self.refusals.answer(frame, status, reason, value=value)

    def answer_stream(self, event: StreamRequested, facts: Facts | None, log: bytes) -> ProducerStream | None:
        """Decide about a stream request and answer it; return the stream, or None if it was refused.

        Args:
            event: the event.
            facts: facts about the vbucket; None if this node does not have it.
            log: the vbucket's failover log, encoded.
        """
        request = event.request
        verdict = judge(request, facts, negotiated=self.negotiated, settings=self.settings, live=self.streams.keys())
        if not isinstance(verdict, Accepted):
            self.refuse(event.frame, verdict.status, verdict.reason, verdict.value)
            return None
        self._out += plain_response(_STREAM_REQ, request.opaque, log)
        stream = ProducerStream(
            verdict.key, request.opaque, verdict, last_seqno=verdict.start_seqno, dialect=self.dialect
        )
        # Nothing is announced yet: a change without a marker in front of it is refused by `sent_changes` (dcp 8.2).
        stream.snapshot_end_seqno = verdict.start_seqno
        if verdict.key[1] is not None:
            stream.framing = stream_id_framing(verdict.key[1])
        self.streams[verdict.key] = stream
        return stream

    def answer_log(self, event: FailoverLogRequested, log: bytes | None) -> None:
        """Answer with a failover log, or with NOT_MY_VBUCKET if there is none."""
        if log is None:
            self.refuse(event.frame, Status.NOT_MY_VBUCKET, f"vbucket {event.frame.vbucket} is not here")
        else:
            self._out += response(event.frame, value=log).encode()

    def marker(
        self,
        stream: ProducerStream,
        start_seqno: int,
        end_seqno: int,
        flags: SnapshotFlag,
        purged: Purged = NOTHING_PURGED,
    ) -> bytes:
        """Return the snapshot marker to send next, and count its bytes in the ledger.

        All seqnos of the snapshot lie above the last one sent and not above `end_seqno` (dcp 8.2). A snapshot that
        replaces an incomplete one may end below it (dcp 9). `purged` has the marker's numbers of purges and durable
        writes.
        """
        # A consumer answers such a marker with ERANGE or EINVAL, which ends the connection with all its streams (dcp
        # 9).
        if not start_seqno <= end_seqno or end_seqno <= stream.last_seqno:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: a marker [{start_seqno}, {end_seqno}] after seqno {stream.last_seqno}"
            )
        data = encode_marker(stream, start_seqno, end_seqno, flags, purged)
        self._send(stream, SentMessage.MARKER, len(data))
        stream.snapshot_end_seqno = end_seqno
        stream.unanswered_markers += bool(int(flags) & _ACK) and stream.dialect is not Dialect.UPR
        return data

    def sent_snapshot(self, stream: ProducerStream, end_seqno: int, size_bytes: int) -> None:
        """Count a marker and all changes of its snapshot, `size_bytes` together, which the owner sends at once; the
        window must have room for all.
        """
        if not stream.last_seqno < end_seqno or stream.state is not _BETWEEN:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: a snapshot up to {end_seqno} after seqno {stream.last_seqno}, "
                f"on a stream that is {stream.state.value}"
            )
        self.flow.send(size_bytes)
        stream.snapshot_end_seqno = stream.last_seqno = end_seqno

    def send(
        self, stream: ProducerStream, changes: Sequence[Change], flags: SnapshotFlag = SnapshotFlag.MEMORY
    ) -> None:
        """Send a whole snapshot with `data_to_send`: its marker, then its changes, in the order of their seqnos.

        For callers with few changes; a node sends its changes from the store directly, and reports them by
        `sent_changes`.

        Raises:
            LocalProtocolError: the window is full (`flow.is_full`; wait for WindowOpened), or a seqno does not rise.
        """
        self._out += self.marker(stream, changes[0].by_seqno, changes[-1].by_seqno, flags)
        for change in changes:
            data = replace(change, vbucket=stream.vbucket, opaque=stream.opaque).encode()
            self.sent_changes(stream, len(data), change.by_seqno)
            self._out += data

    def seqno_advanced(self, stream: ProducerStream, seqno: int) -> bytes:
        """Return the SEQNO_ADVANCED that ends a snapshot whose last seqnos have no change for the stream (dcp 2.18)."""
        data = dcp.SeqnoAdvanced(
            vbucket=stream.vbucket, opaque=stream.opaque, framing=stream.framing, seqno=seqno
        ).encode()
        self.sent_changes(stream, len(data), seqno)
        return data

    def set_state(self, stream: ProducerStream, state: State) -> None:
        """Send SET_VBUCKET_STATE, a step of a takeover; the consumer must answer it."""
        as_printed = self.negotiated.upr_states_as_printed and stream.dialect is Dialect.UPR
        number = state_number(state, as_printed=as_printed)
        data = dcp.SetVbucketState(vbucket=stream.vbucket, opaque=stream.opaque, state=number).encode()
        self._send(stream, SentMessage.STATE, len(data))
        self._out += data

    def sent_changes(self, stream: ProducerStream, size_bytes: int, last_seqno: int) -> None:
        """Count a run of changes that are sent now: its wire size, and the seqno of its last change."""
        # Refused here, before it leaves: the consumer would answer ERANGE, and the whole connection would end (dcp 9).
        if not stream.last_seqno < last_seqno <= stream.snapshot_end_seqno:
            raise LocalProtocolError(
                f"vbucket {stream.vbucket}: seqno {last_seqno} after {stream.last_seqno}, in a snapshot that ends at "
                f"{stream.snapshot_end_seqno}"
            )
        is_last = last_seqno == stream.snapshot_end_seqno
        self._send(stream, SentMessage.LAST_CHANGE if is_last else SentMessage.CHANGES, size_bytes)
        stream.last_seqno = last_seqno

    def end_stream(self, stream: ProducerStream, reason: EndReason) -> None:
        """End a stream, and forget it now; its STREAM_END is sent as soon as the window has room."""
        stream.step(_END_OK if reason is _OK else _CUT)
        # Forgotten in front of its STREAM_END, which may wait for the window: until then no other message of this
        # stream may leave.
        del self.streams[stream.key]
        self._ends.append(encode_end(stream, reason))
        self._flush_ends()

    def _send(self, stream: ProducerStream, message: SentMessage, size_bytes: int) -> None:
        if self.flow.is_full:
            raise LocalProtocolError(f"vbucket {stream.vbucket}: {message.value} through a window that is full")
        stream.step(message)
        self.flow.send(size_bytes)

    def _flush_ends(self) -> None:
        # STREAM_END counts 28 bytes (dcp 7), so it waits for the window like a change.
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
        """Handle CLOSE_STREAM, by dcp 2.3: KEY_ENOENT without a stream; status 0x8d if the stream id is wrong or
        absent.
        """
        vbucket = dcp.CloseStream.decode(frame).vbucket
        stream_id = stream_id_of(frame.framing)
        stream = self.streams.get((vbucket, stream_id))
        if (stream_id is not None) != self.settings.stream_ids:
            rule = "needed" if self.settings.stream_ids else "not enabled"
            self.refuse(frame, Status.DCP_STREAMID_INVALID, f"a stream id is {rule} on this connection")
        elif stream is None:
            has_streams = any(key[0] == vbucket for key in self.streams)
            status = Status.DCP_STREAMID_INVALID if has_streams else Status.KEY_ENOENT
            self.refuse(frame, status, f"no such stream of vbucket {vbucket} is open on this connection")
        else:
            self._out += response(frame).encode()
            self._close(stream)
            return [StreamClosed(stream)]
        return []

    def _close(self, stream: ProducerStream) -> None:
        """Close a stream; send a STREAM_END only if the consumer enabled it by CONTROL."""
        # "Otherwise silence" (dcp 2.3): old clients take a STREAM_END behind their own close for an error.
        if self.settings.stream_end_on_client_close:
            self.end_stream(stream, EndReason.CLOSED)
        else:
            stream.step(SentMessage.CUT)
            del self.streams[stream.key]

    def _failover_log(self, frame: Frame, _: float) -> list[Event]:
        dcp.GetFailoverLog.decode(frame)
        return [FailoverLogRequested(frame)]

    def _buffer_ack(self, frame: Frame, _: float) -> list[Event]:
        """Handle BUFFER_ACKNOWLEDGEMENT, which is answered only if it is malformed (erratum P3)."""
        self.flow.acknowledge(dcp.BufferAck.decode(frame).acked_bytes)
        self._flush_ends()
        return [WindowOpened()]

    def _control(self, frame: Frame, now: float) -> list[Event]:
        control = dcp.Control.decode(frame)
        if self.dialect is Dialect.AUTO:
            self.dialect = Dialect.DCP
        status = apply(self.settings, self.negotiated, control.key, control.value)
        if status is not Status.SUCCESS:
            self.refuse(frame, status, why_refused(control.key))
            return []
        self.controls_obeyed += 1
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
        """Refuse a second OPEN (dcp 2.1)."""
        self.refuse(frame, Status.EINVAL, "the same socket may not be opened twice")
        return []

    def _seqno_acknowledged(self, frame: Frame, _: float) -> list[Event]:
        """Handle SEQNO_ACKNOWLEDGED of a replica that gave its name; ignore an opaque without a stream (dcp 2.17)."""
        seqno = dcp.SeqnoAcknowledged.decode(frame).prepared_seqno
        if not self.settings.acknowledges:
            self.refuse(frame, Status.EINVAL, "enable_sync_writes and consumer_name were not negotiated")
            return []
        streams = [each for each in self._streams_of(frame) if each.vbucket == frame.vbucket]
        return [PreparesAcknowledged(stream, seqno) for stream in streams]

    def _flush(self, frame: Frame, _: float) -> list[Event]:
        """Refuse a FLUSH, which is retired (dcp 2.11)."""
        self.refuse(frame, Status.NOT_SUPPORTED, "FLUSH is retired in DCP")
        return []

    # --- responses --------------------------------------------------------------------------------------------------

    def _receive_response(self, frame: Frame) -> list[Event]:
        """Handle a response: check answers to no-ops; "no such stream" closes that stream; other errors end the
        connection (dcp 9).
        """
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
        if frame.status == Status.SUCCESS or self._is_tolerated(frame):
            return self._drop_unknown(frame) if frame.status in _NO_SUCH_STREAM else []
        raise RemoteProtocolError(
            f"the consumer answered opcode 0x{frame.opcode:02x} with {name_of(frame.status)}; it can not follow"
        )

    def _streams_of(self, frame: Frame) -> list[ProducerStream]:
        """Return the live streams with the opaque of a response; empty if they are over."""
        return [stream for stream in self.streams.values() if stream.opaque == frame.opaque]

    def _marker_answered(self, stream: ProducerStream) -> MarkerAnswered:
        stream.unanswered_markers = max(0, stream.unanswered_markers - 1)
        return MarkerAnswered(stream)

    def _is_tolerated(self, frame: Frame) -> bool:
        """Return True if an error concerns one stream at most; general statuses do unless version 7's codes were
        negotiated.
        """
        if frame.status in _STREAM_ERRORS:
            return True
        # The consumer lacks the prepare of this commit or abort. A stream that only went silent would leave it waiting
        # for ever, and durable writes without its copy; on a new connection it fetches the prepare again.
        lacks_prepare = frame.status == Status.KEY_ENOENT and frame.opcode in _ENDS_OF_PREPARES
        return frame.status in _OLD_STREAM_ERRORS and not self.settings.v7_status_codes and not lacks_prepare

    def _drop_unknown(self, frame: Frame) -> list[Event]:
        """Close the streams that the consumer no longer has, without a STREAM_END (dcp 2.3)."""
        unknown_streams = self._streams_of(frame)
        for stream in unknown_streams:
            stream.step(SentMessage.CUT)
            del self.streams[stream.key]
        return [StreamClosed(stream) for stream in unknown_streams]


_ACK = int(SnapshotFlag.ACK)  # with plain numbers: a live change has a marker of its own
_STREAM_REQ = int(Opcode.DCP_STREAM_REQ)

# By names of their own, as members are slow to look up and a thousand streams may begin at once.
_UPR: Final = Dialect.UPR
_DCP: Final = Dialect.DCP
_BETWEEN: Final = ProducerState.BETWEEN
_END_OK: Final = SentMessage.END_OK
_CUT: Final = SentMessage.CUT
_OK: Final = EndReason.OK

CONSUMER_COMMANDS = frozenset(
    {
        Opcode.DCP_ADD_STREAM,
        Opcode.DCP_STREAM_END,
        Opcode.DCP_SNAPSHOT_MARKER,
        Opcode.DCP_MUTATION,
        Opcode.DCP_DELETION,
        Opcode.DCP_EXPIRATION,
        Opcode.DCP_BEFORE,
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
"""Requests that a producer sends and never receives."""

_STREAM_ERRORS = frozenset({Status.NOT_MY_VBUCKET, Status.DCP_STREAM_NOT_FOUND, Status.OPAQUE_NO_MATCH})
_OLD_STREAM_ERRORS = frozenset({Status.KEY_ENOENT, Status.KEY_EEXISTS})
_ENDS_OF_PREPARES = frozenset({Opcode.DCP_COMMIT, Opcode.DCP_ABORT})
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
