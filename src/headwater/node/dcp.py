"""DCP on this node: how a connection becomes one, and what the DCP connections of a bucket share.

DCP_OPEN replaces a connection's key-value session by a `DcpSession` (streams/session.py) if this node is to produce, by
a `ConsumerSession` (replication/session.py) if it is to consume; its bytes, the rest of the same receive included, go
there from then on. Source: dcp 1, 2.1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from headwater.errors import BadMessage
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.replication.session import ConsumerSession
from headwater.node.streams.handover import TAKEOVER_SECONDS_MAX
from headwater.node.streams.outlet import Outlet
from headwater.node.streams.progress import takeover_stats
from headwater.node.streams.session import DcpSession
from headwater.protocol.consumer import Consumer
from headwater.protocol.negotiation import ConsumerSettings
from headwater.protocol.opening import negotiated_by, read_open
from headwater.protocol.producer import CONSUMER_COMMANDS, Producer
from headwater.wire.dcp import OpenFlag
from headwater.wire.features import Feature
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.connection import Connection
    from headwater.node.kv.session import KvSession


class NamedSession(Protocol):
    """What the hub needs of a session, producer's or consumer's."""

    connection: Connection

    def stats(self) -> Iterable[tuple[str, str]]:
        """Its part of STAT dcp."""


class DcpHub:
    """What the DCP connections of a bucket share: their names, and the arena they fill in turn."""

    def __init__(self, bucket: Bucket, takeover_seconds_max: float = TAKEOVER_SECONDS_MAX) -> None:
        self.bucket = bucket
        self.takeover_seconds_max = takeover_seconds_max
        self.outlet = Outlet()
        self.sessions: dict[bytes, NamedSession] = {}
        bucket.stat_groups["dcp"] = self.stats
        bucket.stat_groups["dcp-vbtakeover"] = lambda arguments: takeover_stats(self, arguments)
        bucket.committer.on_failure.append(self._cut_consumers)

    def enter(self, name: bytes, session: NamedSession) -> None:
        """A connection takes a name; an older one of that name is disconnected (dcp 2.1, duplicate names)."""
        older = self.sessions.get(name)
        self.sessions[name] = session
        if older is not None:
            older.connection.drop(f"another connection took the name {name!r}", fault=False)

    def leave(self, name: bytes, session: NamedSession) -> None:
        """A connection is gone; its name may be somebody else's by now."""
        if self.sessions.get(name) is session:
            del self.sessions[name]

    def stats(self, _: list[str]) -> Iterable[tuple[str, str]]:
        """STAT dcp: each connection and its streams, as eq_dcpq:NAME:stat."""
        yield "ep_dcp_count", str(len(self.sessions))
        producers = sum(isinstance(session, DcpSession) for session in self.sessions.values())
        yield "ep_dcp_producer_count", str(producers)
        yield "ep_dcp_consumer_count", str(len(self.sessions) - producers)
        for key, session in self.sessions.items():
            prefix = f"eq_dcpq:{key.decode('latin-1')}"
            for name, value in session.stats():
                yield f"{prefix}:{name}", value

    def _cut_consumers(self, error: BaseException, _: list[int]) -> None:
        """A batch was lost: what consumers believe to hold may not be on disk; they begin anew."""
        for session in tuple(self.sessions.values()):
            if isinstance(session, ConsumerSession):
                session.cut(f"a batch could not be written: {error}")


@command(Opcode.DCP_OPEN, extras=None, key=Part.ANY, value=Part.ANY)
def open_session(session: KvSession, frame: Frame) -> Reply | None:
    """DCP_OPEN: from here on this is a DCP connection."""
    if session.has(Feature.UNORDERED_EXECUTION):
        raise Refused(Status.NOT_SUPPORTED, "DCP and UnorderedExecution exclude each other")
    try:
        request = read_open(frame)
    except BadMessage as bad:
        raise Refused(bad.status, str(bad)) from None
    negotiated, now = negotiated_by(request, session.features), session.server.loop.time()
    negotiated.upr_states_as_printed = session.server.config.upr_states == "text"
    session.send(response(frame).encode())
    if request.flags & OpenFlag.PRODUCER:
        producer = Producer(negotiated, now)
        session.connection.session = DcpSession(session, session.server.dcp, producer, request.flags)
    else:
        settings = ConsumerSettings(deleted_user_xattrs=negotiated.deleted_user_xattrs)
        consumer = Consumer(negotiated, settings, now)
        session.connection.session = ConsumerSession(session, session.server.dcp, consumer)
    return None


@command(
    *sorted(CONSUMER_COMMANDS),
    Opcode.DCP_CLOSE_STREAM,
    Opcode.DCP_STREAM_REQ,
    Opcode.DCP_GET_FAILOVER_LOG,
    Opcode.DCP_BUFFER_ACKNOWLEDGEMENT,
    Opcode.DCP_CONTROL,
    Opcode.DCP_SEQNO_ACKNOWLEDGED,
    extras=None,
    key=Part.ANY,
    value=Part.ANY,
    cas=True,
)
def before_open(session: KvSession, frame: Frame) -> Reply:
    """A DCP command on a connection that is not a DCP connection (dcp 1)."""
    if session.has(Feature.UNORDERED_EXECUTION):
        raise Refused(Status.NOT_SUPPORTED, "DCP and UnorderedExecution exclude each other")
    raise Refused(Status.EINVAL, f"opcode 0x{frame.opcode:02x} belongs on a DCP connection: send DCP_OPEN first")
