"""Follow a producer to which this node connects: connect, greet, open, then drive the consumer as a mover would.

    wanted --connected--> begun --Refused or Ended--> wanted again, a little later
                                --taken over, became active, dropped--> done
    connection lost --a little later--> connect again; every vbucket resumes from its position

There is one `Dialer` for each producer (address and bucket), with one connection for all vbuckets that follow it. The
pauses grow from RETRY_SECONDS_MIN to RETRY_SECONDS_MAX while all attempts fail. Source: dcp 1, failover 5 (step 2:
"tells B to dial A").
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

from headwater.errors import ClusterError, HeadwaterError, RemoteProtocolError
from headwater.node.calling import FollowProgress, ProducerAddress, call, converse
from headwater.node.dcp.consumer import ConsumerSession
from headwater.node.dcp.inbound import wants_versions
from headwater.node.kv.api import Services
from headwater.node.kv.session import KvSession
from headwater.node.reporting.log_lines import event
from headwater.node.users.binding import bound
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.events import Ended, Refused
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.dcp.opening import NAME_BYTES_MAX
from headwater.protocol.handshake import DCP_FEATURES, Conversation, Login, Opening, greet, open_producer
from headwater.protocol.one_bucket import contradiction
from headwater.tls.socket import TlsSocket
from headwater.transport.backoff import Backoff
from headwater.wire.address import Address
from headwater.wire.admin import GetManifest
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.dcp import EndReason, OpenFlag, StreamFlag
from headwater.wire.features import Feature
from headwater.wire.manifest import EMPTY, CollectionsManifest, ManifestRefused
from headwater.wire.status import name_of
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.connections.connection import Connection

RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 5.0
GREETING_SECONDS_MAX = 10.0
# A change that is refused a third time will be refused for ever, and would block all changes after it.
FETCHES_MAX = 3
NOOP_INTERVAL_SECONDS = 5.0
# "Consumers should use 2 x interval" (dcp 6); one more spares a reconnect of a thousand streams for one late no-op.
IDLE_SECONDS = 3 * NOOP_INTERVAL_SECONDS
FEATURES = (*DCP_FEATURES, Feature.XATTR, Feature.SNAPPY, Feature.COLLECTIONS)
OPTIONAL_FLAGS = OpenFlag.INCLUDE_DELETE_TIMES
"""A producer that does not know delete times may refuse this flag; both layouts of deletions are accepted."""
OPTIONAL_FLAGS_OF_XATTRS = OpenFlag.INCLUDE_DELETED_USER_XATTRS
"""This flag requests users' attributes in tombstones, where transactions stage inserts; without these a copy would lack
data after a failover. A producer may refuse it."""


_REASONS = {int(reason): reason.name.lower().replace("_", " ") for reason in EndReason}

log: Final = logging.getLogger(__name__)


class Caller(Services, Protocol):
    """The node, which also serves connections that it has opened itself."""

    def adopt(self, sock: socket.socket | TlsSocket, peer: str) -> Connection:
        """Return a connection for a connected socket. Set its session, then start it."""


def _manifest() -> Conversation[CollectionsManifest]:
    """Request a producer's manifest of collections, and return it; return the manifest of a bucket without collections
    if the producer does not support them.
    """
    answer = yield GetManifest().frame()
    try:
        return EMPTY if answer.status else CollectionsManifest.decode(answer.value)
    except ManifestRefused as error:
        raise RemoteProtocolError(f"its collections manifest: {error}") from None


def _backoff() -> Backoff:
    return Backoff(RETRY_SECONDS_MIN, RETRY_SECONDS_MAX)


def _why_over(event: Refused | Ended) -> str:
    """Return the reason why a stream ended, for people."""
    if isinstance(event, Refused):
        return f"the producer answered {name_of(event.status)}" + f" ({event.said})" * bool(event.said)
    if event.reason is None:
        return "the stream was closed here"
    return f"the producer ended the stream: {_REASONS.get(event.reason, f'reason {event.reason}')}"


class Dialer:
    """Keeps vbuckets of this node following one producer; call all methods from the event loop's thread.

    Args:
        server: the node with the bucket.
        source: the producer.

    Attributes:
        source: the producer.
        wanted: the vbuckets that follow the producer, with the flags of their streams; a vbucket is removed once it is
            taken over.
        connects: the number of opened connections.
        problem: the failure of the last attempt to connect; empty after a success.
        problems: by vbucket, the reason why its stream was refused or ended; removed once the stream is open again.
    """

    def __init__(self, server: Caller, source: ProducerAddress) -> None:
        self.source = source
        self.wanted: dict[int, StreamFlag] = {}
        self.connects: int = 0
        self.problem: str = ""
        self.problems: dict[int, str] = {}
        self._server = server
        self._session: ConsumerSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._heard_at = server.loop.time()
        self._waits: dict[int, Backoff] = {}
        # By vbucket: the seqno before a refused change, and the number of tries.
        self._fetched: dict[int, tuple[int, int]] = {}

    # --- calls of the owner -----------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """True if the connection is open."""
        return self._session is not None

    def follow(self, vbuckets: Iterable[int], flags: StreamFlag = StreamFlag(0)) -> None:  # noqa: B008 - a constant
        """Make vbuckets follow the producer; if `flags` has TAKEOVER, until they are taken over. Connects if
        necessary.
        """
        for vb in vbuckets:
            changed = self.wanted.get(vb, flags) != flags
            self.wanted[vb] = flags
            self._waits.pop(vb, None)
            if changed and self._session is not None:
                self._session.close_stream(vb)  # a new stream with the new flags then begins (failover 5, step 6)
            self._begin(vb)
        if self._task is None and self.wanted:
            self._task = self._server.loop.create_task(self._run())

    def leave(self, vbuckets: Iterable[int]) -> None:
        """Make vbuckets stop following the producer; if no vbucket follows it any more, close the connection."""
        session = self._session
        for vb in vbuckets:
            self.wanted.pop(vb, None)
            if session is not None:
                session.close_stream(vb)
            self.problems.pop(vb, None)
        self._finish_if_idle()

    def forget(self, vbucket: int) -> None:
        """Forget a vbucket that became active: it no longer follows the producer, even if it becomes a replica again.

        If the vbucket has a stream, the end of the stream does this. Without this call, a vbucket without a stream,
        once it is a replica again, would follow this producer, which may lack the changes that were written since.
        """
        if self.wanted.pop(vbucket, None) is not None and (
            self._session is None or vbucket not in self._session.streams
        ):
            self._finish_if_idle()

    def stop(self) -> None:
        """Make all vbuckets stop following the producer, and close the connection."""
        self.wanted.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None
        if self._session is not None:
            self._session.connection.drop("replication was stopped", fault=False)

    def stats(self, vbucket: int | None = None) -> Iterable[tuple[str, str]]:
        """Return the statistics of the connection and of each vbucket, or of one vbucket."""
        yield "connected", str(self.is_connected).lower()
        yield "connects", str(self.connects)
        yield "problem", self.problem
        for vb, flags in sorted(self.wanted.items()):
            if vbucket not in (None, vb):
                continue
            entry = self._session.consumer.streams.get(vb) if self._session is not None else None
            yield f"vb_{vb}", entry.phase.value if entry is not None else "waiting"
            yield f"vb_{vb}_takeover", str(bool(flags & StreamFlag.TAKEOVER)).lower()
            held = self._server.bucket.vbuckets.get(vb)
            if held is not None and held.refused_changes:
                yield f"vb_{vb}_problem", f"{held.refused_changes} changes were refused: the replica has gaps"
            elif vb in self.problems:
                yield f"vb_{vb}_problem", self.problems[vb]

    def following(self) -> FollowProgress:
        """Return the progress of all vbuckets, for the metrics."""
        session, now = self._session, self._server.loop.time()
        streams = session.streams if session is not None else {}
        inside = [stream.vbucket for stream in streams.values() if stream.vbucket.is_receiving_snapshot]
        behind = sum(max(0, each.snapshot_end - each.high_seqno) for each in inside)
        heard = session.connection.stirred_at if session is not None else self._heard_at
        return FollowProgress(len(streams), len(self.wanted.keys() - streams.keys()), behind, max(0.0, now - heard))

    # --- calls of the session ---------------------------------------------------------------------------------------

    def stream_over(self, vbucket: int, event: Refused | Ended) -> None:
        """Note that a stream was refused or has ended; request it again later, unless the vbucket is active, gone or
        taken over.
        """
        flags = self.wanted.get(vbucket)
        vbucket_ = self._server.bucket.vbuckets.get(vbucket)
        # STREAM_END(Ok) ends a takeover, whatever the state here (failover 4, step 12): another request would make the
        # former owner hand over a vbucket that it no longer has.
        is_taken_over = (
            flags is not None and flags & StreamFlag.TAKEOVER and getattr(event, "reason", None) == EndReason.OK
        )
        if vbucket_ is None or vbucket_.state is State.ACTIVE or is_taken_over:
            self.wanted.pop(vbucket, None)
            self.problems.pop(vbucket, None)
            # Not within this call: the session is still handling the event, and `stop` would close it.
            self._server.loop.call_soon(self._finish_if_idle)
            return
        self._note(vbucket, _why_over(event))
        wait = self._waits.setdefault(vbucket, _backoff()).next_seconds()
        self._server.loop.call_later(wait, self._begin, vbucket)

    def stream_opened(self, vbucket: int) -> None:
        """Note that a stream is open; the pauses after later failures begin with the shortest again."""
        self._waits.pop(vbucket, None)
        self.problems.pop(vbucket, None)

    def fetches_again(self, vbucket: int, seqno: int) -> bool:
        """Return True if this dialer will open the vbucket's stream again, to receive the refused change after `seqno`
        once more; the caller then closes the present stream.

        This is tried FETCHES_MAX times for the same seqno: otherwise a change that is always refused would block all
        later ones.
        """
        before, times = self._fetched.get(vbucket, (-1, 0))
        times = times + 1 if before == seqno else 1
        self._fetched[vbucket] = (seqno, times)
        return vbucket in self.wanted and times <= FETCHES_MAX

    def connection_lost(self) -> None:
        """Forget the session whose socket is closed, and connect again."""
        if self._session is not None:
            self._heard_at = self._session.connection.stirred_at
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
        else:
            self._note(vb, "another connection still holds its stream here")
            self._server.loop.call_later(RETRY_SECONDS_MAX / 10, self._begin, vb)

    def _note(self, vb: int, problem: str) -> None:
        """Record the problem of a vbucket's stream; log it unless the last one was the same."""
        if self.problems.get(vb) != problem:
            sentence = f"vbucket {vb}: {problem}"
            self._server.dcp.refusals.tell(f"replication from {self.source}", [sentence], self._server.loop.time())
        self.problems[vb] = problem

    def _finish_if_idle(self) -> None:
        if not self.wanted:
            self.stop()

    async def _run(self) -> None:
        backoff, pause = _backoff(), RETRY_SECONDS_MIN
        while self.wanted:
            try:
                await self._connect()
            except (OSError, TimeoutError, HeadwaterError) as error:
                self._failed(str(error) or type(error).__name__)
            except Exception as error:  # a fault of headwater: logged in full; without another try replicas would stop
                log.exception("replication from %s", self.source, extra=event("node.failed"))
                self._failed(f"{type(error).__name__}: {error}")
                backoff.slow_down()
            else:
                begun = self._server.loop.time()
                await self._lost.wait()
                # A connection that is closed at once counts as a failed attempt.
                if self._server.loop.time() - begun > pause:
                    backoff.reset()
            pause = backoff.next_seconds()
            await asyncio.sleep(pause)
        self._task = None

    def _failed(self, problem: str) -> None:
        """Log the problem and close the connection; the node will connect again."""
        self._complain(problem)
        if self._session is not None:
            self._session.connection.drop("the streams could not be asked for", fault=False)

    async def _connect(self) -> None:
        """Open the connection, and request the streams of all vbuckets.

        Raises:
            OSError, TimeoutError, HeadwaterError: the producer does not answer, or refuses.
        """
        async with asyncio.timeout(GREETING_SECONDS_MAX):
            sock, features = await self._call()
        # Cleared before the connection exists, so that a connection that is lost at once is noticed.
        self._lost.clear()
        connection = self._server.adopt(sock, str(self.source))
        negotiated = Negotiated(
            snappy=Feature.SNAPPY in features,
            xerror=Feature.XERROR in features,
            xattrs=Feature.XATTR in features,
            collections=Feature.COLLECTIONS in features,
            # A consumer node takes either layout by its length (dcp 2.9), so it need not know whether the flag was
            # granted.
            delete_times=True,
            connection_name=self._name(),
            # "HELLO or CONTROL seen = DCP" (dcp 14); without, a producer that refuses 48 bytes is asked in UPR.
            speaks_dcp=bool(features),
        )
        settings = ConsumerSettings(
            noop_interval_seconds=NOOP_INTERVAL_SECONDS,
            idle_seconds=IDLE_SECONDS,
            deleted_user_xattrs=negotiated.xattrs,
            takes_movers=False,
            consumer_name=self._own_name(),
            every_version=wants_versions(self._server.bucket, self._own_name()),
        )
        consumer = Consumer(negotiated, settings, self._server.loop.time())
        kv = KvSession(connection, self._server)
        connection.know(is_known=True)  # this node has opened the connection
        self._session = ConsumerSession(kv, self._server.dcp, consumer, listener=self)
        connection.session = self._session
        connection.start()
        self.connects += 1
        if self.problem or self.connects == 1:
            log.info(
                "replication from %s goes on",
                self.source,
                extra=event("replication.connected", producer=str(self.source)),
            )
        self.problem = ""
        for vb in tuple(self.wanted):
            self._begin(vb)

    async def _call(self) -> tuple[socket.socket | TlsSocket, frozenset[int]]:
        """Connect, log in and open; return the socket of the DCP connection, and the features that the producer has
        granted.
        """
        loop, source = self._server.loop, self.source
        sock = await call(loop, source.host, source.port, source.tls_port, self._server.tls)
        try:
            login = Login(
                agent="headwater-node",
                bucket=source.bucket,
                user=source.user,
                password=source.password,
                nonce=secrets.token_urlsafe(18),
                features=FEATURES,
                wants_map=self._cluster_uuid() != "",
            )
            login = bound(login, sock, Address(source.host, source.port))
            greeting = await converse(loop, sock, greet(login), str(source))
            # Before OPEN: a member that has lost its disk would answer stream requests with a rollback to 0, and this
            # copy, perhaps the last one, would be emptied.
            self._check_member(greeting.config)
            # "UPR: only bit 0x01 is defined" (dcp 2.1); xattrs are those of producers that know HELLO.
            flags, optional = OpenFlag.PRODUCER, OPTIONAL_FLAGS
            if Feature.XATTR in greeting.features:
                flags, optional = flags | OpenFlag.INCLUDE_XATTRS, optional | OPTIONAL_FLAGS_OF_XATTRS
            if Feature.COLLECTIONS in greeting.features:
                # Ids of collections decide where a document lands; those of another bucket's manifest would mix two
                # collections.
                self._check_manifest(await converse(loop, sock, _manifest(), str(source)))
            await converse(loop, sock, open_producer(Opening(self._name(), int(flags), int(optional))), str(source))
        except BaseException:
            sock.close()
            raise
        return sock, greeting.features

    def _cluster_uuid(self) -> str:
        """Return the cluster's uuid if the producer is a member by this node's map; otherwise an empty text."""
        cluster_map = self._server.membership.map
        is_member = cluster_map is not None and Address(self.source.host, self.source.port) in cluster_map.servers
        return cluster_map.uuid if is_member and cluster_map is not None else ""

    def _check_member(self, config: bytes | None) -> None:
        """Raise ClusterError if the node that answers at a member's address is not that member.

        A member that returns without its disk has none of the documents, and would make all replicas roll back.
        """
        cluster_uuid = self._cluster_uuid()
        # Without a map in the greeting, the failover log decides, as with any other producer.
        if cluster_uuid and config is not None and (uuid := ClusterMap.from_json(config).uuid) != cluster_uuid:
            message = f"{self.source} is a member by the map, and answers with a map of another cluster ({uuid})"
            raise ClusterError(message, "if it lost its disk: headwater cluster failover --dead, then rebalance --add")

    def _check_manifest(self, theirs: CollectionsManifest) -> None:
        """Raise ClusterError if a collection of the producer has the id of another collection here: documents would get
        into the wrong collection.
        """
        ours = self._server.bucket.collections.manifest
        if ours.uid and theirs.uid and (problem := contradiction(theirs, ours)):
            message = f"collections of {self.source} and of this node are not of one bucket: {problem}"
            raise ClusterError(message, "see headwater collection list of both, and drop what is not needed")

    def _name(self) -> str:
        """Return the connection's name (failover 5: "convention replication:A->B:bucket").

        The name is the same after every reconnect: so the producer closes a former connection of this node whose end it
        has not noticed.
        """
        here = f"{self._server.config.host}:{self._server.cluster.port}"
        name = f"replication:{self.source.host}:{self.source.port}->{here}:{self.source.bucket}"
        return name[:NAME_BYTES_MAX]

    def _own_name(self) -> str:
        """Return this node's name in the cluster, under which it acknowledges prepares."""
        cluster_map = self._server.membership.map
        here = None if cluster_map is None else cluster_map.here
        # The owner counts acknowledgements by the names in its map (`Copies.others`); under another name this copy
        # would not count.
        return f"{self._server.config.host}:{self._server.cluster.port}" if here is None else str(here)

    def _complain(self, problem: str) -> None:
        if problem != self.problem:
            fields = event("replication.failed", producer=str(self.source))
            log.warning("replication from %s: %s", self.source, problem, extra=fields)
        self.problem = problem
