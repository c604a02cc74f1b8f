"""The client for asyncio: the blocking one's methods, to be awaited, driven by the same steps.

One client may be used by many tasks of one event loop at the same time; their requests share a connection to each node
(pipeline.py). A drain belongs to one task; it has connections of its own.
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
from headwater.transport.aio import Waiters
from headwater.transport.waiting import Steps
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.client.drainer import Drainer
    from headwater.client.feeds import AsyncBatches, AsyncChanges

Result = TypeVar("Result")
Key = str | bytes
Value = str | bytes


class AsyncClient:
    """A bucket, reached by key or by its changes; made by `connect`."""

    def __init__(self, settings: Settings) -> None:
        self._cluster = Cluster(settings)
        self._do = Operations(self._cluster)
        self._waiters = Waiters(settings.clock)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _run(self, steps: Steps[Result]) -> Result:
        return await self._waiters.run(steps)

    async def close(self) -> None:
        """Close the key-value connections; drains made from this client go on."""
        self._cluster.close()
        self._waiters.sweep()

    @property
    def map(self) -> ClusterMap:
        """Which node owns which vbucket, as far as is known."""
        return self._cluster.map

    def vbucket_of(self, key: Key) -> int:
        """Return the vbucket a key belongs to."""
        return self.map.vbucket_of(key.encode() if isinstance(key, str) else key)

    # ------------------------------------------------------------------ documents

    async def get(self, key: Key) -> Document:
        """Read a document; KeyNotFound if there is none."""
        return await self._run(self._do.get(key))

    async def get_many(self, keys: Iterable[Key]) -> dict[bytes, Document]:
        """Read documents; keys that do not exist are left out."""
        return await self._run(bulk.get_many(self._cluster, keys))

    async def set(self, key: Key, value: Value, *, flags: int = 0, expiry: int = 0, cas: int = 0) -> int:
        """Store a document, if `cas` is given only over that version; returns the new CAS."""
        return await self._run(self._do.store(Opcode.SET, key, value, flags=flags, expiry=expiry, cas=cas))

    async def set_many(
        self, items: Mapping[Any, Value] | Iterable[tuple[Key, Value]], *, flags: int = 0, expiry: int = 0
    ) -> dict[bytes, StatusError]:
        """Store documents; returns the failures by key, so an empty answer means that all were stored."""
        pairs = items.items() if isinstance(items, Mapping) else items
        return await self._run(bulk.set_many(self._cluster, pairs, flags, expiry))

    async def add(self, key: Key, value: Value, *, flags: int = 0, expiry: int = 0) -> int:
        """Store a document that does not exist yet; KeyExists if it does."""
        return await self._run(self._do.store(Opcode.ADD, key, value, flags=flags, expiry=expiry))

    async def replace(self, key: Key, value: Value, *, flags: int = 0, expiry: int = 0, cas: int = 0) -> int:
        """Store a document that exists; KeyNotFound if it does not."""
        return await self._run(self._do.store(Opcode.REPLACE, key, value, flags=flags, expiry=expiry, cas=cas))

    async def append(self, key: Key, value: Value, *, cas: int = 0) -> int:
        """Put bytes behind a document's value; NotStored if there is none."""
        return await self._run(self._do.extend(Opcode.APPEND, key, value, cas))

    async def prepend(self, key: Key, value: Value, *, cas: int = 0) -> int:
        """Put bytes before a document's value; NotStored if there is none."""
        return await self._run(self._do.extend(Opcode.PREPEND, key, value, cas))

    async def delete(self, key: Key, *, cas: int = 0) -> int:
        """Delete a document; KeyNotFound if there is none."""
        return await self._run(self._do.delete(key, cas))

    async def delete_many(self, keys: Iterable[Key]) -> dict[bytes, StatusError]:
        """Delete documents; returns the failures by key."""
        return await self._run(bulk.delete_many(self._cluster, keys))

    async def incr(self, key: Key, delta: int = 1, *, initial: int | None = None, expiry: int = 0) -> int:
        """Count a decimal number up and return it; a missing one is created as `initial`, if that is given."""
        return await self._run(self._do.count(Opcode.INCREMENT, key, delta, initial, expiry))

    async def decr(self, key: Key, delta: int = 1, *, initial: int | None = None, expiry: int = 0) -> int:
        """Count a decimal number down, to 0 at most, and return it; as `incr`."""
        return await self._run(self._do.count(Opcode.DECREMENT, key, delta, initial, expiry))

    async def touch(self, key: Key, expiry: int) -> int:
        """Give a document a new expiry; returns its CAS."""
        return await self._run(self._do.touch(key, expiry))

    async def gat(self, key: Key, expiry: int) -> Document:
        """Read a document and give it a new expiry."""
        return await self._run(self._do.gat(key, expiry))

    async def observe(self, key: Key) -> Observed:
        """Ask whether a key is persisted."""
        return await self._run(self._do.observe(key))

    # ------------------------------------------------------------------ nodes and vbuckets

    async def noop(self) -> None:
        """Make sure that every node answers."""
        await self._run(self._do.noop())

    async def version(self) -> str:
        """Return the version of the first node."""
        return await self._run(self._do.version())

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics."""
        return await self._run(self._do.stats(group))

    async def vbucket_stats(self, group: str) -> dict[int, dict[str, str]]:
        """Return a group of statistics about vbuckets, each from the node that owns it."""
        return await self._run(self._do.vbucket_stats(group))

    async def seqnos(self) -> dict[int, int]:
        """Return the high seqno of every active vbucket."""
        return await self._run(self._cluster.seqnos())

    async def failover_log(self, vbucket: int) -> list[tuple[int, int]]:
        """Return a vbucket's failover log, newest history first, as (vb uuid, seqno)."""
        return await self._run(self._do.failover_log(vbucket))

    async def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, list[tuple[int, int]]]:
        """Return the failover logs of these vbuckets, of all by default: asked for in one go from each node."""
        return await self._run(failover_logs(self._cluster, vbuckets))

    async def set_vbucket_state(self, vbucket: int, state: State | str) -> None:
        """Set a vbucket's state on its node: active, replica, pending or dead."""
        await self._run(self._do.set_vbucket_state(vbucket, state))

    async def get_vbucket_state(self, vbucket: int) -> State:
        """Return a vbucket's state on its node."""
        return await self._run(self._do.get_vbucket_state(vbucket))

    async def delete_vbucket(self, vbucket: int) -> None:
        """Delete a vbucket and everything in it."""
        await self._run(self._do.delete_vbucket(vbucket))

    # ------------------------------------------------------------------ changes

    async def changes(
        self, start: Start = None, *, vbuckets: Iterable[int] | None = None, until: Until = None, **options: Any
    ) -> AsyncChanges:
        """Return an asynchronous iterator over changes; as `blocking.Client.changes`."""
        from headwater.client.feeds import AsyncChanges  # noqa: PLC0415 - arrow and kernels: not for key-value work alone

        drainer = await self._plan(start, vbuckets, until, {"markers": True, **options})
        return AsyncChanges(drainer, self._waiters)

    async def batches(
        self, start: Start = None, *, vbuckets: Iterable[int] | None = None, until: Until = None, **options: Any
    ) -> AsyncBatches:
        """Return an asynchronous iterator over record batches; as `blocking.Client.batches`."""
        from headwater.client.feeds import AsyncBatches  # noqa: PLC0415

        drainer = await self._plan(start, vbuckets, until, options)
        return AsyncBatches(drainer, self._waiters)

    async def _plan(
        self, start: Start, vbuckets: Iterable[int] | None, until: Until, options: dict[str, Any]
    ) -> Drainer:
        from headwater.client.plan import plan  # noqa: PLC0415

        return await self._run(plan(self._cluster, start, vbuckets, until, DrainOptions(**options)))


async def connect(
    connection: str, user: str | None = None, password: str | None = None, **settings: Any
) -> AsyncClient:
    """Connect to a bucket; arguments and errors as `blocking.connect`."""
    client = AsyncClient(settings_for(connection, user, password, **settings))
    try:
        await client._run(client._cluster.connect())
    except BaseException:
        await client.close()
        raise
    return client
