"""Many documents at once: quiet requests by the chunk, errors by the key.

Requests are encoded back to back and sent 256 KiB at a time to each node, a chunk ahead of the answers, so neither end
waits for the other. Quiet requests are not answered when there is nothing to say (kv.md: SETQ succeeds, GETKQ misses),
and the no-op behind each chunk tells when all of it was dealt with.

Durable writes go the same way, on connections of their own, a few at a time: a node carries them out one after the
other, and each may take as long as a request alone.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

from headwater.client.cluster import Cluster, tried
from headwater.client.collections import CollectionId
from headwater.client.durability import DurabilityChoice, as_durability, check_granted
from headwater.client.kv import U32_MAX, Document, Expiry, Value, as_expiry, as_key, as_value, document, unsigned
from headwater.client.pipeline import Bulk, Pipeline, lost_write
from headwater.client.routing import Address
from headwater.errors import (
    BucketNotFound,
    CollectionMadeAnew,
    KeyNotFound,
    NotMyVbucket,
    RemoteProtocolError,
    StatusError,
    SyncWriteAmbiguous,
    TransportError,
    UnknownCollection,
    UnknownScope,
)
from headwater.protocol.handshake import refused
from headwater.transport.backoff import for_requests
from headwater.transport.waiting import Ready, Steps
from headwater.wire import leb128
from headwater.wire.documents import Delete, Get, GetResponse, Set
from headwater.wire.header import HEADER, Frame, Magic
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

CHUNK_BYTES = 256 * 1024
CHUNKS_AHEAD = 2
DURABLE_CHUNK = 16
"""The number of durable writes that are sent together: each may take all of its time."""
_SET = Set.layout.extras_struct  # requests are put together by the thousand, so none is made as an object

Failure: TypeAlias = StatusError | TransportError
"""The reason to try an item again: its node's answer, or a failed connection."""


@dataclass(slots=True)
class BulkItem:
    """One request of a bulk.

    Attributes:
        opcode: the opcode of the quiet request; 0 for the opcode of the run.
        place: index among the items of the run, by which `BulkWriter.failed` reports a failure; -1 for no report.
        stands_alone: True if it replaces any version, so that an earlier item of its key need not be tried again.
        has_meta: True if metadata, not the order, decide which of two items is newer.
        order: index among all items sent in this run.
    """

    key: bytes
    extras: bytes = b""
    value: bytes = b""
    opcode: int = 0
    cas: int = 0
    datatype: int = 0
    place: int = -1
    stands_alone: bool = True
    has_meta: bool = False
    order: int = 0

    def makes_void(self, earlier: BulkItem) -> bool:
        """Return True if the success of this item overwrites all effects of an earlier item of the same key, which then
        needs no retry.
        """
        return earlier.order < self.order and (self.stands_alone or not earlier.has_meta)


@dataclass(slots=True)
class Chunk:
    """Requests for one node that go out together."""

    items: list[BulkItem] = field(default_factory=list)
    vbuckets: list[int] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class SentChunk:
    """A chunk under way."""

    link: Pipeline
    bulk: Bulk
    items: list[BulkItem]


