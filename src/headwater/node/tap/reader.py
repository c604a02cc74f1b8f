"""One vbucket's way into a TAP connection: the cursor all dialects share, moved as TAP's protocol object says.

A turn asks that object what is due: a message, which is sent as it is, or a range of seqnos, of which a snapshot is
taken and sent in TAP's form, as a DCP stream sends its own. A place that was put back (a resend) makes the snapshot
begin anew. Source: tap.md 5 and 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.node.streams.snapshot import Snapshot
from headwater.node.tap.form import STORED_BYTES_MIN
from headwater.protocol.tap_ledger import Step
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.streams.outlet import Outlet
    from headwater.node.tap.feed import Feed
    from headwater.node.tap.form import TapForm
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.tap_ledger import Place
    from headwater.protocol.tap_producer import TapStream


class TapReader:
    """A reader of one vbucket for one session.

    Attributes:
        vbucket: what is read; stream: how far, in the protocol object.
        has_work: another turn would send something.
        is_held: something is due that has to wait for an answer of the client.
    """

    def __init__(self, vbucket: VBucket, feed: Feed, stream: TapStream, form: TapForm) -> None:
        self.vbucket = vbucket
        self.stream = stream
        self._form = form
        self.has_work = self.is_held = False
        self._feed = feed
        self._snapshot: Snapshot | None = None
        self._place: Place | None = None
        vbucket.readers.add(self)

    @property
    def position(self) -> int:
        """Everything up to here has arrived."""
        return self.stream.acked_seqno

    def close(self) -> None:
        """Read no more."""
        self.vbucket.readers.discard(self)
        self._close_snapshot()

    def write_as(self, form: TapForm) -> None:
        """The client is back, and may want less or more of each change."""
        self._close_snapshot()
        self._form = form

    # --- what the vbucket tells -------------------------------------------------------------------------------------

    def advanced(self) -> None:
        """More is durable."""
        self._feed.ready(self)

    def state_changed(self) -> None:
        """A vbucket that is dead or gone has nothing to tell; otherwise the stream goes on."""
        if self.vbucket.state is State.DEAD:
            self._feed.leave(self)

    def damaged(self) -> None:
        """TAP has no word for it but the end of the connection, and of the session."""
        self._feed.fail(f"a part of vbucket {self.vbucket.id} can't be read")

    def rolled_back(self) -> None:
        """The client may hold what no longer exists: the vbucket is sent from scratch."""
        self._close_snapshot()
        self._feed.producer.restart(self.stream)
        self._feed.ready(self)

    # --- turns ------------------------------------------------------------------------------------------------------

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> None:
        """Send up to `quantum_bytes`."""
        left = quantum_bytes
        while left > 0 and not outlet.is_full:
            size = self._step(outlet, left)
            if size is None:
                self.has_work = False
                return
            left -= size
        self.has_work = True

    def _step(self, outlet: Outlet, quantum_bytes: int) -> int | None:
        """Send one message, or changes of one snapshot; how many bytes, None if nothing may be sent now."""
        producer, stream, durable = self._feed.producer, self.stream, self.vbucket.durable_seqno
        if producer.asks_for_handover(stream, durable) and not self._hand_over():
            return None
        # A vbucket that is handed over must be drained of what is not durable yet as well.
        hands_over = stream.place.step is Step.DRAIN
        if (message := producer.message(stream, self.vbucket.high_seqno if hands_over else durable)) is not None:
            self._say(outlet, message, self.vbucket.gate if hands_over else 0)
            return len(message)
        if (upto := producer.until(stream, durable)) is not None:
            return self._send(outlet, upto, quantum_bytes)
        self.is_held = not producer.is_idle(stream, durable)
        return None

    def _say(self, outlet: Outlet, message: bytes, gate: int) -> None:
        """Send a message that is no change; the last word of a hand-over when this node's own state is durable."""
        if gate:
            outlet.flush()
            self._feed.send(message, gate)
        else:
            outlet.write(message)

    def _hand_over(self) -> bool:
        """This node's vbucket becomes dead; False if the record has no room before the next commit."""
        if self.vbucket.state is State.ACTIVE:
            if not self._feed.bucket.has_room_for_record():
                self._feed.when_room(self)
                return False
            self.vbucket.hand_over()
        self._feed.producer.handing_over(self.stream)
        return True

    # --- changes ----------------------------------------------------------------------------------------------------

    def _send(self, outlet: Outlet, upto: int, quantum_bytes: int) -> int:
        snapshot, producer = self._snapshot_to(upto), self._feed.producer
        budget = min(quantum_bytes, producer.ledger.room * STORED_BYTES_MIN)
        moved = snapshot.move(outlet, 0, budget)
        if snapshot.is_done:
            producer.reached(self.stream, snapshot.covers_seqno)
            self._close_snapshot()
        self._place = self.stream.place
        return moved.bytes

    def _snapshot_to(self, upto: int) -> Snapshot:
        """From where the stream is, as far as asked for if the store can still show the state of then."""
        if self._snapshot is None or self._place != self.stream.place:
            self._close_snapshot()
            vb, store, place = self.vbucket.id, self._feed.bucket.store, self.stream.place
            durable = self.vbucket.durable_seqno
            if upto < durable and place.step is Step.BACKFILL and not store.exact(vb, upto):
                upto = self.stream.upto = durable
            view = store.view(vb, place.seqno, upto)
            self._snapshot = Snapshot(view, self._form, covers_seqno=upto, last_seqno=view.end_seqno)
        return self._snapshot

    def _close_snapshot(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None
