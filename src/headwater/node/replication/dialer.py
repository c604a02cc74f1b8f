"""Following a producer that this node calls itself: connect, greet, open, then drive the consumer as a mover would.

    wanted --connected--> begun --Refused or Ended--> wanted again, a little later
                                --taken over, became active, dropped--> done
    connection lost --a little later--> connect again, every vbucket goes on from what it holds

One `Dialer` for each producer (address and bucket): its connection carries all vbuckets that follow it. Waiting grows
from RETRY_SECONDS_MIN to RETRY_SECONDS_MAX while nothing goes right. Source: dcp 1, failover 5 (step 2: "tells B to
dial A").
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headwater.errors import HeadwaterError
from headwater.node.calling import connect, converse
from headwater.node.kv.session import KvSession
from headwater.node.replication.session import ConsumerSession
from headwater.protocol.consumer import Consumer
from headwater.protocol.controls import Negotiated
from headwater.protocol.handshake import DCP_FEATURES, Login, Opening, greet, open_producer
from headwater.protocol.negotiation import ConsumerSettings
from headwater.wire.dcp import EndReason, OpenFlag, StreamFlag
from headwater.wire.features import Feature
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.server import Server
    from headwater.protocol.consumer_events import Ended, Refused

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 5.0
GREETING_SECONDS_MAX = 10.0
NOOP_INTERVAL_SECONDS = 5.0
IDLE_SECONDS = 3 * NOOP_INTERVAL_SECONDS
NAME_BYTES_MAX = 200
FEATURES = (*DCP_FEATURES, Feature.XATTR, Feature.SNAPPY)
OPEN_FLAGS = OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS | OpenFlag.INCLUDE_DELETE_TIMES

log = logging.getLogger("headwater.node")


@dataclass(frozen=True, slots=True)
class Source:
    """A producer: where it listens, which bucket, and as whom to log in (None: it lets everybody in)."""

    host: str
    port: int
    bucket: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}/{self.bucket}"


class Dialer:
    """Keeps vbuckets of this node following one producer; all methods belong to the event loop's thread.

    Attributes:
        source: the producer.
        wanted: the vbuckets and the flags of their streams; one that was taken over leaves it.
        connects: how often a connection was opened. problem: why the last attempt failed, empty after a success.
    """

    def __init__(self, server: Server, source: Source) -> None:
        self.source = source
        self.wanted: dict[int, StreamFlag] = {}
        self.connects = 0
        self.problem = ""
        self._server = server
        self._session: ConsumerSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._waits: dict[int, float] = {}

    # --- what the owner asks ----------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Whether the connection is open."""
        return self._session is not None

    def follow(self, vbuckets: Iterable[int], flags: StreamFlag = StreamFlag(0)) -> None:  # noqa: B008 - a constant
        """Let these vbuckets follow the producer; with TAKEOVER in `flags`, until they are taken over."""
        for vb in vbuckets:
            changed = self.wanted.get(vb, flags) != flags
            self.wanted[vb] = flags
            self._waits.pop(vb, None)
            if changed and self._session is not None:
                self._session.close_stream(vb)  # it begins again by itself, with the other flags (failover 5, step 6)
            self._begin(vb)
        if self._task is None and self.wanted:
            self._task = self._server.loop.create_task(self._run())

    def leave(self, vbuckets: Iterable[int]) -> None:
        """Let these vbuckets follow no more; with the last of them the connection goes."""
        session = self._session
        for vb in vbuckets:
            self.wanted.pop(vb, None)
            if session is not None:
                session.close_stream(vb)
        self._finish_if_idle()

    def forget(self, vb: int) -> None:
        """A vbucket became active: it follows nobody any more, now and when it will have given that up.

        Its stream, if there is one, ends by itself. Without one nothing else would tell us, and once the vbucket is
        dead or a replica again it would follow this producer, who may never have had what was written since.
        """
        if self.wanted.pop(vb, None) is not None and (self._session is None or vb not in self._session.streams):
            self._finish_if_idle()

    def stop(self) -> None:
        """Let go of everything."""
        self.wanted.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._session is not None:
            self._session.connection.drop("replication was stopped", fault=False)

    def stats(self) -> Iterable[tuple[str, str]]:
        """State of the connection and of each vbucket."""
        yield "connected", str(self.is_connected).lower()
        yield "connects", str(self.connects)
        yield "problem", self.problem
        for vb, flags in sorted(self.wanted.items()):
            entry = self._session.consumer.streams.get(vb) if self._session is not None else None
            yield f"vb_{vb}", entry.state.value if entry is not None else "waiting"
            yield f"vb_{vb}_takeover", str(bool(flags & StreamFlag.TAKEOVER)).lower()

    # --- what the session tells -------------------------------------------------------------------------------------

    def stream_over(self, vb: int, event: Refused | Ended) -> None:
        """A stream did not come about, or ended."""
        flags = self.wanted.get(vb)
        vbucket = self._server.bucket.vbuckets.get(vb)
        taken = flags is not None and flags & StreamFlag.TAKEOVER and getattr(event, "reason", None) == EndReason.OK
        if vbucket is None or vbucket.state is State.ACTIVE or taken:
            self.wanted.pop(vb, None)
            self._server.loop.call_soon(self._finish_if_idle)
            return
        wait = self._waits[vb] = min(max(2 * self._waits.get(vb, 0.0), RETRY_SECONDS_MIN), RETRY_SECONDS_MAX)
        self._server.loop.call_later(wait, self._begin, vb)

    def stream_opened(self, vb: int) -> None:
        """A stream is open: the next failure is the first."""
        self._waits.pop(vb, None)

    def connection_lost(self) -> None:
        """The socket is gone."""
        self._session = None
        self._lost.set()

    # --- inside -----------------------------------------------------------------------------------------------------

    def _begin(self, vb: int) -> None:
        session, flags = self._session, self.wanted.get(vb)
        if session is None or flags is None or vb in session.streams:
            return
        status = session.why_not(vb)
        if status is None:
            session.begin(vb, int(flags))
            session.answer()
            return
        vbucket = self._server.bucket.vbuckets.get(vb)
        if vbucket is None or vbucket.state is State.ACTIVE:
            self.wanted.pop(vb)
            self._finish_if_idle()
        else:  # another connection still holds its stream
            self._server.loop.call_later(RETRY_SECONDS_MAX / 10, self._begin, vb)

    def _finish_if_idle(self) -> None:
        if not self.wanted:
            self.stop()

    async def _run(self) -> None:
        wait = RETRY_SECONDS_MIN
        while self.wanted:
            try:
                await self._connect()
            except (OSError, TimeoutError, HeadwaterError) as error:
                self._complain(str(error) or type(error).__name__)
                wait = min(2 * wait, RETRY_SECONDS_MAX)
            else:
                await self._lost.wait()
                wait = RETRY_SECONDS_MIN
            await asyncio.sleep(wait * (0.5 + secrets.randbelow(1000) / 1000))
        self._task = None

    async def _connect(self) -> None:
        """Open the connection and begin every stream."""
        sock, features = await asyncio.wait_for(self._call(), GREETING_SECONDS_MAX)
        self._lost.clear()
        connection = self._server.adopt(sock, str(self.source))
        negotiated = Negotiated(
            snappy=Feature.SNAPPY in features,
            xerror=Feature.XERROR in features,
            xattrs=True,
            delete_times=True,
            connection_name=self._name(),
            speaks_dcp=True,
        )
        settings = ConsumerSettings(
            noop_interval_seconds=NOOP_INTERVAL_SECONDS, idle_seconds=IDLE_SECONDS, takes_movers=False
        )
        consumer = Consumer(negotiated, settings, self._server.loop.time())
        kv = KvSession(connection, self._server)
        self._session = ConsumerSession(kv, self._server.dcp, consumer, listener=self)
        connection.session = self._session
        connection.start()
        self.connects += 1
        self.problem = ""
        for vb in tuple(self.wanted):
            self._begin(vb)

    async def _call(self) -> tuple[socket.socket, frozenset[int]]:
        """Connect, greet, open: a socket on which the peer is our producer, and the features it granted."""
        loop, source = self._server.loop, self.source
        sock = await connect(loop, source.host, source.port)
        try:
            login = Login(
                agent="headwater-node",
                bucket=source.bucket,
                user=source.user,
                password=source.password,
                nonce=secrets.token_urlsafe(18),
                features=FEATURES,
            )
            greeting = await converse(loop, sock, greet(login), str(source))
            await converse(loop, sock, open_producer(Opening(self._name(), int(OPEN_FLAGS))), str(source))
        except BaseException:
            sock.close()
            raise
        return sock, greeting.features

    def _name(self) -> str:
        """failover 5: "convention replication:A->B:bucket"; the same after every reconnect, so that an old connection
        of ours that the producer has not noticed to be dead makes way."""
        here = f"{self._server.config.host}:{self._server.cluster.port}"
        name = f"replication:{self.source.host}:{self.source.port}->{here}:{self.source.bucket}"
        return name[:NAME_BYTES_MAX]

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            log.warning("replication from %s: %s", self.source, problem)
        self.problem = problem
