"""DCP connections without sockets: a real store, streams that are pumped when the test says so, time as an argument."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from headwater.node.dcp.producer import ProducerSession
from headwater.node.storage.scrub import Damage
from headwater.wire import dcp
from headwater.wire.dcp import BeforeState
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.manifest import CollectionsManifest
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.aware import manifest
from tests.node.support import Desk, FakeConnection, Talk

U64 = 0xFFFF_FFFF_FFFF_FFFF


class Loop:
    """A clock that a test moves; what is to be called soon is called at once."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[[], None]) -> None:
        callback()


class StreamDesk(Desk):
    """A desk that takes DCP connections."""

    def __init__(self, path: Path, *, vbuckets: int = 4, first_uuid: int = 1) -> None:
        super().__init__(path, vbuckets=vbuckets, first_uuid=first_uuid)
        self.time = Loop()
        self.loop = self.time  # type: ignore[assignment]

    def set(self, vb: int, key: str, value: bytes = b"value", **meta: int) -> int:
        """Stage a document as a writer would; returns its seqno."""
        before = self.store.document(vb, key.encode(), meta.get("collection", 0))
        rev = before.rev_seqno + 1 if before else 1
        made = {"cas": self.bucket.next_cas(vb), "rev_seqno": rev} | meta
        seqno = self.store.staging.mutation(vb, key.encode(), value, **made)
        self.committer.wrote()
        return seqno

    def delete(
        self, vb: int, key: str, value: bytes = b"", *, datatype: int = 0, expired: bool = False, collection: int = 0
    ) -> int:
        """Stage a tombstone; returns its seqno."""
        before = self.store.document(vb, key.encode(), collection)
        seqno = self.store.staging.deletion(
            vb,
            key.encode(),
            value,
            cas=self.bucket.next_cas(vb),
            rev_seqno=before.rev_seqno + 1 if before else 1,
            delete_time=1_700_000_000,
            datatype=datatype,
            expired=expired,
            collection=collection,
        )
        self.committer.wrote()
        return seqno

    def become(self, vb: int, uid: int, plain: Collection[str] = (), **collections: int) -> None:
        """Stage the events that lead to scope `shop`, id 8, with these collections, those of `plain` without a history;
        without any, to none.
        """
        wanted = CollectionsManifest.decode(manifest(uid, plain, **collections))
        self.bucket.vbuckets[vb].become(wanted, lambda: self.bucket.next_cas(vb))
        self.committer.wrote()

    def commit(self) -> None:
        self.committer.commit()


def fill(desk: StreamDesk, vb: int, count: int, value: bytes = b"value") -> None:
    """So many documents, `k0` and on, committed."""
    for number in range(count):
        desk.set(vb, f"k{number}", value)
    desk.commit()


def spoil(desk: Desk) -> None:
    """A byte of the newest batch turns over, and the scrubber finds it."""
    segment = desk.store.log.segments[-1]
    with segment.path.open("r+b") as file:
        file.seek(segment.end - 1)
        file.write(b"\xff")
    for found in desk.store.scrub(1 << 20):
        if isinstance(found, Damage):
            desk.bucket.take_out(found)


class Wire(FakeConnection):
    """A connection that counts what it was asked to pump."""

    def __init__(self) -> None:
        super().__init__()
        self.woken = False

    def wake(self) -> None:
        self.woken = True

    def drop(self, cause: str, *, fault: bool = True) -> None:
        if not self.is_closed:
            super().drop(cause, fault=fault)
            self.session.closed()


COLLECTIONS = 0x12


