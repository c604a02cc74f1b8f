"""The listening socket, the connections, and what they share: arenas, committer, bucket, users.

Everything here runs on one event loop. One receive arena serves all connections (bytes are consumed or copied before
the next socket is read), one output arena all kernel calls.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import deque

import numpy as np

from headwater.errors import OptionError
from headwater.kernels.guard import register
from headwater.kernels.jit import debugging
from headwater.node.bucket import Bucket
from headwater.node.committer import Committer
from headwater.node.compactor import Compactor
from headwater.node.config import NodeConfig
from headwater.node.connection import Connection
from headwater.node.dcp import DcpHub
from headwater.node.inbox import Inbox
from headwater.node.kv import handlers
from headwater.node.kv.cluster import Cluster
from headwater.node.kv.fast import FastPath, Workspace
from headwater.node.kv.sasl import Failures, Users
from headwater.node.kv.session import KvSession
from headwater.node.membership.member import Membership
from headwater.node.pager import Pager
from headwater.node.replication.command import Replication
from headwater.node.scrubber import Scrubber
from headwater.node.tap.hub import TapHub

RECEIVE_BYTES = 256 << 10
SOCKET_BUFFER_BYTES = 1 << 20
BACKLOG = 1024
ACCEPT_RETRY_SECONDS = 0.25
DESCRIPTORS_RESERVED = 64
WARNINGS_PER_SECOND = 20
SWEEP_SECONDS = 1.0
FULL_RETRY_SECONDS = 1.0

log = logging.getLogger("headwater.node")
log.debug("commands from %d files", len(handlers.ALL))


class Warnings:
    """Bounds how many lines a flood of bad peers can write; tells how many were left out."""

    def __init__(self, per_second: int = WARNINGS_PER_SECOND) -> None:
        self._per_second = per_second
        self._recent: deque[float] = deque()
        self._left_out = 0

    def warn(self, peer: str, cause: str, now: float) -> bool:
        """Log the line unless there were too many in the last second."""
        while self._recent and now - self._recent[0] >= 1.0:
            self._recent.popleft()
        if len(self._recent) >= self._per_second:
            self._left_out += 1
            return False
        self._recent.append(now)
        more = f" ({self._left_out} lines left out)" if self._left_out else ""
        self._left_out = 0
        log.warning("%s: %s%s", peer, cause.encode("unicode_escape").decode()[:500], more)
        return True


class Server:
    """One node's front door. `listen`, then let the loop run, then `close`."""

    def __init__(
        self, config: NodeConfig, bucket: Bucket, committer: Committer, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.config = config
        self.bucket = bucket
        self.committer = committer
        self.loop = loop
        self.users = Users(config.users)
        self.failures = Failures()
        self.connections: set[Connection] = set()
        self.accepted = self.rejected = 0
        self.started_at = loop.time()
        self.compactor = Compactor(
            bucket, loop, purge_age_seconds=config.purge_age_seconds, dead_percent=config.compact_dead_percent
        )
        self.scrubber = Scrubber(
            bucket,
            loop,
            interval_seconds=config.scrub_interval_seconds,
            bytes_per_second=config.scrub_mib_per_second << 20,
        )
        self.dcp = DcpHub(bucket, config.takeover_seconds)
        self.replication = Replication(self)
        self.membership = Membership(self)
        self.tap = TapHub(bucket, loop, config.tap_keep_alive_seconds)
        self.pager = Pager(bucket, loop, interval_seconds=config.expiry_pager_seconds)
        self.cluster: Cluster
        self._arena = np.zeros(RECEIVE_BYTES, np.uint8)
        self._workspace = Workspace()
        self._warnings = Warnings()
        self._listener: socket.socket | None = None
        self._sweep: asyncio.TimerHandle | None = None
        self._flush: asyncio.TimerHandle | None = None
        if debugging():
            register(self._arena)
        committer.on_failure.append(self._drop_writers)

    def listen(self, listener: socket.socket | None = None) -> tuple[str, int]:
        """Bind (unless a bound listener is given) and begin to accept; returns (host, port).

        Raises OptionError when the address can't be had.
        """
        self._listener = listener = listener or self._bind()
        listener.listen(BACKLOG)
        listener.setblocking(False)
        host, port = listener.getsockname()[:2]
        self.cluster = Cluster(port, self.bucket)
        self.membership.start()
        self.loop.add_reader(listener.fileno(), self._accept)
        self.pager.start()
        self.compactor.start()
        self.scrubber.start()
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._sweep_connections)
        return host, port

    def _bind(self) -> socket.socket:
        config = self.config
        try:
            family, kind, _, _, address = socket.getaddrinfo(
                config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError as error:
            where = f"{config.host}:{config.port}"
            raise OptionError("port", where, f"an address to listen on ({error.strerror or error})") from None
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        return listener

    async def close(self) -> None:
        """Stop accepting, finish what was received, commit, close the connections."""
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
        self.membership.stop()
        self.replication.stop()
        for timer in (self._sweep, self._flush):
            if timer is not None:
                timer.cancel()
        self.pager.stop()
        await self.compactor.stop()
        await self.scrubber.stop()
        for connection in tuple(self.connections):
            connection.pause("closing")
        await self.committer.drain()
        for connection in tuple(self.connections):
            connection.flush()
            connection.drop("the node stops", fault=False)
        self.committer.close()

    # --- Host ---------------------------------------------------------------------------------------------------------

    def forget(self, connection: Connection) -> None:
        """The connection has closed."""
        self.connections.discard(connection)

    def warn(self, peer: str, cause: str) -> None:
        """Write the one line that names peer and cause."""
        self._warnings.warn(peer, cause, self.loop.time())

    # --- what sessions ask --------------------------------------------------------------------------------------------

    def fast_path(self, session: KvSession) -> FastPath:
        """The kernel's way for a session with a bucket."""
        return FastPath(session, session.store_bucket, self._workspace)

    def flush_later(self, at_seconds: int) -> None:
        """Empty the bucket at a Unix time; a later call replaces an earlier one."""
        if self._flush is not None:
            self._flush.cancel()
        delay = max(0.0, at_seconds - self.bucket.clock.time_ns() / 1e9)
        self._flush = self.loop.call_later(delay, self._flush_now)

    def _flush_now(self) -> None:
        if self.bucket.store.full:
            self._flush = self.loop.call_later(FULL_RETRY_SECONDS, self._flush_now)
        elif self.bucket.flush():
            self.committer.wrote()
        else:
            self.committer.when_room(self._flush_now)

    # --- accepting ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        listener = self._listener
        if listener is None:
            return
        for _ in range(BACKLOG):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # out of descriptors: let some close, then go on
                self.warn("listener", f"can't accept: {error.strerror}")
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(ACCEPT_RETRY_SECONDS, self._accept_again)
                return
            self._admit(sock, f"{address[0]}:{address[1]}")

    def _accept_again(self) -> None:
        if self._listener is not None and self._listener.fileno() >= 0:
            self.loop.add_reader(self._listener.fileno(), self._accept)

    def _admit(self, sock: socket.socket, peer: str) -> None:
        if len(self.connections) >= self._connections_max():
            self.rejected += 1
            self.warn(peer, f"refused: {len(self.connections)} connections are open, the limit")
            sock.close()
            return
        try:
            connection = self.adopt(sock, peer)
        except OSError as error:  # reset before we came to it, which some systems tell here
            self.warn(peer, f"not accepted: {error.strerror}")
            sock.close()
            return
        connection.session = KvSession(connection, self)
        self.accepted += 1
        connection.start()

    def adopt(self, sock: socket.socket, peer: str) -> Connection:
        """Make a connection of a connected socket, whoever called whom. Give it a session, then start it."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection = Connection(self, sock, peer, Inbox(self._arena.data))
        self.connections.add(connection)
        return connection

    def _connections_max(self) -> int:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        room = self.config.connections_max if soft == resource.RLIM_INFINITY else soft - DESCRIPTORS_RESERVED
        return max(1, min(self.config.connections_max, room))

    # --- tending ------------------------------------------------------------------------------------------------------

    def _sweep_connections(self) -> None:
        now, idle = self.loop.time(), self.config.idle_seconds
        for connection in tuple(self.connections):
            quiet = now - connection.heard_at
            if idle and quiet >= idle and isinstance(connection.session, KvSession):
                connection.drop(f"said nothing for {quiet:.0f} s")
            else:
                connection.notice_reset()
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._sweep_connections)

    def _drop_writers(self, error: BaseException, _: list[int]) -> None:
        """Quiet writes wait for no answer: their connections must go as well, or their clients believe in them."""
        for connection in tuple(self.connections):
            if connection.session.written_gate > self.committer.durable:
                connection.drop(f"its batch could not be written: {error}", fault=False)
