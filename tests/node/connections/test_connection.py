"""A connection over a real socket pair, with sessions that do what a test needs."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from struct import pack

import pytest
import uvloop

from headwater.errors import RemoteProtocolError
from headwater.node.connections import connection as module
from headwater.node.connections.budget import Budget
from headwater.node.connections.connection import Connection
from headwater.node.connections.inbox import ConnectionInbox
from headwater.node.process.run_queue import SLICE_SECONDS, RunQueue
from headwater.node.reporting.requests import Requests


class Gates:
    def __init__(self) -> None:
        self.durable = 0
        self.waiting: set[Connection] = set()

    def reach(self, number: int) -> None:
        self.durable = number
        waiting, self.waiting = self.waiting, set()
        for each in waiting:
            each.flush()


class Host:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.run_queue = RunQueue(self.loop)
        self.requests = Requests()
        self.committer = Gates()
        self.gone: list[Connection] = []
        self.warnings: list[str] = []
        self.budget = self.strangers = Budget(1 << 30, 1 << 30, "all")

    def forget(self, connection: Connection) -> None:
        self.gone.append(connection)

    def warn(self, peer: str, cause: str) -> None:
        self.warnings.append(f"{peer}: {cause}")


class Lines:
    """Takes bytes up to a full stop, and answers each such word with itself in capitals."""

    pumps = True
    quick = None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.deadline: float | None = None
        self.is_closed = False
        self.to_pump: list[bytes] = []
        self.ticks: list[float] = []

    def receive(self, data: memoryview) -> int:
        offset = 0
        while not self.connection.is_paused and b"." in (rest := bytes(data[offset:])):
            word = rest[: rest.index(b".") + 1]
            offset += len(word)
            if word == b"bad.":
                raise RemoteProtocolError("a bad word")
            if word == b"broken.":
                raise KeyError(word)
            if word == b"pause.":
                self.connection.pause("test")
            if word == b"successor.":
                self.connection.session = Echo(self.connection)
                break
            self.connection.send(word.upper())
        return offset

    def pump(self) -> None:
        if self.to_pump:
            self.connection.send(self.to_pump.pop(0))

    def tick(self, now: float) -> None:
        self.ticks.append(now)
        self.deadline = None

    @property
    def written_gate(self) -> int:
        return 0

    def closed(self) -> None:
        self.is_closed = True


class Echo(Lines):
    def receive(self, data: memoryview) -> int:
        self.connection.send(data)
        return len(data)


Story = Callable[[Host, Connection, Lines, socket.socket], Awaitable[None]]


def run(story: Story) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        host = Host()
        connection = Connection(host, ours, "peer:1", ConnectionInbox(memoryview(bytearray(4096))))  # type: ignore[arg-type]
        connection.session = session = Lines(connection)
        connection.start()
        try:
            await asyncio.wait_for(story(host, connection, session, theirs), 120)
        finally:
            connection.drop("over", fault=False)
            theirs.close()

    asyncio.run(main())


async def read(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not piece:
            break
        data += piece
    return data


async def send(sock: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(sock, data)


def test_words_in_pieces_are_answered_whole() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        for piece in (b"he", b"llo.wor", b"ld."):
            await send(peer, piece)
        assert await read(peer, 12) == b"HELLO.WORLD."

    run(story)


def test_an_answer_leaves_when_its_batch_is_durable_and_not_before() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        connection.send(b"gated", gate=3)
        connection.send(b"behind")
        host.committer.reach(2)
        await send(peer, b"x.")
        await asyncio.sleep(0)
        try:
            peer.recv(1)
            raise AssertionError("something left before its batch was durable")
        except BlockingIOError:
            pass
        host.committer.reach(3)
        assert await read(peer, 13) == b"gatedbehindX."

    run(story)


def test_what_came_while_paused_is_handed_over_on_resume() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        await send(peer, b"a.pause.b.")
        assert await read(peer, 8) == b"A.PAUSE."
        connection.resume("test")
        assert await read(peer, 2) == b"B."

    run(story)


def test_a_protocol_error_closes_with_one_line_that_names_peer_and_cause() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        await send(peer, b"bad.")
        assert await read(peer, 1) == b""
        await asyncio.sleep(0)
        assert host.warnings == ["peer:1: a bad word"] and session.is_closed and host.gone == [connection]

    run(story)


def test_what_stands_behind_a_pause_and_can_not_be_measured_closes_with_a_line_as_well() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        await send(peer, b"pause." + b"\xff" * 3000)
        assert await read(peer, 7) == b"PAUSE."
        await asyncio.sleep(0)
        assert len(host.warnings) == 1 and "claims a body of 4294967295 bytes" in host.warnings[0]

    run(story)


def test_a_fault_of_ours_ends_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        await send(peer, b"fine.broken.")
        assert await read(peer, 100) == b"FINE."
        await asyncio.sleep(0)
        assert session.is_closed and connection.is_closed

    run(story)
    assert "peer:1: the session failed" in caplog.text


def test_the_rest_of_a_receive_goes_to_the_session_that_replaced_the_first() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        await send(peer, b"successor.lower")
        assert await read(peer, 5) == b"lower"

    run(story)


def test_output_is_pulled_until_there_is_none() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        session.to_pump = [b"1" * 100_000, b"2" * 100_000, b"3"]
        connection.wake()
        assert await read(peer, 200_001) == b"1" * 100_000 + b"2" * 100_000 + b"3"

    run(story)


def test_whoever_has_much_to_send_lets_the_others_have_their_turn() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        session.to_pump = [b"%d" % (number % 10) for number in range(3 * module.PUMPS_PER_TURN)]
        connection.wake()
        left = [len(session.to_pump)]
        while session.to_pump:
            await asyncio.sleep(0)
            left.append(len(session.to_pump))
        assert max(before - after for before, after in pairwise(left)) == module.PUMPS_PER_TURN
        assert await read(peer, 3 * module.PUMPS_PER_TURN) == b"012345678901"

    run(story)


def test_a_session_whose_time_was_over_before_it_sent_anything_is_pumped_again() -> None:
    class Late(Lines):
        pumps_before = 3

        def pump(self) -> None:
            if self.pumps_before:
                self.pumps_before -= 1
                self.connection._turn_ends = 0.0
            else:
                super().pump()

    async def story(host: Host, connection: Connection, _: Lines, peer: socket.socket) -> None:
        connection.session = session = Late(connection)
        session.to_pump = [b"here"]
        connection.wake()
        assert await read(peer, 4) == b"here"

    run(story)


def test_who_has_more_to_send_after_a_turn_stands_behind_the_others() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        session.to_pump = [b"x"] * (2 * module.PUMPS_PER_TURN)
        connection.wake()
        seen: list[int] = []
        while len(session.to_pump) > module.PUMPS_PER_TURN:
            await asyncio.sleep(0)
        host.run_queue.first(lambda: seen.append(len(session.to_pump)))
        assert await read(peer, 2 * module.PUMPS_PER_TURN) == b"x" * 2 * module.PUMPS_PER_TURN
        assert seen == [module.PUMPS_PER_TURN]

    run(story)


def test_a_peer_that_does_not_read_is_not_read_either() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        connection.send(b"z" * (module.QUEUED_BYTES_MAX + (1 << 20)))
        assert connection.is_paused
        await send(peer, b"x.")
        left = module.QUEUED_BYTES_MAX + (1 << 20) + 2
        data = await read(peer, left)
        assert data.endswith(b"zX.") and not connection.is_paused

    run(story)


def test_whoever_stops_sending_still_gets_its_answers() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        connection.send(b"gated.", gate=1)
        await send(peer, b"last.")
        peer.shutdown(socket.SHUT_WR)
        while not connection._eof:
            await asyncio.sleep(0)
        host.committer.reach(1)
        assert await read(peer, 100) == b"gated.LAST."

    run(story)


def test_a_peer_that_ends_its_input_waits_for_what_others_have_to_say_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        answered = False
        connection.awaits_others = lambda: not answered
        await send(peer, b"word.")
        peer.shutdown(socket.SHUT_WR)
        while not connection._eof:
            await asyncio.sleep(0)
        assert await read(peer, 5) == b"WORD." and connection.is_paused and not connection.is_closed
        if is_answered:
            connection.send(b"theirs.")
            answered = True
            connection.others_answered()
            assert await read(peer, 100) == b"theirs."
        else:
            assert await read(peer, 100) == b""
        assert connection.is_closed

    for is_answered in (True, False):
        monkeypatch.setattr(module, "FINISH_SECONDS", 10.0 if is_answered else 0.05)
        run(story)


def test_a_deadline_that_moved_later_is_kept() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        now = host.loop.time()
        session.deadline = now + 0.01
        connection.rearm()
        session.deadline = now + 0.05
        while not session.ticks:
            await asyncio.sleep(0)
        assert session.ticks[0] >= now + 0.05

    run(story)


def test_who_asked_for_much_the_last_time_waits_behind_those_who_did_not() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        greedy = Connection(host, ours, "peer:2", ConnectionInbox(memoryview(bytearray(4096))))  # type: ignore[arg-type]
        greedy.session = Slow(greedy)
        greedy.start()
        host.run_queue.behind(lambda: None)  # it is one of several
        theirs.send(b"long.")
        greedy.readable()
        assert await read(theirs, 5) == b"LONG."
        order: list[str] = []
        connection.session = Told(connection, order, "modest")
        greedy.session = Told(greedy, order, "greedy")
        host.run_queue.spend(1.0)  # this iteration is used up: both stand in line, the greedy one first
        theirs.send(b"more.")
        greedy.readable()
        peer.send(b"less.")
        connection.readable()
        await read(theirs, 5)
        assert order == ["modest", "greedy"]
        greedy.drop("over", fault=False)
        theirs.close()

    run(story)


def test_who_was_interrupted_for_longer_than_a_slice_has_not_asked_for_much() -> None:
    async def story(host: Host, connection: Connection, session: Lines, peer: socket.socket) -> None:
        connection.session = Interrupted(connection)
        host.run_queue.behind(lambda: None)
        peer.send(b"short.")
        connection.readable()
        assert await read(peer, 6) == b"SHORT."
        order: list[str] = []
        connection.session = Told(connection, order, "modest")
        host.run_queue.spend(1.0)
        host.run_queue.behind(lambda: order.append("behind"))
        peer.send(b"more.")
        connection.readable()
        await read(peer, 5)
        assert order == ["modest", "behind"]

    run(story)


def test_what_takes_long_stands_once_behind_those_in_line() -> None:
    async def story(host: Host, connection: Connection, _: Lines, peer: socket.socket) -> None:
        order: list[str] = []
        connection.session = Considerate(connection, order, "large")
        assert not connection.others_wait()
        host.run_queue.first(lambda: order.append("first"))
        host.run_queue.behind(lambda: order.append("behind"))
        peer.send(b"large.")
        connection.readable()
        host.run_queue.behind(lambda: order.append("who came later"))
        await read(peer, 6)
        await asyncio.sleep(0)
        assert order == ["first", "behind", "large", "who came later"]

    run(story)


class Slow(Lines):
    def receive(self, data: memoryview) -> int:
        ends = time.thread_time() + 2 * SLICE_SECONDS
        while time.thread_time() < ends:
            pass
        return super().receive(data)


class Interrupted(Lines):
    def receive(self, data: memoryview) -> int:
        time.sleep(2 * SLICE_SECONDS)
        return super().receive(data)


class Told(Lines):
    def __init__(self, connection: Connection, order: list[str], name: str) -> None:
        super().__init__(connection)
        self.order, self.name = order, name

    def receive(self, data: memoryview) -> int:
        self.order.append(self.name)
        return super().receive(data)


class Considerate(Told):
    """Takes nothing while others wait."""

    def receive(self, data: memoryview) -> int:
        if self.connection.others_wait():
            self.connection.stand_behind()
            return 0
        return super().receive(data)


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection that holds little on its way."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.socket()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        theirs.connect(listener.getsockname())
        ours, _ = listener.accept()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    ours.setblocking(False)
    return ours, theirs


def test_a_reset_that_comes_while_it_stands_in_line_ends_the_connection_and_nothing_else() -> None:
    """libuv tells of it once, to both who wait for the socket; who puts that off finds a handle that is closed."""

    async def story() -> None:
        host, (ours, theirs) = Host(), tcp_pair()
        connection = Connection(host, ours, "peer:1", ConnectionInbox(memoryview(bytearray(4096))))  # type: ignore[arg-type]
        connection.session = Lines(connection)
        connection.start()
        connection.send(bytes(1 << 20))
        assert not connection.writable
        await asyncio.sleep(0)
        host.run_queue.is_spent = True
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
        theirs.close()
        while not connection.is_closed:
            await asyncio.sleep(0.001)
        assert host.gone == [connection]

    faults: list[dict[str, object]] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        await asyncio.wait_for(story(), 120)

    uvloop.run(main())
    assert faults == []


def test_a_connection_that_goes_over_to_another_bucket_waits_for_that_ones_batches() -> None:
    async def story(host: Host, connection: Connection, lines: Lines, peer: socket.socket) -> None:
        first, other, counted = host.committer, Gates(), Requests()
        connection.send(b"before.", 3)
        first.durable = 3  # on disk, and nobody has come to tell the connection
        connection.serve(other, counted)  # type: ignore[arg-type]
        connection.send(b"after.", 1)
        assert await read(peer, 7) == b"before."
        assert first.waiting == set() and other.waiting == {connection}
        other.reach(1)
        assert await read(peer, 6) == b"after."
        assert counted.sent_bytes == 13 and host.requests.sent_bytes == 0

    run(story)
