"""Two copies of a vbucket without sockets, and the history that both are held against."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from headwater.node.vbucket.vbucket import VBucket
from headwater.wire import dcp, leb128
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.manifest import EventKind
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.system_events import old_message
from tests.node.storage.model import compact
from tests.node.streams.support import Producer, StreamDesk, Wire
from tests.node.support import NOON, Talk

Key = tuple[int, str]
"""Collection and key."""
ALIVE = {0: 0}
"""The scope of each collection, by id, before any event."""
SCOPE = 8
NAMES = {8: "a", 9: "b"}


@dataclass(frozen=True)
class Entry:
    """One change: `set`, `delete`, `prepare`, `abort` of a key, or an event."""

    kind: str
    key: Key = (0, "")
    event: dcp.SystemEvent | None = None


class History:
    """Every change of the vbucket that counts, by seqno."""

    def __init__(self) -> None:
        self.entries: dict[int, Entry] = {}

    def alive(self, seqno: int) -> dict[int, int]:
        """The collections of a seqno, and the scope of each."""
        found = dict(ALIVE)
        for at, entry in self.entries.items():
            if at > seqno or (event := entry.event) is None or event.collection_id is None:
                continue
            if event.event == EventKind.DROP_COLLECTION:
                found.pop(event.collection_id, None)
            else:
                found[event.collection_id] = event.scope_id
        return found

    def documents(self, seqno: int) -> dict[Key, int]:
        """The documents of a seqno, and the seqno of each."""
        found: dict[Key, int] = {}
        for at, entry in sorted(self.entries.items()):
            if at <= seqno and entry.kind == "set":
                found[entry.key] = at
            elif at <= seqno and entry.kind == "delete":
                found.pop(entry.key, None)
        alive = self.alive(seqno)
        return {key: at for key, at in found.items() if key[0] in alive}

    def pending(self, seqno: int) -> dict[Key, int]:
        """The prepares of a seqno that are not over."""
        found: dict[Key, int] = {}
        for at, entry in sorted(self.entries.items()):
            if at <= seqno and entry.kind == "prepare":
                found[entry.key] = at
            elif at <= seqno and entry.kind in ("set", "abort"):
                found.pop(entry.key, None)
        return found

    def branch(self, whole_seqno: int, also: set[int]) -> None:
        """Forget what lies behind a seqno, but for what a copy has of it."""
        self.entries = {at: entry for at, entry in self.entries.items() if at <= whole_seqno or at in also}


class Copy:
    """One node's copy of vbucket 0."""

    def __init__(self, folder: Path, first_uuid: int) -> None:
        self.desk = StreamDesk(folder, vbuckets=1, first_uuid=first_uuid)

    @property
    def vbucket(self) -> VBucket:
        return self.desk.bucket.vbuckets[0]

    def compact(self) -> None:
        """Drop every version that was superseded."""
        self.desk.commit()
        compact(self.desk.store)


