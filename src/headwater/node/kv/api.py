"""The interfaces that a command's handler sees: its session, and through it the node.

Handlers, and the sessions that a key-value session turns into (DCP, TAP), know these two interfaces only. `KvSession`
(session.py) and `Server` (node/server.py) implement them; no file below imports either, so no imports go in a circle.
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
    """The kernels' part of a session's requests, which is its connection's `QuickPath` as well.

    Attributes: rounds: those of the bucket; None where there are none.
    """

    rounds: Rounds | None

    @property
    def features(self) -> int:
        """The features of the connection, as the kernels know them, and whether it may write."""

    def resume(self, stop: int) -> None:
        """Let the next `run` begin with what a round has done of its bytes, and why it stopped."""

    def wait_for(self, gate: int) -> None:
        """Let later answers wait for a batch."""

    def run(self, data: memoryview, offset: int) -> int:
        """Answer the requests of `data` from `offset` on; return the offset of the first one that was not taken."""


class UserSession(Protocol):
    """A session of a user, in any protocol."""

    connection: Connection
    user: str | None


class TapSessions(Protocol):
    """The TAP sessions of the node's bucket."""

    def fenced(self, options: TapOptions) -> list[int]:
        """Return the vbuckets that a session would lack because it is not known yet whether this node owns them."""

    def left_behind(self, options: TapOptions) -> list[str]:
        """Return the collections that a takeover would not bring along."""

    def connect(self, kv: Session, options: TapOptions) -> object:
        """Turn a connection into a TAP session: a new one, or the kept one of its name."""

    def deregister(self, name: bytes) -> bool:
        """Drop a session; False if there is none of that name."""

    def change_filter(self, name: bytes, checkpoints: dict[int, int]) -> bool:
        """Let a live session follow these vbuckets, by checkpoint; False if there is none of that name."""


class Follower(Protocol):
    """The connections that this node opened to follow producers."""

    def following(self) -> Iterable[tuple[str, FollowProgress]]:
        """Return each producer (host:port/bucket), and the progress of the vbuckets that follow it."""

    def start(self, source: ProducerAddress, vbuckets: list[int], *, takeover: bool) -> None:
        """Let vbuckets follow a producer; they leave another producer that this node called."""

    def leave(self, source: ProducerAddress, vbuckets: list[int] | None) -> bool:
        """Let vbuckets (None: all) stop following a producer; return False if it was never called."""

    def wants(self, vbucket: int) -> bool:
        """Return True if a vbucket follows a producer, or is about to."""


class Member(Protocol):
    """The node as a member of a cluster."""

    @property
    def map(self) -> ClusterMap | None:
        """The newest map that names this node."""

    def concerns(self, map_: object) -> bool:
        """Return True if a cluster map (as JSON) is one that the member keeps and obeys, and does not only hand out."""

    async def take(self, version: tuple[int, int], config: bytes, content: Any = None) -> None:
        """Keep an operator's map (`content`: its JSON, read) and obey it; CommandRefused if it is invalid."""

    def state_set(self, vbucket: int) -> None:
        """Learn that an operator has set a vbucket's state, which overrides the map."""

    def hold(self, host: str, port: int, vbuckets: Iterable[int] | None) -> bool:
        """Keep vbuckets (None: all that follow this node) from following a node by the map; return True if
        any would.
        """

    def by_hand(self, vbuckets: Iterable[int]) -> None:
        """Learn that an operator makes these vbuckets follow a producer."""


class SharedUsers(Protocol):
    """The users of the cluster, as the members share them."""

    def text(self, known: bytes = b"") -> bytes:
        """Return the list of users; empty for a caller who has it already."""

    async def take(self, text: bytes) -> None:
        """Take an administrator's list; on return it is on disk and in force. Raises UserListRefused, StorageError."""


class BucketCatalog(Protocol):
    """The buckets of a node beside its first."""

    async def create(self, wish: NewBucket) -> None:
        """Make a bucket; on return it is durable and served. CommandRefused if it is invalid, or exists."""

    async def drop(self, name: str, only: Bucket | None = None) -> None:
        """Drop a bucket with all of its documents; on return it is gone for good. CommandRefused if there is none, if
        it is the first, or if it is not the one (`only`) that is meant.
        """

    def quota_mib(self, name: str) -> int:
        """The quota of a bucket; 0 for none."""

    async def set_quota(self, name: str, quota_mib: int) -> None:
        """Set the quota of a bucket; on return it is durable and in force. CommandRefused if it is invalid."""

    async def keep_history(self, bucket: Bucket, seconds: int | None = None, size: int | None = None) -> None:
        """Set how far back a bucket keeps superseded versions; on return it is durable and in force. CommandRefused if
        it is invalid.
        """