class BulkWriter:
    """One run over many items, each with the quiet form of a request.

    A temporary refusal (the vbucket has moved, or is about to) stops the run: nothing new is sent until the refused
    items are settled, perhaps at another node. So of two values for a key the later always wins, of two with metadata
    the newer one, and the run keeps no more items in memory than were in flight.

    All items go to one bucket. If that bucket was dropped and created again under its name, the run is planned anew as
    long as nothing was sent. Otherwise it ends with BucketMadeAnew, since its writes are gone with the old bucket. If
    the collection was created again after something was written to it, the run ends with CollectionMadeAnew.

    Attributes:
        answers: the answers to reads that found a document, by key.
        errors: the failures, by key. A node that can't be reached, or is lost while it writes, is raised instead.
        failed: the same failures by `BulkItem.place`, for items that have one.
    """

    def __init__(
        self,
        cluster: Cluster,
        request: type[Request],
        collection: CollectionId | None = None,
        durability: DurabilityChoice = None,
    ) -> None:
        """Prepare a run. Items without an opcode are sent as `request`, with keys of `collection` if it is given."""
        self._durability = as_durability(durability, cluster.settings.timeout_seconds)
        self._origin = cluster
        self._cluster = cluster = cluster if self._durability is None else cluster.for_durable_writes()
        self._opcode = request.layout.quiet
        self._collection, self._prefix, self._looked_up = collection, b"", collection is None
        self._reads = request is Get
        # Not the newest map but one for all that is under way: the same key must not go two ways.
        self._map = cluster.map
        self._chunks: dict[Address, Chunk] = {}
        self._sent_chunks: deque[SentChunk] = deque()
        self._postponed_items: dict[bytes, list[tuple[BulkItem, Failure]]] = {}
        self._has_sent = self._has_written = False
        self._hopeless: set[int] = set()  # vbuckets that were waited for in vain: once in a run is enough
        self.answers: dict[bytes, Frame] = {}
        self.errors: dict[bytes, StatusError] = {}
        self.failed: dict[int, StatusError] = {}

    def run(self, items: Iterable[BulkItem]) -> Steps[None]:
        """Send all items and wait for all answers."""
        yield from self._plan()
        for order, item in enumerate(items):
            item.order = order
            if (full := self._add(item)) is not None:
                yield from self._send(full, self._chunks.pop(full))
            if self._postponed_items:
                yield from self._insist()
        yield from self._flush()
        yield from self._insist()

    def _plan(self) -> Steps[None]:
        """Take the newest map, and look the collection's id up in the bucket of that map."""
        # Connections for durable writes have a map of their own: both must plan by the newer one, before the
        # collection's id is looked up in that bucket.
        self._origin.catch_up(self._cluster)
        if self._collection is not None:
            self._prefix = yield from self._collection.prefix()
        self._cluster.catch_up(self._origin)
        self._map = self._origin.map

    def _add(self, item: BulkItem) -> Address | None:
        """Put an item into the chunk of its node; return the node once its chunk is full."""
        vbucket = self._map.vbucket_of(item.key)
        owner = self._map.owner(vbucket)
        if owner is None:
            self._postpone(item, self._cluster.ownerless(vbucket, self._name(item)))
            return None
        chunk = self._chunks.setdefault(owner, Chunk())
        chunk.items.append(item)
        chunk.vbuckets.append(vbucket)
        chunk.size_bytes += HEADER.size + len(item.key) + len(item.extras) + len(item.value)
        is_full = self._durability is not None and len(chunk.items) >= DURABLE_CHUNK
        return owner if is_full or chunk.size_bytes >= CHUNK_BYTES else None

    def _flush(self) -> Steps[None]:
        """Send the gathered chunks, and wait for all answers."""
        for owner in list(self._chunks):
            yield from self._send(owner, self._chunks.pop(owner))
        while self._sent_chunks:
            yield from self._settle()

    def _insist(self) -> Steps[None]:
        """Retry temporarily refused items, with growing delays, for as long as one operation may take."""
        if not self._postponed_items:
            return
        # All answers first: what is under way may be refused as well, and items of one key go out again in their order.
        yield from self._flush()
        began, backoff = self._cluster.clock(), for_requests()
        while self._postponed_items:
            moment = self._cluster.clock() + backoff.next_seconds()
            if moment >= began + self._cluster.settings.timeout_seconds:
                self._give_up(backoff.failures, self._cluster.clock() - began)
                return
            yield Ready((), moment)
            items, self._postponed_items = self._put_off_so_far(), {}
            if any(isinstance(error, NotMyVbucket | TransportError) for _, error in items):
                yield from self._cluster.look_around(until=began + self._cluster.settings.timeout_seconds)
            if not self._map.is_same_bucket(self._cluster.map):
                self._check_unsent()
                yield from self._plan()
            elif any(isinstance(error, UnknownCollection) for _, error in items):
                yield from self._look_up()
            if self._map.is_same_bucket(self._cluster.map):  # else what is sent by it is put off once more
                self._map = self._cluster.map
            for item, _ in items:
                if (full := self._add(item)) is not None:
                    yield from self._send(full, self._chunks.pop(full))
            yield from self._flush()

    def _look_up(self) -> Steps[None]:
        """Look up the collection's id once again. If the collection is gone, each refused key gets its error.

        Raises:
            CollectionMadeAnew: the collection has another id, and documents were written under the old one.
        """
        # Once in a run: if the collection is gone each further refusal would cost a request.
        self._looked_up = True
        if self._collection is not None:
            # Not the collection's id of now but that of this run: others use the same collection, and one of them may
            # have met the refusal first and looked the new id up.
            before = self._prefix
            with suppress(UnknownCollection, UnknownScope):
                yield from self._collection.look_up()
                self._prefix = yield from self._collection.prefix()
                if self._has_written and self._prefix != before:
                    ids = (leb128.decode(key)[0] for key in (before, self._prefix))
                    raise CollectionMadeAnew(self._collection.path, *ids)

    def _check_unsent(self) -> None:
        """Raise BucketMadeAnew if this run has sent writes; call it when the bucket was replaced."""
        if self._has_sent and not self._reads:
            raise self._cluster.made_anew(self._map)

    def _put_off_so_far(self) -> list[tuple[BulkItem, Failure]]:
        return [item for of_a_key in self._postponed_items.values() for item in of_a_key]

    def _give_up(self, attempts: int, seconds: float) -> None:
        for item, error in self._put_off_so_far():
            failure = tried(error, attempts, seconds)
            if isinstance(failure, TransportError | BucketNotFound):  # of no document, as a missing key would be
                raise failure
            self._hopeless.add(self._map.vbucket_of(item.key))
            self._fail(item, failure)
        self._postponed_items = {}

    def _fail(self, item: BulkItem, error: StatusError) -> None:
        self.errors[item.key] = error
        if item.place >= 0:
            self.failed[item.place] = error

    def _postpone(self, item: BulkItem, error: Failure) -> None:
        """Keep an item for another attempt after a refusal that may be temporary."""
        if isinstance(error, StatusError) and self._map.vbucket_of(item.key) in self._hopeless:
            self._fail(item, error)
        else:  # whether it is taken may depend on what was put off before it
            if item.stands_alone:
                self._forget(item)
            attempts_ = self._postponed_items.setdefault(item.key, [])
            insort(attempts_, (item, error), key=lambda each: each[0].order)

    def _forget(self, item: BulkItem) -> None:
        """Drop kept items that this item makes void."""
        if item.key not in self._postponed_items:
            return
        remaining = [item_ for item_ in self._postponed_items.pop(item.key) if not item.makes_void(item_[0])]
        if remaining:
            self._postponed_items[item.key] = remaining

    def _name(self, item: BulkItem) -> str:
        return f'{Opcode(item.opcode or self._opcode).name.lower()} "{item.key.decode(errors="backslashreplace")}"'

    def _send(self, owner: Address, chunk: Chunk) -> Steps[None]:
        try:
            link = yield from self._cluster.link(owner)
        except (TransportError, StatusError) as error:
            # A node that was emptied, as by a new disk, has no such bucket; its vbuckets have gone to others, or will.
            if not error.retriable and not (yield from self._cluster.was_emptied(error, self._cluster.deadline())):
                raise
            for item in chunk.items:
                self._postpone(item, error)
            return
        # A new connection brings a newer map. By an old one these requests would reach a bucket, or a node, that they
        # were not planned for.
        if not (self._cluster.map.is_same_bucket(self._map) and self._cluster.leads_to(link, self._map)):
            self._put_off_misplaced(owner, chunk)
            return
        if self._durability is not None:
            check_granted(link.greeting.features, self._name(chunk.items[0]), owner)
        # Before the first byte leaves: after a failure in the middle nobody knows what has arrived.
        self._has_sent = True
        # One more than there are items, for the no-op whose answer ends the chunk.
        first = link.reserve(len(chunk.items) + 1)
        requests = b"".join(self._encode(chunk, first))
        try:
            self._sent_chunks.append(SentChunk(link, link.send_bulk(first, len(chunk.items), requests), chunk.items))
        except TransportError as error:
            self._handle_lost_link(chunk.items, error)
        while len(self._sent_chunks) > CHUNKS_AHEAD:
            yield from self._settle()

    def _put_off_misplaced(self, owner: Address, chunk: Chunk) -> None:
        """Keep all items of a chunk for another attempt, because its connection leads to another bucket than the
        planned one.

        Raises:
            BucketMadeAnew: the newest map is of another bucket too, and writes were sent.
        """
        if not self._cluster.map.is_same_bucket(self._map):
            self._check_unsent()
        for item, vbucket in zip(chunk.items, chunk.vbuckets, strict=True):
            self._postpone(item, self._cluster.misplaced(vbucket, self._name(item), owner))

    def _encode(self, chunk: Chunk, opaque: int) -> Iterator[bytes]:
        pack, usual, prefix = HEADER.pack, self._opcode, self._prefix
        framing, magic = b"", Magic.CLIENT_REQUEST
        if self._durability is not None:
            framing, magic = (
                self._durability.framing_within(self._cluster.settings.timeout_seconds),
                Magic.FLEXIBLE_REQUEST,
            )
        before_key = len(framing) << 8  # in a flexible frame the upper byte of the key's length
        for item, vbucket in zip(chunk.items, chunk.vbuckets, strict=True):
            key, extras = prefix + item.key if prefix else item.key, item.extras
            body = len(framing) + len(key) + len(extras) + len(item.value)
            code, cas = item.opcode or usual, item.cas
            key_field = before_key | len(key)
            yield pack(magic, code, key_field, len(extras), item.datatype, vbucket, body, opaque, cas)
            yield framing
            yield extras
            yield key
            yield item.value
            opaque += 1

    def _settle(self) -> Steps[None]:
        """Wait for the answers to the oldest chunk, and note hits, failures and items to retry."""
        chunk_sent = self._sent_chunks.popleft()
        try:
            frames = yield from chunk_sent.link.finish_bulk(chunk_sent.bulk, self._deadline(len(chunk_sent.items)))
        except TransportError as error:
            self._handle_lost_link(chunk_sent.items, error)
            return
        refusals: dict[int, StatusError] = {}
        for frame in frames:
            place = frame.opaque - chunk_sent.bulk.first
            item = chunk_sent.items[place]
            if frame.opcode != (opcode := item.opcode or self._opcode):
                raise RemoteProtocolError(
                    f"opcode 0x{frame.opcode:02x} answers a request 0x{opcode:02x} (opaque {frame.opaque})"
                )
            if not frame.status:
                self.answers[item.key] = frame
            elif frame.status == Status.NOT_MY_VBUCKET:  # its value is a map
                refusals[place] = self._cluster.misplaced(
                    self._map.vbucket_of(item.key), self._name(item), chunk_sent.link.address
                )
            else:
                refusals[place] = refused(self._name(item), frame)
        # Quiet writes are answered only when they fail (kv 2), so whatever was not refused is written.
        self._has_written = self._has_written or (len(refusals) < len(chunk_sent.items) and not self._reads)
        if refusals or self._postponed_items:
            self._sort(chunk_sent.items, refusals)

    def _deadline(self, count: int) -> float:
        """Return the deadline for the answers to `count` requests; each durable one may take all of its time."""
        each_seconds = 0.0 if self._durability is None else self._cluster.settings.timeout_seconds
        return self._cluster.deadline() + count * each_seconds

    def _sort(self, items: list[BulkItem], refusals: dict[int, StatusError]) -> None:
        """Note the result of each item of a chunk: keep temporary refusals for another attempt, and report final ones.

        A successful item drops the kept items that it makes void.
        """
        for place, item in enumerate(items):
            refusal = refusals.get(place)
            if refusal is None:
                self._forget(item)
            elif isinstance(refusal, SyncWriteAmbiguous):  # it may have happened: what is older must not follow it
                self._forget(item)
                self._fail(item, refusal)
            elif refusal.retriable or (isinstance(refusal, UnknownCollection) and not self._looked_up):
                self._postpone(item, refusal)
            else:  # refused for good it changed nothing, so what was put off before it still counts
                self._fail(item, refusal)
                if item.stands_alone and self._deletes(item) and isinstance(refusal, KeyNotFound):
                    self._forget(item)  # but the key is absent now, as after a deletion: what is older must not follow

    def _deletes(self, item: BulkItem) -> bool:
        return (item.opcode or self._opcode) == Delete.layout.quiet

    def _handle_lost_link(self, items: list[BulkItem], error: TransportError) -> None:
        """Handle a connection that broke before all answers came: keep reads for another attempt; the outcome of writes
        is unknown.
        """
        if not self._reads:
            name = Opcode(items[0].opcode or self._opcode).name
            requests = f"{len(items)} {name} requests, the first for {items[0].key!r}"
            raise lost_write(error, requests)
        for item in items:
            self._postpone(item, error)