class Owner:
    """Writes to the active copy, each of which the history gets."""

    def __init__(self, copy: Copy, history: History) -> None:
        self.copy, self.history = copy, history
        self._uid = copy.vbucket.collections.manifest.uid

    @property
    def high_seqno(self) -> int:
        return self.copy.vbucket.high_seqno

    @property
    def pending(self) -> dict[Key, int]:
        return self.history.pending(self.high_seqno)

    @property
    def collections(self) -> dict[int, int]:
        return self.history.alive(self.high_seqno)

    def set(self, key: Key) -> None:
        if key not in self.pending and key[0] in self.collections:
            self._enter(self.copy.desk.set(0, key[1], b"v", collection=key[0]), Entry("set", key))

    def delete(self, key: Key) -> None:
        if key not in self.pending and key[0] in self.collections:
            self._enter(self.copy.desk.delete(0, key[1], collection=key[0]), Entry("delete", key))

    def prepare(self, key: Key) -> None:
        if key in self.pending or key[0] not in self.collections:
            return
        told = dcp.Prepare(
            key=leb128.join_key(key[0], key[1].encode()),
            value=b"v",
            cas=self.copy.desk.bucket.next_cas(0),
            by_seqno=0,
            rev_seqno=1,
            durability_level=1,
        )
        self._enter(self.copy.vbucket.prepares.add(told), Entry("prepare", key))

    def finish(self, *, commits: bool) -> None:
        """End the oldest prepare."""
        pending, prepares = self.copy.vbucket.prepares.pending, self.copy.vbucket.prepares
        if pending:
            stored = next(iter(pending))
            seqno = prepares.commit(stored, NOON) if commits else prepares.abort(stored, NOON)
            self._enter(seqno, Entry("set" if commits else "abort", (stored.collection, stored.key.decode())))

    def become(self, *collections: int) -> None:
        """Make or drop collections; one that was dropped does not come back."""
        alive, gone = self.collections, {name for name in NAMES if self._was(name)} - self.collections.keys()
        wanted = [collection for collection in collections if collection not in gone]
        if set(wanted) == alive.keys() - {0} or any(key[0] for key in self.pending):
            return
        self._uid += 1
        before = self.high_seqno
        self.copy.desk.become(0, self._uid, **{NAMES[each]: each for each in wanted})
        for seqno, event in self.copy.desk.store.events(0):
            if seqno > before:
                self._enter(seqno, Entry("event", event=replace(old_message(event), by_seqno=seqno)))

    def _was(self, collection: int) -> bool:
        return any(entry.event and entry.event.collection_id == collection for entry in self.history.entries.values())

    def _enter(self, seqno: int, entry: Entry) -> None:
        assert seqno not in self.history.entries
        self.history.entries[seqno] = entry
        self.copy.desk.committer.wrote()


class Feed:
    """A mover between the owner and a replica: it passes messages on when it is told to.

    Attributes:
        waiting: messages that the owner sent and the replica has not.
        seen: the seqnos that the replica was sent; the caller keeps it from one feed to the next.
    """

    def __init__(self, owner: Copy, replica: Copy, seen: set[int]) -> None:
        self.owner, self.replica, self.seen = owner, replica, seen
        self.source = Producer(owner.desk, "feed", 0x21, (0x07, 0x08, 0x0B, 0x12))
        self.waiting: deque[Frame] = deque()
        self.sink = Talk(replica.desk)
        self.wire = Wire()
        self.sink.connection = self.wire
        self.sink.speak_over(self.wire)
        self.wire.rearm = lambda: None  # type: ignore[attr-defined]
        self.buffer = FrameBuffer()
        self.sink.hello(0x07, 0x08, 0x0B, 0x12)
        opened = {"key": b"feed", "extras": bytes(8), "value": b'{"consumer_name":"b"}', "datatype": 1}
        assert self.sink.one(Opcode.DCP_OPEN, **opened).status == Status.SUCCESS
        self._give(dcp.AddStream(vbucket=0, opaque=5, flags=0).encode())

    @property
    def is_open(self) -> bool:
        return not self.wire.is_closed and self.replica.vbucket.inbound is not None

    def take(self) -> None:
        """Let the owner send what it has."""
        while frames := self.source.turn():
            self.waiting += frames

    def deliver(self, count: int) -> None:
        """Pass so many messages on."""
        for _ in range(min(count, len(self.waiting))):
            frame = self.waiting.popleft()
            at = 8 if frame.opcode in (Opcode.DCP_COMMIT, Opcode.DCP_ABORT) else 0
            if not frame.is_response and frame.opcode != Opcode.DCP_SNAPSHOT_MARKER and len(frame.extras) >= 8:
                self.seen.add(int.from_bytes(frame.extras[at : at + 8]))
            self._give(frame.encode())

    def close(self) -> None:
        for connection in (self.source.connection, self.wire):
            connection.drop("cut", fault=False)
        self.seen -= {seqno for seqno in self.seen if seqno > self.replica.vbucket.high_seqno}

    def _give(self, data: bytes) -> None:
        """Give the replica a message, and what it answers to the owner, until nobody has anything to say."""
        self.wire.session.receive(memoryview(bytearray(data)))
        for frame in self.buffer.receive_data(self.sink.bytes_sent()):
            assert frame.status == Status.SUCCESS or not frame.is_response, frame
            if frame.opcode == Opcode.DCP_ADD_STREAM:
                continue
            self.source.give(frame.encode())
            for answer in self.source.buffer.receive_data(self.source.bytes_sent()):
                self._give(answer.encode())
