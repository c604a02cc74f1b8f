"""The listening sockets, the connections, and their shared parts: the arena, memory, users, the buckets by name.

Everything here runs on one event loop. One receive arena serves all connections (bytes are consumed or copied before
the next socket is read). The parts of one bucket are in served.py; a connection begins with the first bucket.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import CorruptStore, OptionError, StorageError
from headwater.kernels.builds import debugging
from headwater.kernels.guard import register
from headwater.node import handlers
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.catalog import Catalog, OpenBucket
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.connections.budget import Budget
from headwater.node.connections.connection import Connection
from headwater.node.connections.inbox import ConnectionInbox
from headwater.node.connections.listening import bound, queue_up
from headwater.node.connections.loopback import is_local, is_loopback, loopback_like
from headwater.node.connections.places import TRIAL_SECONDS, ConnectionPlaces
from headwater.node.connections.tls import NodeTls
from headwater.node.first_bytes import FirstBytes
from headwater.node.introduced import IntroducedCall
from headwater.node.kv.relay import refusal
from headwater.node.process.loop_watch import LoopWatch
from headwater.node.process.run_queue import SLICE_SECONDS, RunQueue
from headwater.node.reporting.log_lines import event
from headwater.node.reporting.refusals import RefusalLog
from headwater.node.reporting.requests import Requests
from headwater.node.rest.session import HttpSession
from headwater.node.served import ServedBucket
from headwater.node.storage.unsure_files import KeptFile, UnsureFiles
from headwater.node.tap.merging import TapMerge
from headwater.node.users.failures import Failures
from headwater.node.users.file import UsersFile
from headwater.node.users.logins import Users
from headwater.node.users.sharing import Sharing
from headwater.tls.socket import TlsSocket
from headwater.wire.users import UserList

if TYPE_CHECKING:
    from headwater.node.kv.api import UserSession
    from headwater.node.membership.member import Membership
    from headwater.node.storage.api import Storage
    from headwater.node.workers.worker import NodeWorker
    from headwater.wire.address import Address

RECEIVE_BYTES = 256 << 10
ACCEPTS_PER_TURN = 64
ACCEPT_RETRY_SECONDS = 0.25
WARNINGS_PER_SECOND = 20
USER_CHARACTERS_MAX = 128
"""The most characters of the user name in the log line of a refused login."""
SWEEP_SECONDS = 1.0
SWEPT_AT_ONCE = 500
LEFT_SECONDS = 5.0
"""The time for which a worker that has left still serves its clients from the shared address, one of which may be the
operator."""
STRANGERS_BYTES_MAX = 32 << 20
STRANGER_BYTES_MAX = 1 << 20

log: Final = logging.getLogger(__name__)
log.debug("commands from %d files", len(handlers.ALL), extra=event("node.commands", files=len(handlers.ALL)))


class Warnings:
    """Limits the number of similar log lines, and counts those that were left out.

    Args:
        event_name: the event of the lines.
        per_second: the most lines per second.
    """

    def __init__(self, event_name: str = "peer.fault", per_second: int = WARNINGS_PER_SECOND) -> None:
        self._event = event_name
        self._per_second = per_second
        self._recent: deque[float] = deque()
        self._left_out = 0

    def warn(self, peer: str, cause: str, now: float, **fields: object) -> bool:
        """Log the line, unless there were too many in the last second; return True if it was logged."""
        while self._recent and now - self._recent[0] >= 1.0:
            self._recent.popleft()
        if len(self._recent) >= self._per_second:
            self._left_out += 1
            return False
        self._recent.append(now)
        more = f" ({self._left_out} lines left out)" if self._left_out else ""
        self._left_out = 0
        message = cause.encode("unicode_escape").decode()[:500]
        log.warning("%s: %s%s", peer, message, more, extra=event(self._event, peer=peer, **fields))
        return True


def _keep_users(store: Storage) -> None:
    with suppress(StorageError):
        store.declarations.keep_users()


class Server:
    """A node's listening sockets, connections and buckets. Call `bind` and `listen`, let the loop run, then call
    `close`.

    Args:
        config: the settings.
        bucket: the node's first bucket.
        committer: its committer.
        loop: the event loop.
        worker: this process as one of several workers; None if it is the only one.
    """

    tls_port: int | None = None
    http_port: int | None = None
    _listener: socket.socket | None = None
    _http_listener: socket.socket | None = None
    _tls_listener: socket.socket | None = None
    _relay_listener: socket.socket | None = None
    _deriving: asyncio.Task[None] | None = None
    _shares = False
    _port: int | None = None

    def __init__(
        self,
        config: NodeConfig,
        bucket: Bucket,
        committer: Committer,
        loop: asyncio.AbstractEventLoop,
        worker: NodeWorker | None = None,
    ) -> None:
        self.config = config
        self.worker: Final = worker
        self._users_folder = config.data if worker is None else worker.folder
        self._relays: Mapping[Address, str] = (
            {} if worker is None else {each: worker.relay(at) for each, at in worker.siblings.items()}
        )
        self.loop = loop
        self.run_queue: RunQueue = RunQueue(loop)
        self.users: Users = Users(config.logins, config.roles, UsersFile(self._users_folder))
        self.users.refresh()
        self._refuse_lost_users(bucket.store)
        self.sharing: Final = Sharing(loop, self.users, self._member, self._refresh_users, has_secret=config.has_secret)
        self.failures: Failures = Failures()
        self.budget: Budget = Budget(
            config.memory_mib << 20, config.connection_memory_mib << 20, "all connections together"
        )
        self.tls: NodeTls | None = NodeTls(config) if config.tls_certificate else None
        self.strangers: Budget = Budget(STRANGERS_BYTES_MAX, STRANGER_BYTES_MAX, "all that have not logged in")
        self.connections: set[Connection] = set()
        workers = 1 if worker is None else len(worker.layout.ports)
        has_pages = config.http_port >= 0 or (worker is not None and worker.public_pages is not None)
        self._places = ConnectionPlaces(config.connections_max, has_pages=has_pages, workers=workers)
        self.accepted: int = 0
        self.rejected: int = 0
        self.kernel_bytes: int = 0
        self.started_at: Final = loop.time()
        self.loop_watch: LoopWatch = LoopWatch(loop, config.loop_watch_ms / 1000)
        self.arena: NDArray[np.uint8] = np.zeros(RECEIVE_BYTES, np.uint8)
        self._warnings = Warnings()
        self._refused = Warnings("user.refused")  # apart, so that neither hides the other
        self._logins = Warnings("login.refused")
        self._done, self._moved = Warnings("admin.done"), RefusalLog("admin.moved", logging.WARNING)
        self.unsure_files: Final = UnsureFiles(loop, self._files)
        self._sweep: asyncio.TimerHandle | None = None
        if debugging():
            register(self.arena)
        self.first: Final = ServedBucket(self, config, bucket, committer)
        self._buckets = {bucket.name: self.first}
        store = bucket.store
        of_buckets = replace(config, data=store.path, vbuckets=bucket.vbucket_count)
        self.catalog: Final = Catalog(of_buckets, store.disk, loop, bucket.clock, serve=self._serve, leave=self._leave)

    @property
    def buckets(self) -> Mapping[str, ServedBucket]:
        """All buckets by name; a connection uses the first until it selects another."""
        return self._buckets

    def _serve(self, opened: OpenBucket) -> None:
        """Add a bucket, and start to serve it if the node listens already."""
        served = ServedBucket(self, opened.config, opened.bucket, opened.committer)
        self._buckets[opened.bucket.name] = served
        if self._port is not None:
            self._start(served, self._port)

    def _start(self, served: ServedBucket, port: int) -> None:
        served.start(port)
        served.cluster.on_taken.append(self._map_taken)

    def _map_taken(self) -> None:
        """Call `_obey_map` once the node has obeyed a bucket's new map."""
        if self.worker is not None:
            self.loop.call_soon(self._obey_map)

    def _obey_map(self) -> None:
        """Accept connections at the shared address or not, by the new map, and drop TAP sessions whose set of workers
        has changed.
        """
        if any(each.fileno() < 0 for each in self._shared):  # this node is closing
            return
        self._share()
        for connection in tuple(self.connections):
            if isinstance(connection.session, TapMerge) and not connection.session.is_whole:
                connection.drop("another worker has a part of its TAP session now", fault=False)

    def _share(self) -> None:
        """Accept connections at the address that workers share, but only while the cluster map contains this worker:
        otherwise it does not know which worker has a vbucket.
        """
        cluster_map = self.first.membership.map
        is_named = (
            self.worker is None
            or not self.worker.layout.has_map
            or (cluster_map is not None and cluster_map.here is not None)
        )
        if is_named is self._shares:
            return
        self._shares = is_named
        for each in self._shared:
            if is_named:
                self.loop.add_reader(each.fileno(), partial(self._accept, each))
            else:
                self.loop.remove_reader(each.fileno())
        if not is_named:
            self.loop.call_later(LEFT_SECONDS, self._hang_up)

    def _hang_up(self) -> None:
        for connection in tuple(self.connections) if not self._shares else ():
            if connection.is_common:
                connection.drop("this worker is not in the cluster map any more", fault=False)

    async def _leave(self, opened: OpenBucket) -> None:
        """Stop serving a bucket: on return no connection uses it, and no write of it is in progress."""
        served = self._buckets.pop(opened.bucket.name)
        for connection in tuple(self.connections):
            watches = isinstance(connection.session, HttpSession) and connection.session.server is served
            if watches or connection.committer is opened.committer:
                connection.drop("its bucket was dropped", fault=False)
        await served.stop()
        await served.bucket.collections.stop()
        served.forget()
        await asyncio.sleep(0)  # in this turn the sessions are closed
        await opened.committer.drain()
        opened.committer.close()

    def commit_now(self) -> None:
        """Commit the changes of all buckets that were staged during the start, before any other work runs.

        If a bucket can't commit, the stores that have are closed cleanly, because no client has used them. Otherwise
        each new start would add a branch to their vbuckets, and a supervisor that restarts the node again and again
        would soon replace all older branches.

        Raises:
            StorageError: a batch could not be written.
        """
        stores: list[Storage] = []
        try:
            for committer, store in ((self.committer, self.first.bucket.store), *self.catalog.stores()):
                committer.commit_now()
                stores.append(store)
        except (OSError, StorageError):
            for store in stores:
                with suppress(OSError, StorageError):
                    store.close(clean=True)
            raise

    @property
    def committer(self) -> Committer:
        """The first bucket's committer, which new connections use."""
        return self.first.committer

    @property
    def requests(self) -> Requests:
        """The first bucket's counters of requests, which new connections use."""
        return self.first.requests

    def bind(self, listener: socket.socket | None = None) -> None:
        """Bind the addresses, so that connections queue up; accept none yet.

        Args:
            listener: a bound socket to use for the port; None to bind one.

        Raises:
            OptionError: an address can't be bound.
        """
        config = self.config
        if listener is not None or config.without_tls != "nobody":
            host = config.host if config.without_tls == "anywhere" else loopback_like(config.host)
            self._listener = listener = self._bound("port", host, config.port) if listener is None else listener
            queue_up(listener, "port", config.host, config.port)
        if self.tls is not None:
            self._tls_listener = self._bound("tls-port", config.host, config.tls_port)
            queue_up(self._tls_listener, "tls-port", config.host, config.tls_port)
        if config.http_port >= 0:
            host = config.host if config.without_tls == "anywhere" else loopback_like(config.host)
            self._http_listener = self._bound("http-port", host, config.http_port)
            queue_up(self._http_listener, "http-port", config.host, config.http_port)
        if self.worker is not None:
            self._relay_listener = self.worker.listen()

    def listen(self) -> tuple[str, int]:
        """Start to accept connections; call `bind` first if that was not done. Return (host, port) of the listener
        without TLS, or, if there is none, of the one with TLS.
        """
        if self._listener is None and self._tls_listener is None:
            self.bind()
        listeners = [each for each in (self._listener, self._tls_listener) if each is not None]
        host, port = listeners[0].getsockname()[:2]
        self.tls_port = None if self._tls_listener is None else self._tls_listener.getsockname()[1]
        if self._http_listener is not None:
            self.http_port = self._http_listener.getsockname()[1]
            listeners.append(self._http_listener)
        listeners += [] if self._relay_listener is None else [self._relay_listener]
        self._port = port
        for served in self._buckets.values():
            self._start(served, port)
        self._mark_users()
        for listener in listeners:
            self.loop.add_reader(listener.fileno(), partial(self._accept, listener))
        self._share()
        self.loop_watch.start()
        self._sweep = self.loop.call_later(SWEEP_SECONDS, self._sweep_connections)
        self._deriving = self.loop.create_task(self.users.derive_all()) if self.config.users else None
        return host, port

    def _bound(self, option: str, host: str, port: int) -> socket.socket:
        return bound(option, host, port, self._refuse_an_open_network)

    def _refuse_an_open_network(self, host: str) -> None:
        if self.config.insecure or self.users.required or is_loopback(host):
            return
        ways = f"headwater user add NAME --roles administer --data {self._users_folder}"
        raise OptionError(
            "host", self.config.host, f"a loopback address, and there are no users: add one ({ways}), or --insecure"
        )

    @property
    def _shared(self) -> list[socket.socket]:
        """The listening sockets that all workers share."""
        worker = self.worker
        shared = () if worker is None else (worker.public, worker.public_tls, worker.public_pages)
        return [each for each in shared if each is not None]

    async def close(self) -> None:
        """Stop accepting connections, stop the buckets' tasks, commit, send the answers, and close the connections and
        all stores except the first bucket's.
        """
        for listener in (self._listener, self._tls_listener, self._http_listener, self._relay_listener, *self._shared):
            if listener is not None:
                self.loop.remove_reader(listener.fileno())
                listener.close()
        if self._deriving is not None:
            self._deriving.cancel()
        if self._sweep is not None:
            self._sweep.cancel()
        self.loop_watch.stop()
        self.sharing.stop()
        for served in tuple(self._buckets.values()):
            await served.stop()
        for connection in tuple(self.connections):
            connection.pause("closing")
        for served in tuple(self._buckets.values()):
            await served.committer.drain()
        for connection in tuple(self.connections):
            connection.flush_now()
            connection.drop("the node stops", fault=False)
        for served in tuple(self._buckets.values()):
            served.close()
        self.first.committer.close()
        self.catalog.close(clean=True)

    # --- Host ---------------------------------------------------------------------------------------------------------

    def forget(self, connection: Connection) -> None:
        """Forget a connection that has closed."""
        self.connections.discard(connection)
        self._places.leave(connection)

    def end_trial(self, connection: Connection, *, is_trusted: bool) -> None:
        """Assign a place to a connection on trial if it may use a reserved one (`is_trusted`), or if a common place is
        free; otherwise drop the connection.
        """
        if not self._places.end_trial(connection, len(self.connections), is_trusted=is_trusted):
            self._turn_away(connection, "connections are open, the limit, but for members and administrators")

    def _turn_away(self, connection: Connection, why: str) -> None:
        self.rejected += 1
        connection.drop(f"refused: {len(self.connections)} {why}")

    def warn(self, peer: str, cause: str) -> None:
        """Log a warning that names peer and cause, in one line."""
        self._warnings.warn(peer, cause, self.loop.time())

    def login_refused(self, peer: str, user: str, why: str) -> None:
        """Log a refused login; `user` is the name that the peer sent, or empty, and `why` the reason."""
        name = user[:USER_CHARACTERS_MAX]
        whom = f" (user {name!r})" if name else ""
        self._logins.warn(peer, f"login refused: {why}{whom}", self.loop.time(), user=name)

    def audit(self, session: UserSession, what: str) -> None:
        """Log an attempt for which the session's user had no right."""
        self._refused.warn(session.connection.peer, f"user {session.user!r} {what}", self.loop.time())

    def record(self, session: UserSession, what: str, *, moves: bool = False) -> None:
        """Log a change by a user, with the user's address; without users nothing is logged."""
        peer, action, now = session.connection.peer, f"user {session.user!r} {what}", self.loop.time()
        if self.users.required and moves:
            self._moved.tell(peer, [action], now, user=session.user)
        elif self.users.required:
            self._done.warn(peer, action, now, user=session.user)

    def is_client_there(self, agent: str) -> bool:
        """Return True if a client whose HELLO gave this agent name is connected."""
        return any(getattr(connection.session, "agent", "") == agent for connection in self.connections)

    def hears_passwords(self, connection: Connection) -> bool:
        """Return True if a peer may send a password in clear text, by PLAIN or an HTTP login."""
        if connection.tls is not None or not self.users.required:
            return True
        return self.config.plain == "anywhere" or is_local(connection.peer)

    def figures(self) -> Iterable[tuple[str, str]]:
        """Return the statistics of the node itself: connections and their memory."""
        yield "uptime", str(int(self.loop.time() - self.started_at))
        yield "curr_connections", str(len(self.connections))
        yield "total_connections", str(self.accepted)
        yield "rejected_connections", str(self.rejected)
        for name, budget in (("connections", self.budget), ("strangers", self.strangers)):
            yield f"ep_{name}_memory", str(budget.held_bytes)
            yield f"ep_{name}_memory_max", str(budget.limit_bytes)
            yield f"ep_{name}_dropped_for_memory", str(budget.dropped)
        if self.tls is not None:
            yield "ep_tls_certificate_expires", str(int(self.tls.certificate.ends.timestamp()))
        yield "ep_kernel_memory", str(self.kernel_bytes)
        yield "ep_unsure_files", str(self.unsure_files.count())

    # --- accepting ----------------------------------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        shared = self._shared
        # At the shared address only one, so that the other workers get connections too.
        for _ in range(1 if listener in shared else ACCEPTS_PER_TURN):
            try:
                sock, address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptors are left: continue when some were closed
                self.warn("listener", f"can't accept: {error.strerror}")
                self.loop.remove_reader(listener.fileno())
                self.loop.call_later(ACCEPT_RETRY_SECONDS, self._accept_again, listener)
                return
            peer = f"{address[0]}:{address[1]}" if address else "a worker"
            pages = listener is self._http_listener or (
                self.worker is not None and listener is self.worker.public_pages
            )
            if listener is self._relay_listener:
                self._admit_worker(sock)
                continue
            speaks_tls = listener is self._tls_listener or (
                self.worker is not None and listener is self.worker.public_tls
            )
            relays = self._relays if listener in shared else MappingProxyType({})
            self._admit(sock, peer, speaks_tls=speaks_tls, has_pages_only=pages, relays=relays)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener.fileno() >= 0 and (self._shares or listener not in self._shared):
            self.loop.add_reader(listener.fileno(), partial(self._accept, listener))

    def _admit_worker(self, sock: socket.socket) -> None:
        """Accept another worker's connection for one of its clients. The client itself has a place at that worker."""
        if not self._places.has_inner_room(has_users=self.users.required):
            self._turn_away_worker(sock)
            return
        connection = self._connection(sock, "a worker")
        connection.is_inner = True
        self._places.take_inner(connection)
        connection.session = IntroducedCall(connection, self.first, self._refresh_users)
        connection.start()

    def _turn_away_worker(self, sock: socket.socket) -> None:
        """Refuse a connection from another worker: its client's requests get a temporary failure, and the client stays
        connected.
        """
        self.rejected += 1
        self.warn("a worker", f"refused: {len(self.connections)} connections are open, the limit")
        with sock, suppress(OSError):
            sock.setblocking(False)
            sock.send(refusal())

    def _admit(
        self,
        sock: socket.socket,
        peer: str,
        *,
        speaks_tls: bool,
        has_pages_only: bool = False,
        relays: Mapping[Address, str] = MappingProxyType({}),
    ) -> None:
        users = self.users.required
        place = self._places.find(len(self.connections), has_pages_only=has_pages_only, has_users=users)
        if place is None:
            self.rejected += 1
            self.warn(peer, f"refused: {len(self.connections)} connections are open, the limit")
            sock.close()
            return
        try:
            tls = self.tls if speaks_tls else None
            connection = self.adopt(sock if tls is None else tls.accept(sock, peer, self._plain_port), peer)
        except OSError as error:  # the peer has reset the connection, which some systems report here
            self.warn(peer, f"not accepted: {error.strerror}")
            sock.close()
            return
        first = FirstBytes(connection, self.first, relays)
        connection.session = HttpSession(connection, self.first, relays=relays) if has_pages_only else first
        connection.is_common = bool(relays)
        self.accepted += 1
        if (longest := self._places.take(connection, place)) is not None:
            self._turn_away(longest, "connections are open, the limit, and others wait to log in")
        connection.start()

    @property
    def _plain_port(self) -> int | None:
        return None if self._listener is None else int(self._listener.getsockname()[1])

    def adopt(self, sock: socket.socket | TlsSocket, peer: str) -> Connection:
        """Return a connection for a connected socket, incoming or outgoing. Set its session, then start it."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return self._connection(sock, peer)

    def _connection(self, sock: socket.socket | TlsSocket, peer: str) -> Connection:
        sock.setblocking(False)
        connection = Connection(self, sock, peer, ConnectionInbox(self.arena.data))
        self.connections.add(connection)
        return connection

    # --- tending ------------------------------------------------------------------------------------------------------

    def _refresh_users(self) -> None:
        """Read the list of users again if it has changed, for example by `headwater user`; tell all sessions of a
        change.
        """
        before = self.users.list or UserList()
        try:
            changed = self.users.refresh()
        except StorageError as error:
            self.warn("users", f"{error}; those of before stay")
            return
        if changed:
            fields = event("users.changed", users=list(self.users.names))
            changes = "; ".join((self.users.list or before).changes_since(before)) or "nobody's roles or password"
            log.warning("users changed: %s", changes.encode("unicode_escape").decode()[:2000], extra=fields)
            self._mark_users()
            for connection in tuple(self.connections):
                connection.session.users_changed()

    def _refuse_lost_users(self, store: Storage) -> None:
        """Raise CorruptStore if the list of users is missing although the store has had one: without it, no login would
        be needed.
        """
        config, file = self.config, self.users.file
        if file is None or not store.declarations.has_users or self.users.required or config.insecure:
            return
        way = f"headwater user add NAME --roles administer --data {self._users_folder}"
        message = f"the file is missing, though this store has users: put it back, or begin anew ({way}), or --insecure"
        raise CorruptStore(file.path, 0, message)

    def _mark_users(self) -> None:
        """Record in the store that there are users; if that can't be written, the next start tries again."""
        store = self.first.bucket.store
        if self.users.list is not None and not store.declarations.has_users:
            self.loop.run_in_executor(None, _keep_users, store)

    def refresh_tls(self, *, on_request: bool = False) -> None:
        """Read the TLS files again if they have changed, or `on_request` is True; log the result."""
        try:
            if self.tls is not None and self.tls.refresh(on_request=on_request):
                log.warning("the TLS certificate is now %s", self.tls.certificate, extra=event("tls.certificate"))
        except OptionError as error:
            self.warn("tls", f"{error}; the one of before goes on")

    def _member(self) -> Membership:
        """Return the membership of this node by the map of its first bucket.

        The node shares users with the members in this map only. More people may administer other buckets, and their
        maps.
        """
        return self.first.membership

    def _files(self) -> Iterable[KeptFile]:
        """Yield the small files of the node and of its buckets."""
        if self.users.file is not None:
            yield self.users.file
        yield self.catalog.file
        for bucket in self._buckets.values():
            yield bucket.bucket.collections.file
            yield bucket.membership.file

    def _sweep_connections(self) -> None:
        try:
            self.unsure_files.look()
            self._refresh_users()
            self.sharing.watch()
            self.refresh_tls()
        except Exception:  # a fault of ours: told in full, and connections are looked after all the same
            log.exception("users or certificates could not be looked at", extra=event("node.failed"))
        self._sweep_some(list(self.connections), 0)

    def _sweep_some(self, connections: list[Connection], kernel_bytes: int) -> None:
        """Check some hundred connections, and then queue the check of the others: there may be ten thousand, and
        dropping a connection that holds much memory takes time.

        Args:
            connections: the connections that are not checked yet.
            kernel_bytes: the system's memory for the connections that are checked.
        """
        begun = self.loop.time()
        for _ in range(min(SWEPT_AT_ONCE, len(connections))):
            connection = connections.pop()
            self._look_after(connection, begun)
            kernel_bytes += connection.weigh_kernel()
            if self.loop.time() - begun >= SLICE_SECONDS:
                break
        self.run_queue.spend(self.loop.time() - begun)
        if connections:
            self.run_queue.behind(lambda: self._sweep_some(connections, kernel_bytes))
        else:
            self.kernel_bytes = kernel_bytes
            self._sweep = self.loop.call_later(SWEEP_SECONDS, self._sweep_connections)

    def _look_after(self, connection: Connection, now: float) -> None:
        """Drop a connection if it was silent for too long, has not logged in in time, or was reset without notice."""
        idle, patience = self.config.idle_seconds, self.config.login_seconds
        quiet, session = now - connection.stirred_at, connection.session
        watches = isinstance(session, HttpSession) and session.watches
        if patience and not connection.is_known and now - connection.stranger_since >= patience:
            connection.drop(f"did not log in within {patience} s")
        elif connection.is_on_trial and now - connection.stranger_since >= TRIAL_SECONDS:
            limit = "connections are open, the limit"
            self._turn_away(connection, f"{limit}, and it did not log in within {TRIAL_SECONDS:g} s")
        elif idle and quiet >= idle and not watches and not connection.owes_answer and not connection.is_inner:
            connection.drop(f"said nothing for {quiet:.0f} s")
        else:
            connection.notice_reset()
