"""The session of a connection on which this node consumes: socket, protocol object and inbound streams together.

The kernel handles incoming bytes first, and stages every change that is in order. Where the kernel stops, one frame
goes to the protocol object, and its events go to the vbuckets. An answer is sent once the change that it confirms is
durable (`_gate`), so a producer may rely on the answers "snapshot received" and "state set", and a mover on "stream
open". Bytes are acknowledged once they are staged: a full staging arena, or a full disk, stops this node from reading,
and thereby the producer from sending. Source: dcp 1, 2.2, 7, 9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from headwater.errors import DiskFull, RemoteProtocolError, StorageError
from headwater.node.committer import FULL_DISK_SECONDS
from headwater.node.connections.inbox import whole_frame
from headwater.node.dcp.consumer_relay import ConsumerRelay
from headwater.node.dcp.end import DcpEnd
from headwater.node.dcp.inbound import InboundStream
from headwater.node.dcp.intake import Intake
from headwater.node.refused import NoRoom
from headwater.node.reporting.log_lines import event as log_event
from headwater.node.storage.staging import ArenaFull
from headwater.node.vbucket.prepares import Key, key_of
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.consumer_changes import CHANGES
from headwater.protocol.dcp.events import (
    Advanced,
    Boundary,
    Changed,
    DurabilityChanged,
    Ended,
    Event,
    Flushed,
    ManifestChanged,
    Marked,
    Opened,
    PositionNeeded,
    Refused,
    RollbackNeeded,
    StateWanted,
    StreamWanted,
)
from headwater.protocol.dcp.producer_events import NotDcp
from headwater.protocol.end import PeerGone
from headwater.wire.dcp import seqno_of
from headwater.wire.header import KEY_BYTES_MAX, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import REPLICATE
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.streams.dcp_hub import DcpHub
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.dcp.consumer_stream import ConsumerStream
    from headwater.protocol.dcp.position import FailoverLog

RECORDS_BYTES = 8 << 10
"""The room that one control frame may need in the arena: a rollback and two records with full failover logs."""
SEQNO_BYTES = 8
LACKED = CHANGES | {Opcode.DCP_SYSTEM_EVENT, Opcode.DCP_PREPARE, Opcode.DCP_COMMIT, Opcode.DCP_ABORT}
NAMES_ITS_PREPARE = {Opcode.DCP_COMMIT, Opcode.DCP_ABORT}
"""Messages whose extras begin with the seqno of the prepare; their own seqno comes next."""
WHY_NOT = {
    Status.NOT_MY_VBUCKET: "the vbucket is not here, or it is active",
    Status.KEY_EEXISTS: "the vbucket follows a producer already",
}
"""The text for each status that `why_not` returns."""

log: Final = logging.getLogger(__name__)


class StreamListener(Protocol):
    """The owner of the streams that this node opened itself, without a mover."""

    def stream_opened(self, vbucket: int) -> None:
        """Note that the producer accepted a stream."""

    def fetches_again(self, vbucket: int, seqno: int) -> bool:
        """Return True if the owner will open the vbucket's stream again, to receive the refused change after `seqno`
        once more; the caller then closes the present stream.
        """

    def stream_over(self, vbucket: int, event: Refused | Ended) -> None:
        """Note that the producer refused or ended a stream."""

    def connection_lost(self) -> None:
        """Note that the socket is closed, and all streams with it."""


class ConsumerSession(DcpEnd[Consumer]):
    """One connection on which this node consumes.

    Args:
        kv: the session with which the connection began.
        hub: the bucket's DCP connections.
        consumer: the protocol's end of the connection.
        listener: the owner of the streams on a connection that this node opened; None on a client's connection.
        opened: the client's OPEN, to be sent to other workers too; None on a connection that this node opened.

    Attributes:
        consumer: the protocol's end of the connection.
        streams: the inbound streams of this connection, by vbucket.
        intake: stages changes in bulk.
    """

    is_producer = False
    _needs = REPLICATE

    def __init__(
        self,
        kv: Session,
        hub: DcpHub,
        consumer: Consumer,
        *,
        listener: StreamListener | None = None,
        opened: Frame | None = None,
    ) -> None:
        super().__init__(kv, hub, consumer)
        self.consumer = consumer
        self.streams: dict[int, InboundStream] = {}
        self.intake: Final = Intake(self._bucket, consumer, self.connection)
        self._gaps: set[int] = set()  # vbuckets that refused a change and lack it
        self._committer = kv.server.committer
        self._listener = listener
        self._relay = ConsumerRelay(kv, consumer, self, opened) if kv.relays and opened is not None else None

    # --- what the connection calls ----------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Acknowledge bytes if that is due, or drop the connection if the producer was silent for too long."""
        for event in self.consumer.tick(now):
            self._handle(event)
        self._answer()

    def _close_streams(self) -> None:
        """Close all streams; the replicas keep their documents."""
        for stream in tuple(self.streams.values()):
            stream.close()
        self.streams.clear()
        if self._relay is not None:
            self._relay.close()

    def users_changed(self) -> None:
        """Look up the user's rights again; do nothing on a connection that this node opened, which has no user."""
        if self._listener is None:
            super().users_changed()

    def closed(self) -> None:
        """Close the streams, and call `connection_lost` of the listener."""
        super().closed()
        if self._listener is not None:
            self._listener.connection_lost()

    def batch_lost(self, error: BaseException) -> None:
        """Drop the connection, because after a lost batch its streams are ahead of the disk, and must start again."""
        self.connection.drop(f"a batch could not be written: {error}", fault=False)

    # --- changes ----------------------------------------------------------------------------------------------------

    def _take_many(self, data: memoryview, offset: int) -> int:
        """Stage the changes that the kernel accepts, and relay frames for other workers; return the offset of the first
        other frame.
        """
        relay, begun = self._relay, -1
        while offset > begun and not self.connection.is_paused:
            begun, offset = offset, self._take_own(data, offset)
            if relay is not None and not self.connection.is_paused:
                offset = relay.take_run(data, offset)
            if relay is None:
                break
        return offset

    def _take_own(self, data: memoryview, offset: int) -> int:
        """Stage changes by the kernel until it stops; return the offset of that frame."""
        end = self.intake.take(data, offset, self._loop.time())
        if self.intake.is_full and end == offset and self._has_room(whole_frame(data, offset)):
            # Once more: `_has_room` may have got the room for this one change.
            end = self.intake.take(data, offset, self._loop.time())
        if end > offset:
            # Only after the kernel's changes: a document among them may end a prepare.
            self._settle_prepares()
            self._close_gaps()
            self._answer_markers()
        if self.intake.is_full:
            self._wait_for_room()
        return end

    def _has_room(self, size: int) -> bool:
        """Return True if `size` bytes fit into the open batch.

        A single change may need more room than a batch usually has; then this call tries to get the room. If the disk
        has no room, the node counts as full for large changes, and compacts; it still accepts smaller changes.
        """
        arena, used = self._bucket.store.staging.room()
        if size > len(arena):
            with suppress(ArenaFull, DiskFull):
                self._bucket.store.staging.check_document_room(size)
            arena, used = self._bucket.store.staging.room()
        return size <= len(arena) - used

    def _wait_for_room(self) -> None:
        """Continue to read after the next commit; on a full disk try again at intervals ("never skip it", dcp 9)."""
        # Reading stops, and with it the acknowledgements: "hold back the ack: that is the back-pressure mechanism" (dcp
        # 7).
        if not self._bucket.store.full:
            self._kv.parking.wait_for_room(self._kv.server.committer)
            return
        self.connection.pause("full disk")
        self._loop.call_later(FULL_DISK_SECONDS, lambda: self.connection.resume("full disk"))

    def _answer_markers(self) -> None:
        if self.consumer.answer_markers():
            # A producer in a takeover takes the answer to mean that the snapshot is safe here, so it waits for the
            # batch with the snapshot's last change.
            self._hold_until(self._committer.gate())

    # --- everything else --------------------------------------------------------------------------------------------

    def _take(self, frame: Frame) -> None:
        # The room is checked before the protocol object gets the frame, because it can't handle the same frame twice.
        needed = len(frame) + self._prepared_bytes(frame) + RECORDS_BYTES
        if not self._has_room(needed):
            raise NoRoom
        refused = self.consumer.refusals.total
        try:
            for event in self.consumer.receive_frame(frame, self._loop.time()):
                self._handle(event)
        except StorageError as error:  # the change of this frame is missing: the next connection fetches it again
            self.connection.drop(f"a change could not be stored: {error}", fault=False)
            return
        if self.consumer.refusals.total > refused and frame.opcode in LACKED:
            self._lack(frame)
        self._answer_markers()
        if self._relay is not None and frame.is_response and frame.opcode == Opcode.DCP_CONTROL:
            self._relay.answer_controls()

    def _prepared_bytes(self, frame: Frame) -> int:
        """Return the size of the document that a commit will write, from its prepare."""
        if frame.opcode != Opcode.DCP_COMMIT or frame.vbucket not in self.streams:
            return 0
        key = frame.key if self.consumer.negotiated.collections else b"\0" + frame.key
        prepare = self._bucket.store.prepares.find(frame.vbucket, key)
        return 0 if prepare is None else len(prepare.value)

    def _handle(self, event: Event) -> None:  # noqa: PLR0912 - a case for each event
        match event:
            case StreamWanted():
                self._add(event)
            case PositionNeeded(stream=stream):
                self._ask(stream)
            case RollbackNeeded(stream=stream, seqno=seqno):
                self._roll_back(stream, seqno)
            case Opened(stream=stream, failover_log=log):
                self._follow(self.streams[stream.vbucket], log)
            case Marked() | Boundary() | Flushed():
                self._obey(event)
            case Changed():
                self._change(event)
            case Advanced(stream=stream, seqno=seqno):
                self.streams[stream.vbucket].vbucket.pass_seqno(seqno)
                # `applied` comes behind the staging: it moves the stream's last seqno, which must never be ahead of the
                # store.
                self.consumer.applied(event)
            case ManifestChanged(stream=stream, seqno=seqno, event=step):
                self.streams[stream.vbucket].change_collections(step, seqno)
                self._committer.wrote()
                self.consumer.applied(event)
                self._settle_prepares()
                self._close_gaps()  # changes that were missing in a dropped collection no longer matter
            case DurabilityChanged():
                self._change_durability(event)
            case StateWanted():
                self._set_state(event)
            case Refused() | Ended():
                self._ended(event)
            case NotDcp(frame=frame):
                self._pass_on(frame)
            case PeerGone():
                self.connection.drop(f"the producer {event}")

    def _obey(self, event: Marked | Boundary | Flushed) -> None:
        inbound = self.streams[event.stream.vbucket]
        inbound.obey(event)
        if isinstance(event, Marked):
            self.intake.marked(event, is_read=bool(inbound.vbucket.readers))

    def _add(self, request: StreamWanted) -> None:
        """Handle ADD_STREAM. Answer with status 07 if the vbucket is missing or active, with 02 if it already has a
        stream on any connection (dcp 2.2).
        """
        status = self.why_not(request.vbucket)
        if status is not None:
            self.consumer.refuse_stream(request, status, WHY_NOT[status])
            return
        self.begin(request.vbucket, request.flags, request.frame)

    def why_not(self, vbucket: int) -> Status | None:
        """Return the status with which to refuse a stream of a vbucket; None if the vbucket can follow a
        producer now.
        """
        vbucket_ = self._bucket.vbuckets.get(vbucket)
        if vbucket_ is None or vbucket_.state is State.ACTIVE:
            return Status.NOT_MY_VBUCKET
        return None if vbucket_.inbound is None else Status.KEY_EEXISTS

    def begin(self, vbucket: int, flags: int, mover: Frame | None = None) -> InboundStream:
        """Begin a stream of a vbucket for which `why_not` returned None.

        A caller outside of this session must call `answer` afterwards, which sends the request.

        Args:
            vbucket: the vbucket's number.
            flags: the StreamFlag bits of the request.
            mover: the ADD_STREAM to answer; None if this node begins the stream by itself.
        """
        vbucket_ = self._bucket.vbuckets[vbucket]
        inbound = InboundStream(vbucket_, self._bucket, self._vbucket_left, self._acknowledge_prepares)
        self.streams[vbucket] = inbound
        if vbucket_.refused_changes:
            self._gaps.add(vbucket)
            # A mover would not know of a second stream, so its stream begins before the gap. A node's own follower
            # fetches the changes again by itself.
            inbound.refetches = mover is not None and vbucket_.needs_all_anew
        inbound.entry, events = self.consumer.add(vbucket, flags, mover)
        for event in events:
            self._handle(event)
        return inbound

    def answer(self) -> None:
        """Send the output of the protocol object."""
        self._answer()
        self.connection.rearm()

    def say(self) -> None:
        """Send the output of the protocol object. The relay to other workers calls this."""
        self.answer()

    def _answer(self) -> None:
        if self._relay is not None:
            self._relay.flush()
            self.connection.keeps(self._relay.memory_bytes)
        super()._answer()

    def _follow(self, inbound: InboundStream, log: FailoverLog) -> None:
        inbound.follow(log)
        self._close_gaps()  # an earlier call may have had no room for the record that the gap is closed
        # ADD_STREAM is answered once the producer's log is on disk here: after a crash, the mover must find that this
        # copy follows the producer.
        self._hold_until(inbound.vbucket.gate)
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
        aware = self.consumer.negotiated.collections
        self.streams[event.stream.vbucket].apply(event.frame, deleted_user_xattrs=keeps, collections=aware)
        self._committer.wrote()
        self.consumer.applied(event)
        self._settle_prepares()
        self._close_gaps()

    def _change_durability(self, event: DurabilityChanged) -> None:
        """Apply a prepare, commit or abort.

        A commit without its prepare is refused: "receiving COMMIT without prepare in a memory snapshot: KEY_ENOENT"
        (dcp 10). Then the prepare and the changes after it are fetched again.
        """
        aware = self.consumer.negotiated.collections
        if self.streams[event.stream.vbucket].change_durability(event.message, collections=aware):
            self._committer.wrote()
            self.consumer.applied(event)
            self._close_gaps()
        else:
            self._refuse(event.frame, Status.KEY_ENOENT, "the prepare of this commit is not here")

    def _settle_prepares(self) -> None:
        """Mark the prepares as over that ended without a commit or abort, with a newer document or with the drop of the
        collection.
        """
        for vb in self._bucket.durable_writes.held & self.streams.keys():
            with suppress(ArenaFull, DiskFull):  # tried again after the next document
                self.streams[vb].vbucket.prepares.settle(self._bucket.now())

    def _acknowledge_prepares(self, inbound: InboundStream, seqno: int) -> None:
        if self.streams.get(inbound.vbucket.id) is inbound:
            self.consumer.acknowledge_prepares(inbound.entry, seqno)
            self.answer()

    def _set_state(self, event: StateWanted) -> None:
        inbound = self.streams[event.stream.vbucket]
        status = inbound.set_state(event.state)
        # From ACTIVE on the vbucket is its clients': changes that the former owner still sends are refused.
        if inbound.vbucket.state is State.ACTIVE:
            self.consumer.stop_changes(event.stream)
            # A stream without prepares has no aborts either. The former owner has aborted its waiting prepares; if they
            # stayed here, the next commit could commit an aborted write.
            if not self.consumer.takes_durable_writes:
                self._bucket.durable_writes.abort_of_before(inbound.vbucket.id)
        self.consumer.answer_state(event, status, inbound.lacks)
        # After the answer the source takes its next step, so the answer must not promise a state that a crash undoes.
        self._hold_until(inbound.vbucket.gate)

    def _lack(self, frame: Frame) -> None:
        """Handle a refused change, which the vbucket now lacks.

        On a connection that this node opened, the stream is closed, and its listener opens it again, to receive the
        change before any later change. If the listener has tried that already, or a mover began the stream (and would
        not know of a second one), the gap is recorded.
        """
        lacking = self.consumer.lacking(frame)
        inbound = self.streams.get(lacking.vbucket) if lacking is not None else None
        if inbound is None:
            return
        vbucket = inbound.vbucket
        if self._holds(vbucket, frame):
            return
        held = vbucket.high_seqno
        seqno = seqno_of(frame.extras) if len(frame.extras) >= SEQNO_BYTES else 0
        # If the refused seqno is at or below the high seqno, the changes here from that seqno on are doubtful.
        whole = min(held, seqno - 1) if seqno else held
        if self._listener is None or not self._listener.fetches_again(vbucket.id, whole):
            self._miss(vbucket, whole, frame, seqno)
            return
        # The stream ends before the rollback: otherwise a change that is already in the buffer would be staged after
        # the missing one.
        self.close_stream(vbucket.id)
        if whole < held:
            vbucket.roll_back(whole)

    def _miss(self, vbucket: VBucket, whole: int, frame: Frame, seqno: int) -> None:
        """Record the gap that a refused change leaves, and log the change.

        The vbucket records the key too, so that a newer version of the document closes the gap. It does so only if the
        change's seqno is above all seqnos here: otherwise a version older than the change could close the gap.

        Args:
            vbucket: the vbucket that lacks the change.
            whole: the seqno up to which no change is missing.
            frame: the refused message.
            seqno: its seqno; 0 if it has none.
        """
        key = None
        if frame.opcode in CHANGES and frame.vbucket == vbucket.id and seqno > vbucket.high_seqno:
            key = self._key_of(frame)
        vbucket.miss(whole, key, seqno)
        self._gaps.add(vbucket.id)
        key_text = frame.key[: KEY_BYTES_MAX + 1].decode(errors="backslashreplace")
        key_part = f'of "{key_text}", ' if key_text else ""
        line = (
            f"vbucket {vbucket.id}: the change {key_part}seqno {seqno}, was refused and is missing here, so the vbucket"
            " can't be taken over; write or delete the document at its owner"
        )
        self._hub.lacking.tell(self.connection.peer, [line], self._loop.time(), vbucket=vbucket.id, seqno=seqno)

    def _key_of(self, change: Frame) -> Key | None:
        try:
            return key_of(change.key) if self.consumer.negotiated.collections else Key(0, change.key)
        except RemoteProtocolError:
            return None

    def _close_gaps(self) -> None:
        """Close each gap for which newer versions of all refused documents have arrived."""
        for vb in tuple(self._gaps & self.streams.keys()):
            with suppress(ArenaFull, DiskFull):  # tried again after the next change
                vbucket = self.streams[vb].vbucket
                if vbucket.close_gap() or not vbucket.refused_changes:
                    self._gaps.discard(vb)
                    whole = log_event("replica.whole", vbucket=vb)
                    log.info("vbucket %d lacks nothing any more that it refused", vb, extra=whole)

    def _holds(self, vbucket: VBucket, frame: Frame) -> bool:
        """Return True if the vbucket is complete although it refused this change.

        This is so if the change has come before, or if its seqno is at or below the end of a whole snapshot, because
        the seqnos of a stream only rise.
        """
        at = SEQNO_BYTES * (frame.opcode in NAMES_ITS_PREPARE)
        if len(frame.extras) < at + SEQNO_BYTES:
            return False
        seqno = seqno_of(frame.extras[at:])
        return 0 < seqno <= vbucket.complete_seqno or self._bucket.store.index.has_change(vbucket.id, seqno)

    def close_stream(self, vbucket: int) -> None:
        """End a vbucket's stream here, and ask the producer to close it; do nothing if there is no stream."""
        if (inbound := self.streams.get(vbucket)) is not None:
            for event in self.consumer.ask_producer_to_close(inbound.entry):
                self._handle(event)
            self.answer()

    def _ended(self, event: Refused | Ended) -> None:
        vb = event.stream.vbucket
        # Removed first, because the listener may begin the next stream of this vbucket within its call.
        inbound = self.streams.pop(vb, None)
        if inbound is not None:
            inbound.close()
        if self._listener is not None:
            self._listener.stream_over(vb, event)

    def _vbucket_left(self, inbound: InboundStream, reason: str) -> None:
        """End a stream that its vbucket does not need any more."""
        if self.streams.get(inbound.vbucket.id) is inbound:
            for event in self.consumer.close(inbound.entry):
                self._handle(event)
            self._answer()

    def _pass_on(self, frame: Frame) -> None:
        if self.consumer.settings.takes_movers:
            super()._pass_on(frame)
        else:
            self.connection.drop(f"opcode 0x{frame.opcode:02x} came from a producer that this node called")

    def _refuse(self, frame: Frame, status: Status, reason: str) -> None:
        self.connection.send(self.consumer.refusals.answer(frame, status, reason))

    def stats(self) -> Iterable[tuple[str, str]]:
        """Return this connection's part of STAT dcp."""
        consumer, window = self.consumer, self.consumer.window
        yield "type", "consumer"
        yield "peer", self.connection.peer
        yield "num_streams", str(len(self.streams) + (0 if self._relay is None else self._relay.stream_count))
        yield "max_buffer_bytes", str(window.window_bytes)
        yield "unacked_bytes", str(window.owed_bytes)
        yield "total_acked_bytes", str(window.acknowledged_bytes)
        yield "total_bytes_received", str(window.received_bytes)
        for vb, stream in self.streams.items():
            entry = consumer.streams.get(vb)
            yield f"stream_{vb}_state", entry.phase.value if entry else "dead"
            yield f"stream_{vb}_opaque", str(stream.entry.opaque)
            yield f"stream_{vb}_flags", f"0x{stream.entry.flags:x}"
            yield f"stream_{vb}_last_received_seqno", str(stream.vbucket.high_seqno)
            yield f"stream_{vb}_cur_snapshot_start", str(stream.vbucket.snapshot_start)
            yield f"stream_{vb}_cur_snapshot_end", str(stream.vbucket.snapshot_end)
            yield f"stream_{vb}_rollbacks", str(stream.rollbacks)
