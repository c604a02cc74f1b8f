"""One vbucket's reader for a TAP connection: the cursor of all dialects, controlled by TAP's protocol object.

In a turn that object returns the next step: a message, which is sent as it is, or a range of seqnos, of which a
snapshot is taken and sent in TAP's encoding, like a snapshot of a DCP stream. If the position was moved back (to send
again), the snapshot begins again. Source: tap.md 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headwater.node.streams.snapshot import SnapshotSender, UnreadableChange
from headwater.node.tap.encoding import STORED_BYTES_MIN
from headwater.node.vbucket.collection_events import PLAIN
from headwater.protocol.tap.ledger import TapStep
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.streams.outlet import Outlet
    from headwater.node.tap.encoding import TapEncoding
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.tap.ledger import TapPlace
    from headwater.protocol.tap.producer import TapProducer, TapProducerStream

_OWNED = frozenset({State.ACTIVE, State.DEAD})
"""The states of a vbucket that is nobody else's: that of an owner, and that of one in the midst of a hand-over."""


def takes_not(named: Sequence[str]) -> str:
    """Return the reason why a takeover can't move vbuckets with these collections, and the alternatives."""
    shown = ", ".join(named[:3]) + (f" and {len(named) - 3} more" if len(named) > 3 else "")
    return (
        f"a TAP takeover would leave {shown} behind: TAP has no collections; `headwater move --takeover` moves by DCP"
    )


class Readers(Protocol):
    """The session of a reader, which handles its output and its decisions."""

    bucket: Bucket
    producer: TapProducer

    def ready(self, reader: TapReader) -> None:
        """Queue a reader that may have something to send."""

    def encoding(self, stream: TapProducerStream) -> TapEncoding:
        """Return the encoding in which the present client gets the changes of a stream."""

    def hold(self, reader: TapReader) -> None:
        """Queue a reader for the answers that it waits for, if any."""

    def when_room(self, reader: TapReader) -> None:
        """Resume a reader after the next commit."""

    def send(self, message: bytes, gate: int) -> None:
        """Send a message once a batch is durable."""

    def leave(self, reader: TapReader) -> None:
        """Remove a reader whose vbucket was dropped."""

    def fail(self, cause: str) -> None:
        """End the session; it will not be resumed."""


