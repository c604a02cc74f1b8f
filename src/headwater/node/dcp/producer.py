"""The session of a DCP connection on which this node produces: socket, protocol object and streams together.

Incoming bytes go to the protocol object; its events are answered from the vbuckets. Output is pulled: when the
connection's queue is empty it calls `pump`, and the streams with changes to send take turns, an arena's worth each. So
a slow client occupies views of the store and one arena of bytes, and no queue grows. Source: dcp 1, 8.6, 13.
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
"""About what a stream takes, measured: `resident` before and after ten thousand of them."""
END_BYTES = 96
"""About what the end of a stream takes that waits for the window."""

ANSWERS_BYTES_MAX = 64 << 10
"""So much may gather before it is sent: a request of 24 bytes can ask for a failover log."""

STREAMS_OPENED_AT_ONCE = 32
"""Then it is time to send something: opening so many takes as long as receiving an arena's worth."""

LOOKED_AT = 64
"""In so many streams the oldest change is looked for that is not sent: a scrape must not keep everybody waiting."""

TAKEOVER = int(StreamFlag.TAKEOVER)

_OF_STREAMS = frozenset({Opcode.DCP_CLOSE_STREAM, Opcode.DCP_SEQNO_ACKNOWLEDGED})
"""The words of a client about a stream that it has, be that another worker's."""

_PREPARES = Rule(int(STREAM | REPLICATE))
"""The needs of who is sent prepares of durable writes."""


