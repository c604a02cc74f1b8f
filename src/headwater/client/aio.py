"""The client for asyncio, and the source of the blocking one's methods.

One client may be used by many tasks of one event loop at the same time; their requests share a connection to each node
(pipeline.py). A drain belongs to one task; it has connections of its own.

What stands between the two rulers below is written here once. `make docs` writes it again, without `await`, into
blocking.py: signatures and docstrings can't differ.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Iterable, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeVar, Unpack, overload

from headwater.client import bulk
from headwater.client import writes as writing
from headwater.client.clocks import hold_clocks
from headwater.client.cluster import Cluster
from headwater.client.collections import CollectionId, Collections, manifest_of, newest_manifest, parse_path, resolve
from headwater.client.durability import DurabilityChoice
from headwater.client.kv import (
    JSON_FLAGS,
    RAISES,
    Default,
    Document,
    DocumentMeta,
    Expiry,
    Observed,
    Operations,
    Value,
    as_json,
    as_key,
    as_part,
    unsigned,
)
from headwater.client.logs import failover_logs
from headwater.client.nodes import ConnectSettings
from headwater.client.options import (
    BatchesOptions,
    ChangesOptions,
    DrainOptions,
    Start,
    Until,
    drain_options,
    refuse_unknown,
    shows,
)
from headwater.client.persistence import persisted_seqnos
from headwater.client.routing import ClusterMap
from headwater.client.scans import KEYS_MAX, KeyPage, WantedKeys, keys_page
from headwater.client.settings import ConnectOptions, settings_for
from headwater.client.writes import Write, WriteWithMeta
from headwater.errors import StatusError, TransportError
from headwater.protocol.dcp.complete import ClocksHeld
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.persistence import MinPersisted, read_min_persisted
from headwater.transport.aio import Waiters
from headwater.transport.waiting import Steps
from headwater.wire import documents
from headwater.wire.features import Feature
from headwater.wire.manifest import DEFAULT, CollectionsManifest
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.client.drainer import Drainer
    from headwater.client.feeds import AsyncBatches, AsyncChanges

Result = TypeVar("Result")
Opened = TypeVar("Opened", bound=AbstractAsyncContextManager[object])
Feed = TypeVar("Feed", "AsyncBatches", "AsyncChanges")
Key = str | bytes


class Connecting(Awaitable[Opened]):
    """A client or drain that is being opened: `await` returns it, and `async with` also closes it at the end."""

    def __init__(self, opening: Coroutine[Any, Any, Opened]) -> None:
        self._coroutine = opening
        self._result: Opened | None = None

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> Opened:
        self._result = await self
        return self._result

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._result is not None:
            await self._result.__aexit__(kind, error, trace)


class _Turns:
    """A sender of requests to nodes; each request is carried out by the task that awaits it.

    Args:
        cluster: the bucket that receives the requests.
        operations: the requests of this object's methods.
        shared: the waiters of another object on the same connections; None for an object with connections of its own.
    """

    def __init__(self, cluster: Cluster, operations: Operations, shared: Waiters | None = None) -> None:
        self._cluster, self._do = cluster, operations
        self._turns = shared or Waiters(cluster.clock)

    async def _run(self, steps: Steps[Result]) -> Result:
        return await self._turns.run(steps)


class _ConnectedClient(_Turns):
    """Connections that are made by `connect` and closed again."""

    _aware: Cluster | None = None  # connections that ask for Collections, made when they are needed

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._cluster}>"

    def __reduce__(self) -> Never:
        raise TypeError(f"{self!r} can't be pickled: its connections belong to this process; connect in the other one")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the key-value connections; drains made from this client continue."""
        for cluster in filter(None, (self._cluster, self._aware)):
            cluster.close()
        self._turns.sweep()

    def _open(
        self,
        kind: Callable[[Drainer, Waiters], Feed],
        start: Start,
        vbuckets: Iterable[int] | None,
        until: Until,
        options: DrainOptions,
    ) -> Connecting[Feed]:
        async def opened() -> Feed:
            from headwater.client.plan import plan  # noqa: PLC0415 - arrow and kernels: not for key-value work alone

            return kind(await self._run(plan(self._cluster, start, vbuckets, until, options)), self._turns)

        return Connecting(opened())


