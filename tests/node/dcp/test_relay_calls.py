"""A DCP client's calls to another worker, which the test plays: it is silent, dies and is late when that is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

from headwater.node.kv.session import KvSession
from headwater.wire import dcp
from headwater.wire.address import Address
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer, stream_id_framing
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.kv.test_relay_calls import LARGE, Worker, turns
from tests.node.support import Desk, FakeConnection, discard

FAR = 9
"""A vbucket of the other worker."""
PRODUCER = bytes(7) + b"\1"
U64_MAX = (1 << 64) - 1


class Consumer:
    """A DCP client of this worker, with Collections; each message that may be sent is sent."""

    def __init__(self, here: Desk, paths: dict[Address, str]) -> None:
        self.here, self.connection = here, FakeConnection()
        session = KvSession(self.connection, here, None, paths)  # type: ignore[arg-type]
        self.connection.session = session
        features = (Feature.COLLECTIONS, Feature.XERROR)
        self.ask(Opcode.HELLO, value=b"".join(int(feature).to_bytes(2, "big") for feature in features))
        self.ask(Opcode.DCP_OPEN, key=b"client", extras=PRODUCER)
        self.control(b"enable_noop", b"true")

    def give(self, frame: Frame) -> None:
        data = frame.encode()
        assert self.connection.session.receive(memoryview(bytearray(data))) == len(data)

    def ask(self, opcode: int, **sections: object) -> Frame:
        self.give(Frame(0x80, opcode, **sections))  # type: ignore[arg-type]
        (answer,) = self.heard()
        assert answer.status == 0
        return answer

    def control(self, key: bytes, value: bytes) -> None:
        self.ask(Opcode.DCP_CONTROL, key=key, value=value)

    def request(self, opaque: int, value: bytes = b"") -> None:
        extras = dcp.StreamRequest(
            vbucket=FAR, opaque=opaque, start_seqno=0, end_seqno=U64_MAX, vb_uuid=0, snap_start_seqno=0,
            snap_end_seqno=0, value=value,
        ).frame()  # fmt: skip
        self.give(extras)

    def close(self, opaque: int, framing: bytes = b"") -> None:
        magic = Magic.FLEXIBLE_REQUEST if framing else Magic.CLIENT_REQUEST
        self.give(Frame(magic, Opcode.DCP_CLOSE_STREAM, vbucket=FAR, opaque=opaque, framing=framing))

    def heard(self) -> list[Frame]:
        self.connection.session.pump()
        data = b"".join(data for data, _ in self.connection.sent)
        self.connection.sent.clear()
        return FrameBuffer().receive_data(data)


Play = Callable[[Desk, Consumer, Worker], Awaitable[None]]


def played(play: Play, tmp_path: Path) -> None:
    """Run a play of one client and one other worker, which has answered OPEN and the first settings."""

    async def run(folder: str) -> None:
        here, far, path = Desk(tmp_path / "s"), Address("far", 1), f"{folder}/1"
        here.loop = asyncio.get_running_loop()
        here.cluster = SimpleNamespace(  # type: ignore[assignment]
            holders=lambda vbucket: (far,) if vbucket == FAR else (),
            owner=lambda vbucket: far if vbucket == FAR else None,
            version=(0, 0),
            map_in_refusals=False,
        )
        worker = Worker(path)
        consumer = Consumer(here, {far: path})
        try:
            worker.answer()
            await turns()
            await play(here, consumer, worker)
        finally:
            consumer.connection.session.closed()
            worker.die()
            here.close()
            discard(tmp_path / "s")

    with TemporaryDirectory(prefix="headwater-calls-") as folder:
        asyncio.run(run(folder))


def sends(worker: Worker, *messages: bytes) -> None:
    assert worker.call is not None
    worker.call.sendall(b"".join(messages))


def mutation(key: bytes, seqno: int, opaque: int, framing: bytes = b"") -> bytes:
    return dcp.Mutation(
        vbucket=FAR, opaque=opaque, framing=framing or None, key=b"\0" + key, value=b"v", by_seqno=seqno, rev_seqno=1
    ).encode()


def test_a_setting_made_before_a_stream_was_answered_concerns_the_streams_after_it(tmp_path: Path) -> None:
    """The answer was taken for that of a stream with an id, which its request did not name: the call was at its end."""

    async def play(_: Desk, consumer: Consumer, worker: Worker) -> None:
        consumer.request(7)
        consumer.control(b"enable_stream_id", b"true")
        worker.answer()
        sends(worker, mutation(b"k", 1, 7))
        await turns()
        heard = consumer.heard()
        assert [(each.opcode, each.opaque) for each in heard] == [(Opcode.DCP_STREAM_REQ, 7), (Opcode.DCP_MUTATION, 7)]

    played(play, tmp_path)


def test_a_closed_stream_is_silent_though_another_of_its_vbucket_has_its_opaque(tmp_path: Path) -> None:
    async def play(_: Desk, consumer: Consumer, worker: Worker) -> None:
        consumer.control(b"enable_stream_id", b"true")
        framings = [stream_id_framing(each) for each in (1, 2)]
        for number in (1, 2):
            consumer.request(7, b'{"sid": %d}' % number)
        worker.answer()
        await turns()
        assert [each.status for each in consumer.heard()] == [0, 0]
        sends(worker, *(mutation(b"k", 1, 7, framing) for framing in framings))
        consumer.close(7, framings[0])
        await turns()
        worker.answer()
        await turns()
        heard = consumer.heard()
        assert [(each.opcode, each.framing) for each in heard] == [
            (Opcode.DCP_CLOSE_STREAM, b""), (Opcode.DCP_MUTATION, framings[1]),
        ]  # fmt: skip

    played(play, tmp_path)


def before(seqno: int, opaque: int, framing: bytes = b"") -> bytes:
    return dcp.Before(vbucket=FAR, opaque=opaque, framing=framing or None, by_seqno=seqno, state=2).encode()


def test_what_a_change_replaced_waits_for_its_change(tmp_path: Path) -> None:
    """Behind it could come what this worker sends of its own streams."""

    async def play(_: Desk, consumer: Consumer, worker: Worker) -> None:
        consumer.request(7)
        worker.answer()
        await turns()
        consumer.heard()
        sends(worker, mutation(b"k", 1, 7), before(2, 7), mutation(b"k", 2, 7)[:30])
        await turns()
        assert [each.opcode for each in consumer.heard()] == [Opcode.DCP_MUTATION]
        sends(worker, mutation(b"k", 2, 7)[30:])
        await turns()
        assert [each.opcode for each in consumer.heard()] == [Opcode.DCP_BEFORE, Opcode.DCP_MUTATION]

    played(play, tmp_path)


def test_with_the_changes_of_a_closed_stream_goes_what_they_replaced(tmp_path: Path) -> None:
    async def play(_: Desk, consumer: Consumer, worker: Worker) -> None:
        consumer.control(b"enable_stream_id", b"true")
        framings = [stream_id_framing(each) for each in (1, 2)]
        for number in (1, 2):
            consumer.request(7, b'{"sid": %d}' % number)
        worker.answer()
        await turns()
        consumer.heard()
        for framing in framings:
            sends(worker, before(1, 7, framing), mutation(b"k", 1, 7, framing))
        consumer.close(7, framings[0])
        await turns()
        worker.answer()
        await turns()
        assert [(each.opcode, each.framing) for each in consumer.heard()] == [
            (Opcode.DCP_CLOSE_STREAM, b""), (Opcode.DCP_BEFORE, framings[1]), (Opcode.DCP_MUTATION, framings[1]),
        ]  # fmt: skip

    played(play, tmp_path)


def test_a_worker_that_sends_no_noops_any_more_is_given_up(tmp_path: Path) -> None:
    """A stopped one, of which nothing else tells: the client gets this worker's no-ops."""

    async def play(here: Desk, consumer: Consumer, worker: Worker) -> None:
        session = consumer.connection.session
        consumer.control(b"set_noop_interval", b"10")
        consumer.request(7)
        worker.answer()
        await turns()
        consumer.request(8)
        assert [each.status for each in consumer.heard()] == [0]
        begun = here.loop.time()
        session.tick(begun + 15)
        assert [each.opcode for each in consumer.heard()] == [Opcode.DCP_NOOP]
        assert session.deadline is not None and session.deadline <= begun + 20
        session.receive(memoryview(bytearray(Frame(0x81, Opcode.DCP_NOOP, opaque=10_000_001).encode())))
        session.tick(begun + 20)
        heard = consumer.heard()
        assert [(each.opcode, each.opaque) for each in heard if each.opcode != Opcode.DCP_NOOP] == [
            (Opcode.DCP_STREAM_REQ, 8), (Opcode.DCP_STREAM_END, 7),
        ]  # fmt: skip
        assert heard[0].status == Status.ETMPFAIL

    played(play, tmp_path)


