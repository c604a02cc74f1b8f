"""A served bucket: its own parts, and access to the parts that all buckets of the node share.

Each bucket has its own store and committer, streams, map, membership in a cluster, and upkeep of files. The event loop,
the connections and their memory, users and TLS belong to the node. Sessions and handlers use only this interface
(`Services`, kv/api.py), for the bucket that the connection has selected.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from headwater.errors import CorruptStore, StorageError
from headwater.node import notices
from headwater.node.durable_writes import Copies
from headwater.node.kv.fast import FastPath, Workspace
from headwater.node.kv.rounds import ServedRounds
from headwater.node.kv.vbuckets import moving, undecided
from headwater.node.membership.member import Membership
from headwater.node.membership.stats import stats as cluster_stats
from headwater.node.ownership.cluster_map import ServedMap
from headwater.node.ownership.lease import Lease
from headwater.node.pager import Pager
from headwater.node.replication.command import Replication
from headwater.node.reporting.log_lines import event
from headwater.node.reporting.requests import Requests, Uncounted
from headwater.node.streams.dcp_hub import DcpHub
from headwater.node.tap.hub import TapHub
from headwater.node.upkeep.compactor import Compactor
from headwater.node.upkeep.scrubber import Scrubber

if TYPE_CHECKING:
    import asyncio
    import socket

    import numpy as np
    from numpy.typing import NDArray

    from headwater.node.buckets.bucket import Bucket
    from headwater.node.committer import Committer
    from headwater.node.config import NodeConfig
    from headwater.node.connections.budget import Budget
    from headwater.node.connections.connection import Connection
    from headwater.node.connections.tls import NodeTls
    from headwater.node.kv.api import BucketCatalog, FastRequests, Services, Session, SharedUsers, UserSession
    from headwater.node.process.loop_watch import LoopWatch
    from headwater.node.process.run_queue import RunQueue
    from headwater.node.users.failures import Failures
    from headwater.node.users.logins import Users
    from headwater.node.workers.worker import NodeWorker
    from headwater.tls.socket import TlsSocket

RETRY_SECONDS = 1.0

log: Final = logging.getLogger(__name__)


class Node(Protocol):
    """The part of a node that its buckets share."""

    loop: asyncio.AbstractEventLoop
    run_queue: RunQueue
    users: Users
    failures: Failures
    budget: Budget
    loop_watch: LoopWatch
    tls: NodeTls | None
    connections: set[Connection]
    tls_port: int | None
    arena: NDArray[np.uint8]

    @property
    def worker(self) -> NodeWorker | None:
        """The node as one of several workers; None if there are no other workers."""

    @property
    def buckets(self) -> Mapping[str, Services]:
        """All buckets by name."""

    @property
    def catalog(self) -> BucketCatalog:
        """The catalog, which creates and drops the buckets."""

    @property
    def sharing(self) -> SharedUsers:
        """The users of the cluster."""

    def adopt(self, sock: socket.socket | TlsSocket, peer: str) -> Connection:
        """Return a connection for a connected socket."""

    def warn(self, peer: str, cause: str) -> None:
        """Log a warning that names peer and cause, in one line."""

    def login_refused(self, peer: str, user: str, why: str) -> None:
        """Log a refused login; `user` is the name that the peer sent, or empty, and `why` the reason."""

    def audit(self, session: UserSession, what: str) -> None:
        """Log an attempt for which a user had no right."""

    def record(self, session: UserSession, what: str, *, moves: bool = False) -> None:
        """Log a change by a user, with the user's address."""

    def is_client_there(self, agent: str) -> bool:
        """Return True if a client whose HELLO gave this agent name is connected."""

    def hears_passwords(self, connection: Connection) -> bool:
        """Return True if a peer may send a password in clear."""

    def figures(self) -> Iterable[tuple[str, str]]:
        """Return the statistics of the connections and their memory."""


