"""Many requests in flight on one key-value connection, each answer given to its sender.

Each request has an opaque of its own, which its answers repeat. The first waiting request reads for all: frames are
sorted into their flights, and a flight's signal wakes its owner. When a reader has its answer, another waiting request
reads on. So a thousand asyncio tasks share a connection without a lock, and the blocking client uses the same code.

A `Bulk` is a run of quiet requests with consecutive opaques and a no-op behind them: successes are not answered,
failures are, and the no-op's answer shows that the node has dealt with all of them (kv.md: "send a NOOP to flush a
pipeline").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from headwater.client.link import Link
from headwater.client.routing import Address, ClusterMap
from headwater.errors import ConnectionLost, HeadwaterError, PeerSilent, RemoteProtocolError, TransportError
from headwater.tls.settings import TlsSettings
from headwater.transport.waiting import Ready, Signal, Steps
from headwater.wire.bootstrap import Noop
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode, name_of

OPAQUE_MAX = 0xFFFF_FFFF


@dataclass(slots=True)
class Flight:
    """One request in flight and its answers; `last(frame)` is True for the final answer."""

    opcode: int
    last: Callable[[Frame], bool]
    frames: deque[Frame] = field(default_factory=deque)
    signal: Signal = field(default_factory=Signal)


@dataclass(slots=True)
class Bulk:
    """A run of quiet requests in flight: the opaques from `first` up to that of the no-op, and the answers that
    came.
    """

    first: int
    noop: int
    frames: list[Frame] = field(default_factory=list)
    done: bool = False
    signal: Signal = field(default_factory=Signal)


class Pipeline(Link):
    """A link that is used for key-value requests."""

    def __init__(self, address: Address, clock: Callable[[], float], tls: TlsSettings | None = None) -> None:
        super().__init__(address, clock, tls)
        self.map: ClusterMap | None = None  # the node's map when this was opened, which shows the bucket
        self._flights: dict[int, Flight] = {}
        self._bulks: deque[Bulk] = deque()
        self._reader: Flight | Bulk | None = None
        self._abandoned: dict[int, Flight] = {}  # by opaque: nobody waits any more, answers may still come

    def reserve(self, count: int) -> int:
        """Return the first of `count` consecutive opaques."""
        # The opaques of a bulk are consecutive and must not wrap around in the middle.
        if self._opaque + count > OPAQUE_MAX:
            self._opaque = 0
        first = self._opaque + 1
        self._opaque += count
        return first

    @property
    def is_stale(self) -> bool:
        """True if the node has closed the connection while it was idle; checked before a request is sent."""
        if self._flights or self._bulks:
            return False
        with suppress(ConnectionLost):
            return self.fill() == 0
        return True

    def call(self, request: Frame, deadline: float) -> Steps[Frame]:
        """Send a request and return its one answer, whatever its status."""
        frames = yield from self.call_until(request, lambda frame: True, deadline)
        return frames[-1]

    def call_until(self, request: Frame, last: Callable[[Frame], bool], deadline: float) -> Steps[list[Frame]]:
        """Send a request and return its answers up to the first for which `last` returns True (STAT has many)."""
        opaque = self.reserve(1)
        frames: list[Frame] = []
        flight = self._flights[opaque] = Flight(request.opcode, last)
        try:
            self.channel.send(replace(request, opaque=opaque).encode())
            while not frames or not last(frames[-1]):
                while not flight.frames:
                    yield from self._listen(flight, deadline)
                frames.append(flight.frames.popleft())
        except HeadwaterError:  # it has closed the connection
            raise
        except BaseException:
            # The caller was cancelled, but its answers will come: they must be known, or they would look like a fault
            # of the node.
            if not any(map(last, flight.frames)):
                self._abandoned[opaque] = flight
            raise
        finally:
            del self._flights[opaque]
            # Whoever reads for all and leaves, by an answer, an error or a cancellation, hands the reading on: else all
            # others would wait for ever.
            self._pass_on(flight)
        return frames

    def send_bulk(self, first: int, count: int, requests: bytes) -> Bulk:
        """Send encoded quiet requests with the opaques first to first + count - 1; `reserve(count + 1)` gave them."""
        bulk = Bulk(first, first + count)
        self._bulks.append(bulk)
        noop = Noop(opaque=bulk.noop)
        self.channel.send(requests + noop.encode())
        return bulk

    def finish_bulk(self, bulk: Bulk, deadline: float) -> Steps[list[Frame]]:
        """Wait until the node has dealt with all of the requests; return the answers in the order they came."""
        try:
            while not bulk.done:
                yield from self._listen(bulk, deadline)
        finally:
            self._pass_on(bulk)
        return bulk.frames

    def close(self) -> None:
        """Close the connection; everybody who waits for an answer gets an error."""
        super().close()
        for flight in self._waiting_requests():
            flight.signal.fire()

    def _waiting_requests(self) -> Iterator[Flight | Bulk]:
        yield from self._bulks
        yield from self._flights.values()

    def _listen(self, flight: Flight | Bulk, deadline: float) -> Steps[None]:
        """Receive once and sort the frames, or wait for the task that does. After an error the connection is closed."""
        if self._reader is not None and self._reader is not flight:
            self.check(deadline)
            yield Ready((), deadline, flight.signal)
            return
        self._reader = flight
        try:
            yield from self.receive(deadline, flight.signal)
            while (frame := self.next_frame()) is not None:
                self._sort(frame)
        except HeadwaterError:
            self.close()
            raise

    def _pass_on(self, flight: Flight | Bulk) -> None:
        """Stop reading for all, and let the next waiting request read, unless another one does already.

        A task that was woken to read may find its own answer and leave: then it calls this too. A bulk whose owner is
        busy elsewhere, or gave it up, can't be woken: then the next one reads.
        """
        if self._reader is None or self._reader is flight:
            self._reader = None
            any(waiter.signal.fire() for waiter in self._waiting_requests())

    def _sort(self, frame: Frame) -> None:
        flight = self._flights.get(frame.opaque)
        if not frame.is_response:
            raise RemoteProtocolError(f"{name_of(frame.opcode)}: a request, on a connection where we ask")
        if flight is not None and flight.opcode == frame.opcode:
            flight.frames.append(frame)
            flight.signal.fire()
        elif bulk := next((bulk for bulk in self._bulks if bulk.first <= frame.opaque <= bulk.noop), None):
            self._sort_bulk(bulk, frame)
        elif (request := self._abandoned.get(frame.opaque)) is None or request.opcode != frame.opcode:
            raise RemoteProtocolError(
                f"{name_of(frame.opcode)}: an answer with opaque {frame.opaque}, which was not asked"
            )
        elif request.last(frame):
            del self._abandoned[frame.opaque]

    def _sort_bulk(self, bulk: Bulk, frame: Frame) -> None:
        if frame.opaque != bulk.noop:
            bulk.frames.append(frame)
        elif frame.opcode != Opcode.NOOP:
            raise RemoteProtocolError(f"{name_of(frame.opcode)}: the answer to a no-op (opaque {frame.opaque})")
        else:
            bulk.done = True
            bulk.signal.fire()
            self._bulks.remove(bulk)


def lost_write(error: TransportError, action: str) -> TransportError:
    """Return the error for a write whose answer never came: whether it happened is not known."""
    advice = f"whether {action} was stored is not known, read it before retrying"
    if isinstance(error, PeerSilent):
        return PeerSilent(error.peer, error.quiet_seconds, f"{advice}, or repeat it with its CAS")
    return ConnectionLost(error.peer, f"{error.reason}; {advice}") if isinstance(error, ConnectionLost) else error
