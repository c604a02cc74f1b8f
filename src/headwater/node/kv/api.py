"""The interfaces that a command's handler uses: its session, and through it the node.

Handlers, and the sessions that replace a key-value session (DCP, TAP), use `Session` and `Services` only. `KvSession`
(session.py) and `ServedBucket` (node/served.py) implement them; modules of lower layers import neither, so there is no
circular import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

    from headwater.node.buckets.bucket import Bucket
    from headwater.node.buckets.catalog import NewBucket
    from headwater.node.calling import FollowProgress, ProducerAddress
    from headwater.node.committer import Committer
    from headwater.node.config import NodeConfig
    from headwater.node.connections.connection import Connection
    from headwater.node.connections.tls import NodeTls
    from headwater.node.connections.watching import Rounds
    from headwater.node.kv.parking import Parking
    from headwater.node.kv.preparation import Preparation
    from headwater.node.kv.rights import Access
    from headwater.node.ownership.cluster_map import ServedMap
    from headwater.node.ownership.lease import Lease
    from headwater.node.process.loop_watch import LoopWatch
    from headwater.node.process.run_queue import RunQueue
    from headwater.node.refused import CommandRefused
    from headwater.node.reporting.requests import Requests
    from headwater.node.streams.dcp_hub import DcpHub
    from headwater.node.upkeep.compactor import Compactor
    from headwater.node.users.failures import Failures
    from headwater.node.users.logins import Users
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.tap.options import TapOptions
    from headwater.wire.address import Address
    from headwater.wire.cluster_map import ClusterMap
    from headwater.wire.framing import DurabilityInfo
    from headwater.wire.header import Frame
    from headwater.wire.layout import Answer

Kept = TypeVar("Kept")


class FastRequests(Protocol):
    """The kernels' part of a session's requests; also the `QuickPath` of its connection.

    Attributes:
        rounds: the rounds of the bucket; None if there are none.
    """

    rounds: Rounds | None

    @property
    def features(self) -> int:
        """The connection's features in the kernels' encoding, including the right to write."""

    def resume(self, stop: int) -> None:
        """Prepare the next `run` for bytes that a round has executed in part; `stop` says why the round stopped."""

    def wait_for(self, gate: int) -> None:
        """Make later answers wait for batch `gate`."""

    def run(self, data: memoryview, offset: int) -> int:
        """Answer the requests of `data` from `offset` on; return the offset of the first request left to Python."""


class UserSession(Protocol):
    """A session of a user, in any protocol."""

    connection: Connection
    user: str | None


class TapSessions(Protocol):
    """The TAP sessions of the node's bucket."""

    def fenced(self, options: TapOptions) -> list[int]:
        """Return the vbuckets that a session would not get because they are fenced: another node may own them."""

    def unsettled(self, options: TapOptions) -> list[int]:
        """Return the vbuckets in which a dump must wait until durable writes of a former owner are settled."""

    def left_behind(self, options: TapOptions) -> list[str]:
        """Return the names of the collections that a takeover by TAP would lose."""

    def connect(self, kv: Session, options: TapOptions) -> object:
        """Turn a connection into a TAP session: a new one, or the one that was kept under the same name."""

    def deregister(self, name: bytes) -> bool:
        """Drop the session with a name; return False if there is no such session."""

    def change_filter(self, name: bytes, checkpoints: dict[int, int]) -> bool:
        """Set the vbuckets of a live session, with their checkpoints; return False if no session has the name."""


class Follower(Protocol):
    """The connections that this node opened to producers."""

    def following(self) -> Iterable[tuple[str, FollowProgress]]:
        """Return each producer (host:port/bucket) and the progress of the vbuckets that follow it."""

    def start(self, source: ProducerAddress, vbuckets: list[int], *, takeover: bool) -> None:
        """Make vbuckets follow a producer; they leave any other producer that this node has connected to."""

    def leave(self, source: ProducerAddress, vbuckets: list[int] | None) -> bool:
        """Make vbuckets (None: all) stop following a producer; return False if this node has no connection to it."""

    def wants(self, vbucket: int) -> bool:
        """Return True if a vbucket follows a producer, or is going to."""


class Member(Protocol):
    """The node as a member of a cluster."""

    @property
    def map(self) -> ClusterMap | None:
        """The newest map that contains this node."""

    def concerns(self, map_: object) -> bool:
        """Return True if the member must keep and obey a cluster map (as JSON), not only pass it to clients."""

    async def take(self, version: tuple[int, int], config: bytes, content: Any = None) -> None:
        """Keep and obey an operator's map.

        Args:
            version: the map's epoch and revision.
            config: the map as JSON.
            content: the parsed JSON; None if it is not parsed yet.

        Raises:
            CommandRefused: the map is invalid.
        """

    def state_set(self, vbucket: int) -> None:
        """Note that an operator has set a vbucket's state, which overrides the map."""

    def hold(self, host: str, port: int, vbuckets: Iterable[int] | None) -> bool:
        """Keep vbuckets from following a node by the map; return True if the map makes any of them follow it.

        Args:
            host: the node's host.
            port: its port.
            vbuckets: the vbuckets; None for all that follow this node.
        """

    def by_hand(self, vbuckets: Iterable[int]) -> None:
        """Note that an operator makes these vbuckets follow a producer."""