class Producer(Talk):
    """A client of one DCP connection that the node produces on."""

    def __init__(
        self, desk: StreamDesk, name: str = "c", flags: int = 1, features: tuple[int, ...] = (0x07, 0x08)
    ) -> None:
        super().__init__(desk)
        self.connection: Wire = Wire()
        self.speak_over(self.connection)
        self.buffer = FrameBuffer()
        if features:
            self.hello(*features)
        answer = self.one(Opcode.DCP_OPEN, key=name.encode(), extras=bytes(4) + flags.to_bytes(4))
        assert answer.status == Status.SUCCESS, answer
        if COLLECTIONS in features:
            assert self.control("enable_noop", "true") == 0

    @property
    def session(self) -> ProducerSession:
        session: object = self.connection.session
        assert isinstance(session, ProducerSession)
        return session

    def give(self, data: bytes) -> int:
        return self.connection.session.receive(memoryview(bytearray(data)))

    def control(self, key: str, value: str) -> int:
        return self.one(Opcode.DCP_CONTROL, key=key.encode(), value=value.encode()).status

    def request(self, vbucket: int = 0, opaque: int = 7, value: bytes = b"", **numbers: int) -> Frame:
        """The answer to a stream request; what is streamed comes by `read`."""
        numbers = {"start_seqno": 0, "end_seqno": U64, "vb_uuid": 0} | numbers
        start = numbers["start_seqno"]
        numbers = {"snap_start_seqno": start, "snap_end_seqno": start} | numbers
        self.give(dcp.StreamRequest(vbucket=vbucket, opaque=opaque, value=value, **numbers).encode())  # type: ignore[arg-type]
        (answer,) = self.buffer.receive_data(self.bytes_sent())
        return answer

    def stream(self, vbucket: int = 0, opaque: int = 7, value: bytes = b"", **numbers: int) -> None:
        answer = self.request(vbucket, opaque, value, **numbers)
        assert answer.status == Status.SUCCESS, answer

    def turn(self) -> list[Frame]:
        """Return the frames that one turn of the connection sends."""
        self.connection.woken = False
        self.session.pump()
        return self.buffer.receive_data(self.bytes_sent())

    def read(self) -> list[Frame]:
        """Everything that is sent until the connection has nothing to say."""
        found: list[Frame] = []
        while more := self.turn():
            found += more
        return found

    def ack(self, size: int) -> None:
        self.give(dcp.BufferAck(acked_bytes=size).encode())

    def close_stream(self, vbucket: int = 0) -> Frame:
        return self.one(Opcode.DCP_CLOSE_STREAM, vbucket=vbucket)


def told(frames: list[Frame]) -> list[tuple[object, ...]]:
    """Frames in short: ("marker", start, end, flags), ("mutation", seqno, key), ("deletion", ...), ("end", reason),
    ("advanced", seqno).

    A marker of version 2.2 has its purge seqno last.
    """
    return [_told(frame) for frame in frames]


def _told(frame: Frame) -> tuple[object, ...]:
    extras = frame.extras
    match frame.opcode:
        case Opcode.DCP_SNAPSHOT_MARKER if len(extras) == 1:
            found = dcp.SnapshotMarkerV22.decode(frame)
            return "marker", found.start_seqno, found.end_seqno, found.flags, found.purge_seqno
        case Opcode.DCP_SNAPSHOT_MARKER:
            return "marker", int.from_bytes(extras[:8]), int.from_bytes(extras[8:16]), int.from_bytes(extras[16:])
        case Opcode.DCP_STREAM_END:
            return "end", int.from_bytes(extras)
        case Opcode.DCP_SEQNO_ADVANCED:
            return "advanced", int.from_bytes(extras)
        case Opcode.DCP_BEFORE:
            before = dcp.Before.decode(frame)
            return "before", before.by_seqno, BeforeState(before.state).name, before.before_seqno, before.value
        case Opcode.DCP_MUTATION:
            return "mutation", int.from_bytes(extras[:8]), frame.key.decode()
        case Opcode.DCP_DELETION:
            return "deletion", int.from_bytes(extras[:8]), frame.key.decode()
        case Opcode.DCP_EXPIRATION:
            return "expiration", int.from_bytes(extras[:8]), frame.key.decode()
    return "other", frame.opcode, frame.status
