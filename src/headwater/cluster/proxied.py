"""A proxied connection between two nodes, opened, and the vbuckets that are under way on it.

Both ends are opened under one name. A name is a fence as well: a node that is asked for a second connection of a name
ends the first (dcp 2.1), so once both are open nothing of an older mover, dead, hung or cut off, goes on between the
two nodes.

The target is told its name, as the cluster map has it, so the streams carry prepares, commits and aborts of durable
writes where both nodes know them: a copy without would pass the seqno of a prepare and not have it. Its
acknowledgements pass as well, so what waits for it at the source goes on. Source: failover 5, step 2; dcp 2.1, 10.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from headwater.client.link import Link
from headwater.cluster.admin import Endpoint
from headwater.cluster.proxy import Liveness, Proxy, Side
from headwater.protocol.dcp.opening import NAME_BYTES_MAX
from headwater.protocol.handshake import DCP_FEATURES, refused
from headwater.transport.aio import Waiters
from headwater.wire import dcp
from headwater.wire.datatype import Datatype
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

FEATURES = (*DCP_FEATURES, Feature.XATTR, Feature.SNAPPY, Feature.COLLECTIONS)
FLAGS = OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES
OPTIONAL_FLAGS = OpenFlag.INCLUDE_DELETED_USER_XATTRS
YOUNGER = (OPTIONAL_FLAGS, OpenFlag.INCLUDE_DELETE_TIMES)
"""Flags that a node may not know and then refuses, the youngest first."""

_GONE = frozenset({Status.SUCCESS, Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND})


@dataclass(frozen=True, slots=True)
class Limits:
    """The times that the mover waits, in seconds.

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


class Listener(Protocol):
    """A vbucket under way: what it must hear of the frames that pass."""

    def observe(self, side: Side, frame: Frame) -> None:
        """A SET_VBUCKET_STATE, its answer or a STREAM_END is about to be passed on."""


class ProxiedConnection:
    """Two connections under one name and the proxy between them, made by `open_proxied`.

    Attributes:
        proxy: what passes the frames. name: of both connections.
        has_delete_times: whether deletions come with the time of the deletion (dcp 3, the V2 layout).
    """

    def __init__(self, name: str, limits: Limits) -> None:
        self.name: str = name
        self.has_delete_times: bool = True
        self.proxy: Proxy
        self._limits = limits
        self._listeners: dict[int, Listener] = {}
        self._vbuckets_by_opaque: dict[
            int, int
        ] = {}  # the vbucket whose state was set last, by the opaque of its stream

    @property
    def is_open(self) -> bool:
        """True if frames pass."""
        return not self.proxy.lost.done()

    @property
    def is_idle(self) -> bool:
        """True if no vbucket is under way on it."""
        return not self._listeners

    @property
    def refuses_delete_times(self) -> bool:
        """True if it is over because the consumer would not take a deletion with its time."""
        return self.has_delete_times and self.proxy.refused in (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)

    def close(self) -> None:
        """Close both connections."""
        self.proxy.close()

    def listen(self, vbucket: int, listener: Listener) -> None:
        """Tell a vbucket of what passes."""
        self._listeners[vbucket] = listener

    def stop_listening(self, vbucket: int) -> bool:
        """Stop telling a vbucket of what passes; False if nobody was."""
        return self._listeners.pop(vbucket, None) is not None

    async def add_stream(self, vbucket: int, flags: int) -> None:
        """Let the consumer ask the producer for a stream; returns when that was answered.

        Raises:
            StatusError: as the consumer, or the producer, answered.
        """
        request = dcp.AddStream(vbucket=vbucket, flags=flags).frame()
        answer = await self.proxy.ask(Side.CONSUMER, request, self._limits.answer_seconds)
        if answer.status:
            raise refused(f"stream vbucket {vbucket} to the target", answer)

    async def close_stream(self, vbucket: int) -> None:
        """End the stream at both ends; nothing if there is none.

        The producer first: what it sends before its answer passes before the consumer is told, so nothing comes late.
        """
        for side in (Side.PRODUCER, Side.CONSUMER):
            request = dcp.CloseStream(vbucket=vbucket).frame()
            answer = await self.proxy.ask(side, request, self._limits.answer_seconds)
            if answer.status not in _GONE:
                raise refused(f"close the stream of vbucket {vbucket} at {side.value}", answer)

    def observe(self, side: Side, frame: Frame) -> None:
        """A frame that concerns a vbucket is about to be passed on."""
        if frame.is_response:
            vb = self._vbuckets_by_opaque.pop(frame.opaque, None)
        else:
            vb = frame.vbucket
            if frame.opcode == Opcode.DCP_SET_VBUCKET_STATE:
                self._vbuckets_by_opaque[frame.opaque] = vb
        listener = None if vb is None else self._listeners.get(vb)
        if listener is not None:
            listener.observe(side, frame)


