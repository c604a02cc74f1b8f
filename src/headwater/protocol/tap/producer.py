"""The producer's end of a TAP session: chooses the next message, and applies the client's answers.

A session outlives its connection if it has a name and the node keeps it. It has a stream for each vbucket, whose
`TapPlace` moves through the steps of tap.md 5. The owner of the log calls `message` (the next message that is not a
change) and `until` (the seqno up to which changes may be sent now), sends, and reports the changes by `sent`.
`receive_frame` takes the answers, which move the window, move places back (resend), or end the session.

Checkpoints are ranges of CHECKPOINT_SEQNOS seqnos, numbered from 1. Their ids grow by one, are the same for every
client and after an orderly restart, and need no state. Above the number an id has a tag of the branch: seqnos are given
again in another history, and a checkpoint of that history says nothing here. Source: tap.md 3 to 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, TypeAlias

from headwater.errors import RemoteProtocolError
from headwater.protocol.end import PeerGone, each_frame
from headwater.protocol.tap.ledger import Ledger, TapPlace, TapStep
from headwater.protocol.tap.options import TapOptions
from headwater.wire import tap
from headwater.wire.framing import FrameBuffer
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
_NUMBER_BITS: Final = 32
_TAG_BITS: Final = 31
"""The bits of a checkpoint's id: the number, and above it the tag of its branch; together no more than GIVEN_MAX."""

TEMPORARY: Final = frozenset({Status.EBUSY, Status.ETMPFAIL})
_ORDERS: Final = frozenset({TapStep.PENDING, TapStep.INITIAL})  # before any data; needs no room but its own


def checkpoint_id(number: int, branch: int) -> int:
    """Return the id of a checkpoint by its number and the uuid of its branch."""
    return (branch & ((1 << _TAG_BITS) - 1)) << _NUMBER_BITS | number


class Fate(Enum):
    """The states of a session."""

    LIVE = "live"
    DONE = "done"  # dump or takeover is complete
    FAILED = "failed"  # the client refused a message


class Wait(Enum):
    """The conditions under which an idle stream may continue."""

    ORDERS = "orders"  # room in the window, and the end of a suspension
    DATA = "data"  # also those to every OPAQUE
    HANDOVER = "handover"  # also all but a few
    LAST_WORD = "last word"  # also all that were asked for


@dataclass(frozen=True, slots=True)
class MessageRefused:
    """The client refused a message permanently: the session is over."""

    status: Status


Event: TypeAlias = MessageRefused | PeerGone


class TapProducerStream:
    """One vbucket of a session.

    Attributes:
        place: step, and last seqno sent.
        upto: seqno at which the backfill ends.
        acked_seqno: the client has acknowledged everything up to this seqno (without acknowledgements: was sent it).
        deleted_rev: the highest revision of all deletions in the vbucket; the owner of the log sets it.
        branch: the uuid of the vbucket's newest branch when the client's copy began; the owner of the log sets it.
        blocked_by: message number of a checkpoint's END, which the client must acknowledge before the next checkpoint
            begins; 0: none.
    """

    def __init__(self, vbucket: int, place: TapPlace) -> None:
        self.vbucket = vbucket
        self.place = place
        self.upto = 0
        self.acked_seqno: int = place.seqno
        self.blocked_by = self.deleted_rev = self.branch = 0


