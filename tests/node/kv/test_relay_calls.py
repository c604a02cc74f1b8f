"""A client's calls to another worker, which the test plays: it dies, refuses and is late when that is wanted."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.node.config import NodeConfig
from headwater.node.kv.relay import refusal
from headwater.node.kv.session import KvSession
from headwater.wire.address import Address
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import Desk, FakeConnection, discard

FAR = 9
"""A vbucket of the other worker; those of the next workers follow."""
SET_EXTRAS = bytes(8)
LARGE = bytes(1 << 20)


class Worker:
    """Another worker, at its socket."""

    def __init__(self, path: str) -> None:
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        self.listener.setblocking(False)
        self.call: socket.socket | None = None
        self._frames = FrameBuffer()

    def hear(self) -> list[Frame]:
        """Return what came by now, without the introduction; nothing as long as nobody has called."""
        heard: list[Frame] = []
        try:
            if self.call is None:
                self.call, _ = self.listener.accept()
                self.call.setblocking(False)
            while data := self.call.recv(1 << 20):
                heard += self._frames.receive_data(data)
        except BlockingIOError:
            pass
        return [each for each in heard if each.opcode != Opcode.HELLO]

    def answer(self, *statuses: int) -> list[Frame]:
        """Answer what came: success, but for the first requests those statuses. Returns what came."""
        given, requests = iter(statuses), self.hear()
        for request in requests:
            status = next(given, 0) if request.opcode != Opcode.NOOP else 0
            assert self.call is not None
            self.call.sendall(Frame(0x81, request.opcode, vbucket=status, opaque=request.opaque).encode())
        return requests

    def die(self) -> None:
        """Be gone, as by SIGKILL."""
        self.listener.close()
        if self.call is not None:
            self.call.close()


class Client:
    """A client of this worker: what it sends is read again when nothing holds it back any more."""

    def __init__(self, here: Desk, paths: dict[Address, str]) -> None:
        self.connection = FakeConnection()
        self.session = KvSession(self.connection, here, None, paths)  # type: ignore[arg-type]
        self.connection.session = self.session
        self._unread = b""

    def send(self, *frames: Frame) -> None:
        self._unread += b"".join(frame.encode() for frame in frames)
        self.go_on()

    def go_on(self) -> None:
        while self._unread and not self.connection.is_paused and not self.connection.is_closed:
            count = self.session.receive(memoryview(bytearray(self._unread)))
            self._unread = self._unread[count:]

    def heard(self) -> list[Frame]:
        data = b"".join(data for data, _ in self.connection.sent)
        self.connection.sent.clear()
        return FrameBuffer().receive_data(data)


Play = Callable[[Desk, Client, list[Worker]], Awaitable[None]]


async def turns() -> None:
    """Let the loop do what it has to do."""
    for _ in range(5):
        await asyncio.sleep(0.01)


def played(play: Play, tmp_path: Path, *, workers: int = 1, config: NodeConfig | None = None) -> None:
    """Run a play of one client and some other workers."""

    async def run(folder: str) -> None:
        here = Desk(tmp_path / "s", config=config)
        others = [Address("far", number) for number in range(workers)]
        here.loop = asyncio.get_running_loop()
        here.cluster = SimpleNamespace(  # type: ignore[assignment]
            owner=lambda vbucket: dict(enumerate(others, FAR)).get(vbucket), version=(0, 0), map_in_refusals=False
        )
        paths = {other: f"{folder}/{other.port}" for other in others}
        theirs = [Worker(path) for path in paths.values()]
        client = Client(here, paths)
        try:
            await play(here, client, theirs)
        finally:
            client.session.closed()
            for each in theirs:
                each.die()
            here.close()
            discard(tmp_path / "s")

    with TemporaryDirectory(prefix="headwater-calls-") as folder:
        asyncio.run(run(folder))


def far(opcode: int, opaque: int = 0, **sections: Any) -> Frame:
    """A request of a document of the other worker."""
    return Frame(0x80, opcode, b"k", vbucket=FAR, opaque=opaque, **sections)


def test_another_workers_answer_waits_for_the_quiet_writes_before_it(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        quiet = Frame(0x80, Opcode.SETQ, b"mine", SET_EXTRAS, b"v", vbucket=1)
        client.send(quiet, far(Opcode.GET, 2))
        workers[0].answer()
        await turns()
        ((data, gate),) = client.connection.sent
        assert Frame.decode(data).opaque == 2 and gate > here.committer.durable, "the commit is still to come"

    played(play, tmp_path)


@pytest.mark.parametrize("size", [10, 300_000])
def test_a_request_to_a_worker_that_has_just_died_ends_the_connection(tmp_path: Path, size: int) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        client.send(far(Opcode.GET))
        workers[0].answer()
        await turns()
        assert len(client.heard()) == 1 and not client.connection.is_paused
        workers[0].die()  # in the turn in which the next request is read
        client.send(far(Opcode.SET, extras=SET_EXTRAS, value=bytes(size)))
        await turns()
        assert client.connection.dropped == "the worker that had its requests is gone"

    played(play, tmp_path)


def test_what_was_answered_before_a_worker_died_is_passed_on(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        client.send(far(Opcode.GET, 1))
        workers[0].answer()
        workers[0].die()
        client.session.relay.flush()  # type: ignore[union-attr]
        await turns()
        assert [each.opaque for each in client.heard()] == [1] and not client.connection.is_closed

    played(play, tmp_path)


def test_what_a_worker_that_died_had_answered_waits_for_its_turn(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        client.send(far(Opcode.GET, 1), Frame(0x80, Opcode.GET, b"k", vbucket=FAR + 1, opaque=2))
        workers[0].hear()
        workers[1].answer()
        workers[1].die()
        await turns()
        assert client.heard() == [] and not client.connection.is_closed
        assert workers[0].call is not None
        for number, opcode in enumerate((Opcode.GET, Opcode.NOOP), 1):
            workers[0].call.sendall(Frame(0x81, opcode, opaque=number).encode())
        await turns()
        assert [each.opaque for each in client.heard()] == [1, 2] and not client.connection.is_paused

    played(play, tmp_path, workers=2)


def test_what_waits_for_another_worker_counts_as_the_connections_memory(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        client.send(far(Opcode.SET, extras=SET_EXTRAS, value=LARGE))
        assert client.connection.session_bytes > len(LARGE) // 2
        held = client.connection.session_bytes
        for _ in range(100):
            workers[0].hear()
            await asyncio.sleep(0)
        assert client.connection.session_bytes < held
        assert workers[0].call is not None
        workers[0].call.sendall(Frame(0x81, Opcode.SET, value=LARGE[: 100 << 10], opaque=1).encode()[: 90 << 10])
        await turns()
        assert client.connection.session_bytes >= 90 << 10, "half an answer"
        workers[0].call.sendall(Frame(0x81, Opcode.SET, value=LARGE[: 100 << 10], opaque=1).encode()[90 << 10 :])
        workers[0].call.sendall(Frame(0x81, Opcode.NOOP, opaque=2).encode())
        await turns()
        assert len(client.heard()) == 1 and client.connection.session_bytes == 0

    played(play, tmp_path)


def test_a_worker_that_can_not_take_a_call_is_a_temporary_failure_of_each_request_in_its_place(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        near = Frame(0x80, Opcode.SET, b"mine", SET_EXTRAS, vbucket=1, opaque=2)
        client.send(far(Opcode.GET, 1), near, far(Opcode.SETQ, 3, extras=SET_EXTRAS), far(Opcode.GETQ, 4))
        assert len(workers[0].hear()) == 4
        assert workers[0].call is not None
        workers[0].call.sendall(refusal())
        workers[0].call.close()
        await turns()
        failed = int(Status.ETMPFAIL)
        assert [(each.opaque, each.status) for each in client.heard()] == [
            (1, failed),
            (2, 0),
            (3, failed),
            (4, failed),
        ]
        assert not client.connection.is_closed and not client.connection.is_paused
        workers[0].call = None
        client.send(far(Opcode.GET, 5))
        workers[0].answer()
        await turns()
        assert [(each.opaque, each.status) for each in client.heard()] == [(5, 0)], "it has called anew"

    played(play, tmp_path)


FLUSH = Frame(0x80, Opcode.FLUSH, opaque=7)


async def begin_flush(client: Client, workers: list[Worker]) -> None:
    """Send FLUSH, and have all workers say that they are there."""
    client.send(FLUSH)
    for worker in workers:
        assert {frame.opcode for frame in worker.answer()} == {Opcode.NOOP}
    await turns()
    client.go_on()


def statuses(client: Client) -> list[int]:
    """Those of the answers, once all have come."""
    client.go_on()
    return [each.status for each in client.heard()]


def test_a_flush_that_is_refused_here_reaches_nobody(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        client.send(Frame(0x80, Opcode.FLUSH, extras=b"?", opaque=7))
        assert statuses(client) == [Status.EINVAL]
        assert workers[0].hear() == [] and workers[0].call is None

    played(play, tmp_path)


def test_a_flush_that_this_worker_can_not_carry_out_yet_reaches_nobody(tmp_path: Path) -> None:
    """Behind its fence it answers that nothing is deleted: the others had deleted all by then."""

    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        here.bucket.fence([0])
        client.send(FLUSH)
        (answer,) = client.heard()
        assert answer.status == Status.ETMPFAIL and workers[0].hear() == []
        client.send(Frame(0x80, Opcode.FLUSH, extras=(60).to_bytes(4), opaque=8))
        assert [each.opcode for each in workers[0].hear()] == [Opcode.NOOP] * 2, "one that is put off can wait"

    played(play, tmp_path)


def test_a_flush_while_a_worker_is_away_empties_none(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        workers[1].die()
        client.send(FLUSH)
        assert statuses(client) == [Status.ETMPFAIL]
        assert workers[0].hear() == []

    played(play, tmp_path, workers=2)


def test_a_flush_while_a_worker_can_not_take_the_call_empties_none(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        client.send(FLUSH)
        workers[0].answer()
        workers[1].hear()
        assert workers[1].call is not None
        workers[1].call.sendall(refusal())
        await turns()
        assert statuses(client) == [Status.ETMPFAIL]
        assert workers[0].hear() == []

    played(play, tmp_path, workers=2)


def test_a_flush_that_another_worker_refuses_has_its_status(tmp_path: Path) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        for status in (Status.ENOMEM, Status.SUCCESS):
            await begin_flush(client, workers)
            workers[0].answer(status)
            workers[1].answer()
            await turns()
            assert statuses(client) == [status]

    played(play, tmp_path, workers=2)


def test_a_flush_that_has_to_wait_for_room_here_is_asked_of_the_others_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(here: Desk, client: Client, workers: list[Worker]) -> None:
        outcomes = iter([False, False, True, True])
        monkeypatch.setattr(here.bucket, "flush", lambda: next(outcomes))
        await begin_flush(client, workers)
        workers[0].answer()
        await turns()
        for _ in range(2):
            client.go_on()
            assert client.connection.paused == {"commit"} and workers[0].hear() == []
            here.committer.commit()
        assert statuses(client) == [Status.SUCCESS]
        await begin_flush(client, workers)
        assert [each.opcode for each in workers[0].hear()] == [Opcode.FLUSH, Opcode.NOOP], "another is another"

    played(play, tmp_path)
