"""The state that a bucket's DCP connections share: names, the arena that they fill in turn, the log of refusals.

Source: dcp 2.1 (names).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from headwater.node.reporting.refusals import RefusalLog
from headwater.node.streams.handover import TAKEOVER_SECONDS_MAX
from headwater.node.streams.outlet import Outlet
from headwater.node.streams.progress import takeover_stats
from headwater.protocol.dcp.opening import HAND_OVER

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.connections.connection import Connection
    from headwater.node.streams.stream import Stream
    from headwater.node.vbucket.vbucket import VBucket


class NamedSession(Protocol):
    """The part that the hub needs of a producer's or consumer's session."""

    connection: Connection
    is_producer: bool
    """True if this node sends changes to the peer of the session."""

    @property
    def user(self) -> str | None:
        """The user who opened the session."""

    @property
    def named_at(self) -> int:
        """The time at which the client took its name, in monotonic nanoseconds. Workers compare it, because names may
        reach them in another order.
        """

    def stats(self) -> Iterable[tuple[str, str]]:
        """Return the session's part of STAT dcp: names without prefix, and values."""

    def backlog(self) -> Iterable[int]:
        """Yield the number of unsent changes of each stream that the session sends."""

    def oldest_unsent_ns(self) -> int | None:
        """Return the Unix time in ns of the oldest unsent change; None if there is none."""

    def stream_of(self, vbucket: VBucket) -> Stream | None:
        """Return the stream on which the session sends a vbucket; None if there is none."""

    def batch_lost(self, error: BaseException) -> None:
        """Act on a lost batch; `error` is its cause. A session that staged changes in it has counted too many."""


class DcpHub:
    """The names of a bucket's DCP connections, and their shared resources.

    Attributes:
        sessions: the session of each name.
        outlet: the arena that all connections fill in turn.
        refusals: the log of refused requests.
        lacking: the log of changes that replicas refused and lack.
    """

    def __init__(self, bucket: Bucket, takeover_seconds_max: float = TAKEOVER_SECONDS_MAX) -> None:
        self.bucket = bucket
        self.takeover_seconds_max = takeover_seconds_max
        self.outlet: Outlet = Outlet()
        self.refusals: RefusalLog = RefusalLog()
        self.lacking: Final = RefusalLog("replica.lacks", logging.ERROR)
        self.sessions: dict[bytes, NamedSession] = {}
        bucket.stat_groups["dcp"] = self.stats
        bucket.stat_groups["dcp-vbtakeover"] = lambda arguments: tuple(takeover_stats(bucket, self.sessions, arguments))
        bucket.committer.on_failure.append(self._batch_lost)

    def enter(self, name: bytes, session: NamedSession) -> None:
        """Register a connection's name; an older connection of that name is closed (dcp 2.1, duplicate names)."""
        older = self.sessions.get(name)
        # The new session takes the name before the older one is dropped, so that the older one's `leave` does not
        # remove the name.
        self.sessions[name] = session
        if older is not None:
            older.connection.drop(f"another connection took the name {name!r}", fault=False)

    def leave(self, name: bytes, session: NamedSession) -> None:
        """Forget a closed connection, unless another one has taken its name."""
        if self.sessions.get(name) is session:
            del self.sessions[name]

    def end_hand_overs(self) -> None:
        """Drop the connections on which an earlier operator's mover hands vbuckets over, because another operator
        begins to move vbuckets.
        """
        for name, session in tuple(self.sessions.items()):
            if name.endswith(HAND_OVER):
                session.connection.drop("another operator began to change who owns what", fault=False)

    def stats(self, _: list[str]) -> Iterable[tuple[str, str]]:
        """Return STAT dcp: each connection and its streams, as eq_dcpq:NAME:stat.

        Connections from other workers are omitted, because the worker that has the client's connection reports them.
        """
        sessions = {key: session for key, session in self.sessions.items() if not session.connection.is_inner}
        yield "ep_dcp_count", str(len(sessions))
        producers = sum(session.is_producer for session in sessions.values())
        yield "ep_dcp_producer_count", str(producers)
        yield "ep_dcp_consumer_count", str(len(sessions) - producers)
        for key, session in sessions.items():
            prefix = f"eq_dcpq:{key.decode('latin-1')}"
            for name, value in tuple(session.stats()):
                yield f"{prefix}:{name}", value

    def _batch_lost(self, error: BaseException, _: list[int]) -> None:
        # Only consumers act on it: their streams count changes as received that the store has just undone.
        for session in tuple(self.sessions.values()):
            session.batch_lost(error)
