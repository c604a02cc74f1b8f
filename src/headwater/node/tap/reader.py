"""One vbucket's way into a TAP connection: the cursor all dialects share, its frames written as TAP.

A turn asks the protocol object what is due: a message, which is sent as it is, or a range of seqnos, of which a view of
the store is taken and copied out, a buffer at a time. A place that was put back (a resend) makes the view begin anew.
Source: tap.md 5 and 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from headwater.kernels import tap as kernel
from headwater.protocol.tap_ledger import ACK_INTERVAL, Step
from headwater.wire.datatype import Datatype
from headwater.wire.tap import MessageFlag
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headwater.node.storage.views import View
    from headwater.node.streams.outlet import Outlet
    from headwater.node.tap.feed import Feed
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.tap_ledger import Place
    from headwater.protocol.tap_producer import TapStream

Frames: TypeAlias = "NDArray[np.uint8]"

STORED_BYTES_MIN = 43
"""The smallest change as `gather` leaves it; a budget of so many bytes for each message the window takes is never too
much."""
_FLAGS_LOW = 27
RECORD_BYTES = 4 << 10


class TapReader:
    """A reader of one vbucket for one session.

    Attributes:
        vbucket: what is read; stream: how far, in the protocol object.
        position: what has arrived; tombstones above it are kept.
        is_held: something is due that has to wait for an answer of the client.
    """

    def __init__(self, vbucket: VBucket, feed: Feed, stream: TapStream) -> None:
        self.vbucket = vbucket
        self.stream = stream
        self.is_held = False
        self._feed = feed
        self._view: View | None = None
        self._covers = 0
        self._place: Place | None = None
        vbucket.readers.add(self)

    @property
    def position(self) -> int:
        """Everything up to here has arrived."""
        return self.stream.acked_seqno

    def close(self) -> None:
        """Read no more."""
        self.vbucket.readers.discard(self)
        self._close_view()

    # --- what the vbucket tells -------------------------------------------------------------------------------------

    def advanced(self) -> None:
        """More is durable."""
        self._feed.ready(self)

    def state_changed(self) -> None:
        """A vbucket that is dead or gone has nothing to tell; otherwise the stream goes on."""
        if self.vbucket.state is State.DEAD:
            self._feed.leave(self)

    def rolled_back(self) -> None:
        """The client may hold what no longer exists: the vbucket is sent from scratch."""
        self._close_view()
        self._feed.producer.restart(self.stream)
        self._feed.ready(self)

    # --- turns ------------------------------------------------------------------------------------------------------

    def take_turn(self, outlet: Outlet, quantum_bytes: int) -> bool:
        """Send up to `quantum_bytes`; whether it stopped for want of room and has more to send."""
        producer, stream, sent = self._feed.producer, self.stream, 0
        while sent < quantum_bytes and not outlet.is_full:
            durable = self.vbucket.durable_seqno
            if producer.asks_for_handover(stream, durable) and not self._hand_over():
                return False
            # A vbucket that is handed over must be drained of what is not durable yet as well.
            high = self.vbucket.high_seqno if stream.place.step is Step.DRAIN else durable
            hands_over = stream.place.step is Step.DRAIN
            if (message := producer.message(stream, high)) is not None:
                self._say(outlet, message, self.vbucket.gate if hands_over else 0)
                sent += len(message)
            elif (upto := producer.until(stream, durable)) is not None:
                sent += self._send(outlet, upto, quantum_bytes - sent)
            else:
                self.is_held = not self._is_idle(durable)
                return False
        return True

    def _is_idle(self, durable: int) -> bool:
        """Whether only a new change can give this stream something to do."""
        place, options = self.stream.place, self._feed.producer.options
        live = place.step is Step.LIVE and place.seqno >= durable
        return place.step is Step.DONE or (live and not options.takeover and options.checkpoints is None)

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
            arena, used = self._feed.store.stage_arena()
            if len(arena) - used < RECORD_BYTES:
                self._feed.when_room(self)
                return False
            self.vbucket.hand_over()
        self._feed.producer.handing_over(self.stream)
        return True

    # --- changes ----------------------------------------------------------------------------------------------------

    def _send(self, outlet: Outlet, upto: int, quantum_bytes: int) -> int:
        """Send changes of the range that ends at `upto`; returns the bytes."""
        view = self._view_to(upto)
        frames, count = self._copy(view, outlet, quantum_bytes)
        if not count and not view.nothing:
            return 0  # a large one, for the next turn: the outlet is over
        is_last, size = view.nothing, 0
        seqnos: Sequence[int] = ()
        if count:
            seqnos, size = self._write(outlet, frames[:count], asks=is_last)
        self._feed.producer.sent(self.stream, seqnos, self._covers if is_last else view.cursor, asks=is_last)
        self._place = self.stream.place
        if is_last:
            self._close_view()
        return max(1, size)

    def _copy(self, view: View, outlet: Outlet, quantum_bytes: int) -> tuple[Frames, int]:
        """Changes as they are in the log: many into the buffer, or one that needs Python."""
        form, buffer = self._feed.form, self._feed.buffer
        budget = min(quantum_bytes, self._feed.producer.ledger.room * STORED_BYTES_MIN)
        room = min(len(buffer), outlet.room)
        filled = view.fill(buffer[:room], 0, form.bits, budget, form.slow)
        if filled.bytes or not filled.plain:
            return buffer, filled.bytes
        if outlet.is_low:
            outlet.is_over = True
            return buffer, 0
        dressed = np.frombuffer(form.dress(view.next_frame(), 0), np.uint8)
        return dressed, len(dressed)

    def _write(self, outlet: Outlet, frames: Frames, *, asks: bool) -> tuple[Sequence[int], int]:
        """Write changes as TAP messages; returns their seqnos and bytes."""
        feed = self._feed
        fits = len(frames) <= outlet.room
        out = outlet.free if fits else np.zeros(len(frames), np.uint8)
        acks, options = feed.producer.ledger.acknowledges, feed.producer.options
        seqnos = feed.seqnos
        size, count, last = kernel.reshape(
            frames,
            len(frames),
            out,
            feed.producer.ledger.sent + 1,
            ACK_INTERVAL if acks else 0,
            MessageFlag.NO_VALUE * options.keys_only | MessageFlag.NETWORK_BYTE_ORDER * options.network_byte_order,
            int(not options.network_byte_order),
            feed.datatypes,
            seqnos,
        )
        if asks and acks:
            out[int(last) + _FLAGS_LOW] |= MessageFlag.ACK
        if fits:
            outlet.fill(int(size))
        else:
            outlet.write(out[: int(size)].tobytes())
        # Without acknowledgements nothing ever goes back: how many there were is all that matters.
        return seqnos[: int(count)].tolist() if acks else range(int(count)), int(size)

    def _view_to(self, upto: int) -> View:
        """A view from where the stream is; as far as asked for if the store can still show the state of then."""
        if self._view is None or self._place != self.stream.place:
            self._close_view()
            vb, store = self.vbucket.id, self._feed.store
            durable = self.vbucket.durable_seqno
            if upto < durable and self.stream.place.step is Step.BACKFILL and not store.exact(vb, upto):
                upto = self.stream.upto = durable
            self._view, self._covers, self._place = (
                store.view(vb, self.stream.place.seqno, upto),
                upto,
                self.stream.place,
            )
        return self._view

    def _close_view(self) -> None:
        if self._view is not None:
            self._view.close()
            self._view = None


def datatypes_of(has_json: bool) -> int:
    """What of a datatype a TAP client is told; values are never compressed and carry no attributes here."""
    return int(Datatype.JSON) if has_json else 0