class Services(Protocol):
    """The node with one of its buckets, as handlers and sessions see it (node/served.py).

    Attributes:
        bucket, committer, config, loop: the bucket, its committer, the settings, the event loop.
        run_queue: the queue of the sessions that run next on that loop.
        users, failures: the users, and failed logins by address.
        cluster: the bucket's map, as clients get it.
        dcp: the DCP connections.
        lease: the lease of the operator who moves vbuckets.
        compactor: the compactor of the bucket's files.
        requests: counts and durations of requests. loop_watch: the delay of the event loop.
        tls: the node's end of TLS; None where it is not spoken.
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
        """The port at which TLS is spoken; None where it is not."""

    @property
    def buckets(self) -> Mapping[str, Services]:
        """All buckets of the node by name; a connection has the first of them until it selects another."""

    @property
    def sharing(self) -> SharedUsers:
        """The users of the cluster."""

    @property
    def catalog(self) -> BucketCatalog:
        """The catalog, which makes and drops the buckets."""

    @property
    def tap(self) -> TapSessions:
        """The TAP sessions."""

    @property
    def replication(self) -> Follower:
        """The producers that are followed."""

    @property
    def membership(self) -> Member:
        """The member of a cluster that this node is, or could become."""

    @property
    def is_spare(self) -> bool:
        """True if this is a worker without vbuckets that is to join the others, or has left them."""

    def figures(self) -> Iterable[tuple[str, str]]:
        """Return the node's own part of STAT: connections, their memory, and the upkeep of files."""

    def warn(self, peer: str, cause: str) -> None:
        """Write the one line that names peer and cause."""

    def login_refused(self, peer: str, user: str, why: str) -> None:
        """Log a refused login, with the name of the user; an empty name if none was sent."""

    def record(self, session: UserSession, what: str, *, moves: bool = False) -> None:
        """Log what a user has changed, and from where; `moves` marks work that is done for a thousand vbuckets."""

    def is_client_there(self, agent: str) -> bool:
        """Return True if a client whose HELLO gave this agent name is connected."""

    def hears_passwords(self, connection: Connection) -> bool:
        """Return True if a peer may send a password in clear: by PLAIN or an HTTP login."""

    def audit(self, session: UserSession, what: str) -> None:
        """Log an attempt that a user had no right to."""

    def fast_path(self, session: Session) -> FastRequests | None:
        """Return the kernel's fast path for a session with a bucket."""

    def flush_later(self, at_seconds: int) -> None:
        """Empty the bucket at a Unix time; a later call replaces an earlier one."""

    def tell_of_map(self) -> None:
        """Send the cluster map to the clients that asked for it and have not seen it."""


class Session(Protocol):
    """A plain connection: who has logged in, what HELLO granted, which bucket is selected.

    Attributes:
        connection: the socket.
        features, agent: what HELLO granted, and who said it.
        user: who has logged in; None for nobody. login: a SASL exchange in progress.
        access: the user's privileges as they are now. knows_collections: whether keys begin with a collection's id.
        bucket: the selected one (`select`, `deselect`). Call `refresh_access` after a change of `features` or `user`.
        collection: the id of the collection that the request being handled names by its key; 0 without Collections.
        config_seen: the (epoch, revision) of the cluster map that the client knows.
        written_gate: the newest batch with a write of this connection's; later answers wait for it.
        preparation: the work that is done before a request is handled. parking: its waits.
        durability: what the request being handled asks for; None for nothing.
        named_at: the time at which the client's DCP connection took its name, at whichever worker: monotonic
            nanoseconds; 0 as long as it has none.
        first_opaque: the opaques of this node's requests on the client's DCP connection are above this one: on a call
            of another worker they differ from those of all others.
        others: the answers of other workers that belong to the request being handled.
        relays: the path at which each other worker is called for this client, by its address; none, unless workers
            share the address at which the client called.
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
        """The node with the selected bucket; without one, with the last selected, or the first."""

    @property
    def gate(self) -> int:
        """The batch that answers wait for now; 0 if everything that they show is on disk."""

    @property
    def store_bucket(self) -> Bucket:
        """The selected bucket; CommandRefused(NO_BUCKET) without one."""

    def select(self, server: Services) -> None:
        """Select a bucket; no output may wait for another bucket's batches by then."""

    def deselect(self) -> None:
        """Select no bucket."""

    def has(self, feature: int) -> bool:
        """Return True if HELLO granted the feature."""

    def refresh_access(self) -> None:
        """Look up the user's rights again, by the present features, user and bucket."""

    def state_of(self, kind: type[Kept]) -> Kept:
        """Return the state that a part of the node keeps with this connection; `kind()` makes it on first use."""

    def wrote(self) -> None:
        """Let later answers wait for the batch with the changes that the handler staged."""

    def saw_unstable(self) -> None:
        """Let this and later answers wait for the changes that the handler read and that are not durable yet."""

    def wait_for(self, gate: int) -> None:
        """Let later answers wait for a batch."""

    def saw(self, vbucket: VBucket) -> None:
        """Let this and later answers wait until the vbucket's record is on disk."""

    def not_my_vbucket(self) -> CommandRefused:
        """Return the refusal that carries the current map, so that the client finds the owner."""

    def give(self, frame: Frame) -> None:
        """Have whichever workers answer one request; NoRoom when it must be given again."""

    def end_burst(self) -> None:
        """Send what other workers were asked: no more has come."""

    def pump(self) -> None:
        """Go on with what other workers answer: the client has taken all."""

    def handle(self, frame: Frame) -> None:
        """Answer one request; NoRoom if it must be handled again after the next commit."""

    def reply(self, frame: Frame, answer: Answer) -> None:
        """Queue the answer of one request, unless its quiet form leaves it out."""

    def encoded(self, frame: Frame, answer: Answer) -> bytes:
        """Return the bytes of an answer in this connection's protocol."""

    def send(self, data: bytes | bytearray | memoryview, gate: int = 0) -> None:
        """Queue answers; they leave after batch `gate` and after this connection's own writes."""

    def finish(self) -> None:
        """Close the connection once the request being handled is answered."""

    def users_changed(self) -> None:
        """Look up the user and the roles again; a user who was removed has to leave."""

    def closed(self) -> None:
        """Learn that the socket is closed."""