class AsyncDocuments(_Turns):
    """The documents of a collection, by their keys."""

    # ================================================================== the same in blocking.py

    @overload
    async def get(self, key: Key) -> Document: ...

    @overload
    async def get(self, key: Key, default: Default) -> Document | Default: ...

    async def get(self, key: Key, default: Any = RAISES) -> Any:
        """Read a document; if there is none, return `default` or, without one, raise KeyNotFound."""
        return await self._run(self._do.get(key, default))

    async def exists(self, key: Key) -> bool:
        """Return True if there is a document. The request reads it, so `get` with a default has the value as well."""
        return await self._run(self._do.get(key, None)) is not None

    async def get_meta(self, key: Key) -> DocumentMeta:
        """Read a document's metadata, or a tombstone's; KeyNotFound if there is neither."""
        return await self._run(self._do.get_meta(key))

    async def get_xattrs(self, key: Key) -> dict[str, bytes]:
        """Read a document's extended attributes: name to JSON text. The client must have been connected with `xattrs`.

        Each attribute needs a request, so they may be of different versions; KeyNotFound if there is no document.
        """
        return await self._run(self._do.get_xattrs(key))

    async def get_many(self, keys: Iterable[Key]) -> dict[bytes, Document]:
        """Read documents; keys that do not exist are left out."""
        return await self._run(bulk.get_many(self._cluster, keys, self._do.collection))

    async def set(
        self,
        key: Key,
        value: Value,
        *,
        flags: int = 0,
        expiry: Expiry = 0,
        cas: int = 0,
        durability: DurabilityChoice = None,
    ) -> int:
        """Store a document, only over the version `cas` if that is given; return the new CAS.

        Args:
            durability: return when so many copies have it: "majority", "majority-and-persist-to-active",
                "persist-to-majority", or a `Durability`, which names a time as well. None: the active copy's disk.

        Raises:
            SyncWriteAmbiguous: the copies did not have it in time; whether it happened is not known, so read the
                document before anything else. TransportError: as above, for the answer was lost.
            DurabilityImpossible: fewer nodes have a copy than a majority needs; nothing was done.
            SyncWriteInProgress, SyncWriteReCommitInProgress: another durable write of the document was still under way
                when `timeout_seconds` were over; nothing was done.
            NotSupported: the server knows no durable writes; nothing was done.
        """
        return await self._run(
            self._do.store(documents.Set, key, value, flags=flags, expiry=expiry, cas=cas, durability=durability)
        )

    async def set_json(
        self,
        key: Key,
        value: object,
        *,
        flags: int = JSON_FLAGS,
        expiry: Expiry = 0,
        cas: int = 0,
        durability: DurabilityChoice = None,
    ) -> int:
        """Store whatever `json.dumps` takes, as `set`; NaN and infinities are no JSON and refused with OptionError.

        The flags say "JSON" to the SDKs of Couchbase. `Document.json()` and `Mutation.json()` read it back.
        """
        return await self.set(key, as_json(value), flags=flags, expiry=expiry, cas=cas, durability=durability)

    async def set_many(
        self,
        items: Mapping[Any, Value] | Iterable[tuple[Key, Value]],
        *,
        flags: int = 0,
        expiry: Expiry = 0,
        durability: DurabilityChoice = None,
    ) -> dict[bytes, StatusError]:
        """Store documents; returns the failures by key, so an empty answer means that all were stored.

        With `durability` (as for `set`) each node carries the writes out one after the other, each within the time of
        `durability`.
        """
        pairs = items.items() if isinstance(items, Mapping) else items
        steps = bulk.set_many(self._cluster, pairs, flags, expiry, self._do.collection, durability=durability)
        return await self._run(steps)

    async def write_many(
        self, writes: Iterable[Write | WriteWithMeta], *, durability: DurabilityChoice = None
    ) -> writing.Failed:
        """Store and delete documents, each write with its own flags, expiry, CAS or metadata. `durability` as for
        `set_many`; not for writes with metadata.

        Returns: the failures by the write's place: KeyNotFound for a deletion without a document, KeyExists if another
        version was there, OptionError for an impossible request. All other writes were carried out, those of one key in
        their order.
        """
        return await self._run(writing.write_many(self._cluster, writes, self._do.collection, durability))

    async def add(
        self, key: Key, value: Value, *, flags: int = 0, expiry: Expiry = 0, durability: DurabilityChoice = None
    ) -> int:
        """Store a document that does not exist yet; KeyExists if it does. `durability` as for `set`."""
        steps = self._do.store(documents.Add, key, value, flags=flags, expiry=expiry, durability=durability)
        return await self._run(steps)

    async def replace(
        self,
        key: Key,
        value: Value,
        *,
        flags: int = 0,
        expiry: Expiry = 0,
        cas: int = 0,
        durability: DurabilityChoice = None,
    ) -> int:
        """Store a document that exists; KeyNotFound if it does not. `durability` as for `set`."""
        return await self._run(
            self._do.store(documents.Replace, key, value, flags=flags, expiry=expiry, cas=cas, durability=durability)
        )

    async def append(self, key: Key, value: Value, *, cas: int = 0, durability: DurabilityChoice = None) -> int:
        """Put bytes behind a document's value; NotStored if there is none. `durability` as for `set`."""
        return await self._run(self._do.extend(documents.Append, key, value, cas, durability))

    async def prepend(self, key: Key, value: Value, *, cas: int = 0, durability: DurabilityChoice = None) -> int:
        """Put bytes before a document's value; NotStored if there is none. `durability` as for `set`."""
        return await self._run(self._do.extend(documents.Prepend, key, value, cas, durability))

    async def delete(self, key: Key, *, cas: int = 0, durability: DurabilityChoice = None) -> int:
        """Delete a document; KeyNotFound if there is none. `durability` as for `set`."""
        return await self._run(self._do.delete(key, cas, durability))

    async def delete_many(
        self,
        keys: Iterable[Key],
        *,
        durability: DurabilityChoice = None,
    ) -> dict[bytes, StatusError]:
        """Delete documents; returns the failures by key. `durability` as for `set_many`."""
        return await self._run(bulk.delete_many(self._cluster, keys, self._do.collection, durability=durability))

    async def incr(
        self,
        key: Key,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry: Expiry = 0,
        durability: DurabilityChoice = None,
    ) -> int:
        """Add `delta` to a document that is a decimal number; return the new number. If there is no document, create it
        with the number `initial`, or raise KeyNotFound if `initial` is None.

        `durability` as for `set`.
        """
        return await self._run(
            self._do.count(documents.Increment, key, delta, initial=initial, expiry=expiry, durability=durability)
        )

    async def decr(
        self,
        key: Key,
        delta: int = 1,
        *,
        initial: int | None = None,
        expiry: Expiry = 0,
        durability: DurabilityChoice = None,
    ) -> int:
        """Subtract `delta` from a document that is a decimal number, but not below 0; else as `incr`."""
        return await self._run(
            self._do.count(documents.Decrement, key, delta, initial=initial, expiry=expiry, durability=durability)
        )

    async def touch(self, key: Key, expiry: Expiry, *, durability: DurabilityChoice = None) -> int:
        """Give a document a new expiry; returns its CAS. `durability` as for `set`."""
        return await self._run(self._do.touch(key, expiry, durability))

    async def gat(self, key: Key, expiry: Expiry, *, durability: DurabilityChoice = None) -> Document:
        """Read a document and give it a new expiry. `durability` as for `set`."""
        return await self._run(self._do.gat(key, expiry, durability))

    async def observe(self, key: Key) -> Observed:
        """Return the state and CAS of a key on its active node: in memory, persisted, deleted or not found
        (`Observed`).
        """
        return await self._run(self._do.observe(key))

    async def keys_of_vbucket(self, vbucket: int, prefix: Key = b"", *, after: Key = b"", most: int = 100) -> KeyPage:
        """Return the first `most` keys of a vbucket (at most 10,000) that have a prefix and follow the key `after`.

        Keys are sorted; `KeyPage.is_last` means that there are no more. A node reads all keys of the vbucket for this.
        UnknownCommand or NotSupported if the node has no range scans, as before Couchbase 7.6.
        """
        bounds = as_part("prefix", prefix), as_part("after", after), unsigned("most", most, KEYS_MAX)
        return await self._run(keys_page(self._cluster, self._do.collection, WantedKeys(vbucket, *bounds)))


