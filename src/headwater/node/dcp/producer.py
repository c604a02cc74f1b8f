"""The session of a DCP connection on which this node produces: socket, protocol object and streams together.

Incoming bytes go to the protocol object; the vbuckets answer its events. Output is pulled: when the connection's queue
is empty it calls `pump`, and the streams that have changes to send take turns, an arena's worth each. So a slow client
costs views of the store and one arena of bytes, and no queue grows. Source: dcp 1, 8.6, 13.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from heapq import nlargest
from typing import TYPE_CHECKING

from headwater.node.dcp.end import DcpEnd
from headwater.node.dcp.relay import WINDOW_BYTES, StreamRelay
from headwater.node.kv.rights import Rule
from headwater.node.refused import NoRoom
from headwater.node.streams.encoding import Encoding, encoding_of
from headwater.node.streams.handover import Handover
from headwater.node.streams.round_robin import RoundRobin
from headwater.node.streams.stream import Stream
from headwater.node.vbucket.collection_events import EVERYTHING, EVERYTHING_FLAT, PLAIN, Wanted
from headwater.protocol.dcp.negotiation import SYNC_WRITES
from headwater.protocol.dcp.producer import Producer
from headwater.protocol.dcp.producer_events import (
    Event,
    FailoverLogRequested,
    MarkerAnswered,
    NotDcp,
    PreparesAcknowledged,
    StateAnswered,
    StreamClosed,
    StreamRequested,
)
from headwater.protocol.dcp.stream_request import PLAIN_REQUEST_BYTES, Facts, StreamFilter
from headwater.protocol.end import PeerGone
from headwater.wire.dcp import EndReason, OpenFlag, StreamFlag
from headwater.wire.header import Frame
from headwater.wire.manifest import EMPTY
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import REPLICATE, STREAM
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.streams.dcp_hub import DcpHub
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.dcp.producer_stream import ProducerStream


STREAM_BYTES = 1024
"""The approximate memory of a stream (measured as the growth of `resident` by ten thousand streams)."""
END_BYTES = 96
"""The approximate memory of a STREAM_END that waits for the window."""

ANSWERS_BYTES_MAX = 64 << 10
"""The most bytes of answers that gather before they are sent: a request of 24 bytes may get a whole failover log."""

STREAMS_OPENED_AT_ONCE = 32
"""After opening so many streams, the session sends changes: opening them took as long as receiving an arena's worth."""

LOOKED_AT = 64
"""The number of streams in which `oldest_unsent_ns` looks: a scrape of metrics must not delay all connections."""

TAKEOVER = int(StreamFlag.TAKEOVER)

_OF_STREAMS = frozenset({Opcode.DCP_CLOSE_STREAM, Opcode.DCP_SEQNO_ACKNOWLEDGED})
"""The messages of a client about an open stream, which may be another worker's."""

_PREPARES = Rule(int(STREAM | REPLICATE))
"""The rights of a user who gets prepares of durable writes."""


