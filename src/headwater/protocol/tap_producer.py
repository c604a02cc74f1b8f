"""The producer's end of a TAP session: which message comes next, and what the client's answers mean.

A session outlives its connection if it is named and the node keeps it. It owns a stream for each vbucket, which is a
`Place` that moves through the steps of tap.md 5 and nothing else; whoever owns the log asks `message` (what is not a
change: bytes to send) and `until` (up to which seqno changes may be sent now), sends, and reports by `sent`. Answers go
in by `receive_frame`: they move the window, put places back (resend), or end the session.

Checkpoints are ranges of CHECKPOINT_SEQNOS seqnos, numbered from 1: ids that grow by one, are the same for every client
and after a restart, and need no state. Source: tap.md 3 to 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from headwater.errors import RemoteProtocolError
from headwater.protocol.tap_ledger import Ledger, Place, Step
from headwater.protocol.tap_options import TapOptions
from headwater.wire import tap
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.tap import MessageFlag, OpaqueCode
from headwater.wire.vbucket import State

NOOP_SECONDS: Final = 200.0
GRACE_SECONDS: Final = 300.0
BACKOFF_SECONDS: Final = 5.0
HANDOVER_UNACKED_MAX: Final = 10
CHECKPOINT_SEQNOS: Final = 1000

TEMPORARY: Final = frozenset({Status.EBUSY, Status.ETMPFAIL})
_ORDERS: Final = frozenset({Step.PENDING, Step.INITIAL})  # before any data; needs no room but its own


class Fate(Enum):
    """What becomes of a session."""

    LIVE = "live"
    DONE = "done"  # dump or takeover is complete
    FAILED = "failed"  # the client refused a message


class TapStream:
    """One vbucket of a session.

    Attributes:
        place: what is sent.
        upto: seqno at which the backfill ends.
        acked_seqno: everything up to here has arrived (without acknowledgements: was sent).
        blocked_by: number of a checkpoint's end that must be acknowledged before the next begins; 0: none.
    """

    def __init__(self, vbucket: int, place: Place) -> None:
        self.vbucket = vbucket
        self.place = place
        self.upto = 0
        self.acked_seqno = place.seqno
        self.blocked_by = 0


class TapProducer:
    """A session.

    Args:
        options: what the client asked for.
        now: seconds of a monotonic clock, as in every later call.

    Attributes:
        streams: by vbucket.
        ledger: numbers and window.
        fate: whether it goes on.
        nacks, unknown: how often the client refused, and acknowledged what was never sent.
    """

    def __init__(self, options: TapOptions, now: float) -> None:
        self.options = options
        self.ledger = Ledger(acknowledges=options.acknowledge)
        self.streams: dict[int, TapStream] = {}
        self.fate = Fate.LIVE
        self.nacks = self.unknown = self.reconnects = 0
        self.suspended_until = 0.0
        self.failure = Status.SUCCESS
        self._heard_at = self._sent_at = now
        self._opaque_asked = 0  # number of the last TAP_OPAQUE: data waits for its acknowledgement
        self._out = bytearray()
        self._set_up()

    # --- session ----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """tap.md 3.4: with acknowledgements the first messages are OPAQUE 0 (and 2 with checkpoints)."""
        if self.options.acknowledge:
            self._out += self._opaque(None, OpaqueCode.ENABLE_AUTO_NACK)
            if self.options.checkpoints is not None:
                self._out += self._opaque(None, OpaqueCode.ENABLE_CHECKPOINT_SYNC)

    def resume(self, options: TapOptions, now: float) -> None:
        """The client is back: "unacked messages are re-queued and sent again with new seqnos; the filter is replaced
        by the new one". A backfill is planned anew only for another age (tap.md 1.2)."""
        again = options.since is not None and options.since != self.options.since
        self._take_back()
        self.options, self.ledger.acknowledges = options, options.acknowledge
        if again:
            self.streams.clear()
        for vb in [vb for vb in self.streams if options.vbuckets and vb not in options.vbuckets]:
            del self.streams[vb]
        self.reconnects += 1
        self.suspended_until = 0.0
        self._heard_at = self._sent_at = now
        self._set_up()

    def follow(self, vbucket: int, high_seqno: int, purge_seqno: int, now_unix: int) -> TapStream:
        """Begin the stream of a vbucket; `high_seqno` is what is durable of it now."""
        closed = (self.options.checkpoints or {}).get(vbucket, 0) * CHECKPOINT_SEQNOS
        if self.options.takeover:
            place = Place(Step.PENDING)
        elif closed and purge_seqno <= closed <= high_seqno:
            place = Place(Step.LIVE, closed)  # "positions its cursor at the next checkpoint if it still has it"
        elif self.options.wants_backfill(now_unix) or closed:
            place = Place(Step.INITIAL)
        else:
            place = Place(Step.DONE if self.options.dump else Step.LIVE, high_seqno)
        made = self.streams[vbucket] = TapStream(vbucket, place)
        return made

    def restart(self, stream: TapStream) -> None:
        """The history the client was told is not the vbucket's any more: from scratch."""
        if stream.place.step < Step.DRAIN:
            stream.place, stream.acked_seqno, stream.blocked_by = Place(Step.INITIAL), 0, 0

    def filter_changed(self) -> None:
        """Tell the client that CHANGE_VB_FILTER is done."""
        self._out += self._opaque(None, OpaqueCode.COMPLETE_VB_FILTER_CHANGE)

    @property
    def is_complete(self) -> bool:
        """Whether a dump or takeover has sent all there is and heard all it asked for."""
        if not (self.options.dump or self.options.takeover) or self.ledger.awaits or self._out:
            return False
        return all(stream.place.step is Step.DONE for stream in self.streams.values())

    @property
    def deadline(self) -> float:
        """When to call `tick`."""
        waits = [self._sent_at + NOOP_SECONDS]
        if self.ledger.room <= 0:
            waits.append(self._heard_at + GRACE_SECONDS)
        if self.suspended_until:
            waits.append(self.suspended_until)
        return min(waits)

    def tick(self, now: float) -> None:
        """The deadline has come: a no-op is due, or a suspension is over.

        Raises:
            RemoteProtocolError: "nothing acked for the grace period while full: disconnect".
        """
        if self.suspended_until and now >= self.suspended_until:
            self.suspended_until = 0.0
        if self.ledger.room <= 0 and now >= self._heard_at + GRACE_SECONDS:
            raise RemoteProtocolError(f"{self.ledger.unacked} messages are unacknowledged for {GRACE_SECONDS:g} s")
        if now >= self._sent_at + NOOP_SECONDS:
            self._out += Frame(Magic.CLIENT_REQUEST, Opcode.NOOP).encode()
            self._sent_at = now

    def data_to_send(self, now: float) -> bytes:
        """Take the bytes that wait to be sent; call it also after other bytes of the session were sent."""
        data = bytes(self._out)
        self._out.clear()
        self._sent_at = now
        return data

    # --- what a stream may send -------------------------------------------------------------------------------------

    def message(self, stream: TapStream, high_seqno: int) -> bytes | None:
        """The message that is due and no change; None if there is none, or it has to wait."""
        if self._holds_back(stream):
            return None
        place = stream.place
        match place.step:
            case Step.PENDING:
                return self._state(stream, State.PENDING, Step.INITIAL)
            case Step.INITIAL:
                stream.upto = high_seqno
                return self._opaque(stream, OpaqueCode.INITIAL_VBUCKET_STREAM, Place(Step.BACKFILL))
            case Step.BACKFILL if place.seqno >= stream.upto:
                # "DUMP: existing items only"; else what was written meanwhile follows.
                after = replace(place, step=Step.DONE if self.options.dump else Step.LIVE)
                return self._opaque(stream, OpaqueCode.CLOSE_BACKFILL, after)
            case Step.LIVE | Step.DRAIN:
                return self._checkpoint(stream, high_seqno) or self._hand_over(stream, high_seqno)
        return None

    def until(self, stream: TapStream, high_seqno: int) -> int | None:
        """Up to which seqno changes may be sent now; None if none may."""
        place = stream.place
        if place.step not in (Step.BACKFILL, Step.LIVE, Step.DRAIN) or self._holds_back(stream):
            return None
        upto = stream.upto if place.step is Step.BACKFILL else high_seqno
        if self.options.checkpoints is not None and place.step is not Step.BACKFILL:
            if not place.checkpoint:
                return None  # its START is due first
            upto = min(upto, place.checkpoint * CHECKPOINT_SEQNOS)
        return upto if upto > place.seqno else None

    def asks_for_handover(self, stream: TapStream, high_seqno: int) -> bool:
        """tap.md 5, 6: "once backfill and queues are drained and fewer than 10 messages are unacked" the producer's
        own vbucket becomes dead; then call `handing_over`."""
        place = stream.place
        drained = place.step is Step.LIVE and place.seqno >= high_seqno
        return self.options.takeover and drained and self.ledger.unacked < HANDOVER_UNACKED_MAX

    def handing_over(self, stream: TapStream) -> None:
        """The vbucket is dead here: nothing is added to it any more."""
        stream.place = replace(stream.place, step=Step.DRAIN)

    def sent(self, stream: TapStream, seqnos: Sequence[int], upto: int, *, asks: bool) -> None:
        """Changes go out now; `upto`: what the client has with the last of them, `asks`: if it asks for an answer."""
        self.ledger.sending(stream, stream.place, seqnos, asks=asks)
        self.reached(stream, upto)

    def reached(self, stream: TapStream, upto: int) -> None:
        """The client is sent all there is up to a seqno."""
        stream.place = replace(stream.place, seqno=upto)
        if not self.ledger.acknowledges:
            stream.acked_seqno = upto

    def is_idle(self, stream: TapStream, high_seqno: int) -> bool:
        """Whether only a new change can give this stream something to do; if not, it waits for an answer."""
        live = stream.place.step is Step.LIVE and stream.place.seqno >= high_seqno
        plain = not self.options.takeover and self.options.checkpoints is None
        return stream.place.step is Step.DONE or (live and plain)

    def _holds_back(self, stream: TapStream) -> bool:
        if self.ledger.room <= 0 or self.suspended_until or self.fate is not Fate.LIVE:
            return True
        # "No data is sent until all outstanding OPAQUE acks have arrived."
        waits = self._opaque_asked > self.ledger.acked and self.ledger.acknowledges
        return waits and stream.place.step not in _ORDERS

    # --- messages ---------------------------------------------------------------------------------------------------

    def _opaque(self, stream: TapStream | None, code: OpaqueCode, after: Place | None = None) -> bytes:
        if self.ledger.acknowledges:
            self._opaque_asked = self.ledger.sent + 1
        return self._send(stream, tap.Opaque, after, engine_specific=int(code).to_bytes(4))

    def _state(self, stream: TapStream, state: State, step: Step) -> bytes:
        after = replace(stream.place, step=step)
        return self._send(stream, tap.VbucketSet, after, engine_specific=int(state).to_bytes(4))

    def _checkpoint(self, stream: TapStream, high_seqno: int) -> bytes | None:
        """START before the first change of a checkpoint, END behind its last; START of the next only "after END of the
        previous was acked, so both sides rotate checkpoints in step"."""
        place = stream.place
        if self.options.checkpoints is None:
            return None
        if place.checkpoint:
            if place.seqno < place.checkpoint * CHECKPOINT_SEQNOS:
                return None
            stream.blocked_by = self.ledger.sent + 1 if self.ledger.acknowledges else 0
            return self._mark(stream, tap.CheckpointEnd, place.checkpoint, replace(place, checkpoint=0))
        if stream.blocked_by > self.ledger.acked or (place.step is Step.DRAIN and place.seqno >= high_seqno):
            return None
        opened = place.seqno // CHECKPOINT_SEQNOS + 1
        return self._mark(stream, tap.CheckpointStart, opened, replace(place, checkpoint=opened))

    def _mark(self, stream: TapStream, kind: type[tap.CheckpointStart], number: int, after: Place) -> bytes:
        return self._send(stream, kind, after, item_flags=0, item_expiration=0, checkpoint_id=number)

    def _hand_over(self, stream: TapStream, high_seqno: int) -> bytes | None:
        """The last word of a takeover, when nothing else is outstanding; without acknowledgements it is the end."""
        if stream.place.step is not Step.DRAIN or stream.place.seqno < high_seqno or self.ledger.awaits:
            return None
        return self._state(stream, State.ACTIVE, Step.HANDED if self.ledger.acknowledges else Step.DONE)

    def _send(self, stream: TapStream | None, kind: type, after: Place | None, **fields: object) -> bytes:
        """One message that is no change; all of them ask for an acknowledgement (tap.md 4)."""
        flags, vb = int(MessageFlag.ACK) * self.ledger.acknowledges, stream.vbucket if stream else 0
        data: bytes = kind(vbucket=vb, opaque=self.ledger.next_opaque, flags=flags, **fields).encode()
        self.ledger.sending(stream, stream.place if stream else Place(Step.DONE), asks=True)
        if stream is not None and after is not None:
            stream.place = after
        return data

    # --- answers ----------------------------------------------------------------------------------------------------

    def receive_frame(self, frame: Frame, now: float) -> None:
        """Take one frame: "the client may only send responses on that socket"."""
        if not frame.is_response:
            return
        number = self.ledger.number_of(frame.opaque)
        if frame.opcode == Opcode.NOOP:
            return
        if number is None:
            self.unknown += 1  # "ack of an unknown seqno is logged and ignored"
            return
        self._heard_at = now
        if frame.status == Status.SUCCESS:
            self._acknowledged(number)
            return
        self.nacks += 1
        self._acknowledged(number - 1)
        if frame.status not in TEMPORARY:
            self.fate, self.failure = Fate.FAILED, Status(frame.status)
            return
        if not any(stream.place.step >= Step.DRAIN for stream in self.streams.values() if self.options.takeover):
            self.suspended_until = now + BACKOFF_SECONDS
        if self._take_back():
            self._set_up()

    def _acknowledged(self, number: int) -> None:
        for run in self.ledger.acknowledge(number):
            stream = run.stream
            if not isinstance(stream, TapStream):
                continue
            if run.last > number:
                stream.acked_seqno = run.place_before(number + 1).seqno
                continue
            stream.acked_seqno = int(run.seqnos[-1]) if len(run.seqnos) else max(stream.acked_seqno, run.before.seqno)
            if run.before.step is Step.DRAIN and stream.place.step is Step.HANDED and not len(run.seqnos):
                stream.place = replace(stream.place, step=Step.DONE)

    def _take_back(self) -> bool:
        """All that is unacknowledged goes out again: with what was refused, whatever was sent behind it, so that the
        client never sees an older version after a newer one. Returns whether messages of the set-up were among it."""
        places = self.ledger.take_back()
        for stream, place in places:
            if isinstance(stream, TapStream):
                stream.place, stream.blocked_by = place, 0
        self._out.clear()
        self._opaque_asked = 0
        return any(not isinstance(stream, TapStream) for stream, _ in places)