def set_items(items: Iterable[tuple[str | bytes, Value]], flags: int, expiry: Expiry) -> Iterator[BulkItem]:
    """Return the requests of `set_many`."""
    extras = _SET.pack(unsigned("flags", flags, U32_MAX), as_expiry(expiry))
    return (BulkItem(as_key(key), extras, as_value(value)) for key, value in map(_pair, items))


def _pair(item: tuple[str | bytes, Value]) -> tuple[str | bytes, Value]:
    # A text of two letters comes apart into two as well: set_many(["ab"]) would store "b" under "a".
    if isinstance(item, str | bytes) or len(item) != 2:
        raise TypeError(f"an item is a pair (key, value), not {item!r:.40}")
    return item


def set_many(
    cluster: Cluster,
    items: Iterable[tuple[str | bytes, Value]],
    flags: int,
    expiry: Expiry,
    collection: CollectionId | None = None,
    *,
    durability: DurabilityChoice = None,
) -> Steps[dict[bytes, StatusError]]:
    """Store documents; returns the failures by key."""
    writer = BulkWriter(cluster, Set, collection, durability)
    yield from writer.run(set_items(items, flags, expiry))
    return writer.errors


def _keyed(keys: Iterable[str | bytes]) -> Iterator[BulkItem]:
    # The letters of a text are keys, too: delete_many("order") would delete "o", "r", "d" and "e".
    if isinstance(keys, str | bytes | bytearray | memoryview):
        raise TypeError(f"keys are a list of keys, not one of them: {keys!r:.40}; give [key]")
    return (BulkItem(as_key(key)) for key in keys)


def delete_many(
    cluster: Cluster,
    keys: Iterable[str | bytes],
    collection: CollectionId | None = None,
    *,
    durability: DurabilityChoice = None,
) -> Steps[dict[bytes, StatusError]]:
    """Delete documents; returns the failures by key (KeyNotFound among them)."""
    writer = BulkWriter(cluster, Delete, collection, durability)
    yield from writer.run(_keyed(keys))
    return writer.errors


def get_many(
    cluster: Cluster, keys: Iterable[str | bytes], collection: CollectionId | None = None
) -> Steps[dict[bytes, Document]]:
    """Read documents; keys that do not exist are left out.

    Raises:
        StatusError: the first refusal other than "not found".
    """
    reader = BulkWriter(cluster, Get, collection)
    yield from reader.run(_keyed(keys))
    for error in reader.errors.values():
        raise error
    return {key: document(key, GetResponse.decode(frame)) for key, frame in reader.answers.items()}