class AsyncCollectionClient(AsyncDocuments):
    """The documents of one collection; made by `AsyncClient.collection`, and closed with it.

    The collection's id is looked up for the first request, and again if a node does not know the id any more. While the
    collection does not exist, the methods raise UnknownCollection or UnknownScope.
    """

    def __init__(self, collection: CollectionId, cluster: Cluster, operations: Operations, turns: Any) -> None:
        super().__init__(cluster, operations, turns)
        self.scope: str = collection.scope
        self.name: str = collection.name
        self._collection_id = collection

    @property
    def collection_id(self) -> int:
        """The id that the last request has used; 0 before the first one."""
        return self._collection_id.number

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.scope}.{self.name} of {self._cluster}>"


class AsyncScopeClient:
    """A scope with its collections; made by `AsyncClient.scope`."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name: str = name
        self._client = client

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._client!r}>"

    def collection(self, name: str) -> AsyncCollectionClient:
        """Return the documents of one of its collections."""
        return self._client.collection(f"{self.name}.{name}")


class AsyncClient(_ConnectedClient, AsyncDocuments):
    """A bucket, reached by key or by its changes; made by `connect`.

    The methods of documents are those of the default collection; `collection` has others.
    """

    def __init__(self, settings: ConnectSettings) -> None:
        cluster = Cluster(settings)
        super().__init__(cluster, Operations(cluster))

    @property
    def map(self) -> ClusterMap:
        """The newest cluster map seen: the nodes of each vbucket."""
        if self._aware is not None:  # requests to collections may have brought a newer one
            self._cluster.catch_up(self._aware)
        return self._cluster.map

    def vbucket_of(self, key: Key) -> int:
        """Return the vbucket a key belongs to."""
        return self.map.vbucket_of(as_key(key))

    # ------------------------------------------------------------------ collections

    def collection(self, name: str) -> AsyncCollectionClient:
        """Return the documents of a collection, "scope.collection"; no request is made before one of its methods is
        called.

        Raises:
            OptionError: not a name of a collection.
        """
        if parse_path(name) == (DEFAULT, DEFAULT):  # keys without an id: any server knows these
            return AsyncCollectionClient(CollectionId(self._cluster, name), self._cluster, self._do, self._turns)
        aware = self._knowing()
        id_ = CollectionId(aware, name)
        return AsyncCollectionClient(id_, aware, Operations(aware, id_), self._turns)

    def _knowing(self) -> Cluster:
        """Return the cluster's twin, whose connections have the feature Collections.

        The twin takes over this client's map if that is newer; with an older map it would send requests to a node that
        has lost their vbuckets.
        """
        if self._aware is None:
            self._aware = self._cluster.twin(Feature.COLLECTIONS)
        self._aware.catch_up(self._cluster)
        return self._aware

    def scope(self, name: str) -> AsyncScopeClient:
        """Return a scope, to get collections of it by their own names."""
        return AsyncScopeClient(self, name)

    async def manifest(self, at_least: int = 0) -> CollectionsManifest:
        """Return the bucket's scopes and collections from the first node that answers; while their uid is below
        `at_least`, the other nodes are asked as well, and the newest counts."""
        return await self._run(manifest_of(self._cluster, at_least))

    async def newest_manifest(self, vbuckets: Iterable[int] | None = None) -> CollectionsManifest:
        """Return the newest manifest of all nodes that own one of these vbuckets; None for all vbuckets.

        A collection whose changes a reader has received, and that this manifest lacks, was dropped.

        Raises:
            TransportError, StatusError: one of the owners did not answer.
        """
        return await self._run(newest_manifest(self._cluster, vbuckets))

    async def choose(self, collections: Collections = None, scope: str | None = None) -> Coverage | None:
        """Look up the names of collections once, for many drains.

        Returns: the choice by ids, to pass as `collections` to `changes` and `batches`, whose positions then hold it;
        None for the default collection alone.

        Raises:
            OptionError, UnknownCollection, UnknownScope: as `changes`.
        """
        if not DrainOptions(collections=collections, scope=scope).chooses:
            return None
        return resolve(await self.manifest(), collections, scope)

    # ------------------------------------------------------------------ nodes and vbuckets

    async def noop(self) -> None:
        """Send a no-op to every node and wait for all answers; TransportError if a node does not answer."""
        await self._run(self._do.noop())

    async def version(self) -> str:
        """Return the version of the first node."""
        return await self._run(self._do.version())

    async def stats(self, group: str = "") -> dict[str, str]:
        """Return a group of statistics of all nodes together; a name that several nodes report has the last node's
        value.
        """
        return await self._run(self._do.stats(group))

    async def stats_by_node(
        self, group: str = "", silent: MutableMapping[str, TransportError] | None = None
    ) -> dict[str, dict[str, str]]:
        """Return a group of statistics of each node of the map, by "host:port".

        Args:
            silent: receives the errors of nodes that do not answer, by "host:port"; if it is None, the first error is
                raised.
        """
        return await self._run(self._do.stats_by_node(group, silent))

    async def vbucket_stats(self, group: str, vbuckets: Collection[int] | None = None) -> dict[int, dict[str, str]]:
        """Return a group of statistics by vbucket, each vbucket's from the node that owns it.

        Args:
            vbuckets: the vbuckets to request, one at a time; None for all, with one request to each node.
        """
        return await self._run(self._do.vbucket_stats(group, vbuckets))

    async def seqnos(self, collection_id: int | Literal["all"] | None = None) -> dict[int, int]:
        """Return the high seqno of every active vbucket: of the default collection (kv.md 3), of the collection with
        this id, or of all collections together.
        """
        if collection_id is None:
            return await self._run(self._cluster.seqnos())
        number = collection_id if isinstance(collection_id, int) else None
        return await self._run(self._knowing().seqnos(collection=number))

    async def hold_clocks(self, cas: int = 0) -> ClocksHeld:
        """Ask all nodes to promise that later changes get a CAS above `cas`; 0 only requests the time of their clocks.

        A node promises no more than its clock's time. From the promises `Completeness` computes the time up to which a
        reader has all changes.
        """
        return await self._run(hold_clocks(self._do, cas))

    async def failover_log(self, vbucket: int) -> list[tuple[int, int]]:
        """Return a vbucket's failover log, newest history first, as (vb uuid, seqno)."""
        return await self._run(self._do.failover_log(vbucket))

    async def persisted_seqnos(self, vb_uuids: Mapping[int, int], min_persisted: MinPersisted) -> dict[int, int]:
        """Return the seqno up to which enough copies have each vbucket on disk, by OBSERVE_SEQNO to all their nodes.

        Args:
            vb_uuids: vbucket to the vb uuid of its branch.
            min_persisted: number of copies, as for `changes`. A copy that does not answer counts as having nothing.
        """
        return await self._run(persisted_seqnos(self._cluster, vb_uuids, read_min_persisted(min_persisted)))

    async def failover_logs(self, vbuckets: Iterable[int] | None = None) -> dict[int, list[tuple[int, int]]]:
        """Return the failover logs of these vbuckets, of all by default; each node is asked once."""
        return await self._run(failover_logs(self._cluster, vbuckets))

    async def look_for_newer_map(self) -> ClusterMap:
        """Ask nodes until one has a newer map than ours; return the newest, or ours if none answers.

        Our map came from the first node that answered, which may not know of a failover.
        """
        await self._run(self._cluster.look_around())
        return self.map

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

    @shows(ChangesOptions, DrainOptions, markers=True)
    def changes(
        self,
        start: Start = None,
        *,
        vbuckets: Iterable[int] | None = None,
        until: Until = None,
        **options: Unpack[ChangesOptions],
    ) -> Connecting[AsyncChanges]:
        """Iterate over the changes of a bucket, one at a time, each vbucket in the order of its seqnos.

        A key comes once per snapshot: values in between may be skipped, the last value never is (with `history` every
        version that the nodes keep comes, in the order of seqnos). After a failure the drain connects again and
        continues after the last change: nothing is lost, nothing comes twice.

        Args:
            start: None for the whole history, "now" for future changes only, or saved positions by vbucket (vbuckets
                without one start at the beginning).
            vbuckets: the vbuckets to read; None for all.
            until: None for ever, "now" for the present seqnos, or a seqno by vbucket. A stream ends with the snapshot
                that holds this seqno, so later changes may come.
            name: the name of the DCP connections, at most 200 bytes; a second connection of the same name ends the
                first. Empty for a generated name.
            window_bytes: the most unacknowledged bytes from a node; 0 for no limit.
            noop_interval_seconds: the longest pause between a node's messages; after twice as long it counts as dead.
            batch_bytes: about the size of a batch; 1 to 4 MiB stay in the processor's cache.
            xattrs: deliver extended attributes (datatype bit 4) in front of the value.
            deleted_xattrs: deliver the user attributes of deletions too, not only their system attributes: transactions
                stage new documents in these. Servers without this feature deliver the system attributes alone.
            no_value: deliver keys and metadata only.
            patience_seconds: time for which a vbucket may fail without progress before its last error is raised, and
                for which a drain with an end may stand still; None for ever.
            max_wait_seconds: after so long without a change, `changes` raises NothingCame, and continues at the next
                call; `batches` returns an empty batch. None waits for ever.
            answer_seconds: the longest time for the answer to a stream request.
            map_poll_seconds: interval at which the drain requests the cluster map of one node, if there are several.
                None for no polling: then the drain fetches a map only after a stream or a connection has ended.
            markers: of `changes`: deliver snapshot markers as events.
            collections: "all" for the whole bucket, or names "scope.collection". Without it and without `scope` the
                default collection alone is read, as by clients that know no others.
            scope: all collections of this scope, future ones too.
            min_persisted: yield a change only when so many copies of its vbucket have it on disk, the active one
                included: a number, "majority" or "all"; a failover to one of these copies takes back no change that was
                yielded. Copies that the cluster map does not name do not count. None: at once.
            on_data_loss: after deletions were purged before we read them: "raise" DataLoss, or "read_again" those
                vbuckets from the beginning, each after an event DeletionsPurged.
            history: deliver every version of each document that the nodes still keep, also within a snapshot. The
                marker of a snapshot without old versions has `is_deduplicated`. NotSupported if a node keeps no
                versions at all.
            before: with each change the version that it replaced (`change.before`, `change.operation`), which the node
                keeps as long as its history; every version comes, as with `history`. NotSupported where a node can't.

        Yields: Mutation, Deletion or Expiration after the SnapshotMarker they belong to; at last a StreamEnd. Of
        collections that were chosen also CollectionCreated, CollectionDropped, ScopeCreated and ScopeDropped, in order
        among the changes. Positions remember the choice.

        Raises:
            NothingCame: there was no change for `max_wait_seconds`.
            NotPersisted: too few copies had something on disk for `patience_seconds` (`min_persisted`).
            RollbackRequired: a node has another history: its `common` is the last seqno that both share;
                `headwater.client.safe_point` returns the position to continue from.
            DataLoss: deletions were purged before we read them, in the vbuckets of its `purged`: read these vbuckets
                again from the beginning, and drop documents that do not come again.
            TransportError: no node could be reached, or one was silent, for `patience_seconds`.
            UnknownCollection, UnknownScope: a chosen collection or scope does not exist.
            NotSupported: a node keeps no old versions (`history`), or does not say what changes replaced (`before`).
            StatusError: a node refused the request.
            RemoteProtocolError: a node broke the rules of the protocol.
            OptionError: an argument is invalid or unknown; or `start` was saved with another choice of collections.

        Source: DCP, commands/stream-request.md, rollback.md, dead-connections.md.
        """
        from headwater.client.feeds import AsyncChanges  # noqa: PLC0415 - arrow and kernels: not for key-value work alone

        drain = drain_options(ChangesOptions, {"markers": True, **options})
        return self._open(AsyncChanges, start, vbuckets, until, drain)

    @shows(BatchesOptions, DrainOptions)
    def batches(
        self,
        start: Start = None,
        *,
        vbuckets: Iterable[int] | None = None,
        until: Until = None,
        **options: Unpack[BatchesOptions],
    ) -> Connecting[AsyncBatches]:
        """Iterate over the changes of a bucket in Arrow record batches; as `changes`, but a batch at a time.

        A batch comes as soon as there is nothing more to read at the moment, or when it is full (`batch_bytes`).
        Arguments and errors are those of `changes`.
        """
        from headwater.client.feeds import AsyncBatches  # noqa: PLC0415

        drain = drain_options(BatchesOptions, options)
        return self._open(AsyncBatches, start, vbuckets, until, drain)