class TapReader:
    """A reader of one vbucket for one session.

    Attributes:
        vbucket: the vbucket; stream: its progress, in the protocol object.
        has_work: True if another turn would send something.
    """

    def __init__(self, vbucket: VBucket, feed: Readers, stream: TapProducerStream) -> None:
        self.vbucket = vbucket
        self.stream = stream
        self._encoding: TapEncoding | None = None  # until there is something to send: a thousand take milliseconds
        self.has_work: bool = False
        self._feed = feed
        self._snapshot: SnapshotSender | None = None
        self._place: TapPlace | None = None
        self._own_state: State = vbucket.state  # but for what the session itself did to it
        vbucket.readers.add(self)

    @property
    def position(self) -> int:
        """The seqno up to which all changes have arrived."""
        return self.stream.acked_seqno

    def close(self) -> None:
        """Stop reading the vbucket."""
        self.vbucket.readers.discard(self)
        self._close_snapshot()

    def begin(self) -> None:
        """Begin again because a client has come (back), which may want other parts of each change."""
        self._close_snapshot()
        self._encoding = None

    # --- what the vbucket tells -------------------------------------------------------------------------------------

    def advanced(self) -> None:
        """Note that more changes are durable."""
        self._feed.ready(self)

    def state_changed(self) -> None:
        """Send the changes of a dead vbucket, which perhaps no other node has; then stay silent until its state
        changes.

        If the vbucket was dropped, the next one with its number has another history, and another reader.
        """
        if self._feed.bucket.vbuckets.get(self.vbucket.id) is not self.vbucket:
            self._feed.leave(self)
        else:
            self._feed.ready(self)

    def damaged(self) -> None:
        """End the connection and the session: TAP has no other way to report damage."""
        self._feed.fail(f"a part of vbucket {self.vbucket.id} can't be read")

    @property
    def holds_removed_files(self) -> bool:
        """True if the present snapshot keeps files that a compaction has replaced."""
        return self._snapshot is not None and self._snapshot.holds_removed_files

    def let_go(self) -> None:
        """Read the rest from the present files: TAP announces no snapshot that would have to stay unchanged."""
        self._close_snapshot()

    def rolled_back(self) -> None:
        """Send the vbucket from scratch, because the client may hold changes that no longer exist."""
        self._close_snapshot()
        self._feed.producer.restart(self.stream)
        self._feed.ready(self)

    # --- turns ------------------------------------------------------------------------------------------------------

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send up to `quantum_bytes`."""
        left = quantum_bytes
        while left > 0 and not outlet.is_full and not outlet.is_late():
            size = self._step(outlet, left)
            if size is None:
                self.has_work = False
                self._feed.hold(self)
                return
            left -= size
        self.has_work = True

    def _step(self, outlet: Outlet, quantum_bytes: int) -> int | None:
        """Send one message, or changes of one snapshot; return the bytes, None if nothing may be sent now."""
        producer, stream, durable = self._feed.producer, self.stream, self._readable_seqno
        if producer.sent_before(stream, self.vbucket.collections.default_dropped_seqno, durable):
            # The client may hold documents of the default collection that went with its drop. TAP has no word for that
            # but "from scratch" (tap.md 3.4), of which nothing follows then.
            self._close_snapshot()
            producer.restart(stream)
        if producer.asks_for_handover(stream, durable) and not self._hand_over(outlet):
            return None
        stream.deleted_rev = self.vbucket.deleted_rev
        # A vbucket that is handed over must be drained of what is not durable yet as well.
        hands_over = stream.place.step is TapStep.DRAIN
        if hands_over and self._own_state is State.DEAD and self.vbucket.state is not State.DEAD:
            self._fail_as_given(outlet)
            return None
        if (message := producer.message(stream, self.vbucket.high_seqno if hands_over else durable)) is not None:
            self._say(outlet, message, self.vbucket.gate if hands_over else 0)
            return len(message)
        if (upto := producer.until(stream, durable)) is not None:
            return self._send(outlet, upto, quantum_bytes)
        return None

    @property
    def _readable_seqno(self) -> int:
        """The newest seqno that may be sent: it is on disk, and on a replica before the first change that it refused,
        which the client would never get.
        """
        vbucket = self.vbucket
        durable = vbucket.durable_seqno
        return min(durable, vbucket.gap.whole_seqno) if vbucket.has_gap else durable

    def _say(self, outlet: Outlet, message: bytes, gate: int) -> None:
        """Send a message that is not a change; the last message of a handover waits until this node's own state is
        durable.
        """
        if gate:
            outlet.flush()
            self._feed.send(message, gate)
        else:
            outlet.write(message)

    def _fail_as_given(self, outlet: Outlet) -> None:
        """End the session, because the vbucket's state is not the one in which the session left it."""
        outlet.flush()  # nothing goes out once the connection is gone
        state = self.vbucket.state.name.lower()
        self._feed.fail(f"vbucket {self.vbucket.id} became {state} here meanwhile: another node may own it by now")

    def _hand_over(self, outlet: Outlet) -> bool:
        """Make this node's vbucket dead; return False if the record has no room before the next commit, or if it must
        not be handed over.
        """
        if self._own_state in _OWNED and self.vbucket.state not in (State.ACTIVE, self._own_state):
            self._fail_as_given(outlet)
            return False
        if self.vbucket.has_gap:
            outlet.flush()  # nothing goes out once the connection is gone
            lacks = f"this copy refused {self.vbucket.refused_changes} changes and lacks them: take its owner's"
            self._feed.fail(f"vbucket {self.vbucket.id}: {lacks}")
            return False
        if self.vbucket.state is State.ACTIVE:
            if named := self.vbucket.collections.named_paths:  # made since the client asked
                outlet.flush()  # nothing goes out once the connection is gone
                self._feed.fail(f"vbucket {self.vbucket.id}: {takes_not(named)}")
                return False
            bucket = self._feed.bucket
            if self.vbucket.id in bucket.fenced:  # since the client asked
                outlet.flush()
                self._feed.fail(f"vbucket {self.vbucket.id} may belong to another node by now")
                return False
            if not bucket.has_room_for_record() or not bucket.may_hand_over(self.vbucket.id):
                self._feed.when_room(self)
                return False
            bucket.hand_over(self.vbucket.id)
            self._own_state = State.DEAD
        self._feed.producer.handing_over(self.stream)
        return True

    # --- changes ----------------------------------------------------------------------------------------------------

    def _send(self, outlet: Outlet, upto: int, quantum_bytes: int) -> int | None:
        snapshot, producer = self._snapshot_to(upto), self._feed.producer
        budget = min(quantum_bytes, producer.ledger.room * STORED_BYTES_MIN)
        try:
            moved = snapshot.move(outlet, 0, budget)
        except UnreadableChange as unreadable:
            self._feed.fail(f"vbucket {self.vbucket.id}: {unreadable}")
            return None
        if snapshot.is_done:
            producer.reached(self.stream, snapshot.covers_seqno)
            self._close_snapshot()
        self._place = self.stream.place
        return moved.bytes

    def _snapshot_to(self, upto: int) -> SnapshotSender:
        """Return a snapshot from the stream's position to `upto`; to a later seqno if the store can no longer show that
        state.
        """
        if self._snapshot is None or self._place != self.stream.place:
            self._close_snapshot()
            vb, store, place = self.vbucket.id, self._feed.bucket.store, self.stream.place
            durable = self._readable_seqno
            if upto < durable and place.step is TapStep.BACKFILL and not store.index.exact(vb, upto):
                upto = self.stream.upto = durable
            # TAP has no collections: it is sent the default one, and nothing of that once it was dropped.
            shown = self.vbucket.collections.choice(PLAIN, self.vbucket.durable_seqno)
            view = store.view(vb, place.seqno, upto, shown)
            self._encoding = self._encoding or self._feed.encoding(self.stream)
            self._snapshot = SnapshotSender(view, self._encoding, covers_seqno=upto, last_seqno=view.end_seqno)
        return self._snapshot

    def _close_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
