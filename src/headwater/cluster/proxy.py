"""Two connections, a producer's and a consumer's, whose frames are passed on unchanged between them.

    producer --changes, markers, states--> pipe DOWN --> consumer
    producer <--requests, acknowledgements-- pipe UP <-- consumer

The mover can send requests to either end in between: `ask` inserts a request and takes its answer out. Each direction
has one buffer; while one end does not take bytes, the other is not read. Both ends get a no-op every so often: an end
that is being read, and sends nothing for `silent_seconds`, is given up, and the proxy with it. So a half-open
connection is noticed within `silent_seconds` plus half a `noop_seconds`. Source: failover 5, step 2; dcp 6.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from headwater.cluster.pipe import CHANGES, Pipe
from headwater.errors import ConnectionLost, HeadwaterError, PeerSilent
from headwater.protocol.handshake import refused
from headwater.transport.channel import Channel
from headwater.wire.bootstrap import Noop
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode, name_of
from headwater.wire.status import Status

NOOP_SECONDS = 2.0
SILENT_SECONDS = 10.0
OPAQUE_FIRST, OPAQUES = 0x4D56_0000, 0x1_0000
"""The first opaque of the mover's own requests, and the number of such opaques: consumers count theirs from 1, and
producers from 10000001.
"""

# A consumer's answer to a change that does not mean that the connection is at its end (dcp 9): no such stream any more.
_STREAM_GONE = frozenset(
    {
        Status.NOT_MY_VBUCKET,
        Status.DCP_STREAM_NOT_FOUND,
        Status.OPAQUE_NO_MATCH,
        Status.KEY_ENOENT,
        Status.KEY_EEXISTS,
    }
)
_ANSWERED = (Opcode.DCP_ADD_STREAM, Opcode.DCP_CLOSE_STREAM, Opcode.NOOP)
_REPORTED = (Opcode.DCP_SET_VBUCKET_STATE, Opcode.DCP_STREAM_END)


class Side(Enum):
    """One end of the proxied connection; the value names it in messages."""

    PRODUCER = "the source"
    CONSUMER = "the target"

    @property
    def other(self) -> Side:
        """The other end."""
        return Side.CONSUMER if self is Side.PRODUCER else Side.PRODUCER


@dataclass(frozen=True, slots=True)
class Liveness:
    """The time after which an end is taken for dead: it sent nothing for `silent_seconds`, with a no-op every
    `noop_seconds`.
    """

    noop_seconds: float = NOOP_SECONDS
    silent_seconds: float = SILENT_SECONDS


class Proxy:
    """A proxy that passes frames until either end is lost; created inside a running event loop.

    Args:
        channels: the two connections, greeted and opened (DCP_OPEN); the proxy closes them.
        listener: called with each SET_VBUCKET_STATE, its answer, and each STREAM_END before it is passed on, and with
            the end that sent it.

    Attributes:
        lost: a future that is done when the proxy has ended; its result is the reason.
        fallen: the end that failed; None if the proxy was closed.
        refused: the opcode of the change that the consumer refused, if that ended the proxy.
        down: the direction from producer to consumer.
    """

    def __init__(
        self,
        channels: dict[Side, Channel],
        listener: Callable[[Side, Frame], None],
        clock: Callable[[], float],
        liveness: Liveness = Liveness(),
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[HeadwaterError] = self._loop.create_future()
        self.fallen: Side | None = None
        self.refused: int | None = None
        self._channels, self._listener, self._clock, self._liveness = channels, listener, clock, liveness
        looked_at = {Side.PRODUCER: (*_ANSWERED, *_REPORTED), Side.CONSUMER: (*_ANSWERED, *_REPORTED, *CHANGES)}
        self._pipes = {side: Pipe(looked_at[side], self._looker(side)) for side in Side}
        self._heard_at = dict.fromkeys(Side, clock())
        self._descriptors = {side: channel.fileno() for side, channel in channels.items()}
        # Ends that do not take what comes from the other, and the last time they did.
        self._blocked: dict[Side, float] = {}
        self._opaques = itertools.cycle(range(OPAQUE_FIRST, OPAQUE_FIRST + OPAQUES))
        self._answers: dict[tuple[Side, int], asyncio.Future[Frame]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def down(self) -> Pipe:
        """The direction from the producer to the consumer, where the changes pass."""
        return self._pipes[Side.PRODUCER]

    def start(self, leftovers: dict[Side, bytes]) -> None:
        """Begin to pass frames on; `leftovers` are bytes received behind the answer to DCP_OPEN."""
        for side in Side:
            leftover = leftovers.get(side, b"")
            self._pipes[side].room()[: len(leftover)] = leftover
            self._loop.add_reader(self._descriptors[side], self._readable, side)
            self._guarded(side, partial(self._take_bytes, side, len(leftover)))
        self._watch()

    async def ask(self, side: Side, request: Frame, timeout_seconds: float) -> Frame:
        """Send one end a request, between the frames that pass; return its answer, whatever the status.

        Raises:
            PeerSilent: no answer came in time. TransportError: the proxy has ended.
        """
        if self.lost.done():
            raise self.lost.result()
        opaque = next(self._opaques)
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self._answers[side, opaque] = answer
        try:
            self._insert(side, replace(request, opaque=opaque))
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            raise PeerSilent(self._channels[side].peer, timeout_seconds) from None
        finally:
            self._answers.pop((side, opaque), None)

    def close(self, reason: HeadwaterError | None = None, fallen: Side | None = None) -> None:
        """Close both connections; may be called again."""
        if self.lost.done():
            return
        if self._timer is not None:
            self._timer.cancel()
        for side, channel in self._channels.items():
            # A channel that broke has closed its descriptor by itself: the loop must not keep the number.
            self._loop.remove_reader(self._descriptors[side])
            self._loop.remove_writer(self._descriptors[side])
            channel.close()
        self.fallen = fallen
        error = reason or ConnectionLost("the mover", "closed the connection")
        self.lost.set_result(error)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever asked may have been cancelled: then nobody fetches it

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _readable(self, side: Side) -> None:
        self._guarded(side, lambda: self._read(side))

    def _read_on(self, side: Side) -> None:
        """Read the bytes that TLS holds already, which the loop does not report."""
        if not self.lost.done() and side.other not in self._blocked and self._channels[side].has_more:
            self._readable(side)

    def _read(self, side: Side) -> None:
        channel = self._channels[side]
        count = channel.receive_into(self._pipes[side].room())
        if count is None:
            return
        if count == 0:
            raise ConnectionLost(channel.peer, "the node closed the connection")
        self._heard_at[side] = self._clock()
        self._take_bytes(side, count)
        if channel.has_more:
            self._loop.call_soon(self._read_on, side)

    def _take_bytes(self, side: Side, count: int) -> None:
        self._pipes[side].received(count)
        self._flush(side)

    def _flush(self, side: Side) -> None:
        """Send on the bytes from one end; while the other end does not accept them all, stop reading from the first."""
        pipe, target = self._pipes[side], self._channels[side.other]
        target.flush()
        while (piece := pipe.piece()) is not None:
            try:
                count = target.send_some(piece)
            except ConnectionLost as error:
                self._guarded(side.other, partial(self._read_last, side.other))
                self.close(error, side.other)
                return
            if count == 0:
                break
            pipe.sent(count)
            if side.other in self._blocked:
                self._blocked[side.other] = self._clock()
        self._wait_for_room(side, blocked=pipe.piece() is not None or target.wants_to_write)

    def _wait_for_room(self, side: Side, *, blocked: bool) -> None:
        source, target = self._descriptors[side], self._descriptors[side.other]
        if blocked and side.other not in self._blocked:
            self._blocked[side.other] = self._clock()
            self._loop.remove_reader(source)
            self._loop.add_writer(target, self._writable, side)
        elif not blocked and side.other in self._blocked:
            del self._blocked[side.other]
            self._loop.remove_writer(target)
            self._loop.add_reader(source, self._readable, side)
            self._loop.call_soon(self._read_on, side)
            self._heard_at[side] = self._clock()  # nobody listened to it meanwhile

    def _read_last(self, side: Side) -> None:
        """Read the last bytes of an end that hung up: they may give the reason."""
        pipe = self._pipes[side]
        if len(pipe.room()) and (count := self._channels[side].receive_into(pipe.room())):
            pipe.received(count)

    def _writable(self, side: Side) -> None:
        self._guarded(side.other, lambda: self._flush(side))

    def _insert(self, side: Side, frame: Frame) -> None:
        """Put a frame of our own among those that go to an end."""
        self._pipes[side.other].insert(frame)
        self._guarded(side, lambda: self._flush(side.other))

    def _guarded(self, side: Side, work: Callable[[], None]) -> None:
        """Run a function for one end; after an error close both ends."""
        if self.lost.done():
            return
        try:
            work()
        except HeadwaterError as error:
            self.close(error, side)

    # --- frames -------------------------------------------------------------------------------------------------------

    def _looker(self, side: Side) -> Callable[[Frame], bool]:
        """Return the function that inspects the frames from an end; where it returns False, the frame is held back."""

        def look(frame: Frame) -> bool:
            if frame.opcode in _REPORTED:
                self._listener(side, frame)
                return True
            if frame.opcode in CHANGES:
                self._check_taken(frame)
                return True
            if not (frame.is_response and OPAQUE_FIRST <= frame.opaque < OPAQUE_FIRST + OPAQUES):
                return True
            answer = self._answers.get((side, frame.opaque))  # None: it was given up, or was a no-op's
            if answer is not None and not answer.done():
                answer.set_result(frame)
            return False

        return look

    def _check_taken(self, answer: Frame) -> None:
        """Check an answer of the consumer to a change; consumers answer changes only to refuse them.

        The producer would hang up on that answer without a reason, so it is not passed on.

        Raises:
            StatusError: the change was refused; `refused` has its opcode.
        """
        if answer.is_response and answer.status and answer.status not in _STREAM_GONE:
            self.refused = answer.opcode
            raise refused(f"{self._channels[Side.CONSUMER].peer}: take a {name_of(answer.opcode)}", answer)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Check, every half of a no-op's interval, that each end is alive, and send no-ops."""
        now, liveness = self._clock(), self._liveness
        for side in Side:
            # An end whose words the other does not take is not read, so it can't be heard: it is the other's fault.
            silent_seconds = now - self._heard_at[side] if side.other not in self._blocked else 0.0
            idle_seconds = max(silent_seconds, now - self._blocked.get(side, now))
            if idle_seconds >= liveness.silent_seconds:
                self.close(PeerSilent(self._channels[side].peer, idle_seconds), side)
                return
            if idle_seconds >= liveness.noop_seconds / 2 and side not in self._blocked:
                self._insert(side, Noop(opaque=next(self._opaques)).frame())
        if not self.lost.done():
            self._timer = self._loop.call_later(liveness.noop_seconds / 2, self._watch)
