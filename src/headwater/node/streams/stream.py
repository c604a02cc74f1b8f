"""One stream of a vbucket: the snapshots that it sends, and their times.

    BACKFILLING --the first snapshot is sent--> IN_MEMORY
    BACKFILLING, IN_MEMORY --end reached, closed, state changed, rolled back--> DEAD

Changes on disk and in memory are handled in the same way: every snapshot is a view of the store, which is a range of
durable seqnos at one point in time. The first goes up to the durable seqno when it begins and is announced as coming
from disk; each later one has the changes written meanwhile: the slower the reader, the more at once, only the newest of
each key. No changes wait in queues; bytes are copied when the connection can take them.

A consumer that asked for change_streams gets every version instead, as far back as the log has them, of collections
that have a history: its snapshots have the flags History and MayContainDuplicates (dcp 2.7). Older changes come before
these, in a snapshot from disk without the flags, which ends where the versions begin: "Disk|Checkpoint, plus 0x30 when
history is included" (dcp 8.2).

A consumer that asked for headwater_before gets, in front of each change, a message with the version that the change
replaced.

A takeover stream (handover.py) sends until no change is left. Then it asks the other node to become pending, and later
to become active:

    BACKFILLING --the first snapshot is sent--> TAKEOVER_SEND <--a state is sent, is answered--> TAKEOVER_WAIT

Source: dcp 8.1, 8.2, 8.5; failover 4.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from headwater.invariants import invariant
from headwater.node.reporting.log_lines import event
from headwater.node.streams.snapshot import UNLIMITED_BYTES, SnapshotSender, UnreadableChange
from headwater.protocol.dcp.markers import NOTHING_PURGED, Purged, Visible
from headwater.protocol.dcp.position import ENDLESS
from headwater.protocol.dcp.producer_stream import ProducerState
from headwater.wire.dcp import EndReason, SnapshotFlag
from headwater.wire.dialect import Dialect
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.node.storage.api import Storage
    from headwater.node.streams.encoding import Encoding
    from headwater.node.streams.handover import Handover
    from headwater.node.streams.outlet import Outlet
    from headwater.node.vbucket.collection_events import Wanted
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.dcp.producer import Producer
    from headwater.protocol.dcp.producer_stream import ProducerStream

log: Final = logging.getLogger(__name__)


class StreamPhase(StrEnum):
    """The phases of a stream; their values appear in STAT."""

    BACKFILLING = "backfilling"
    IN_MEMORY = "in-memory"
    TAKEOVER_SEND = "takeover-send"
    TAKEOVER_WAIT = "takeover-wait"
    DEAD = "dead"


PHASES: dict[StreamPhase, frozenset[StreamPhase]] = {  # what may follow what
    StreamPhase.BACKFILLING: frozenset({StreamPhase.IN_MEMORY, StreamPhase.TAKEOVER_SEND, StreamPhase.DEAD}),
    StreamPhase.IN_MEMORY: frozenset({StreamPhase.DEAD}),
    StreamPhase.TAKEOVER_SEND: frozenset({StreamPhase.TAKEOVER_WAIT, StreamPhase.DEAD}),
    StreamPhase.TAKEOVER_WAIT: frozenset({StreamPhase.TAKEOVER_SEND, StreamPhase.DEAD}),
    StreamPhase.DEAD: frozenset(),
}

# Global names, because looking up a member of an enum takes ten times as long, and a thousand streams begin at once.
_BACKFILLING: Final = StreamPhase.BACKFILLING
_IN_MEMORY: Final = StreamPhase.IN_MEMORY
_DEAD: Final = StreamPhase.DEAD
_SENDING_NOTHING: Final = (StreamPhase.DEAD, StreamPhase.TAKEOVER_WAIT)
_BETWEEN: Final = ProducerState.BETWEEN
_ACTIVE: Final = State.ACTIVE
_UPR: Final = Dialect.UPR
_OK: Final = EndReason.OK

DISK = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT
MEMORY = SnapshotFlag.MEMORY
FIRST_IN_MEMORY = SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT

EVERY_VERSION = SnapshotFlag.HISTORY | SnapshotFlag.MAY_CONTAIN_DUPLICATES

SHORT_BACKFILL_SEQNOS = 64
"""A backfill of at most so many seqnos is first tried in one call; a longer one would often not fit into the outlet."""


class Stream:
    """A reader of one vbucket, for one stream of one connection.

    Args:
        vbucket: the vbucket; the stream is one of its readers until the stream is dead.
        store: the store with the vbucket's changes.
        producer: the protocol object of the connection.
        entry: the protocol object of this stream.
        encoding: the encoding of each change.
        wanted: the collections whose changes are sent.
        skip_deletes: omit deletions in a backfill that starts from 0.
        ready: called when there may be something to send.
        ended: called once, when the stream is dead.
        handover: the handover of a takeover stream; None for any other stream.

    Attributes:
        position: the seqno up to which all changes were sent, or need not be sent.
        phase: the phase of the stream.
        sent_bytes: the number of bytes sent, of all messages.
        sent_changes: the number of changes sent.
    """

    def __init__(
        self,
        vbucket: VBucket,
        store: Storage,
        producer: Producer,
        entry: ProducerStream,
        encoding: Encoding,
        *,
        streamed: Wanted,
        skip_deletes: bool,
        ready: Callable[[Stream], None],
        ended: Callable[[Stream], None],
        handover: Handover | None = None,
    ) -> None:
        self.vbucket = vbucket
        self.entry = entry
        self.handover = handover
        self._caught_up = _IN_MEMORY if handover is None else StreamPhase.TAKEOVER_SEND
        self.position: int = entry.last_seqno  # everything up to here is sent, or need not be
        self.phase = _BACKFILLING if self.position < vbucket.durable_seqno else self._caught_up
        self.sent_bytes: int = 0
        self.sent_changes: int = 0
        self._store = store
        self._producer = producer
        self._encoding = encoding
        self._wanted = streamed
        # Only from seqno 0: a consumer that has documents must get their deletions (dcp 2.1, bit 0x200).
        self._skip_deletes = skip_deletes and self.position == 0
        self._ready = ready
        self._ended = ended
        self._snapshot: SnapshotSender | None = None
        # A consumer takes a COMMIT for a PREPARE of the same stream only (dcp 8.2, 10).
        self._prepared: set[int] | None = set() if streamed.prepares else None
        settings, speaks = producer.settings, entry.dialect is not _UPR
        self._asks_versions, self._befores = settings.every_version and speaks, settings.befores and speaks
        self._every_version, self._has_history, self._same_histories_until = False, True, ENDLESS
        self._lacked_versions = False
        # The start in the next marker: the newest seqno at which the consumer holds a consistent state. A consumer that
        # meets another history inside that snapshot must roll back to this seqno (failover 2, rule 8).
        self._next_start = entry.accepted.snap_start_seqno
        self._next_flags = DISK if self.phase is _BACKFILLING else FIRST_IN_MEMORY
        # From here on the vbucket reports a rollback or a change of state. The position above was checked in this same
        # turn of the loop, so nothing can have happened in between.
        vbucket.readers.add(self)
        if handover is not None and entry.dialect is Dialect.UPR:
            # "A UPR producer that gets no reply within its time-out proceeds" (dcp 14): the text of that time says that
            # a state is not answered.
            handover.on_silence = lambda: self.state_answered(Status.SUCCESS)
        if handover is not None and self.phase is self._caught_up:
            handover.begin()

    # --- calls of the vbucket ---------------------------------------------------------------------------------------

    def advanced(self) -> None:
        """Note that more changes are durable."""
        self._ready(self)

    def state_changed(self) -> None:
        """End the stream, because a stream must not outlive the state in which it was requested (failover 3)."""
        self.end(EndReason.STATE_CHANGED)

    def rolled_back(self) -> None:
        """End the stream, because the consumer may hold changes that no longer exist; the answer to its next request
        will be a rollback (dcp 2.6).
        """
        self.end(EndReason.ROLLBACK)

    def damaged(self) -> None:
        """End the stream, because its next changes may be damaged; the node still serves a request that starts after
        the damage.
        """
        self.end(EndReason.BACKFILL_FAIL)

    @property
    def holds_removed_files(self) -> bool:
        """True if the snapshot that is being sent keeps files that a compaction has replaced."""
        return self._snapshot is not None and self._snapshot.holds_removed_files

    def let_go(self) -> None:
        """End the stream, because it is so slow that it holds replaced files for too long.

        Its consumer may request the rest: it can resume after its last change, also inside a snapshot.
        """
        self.end(EndReason.SLOW)

    # --- calls of the connection ------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True if a turn would send something, or end the stream."""
        if self._snapshot is not None:
            return True  # the usual case; a stream in a phase that sends nothing has no snapshot
        if self.phase in _SENDING_NOTHING:
            return False
        return self._is_complete or self._sendable_seqno > self.position or self._state_is_due

    @property
    def items_remaining(self) -> int:
        """The number of seqnos that the consumer lacks, an upper limit of the changes that it lacks; for the
        statistics.
        """
        return max(0, self.vbucket.durable_seqno - self.entry.last_seqno)

    def oldest_unsent_ns(self) -> int | None:
        """Return the Unix time in ns of the first change that the consumer lacks, from its CAS; None if it
        lacks none.
        """
        if not self.items_remaining:
            return None
        with self._store.view(self.vbucket.id, self.entry.last_seqno, self.vbucket.durable_seqno) as view:
            return None if view.nothing else view.next_cas()

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send up to `quantum_bytes`; one message may exceed them. Send less if the outlet or the flow-control window
        is full, or if the outlet is late.
        """
        until, flow = self.sent_bytes + quantum_bytes, self._producer.flow
        # Tested before each message and not behind it: "one message may overshoot" the window (dcp 7).
        while self.sent_bytes < until and not flow.is_full and not outlet.is_full:
            if self.phase in _SENDING_NOTHING:
                return
            if self._snapshot is not None:
                self._send_changes(self._snapshot, outlet, until - self.sent_bytes)
                if outlet.is_late():  # changes that are encoded one by one take long
                    return
            elif self._is_complete:
                self.end(_OK)
                return
            elif (sendable := self._sendable_seqno) > self.position:
                if self._asks_versions:
                    self._look_at_history()
                if not self._is_short(sendable) or not self._send_at_once(outlet, sendable):
                    self._begin_snapshot(outlet)
            elif self._state_is_due:
                self._send_state()
            else:
                return

    def end(self, reason: EndReason) -> None:
        """End the stream with a STREAM_END that has the reason; do nothing if the stream is dead already."""
        if self.phase is not _DEAD:
            # The STREAM_END comes before `close`, which forgets the stream: no message with its opaque may follow it
            # (dcp 2.6).
            self._producer.end_stream(self.entry, reason)
            self.close()

    def close(self) -> None:
        """End the stream without a message, because the consumer closed it, or its connection is closed. A second call
        does nothing.
        """
        if self.phase is _DEAD:
            return
        self._enter(_DEAD)
        # The reader leaves before the hand-over is closed, which tells all readers that are left.
        self.vbucket.readers.discard(self)
        if self.handover is not None:
            self.handover.close()
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
        self._ended(self)

    # --- takeover ---------------------------------------------------------------------------------------------------

    def marker_answered(self) -> None:
        """Note that the consumer has acknowledged a whole snapshot, so that the handover may be able to continue."""
        if self.phase is StreamPhase.TAKEOVER_SEND:
            self._ready(self)

    def state_answered(self, status: int) -> None:
        """Handle the consumer's answer to a state; "responses that do not belong to the expected state are ignored"."""
        # A late answer to an earlier state must not count as the answer to this one: it could make the node believe
        # that the consumer is active (failover 4).
        if self.handover is None or self.phase is not StreamPhase.TAKEOVER_WAIT:
            return
        reason = self.handover.answered(status)
        if reason is not None:
            self.end(reason)  # does nothing if all streams of the vbucket have ended by now
        else:
            self._enter(StreamPhase.TAKEOVER_SEND)
            self._ready(self)

    @property
    def _state_is_due(self) -> bool:
        """True if the next state may be sent. failover 4, step 6: "ready queue empty, no more items in the log,
        outstanding acks 0".
        """
        if self.handover is None or self.phase is not StreamPhase.TAKEOVER_SEND or self._snapshot is not None:
            return False
        # A consumer may still refuse the changes after an unanswered marker; as owner without them it would lose
        # acknowledged writes.
        return self.entry.unanswered_markers == 0 and self.handover.may_go_on(self.position)

    def _send_state(self) -> None:
        if self.handover is not None:
            unanswered, vb = self.entry.unanswered_markers, self.vbucket.id
            invariant(not unanswered, "vbucket {}: a state behind {} markers without an answer", vb, unanswered)
            # This call also holds the output back until DEAD is on the disk here; `set_state` below only queues the
            # message.
            state = self.handover.next_state()
            lacks = state is _ACTIVE and self.vbucket.high_seqno - self.position
            invariant(not lacks, "vbucket {} is handed over without its last {} seqnos", vb, lacks)
            self._producer.set_state(self.entry, state)
            self._enter(StreamPhase.TAKEOVER_WAIT)
            self.handover.sent()

    # --- snapshots --------------------------------------------------------------------------------------------------

    @property
    def _is_complete(self) -> bool:
        """True if the stream has sent the whole snapshot that contains the requested end (dcp 8.5)."""
        # Inside a snapshot the end is not reached: "items beyond the end (up to snapshot end) may be sent" (dcp 8.5),
        # and a consumer that stopped inside would hold no whole state.
        return self.position >= self.entry.accepted.end_seqno and self.entry.state is _BETWEEN

    def _begin_snapshot(self, outlet: Outlet) -> None:
        """Open a view of the next changes and announce it with a marker. If the stream has no change in the range, pass
        the range without a marker.
        """
        snapshot = self._take_snapshot()
        vb, covers, durable = self.vbucket.id, snapshot.covers_seqno, self.vbucket.durable_seqno
        invariant(covers <= durable, "vbucket {}: seqno {} is sent, {} is durable", vb, covers, durable)
        is_inside = self.entry.state is ProducerState.INSIDE
        passes = self._wanted.aware and (is_inside or self._skip_deletes or self._store.index.is_mixed(self.vbucket.id))
        # "No marker is sent if there is nothing for this stream" (dcp 8.2).
        if snapshot.last_seqno <= self.position and (not passes or self._goes_on_inside):
            snapshot.close()
            self._reach_end(outlet, snapshot.covers_seqno)
            self._passed(snapshot.covers_seqno)
            return
        self._snapshot = snapshot
        if self._goes_on_inside:
            return  # more changes of a snapshot that this node is itself still receiving: announced already (dcp 8.2)
        # With Collections the marker leads a consumer past the changes that it does not get (dcp 8.2).
        end_seqno, flags = snapshot.covers_seqno if passes else snapshot.last_seqno, self._next_flags
        if self._every_version:
            flags = self._flags_of_versions(flags)
        # A replica in the middle of a snapshot has no consistent state yet. So the marker names the end that the
        # replica's own producer announced, and the rest will come under this marker (dcp 8.2).
        if snapshot.covers_seqno > self._whole_seqno:
            end_seqno = self.vbucket.snapshot_end
            # This range joins a whole state with a part of the next one, so a key may come twice in it.
            flags |= SnapshotFlag.MAY_CONTAIN_DUPLICATES if self.position < self.vbucket.complete_seqno else 0
        if self.phase is StreamPhase.TAKEOVER_SEND:
            # Consumers do not answer the disk markers of the backfill (failover 4, step 4). They must answer the later
            # ones, because the handover depends on these answers.
            flags |= SnapshotFlag.ACK
        purged = self._purged_to_tell(flags)
        if self._wanted.prepares:
            purged = purged._replace(visible=self._visible(snapshot.covers_seqno, flags))
        # The marker begins at the state that the consumer holds, not at the first item: told to roll back to the start,
        # the consumer must have a whole state there (decision 0089).
        marker = self._producer.marker(self.entry, min(self._next_start, end_seqno), end_seqno, flags, purged)
        outlet.write(marker)
        self.sent_bytes += len(marker)
        # "0x04 at a new checkpoint and on the first memory snapshot after a backfill" (dcp 8.2): there the consumer's
        # dedup window must not reach back into the disk snapshot.
        self._next_flags = FIRST_IN_MEMORY if flags & SnapshotFlag.DISK else SnapshotFlag.MEMORY

    def _look_at_history(self) -> None:
        """Decide whether the next snapshot has every version that the log has.

        A replica gets every version only if its bucket keeps a history. Otherwise it would get whichever versions the
        last compaction has left, which may double the bytes.
        """
        self._every_version = not self._wanted.prepares or bool(self._store.declarations.history)
        collections, durable = self.vbucket.collections, self.vbucket.durable_seqno
        begin, self._same_histories_until = self.position, ENDLESS
        if not self._is_copy and not self._wanted.modifications:
            span = collections.span_of_same_histories(self._wanted, self.position, durable)
            begin, self._same_histories_until = span
        end_seqno = min(durable, self._end_of_same_histories)
        self._has_history = self._is_copy or collections.has_history(self._wanted, begin, end_seqno)

    @property
    def _end_of_same_histories(self) -> int:
        """The seqno where the next snapshot must end because a collection gets or loses its history, for a consumer
        that does not get the event of this change; ENDLESS if there is no such seqno.

        A snapshot with History across that seqno would lack versions, and the consumer could not know of which
        collections. If the consumer holds a part of a snapshot, the rest still goes to that snapshot's end (dcp 8.5).
        """
        return max(self._same_histories_until, self.entry.accepted.partial_end_seqno)

    @property
    def _is_copy(self) -> bool:
        """True if the consumer is a node of headwater. It gets the versions of all collections, because it may become
        the owner of the vbucket, and must then be able to show the state at each seqno.
        """
        return self._producer.settings.deleted_revs

    @property
    def _has_versions(self) -> bool:
        """True if the next snapshot can have every version that the consumer lacks of collections with a history."""
        is_reached = self.position >= self.vbucket.versions_after
        return self._has_history and is_reached and not self._leaves_out_deletions

    @property
    def _leaves_out_deletions(self) -> bool:
        """True during the first backfill if the consumer wants no deletions; such a backfill has no older versions
        either.
        """
        return self._skip_deletes and self.phase is _BACKFILLING

    def _flags_of_versions(self, flags: SnapshotFlag) -> SnapshotFlag:
        """Return the flags of a snapshot for a consumer that requested every version.

        A snapshot that lacks some versions is flagged as a snapshot from disk, and so is the next snapshot after it.
        """
        after_gap, self._lacked_versions = self._lacked_versions, not self._has_versions
        # The missing flags say that versions are missing here. A wrong History flag would be believed for ever, because
        # a consumer records it.
        if self._lacked_versions:
            return DISK
        return (DISK if after_gap else flags) | EVERY_VERSION

    def _purged_to_tell(self, flags: int = 0) -> Purged:
        """Return the purged tombstones that the next marker reports; the seqno of the result is 0 for none.

        A snapshot from disk reports all purged tombstones (dcp 2.7). Any other snapshot reports only the ones that this
        consumer can't have: it has the tombstones up to its start, and those in the snapshots announced since.
        """
        settings, vbucket = self._producer.settings, self.vbucket
        if not settings.purge_seqnos or self.entry.dialect is _UPR:
            return NOTHING_PURGED
        purged = vbucket.purge_seqno
        # The consumer has the tombstones that this stream sent; only a purge above these hides a deletion from it
        # (decision 0033).
        has = min(self.position, self.entry.snapshot_end_seqno)
        if purged <= has and not flags & SnapshotFlag.DISK:
            return NOTHING_PURGED
        return Purged(purged, vbucket.deleted_rev if settings.deleted_revs else 0)

    def _visible(self, covers_seqno: int, flags: int) -> Visible:
        """Return the seqnos that the next marker reports for durable writes: the highest seqno of a visible change,
        and, for a snapshot from disk, the seqno up to which all prepares are over (dcp 2.7, 8.2).
        """
        vbucket = self.vbucket
        plain = vbucket.collections.choice(replace(self._wanted, prepares=False), covers_seqno)
        with self._store.view(vbucket.id, self.position, covers_seqno, plain) as view:
            seqno = view.end_seqno
        if not flags & SnapshotFlag.DISK:
            return Visible(seqno)
        # All prepares below the first waiting one are over: a replica drops those that it still holds, because a disk
        # snapshot does not say how they ended (dcp 2.7).
        return Visible(seqno, min(vbucket.prepares.pending.values(), default=covers_seqno + 1) - 1)

    def _is_short(self, durable_seqno: int) -> bool:
        """Return True if `_send_at_once` is worth a try: the stream is past its backfill, or the backfill is short."""
        if self._every_version and (self._lacked_versions or not self._has_versions):
            return False
        if self.phase is not _BACKFILLING or self.handover is not None or self._skip_deletes:
            return self.phase is _IN_MEMORY
        return durable_seqno - self.position <= SHORT_BACKFILL_SEQNOS

    def _send_at_once(self, outlet: Outlet, last_seqno: int) -> bool:
        """Send the marker and the changes in one call of a kernel; return False, with nothing sent, if that is
        impossible.

        This shortcut requires changes that this node wrote itself, because only then does every durable seqno end a
        snapshot. It also requires a stream that sends all changes as stored.
        """
        vbucket, entry, encoding = self.vbucket, self.entry, self._encoding
        # In a copy a durable seqno may lie inside a snapshot, and a marker that named it would declare an inconsistent
        # state consistent.
        own = vbucket.state is _ACTIVE and self.position >= vbucket.snapshot_end
        as_stored = not encoding.collections and not self._store.index.is_mixed(vbucket.id)
        whole = entry.state is _BETWEEN and last_seqno <= entry.accepted.end_seqno
        if (
            not own
            or not whole
            or not as_stored
            or encoding.plain
            or encoding.upr
            or self._befores
            or self._purged_to_tell(self._next_flags).seqno
        ):
            return False
        # All or nothing: the kernel must not stop in the middle of a snapshot for which no view is open.
        window = self._producer.flow.budget_bytes
        room = outlet.room if window is None else min(outlet.room, window)
        flags = int(self._next_flags | EVERY_VERSION if self._every_version else self._next_flags)
        numbers = self.position, last_seqno, self._next_start, flags
        size, changes = self._store.gather_live(
            vbucket.id, numbers, outlet.free, entry.opaque, encoding.bits, encoding.slow, room
        )
        if not size:
            return False
        outlet.fill(size)
        self._producer.sent_snapshot(entry, last_seqno, size)
        self.sent_bytes += size
        self.sent_changes += changes
        self.position, self._next_start, self._next_flags = last_seqno, last_seqno, MEMORY
        if self.phase is _BACKFILLING:
            self._enter(self._caught_up)
            self._next_flags = FIRST_IN_MEMORY
        return True

    def _take_snapshot(self) -> SnapshotSender:
        upto, vb = self._snapshot_end(), self.vbucket.id
        choice = self.vbucket.collections.choice(self._wanted, upto)  # a drop hides nothing in a state of before it
        every_version = self._every_version and self._has_versions
        leaves_out = every_version and not self._is_copy and upto <= self._same_histories_until
        # Inside a snapshot, the consumer also lacks the superseded changes before its position.
        since = min(self._next_start, self.position) if self._befores else self.position
        plain = self.vbucket.collections.plain_spans_of(self._wanted, since, upto) if leaves_out else ()
        view = self._store.view(
            vb, self.position, upto, choice, every_version=every_version, plain=plain, befores=self._befores
        )
        # A copy: commits that come while this snapshot is sent belong to the next one.
        commits = dict(self.vbucket.prepares.committed(self.position, upto)) if self._wanted.prepares else None
        return SnapshotSender(
            view,
            self._encoding,
            covers_seqno=upto,
            last_seqno=view.end_seqno,
            without_deletions=self._leaves_out_deletions,
            advances=self._wanted.aware,
            commits=commits,
            prepared=self._prepared,
            hides_over=every_version and self._wanted.prepares,
        )

    @property
    def _whole_seqno(self) -> int:
        """The seqno of the newest consistent state that can be shown; 0 for none.

        If the consumer holds a part of a snapshot, a state inside that snapshot does not count: the snapshot has only
            the newest version of each key, so the consumer's state is consistent only at its end.
        """
        vbucket = self.vbucket
        if (durable := vbucket.durable_seqno) >= vbucket.snapshot_end:
            return durable
        complete = vbucket.complete_seqno
        is_there = self.entry.accepted.partial_end_seqno <= complete <= durable
        return complete if is_there and self._store.index.exact(vbucket.id, complete) else 0

    @property
    def _sendable_seqno(self) -> int:
        """The seqno up to which changes can be sent now; at or below the stream's position if there is nothing to send.

        A replica sends the received part of a snapshot, with the end that its own producer announced. A consumer
        without Collections can't reach that end if the change there is not for it (dcp 2.18), so it gets whole
        snapshots only. If the producer announces no end (UPR), all consumers get whole snapshots only.
        """
        durable, announced = self.vbucket.durable_seqno, self.vbucket.snapshot_end
        if durable >= announced or (self._wanted.aware and announced < ENDLESS):
            return durable
        return self._whole_seqno

    def _snapshot_end(self) -> int:
        """Return the seqno at which the next snapshot ends.

        This is the requested end if the store can still show the state there, otherwise the durable seqno. If the
        consumer holds a part of a snapshot that ends after the requested end, the end of that snapshot replaces the
        requested end: the consumer's state is consistent only there (dcp 8.5).

        A replica knows the end of its last snapshot only, not the ends of earlier ones. So it sends all changes before
        the last snapshot first, and then the last snapshot, with the end that its own producer announced.
        """
        durable, accepted = self.vbucket.durable_seqno, self.entry.accepted
        if self._goes_on_inside:
            return min(durable, self.entry.snapshot_end_seqno)
        if (whole := self._whole_seqno) < durable:
            return whole if self.position < whole else durable
        end_seqno = max(accepted.end_seqno, accepted.partial_end_seqno)
        # If a compaction has dropped versions, the store can't show the state at the requested end any more; the newest
        # state is consistent and includes it (dcp 8.5).
        end_seqno = end_seqno if end_seqno < durable and self.vbucket.is_exact(end_seqno) else durable
        in_parts = self._every_version and not self._leaves_out_deletions
        return self._end_of_part(end_seqno) if in_parts else end_seqno

    def _end_of_part(self, end_seqno: int) -> int:
        """Return the end of the next snapshot for a consumer that requested every version: `end_seqno`, or an earlier
        seqno where versions begin, or where a collection gets or loses its history.

        If the consumer holds a part of a snapshot, the next snapshot is not cut before the end of that one (dcp 8.5).
        """
        begun = self.vbucket.versions_after
        if self.position >= begun:
            return min(self._end_of_same_histories, end_seqno)
        return min(max(begun, self.entry.accepted.partial_end_seqno), end_seqno)

    @property
    def _goes_on_inside(self) -> bool:
        """True if the next changes belong to the announced snapshot, and no new marker is needed.

        False if this node's own producer has meanwhile replaced that snapshot by a longer one, or if a compaction has
        dropped versions of it: then this node has no consistent state at the announced end, and needs a new marker.
        """
        vbucket, announced = self.vbucket, self.entry.snapshot_end_seqno
        if self.entry.state is not ProducerState.INSIDE or self.position >= announced:
            return False
        is_there = vbucket.durable_seqno <= announced or self._store.index.exact(vbucket.id, announced)
        return is_there and vbucket.ends_snapshot(announced)

    def _send_changes(self, snapshot: SnapshotSender, outlet: Outlet, quantum_bytes: int) -> None:
        if snapshot.is_done:  # nothing in it is shown
            self._end_snapshot(snapshot, outlet)
            return
        window = self._producer.flow.budget_bytes
        budget = quantum_bytes if window is None else min(quantum_bytes, window)
        try:
            moved = snapshot.move(outlet, self.entry.opaque, min(budget, UNLIMITED_BYTES))
        # One document must not end the connection, which all other streams use. Nor is the document skipped: the
        # snapshot would then seem whole without it.
        except UnreadableChange as unreadable:
            vb = self.vbucket.id
            fields = event("stream.unreadable", vbucket=vb, seqno=unreadable.seqno)
            log.error("vbucket %d: %s; a stream ends there: write or delete the document", vb, unreadable, extra=fields)
            self.end(EndReason.BACKFILL_FAIL)
            return
        last, end = moved.last_seqno, snapshot.last_seqno
        invariant(last <= end, "vbucket {}: seqno {} of a snapshot to {}", self.vbucket.id, last, end)
        if moved.bytes:
            # Bytes count for the window when they are in the outlet, not when the socket has accepted them: the window
            # must be up to date before the next turn.
            self._producer.sent_changes(self.entry, moved.bytes, moved.last_seqno)
            self.sent_bytes += moved.bytes
            self.sent_changes += moved.changes
        # With Collections a last message may follow, which waits for the window like any other.
        if snapshot.is_done and not (self._wanted.aware and self._producer.flow.is_full):
            self._end_snapshot(snapshot, outlet)

    def _end_snapshot(self, snapshot: SnapshotSender, outlet: Outlet) -> None:
        snapshot.close()
        self._snapshot = None
        self._reach_end(outlet, snapshot.covers_seqno)
        # `covers_seqno`, not the seqno of the last change: otherwise the next snapshots would read again the rows that
        # this stream does not get.
        self._passed(snapshot.covers_seqno)

    def _reach_end(self, outlet: Outlet, seqno: int) -> None:
        """Send SEQNO_ADVANCED if the last change of the announced snapshot is not for this stream (dcp 2.18)."""
        entry = self.entry
        # Without Collections the marker ended at the last visible change, so there is nothing to lead the consumer past
        # (dcp 8.2).
        if self._wanted.aware and entry.state is ProducerState.INSIDE and seqno == entry.snapshot_end_seqno:
            advanced = self._producer.seqno_advanced(entry, seqno)
            outlet.write(advanced)
            self.sent_bytes += len(advanced)

    def _passed(self, seqno: int) -> None:
        """Note that the consumer has all its changes up to `seqno`."""
        if self.phase is StreamPhase.BACKFILLING:
            self._enter(self._caught_up)
            self._next_flags = FIRST_IN_MEMORY
            if self.handover is not None:
                # dcp_takeover_max_time counts "since entering takeover-send" (failover 4): a long backfill must not
                # refuse writes.
                self.handover.begin()
        is_whole = self.entry.state is _BETWEEN and self.entry.last_seqno > self.entry.accepted.start_seqno
        if is_whole:  # the last seqno that the consumer has received; `seqno` may be higher
            self._next_start = self.entry.last_seqno
        before, vb = self.position, self.vbucket.id
        invariant(before <= seqno, "vbucket {}: a stream goes from seqno {} back to {}", vb, before, seqno)
        self.position = seqno
        # Only behind the drop event itself, which this stream has now been sent (dcp 5, FilterEmpty).
        if self.vbucket.collections.is_over(self._wanted, seqno):
            self.end(EndReason.FILTER_EMPTY if self._wanted.aware else EndReason.OK)

    def _enter(self, phase: StreamPhase) -> None:
        if phase not in PHASES[self.phase]:
            raise ValueError(f"a stream that is {self.phase.value} can not become {phase.value}")
        self.phase = phase