def test_what_came_while_this_process_was_stopped_is_read_before_a_worker_is_given_up(tmp_path: Path) -> None:
    async def play(here: Desk, consumer: Consumer, worker: Worker) -> None:
        consumer.request(7)
        worker.answer()
        await turns()
        consumer.heard()
        sends(worker, mutation(b"k", 1, 7))
        consumer.connection.session.tick(here.loop.time() + 400)
        await turns()
        assert [each.opcode for each in consumer.heard() if each.opcode != Opcode.DCP_NOOP] == [Opcode.DCP_MUTATION]

    played(play, tmp_path)


def test_documents_that_wait_for_another_worker_count_beside_what_waits_of_its_streams(tmp_path: Path) -> None:
    """Each told the account of the connection for itself: what the other kept was not counted any more."""

    async def play(here: Desk, consumer: Consumer, worker: Worker) -> None:
        consumer.request(7)
        worker.answer()
        await turns()
        consumer.heard()
        streams_bytes = consumer.connection.session_bytes
        assert streams_bytes > 0
        consumer.give(Frame(0x80, Opcode.SET, b"\0k", vbucket=FAR, extras=bytes(8), value=LARGE))
        assert consumer.connection.session_bytes > streams_bytes + len(LARGE) // 2
        consumer.heard()
        assert consumer.connection.session_bytes > streams_bytes + len(LARGE) // 2

    played(play, tmp_path)
