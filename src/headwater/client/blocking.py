"""The client that waits by blocking the thread it is called in.

Every method says what it does in `kv.py`, `bulk.py` and `plan.py`; here the steps are driven by transport/blocking.py.
A client belongs to one thread at a time; so does each drain made from it, which has connections of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

from headwater.client import bulk
from headwater.client.cluster import Cluster
from headwater.client.kv import Document, Observed, Operations
from headwater.client.logs import failover_logs
from headwater.client.nodes import Settings
from headwater.client.options import DrainOptions, Start, Until
from headwater.client.routing import ClusterMap
from headwater.client.settings import settings_for
from headwater.errors import StatusError
from headwater.transport.blocking import run
from headwater.transport.waiting import Steps
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.client.drainer import Drainer
    from headwater.client.feeds import Batches, Changes

Result = TypeVar("Result")
Key = str | bytes
Value = str | bytes


class Client:
    """A bucket, reached by key or by its changes; made by `connect`."""

    def __init__(self, settings: Settings) -> None:
        self._cluster = Cluster(settings)
        self._do = Operations(self._cluster)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _run(self, steps: Steps[Result]) -> Result:
        return run(steps, self._cluster.clock)

    def close(self) -> None:
        """Close the key-value connections; drains made from this client go on."""
        self._cluster.close()

    @property
    def map(self) -> ClusterMap:
        """Which node owns which vbucket, as far as is known."""
        return self._cluster.map

    def vbucket_of(self, key: Key) -> int:
        """Return the vbucket a key belongs to."""
        return self.map.vbucket_of(key.encode() if isinstance(key, str) else key)

    # ------------------------------------------------------------------ documents

    def get(self, key: Key) -> Document:
        """Read a document; KeyNotFound if there is none."""
        return self._run(self._do.get(key))

    def get_many(self, keys: Iterable[Key]) -> dict[bytes, Document]:
        """Read documents; keys that do not exist are left out."""
        return self._run(bulk.get_many(self._cluster, keys))

    def set(self, key: Key, value: Value, *, flags: int = 0, expiry: int = 0, cas: int = 0) -> int:
        """Store a document, if `cas` is given only over that version; returns the new CAS."""
        return self._run(self._do.store(Opcode.SET, key, value, flags=flags, expiry=expiry, cas=cas))

    def set_many(
        self, items: Mapping[Any, Value] | Iterable[tuple[Key, Value]], *, flags: int = 0, expiry: int = 0
    ) -> dict[bytes, StatusError]:
        """Store documents; returns the failures by key, so an empty answer means that all were stored."""
        pairs = items.items() if isinstance(items, Mapping) else items
        return self._run(bulk.set_many(self._cluster, pairs, flags, expiry))

    def add(self, key: Key, value: Value, *, flags: int = 0, expiry: int = 0) -> int:
        """Store a document that does not exist yet; KeyExists if it does."""
        return self._run(self._do.store(Opcode.ADD, key, value, flags=flags, expiry=expiry))

    def replace(self, key: Key, value: Value, *, flags: int = 0, expiry: int = 0, cas: int = 0) -> int:
        """Store a document that exists; KeyNotFound if it does not."""
        return self._run(self._do.store(Opcode.REPLACE, key, value, flags=flags, expiry=expiry, cas=cas))

    def append(self, key: Key, value: Value, *, cas: int = 0) -> int:
        """Put bytes behind a document's value; NotStored if there is none."""
        return self._run(self._do.extend(Opcode.APPEND, key, value, cas))

    def prepend(self, key: Key, value: Value, *, cas: int = 0) -> int:
        """Put bytes before a document's value; NotStored if there is none."""
        return self._run(self._do.extend(Opcode.PREPEND, key, value, cas))

    def delete(self, key: Key, *, cas: int = 0) -> int:
        """Delete a document; KeyNotFound if there is none."""
        return self._run(self._do.delete(key, cas))

    def delete_many(self, keys: Iterable[Key]) -> dict[bytes, StatusError]:
        """Delete documents; returns the failures by key."""
        return self._run(bulk.delete_many(self._cluster, keys))

    def incr(self, key: Key, delta: int = 1, *, initial: int | None = None, expiry: int = 0) -> int:
        """Count a decimal number up and return it; a missing one is created as `initial`, if that is given."""
        return self._run(self._do.count(Opcode.INCREMENT, key, delta, initial, expiry))

    def decr(self, key: Key, delta: int = 1, *, initial: int | None = None, expiry: int = 0) -> int:
        """Count a decimal number down, to 0 at most, and return it; as `incr`."""
        return self._run(self._do.count(Opcode.DECREMENT, key, delta, initial, expiry))

    def touch(self, key: Key, expiry: int) -> int:
        """Give a document a new expiry; returns its CAS."""
        return self._run(self._do.touch(key, expiry))

    def gat(self, key: Key, expiry: int) -> Document:
        """Read a document and give it a new expiry."""
        return self._run(self._do.gat(key, expiry))

    def observe(self, key: Key) -> Observed:
        """Ask whether a key is persisted."""
        return self._run(self._do.observe(key))

    # ------------------------------------------------------------------ nodes and vbuckets

    def noop(self) -> None:
        """Make sure that every node answers."""
        self._run(self._do.noop())

    def version(self) -> str:
        """Return the version of the first node."""
        return self._run(self._do.version())

    def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics."""
        return self._run(self._do.stats(group))

    def vbucket_stats(self, group: str) -> dict[int, dict[str, str]]:
        """Return a group of statistics about vbuckets, each from the node that owns it."""
        return self._run(self._do.vbucket_stats(group))

    def seqnos(self) -> dict[int, int]:
        """Return the high seqno of every active vbucket."""
        return self._run(self._cluster.seqnos())

    def failover_log(self, vbucket: int) -> list[tuple[int, int]]:
        """Return a vbucket's failover log, newest history first, as (vb uuid, seqno)."""
        return self._run(self._do.failover_log(vbucket))

    def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, list[tuple[int, int]]]:
        """Return the failover logs of these vbuckets, of all by default: asked for in one go from each node."""
        return self._run(failover_logs(self._cluster, vbuckets))

    def set_vbucket_state(self, vbucket: int, state: State | str) -> None:
        """Set a vbucket's state on its node: active, replica, pending or dead."""
        self._run(self._do.set_vbucket_state(vbucket, state))

    def get_vbucket_state(self, vbucket: int) -> State:
        """Return a vbucket's state on its node."""
        return self._run(self._do.get_vbucket_state(vbucket))

    def delete_vbucket(self, vbucket: int) -> None:
        """Delete a vbucket and everything in it."""
        self._run(self._do.delete_vbucket(vbucket))

    # ------------------------------------------------------------------ changes

    def changes(
        self, start: Start = None, *, vbuckets: Iterable[int] | None = None, until: Until = None, **options: Any
    ) -> Changes:
        """Iterate over the changes of a bucket, one at a time, each vbucket in the order of its seqnos.

        A key comes once per snapshot: values in between may be skipped, the last one never is. After a failure the
        drain connects again and goes on behind the last change: nothing is lost, nothing comes twice.

        Args:
            start: None for the whole history, "now" for what comes from now on, or saved positions by vbucket
                (vbuckets without one start at the beginning).
            vbuckets: which; None for all.
            until: None for ever, "now" for what there is now, or the seqno to end at by vbucket. A stream ends with
                the snapshot that holds this seqno, so changes behind it may come.
            options: of `DrainOptions`.

        Yields: Mutation, Deletion or Expiration after the SnapshotMarker they belong to; at last a StreamEnd.

        Raises:
            RollbackRequired: a node's history left ours: its `common` is the last seqno both share; see
                `protocol.position.safe_point` for where to go on.
            TransportError: no node could be reached, or one said nothing, for `patience_seconds`.
            StatusError: a node refused the request.
            RemoteProtocolError: a node broke the rules of the protocol.
            OptionError: an argument makes no sense.

        Source: DCP, commands/stream-request.md, rollback.md, dead-connections.md.
        """
        from headwater.client.feeds import Changes  # noqa: PLC0415 - arrow and kernels: not for key-value work alone

        return Changes(self._plan(start, vbuckets, until, {"markers": True, **options}))

    def batches(
        self, start: Start = None, *, vbuckets: Iterable[int] | None = None, until: Until = None, **options: Any
    ) -> Batches:
        """Iterate over the changes of a bucket in Arrow record batches; as `changes`, but a batch at a time.

        A batch comes as soon as there is nothing more to read at the moment, or when it is full (`batch_bytes`).
        """
        from headwater.client.feeds import Batches  # noqa: PLC0415

        return Batches(self._plan(start, vbuckets, until, options))

    def _plan(self, start: Start, vbuckets: Iterable[int] | None, until: Until, options: dict[str, Any]) -> Drainer:
        from headwater.client.plan import plan  # noqa: PLC0415

        return self._run(plan(self._cluster, start, vbuckets, until, DrainOptions(**options)))


def connect(connection: str, user: str | None = None, password: str | None = None, **settings: Any) -> Client:
    """Connect to a bucket.

    Args:
        connection: "couchbase://host[:port][,host...]/bucket"; one node that answers is enough to find the others.
        user, password: None for servers that let everybody in.
        settings: `vbuckets`, `connect_timeout_seconds`, `timeout_seconds`, `agent`, `mechanisms` (settings.py).

    Raises:
        OptionError: the connection string or a setting makes no sense.
        TransportError: none of the nodes could be reached in time.
        StatusError: a node refused us: AuthError, NoAccess, KeyNotFound for an unknown bucket.
    """
    client = Client(settings_for(connection, user, password, **settings))
    try:
        client._run(client._cluster.connect())
    except BaseException:
        client.close()
        raise
    return client
