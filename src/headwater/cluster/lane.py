"""A proxied connection between two nodes, opened, and the vbuckets that are under way on it.

Both ends are opened under one name. A name is a fence as well: a node that is asked for a second connection of a name
ends the first (dcp 2.1), so once a lane is open nothing of an older mover, dead, hung or cut off, can go on between the
two nodes. Source: failover 5, step 2.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from headwater.client.link import Link
from headwater.cluster.admin import Endpoint
from headwater.cluster.proxy import Liveness, Proxy, Side
from headwater.protocol.handshake import DCP_FEATURES, refused
from headwater.transport.aio import Waiters
from headwater.wire import dcp
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

FEATURES = (*DCP_FEATURES, Feature.XATTR, Feature.SNAPPY)
FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
OPTIONAL_FLAGS = OpenFlag.INCLUDE_DELETED_USER_XATTRS
NAME_BYTES_MAX = 200
_GONE = frozenset({Status.SUCCESS, Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the mover waits, in seconds.

    Attributes:
        connect_seconds: for a connection and its greeting, and for each answer of an administrator's question.
        liveness: when an end of the proxied connection is taken for dead.
        answer_seconds: for the answer to ADD_STREAM, which comes when the producer has answered.
        handover_seconds: from asking for the takeover to its end.
        patience_seconds: how long to go on trying while nothing moves.
        poll_seconds: how often to look how far a copy is.
    """

    connect_seconds: float = 5.0
    liveness: Liveness = field(default_factory=Liveness)
    answer_seconds: float = 15.0
    handover_seconds: float = 120.0
    patience_seconds: float = 60.0
    poll_seconds: float = 0.02


class Passenger(Protocol):
    """A vbucket under way: what it must hear of the frames that pass."""

    def told(self, side: Side, frame: Frame) -> None:
        """A SET_VBUCKET_STATE, its answer or a STREAM_END is about to be passed on."""


class Lane:
    """Made by `open_lane`.

    Attributes:
        proxy: what passes the frames. name: of both connections.
    """

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.proxy: Proxy
        self._limits = limits
        self._passengers: dict[int, Passenger] = {}
        self._asked: dict[int, int] = {}  # the vbucket whose state was set last, by the opaque of its stream

    @property
    def is_open(self) -> bool:
        """Whether frames pass."""
        return not self.proxy.lost.done()

    def close(self) -> None:
        """Close both connections."""
        self.proxy.close()

    def enter(self, vb: int, passenger: Passenger) -> None:
        """Tell a vbucket of what passes."""
        self._passengers[vb] = passenger

    def leave(self, vb: int) -> bool:
        """It need not be told any more; False if it was not being told."""
        return self._passengers.pop(vb, None) is not None

    async def add_stream(self, vb: int, flags: int) -> None:
        """Let the consumer ask the producer for a stream; returns when that was answered.

        Raises:
            StatusError: as the consumer, or the producer, answered.
        """
        asked = dcp.AddStream(vbucket=vb, flags=flags).frame()
        answer = await self.proxy.ask(Side.CONSUMER, asked, self._limits.answer_seconds)
        if answer.status:
            raise refused(f"stream vbucket {vb} to the target", answer)

    async def close_stream(self, vb: int) -> None:
        """End the stream at both ends; nothing if there is none.

        The producer first: what it sends before its answer passes before the consumer is told, so nothing comes late.
        """
        for side in (Side.PRODUCER, Side.CONSUMER):
            asked = dcp.CloseStream(vbucket=vb).frame()
            answer = await self.proxy.ask(side, asked, self._limits.answer_seconds)
            if answer.status not in _GONE:
                raise refused(f"close the stream of vbucket {vb} at {side.value}", answer)

    def told(self, side: Side, frame: Frame) -> None:
        """A frame that concerns a vbucket is about to be passed on."""
        if frame.is_response:
            vb = self._asked.pop(frame.opaque, None)
        else:
            vb = frame.vbucket
            if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
                self._asked[frame.opaque] = vb
        passenger = None if vb is None else self._passengers.get(vb)
        if passenger is not None:
            passenger.told(side, frame)


async def open_lane(
    source: Endpoint,
    target: Endpoint,
    limits: Limits,
    purpose: str,
    clock: Callable[[], float] = time.monotonic,
) -> Lane:
    """Connect to both nodes and begin to pass frames.

    Raises:
        TransportError, StatusError: a node can't be reached, or refuses.
    """
    # The node's own dialler has the name without a purpose; two of one name would end each other for ever.
    name = f"replication:{source.address}->{target.address}:{target.bucket}:{purpose}"[:NAME_BYTES_MAX]
    lane, opener = Lane(name, limits), _Opener(limits, clock)
    try:
        # What one end grants and the other does not would make frames that the other can't read: so both get the same.
        features = await opener.greet(Side.CONSUMER, target, FEATURES)
        common = await opener.greet(Side.PRODUCER, source, features)
        if common != features:
            await opener.greet(Side.CONSUMER, target, common)
        await opener.open(Side.CONSUMER, name, FLAGS)
        await opener.open(Side.PRODUCER, name, FLAGS | OpenFlag.PRODUCER)
        channels = {side: link.channel for side, link in opener.links.items()}
        lane.proxy = Proxy(channels, lane.told, clock, limits.liveness)
        lane.proxy.start({side: bytes(link.inbox.unread) for side, link in opener.links.items()})
    except BaseException:
        opener.close()
        raise
    return lane


class _Opener:
    """The two connections of a lane while they are made; `links` has them."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.links: dict[Side, Link] = {}
        self._waiters, self._clock = Waiters(clock), clock
        self._seconds_max = limits.connect_seconds

    def close(self) -> None:
        """It came to nothing."""
        for link in self.links.values():
            link.close()
        self._waiters.sweep()

    async def greet(self, side: Side, endpoint: Endpoint, features: tuple[int, ...]) -> tuple[int, ...]:
        """Connect to one end, anew if need be; returns the features that it granted of those wanted."""
        if side in self.links:
            self.links[side].close()
        link = self.links[side] = Link(endpoint.address, self._clock)
        await self._waiters.run(link.open(endpoint.login(features), self._seconds_max))
        return tuple(feature for feature in features if feature in link.greeting.features)

    async def open(self, side: Side, name: str, flags: int) -> None:
        """DCP_OPEN, with the flags that an older server may not know if it knows them."""
        link = self.links[side]
        for wanted in (flags | OPTIONAL_FLAGS, flags):
            asked = dcp.Open(key=name.encode(), flags=wanted).frame()
            answer = await self._waiters.run(link.ask(asked, self._clock() + self._seconds_max))
            if answer.status != Status.EINVAL:
                break
        if answer.status:
            raise refused(f'{link.address}: open the DCP connection "{name}"', answer)
