"""Many documents at once: quiet requests by the chunk, errors by the key.

Requests are encoded back to back and sent 256 KiB at a time to each node, a chunk ahead of the answers, so neither end
waits for the other. Quiet requests are not answered when there is nothing to say (kv.md: SETQ succeeds, GETKQ misses),
and the no-op behind each chunk tells when all of it was dealt with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from headwater.client.backoff import for_requests
from headwater.client.cluster import Cluster, tried
from headwater.client.kv import FLAGS_EXPIRY, U32_MAX, Document, as_key, as_value, unsigned
from headwater.client.pipeline import Bulk, Pipeline, lost_write
from headwater.client.routing import Address
from headwater.errors import ConnectionLost, NotMyVbucket, RemoteProtocolError, StatusError, TransportError
from headwater.protocol.handshake import refused
from headwater.transport.waiting import Ready, Steps
from headwater.wire.header import HEADER, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

CHUNK_BYTES = 256 * 1024
CHUNKS_AHEAD = 2

Failure: TypeAlias = StatusError | TransportError
"""Why an item is to be tried again: what its node answered, or why there is no connection to it."""


@dataclass(slots=True)
class Item:
    """One request of a bulk."""

    key: bytes
    extras: bytes = b""
    value: bytes = b""


@dataclass(slots=True)
class Chunk:
    """Requests for one node that go out together."""

    items: list[Item] = field(default_factory=list)
    vbuckets: list[int] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True)
class Sent:
    """A chunk under way."""

    link: Pipeline
    bulk: Bulk
    items: list[Item]


class BulkWriter:
    """One run over many items with one quiet opcode.

    What a node refuses for now (its vbucket has moved, or is about to) holds up the run: nothing new is sent until it
    is settled, at another node perhaps. So of two values for a key the later always wins, and no more is kept in
    memory than was under way.

    Attributes:
        answers: what was answered, by key: hits of reads.
        errors: the failures, by key. A node that can't be reached, or is lost while it writes, is raised instead.
    """

    def __init__(self, cluster: Cluster, opcode: int) -> None:
        self._cluster, self._opcode = cluster, opcode
        self._reads = opcode == Opcode.GETQ
        # Not the newest map but one for all that is under way: the same key must not go two ways.
        self._map = cluster.map
        self._chunks: dict[Address, Chunk] = {}
        self._sent: deque[Sent] = deque()
        self._again: dict[bytes, tuple[Item, Failure]] = {}
        self._hopeless: set[int] = set()  # vbuckets that were waited for in vain: once in a run is enough
        self.answers: dict[bytes, Frame] = {}
        self.errors: dict[bytes, StatusError] = {}

    def run(self, items: Iterable[Item]) -> Steps[None]:
        """Send all items and wait for all answers."""
        for item in items:
            if (full := self._add(item)) is not None:
                yield from self._send(full, self._chunks.pop(full))
            if self._again:
                yield from self._insist()
        yield from self._flush()
        yield from self._insist()

    def _add(self, item: Item) -> Address | None:
        """Put an item into the chunk of its node; returns the node once its chunk is full."""
        vbucket = self._map.vbucket_of(item.key)
        owner = self._map.owner(vbucket)
        if owner is None:
            self._put_off(item, self._cluster.ownerless(vbucket, self._name(item)))
            return None
        chunk = self._chunks.setdefault(owner, Chunk())
        chunk.items.append(item)
        chunk.vbuckets.append(vbucket)
        chunk.size_bytes += HEADER.size + len(item.key) + len(item.extras) + len(item.value)
        return owner if chunk.size_bytes >= CHUNK_BYTES else None

    def _flush(self) -> Steps[None]:
        """Send what has gathered, and wait for all answers."""
        for owner in list(self._chunks):
            yield from self._send(owner, self._chunks.pop(owner))
        while self._sent:
            yield from self._settle()

    def _insist(self) -> Steps[None]:
        """Try again what was refused for now, with growing delays, for as long as one operation may take."""
        if not self._again:
            return
        yield from self._flush()
        began, backoff = self._cluster.clock(), for_requests()
        while self._again:
            moment = self._cluster.clock() + backoff.next_seconds()
            if moment >= began + self._cluster.settings.timeout_seconds:
                self._give_up(backoff.failures, self._cluster.clock() - began)
                return
            yield Ready((), moment)
            if any(isinstance(error, NotMyVbucket | TransportError) for _, error in self._again.values()):
                yield from self._cluster.look_around()
            self._map = self._cluster.map
            items, self._again = [item for item, _ in self._again.values()], {}
            for item in items:
                if (full := self._add(item)) is not None:
                    yield from self._send(full, self._chunks.pop(full))
            yield from self._flush()

    def _give_up(self, attempts: int, seconds: float) -> None:
        for item, error in self._again.values():
            told = tried(error, attempts, seconds)
            if isinstance(told, TransportError):
                raise told
            self._hopeless.add(self._map.vbucket_of(item.key))
            self.errors[item.key] = told
        self._again = {}

    def _put_off(self, item: Item, error: Failure) -> None:
        """A refusal that may pass."""
        if isinstance(error, StatusError) and self._map.vbucket_of(item.key) in self._hopeless:
            self.errors[item.key] = error
        else:
            self._again[item.key] = (item, error)

    def _name(self, item: Item) -> str:
        return f'{Opcode(self._opcode).name.lower()} "{item.key.decode(errors="backslashreplace")}"'

    def _send(self, owner: Address, chunk: Chunk) -> Steps[None]:
        try:
            link = yield from self._cluster.link(owner)
        except (TransportError, StatusError) as error:
            if isinstance(error, StatusError) and not error.retriable:
                raise
            for item in chunk.items:
                self._put_off(item, error)
            return
        first = link.reserve(len(chunk.items) + 1)
        requests = b"".join(self._encode(chunk, first))
        try:
            self._sent.append(Sent(link, link.send_bulk(first, len(chunk.items), requests), chunk.items))
        except TransportError as error:
            self._lost(chunk.items, error)
        while len(self._sent) > CHUNKS_AHEAD:
            yield from self._settle()

    def _encode(self, chunk: Chunk, opaque: int) -> Iterator[bytes]:
        pack = HEADER.pack
        for item, vbucket in zip(chunk.items, chunk.vbuckets, strict=True):
            key, extras = item.key, item.extras
            body = len(key) + len(extras) + len(item.value)
            yield pack(0x80, self._opcode, len(key), len(extras), 0, vbucket, body, opaque, 0)
            yield extras
            yield key
            yield item.value
            opaque += 1

    def _settle(self) -> Steps[None]:
        """Wait for the oldest chunk and sort its answers."""
        sent = self._sent.popleft()
        try:
            frames = yield from sent.link.finish_bulk(sent.bulk, self._cluster.deadline())
        except TransportError as error:
            self._lost(sent.items, error)
            return
        refusals: dict[int, StatusError] = {}
        for frame in frames:
            place = frame.opaque - sent.bulk.first
            item = sent.items[place]
            if frame.opcode != self._opcode:
                raise RemoteProtocolError(
                    f"opcode 0x{frame.opcode:02x} answers a request 0x{self._opcode:02x} (opaque {frame.opaque})"
                )
            if not frame.status:
                self.answers[item.key] = frame
            elif frame.status == Status.NOT_MY_VBUCKET:  # its value is a map
                refusals[place] = self._cluster.misplaced(
                    self._map.vbucket_of(item.key), self._name(item), sent.link.address
                )
            else:
                refusals[place] = refused(self._name(item), frame)
        if refusals or self._again:
            self._sort(sent.items, refusals)

    def _sort(self, items: list[Item], refusals: dict[int, StatusError]) -> None:
        """Keep what is to be tried again; what was stored after it under the same key makes it void."""
        for place, item in enumerate(items):
            refusal = refusals.get(place)
            if refusal is not None and refusal.retriable:
                self._put_off(item, refusal)
                continue
            self._again.pop(item.key, None)
            if refusal is not None:
                self.errors[item.key] = refusal

    def _lost(self, items: list[Item], error: TransportError) -> None:
        """The connection broke before all was answered: reads are asked again, of writes nobody knows."""
        if not self._reads:
            told = f"{len(items)} {Opcode(self._opcode).name} requests, the first for {items[0].key!r}"
            raise lost_write(error, told) if isinstance(error, ConnectionLost) else error
        for item in items:
            self._put_off(item, error)


def set_items(items: Iterable[tuple[str | bytes, str | bytes]], flags: int, expiry: int) -> Iterator[Item]:
    """Return the requests of `set_many`."""
    extras = FLAGS_EXPIRY.pack(unsigned("flags", flags, U32_MAX), unsigned("expiry", expiry, U32_MAX))
    return (Item(as_key(key), extras, as_value(value)) for key, value in items)


def set_many(
    cluster: Cluster, items: Iterable[tuple[str | bytes, str | bytes]], flags: int, expiry: int
) -> Steps[dict[bytes, StatusError]]:
    """Store documents; returns the failures by key."""
    writer = BulkWriter(cluster, Opcode.SETQ)
    yield from writer.run(set_items(items, flags, expiry))
    return writer.errors


def delete_many(cluster: Cluster, keys: Iterable[str | bytes]) -> Steps[dict[bytes, StatusError]]:
    """Delete documents; returns the failures by key (KeyNotFound among them)."""
    writer = BulkWriter(cluster, Opcode.DELETEQ)
    yield from writer.run(Item(as_key(key)) for key in keys)
    return writer.errors


def get_many(cluster: Cluster, keys: Iterable[str | bytes]) -> Steps[dict[bytes, Document]]:
    """Read documents; keys that do not exist are left out.

    Raises:
        StatusError: the first refusal other than "not found".
    """
    reader = BulkWriter(cluster, Opcode.GETQ)
    yield from reader.run(Item(as_key(key)) for key in keys)
    for error in reader.errors.values():
        raise error
    return {
        key: Document(key, frame.value, frame.cas, int.from_bytes(frame.extras), frame.datatype)
        for key, frame in reader.answers.items()
    }
