"""A proxied connection between two nodes, and the vbuckets that are moved over it.

Both ends are opened under one name. A name is a fence as well: a node closes the first connection of a name when a
second one is opened (dcp 2.1), so once both are open, no older mover, dead, hung or cut off, can act between the two
nodes.

The mover sends the target its name in the cluster map, so the streams carry prepares, commits and aborts of durable
writes if both nodes support them: a copy without them would pass the seqno of a prepare without having it. The target's
acknowledgements pass as well, so durable writes at the source continue. Source: failover 5, step 2; dcp 2.1, 10.
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
    """The mover's timeouts, in seconds.

    Attributes:
        connect_seconds: the timeout of a connection with its greeting, and of each answer to an administrator's
            request.
        liveness: the time after which an end of the proxied connection is taken for dead.
        answer_seconds: the timeout of the answer to ADD_STREAM, which comes when the producer has answered.
        handover_seconds: the timeout of a takeover, from its request to its end.
        patience_seconds: the longest time of attempts without progress.
        poll_seconds: the pause between two looks at the progress of a copy.
    """

    connect_seconds: float = 5.0
    liveness: Liveness = field(default_factory=Liveness)
    answer_seconds: float = 15.0
    handover_seconds: float = 120.0
    patience_seconds: float = 60.0
    poll_seconds: float = 0.02


class Listener(Protocol):
    """A vbucket in transfer, which is informed of the frames about its state."""

    def observe(self, side: Side, frame: Frame) -> None:
        """Handle a SET_VBUCKET_STATE, its answer or a STREAM_END before the proxy passes it on."""


class ProxiedConnection:
    """Two connections under one name and the proxy between them, opened by `open_proxied`.

    Attributes:
        proxy: the proxy that passes the frames. name: the name of both connections.
        has_delete_times: True if deletions carry their time (dcp 3, the V2 layout).
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
        """True if no vbucket is moved over it."""
        return not self._listeners

    @property
    def refuses_delete_times(self) -> bool:
        """True if the connection ended because the consumer refused a deletion with its time."""
        return self.has_delete_times and self.proxy.refused in (Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION)

    def close(self) -> None:
        """Close both connections."""
        self.proxy.close()

    def listen(self, vbucket: int, listener: Listener) -> None:
        """Inform a listener of the frames about its vbucket's state."""
        self._listeners[vbucket] = listener

    def stop_listening(self, vbucket: int) -> bool:
        """Stop informing a vbucket's listener; return False if there was none."""
        return self._listeners.pop(vbucket, None) is not None

    async def add_stream(self, vbucket: int, flags: int) -> None:
        """Send ADD_STREAM to the consumer, which requests the stream from the producer; return when the answer has
        come.

        Raises:
            StatusError: the consumer, or the producer, refused.
        """
        request = dcp.AddStream(vbucket=vbucket, flags=flags).frame()
        answer = await self.proxy.ask(Side.CONSUMER, request, self._limits.answer_seconds)
        if answer.status:
            raise refused(f"stream vbucket {vbucket} to the target", answer)

    async def close_stream(self, vbucket: int) -> None:
        """End the stream at both ends; do nothing if there is none.

        The producer comes first: its frames before its answer pass before the consumer's request, so no frame comes
        late.
        """
        for side in (Side.PRODUCER, Side.CONSUMER):
            request = dcp.CloseStream(vbucket=vbucket).frame()
            answer = await self.proxy.ask(side, request, self._limits.answer_seconds)
            if answer.status not in _GONE:
                raise refused(f"close the stream of vbucket {vbucket} at {side.value}", answer)

    def observe(self, side: Side, frame: Frame) -> None:
        """Pass a frame about a vbucket's state to the vbucket's listener, before the proxy passes it on."""
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
    """Return the name that every mover between two nodes gives its connection for a purpose."""
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

    Args:
        purpose: a part of the connection's name.
        delete_times: True to send deletions with their times, if the target supports it: a server older than 5.5
            ignores the flag as a consumer, and refuses the first such deletion. Such a server does not know JSON in
            HELLO.

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
        flags = FLAGS | OPTIONAL_FLAGS
        if not (delete_times and Feature.JSON in features):
            flags &= ~OpenFlag.INCLUDE_DELETE_TIMES
        consumer_name = str(target.address) if Feature.JSON in features else ""
        accepted_flags = await opener.open(Side.CONSUMER, name, flags, consumer_name)
        await opener.open(Side.PRODUCER, name, accepted_flags | OpenFlag.PRODUCER)
        connection.has_delete_times = bool(accepted_flags & OpenFlag.INCLUDE_DELETE_TIMES)
        channels = {side: link.channel for side, link in opener.links.items()}
        connection.proxy = Proxy(channels, connection.observe, clock, limits.liveness)
        # What was read behind the answer to DCP_OPEN is the beginning of the frames to pass.
        connection.proxy.start({side: bytes(link.inbox.unread) for side, link in opener.links.items()})
    except BaseException:
        opener.close()
        raise
    return connection


class _Opener:
    """The two connections of a proxied connection, while they are opened; `links` has them by side."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.links: dict[Side, Link] = {}
        self._waiters, self._clock = Waiters(clock), clock
        self._seconds_max = limits.connect_seconds

    def close(self) -> None:
        """Close the connections that were opened so far."""
        for link in self.links.values():
            link.close()
        self._waiters.sweep()

    async def greet(self, side: Side, endpoint: Endpoint, features: tuple[int, ...]) -> tuple[int, ...]:
        """Connect to one end, again if there is a connection; return the features that it granted."""
        if side in self.links:
            self.links[side].close()
        link = self.links[side] = Link(endpoint.dialled, self._clock, endpoint.tls)
        await self._waiters.run(link.open(endpoint.login(features), self._seconds_max))
        return tuple(feature for feature in features if feature in link.greeting.features)

    async def open(self, side: Side, name: str, flags: int, consumer_name: str = "") -> int:
        """Send DCP_OPEN with the consumer's own name and the flags that the server knows; return these flags.

        EINVAL does not name the flag that was wrong, so the newest flags are left out one by one: a server that knows
        names, but not the newest flag, still gets its name.
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