# ====================================================================== connect


@shows(ConnectOptions, settings_for)
def connect(
    connection: str,
    user: str | None = None,
    password: str | None = None,
    **options: Unpack[ConnectOptions],
) -> Connecting[AsyncClient]:
    """Connect to a bucket; `async with connect(...) as bucket` closes it as well.

    Args:
        connection: `couchbase://[user:password@]host[:port][,host...]/bucket`, couchbases:// for TLS; one node that
            answers is enough to find the others.
        user, password: None for servers without logins, or if the connection string has a login.
        vbuckets: number of the bucket's vbuckets, for servers without maps; None asks the server.
        connect_timeout_seconds: for a connection and its handshake.
        timeout_seconds: for one operation, with its retries.
        agent: the client's name, shown by the server.
        mechanisms: of SASL, strongest first; None: SCRAM, and PLAIN over TLS to a node whose name is verified. Add
            PLAIN for servers without either: the password crosses the network.
        tls: trusted CAs and the client's certificate, instead of the parameters of a couchbases:// connection.
        xattrs: values with extended attributes may be written with metadata (`write_many`).
        hello: False for plain memcached, which has no HELLO.

    Raises:
        OptionError: the connection string or a setting is invalid, or a setting is unknown.
        TransportError: none of the nodes could be reached in time.
        StatusError: a node refused us: AuthError, NoAccess, KeyNotFound for an unknown bucket.
    """
    refuse_unknown(options, ("connection", "user", "password", *ConnectOptions.__annotations__))
    settings = settings_for(connection, user, password, **options)
    return Connecting(_connected(AsyncClient(settings)))


async def _connected(client: AsyncClient) -> AsyncClient:
    try:
        await client._run(client._cluster.connect())
    except BaseException:
        await client.close()
        raise
    return client