def connection_name(source: Endpoint, target: Endpoint, purpose: str) -> str:
    """The name that every mover between two nodes gives its connection for a purpose."""
    # The node's own dialler has the name without a purpose; two of one name would end each other for ever.
    end = f":{purpose}"
    return f"replication:{source.address}->{target.address}:{target.bucket}"[: NAME_BYTES_MAX - len(end)] + end


async def open_proxied(
    source: Endpoint,
    target: Endpoint,
    limits: Limits,
    purpose: str,
    clock: Callable[[], float] = time.monotonic,
    *,
    delete_times: bool = True,
) -> ProxiedConnection:
    """Connect to both nodes and begin to pass frames.

    Deletions carry their times if `delete_times`, and if the target is of an age that takes them: a server of before
    5.5 ignores the flag as a consumer, and refuses the first deletion that has one. It does not know JSON in HELLO.

    Raises:
        TransportError, StatusError: a node can't be reached, or refuses.
    """
    name = connection_name(source, target, purpose)
    connection, opener = ProxiedConnection(name, limits), _Opener(limits, clock)
    try:
        # What one end grants and the other does not would make frames that the other can't read: so both get the same.
        features = await opener.greet(Side.CONSUMER, target, FEATURES)
        common = await opener.greet(Side.PRODUCER, source, features)
        if common != features:
            await opener.greet(Side.CONSUMER, target, common)
        wanted = FLAGS | OPTIONAL_FLAGS
        if not (delete_times and Feature.JSON in features):
            wanted &= ~OpenFlag.INCLUDE_DELETE_TIMES
        named = str(target.address) if Feature.JSON in features else ""
        taken = await opener.open(Side.CONSUMER, name, wanted, named)
        await opener.open(Side.PRODUCER, name, taken | OpenFlag.PRODUCER)
        connection.has_delete_times = bool(taken & OpenFlag.INCLUDE_DELETE_TIMES)
        channels = {side: link.channel for side, link in opener.links.items()}
        connection.proxy = Proxy(channels, connection.observe, clock, limits.liveness)
        connection.proxy.start({side: bytes(link.inbox.unread) for side, link in opener.links.items()})
    except BaseException:
        opener.close()
        raise
    return connection


class _Opener:
    """The two connections while they are made; `links` has them."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.links: dict[Side, Link] = {}
        self._waiters, self._clock = Waiters(clock), clock
        self._seconds_max = limits.connect_seconds

    def close(self) -> None:
        """Give the opening up: close what is connected so far."""
        for link in self.links.values():
            link.close()
        self._waiters.sweep()

    async def greet(self, side: Side, endpoint: Endpoint, features: tuple[int, ...]) -> tuple[int, ...]:
        """Connect to one end, anew if need be; returns the features that it granted of those wanted."""
        if side in self.links:
            self.links[side].close()
        link = self.links[side] = Link(endpoint.dialled, self._clock, endpoint.tls)
        await self._waiters.run(link.open(endpoint.login(features), self._seconds_max))
        return tuple(feature for feature in features if feature in link.greeting.features)

    async def open(self, side: Side, name: str, flags: int, consumer_name: str = "") -> int:
        """DCP_OPEN, with the consumer's own name and the flags as far as the server knows them; returns these.

        EINVAL does not say which of them it was: a server that knows names, and not the youngest flag, is to keep its.
        """
        answer = await self._open_named(side, name, flags, consumer_name)
        for younger in YOUNGER:
            if answer.status == Status.EINVAL and flags & younger:
                flags &= ~younger
                answer = await self._open_named(side, name, flags, consumer_name)
        if answer.status:
            raise refused(f'{self.links[side].address}: open the DCP connection "{name}"', answer)
        return flags

    async def _open_named(self, side: Side, name: str, flags: int, consumer_name: str) -> Frame:
        answer = await self._open(side, name, flags, consumer_name)
        if answer.status == Status.EINVAL and consumer_name:
            answer = await self._open(side, name, flags)
        return answer

    async def _open(self, side: Side, name: str, flags: int, consumer_name: str = "") -> Frame:
        request = dcp.Open(key=name.encode(), flags=flags).frame()
        if consumer_name:
            request = replace(
                request, value=json.dumps({"consumer_name": consumer_name}).encode(), datatype=Datatype.JSON
            )
        return await self._waiters.run(self.links[side].ask(request, self._clock() + self._seconds_max))
