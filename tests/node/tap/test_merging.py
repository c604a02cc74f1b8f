"""A TAP client that knows the address that workers have in common gets one session of all of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from headwater import testing
from headwater.node.kv.relay import refusal
from headwater.node.kv.session import KvSession
from headwater.node.tap.merging import TapMerge, complete
from headwater.protocol.tap.options import TapOptions
from headwater.testing.node import Node
from headwater.wire import tap
from headwater.wire.address import Address
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.kv.test_relay_calls import Worker, turns
from tests.node.support import Desk, FakeConnection, discard
from tests.node.wire import Client
from tests.node.workers.test_supervising import workers_of

VBUCKETS = 8
DOCUMENTS = {b"key-%d" % number: os.urandom(40) for number in range(6000)}


@pytest.fixture(scope="module")
def filled() -> Iterator[Node]:
    """Three workers with documents, more of each than one acknowledgement is for."""
    with testing.node(vbuckets=VBUCKETS, workers=3) as node:
        with node.client() as bucket:
            assert not bucket.set_many(DOCUMENTS.items())
        yield node


def dumped(client: Client, flags: tap.ConnectFlag) -> tuple[dict[bytes, bytes], list[int]]:
    """The documents of a dump and the opaques of its messages; those that ask for it are acknowledged."""
    client.send(Frame(0x80, Opcode.TAP_CONNECT, extras=int(flags).to_bytes(4)).encode())
    documents: dict[bytes, bytes] = {}
    opaques: list[int] = []
    while (message := client.read()) is not None:
        assert message.magic == 0x80, message
        opaques.append(message.opaque)
        if message.opcode == Opcode.TAP_MUTATION:
            change = tap.Mutation.decode(message)
            documents[change.key] = change.value
        if message.extras[3] & tap.MessageFlag.ACK:
            client.send(Frame(0x81, message.opcode, opaque=message.opaque).encode())
    return documents, opaques


@pytest.mark.parametrize("more", [tap.ConnectFlag(0), tap.ConnectFlag.SUPPORT_ACK])
def test_a_dump_is_whole_and_ends_and_its_messages_are_numbered_one_by_one(filled: Node, more: tap.ConnectFlag) -> None:
    for _ in range(3):  # whichever worker takes the connection
        with Client(filled.port) as client:
            documents, opaques = dumped(client, tap.ConnectFlag.DUMP | more)
        assert documents == DOCUMENTS
        assert opaques == list(range(1, len(opaques) + 1))


def test_a_refusal_is_heard_once_and_ends_the_connection(filled: Node) -> None:
    with Client(filled.port) as client:
        client.send(Frame(0x80, Opcode.TAP_CONNECT, extras=b"?", opaque=7).encode())
        answer = client.read()
        assert answer is not None and (answer.status, answer.opaque) == (Status.EINVAL, 7)
        assert client.read() is None


def test_a_worker_that_is_killed_ends_the_connection_at_once() -> None:
    with testing.node(vbuckets=VBUCKETS, workers=2) as node:
        with node.client() as bucket:
            assert not bucket.set_many(list(DOCUMENTS.items())[:100])
        with Client(node.port) as client:
            client.send(Frame(0x80, Opcode.TAP_CONNECT, extras=bytes(4)).encode())
            seen: set[bytes] = set()
            while len(seen) < 100:
                change = client.read()
                assert change is not None
                if change.opcode == Opcode.TAP_MUTATION:
                    seen.add(tap.Mutation.decode(change).key)
            os.kill(workers_of(node)[0], signal.SIGKILL)
            while client.read() is not None:
                pass


def message(number: int, *, asks: bool = True) -> Frame:
    """A change that a worker sends."""
    flags = int(tap.MessageFlag.ACK) if asks else 0
    return tap.Mutation(opaque=number, key=b"k", value=b"v", flags=flags).frame()


class Merged:
    """A client of a worker's TAP session with two others, all of which the test plays."""

    def __init__(self, here: Desk, paths: dict[Address, str]) -> None:
        self.connection = FakeConnection()
        self.kv = KvSession(self.connection, here, None, paths)  # type: ignore[arg-type]
        request = Frame(0x80, Opcode.TAP_CONNECT, opaque=9)
        self.session = TapMerge(self.kv, request, TapOptions(acknowledge=True))

    def heard(self) -> list[Frame]:
        data = b"".join(data for data, _ in self.connection.sent)
        self.connection.sent.clear()
        return FrameBuffer().receive_data(data)

    def answer(self, opaque: int, status: int = 0) -> None:
        data = Frame(0x81, Opcode.TAP_MUTATION, opaque=opaque, vbucket=status).encode()
        assert self.session.receive(memoryview(bytearray(data))) == len(data)