class SharedUsers(Protocol):
    """The users of the cluster, which all members share."""

    def text(self, digest: bytes = b"") -> bytes:
        """Return the list of users; empty if `digest` is the digest of the current list."""

    async def take(self, text: bytes) -> None:
        """Put an administrator's list of users into force; on return it is on disk.

        Raises:
            UserListRefused: the list is invalid.
            StorageError: the list can't be written.
        """


class BucketCatalog(Protocol):
    """The buckets of a node besides its first."""

    async def create(self, wish: NewBucket) -> None:
        """Create a bucket; on return it is durable and served.

        Raises:
            CommandRefused: the request is invalid, or the bucket exists.
        """

    async def drop(self, name: str, only: Bucket | None = None) -> None:
        """Drop a bucket with all of its documents; on return the drop is durable.

        Raises:
            CommandRefused: there is no such bucket, it is the node's first, or it is not `only`.
        """

    def quota_mib(self, name: str) -> int:
        """Return the quota of a bucket in MiB; 0 for none."""

    async def set_quota(self, bucket: Bucket, quota_mib: int) -> None:
        """Set the quota of a bucket in MiB (0: none); on return it is durable and in force.

        Raises:
            CommandRefused: the quota is invalid, or there is no such bucket.
        """

    async def keep_history(self, bucket: Bucket, seconds: int | None = None, size: int | None = None) -> None:
        """Set for how long and how much a bucket keeps superseded versions; on return this is durable and in force.

        Args:
            bucket: the bucket.
            seconds: the age up to which versions are kept; None to leave it unchanged.
            size: the bytes that the versions may use; None to leave them unchanged.

        Raises:
            CommandRefused: a number is invalid.
        """

    async def give_collections_history(self, bucket: Bucket, *, history: bool) -> None:
        """Set whether collections that are created later in a bucket have a history; otherwise like `keep_history`."""


class Services(Protocol):
    """The node with one of its buckets, as handlers and sessions see it (node/served.py).

    Attributes:
        bucket: the bucket.
        committer: the bucket's committer.
        config: the node's settings.
        loop: the event loop.
        run_queue: the queue of the sessions that run next on that loop.
        users: the users.
        failures: failed logins by address.
        cluster: the bucket's map in the form for clients.
        dcp: the DCP connections.
        lease: the lease of the operator who moves vbuckets.
        compactor: the compactor of the bucket's files.
        requests: counts and durations of requests.
        loop_watch: the delay of the event loop.
        tls: the node's end of TLS; None without TLS.
    """

    bucket: Bucket
    committer: Committer
    config: NodeConfig
    loop: asyncio.AbstractEventLoop
    run_queue: RunQueue
    users: Users
    failures: Failures
    cluster: ServedMap
    dcp: DcpHub
    lease: Lease
    compactor: Compactor
    requests: Requests
    loop_watch: LoopWatch
    tls: NodeTls | None

    @property
    def tls_port(self) -> int | None:
        """The port for TLS; None if there is none."""

    @property
    def buckets(self) -> Mapping[str, Services]:
        """All buckets of the node by name; a connection uses the first of them until it selects another."""

    @property
    def sharing(self) -> SharedUsers:
        """The users of the cluster."""

    @property
    def catalog(self) -> BucketCatalog:
        """The catalog, which creates and drops the buckets."""

    @property
    def tap(self) -> TapSessions:
        """The TAP sessions."""

    @property
    def replication(self) -> Follower:
        """The connections to producers that vbuckets follow."""

    @property
    def membership(self) -> Member:
        """The node as a member of a cluster, present or future."""

    @property
    def is_spare(self) -> bool:
        """True if this is a worker without vbuckets, which is going to join the others or has left them."""

    def figures(self) -> Iterable[tuple[str, str]]:
        """Return the statistics of the node itself: connections, their memory, and the upkeep of files."""

    def warn(self, peer: str, cause: str) -> None:
        """Log a warning that names peer and cause, in one line."""

    def login_refused(self, peer: str, user: str, why: str) -> None:
        """Log a refused login; `user` is the name that the peer sent, or empty, and `why` the reason."""

    def record(self, session: UserSession, what: str, *, moves: bool = False) -> None:
        """Log a change by a user, with the user's address. `moves` is True for a change that an operator's tool repeats
        for many vbuckets.
        """

    def is_client_there(self, agent: str) -> bool:
        """Return True if a client whose HELLO gave this agent name is connected."""

    def hears_passwords(self, connection: Connection) -> bool:
        """Return True if a peer may send a password in clear text, by PLAIN or an HTTP login."""

    def audit(self, session: UserSession, what: str) -> None:
        """Log an attempt for which the session's user had no right."""

    def fast_path(self, session: Session) -> FastRequests | None:
        """Return the kernel's fast path for a session with a bucket."""

    def flush_later(self, at_seconds: int) -> None:
        """Delete the bucket's documents at a Unix time; a later call replaces an earlier one."""

    def tell_of_map(self) -> None:
        """Send the cluster map to the clients that requested map changes and do not have it yet."""