class ServedBucket:
    """One bucket of a node, with the interface for its sessions (`Services`).

    Args:
        node: the node.
        config: the node's settings, with the name, the folder and the number of vbuckets of this bucket.
        bucket: the bucket.
        committer: the bucket's committer.
    """

    cluster: ServedMap

    def __init__(self, node: Node, config: NodeConfig, bucket: Bucket, committer: Committer) -> None:
        self._node = node
        self.config: NodeConfig = config
        self.bucket: Bucket = bucket
        self.committer: Committer = committer
        self.loop: asyncio.AbstractEventLoop = node.loop
        self.run_queue: RunQueue = node.run_queue
        bucket.collections.run_queue = node.run_queue
        self.users: Users = node.users
        self.failures: Failures = node.failures
        self.loop_watch: LoopWatch = node.loop_watch
        self.tls: NodeTls | None = node.tls
        self._workspace = Workspace()
        self.requests: Uncounted | Requests = Uncounted() if config.no_metrics else Requests(self._workspace)
        self._rounds = ServedRounds(node, bucket, committer, self.requests, self._workspace)
        self._flush: asyncio.TimerHandle | None = None
        self._tend(node, config, bucket)
        bucket.stat_groups["loop"] = node.loop_watch.stats
        self.dcp: DcpHub = DcpHub(bucket, config.takeover_seconds)
        self.lease: Lease = Lease(self.loop.time, self._run_begins, self._run_ends)
        self.replication: Final = Replication(self)
        self.membership: Final = Membership(self)
        bucket.stat_groups["cluster"] = lambda _: tuple(cluster_stats(self, self.membership))
        self.tap: Final = TapHub(bucket, self.loop, config.tap_keep_alive_seconds, node.budget)
        committer.on_durable.append(lambda: self.requests.settled(committer.durable))
        committer.on_failure.append(self._drop_writers)

    def _tend(self, node: Node, config: NodeConfig, bucket: Bucket) -> None:
        """Create the compactor, the scrubber and the pager."""
        self.compactor: Compactor = Compactor(
            bucket,
            node.loop,
            purge_age_seconds=config.purge_age_seconds,
            dead_percent=config.compact_dead_percent,
            hold_seconds=config.slow_stream_seconds,
        )
        self.scrubber: Scrubber = Scrubber(
            bucket,
            node.loop,
            interval_seconds=config.scrub_interval_seconds,
            bytes_per_second=config.scrub_mib_per_second << 20,
        )
        self.pager: Pager = Pager(bucket, node.loop, interval_seconds=config.expiry_pager_seconds)

    def _run_begins(self) -> None:
        """End the handovers and holds of an operator's former run, because another run has the lease."""
        self.dcp.end_hand_overs()
        self.membership.run_over()

    def _run_ends(self) -> None:
        """Let the vbuckets that an operator's run held follow the map again, because the run has ended."""
        self.membership.run_over()

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self, port: int) -> None:
        """Start to serve the map, to take part in the cluster, and to tend the files, once the node listens on
        `port`.
        """
        self.cluster = ServedMap(port, self.bucket, self.tls_port)
        self.membership.start()
        self.bucket.collections.start()
        self.bucket.durable_writes.copies_of = self._copies_of
        self.cluster.on_taken.append(self.bucket.durable_writes.map_changed)
        self.bucket.durable_writes.start(self.loop)
        self.pager.start()
        self.compactor.start()
        self.scrubber.start()

    async def stop(self) -> None:
        """Close the connections to other nodes, and stop tending the files; wait until work on these is complete."""
        await self.membership.stop()
        self.replication.stop()
        await self.bucket.clock_floor.stop()
        if self._flush is not None:
            self._flush.cancel()
        self.pager.stop()
        await self.compactor.stop()
        await self.scrubber.stop()

    def close(self) -> None:
        """Stop the rounds, because all connections are closed."""
        self._rounds.close()

    def forget(self) -> None:
        """Drop all state of clients (rounds, TAP sessions, durable writes), because the bucket is dropped."""
        self.close()
        self.tap.forget()
        self.bucket.durable_writes.stop()

    # --- the node -----------------------------------------------------------------------------------------------------

    @property
    def is_spare(self) -> bool:
        """True if this is a worker without a part of the vbuckets: the map does not contain it yet, or no longer."""
        worker, cluster_map = self._node.worker, self.membership.map
        is_named = cluster_map is not None and cluster_map.here is not None
        return worker is not None and worker.layout.has_map and not is_named and not self.bucket.vbuckets

    @property
    def buckets(self) -> Mapping[str, Services]:
        """All buckets of the node by name, the first one first."""
        return self._node.buckets

    @property
    def catalog(self) -> BucketCatalog:
        """The catalog, which creates and drops the node's buckets."""
        return self._node.catalog

    @property
    def sharing(self) -> SharedUsers:
        """The users of the cluster."""
        return self._node.sharing

    @property
    def tls_port(self) -> int | None:
        """The port for TLS; None if there is none."""
        return self._node.tls_port

    def adopt(self, sock: socket.socket | TlsSocket, peer: str) -> Connection:
        """Return a connection for a socket that a part of this bucket has connected."""
        connection = self._node.adopt(sock, peer)
        connection.serve(self.committer, self.requests)
        return connection

    def warn(self, peer: str, cause: str) -> None:
        """Log a warning that names peer and cause, in one line."""
        self._node.warn(peer, cause)

    def login_refused(self, peer: str, user: str, why: str) -> None:
        """Log a refused login, with the name of the user."""
        self._node.login_refused(peer, user, why)

    def record(self, session: UserSession, what: str, *, moves: bool = False) -> None:
        """Log a change by a user, with the user's address."""
        self._node.record(session, what, moves=moves)

    def audit(self, session: UserSession, what: str) -> None:
        """Log an attempt for which a user had no right."""
        self._node.audit(session, what)

    def is_client_there(self, agent: str) -> bool:
        """Return True if a client whose HELLO gave this agent name is connected."""
        return self._node.is_client_there(agent)

    def hears_passwords(self, connection: Connection) -> bool:
        """Return True if a peer may send a password in clear, by PLAIN or an HTTP login."""
        return self._node.hears_passwords(connection)

    # --- calls of sessions --------------------------------------------------------------------------------------------

    def fast_path(self, session: Session) -> FastRequests:
        """Return the kernel's fast path for a session with a bucket."""
        rounds = None if self.config.no_request_rounds else self._rounds
        return FastPath(session, session.store_bucket, self._workspace, rounds)

    def tell_of_map(self) -> None:
        """Send the bucket's map to the clients that requested map changes and do not have it yet."""
        notices.tell(self._node.connections, self)

    def figures(self) -> Iterable[tuple[str, str]]:
        """Return the statistics of the node itself: connections, their memory, and the upkeep of files."""
        yield from self._node.figures()
        yield "ep_max_size", str(self.catalog.quota_mib(self.bucket.name) << 20)
        history = self.compactor.history
        yield "ep_history_retention_seconds", str(history.retention.seconds)
        yield "ep_history_retention_bytes", str(history.retention.bytes)
        has_history = self.bucket.store.declarations.collections_have_history
        yield "ep_history_retention_collection_default", str(has_history).lower()
        yield "ep_db_history_file_size", str(history.bytes)
        yield "ep_tap_kept_memory", str(self.tap.kept_bytes)
        yield "ep_slow_streams_ended", str(self.compactor.holds.ended)
        yield "ep_round_requests", str(self._rounds.answered)
        yield "ep_scrub_runs", str(self.scrubber.runs)
        yield "ep_scrub_bytes", str(self.scrubber.bytes)

    def flush_later(self, at_seconds: int) -> None:
        """Delete the bucket's documents at a Unix time; a later call replaces an earlier one."""
        if self._flush is not None:
            self._flush.cancel()
        delay = max(0.0, at_seconds - self.bucket.clock.time_ns() / 1e9)
        self._flush = self.loop.call_later(delay, self._flush_now)

    def _copies_of(self, vbucket: int) -> Copies:
        """Return the copies of a vbucket by the cluster map; without a map, this node's copy only.

        If the map does not contain this node, the copy here counts for no majority.
        """
        cluster_map = self.membership.map
        if cluster_map is None:
            return Copies()
        count = max(cluster_map.replica_count + 1, len(cluster_map.chains[vbucket]))
        if cluster_map.here is None:
            return Copies(count, is_member=False)
        return Copies(count, frozenset(str(copy) for copy in cluster_map.copies(vbucket) if copy != cluster_map.here))

    def _flush_now(self) -> None:
        if self.bucket.store.full or undecided(self) or moving(self.bucket) is not None:
            self._flush = self.loop.call_later(RETRY_SECONDS, self._flush_now)
            return
        try:
            is_empty = self.bucket.flush()
        except CorruptStore as error:
            fields = event("bucket.unflushed", bucket=self.bucket.name)
            log.error('bucket "%s" is not flushed: %s', self.bucket.name, error, extra=fields)
            return
        except StorageError:  # no room for the end of a durable write that waits
            is_empty = False
        if is_empty:
            self.committer.wrote()
        else:
            self.committer.when_room(self._flush_now)

    def _drop_writers(self, error: BaseException, _: list[int]) -> None:
        """Drop the connections with quiet writes in a lost batch. No answer of theirs waits for the batch, so their
        clients would consider the writes successful.
        """
        self.requests.lost()
        committer = self.committer
        for connection in tuple(self._node.connections):
            if connection.committer is committer and connection.session.written_gate > committer.durable:
                connection.drop(f"its batch could not be written: {error}", fault=False)
