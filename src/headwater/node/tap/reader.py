"""One vbucket's reader for a TAP connection: the cursor of all dialects, controlled by TAP's protocol object.

In a turn that object returns the next step: a message, which is sent as it is; or a seqno, up to which a snapshot is
taken and sent in TAP's encoding, like a snapshot of a DCP stream. If the position was moved back, to send changes
again, a new snapshot is taken.

Source: tap.md 5 and 6.
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
"""The states of a vbucket that no other node owns: ACTIVE while this node owns it, DEAD while it is handed over."""


def takes_not(names: Sequence[str]) -> str:
    """Return the reason why a takeover can't move vbuckets with these collections, and the alternative."""
    names_text = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    text = f"a TAP takeover would leave {names_text} behind"
    return f"{text}: TAP has no collections; `headwater move --takeover` moves by DCP"


class Readers(Protocol):
    """The session of a reader, as the reader uses it.

    Attributes:
        bucket: the bucket.
        producer: the session's protocol object.
    """

    bucket: Bucket
    producer: TapProducer

    def ready(self, reader: TapReader) -> None:
        """Queue a reader that may have something to send."""

    def encoding(self, stream: TapProducerStream) -> TapEncoding:
        """Return the encoding in which the present client gets the changes of a stream."""

    def hold(self, reader: TapReader) -> None:
        """Queue a reader that waits for answers of the client, until they arrive."""

    def when_room(self, reader: TapReader) -> None:
        """Resume a reader after the next commit."""

    def send(self, message: bytes, gate: int) -> None:
        """Send a message once a batch is durable."""

    def leave(self, reader: TapReader) -> None:
        """Remove a reader whose vbucket was dropped."""

    def fail(self, cause: str) -> None:
        """End the session; it will not be resumed."""