class Session(Protocol):
    """A plain connection: its user, the features of its HELLO, its selected bucket.

    Attributes:
        connection: the socket with its queues.
        features: the features that HELLO granted. Call `refresh_access` after a change.
        agent: the name that the client gave in HELLO.
        user: the user who has logged in; None for a stranger. Call `refresh_access` after a change.
        login: a SASL exchange in progress; None if there is none.
        access: the user's present rights.
        knows_collections: True if keys begin with a collection's id.
        bucket: the selected bucket, which `select` and `deselect` change; None if none is selected.
        collection: the collection id in the key of the current request; 0 without Collections.
        config_seen: the (epoch, revision) of the cluster map that the client knows.
        written_gate: number of the newest batch with a write of this connection; later answers wait for it.
        preparation: work that is done before a request is handled.
        parking: the waits of requests.
        durability: the durability of the current request; None if it has none.
        named_at: time at which the client's DCP connection was opened under its name, at any worker, in monotonic
            nanoseconds; 0 before.
        first_opaque: this node's requests on the client's DCP connection have opaques above this one; on a connection
            from another worker, the ranges of all workers differ.
        others: the answers of other workers to their shares of the current request.
        relays: path of each other worker's socket, by the worker's address; empty unless the client uses the address
            that workers share.
    """

    connection: Connection
    features: frozenset[int]
    agent: str
    user: str | None
    access: Access
    knows_collections: bool
    preparation: Preparation
    parking: Parking
    login: object | None
    bucket: Bucket | None
    collection: int
    config_seen: tuple[int, int]
    written_gate: int
    durability: DurabilityInfo | None
    named_at: int
    first_opaque: int
    others: tuple[Frame, ...]
    relays: Mapping[Address, str]

    @property
    def server(self) -> Services:
        """The node with the selected bucket. If no bucket is selected: with the last selected one, or the
        node's first.
        """

    @property
    def gate(self) -> int:
        """The number of the batch for which answers wait now; 0 if everything that they depend on is on disk."""

    @property
    def store_bucket(self) -> Bucket:
        """The selected bucket; raises CommandRefused(NO_BUCKET) without one."""

    def select(self, server: Services) -> None:
        """Select a bucket; no output may still wait for a batch of the former one."""

    def deselect(self) -> None:
        """Select no bucket."""

    def has(self, feature: int) -> bool:
        """Return True if HELLO granted the feature."""

    def refresh_access(self) -> None:
        """Look up the user's rights again, after a change of features, user or bucket."""

    def state_of(self, kind: type[Kept]) -> Kept:
        """Return the state that a part of the node keeps with this connection; created by `kind()` on first use."""

    def wrote(self) -> None:
        """Make later answers wait for the batch with the changes that the handler staged."""

    def saw_unstable(self) -> None:
        """Make this and later answers wait for the changes that the handler read and that are not durable yet."""

    def wait_for(self, gate: int) -> None:
        """Make later answers wait for batch `gate`."""

    def saw(self, vbucket: VBucket) -> None:
        """Make this and later answers wait until the vbucket's record is on disk."""

    def not_my_vbucket(self) -> CommandRefused:
        """Return the refusal with the current map, in which the client finds the owner."""

    def give(self, frame: Frame) -> None:
        """Answer one request, or relay it to the workers that it concerns. After NoRoom, call again with it later."""

    def end_burst(self) -> None:
        """Send the queued requests to other workers, at the end of a burst."""

    def pump(self) -> None:
        """Continue with the answers of other workers, because the client has read all earlier output."""

    def handle(self, frame: Frame) -> None:
        """Answer one request. Raises NoRoom if it must be handled again after the next commit."""

    def reply(self, frame: Frame, answer: Answer) -> None:
        """Queue the answer to one request, unless the request is quiet and omits answers of this status."""

    def encoded(self, frame: Frame, answer: Answer) -> bytes:
        """Return an answer in the encoding of this connection's protocol."""

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue answers; they are sent after batch `gate` and after this connection's own writes are durable."""

    def finish(self) -> None:
        """Close the connection after the answer to the current request."""

    def users_changed(self) -> None:
        """Look up the user and the roles again; drop the connection if the user was removed."""

    def closed(self) -> None:
        """Note that the socket is closed."""