class ProducerSession(DcpEnd[Producer]):
    """One producer connection.

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
        self._opened = 0  # streams, since something was sent
        self._others_first = False  # in this turn, who else had to wait for what is left of a small window
        self._relay = StreamRelay(kv, producer, self, opened) if kv.relays and opened is not None else None
        if kv.connection.is_inner:  # the client's window is another worker's to keep
            producer.settings.window_bytes = WINDOW_BYTES
            producer.flow.resize(WINDOW_BYTES)

    # --- what the connection calls ----------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send at most an arena's worth of changes: streams take turns, and one that can fill an arena fills it
        alone.
        """
        super().pump()
        relay, sent_bytes = self._relay, self.producer.flow.sent_bytes
        # The two sides take turns at being first: with a small window the first one would use all of it each time, and
        # the other would starve.
        if relay is not None and self._others_first:
            relay.pump()
        self._pump_own()
        if relay is not None and not self._others_first:
            relay.pump()
        if self.producer.flow.sent_bytes != sent_bytes:  # a turn in which a full window let nothing through is nobody's
            self._others_first = not self._others_first
        # Else nothing is to be said, no deadline has moved, and nothing of others was kept.
        if self.producer.waiting_bytes or self._handovers or relay is not None:
            self._send_output()

    def _pump_own(self) -> None:
        outlet, flow = self._hub.outlet, self.producer.flow
        outlet.begin(self.connection, self.connection.turn_is_over)
        self._turns.fill(outlet, lambda: flow.is_full)
        outlet.flush()

    def tick(self, now: float) -> None:
        """Send a no-op that is due, or end the connection of a consumer that was silent for too long."""
        for event in self.producer.tick(now):
            self._handle(event)
        for handover in tuple(self._handovers):
            handover.tick(now)
        if self._relay is not None:
            self._relay.tick(now)
        self._answer()

    # --- requests ---------------------------------------------------------------------------------------------------

    def users_changed(self) -> None:
        """End the streams with collections that the user may no longer read."""
        super().users_changed()
        if self.connection.is_closed:
            return
        for entry, stream in tuple(self.streams.items()):
            if self._denied(entry.accepted.filter) is not None or self._lacks_right_to_prepares:
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
        # The answer to a state makes the vbucket dead here, which needs a record; without room the answer waits rather
        # than fail half-way.
        if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE and not self._bucket.has_room_for_record():
            raise NoRoom
        if frame.opcode == Opcode.DCP_SEQNO_ACKNOWLEDGED and not self._may(frame):
            return  # writes of others are committed by it
        if frame.opcode == Opcode.DCP_CONTROL and frame.key == SYNC_WRITES.encode() and not self._may(frame, _PREPARES):
            return  # prepares are documents that nobody was told of, and may never be
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
        """Relay a frame about a vbucket of another worker; return False if it is about one of this worker's."""
        if frame.is_response:
            return False
        if frame.opcode == Opcode.DCP_CLOSE_STREAM:
            return relay.takes(frame)
        return self.producer.settings.acknowledges and relay.tells(frame)

    def _keep_busy(self) -> None:
        """Send changes while more streams are opened, so that a consumer that requests a thousand need not wait for the
        last.
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
        # Refused from before the damage and served from behind it: a stream must not pass over rows that nobody can
        # read.
        if self._bucket.store.quarantine.after(vbucket.id, request.request.start_seqno):
            reason = f"changes after seqno {request.request.start_seqno} are damaged on disk and can not be read"
            self.producer.refuse(request.frame, Status.EINTERNAL, reason)
            return
        # A reader of this copy would get whole-looking snapshots without the refused change, and resume behind it at
        # the owner.
        if vbucket.refused_changes and vbucket.state is not State.ACTIVE:
            reason = f"this copy refused {vbucket.refused_changes} changes and lacks them: read its owner"
            self.producer.refuse(request.frame, Status.ETMPFAIL, reason)
            return
        # The answer carries the failover log. A branch that a crash takes back must never have been given out: a
        # consumer would name a uuid that nobody knows.
        self._hold_until(vbucket.gate)
        entry = self.producer.answer_stream(request, self._facts(vbucket), vbucket.failover.encode())
        if entry is None:
            return
        if self.producer.settings.sync_writes:
            name, begins_at = self.producer.settings.consumer_name, entry.accepted.start_seqno
            # Only a stream that was accepted counts, and its start is the truth about what the replica still has.
            self._bucket.durable_writes.follows_from(vbucket.id, name, begins_at)
        stream = Stream(
            vbucket,
            self._bucket.store,
            self.producer,
            entry,
            self._encoding(entry),
            wanted=self._wanted(entry),
            skip_deletes=self._skip_deletes,
            ready=self._ready,
            ended=self._ended,
            handover=self._handover(vbucket) if entry.flags & TAKEOVER else None,
        )
        self.streams[entry] = stream
        self._opened += 1
        self._ready(stream)

    def _facts(self, vbucket: VBucket) -> Facts:
        # The durable seqno stands for the high one: what is not on the disk must not decide a rollback, since a crash
        # gives those seqnos another content.
        durable, collections = vbucket.durable_seqno, vbucket.collections
        is_mixed = self._bucket.store.index.is_mixed(vbucket.id)
        return Facts(
            state=vbucket.state,
            high_seqno=durable,
            purge_seqno=vbucket.purge_seqno,
            failover_log=vbucket.failover.entries,
            # Check 15 (dcp 2.4): there is no whole state yet that could be sent.
            receives_first_snapshot=vbucket.snapshot_end > 0 and vbucket.complete_seqno == 0,
            is_being_handed_over=vbucket.handover is not None,
            is_fenced=vbucket.id in self._bucket.fenced,
            manifest=collections.at(durable) if is_mixed else EMPTY,
            last_seqno_of=self._last_seqno_of(vbucket) if is_mixed else None,
            denied=None if self._kv.access.places is None else self._denied,
            # A replica's own stream brings the acknowledgements that settle these writes, so it never waits for them.
            is_settled=None if self.producer.settings.sync_writes else partial(self._is_settled, vbucket),
        )

    def _is_settled(self, vbucket: VBucket, collections: Collection[int] | None) -> bool:
        if vbucket.state is not State.ACTIVE:
            return True
        return self._bucket.durable_writes.is_settled(vbucket.id, collections)

    def _denied(self, choice: StreamFilter) -> tuple[str, Status] | None:
        """Return the reason and the status if the user may not read the collections that a stream chooses; None if the
        user may.
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

    def _last_seqno_of(self, vbucket: VBucket) -> Callable[[StreamFilter | None], int]:
        store, aware = self._bucket.store, self.producer.negotiated.collections
        flat = aware and self.producer.settings.flat_events

        def last_seqno(choice: StreamFilter | None) -> int:
            if self.producer.settings.sync_writes:  # an abort is news for who holds its prepare
                wanted = Wanted(aware, prepares=True, modifications=flat)
            else:
                wanted = (
                    PLAIN if choice is None else Wanted(aware, choice.collections, choice.scope, modifications=flat)
                )
            return store.newest_seqno(vbucket.id, vbucket.collections.choice(wanted, vbucket.durable_seqno))

        return last_seqno

    def _wanted(self, entry: ProducerStream) -> Wanted:
        choice, aware = entry.accepted.filter, self.producer.negotiated.collections
        flat = aware and self.producer.settings.flat_events
        if self.producer.settings.sync_writes:
            return Wanted(aware, prepares=True, modifications=flat)
        if not choice.chooses:  # no object of its own for each of a thousand streams
            if flat:
                return EVERYTHING_FLAT
            return EVERYTHING if aware else PLAIN
        return Wanted(aware, choice.collections, choice.scope, modifications=flat)

    def _encoding(self, entry: ProducerStream) -> Encoding:
        """Return the encoding for a new stream: that of the last stream, or a new one after a CONTROL."""
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
        """Return a vbucket's failover log, encoded; the answer with it waits until the record that contains it is
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
        """Send the output of the protocol object; count the memory of open streams, and of stream ends that wait for
        the window.
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
        return next((each for each in self.streams.values() if each.vbucket is vbucket), None)

    def backlog(self) -> Iterable[int]:
        """Yield the number of changes that each stream still has to send."""
        return [stream.items_remaining for stream in self.streams.values()]

    def oldest_unsent_ns(self) -> int | None:
        """Return the Unix time in nanoseconds of the oldest unsent change; only the LOOKED_AT streams with the most
        changes count.
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
