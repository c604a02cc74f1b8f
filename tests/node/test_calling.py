"""Calling another node: over a pair of sockets, however the answers are cut, and when nobody answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from headwater.errors import BadFrame, ConnectionLost, KeyNotFound, RemoteProtocolError
from headwater.node.calling import connect, converse, keep_asking
from headwater.protocol.handshake import Conversation, refused
from headwater.transport.backoff import Backoff
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

PEER = "10.0.0.2:11210"
FIRST = Frame(0x80, Opcode.HELLO, b"us", opaque=1)
SECOND = Frame(0x80, Opcode.SELECT_BUCKET, b"beer", opaque=2)


def two_questions() -> Conversation[list[int]]:
    """Ask twice; the statuses of the answers."""
    first = yield FIRST
    second = yield SECOND
    return [first.status, second.status]


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours and the peer's."""
    pair = socket.socketpair()
    for end in pair:
        end.setblocking(False)
    yield pair
    for end in pair:
        end.close()


Peer = Callable[[asyncio.AbstractEventLoop, socket.socket], Awaitable[None]]


def talk(ends: tuple[socket.socket, socket.socket], peer: Peer) -> list[int]:
    """Have the conversation with such a peer."""

    async def both() -> list[int]:
        loop = asyncio.get_running_loop()
        ours, theirs = ends
        answering = asyncio.ensure_future(peer(loop, theirs))
        try:
            return await asyncio.wait_for(converse(loop, ours, two_questions(), PEER), 120)
        finally:
            await answering

    return asyncio.run(both())


async def heard(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> Frame:
    return Frame.decode(await loop.sock_recv(sock, 4096))


def test_each_question_waits_for_the_answer_before_it(ends: tuple[socket.socket, socket.socket]) -> None:
    async def peer(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        for expected, status in ((FIRST, Status.SUCCESS), (SECOND, Status.KEY_ENOENT)):
            assert await heard(loop, sock) == expected
            await loop.sock_sendall(sock, response(expected, status).encode())

    assert talk(ends, peer) == [0, 1]


def test_answers_may_come_byte_by_byte(ends: tuple[socket.socket, socket.socket]) -> None:
    async def peer(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        for _ in range(2):
            asked = await heard(loop, sock)
            for byte in response(asked, value=b"granted").encode():
                await loop.sock_sendall(sock, bytes([byte]))
                await asyncio.sleep(0)

    assert talk(ends, peer) == [0, 0]


def test_a_peer_that_hangs_up_is_named(ends: tuple[socket.socket, socket.socket]) -> None:
    async def peer(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        asked = await heard(loop, sock)
        await loop.sock_sendall(sock, response(asked).encode()[:23])
        sock.close()

    with pytest.raises(ConnectionLost, match=f"{PEER}: it hung up before the connection was set up"):
        talk(ends, peer)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Frame(0x81, Opcode.HELLO, opaque=2).encode(), RemoteProtocolError),
        (Frame(0x81, Opcode.NOOP, opaque=1).encode(), RemoteProtocolError),
        (b"HTTP/1.1 400 Bad Request\r\n", BadFrame),
        (bytes.fromhex("811f 0000 00 00 0000 ffffffff 00000001 0000000000000000"), BadFrame),
    ],
    ids=["another opaque", "another opcode", "no frame", "a body of 4 GiB"],
)
def test_what_is_no_answer_ends_it(
    ends: tuple[socket.socket, socket.socket], answer: bytes, error: type[Exception]
) -> None:
    async def peer(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        await heard(loop, sock)
        await loop.sock_sendall(sock, answer)

    with pytest.raises(error):
        talk(ends, peer)


def test_what_the_conversation_raises_is_passed_on(ends: tuple[socket.socket, socket.socket]) -> None:
    def conversation() -> Conversation[None]:
        raise refused("select the bucket", (yield FIRST))

    async def work() -> None:
        loop = asyncio.get_running_loop()
        asking = asyncio.ensure_future(converse(loop, ends[0], conversation(), PEER))
        asked = await heard(loop, ends[1])
        await loop.sock_sendall(ends[1], response(asked, Status.KEY_ENOENT).encode())
        await asyncio.wait_for(asking, 120)

    with pytest.raises(KeyNotFound, match="select the bucket"):
        asyncio.run(work())


def test_a_connection_does_not_block(ends: tuple[socket.socket, socket.socket]) -> None:
    async def work() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            made = await connect(asyncio.get_running_loop(), *listener.getsockname())
            with made:
                assert not made.getblocking() and made.getpeername() == listener.getsockname()
                listener.accept()[0].close()

    asyncio.run(work())


def test_where_nobody_listens_an_error_is_raised_and_no_socket_is_left_open() -> None:
    async def work() -> None:
        await connect(asyncio.get_running_loop(), "127.0.0.1", 1)

    with pytest.raises(ConnectionRefusedError):
        asyncio.run(work())


def test_a_call_that_the_system_connects_to_itself_finds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody listens, the port that is called may be the caller's own; here it is made so."""
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    port = made.getsockname()[1]

    async def call_it() -> None:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(socket, "socket", lambda family, kind: made)
        with pytest.raises(ConnectionRefusedError):
            await connect(loop, "127.0.0.1", port)

    asyncio.run(call_it())
    assert made.fileno() == -1


def test_a_host_is_called_at_the_first_of_its_addresses_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            there = listener.getsockname()

            async def found(*_: object, **__: object) -> list[tuple[object, ...]]:
                kind = socket.SOCK_STREAM
                return [(socket.AF_INET, kind, 6, "", ("127.0.0.1", 1)), (socket.AF_INET, kind, 6, "", there)]

            monkeypatch.setattr(loop, "getaddrinfo", found)
            with await connect(loop, "both.example", there[1]) as made:
                assert made.getpeername() == there

    asyncio.run(work())


@pytest.mark.parametrize("host", ["a..b", "x" * 70])
def test_a_host_that_can_be_no_name_is_an_error_of_the_system_as_an_unknown_one_is(host: str) -> None:
    async def work() -> None:
        await connect(asyncio.get_running_loop(), host, 1)

    with pytest.raises(OSError, match="not known"):
        asyncio.run(work())


def test_a_node_is_asked_ever_more_seldom_while_it_fails_and_at_its_pace_when_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers: list[Exception | None] = [OSError("a"), KeyNotFound("c"), TimeoutError("b"), None, None, OSError("c")]
    pauses, problems = list[float](), list[str]()

    async def ask() -> None:
        if answers and (error := answers.pop(0)):
            raise error

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not answers:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    backoff = Backoff(1.0, 3.0, chance=lambda: 1.0)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(keep_asking(ask, lambda error: problems.append(type(error).__name__), backoff, 10.0))
    assert [pauses[each] for each in (0, 1, 2, 5)] == [1.0, 2.0, 3.0, 1.0]
    assert all(5.0 <= pauses[each] <= 10.0 for each in (3, 4))
    assert problems == ["OSError", "KeyNotFound", "TimeoutError", "OSError"]


def test_a_fault_of_ours_ends_the_asking() -> None:
    async def ask() -> None:
        raise ValueError("never seen before")

    with pytest.raises(ValueError, match="never seen before"):
        asyncio.run(keep_asking(ask, lambda error: None, Backoff()))