class ProducerSession(DcpEnd[Producer]):
    """One connection on which this node produces.

    Args:
        kv: the session with which the connection began.
        hub: the bucket's DCP connections.
        producer: the protocol's end of the connection.
        open_flags: the OpenFlag bits of the OPEN.
        opened: the OPEN, to be sent to other workers too; None if there are no other workers.

    Attributes:
        producer: the protocol's end of the connection.
        streams: the open streams, by their entry in the protocol object.
    """

    is_producer = True
    _needs = STREAM

    def __init__(
        self, kv: Session, hub: DcpHub, producer: Producer, open_flags: int, opened: Frame | None = None
    ) -> None:
        super().__init__(kv, hub, producer)
        self.producer = producer
        self.streams: dict[ProducerStream, Stream] = {}
        self._open_flags = open_flags
        self._skip_deletes = bool(open_flags & OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL)
        self._latest_encoding: tuple[object, Encoding] | None = None
        self._turns: RoundRobin[Stream] = RoundRobin()
        self._handovers: set[Handover] = set()
        self._opened = 0  # streams opened since changes were sent
        self._others_first = False  # True if, in the next turn, the streams of other workers use the window first
        self._relay = StreamRelay(kv, producer, self, opened) if kv.relays and opened is not None else None
        if kv.connection.is_inner:  # another worker keeps the account of the client's window
            producer.settings.window_bytes = WINDOW_BYTES
            producer.flow.resize(WINDOW_BYTES)

    # --- what the connection calls ----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send changes of the streams: at most as much as the output buffer, the arena, holds.

        The streams take turns; a stream with enough changes fills the arena alone.
        """
        super().pump()
        relay, sent_bytes = self._relay, self.producer.flow.sent_bytes
        # This worker's streams and the relayed ones take turns at being first: otherwise, with a small window, the
        # first side would always use all of it, and the other would starve.
        if relay is not None and self._others_first:
            relay.pump()
        self._pump_own()
        if relay is not None and not self._others_first:
            relay.pump()
        if self.producer.flow.sent_bytes != sent_bytes:  # a turn that sent nothing, for a full window, does not count
            self._others_first = not self._others_first
        # Otherwise there is no output, no deadline has moved, and no relayed message was kept.
        if self.producer.waiting_bytes or self._handovers or relay is not None:
            self._send_output()

    def _pump_own(self) -> None:
        outlet, flow = self._hub.outlet, self.producer.flow
        outlet.begin(self.connection, self.connection.turn_is_over)
        self._turns.fill(outlet, lambda: flow.is_full)
        outlet.flush()

    def tick(self, now: float) -> None:
        """Send a no-op if that is due, drop the connection if the consumer was silent for too long, and check the
        deadlines of handovers and of other workers.
        """
        for event in self.producer.tick(now):
            self._handle(event)
        for handover in tuple(self._handovers):
            handover.tick(now)
        if self._relay is not None:
            self._relay.tick(now)
        self._answer()

    # --- requests ---------------------------------------------------------------------------------------------------

    def users_changed(self) -> None:
        """End the streams with collections that the user may no longer read, and the takeovers of a user who may no
        longer take vbuckets over.
        """
        super().users_changed()
        if self.connection.is_closed:
            return
        for entry, stream in tuple(self.streams.items()):
            is_denied = self._denied(entry.accepted.filter) is not None
            if is_denied or self._lacks_right_to_prepares or self._lacks_right_to_take_over(stream):
                stream.end(EndReason.LOST_PRIVILEGES)
        self._answer()

    def _take_many(self, data: memoryview, offset: int) -> int:
        """Handle ordinary stream requests, which come by the thousand, directly from the bytes."""
        connection, now = self.connection, self._loop.time()
        while not connection.is_paused and not connection.is_closed:
            request = self.producer.receive_plain_request(data, offset, now)
            if request is None:
                break
            offset += PLAIN_REQUEST_BYTES
            if self._relay is None or not self._relay.takes(request.frame):
                self._open_stream(request)
            self._keep_busy()
        return offset

    def _take(self, frame: Frame) -> None:
        # The answer to a state makes the vbucket dead here, which needs a record. Without room for the record the
        # answer waits; otherwise it would fail half-way.
        if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and not self._bucket.has_room_for_record():
            raise NoRoom
        if frame.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED and not self._may(frame):
            return  # the message may commit other clients' writes
        if frame.opcode == Opcode.DCP_CONTROL and frame.key == SYNC_WRITES.encode() and not self._may(frame, _PREPARES):
            return  # prepares are writes that are not confirmed, and may be aborted
        if self._relay is not None and frame.opcode in _OF_STREAMS and self._is_of_others(self._relay, frame):
            self.producer.noop.heard(self._loop.time())
            return
        events = self.producer.receive_frame(frame, self._loop.time())
        for event in events:
            self._handle(event)
        if self._relay is not None and frame.is_response:
            self._relay.answered(frame)
        elif self._relay is not None and frame.opcode == Opcode.DCP_CONTROL and events:
            self._relay.control(frame)
        self._keep_busy()

    def _is_of_others(self, relay: StreamRelay, frame: Frame) -> bool:
        """Relay a frame if its vbucket is another worker's; return False if this worker must handle the frame."""
        if frame.is_response:
            return False
        if frame.opcode == Opcode.DCP_CLOSE_STREAM:
            return relay.takes(frame)
        return self.producer.settings.acknowledges and relay.tells(frame)

    def _keep_busy(self) -> None:
        """Send changes between stream requests, so that a consumer that requests a thousand streams gets changes before
        the last one is open.
        """
        if self._opened < STREAMS_OPENED_AT_ONCE and self.producer.waiting_bytes <= ANSWERS_BYTES_MAX:
            return
        self._answer()
        self._opened = 0
        if self._turns and self.connection.writable and not self.connection.is_paused:
            self.pump()

    def _handle(self, event: Event) -> None:
        match event:
            case StreamRequested():
                if self._relay is None or not self._relay.takes(event.frame):
                    self._open_stream(event)
            case StreamClosed(stream=entry):
                if (stream := self.streams.get(entry)) is not None:
                    stream.close()
            case MarkerAnswered(stream=entry):
                self._tell_stream(entry, lambda stream: stream.marker_answered())
            case StateAnswered(stream=entry, status=status):
                self._tell_stream(entry, lambda stream: stream.state_answered(status))
            case PreparesAcknowledged(stream=entry, seqno=seqno):
                name = self.producer.settings.consumer_name
                self._bucket.durable_writes.acknowledged(entry.vbucket, name, seqno)
            case FailoverLogRequested(frame=frame):
                if self._relay is not None and self._relay.takes(frame):
                    return
                self.producer.answer_log(event, self._failover_log(frame.vbucket))
            case NotDcp(frame=frame):
                self._pass_on(frame)
            case PeerGone():
                self.connection.drop(f"the consumer {event}")

    def _open_stream(self, request: StreamRequested) -> None:
        if request.request.flags & TAKEOVER and not self._may(request.frame):
            return
        if self.producer.settings.sync_writes and not self._may(request.frame, _PREPARES):
            return
        vbucket = self._bucket.vbuckets.get(request.request.vbucket)
        if vbucket is None:
            self.producer.answer_stream(request, None, b"")
            return
        # A request that starts before damaged rows is refused, and a request that starts after them is served: a stream
        # must not skip rows that can't be read.
        if self._bucket.store.quarantine.after(vbucket.id, request.request.start_seqno):
            reason = f"changes after seqno {request.request.start_seqno} are damaged on disk and can not be read"
            self.producer.refuse(request.frame, Status.EINTERNAL, reason)
            return
        # A reader of this copy would get snapshots that seem whole but lack the refused change, and would resume after
        # it at the owner.
        if vbucket.refused_changes and vbucket.state is not State.ACTIVE:
            reason = f"this copy refused {vbucket.refused_changes} changes and lacks them: read its owner"
            self.producer.refuse(request.frame, Status.ETMPFAIL, reason)
            return
        # The answer has the failover log, and must not have a branch that a crash could undo: the consumer would later
        # name a uuid that no node knows.
        self._hold_until(vbucket.gate)
        entry = self.producer.answer_stream(request, self._facts(vbucket), vbucket.failover.encode())
        if entry is None:
            return
        if self.producer.settings.sync_writes:
            name, begins_at = self.producer.settings.consumer_name, entry.accepted.start_seqno
            # Only an accepted stream counts; its start says which prepares the replica still has.
            self._bucket.durable_writes.follows_from(vbucket.id, name, begins_at)
        stream = Stream(
            vbucket,
            self._bucket.store,
            self.producer,
            entry,
            self._encoding(entry),
            streamed=self._wanted(entry),
            skip_deletes=self._skip_deletes,
            ready=self._ready,
            ended=self._ended,
            handover=self._handover(vbucket) if entry.flags & TAKEOVER else None,
        )
        self.streams[entry] = stream
        self._opened += 1
        self._ready(stream)

    def _facts(self, vbucket: VBucket) -> Facts:
        # The durable seqno replaces the high seqno: changes that are not on disk must not decide about a rollback,
        # because after a crash their seqnos may belong to other changes.
        durable, collections = vbucket.durable_seqno, vbucket.collections
        is_mixed = self._bucket.store.index.is_mixed(vbucket.id)
        return Facts(
            state=vbucket.state,
            high_seqno=durable,
            purge_seqno=vbucket.purge_seqno,
            failover_log=vbucket.failover.entries,
            # Check 15 (dcp 2.4): there is no consistent state yet that could be sent.
            receives_first_snapshot=vbucket.snapshot_end > 0 and vbucket.complete_seqno == 0,
            is_being_handed_over=vbucket.handover is not None,
            is_fenced=vbucket.id in self._bucket.fenced,
            manifest=collections.at(durable) if is_mixed else EMPTY,
            last_seqno_of=self._last_seqno_of(vbucket) if is_mixed else None,
            denied=None if self._kv.access.places is None else self._denied,
            # A replica's stream never waits for durable writes: they need the acknowledgements that come with this
            # stream.
            is_settled=None if self.producer.settings.sync_writes else partial(self._is_settled, vbucket),
        )

    def _is_settled(self, vbucket: VBucket, collections: Collection[int] | None) -> bool:
        if vbucket.state is not State.ACTIVE:
            return True
        return self._bucket.durable_writes.is_settled(vbucket.id, collections)

    def _denied(self, choice: StreamFilter) -> tuple[str, Status] | None:
        """Return None if the user may read the collections that a stream chooses; otherwise the reason and the status
        of the refusal.
        """
        places = self._kv.access.places
        manifest = self._bucket.collections.manifest
        if places is None:
            return None if self._kv.access.rights & STREAM else ("it needs the role stream", Status.EACCESS)
        if self.producer.negotiated.collections:
            return places.denied(manifest, choice.collections, choice.scope)
        if places.in_collection(manifest, 0) & STREAM:
            return None
        return "the default collection needs the role stream in it", Status.EACCESS

    @property
    def _lacks_right_to_prepares(self) -> bool:
        """True if the consumer requested prepares, and the user has lost the right to them."""
        return self.producer.settings.sync_writes and bool(_PREPARES.privilege & ~self._kv.access.rights)

    def _lacks_right_to_take_over(self, stream: Stream) -> bool:
        """Return True if a stream takes its vbucket over, and the user has lost the right to that.

        A handover that has made the vbucket dead here goes on: if it ended, no node would serve the vbucket.
        """
        is_takeover = stream.handover is not None and stream.vbucket.state is not State.DEAD
        return is_takeover and not self._kv.access.rights & REPLICATE

    def _last_seqno_of(self, vbucket: VBucket) -> Callable[[StreamFilter | None], int]:
        store, aware = self._bucket.store, self.producer.negotiated.collections
        flat = aware and self.producer.settings.flat_events

        def last_seqno(choice: StreamFilter | None) -> int:
            if self.producer.settings.sync_writes:  # a consumer that has the prepare needs its abort
                streamed = Wanted(aware, prepares=True, modifications=flat)
            else:
                streamed = (
                    PLAIN if choice is None else Wanted(aware, choice.collections, choice.scope, modifications=flat)
                )
            return store.newest_seqno(vbucket.id, vbucket.collections.choice(streamed, vbucket.durable_seqno))

        return last_seqno

    def _wanted(self, entry: ProducerStream) -> Wanted:
        choice, aware = entry.accepted.filter, self.producer.negotiated.collections
        flat = aware and self.producer.settings.flat_events
        if self.producer.settings.sync_writes:
            return Wanted(aware, prepares=True, modifications=flat)
        if not choice.chooses:  # a shared object for all of a thousand streams
            if flat:
                return EVERYTHING_FLAT
            return EVERYTHING if aware else PLAIN
        return Wanted(aware, choice.collections, choice.scope, modifications=flat)

    def _encoding(self, entry: ProducerStream) -> Encoding:
        """Return the encoding for a new stream: the same object as for the last stream, unless a CONTROL, the stream id
        or the dialect has changed.
        """
        producer = self.producer
        key = (producer.controls_obeyed, entry.framing, entry.dialect)
        if self._latest_encoding is None or self._latest_encoding[0] != key:
            negotiated, settings = producer.negotiated, producer.settings
            encoding = encoding_of(negotiated, settings, self._open_flags, entry.framing, entry.dialect)
            self._latest_encoding = (key, encoding)
        return self._latest_encoding[1]

    def _handover(self, vbucket: VBucket) -> Handover:
        handover = Handover(vbucket, self._bucket, self._loop.time, self._hold_until, self._hub.takeover_seconds_max)
        self._handovers.add(handover)
        return handover

    def _tell_stream(self, entry: ProducerStream, what: Callable[[Stream], None]) -> None:
        if (stream := self.streams.get(entry)) is not None:
            what(stream)

    def _failover_log(self, vb: int) -> bytes | None:
        """Return a vbucket's encoded failover log; None if the vbucket is not here. Later output waits until the log is
        durable.
        """
        vbucket = self._bucket.vbuckets.get(vb)
        if vbucket is None:
            return None
        self._hold_until(vbucket.gate)
        return vbucket.failover.encode()

    def _refuse(self, frame: Frame, status: Status, reason: str) -> None:
        self.producer.refuse(frame, status, reason)

    def _send_output(self) -> None:
        """Send the output of the protocol object. Then report the memory of open streams, of stream ends that wait for
        the window, and of relayed messages.
        """
        super()._answer()
        others = 0 if self._relay is None else self._relay.memory_bytes
        self.connection.keeps(STREAM_BYTES * len(self.streams) + END_BYTES * self.producer.ends_waiting + others)

    def say(self) -> None:
        """Send the output of the protocol object, and request a `pump` if changes wait."""
        self._answer()

    def _answer(self) -> None:
        if self._relay is not None:
            self._relay.flush()
        self._send_output()
        has_more = self._turns or (self._relay is not None and self._relay.is_ready)
        if has_more and not self.producer.flow.is_full:
            self.connection.wake()

    def _next_deadline(self) -> float | None:
        if not self._handovers and self._relay is None:
            return self.producer.deadline
        waits = [handover.deadline for handover in self._handovers]
        if self._relay is not None:
            waits.append(self._relay.deadline)
        return min((moment for moment in (self.producer.deadline, *waits) if moment is not None), default=None)

    # --- streams ----------------------------------------------------------------------------------------------------

    def _close_streams(self) -> None:
        for stream in tuple(self.streams.values()):
            stream.close()
        if self._relay is not None:
            self._relay.close()
        self._hub.outlet.leave(self.connection)

    def _ready(self, stream: Stream) -> None:
        """Add a stream with changes to send to the end of the turn queue."""
        self._turns.add(stream)
        if not self.producer.flow.is_full:
            self.connection.wake()

    def _ended(self, stream: Stream) -> None:
        """Forget a stream that ended, and send its last output at once."""
        del self.streams[stream.entry]
        self._turns.discard(stream)
        if stream.handover is not None:
            self._handovers.discard(stream.handover)
        self.connection.wake()

    def stream_of(self, vbucket: VBucket) -> Stream | None:
        """Return the stream on which a vbucket is sent; None if there is none."""
        return next((stream for stream in self.streams.values() if stream.vbucket is vbucket), None)

    def backlog(self) -> Iterable[int]:
        """Yield the number of changes that each stream still has to send."""
        return [stream.items_remaining for stream in self.streams.values()]

    def oldest_unsent_ns(self) -> int | None:
        """Return the Unix time in nanoseconds of the oldest unsent change; None if there is none. Only the LOOKED_AT
        streams with the most unsent changes count.
        """
        most = nlargest(LOOKED_AT, self.streams.values(), key=lambda stream: stream.items_remaining)
        return min((nanoseconds for each in most if (nanoseconds := each.oldest_unsent_ns()) is not None), default=None)

    def stats(self) -> Iterable[tuple[str, str]]:
        """Return this connection's part of STAT dcp."""
        flow, settings = self.producer.flow, self.producer.settings
        yield "type", "producer"
        yield "flags", f"0x{self._open_flags:x}"
        yield "peer", self.connection.peer
        yield "num_streams", str(len(self.streams) + (0 if self._relay is None else self._relay.stream_count))
        yield "max_buffer_bytes", str(flow.window_bytes)
        yield "unacked_bytes", str(flow.outstanding_bytes)
        yield "total_bytes_sent", str(flow.sent_bytes)
        yield "total_acked_bytes", str(flow.acknowledged_bytes)
        yield "paused", str(flow.is_full).lower()
        yield "noop_enabled", str(settings.enable_noop).lower()
        yield "noop_tx_interval", f"{settings.noop_interval_seconds:g}"
        yield "priority", settings.priority
        for stream in self.streams.values():
            for name, value in _stream_stats(stream):
                yield f"stream_{stream.vbucket.id}_{name}", value


def _stream_stats(stream: Stream) -> Iterable[tuple[str, str]]:
    accepted = stream.entry.accepted
    yield "state", stream.phase.value
    yield "opaque", str(stream.entry.opaque)
    yield "flags", f"0x{int(accepted.flags):x}"
    yield "start_seqno", str(accepted.start_seqno)
    yield "end_seqno", str(accepted.end_seqno)
    yield "last_sent_seqno", str(stream.entry.last_seqno)
    yield "last_sent_snap_end_seqno", str(stream.entry.snapshot_end_seqno)
    yield "items_sent", str(stream.sent_changes)
    yield "items_remaining", str(stream.items_remaining)
