"""Many documents at once: quiet requests by the chunk, errors by the key.

Requests are encoded back to back and sent 256 KiB at a time to each node, a chunk ahead of the answers, so neither end
waits for the other. Quiet requests are not answered when there is nothing to say (kv.md: SETQ succeeds, GETKQ misses),
and the no-op behind each chunk tells when all of it was dealt with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from headwater.client.cluster import Cluster
from headwater.client.kv import FLAGS_EXPIRY, U32_MAX, Document, as_key, as_value, unsigned
from headwater.client.pipeline import Bulk, Pipeline
from headwater.client.routing import Address
from headwater.errors import NotMyVbucket, RemoteProtocolError, StatusError
from headwater.protocol.handshake import refused
from headwater.transport.waiting import Steps
from headwater.wire.header import HEADER, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

CHUNK_BYTES = 256 * 1024
CHUNKS_AHEAD = 2


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

    Attributes:
        answers: what was answered, by key: failures of writes, hits of reads.
        errors: the failures, by key.
    """

    def __init__(self, cluster: Cluster, opcode: int) -> None:
        self._cluster, self._opcode = cluster, opcode
        self._chunks: dict[Address, Chunk] = {}
        self._sent: deque[Sent] = deque()
        self._moved: list[Item] = []
        self.answers: dict[bytes, Frame] = {}
        self.errors: dict[bytes, StatusError] = {}

    def run(self, items: Iterable[Item]) -> Steps[None]:
        """Send all items and wait for all answers; items whose vbucket has moved are sent once more."""
        yield from self._send_all(items)
        if moved := self._moved:
            self._moved = []
            yield from self._cluster.refresh()
            yield from self._send_all(moved)
            for item in self._moved:
                self.errors[item.key] = NotMyVbucket(f"vbucket {self._cluster.map.vbucket_of(item.key)}")

    def _send_all(self, items: Iterable[Item]) -> Steps[None]:
        for item in items:
            vbucket = self._cluster.map.vbucket_of(item.key)
            owner = self._cluster.map.owner(vbucket)
            if owner is None:
                self._moved.append(item)
                continue
            chunk = self._chunks.setdefault(owner, Chunk())
            chunk.items.append(item)
            chunk.vbuckets.append(vbucket)
            chunk.size_bytes += HEADER.size + len(item.key) + len(item.extras) + len(item.value)
            if chunk.size_bytes >= CHUNK_BYTES:
                yield from self._send(owner, self._chunks.pop(owner))
        for owner in list(self._chunks):
            yield from self._send(owner, self._chunks.pop(owner))
        while self._sent:
            yield from self._settle()

    def _send(self, owner: Address, chunk: Chunk) -> Steps[None]:
        link = yield from self._cluster.link(owner)
        first = link.reserve(len(chunk.items) + 1)
        requests = b"".join(self._encode(chunk, first))
        self._sent.append(Sent(link, link.send_bulk(first, len(chunk.items), requests), chunk.items))
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
        for frame in (yield from sent.link.finish_bulk(sent.bulk, self._cluster.deadline())):
            item = sent.items[frame.opaque - sent.bulk.first]
            if frame.opcode != self._opcode:
                raise RemoteProtocolError(
                    f"opcode 0x{frame.opcode:02x} answers a request 0x{self._opcode:02x} (opaque {frame.opaque})"
                )
            if frame.status == Status.NOT_MY_VBUCKET:
                self._moved.append(item)
            elif frame.status:
                shown = item.key.decode(errors="backslashreplace")
                self.errors[item.key] = refused(f'{Opcode(self._opcode).name.lower()} "{shown}"', frame)
            else:
                self.answers[item.key] = frame


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
