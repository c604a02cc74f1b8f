"""The session of a connection on which this node consumes: socket, protocol object and inbound streams together.

What arrives goes through the kernel first, which takes every change that is plainly right; where it stops, one frame
goes to the protocol object, and its events to the vbuckets. Answers leave when what they tell of is durable (`_gate`):
a producer that reads "the snapshot is here", "the state is set", and a mover that reads "the stream is open", may
rely on it. Acknowledged bytes are those that were staged: a full staging arena, or a full disk, stops the reading, and
so the producer. Source: dcp 1, 2.2, 7, 9.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy as np

from headwater.kernels import apply as kernel
from headwater.node.kv.command import NoRoom
from headwater.node.replication.inbound import InboundStream
from headwater.node.streams.session import REFUSED_ON_DCP
from headwater.protocol.consumer_events import (
    Advanced,
    Boundary,
    Changed,
    Ended,
    Event,
    Flushed,
    Marked,
    Opened,
    PositionNeeded,
    Refused,
    RollbackNeeded,
    StateWanted,
    StreamWanted,
)
from headwater.protocol.producer_events import NotDcp, PeerGone
from headwater.wire.header import HEADER_BYTES, Frame, lengths, response
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.dcp import DcpHub
    from headwater.node.kv.session import KvSession
    from headwater.protocol.consumer import Consumer
    from headwater.protocol.consumer_stream import ConsumerStream
    from headwater.protocol.position import FailoverLog

RECORDS_BYTES = 8 << 10
"""Room that one control frame may take: a rollback and two records, each with a full failover log."""
FULL_DISK_SECONDS = 0.25


class StreamListener(Protocol):
    """Who wanted the streams, where that is no mover."""

    def stream_opened(self, vb: int) -> None:
        """The producer accepted."""

    def stream_over(self, vb: int, event: Refused | Ended) -> None:
        """The stream did not come about, or ended."""

    def connection_lost(self) -> None:
        """The socket is gone, and all streams with it."""


class ConsumerSession:
    """One connection on which this node consumes.

    Attributes:
        connection: the socket; consumer: the protocol's end of it.
        streams: the inbound streams of this connection, by vbucket.
        deadline: when `tick` must be called.
        applied_changes, applied_bytes: what the kernel took since the connection was opened.
    """

    def __init__(
        self, kv: KvSession, hub: DcpHub, consumer: Consumer, *, listener: StreamListener | None = None
    ) -> None:
        self.connection = kv.connection
        self.consumer = consumer
        self.streams: dict[int, InboundStream] = {}
        self.deadline: float | None = None
        self.applied_changes = self.applied_bytes = 0
        self._kv = kv
        self._hub = hub
        self._bucket = hub.bucket
        self._committer = kv.server.committer
        self._loop = kv.server.loop
        self._name = consumer.negotiated.connection_name.encode("latin-1")
        self._gate = 0
        self._listener = listener
        hub.enter(self._name, self)

    # --- Session ----------------------------------------------------------------------------------------------------

    def receive(self, data: memoryview) -> int:
        """Take every whole frame; stops early when something pauses the connection."""
        offset, connection, frames = 0, self.connection, np.frombuffer(data, np.uint8)
        while not connection.is_paused and not connection.is_closed:
            offset = self._apply(frames, offset)
            if connection.is_paused or len(data) - offset < HEADER_BYTES:
                break
            size = lengths(data, offset).frame
            if size > len(data) - offset:
                break
            if not self._has_room(size):
                self._wait_for_room()
                break
            try:
                self._take(Frame.decode(data[offset : offset + size]))
            except NoRoom:
                self._kv.wait_for_room()
                break
            offset += size
        self._answer()
        return offset

    def pump(self) -> None:
        """Nothing is streamed from here."""

    def tick(self, now: float) -> None:
        """Bytes are to be acknowledged, or the producer was silent for too long."""
        for event in self.consumer.tick(now):
            self._handle(event)
        self._answer()

    @property
    def written_gate(self) -> int:
        """The newest batch with a key-value write that came over this connection."""
        return self._kv.written_gate

    def closed(self) -> None:
        """The socket is gone, and its streams; the replicas keep what they have."""
        for stream in tuple(self.streams.values()):
            stream.close()
        self.streams.clear()
        self._hub.leave(self._name, self)
        self._kv.closed()
        if self._listener is not None:
            self._listener.connection_lost()

    def cut(self, reason: str) -> None:
        """What was staged is lost: the streams are further than the disk. The producer is asked anew."""
        self.connection.drop(reason, fault=False)

    # --- changes ----------------------------------------------------------------------------------------------------

    def _apply(self, frames: np.ndarray[tuple[int], np.dtype[np.uint8]], offset: int) -> int:
        """Let the kernel take what it can; returns where it stopped."""
        store, table = self._bucket.store, self.consumer.table.rows
        while True:
            arena, used = store.stage_arena()
            code, end, used, count, vb = kernel.apply(
                table, store.table, store.segments, frames, offset, store.stage_slot, used, len(arena), self._now()
            )
            if count:
                self._took(int(end) - offset, int(used), int(count))
            offset = int(end)
            if code == kernel.GROW:
                store.grow(int(vb))
            elif code == kernel.ARENA_FULL:
                self._wait_for_room()
                return offset
            else:
                return offset

    def _took(self, size_bytes: int, used: int, count: int) -> None:
        self._bucket.store.stage_used(used)
        self._committer.wrote()
        self.applied_changes += count
        self.applied_bytes += size_bytes
        self.consumer.counted(size_bytes, self._loop.time())
        self._answer_markers()

    def _now(self) -> int:
        return self._bucket.now()

    def _has_room(self, size_bytes: int) -> bool:
        arena, used = self._bucket.store.stage_arena()
        return len(arena) - used >= size_bytes + RECORDS_BYTES

    def _wait_for_room(self) -> None:
        """Read on after the next commit; if the disk is full, look again and again ("never skip it", dcp 9)."""
        if not self._bucket.store.full:
            self._kv.wait_for_room()
            return
        self.connection.pause("full disk")
        self._loop.call_later(FULL_DISK_SECONDS, lambda: self.connection.resume("full disk"))

    def _answer_markers(self) -> None:
        if self.consumer.answer_markers():
            self._gate = max(self._gate, self._committer.gate())

    # --- everything else --------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        for event in self.consumer.receive_frame(frame, self._loop.time()):
            self._handle(event)
        self._answer_markers()

    def _handle(self, event: Event) -> None:
        match event:
            case StreamWanted():
                self._add(event)
            case PositionNeeded(stream=stream):
                self._ask(stream)
            case RollbackNeeded(stream=stream, seqno=seqno):
                self._roll_back(stream, seqno)
            case Opened(stream=stream, failover_log=log):
                self._follow(self.streams[stream.vbucket], log)
            case Marked(stream=stream) | Boundary(stream=stream) | Flushed(stream=stream):
                self.streams[stream.vbucket].obey(event)
            case Changed():
                self._change(event)
            case Advanced(stream=stream, seqno=seqno):
                self.streams[stream.vbucket].vbucket.pass_seqno(seqno)
                self.consumer.applied(event)
            case StateWanted():
                self._set_state(event)
            case Refused() | Ended():
                self._ended(event)
            case NotDcp(frame=frame):
                self._pass_on(frame)
            case PeerGone(silent_seconds=seconds):
                self.connection.drop(f"the producer has been silent for {seconds:g} s")

    def _add(self, wanted: StreamWanted) -> None:
        """dcp 2.2: 07 if the vbucket is not here or active, 02 if it has a stream already, whosever it is."""
        status = self.why_not(wanted.vbucket)
        if status is not None:
            self.consumer.refuse_stream(wanted, status)
        else:
            self.begin(wanted.vbucket, wanted.flags, wanted.frame)

    def why_not(self, vb: int) -> Status | None:
        """Why a vbucket can not follow anybody now; None if it can."""
        vbucket = self._bucket.vbuckets.get(vb)
        if vbucket is None or vbucket.state is State.ACTIVE:
            return Status.NOT_MY_VBUCKET
        return None if vbucket.inbound is None else Status.KEY_EEXISTS

    def begin(self, vb: int, flags: int, mover: Frame | None = None) -> InboundStream:
        """Begin a stream of a vbucket that can follow; `answer` must be called by who is not in a call of ours."""
        inbound = InboundStream(self._bucket.vbuckets[vb], self._bucket, self._vbucket_left)
        self.streams[vb] = inbound
        inbound.entry, events = self.consumer.add(vb, flags, mover)
        for event in events:
            self._handle(event)
        return inbound

    def answer(self) -> None:
        """Send what waits."""
        self._answer()
        self.connection.rearm()

    def _follow(self, inbound: InboundStream, log: FailoverLog) -> None:
        inbound.follow(log)
        self._gate = max(self._gate, inbound.vbucket.gate)
        if self._listener is not None:
            self._listener.stream_opened(inbound.vbucket.id)

    def _roll_back(self, stream: ConsumerStream, seqno: int) -> None:
        self.streams[stream.vbucket].roll_back(seqno)
        self._ask(stream)

    def _ask(self, stream: ConsumerStream) -> None:
        for event in self.consumer.ask(stream, self.streams[stream.vbucket].position):
            self._handle(event)

    def _change(self, event: Changed) -> None:
        keeps = self.consumer.settings.deleted_user_xattrs
        self.streams[event.stream.vbucket].apply(event.frame, deleted_user_xattrs=keeps)
        self._committer.wrote()
        self.consumer.applied(event)

    def _set_state(self, event: StateWanted) -> None:
        inbound = self.streams[event.stream.vbucket]
        status = inbound.set_state(event.state)
        if inbound.vbucket.state is State.ACTIVE:
            self.consumer.stop_changes(event.stream)
        self.consumer.answer_state(event, status)
        self._gate = max(self._gate, inbound.vbucket.gate)

    def close_stream(self, vb: int) -> None:
        """End a stream at both ends; nothing if there is none."""
        if (inbound := self.streams.get(vb)) is not None:
            for event in self.consumer.ask_producer_to_close(inbound.entry):
                self._handle(event)
            self.answer()

    def _ended(self, event: Refused | Ended) -> None:
        vb = event.stream.vbucket
        inbound = self.streams.pop(vb, None)
        if inbound is not None:
            inbound.close()
        if self._listener is not None:
            self._listener.stream_over(vb, event)

    def _vbucket_left(self, inbound: InboundStream, reason: str) -> None:
        """The vbucket wants no more of the stream."""
        if self.streams.get(inbound.vbucket.id) is inbound:
            for event in self.consumer.close(inbound.entry):
                self._handle(event)
            self._answer()

    def _pass_on(self, frame: Frame) -> None:
        """What is no DCP: the key-value session answers, but for what would change whose connection this is."""
        self._answer()
        if not self.consumer.settings.takes_movers:
            self.connection.drop(f"opcode 0x{frame.opcode:02x} came from a producer that this node called")
        elif frame.opcode in REFUSED_ON_DCP and not frame.is_response:
            self.connection.send(response(frame, REFUSED_ON_DCP[frame.opcode]).encode())
        else:
            self._kv.handle(frame)

    def _answer(self) -> None:
        """Send what the protocol object has to say, once it is true on disk as well."""
        data = self.consumer.data_to_send()
        if data:
            self.connection.send(data, self._gate)
        self._gate = 0 if data else self._gate
        self.deadline = self.consumer.deadline

    def stats(self) -> Iterable[tuple[str, str]]:
        """This connection's part of STAT dcp."""
        consumer, window = self.consumer, self.consumer.window
        yield "type", "consumer"
        yield "peer", self.connection.peer
        yield "num_streams", str(len(self.streams))
        yield "max_buffer_bytes", str(window.window_bytes)
        yield "unacked_bytes", str(window.owed_bytes)
        yield "total_acked_bytes", str(window.acknowledged_bytes)
        yield "total_bytes_received", str(window.received_bytes)
        for vb, stream in self.streams.items():
            entry = consumer.streams.get(vb)
            yield f"stream_{vb}_state", entry.state.value if entry else "dead"
            yield f"stream_{vb}_opaque", str(stream.entry.opaque)
            yield f"stream_{vb}_flags", f"0x{stream.entry.flags:x}"
            yield f"stream_{vb}_last_received_seqno", str(stream.vbucket.high_seqno)
            yield f"stream_{vb}_cur_snapshot_start", str(stream.vbucket.snapshot_start)
            yield f"stream_{vb}_cur_snapshot_end", str(stream.vbucket.snapshot_end)
            yield f"stream_{vb}_rollbacks", str(stream.rollbacks)