class TapReader:
    """The reader of one vbucket for one session.

    Attributes:
        vbucket: the vbucket.
        stream: the progress of the vbucket's stream, a part of the protocol object.
        has_work: True if another turn would send something.
    """

    def __init__(self, vbucket: VBucket, feed: Readers, stream: TapProducerStream) -> None:
        self.vbucket = vbucket
        self.stream = stream
        self._encoding: TapEncoding | None = None  # made with the first snapshot: a thousand would delay the start
        self.has_work: bool = False
        self._feed = feed
        self._snapshot: SnapshotSender | None = None
        self._place: TapPlace | None = None
        self._own_state: State = vbucket.state  # the state at the start, or the one that this session has set
        vbucket.readers.add(self)

    @property
    def position(self) -> int:
        """The seqno up to which the client has acknowledged all changes, or was sent them if it never acknowledges."""
        return self.stream.acked_seqno

    def close(self) -> None:
        """Stop reading the vbucket, and release its files."""
        self.vbucket.readers.discard(self)
        self._close_snapshot()

    def begin(self) -> None:
        """Prepare for a client that has connected, perhaps again: it may want other parts of each change than
        before.
        """
        self._close_snapshot()
        self._encoding = None

    # --- calls of the vbucket -----------------------------------------------------------------------------------------

    def advanced(self) -> None:
        """Queue this reader, because more changes are durable."""
        self._feed.ready(self)

    def state_changed(self) -> None:
        """Queue this reader, because the vbucket's state has changed; or remove it, if the vbucket was dropped.

        The changes of a vbucket that became dead are still sent, because perhaps no other node has them. A later
        vbucket with the number of a dropped one has another history, and gets another reader.
        """
        if self._feed.bucket.vbuckets.get(self.vbucket.id) is not self.vbucket:
            self._feed.leave(self)
        else:
            self._feed.ready(self)

    def damaged(self) -> None:
        """End the session and its connection, because TAP has no message that reports damage."""
        self._feed.fail(f"a part of vbucket {self.vbucket.id} can't be read")

    @property
    def holds_removed_files(self) -> bool:
        """True if the present snapshot keeps files on the disk that a compaction has replaced."""
        return self._snapshot is not None and self._snapshot.holds_removed_files

    def let_go(self) -> None:
        """Release the files of the snapshot, and read the rest from the present files.

        TAP may do so because it does not announce snapshots, which would have to stay unchanged.
        """
        self._close_snapshot()

    def rolled_back(self) -> None:
        """Send the vbucket again from the beginning, because the client may have changes that no longer exist."""
        self._close_snapshot()
        self._feed.producer.restart(self.stream)
        self._feed.ready(self)

    # --- turns ------------------------------------------------------------------------------------------------------

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send about `quantum_bytes`, or less if the outlet is full or the connection's turn ends."""
        remaining_bytes = quantum_bytes
        while remaining_bytes > 0 and not outlet.is_full and not outlet.is_late():
            size = self._step(outlet, remaining_bytes)
            if size is None:
                self.has_work = False
                self._feed.hold(self)
                return
            remaining_bytes -= size
        self.has_work = True

    def _step(self, outlet: Outlet, quantum_bytes: int) -> int | None:
        """Send one message, or changes of one snapshot; return the number of bytes, None if nothing can be sent now."""
        producer, stream, durable = self._feed.producer, self.stream, self._readable_seqno
        if producer.sent_before(stream, self.vbucket.collections.default_dropped_seqno, durable):
            # The default collection was dropped, and the client may have documents of it. TAP can tell it so only by
            # starting from scratch (tap.md 3.4); then no documents follow.
            self._close_snapshot()
            producer.restart(stream)
        if producer.asks_for_handover(stream, durable) and not self._hand_over(outlet):
            return None
        stream.deleted_rev = self.vbucket.deleted_rev
        if stream.place.step is TapStep.INITIAL:
            # From here on the client's checkpoints are of this branch, and it drops those that it had.
            stream.branch = self.vbucket.failover.newest.vb_uuid
        # When a vbucket is handed over, the changes that are not durable yet must be sent as well.
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
        """The newest seqno that may be sent: changes up to it are on disk, and none is missing.

        On a replica that has refused a change, it is the seqno before that change.
        """
        vbucket = self.vbucket
        durable = vbucket.durable_seqno
        return min(durable, vbucket.gap.whole_seqno) if vbucket.has_gap else durable

    def _say(self, outlet: Outlet, message: bytes, gate: int) -> None:
        """Send a message that is not a change.

        Args:
            outlet: the output.
            message: the message.
            gate: the number of the batch that must be durable before the message is sent, 0 for none: the last message
                of a handover waits until the vbucket's state on this node is durable.
        """
        if gate:
            outlet.flush()
            self._feed.send(message, gate)
        else:
            outlet.write(message)

    def _fail_as_given(self, outlet: Outlet) -> None:
        """End the session, because something else has changed the vbucket's state: another node may own it now."""
        outlet.flush()  # before the connection is closed
        state = self.vbucket.state.name.lower()
        self._feed.fail(f"vbucket {self.vbucket.id} became {state} here meanwhile: another node may own it by now")

    def _hand_over(self, outlet: Outlet) -> bool:
        """Make this node's vbucket dead, so that the client can take it over.

        Returns:
            True if it is dead now. False if it must not be handed over, with which the session ends; or if there is no
            room for the record before the next commit, or the vbucket can't be handed over yet: then the reader tries
            again.
        """
        if self._own_state in _OWNED and self.vbucket.state not in (State.ACTIVE, self._own_state):
            self._fail_as_given(outlet)
            return False
        if self.vbucket.has_gap:
            outlet.flush()  # before the connection is closed
            lacks = f"this copy refused {self.vbucket.refused_changes} changes and lacks them: take its owner's"
            self._feed.fail(f"vbucket {self.vbucket.id}: {lacks}")
            return False
        if self.vbucket.state is State.ACTIVE:
            if collection_names := self.vbucket.collections.named_paths:  # created since TAP_CONNECT
                outlet.flush()  # before the connection is closed
                self._feed.fail(f"vbucket {self.vbucket.id}: {takes_not(collection_names)}")
                return False
            bucket = self._feed.bucket
            if self.vbucket.id in bucket.fenced:  # since TAP_CONNECT
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
        """Return the snapshot from the stream's position to `upto`, or to the newest seqno that may be sent.

        The snapshot goes that far if the store no longer has the versions of documents as of `upto`.
        """
        if self._snapshot is None or self._place != self.stream.place:
            self._close_snapshot()
            vb, store, place = self.vbucket.id, self._feed.bucket.store, self.stream.place
            durable = self._readable_seqno
            if upto < durable and place.step is TapStep.BACKFILL and not store.index.exact(vb, upto):
                upto = self.stream.upto = durable
            # TAP sends the default collection only, and nothing once that was dropped.
            choice = self.vbucket.collections.choice(PLAIN, self.vbucket.durable_seqno)
            view = store.view(vb, place.seqno, upto, choice)
            self._encoding = self._encoding or self._feed.encoding(self.stream)
            self._snapshot = SnapshotSender(view, self._encoding, covers_seqno=upto, last_seqno=view.end_seqno)
        return self._snapshot

    def _close_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