class TapProducer:
    """The producer's end of a session.

    Args:
        options: options of the client's request.
        now: seconds of a monotonic clock, as in every later call.

    Attributes:
        streams: streams by vbucket.
        ledger: message numbers and window.
        fate: state of the session.
        nacks: number of refusals by the client.
        unknown: number of acknowledgements of messages that were never sent.
    """

    def __init__(self, options: TapOptions, now: float) -> None:
        self.options: TapOptions = options
        self.ledger: Final = Ledger(acknowledges=options.acknowledge)
        self.streams: dict[int, TapProducerStream] = {}
        self.fate: Fate = Fate.LIVE
        self.nacks: int = 0
        self.unknown: int = 0
        self.reconnects: int = 0
        self.suspended_until: float = 0.0
        self.failure: Status = Status.SUCCESS
        self._released: list[TapProducerStream] = []
        self._unfinished: TapProducerStream | None = None
        self._heard_at = self._sent_at = now
        self._opaque_asked = 0  # number of the last TAP_OPAQUE: data waits for its acknowledgement
        self._out = bytearray()
        self._buffer = FrameBuffer()
        self._now = now
        self._set_up()

    # --- session ----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        """Queue the first messages of a session with acknowledgements: OPAQUE 0, with checkpoints OPAQUE 2 (tap.md
        3.4).
        """
        if self.options.acknowledge:
            self._out += self._opaque(None, OpaqueCode.ENABLE_AUTO_NACK)
            if self.options.checkpoints is not None:
                self._out += self._opaque(None, OpaqueCode.ENABLE_CHECKPOINT_SYNC)

    def resume(self, options: TapOptions, now: float, now_unix: int) -> None:
        """Continue the session of a client that connects again: "unacked messages are re-queued and sent again with new
        seqnos; the filter is replaced by the new one. If BACKFILL is given with a different age, a new backfill is
        planned for it; without BACKFILL the old criterion stays" (tap.md 1.2)."""
        if options.since is None:
            options = replace(options, since=self.options.since)
        is_other_start = options.since != self.options.since
        # In front of the new filter: places of unacknowledged messages go back by the streams that sent them.
        self._take_back()
        self.options, self.ledger.acknowledges = options, options.acknowledge
        # Who now wants changes only gives up the rest of a backfill, not the changes that it has not heard of.
        given_up = TapStep.DONE if options.wants_backfill(now_unix) else TapStep.BACKFILL
        for vb in [vb for vb, stream in self.streams.items() if is_other_start and stream.place.step <= given_up]:
            del self.streams[vb]
        for vb in [vb for vb in self.streams if options.vbuckets and vb not in options.vbuckets]:
            del self.streams[vb]
        self.reconnects += 1
        self.suspended_until = 0.0
        self._heard_at = self._sent_at = now
        self._set_up()

    def follow(
        self, vbucket: int, high_seqno: int, purge_seqno: int, now_unix: int, branch: int = 0
    ) -> TapProducerStream:
        """Begin the stream of a vbucket; `high_seqno` is its newest durable seqno, `branch` the uuid of its newest
        branch.
        """
        named = (self.options.checkpoints or {}).get(vbucket, 0)
        number = named & ((1 << _NUMBER_BITS) - 1)
        closed = number * CHECKPOINT_SEQNOS
        if self.options.takeover:
            place = TapPlace(TapStep.PENDING)
        # Below the purge a deletion behind the checkpoint may be gone, and the client would keep the document; on
        # another branch it may hold changes that a failover took back. Then it is sent everything (tap.md 5.1).
        elif closed and purge_seqno <= closed <= high_seqno and named == checkpoint_id(number, branch):
            place = TapPlace(TapStep.LIVE, closed)  # "positions its cursor at the next checkpoint if it still has it"
        elif self.options.wants_backfill(now_unix) or named:
            place = TapPlace(TapStep.INITIAL)
        else:
            place = TapPlace(TapStep.DONE if self.options.dump else TapStep.LIVE, high_seqno)
        stream = self.streams[vbucket] = TapProducerStream(vbucket, place)
        stream.branch = branch
        return stream

    def leave(self, vbucket: int) -> None:
        """Forget a vbucket that is gone, and the client's checkpoint of it: a later vbucket of that number has another
        history.
        """
        self.streams.pop(vbucket, None)
        if self.options.checkpoints:
            checkpoints = {vb: number for vb, number in self.options.checkpoints.items() if vb != vbucket}
            self.options = replace(self.options, checkpoints=checkpoints)

    def restart(self, stream: TapProducerStream) -> None:
        """Start a stream from the beginning, because the vbucket no longer has the history that the client knows.

        A stream whose vbucket is already being handed over continues.
        """
        # From DRAIN on the vbucket is dead here: nothing can have changed its history.
        if stream.place.step < TapStep.DRAIN:
            stream.place, stream.acked_seqno, stream.blocked_by = TapPlace(TapStep.INITIAL), 0, 0
            self.ledger.restart(stream, stream.place)

    def sent_before(self, stream: TapProducerStream, seqno: int, high_seqno: int) -> bool:
        """Return True if a stream began to send a state older than `seqno`, which is durable by now.

        `seqno` is 0 if there is no such change.
        """
        step, seqno_sent = stream.place.step, stream.place.seqno
        if step is TapStep.BACKFILL:
            seqno_sent = stream.upto
        return step in (TapStep.BACKFILL, TapStep.LIVE) and seqno_sent < seqno <= high_seqno

    def filter_changed(self) -> None:
        """Queue the OPAQUE that confirms CHANGE_VB_FILTER."""
        self._out += self._opaque(None, OpaqueCode.COMPLETE_VB_FILTER_CHANGE)

    @property
    def is_complete(self) -> bool:
        """True if a dump or takeover has sent everything and received all requested acknowledgements."""
        # A dump ends "after all ACK responses have arrived" (tap.md 5): the client closes with the socket, and its last
        # answer would be lost.
        if not self.options.ends or self.ledger.awaits or self._out:
            return False
        return self._is_done(self._unfinished) and self._find_unfinished() is None

    def _is_done(self, stream: TapProducerStream | None) -> bool:
        return stream is None or stream.place.step is TapStep.DONE or self.streams.get(stream.vbucket) is not stream

    def _find_unfinished(self) -> TapProducerStream | None:
        """Return a stream that is not done, None if all are; cached, because a search visits every vbucket."""
        self._unfinished = next(
            (stream for stream in self.streams.values() if stream.place.step is not TapStep.DONE), None
        )
        return self._unfinished

    @property
    def deadline(self) -> float:
        """The time at which to call `tick`."""
        waits = [self._sent_at + NOOP_SECONDS]
        if self.ledger.room <= 0:
            waits.append(self._heard_at + GRACE_SECONDS)
        if self.suspended_until:
            waits.append(self.suspended_until)
        return min(waits)

    def tick(self, now: float) -> list[Event]:
        """Act on the deadline: a no-op is due, or a suspension is over.

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
        self._now = now
        return []

    def data_to_send(self) -> bytes:
        """Return the bytes to send, and forget them; send them before the results of `message` and before changes."""
        data = bytes(self._out)
        self._out.clear()
        if data:
            self._sent_at = max(self._sent_at, self._now)
        return data

    def wrote(self, now: float) -> None:
        """Note that bytes of the session were sent, or may have been: the next no-op is due one interval from now."""
        self._sent_at = self._now = now

    # --- what a stream may send -------------------------------------------------------------------------------------

    def message(self, stream: TapProducerStream, high_seqno: int) -> bytes | None:
        """Return the next message that is not a change; None if there is none, or the stream must wait."""
        if self._holds_back(stream):
            return None
        place = stream.place
        match place.step:
            case TapStep.PENDING:
                return self._state(stream, State.PENDING, TapStep.INITIAL)
            case TapStep.INITIAL:
                # Taken as the message leaves, so "from scratch" and the end of the backfill describe one state.
                stream.upto = high_seqno
                return self._opaque(stream, OpaqueCode.INITIAL_VBUCKET_STREAM, TapPlace(TapStep.BACKFILL))
            case TapStep.BACKFILL if place.seqno >= stream.upto:
                # "DUMP: existing items only"; else what was written meanwhile follows.
                after = replace(place, step=TapStep.DONE if self.options.dump else TapStep.LIVE)
                return self._opaque(stream, OpaqueCode.CLOSE_BACKFILL, after)
            case TapStep.LIVE | TapStep.DRAIN:
                return self._checkpoint(stream, high_seqno) or self._hand_over(stream, high_seqno)
        return None

    def until(self, stream: TapProducerStream, high_seqno: int) -> int | None:
        """Return the seqno up to which changes may be sent now; None if no change may."""
        place = stream.place
        if place.step not in (TapStep.BACKFILL, TapStep.LIVE, TapStep.DRAIN) or self._holds_back(stream):
            return None
        seqno_max = stream.upto if place.step is TapStep.BACKFILL else high_seqno
        if self.options.checkpoints is not None and place.step is not TapStep.BACKFILL:
            if not place.checkpoint:
                return None  # its START is due first
            # No change of the next checkpoint goes out before the END of this one is acknowledged (tap.md 5.1).
            seqno_max = min(seqno_max, place.checkpoint * CHECKPOINT_SEQNOS)
        return seqno_max if seqno_max > place.seqno else None

    def sends_all(self, stream: TapProducerStream) -> bool:
        """Return True if changes are sent although their TTL is 0: "break loops" (tap.md 3.2) concerns live changes
        only.

        A backfill and a takeover must send everything that the vbucket has: an omitted change would be lost. Neither
        makes a loop, since each is requested only once.
        """
        return self.options.ends or stream.place.step is TapStep.BACKFILL

    def asks_for_handover(self, stream: TapProducerStream, high_seqno: int) -> bool:
        """Return True if the producer's own vbucket must become dead now; then call `handing_over`.

        Source: tap.md 5, 6: "once backfill and queues are drained and fewer than 10 messages are unacked".
        """
        place = stream.place
        drained = place.step is TapStep.LIVE and place.seqno >= high_seqno
        return self.options.takeover and drained and self.ledger.unacked < HANDOVER_UNACKED_MAX

    def handing_over(self, stream: TapProducerStream) -> None:
        """Note that the producer's own vbucket is dead, so the stream gets no more changes and ends once all are
        sent.
        """
        stream.place = replace(stream.place, step=TapStep.DRAIN)

    def sent(self, stream: TapProducerStream, seqnos: Sequence[int], upto: int, *, asks: bool) -> None:
        """Report changes that are sent now, all up to `upto`; `asks` is True if the last one has flag ACK."""
        self.ledger.sending(stream, stream.place, seqnos, asks=asks)
        self.reached(stream, upto)

    def reached(self, stream: TapProducerStream, upto: int) -> None:
        """Note that everything up to seqno `upto` was sent to the client."""
        stream.place = replace(stream.place, seqno=upto)
        if not self.ledger.acknowledges:
            stream.acked_seqno = upto

    def wait(self, stream: TapProducerStream, high_seqno: int) -> Wait | None:
        """Return the condition for which an idle stream waits; None if it waits for a change of its vbucket, or for the
        acknowledgement of its own last message (`take_released`).
        """
        place = stream.place
        if place.step in _ORDERS:
            return Wait.ORDERS
        if place.step >= TapStep.HANDED:
            return None
        if place.step < TapStep.LIVE or place.seqno < high_seqno or not self.options.takeover:
            return Wait.DATA
        return Wait.LAST_WORD if place.step is TapStep.DRAIN else Wait.HANDOVER

    def stops(self, wait: Wait) -> bool:
        """Return True if the condition `wait` does not hold yet: the window is full, or acknowledgements are due."""
        if self.ledger.room <= 0 or self.suspended_until or self.fate is not Fate.LIVE:
            return True
        if wait is Wait.ORDERS:
            return False
        # "No data is sent until all outstanding OPAQUE acks have arrived."
        if self.ledger.acknowledges and self._opaque_asked > self.ledger.acked:
            return True
        few = self.ledger.unacked < HANDOVER_UNACKED_MAX
        return (wait is Wait.HANDOVER and not few) or (wait is Wait.LAST_WORD and self.ledger.awaits)

    def take_released(self) -> list[TapProducerStream]:
        """Return the streams that acknowledgements have released since the last call.

        They continue after a checkpoint, or send refused messages again, even if they also wait for something else.
        """
        released, self._released = self._released, []
        return released

    def _holds_back(self, stream: TapProducerStream) -> bool:
        return self.stops(Wait.ORDERS if stream.place.step in _ORDERS else Wait.DATA)

    # --- messages ---------------------------------------------------------------------------------------------------

    def _opaque(self, stream: TapProducerStream | None, code: OpaqueCode, after: TapPlace | None = None) -> bytes:
        if self.ledger.acknowledges:
            # The number that the next message gets: data waits for the answer to it.
            self._opaque_asked = self.ledger.sent + 1
        return self._send(stream, tap.Opaque, after, engine_specific=tap.code_or_state(code))

    def _state(self, stream: TapProducerStream, state: State, step: TapStep) -> bytes:
        after = replace(stream.place, step=step)
        return self._send(stream, tap.VbucketSet, after, engine_specific=tap.code_or_state(state))

    def _checkpoint(self, stream: TapProducerStream, high_seqno: int) -> bytes | None:
        """Return the next checkpoint message, None if none is due: START before a checkpoint's first change, END after
        its last.

        The next START waits "after END of the previous was acked, so both sides rotate checkpoints in step".
        """
        place = stream.place
        if self.options.checkpoints is None:
            return None
        if place.checkpoint:
            if place.seqno < place.checkpoint * CHECKPOINT_SEQNOS:
                return None
            stream.blocked_by = self.ledger.sent + 1 if self.ledger.acknowledges else 0
            after = replace(place, checkpoint=0)
            ended = checkpoint_id(place.checkpoint, stream.branch)
            return self._mark(stream, tap.CheckpointEnd, after, key=b"checkpoint_end", checkpoint_id=ended)
        if stream.blocked_by > self.ledger.acked or (place.step is TapStep.DRAIN and place.seqno >= high_seqno):
            return None
        checkpoint = place.seqno // CHECKPOINT_SEQNOS + 1
        after = replace(place, checkpoint=checkpoint)
        # tap.md 2: the private section is the highest deleted revision: new keys of the consumer start above it.
        fields = {"key": b"checkpoint_start", "engine_specific": tap.revision(stream.deleted_rev)}
        begun = checkpoint_id(checkpoint, stream.branch)
        return self._mark(stream, tap.CheckpointStart, after, checkpoint_id=begun, **fields)

    def _mark(
        self, stream: TapProducerStream, kind: type[tap.CheckpointStart], after: TapPlace, **fields: object
    ) -> bytes:
        return self._send(stream, kind, after, item_flags=0, item_expiration=0, **fields)

    def _hand_over(self, stream: TapProducerStream, high_seqno: int) -> bytes | None:
        """Return the last message of a takeover once everything else is acknowledged; None before.

        In a session without acknowledgements the stream is done with that message.
        """
        # The word that makes the other side active comes last of all: as long as an answer is owed, a change may have
        # been refused there (tap.md 5, step 6).
        if stream.place.step is not TapStep.DRAIN or stream.place.seqno < high_seqno or self.ledger.awaits:
            return None
        return self._state(stream, State.ACTIVE, TapStep.HANDED if self.ledger.acknowledges else TapStep.DONE)

    def _send(self, stream: TapProducerStream | None, kind: type, after: TapPlace | None, **fields: object) -> bytes:
        """Record and return one message that is not a change; all of these request an acknowledgement (tap.md 4)."""
        flags, vb = int(MessageFlag.ACK) * self.ledger.acknowledges, stream.vbucket if stream else 0
        data: bytes = kind(vbucket=vb, opaque=self.ledger.next_opaque, flags=flags, **fields).encode()
        # Entered with the place before the message: a refusal leads back to it, and it is sent again.
        self.ledger.sending(stream, stream.place if stream else TapPlace(TapStep.DONE), asks=True)
        if stream is not None and after is not None:
            stream.place = after
        return data

    # --- answers ----------------------------------------------------------------------------------------------------

    def receive_data(self, data: bytes, now: float) -> list[Event]:
        """Take received bytes; then check which streams may continue (`take_released`, `stops`).

        Raises:
            BadFrame: the bytes are not frames; close the connection.
        """
        return each_frame(self._buffer, data, now, self.receive_frame)

    def receive_eof(self) -> list[Event]:
        """Report that the client closed the connection; `resume` continues a kept session when it connects again."""
        self._buffer = FrameBuffer()
        return [PeerGone()]

    def receive_frame(self, frame: Frame, now: float) -> list[Event]:
        """Take one frame, for owners that cut frames: "the client may only send responses on that socket"."""
        self._now = now
        if frame.is_response:
            self._take_answer(frame, now)
        return [MessageRefused(self.failure)] if self.fate is Fate.FAILED else []

    def _take_answer(self, frame: Frame, now: float) -> None:
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
        # "Earlier messages count as acked, this message is re-queued" (tap.md 4).
        self._acknowledged(number - 1)
        if frame.status not in TEMPORARY:
            self.fate, self.failure = Fate.FAILED, Status(frame.status)
            return
        # "No suspension in the final phase of a takeover" (tap.md 4): the vbucket has no owner meanwhile.
        if not any(stream.place.step >= TapStep.DRAIN for stream in self.streams.values() if self.options.takeover):
            self.suspended_until = now + BACKOFF_SECONDS
        if self._take_back():
            self._set_up()

    def _acknowledged(self, number: int) -> None:
        for run in self.ledger.acknowledge(number):
            stream = run.stream
            if not isinstance(stream, TapProducerStream):
                continue
            if run.last > number:
                stream.acked_seqno = run.place_before(number + 1).seqno
                continue
            if run.last == stream.blocked_by:
                self._released.append(stream)
            stream.acked_seqno = int(run.seqnos[-1]) if len(run.seqnos) else max(stream.acked_seqno, run.before.seqno)
            # The answer to VBUCKET_SET(active): only this one completes the hand-over (tap.md 5, step 6).
            if run.before.step is TapStep.DRAIN and stream.place.step is TapStep.HANDED and not len(run.seqnos):
                stream.place = replace(stream.place, step=TapStep.DONE)

    def _take_back(self) -> bool:
        """Move all streams back to send every unacknowledged message again; return True if messages of the set-up were
        among them.

        Together with a refused message all later ones are sent again, so that the client never receives an older
        version after a newer one.
        """
        places = self.ledger.take_back()
        for stream, place in places:
            if isinstance(stream, TapProducerStream):
                stream.place, stream.blocked_by = place, 0
                self._released.append(stream)
        # What waits to be sent was numbered by the runs that are forgotten.
        self._out.clear()
        self._opaque_asked = 0
        return any(not isinstance(stream, TapProducerStream) for stream, _ in places)