Play = Callable[[Merged, list[Worker]], Awaitable[None]]


def played(play: Play, tmp_path: Path) -> None:
    async def run(folder: str) -> None:
        here = Desk(tmp_path / "s")
        here.loop = asyncio.get_running_loop()
        here.cluster = SimpleNamespace(version=(0, 0), map_in_refusals=False)  # type: ignore[assignment]
        paths = {Address("w", number): f"{folder}/worker-{number}" for number in (0, 2)}
        workers = [Worker(f"{folder}/worker-{number}") for number in range(3)]
        client = Merged(here, paths)
        try:
            await turns()
            for worker in workers:
                assert [frame.opcode for frame in worker.hear()] == [Opcode.TAP_CONNECT]
            await play(client, workers)
        finally:
            client.session.closed()
            for worker in workers:
                worker.die()
            here.close()
            discard(tmp_path / "s")

    with TemporaryDirectory(prefix="headwater-merge-") as folder:
        asyncio.run(run(folder))


def say(worker: Worker, *frames: Frame | bytes) -> None:
    assert worker.call is not None
    worker.call.sendall(b"".join(frame if isinstance(frame, bytes) else frame.encode() for frame in frames))


def test_each_worker_hears_of_its_own_last_message_that_is_acknowledged(tmp_path: Path) -> None:
    async def play(client: Merged, workers: list[Worker]) -> None:
        say(workers[0], message(1), message(2))
        await turns()
        say(workers[1], message(1))
        await turns()
        say(workers[0], message(3))
        await turns()
        assert [each.opaque for each in client.heard()] == [1, 2, 3, 4]
        client.answer(3)
        await turns()
        assert [[each.opaque for each in worker.hear()] for worker in workers] == [[2], [1], []]
        client.answer(4)
        client.answer(4)
        client.answer(77)
        await turns()
        assert [[each.opaque for each in worker.hear()] for worker in workers] == [[3], [], []]

    played(play, tmp_path)


def test_a_refused_message_is_refused_at_all_that_sent_something_behind_it(tmp_path: Path) -> None:
    async def play(client: Merged, workers: list[Worker]) -> None:
        for worker, number in ((0, 1), (1, 1), (0, 2), (1, 2)):
            say(workers[worker], message(number))
            await turns()
        client.answer(2, Status.ETMPFAIL)
        await turns()
        answers = [[(each.opaque, each.status) for each in worker.hear()] for worker in workers]
        assert answers == [[(1, 0), (2, Status.ETMPFAIL)], [(1, Status.ETMPFAIL)], []]
        client.answer(3)  # its number is void: it is sent again
        say(workers[0], message(3))
        await turns()
        assert [each.opaque for each in client.heard()] == [1, 2, 3, 4, 5]
        assert workers[0].hear() == []

    played(play, tmp_path)


def test_the_set_up_is_heard_once_and_answered_here_for_the_others(tmp_path: Path) -> None:
    async def play(client: Merged, workers: list[Worker]) -> None:
        set_up = tap.Opaque(opaque=1, flags=1, engine_specific=tap.code_or_state(tap.OpaqueCode.ENABLE_AUTO_NACK))
        own = tap.Opaque(opaque=2, flags=1, engine_specific=tap.code_or_state(tap.OpaqueCode.CLOSE_BACKFILL))
        for each in workers:
            say(each, set_up.frame(), own.frame(), Frame(0x80, Opcode.NOOP))
            await turns()
        opcodes = [each.opcode for each in client.heard()]
        assert (opcodes.count(Opcode.TAP_OPAQUE), opcodes.count(Opcode.NOOP)) == (4, 3)
        assert [[each.opaque for each in worker.hear()] for worker in workers] == [[], [1], [1]]

    played(play, tmp_path)


def test_the_connection_ends_when_all_are_complete_and_is_cut_when_one_is_lost(tmp_path: Path) -> None:
    async def whole(client: Merged, workers: list[Worker]) -> None:
        for worker in workers:
            assert not client.connection.finished
            say(worker, message(1), complete())
            worker.die()
            await turns()
        assert client.connection.finished and not client.connection.dropped

    async def torn(client: Merged, workers: list[Worker]) -> None:
        say(workers[0], complete())
        workers[1].die()
        await turns()
        assert "is gone" in client.connection.dropped

    async def full(client: Merged, workers: list[Worker]) -> None:
        say(workers[2], refusal())
        workers[2].die()
        await turns()
        (answer,) = client.heard()
        assert (answer.opcode, answer.status, answer.opaque) == (Opcode.TAP_CONNECT, Status.ETMPFAIL, 9)
        assert client.connection.finished and not client.connection.dropped

    for play in (whole, torn, full):
        played(play, tmp_path / play.__name__)
