"""Who has not logged in: small frames, little memory, not for long, and never in anybody's way."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from struct import pack

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire.header import HEADER, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.replication.support import until
from tests.node.wire import Client

NOOP = Frame(0x80, Opcode.NOOP).encode()
LIMIT = 64 << 10


@pytest.fixture
def users(tmp_path: Path) -> Path:
    file = tmp_path / "users"
    file.write_text("ann:secret\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def node(users: Path) -> Iterator[Node]:
    with testing.node(vbuckets=4, users_file=users) as running:
        yield running


def header(opcode: int, body: int, key: int = 0) -> bytes:
    return HEADER.pack(0x80, opcode, key, 0, 0, 0, body, 0, 0)


def resident(node: Node) -> int:
    resident_pages, file_pages = Path(f"/proc/{node.pid}/statm").read_text().split()[1:3]
    return (int(resident_pages) - int(file_pages)) * 4096


def log_in(client: Client) -> None:
    assert client.ask(Opcode.SASL_AUTH, key=b"PLAIN", value=b"\0ann\0secret").status == 0


def is_hung_up(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


@pytest.mark.parametrize("opcode", [Opcode.HELLO, Opcode.SASL_AUTH, Opcode.SET])
def test_a_large_frame_of_a_stranger_ends_at_its_header(node: Node, opcode: int) -> None:
    with Client(node.port) as client:
        client.send(header(opcode, LIMIT))
        assert is_hung_up(client.socket)
    until(lambda: "before it has logged in" in node.log, "it is told")
    with Client(node.port) as client:
        log_in(client)
        assert client.ask(Opcode.SET, key=b"k", extras=bytes(8), value=bytes(2 * LIMIT)).status == 0


@pytest.mark.parametrize("named", [True, False], ids=["stranger", "user"])
def test_hello_takes_no_endless_list_of_features(node: Node, named: bool) -> None:
    with Client(node.port) as client:
        if not named:
            log_in(client)
        assert client.ask(Opcode.HELLO, value=pack(">H", 0xEE) * 500).status == 0
        assert client.ask(Opcode.HELLO, value=pack(">H", 0xEE) * 600).status in (Status.EINVAL, Status.E2BIG)


def test_a_hello_of_many_megabytes_holds_nobody_up(node: Node) -> None:
    with Client(node.port) as guest, Client(node.port) as bystander:
        log_in(guest)
        before = processor_seconds(node)
        guest.send(Frame(0x80, Opcode.HELLO, value=pack(">H", 0xEE) * 10_000_000).encode())
        answer = guest.read()
        assert answer is not None and answer.status
        assert bystander.ask(Opcode.NOOP).status == 0
        assert processor_seconds(node) - before < 1.0


def processor_seconds(node: Node) -> float:
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def test_who_does_not_log_in_in_time_is_let_go_and_makes_room(users: Path) -> None:
    with testing.node(vbuckets=1, users_file=users, login_seconds=3, connections_max=8) as node, ExitStack() as stack:
        ann = stack.enter_context(Client(node.port))
        log_in(ann)
        strangers = [stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120)) for _ in range(7)]
        strangers[0].sendall(b"GET /pools HTTP/1.1\r\n")  # half a request
        talking = strangers[1:4]  # a byte, or a no-op, now and then does not help
        while talking:
            talking = [each for each in talking if is_sent(each, NOOP)]
            time.sleep(0.1)
        assert all(is_over(stranger) for stranger in strangers)
        assert ann.ask(Opcode.NOOP).status == 0
        until(lambda: "did not log in" in node.log, "it is told")
        until(lambda: is_let_in(node), "there is room")


def is_sent(sock: socket.socket, data: bytes) -> bool:
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def is_over(sock: socket.socket) -> bool:
    """Read to the end; whether there is one, in time."""
    try:
        while sock.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


def test_guesses_on_many_connections_of_one_address_are_judged_one_after_the_other(users: Path) -> None:
    """Each guess is another: one that was found to be wrong is refused again at once, which tells nothing new."""
    guesses = [
        Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0ann\0wrong %d" % number).encode() for number in range(200)
    ]
    with testing.node(vbuckets=4, users_file=users, login_seconds=4) as node:
        with ExitStack() as stack:
            guessers = [stack.enter_context(Client(node.port)) for _ in range(40)]
            for number, each in enumerate(guessers):
                each.send(b"".join(guesses[number * 5 : number * 5 + 5]))
                each.socket.settimeout(0.001)
            end, answered = time.monotonic() + 4, 0
            while time.monotonic() < end or not answered:
                for guesser in guessers:
                    with suppress(TimeoutError, ConnectionError):
                        answered += len(guesser.socket.recv(1 << 16)) // 24
            assert answered <= 30
        until(lambda: "wait to be judged" in node.log, "it is told")
        # The address is slow for a while; the account is open to all others.
        until(lambda: is_let_in(node), "it is let in again")


def is_let_in(node: Node) -> bool:
    with suppress(ConnectionError), Client(node.port) as client:
        client.send(Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=b"\0ann\0secret").encode())
        answer = client.read()
        return answer is not None and answer.status == 0
    return False


def test_the_memory_of_all_strangers_is_bounded(node: Node) -> None:
    before = resident(node)
    with ExitStack() as stack:
        for _ in range(900):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
            try:
                sock.sendall(header(Opcode.HELLO, LIMIT - 100) + bytes(LIMIT - 200))
            except OSError:
                continue
        with Client(node.port) as client:
            log_in(client)
            assert client.ask(Opcode.NOOP).status == 0
        assert resident(node) - before < 64 << 20
    until(lambda: "not logged in hold more than" in node.log, "it is told")


def test_answers_that_strangers_do_not_read_are_bounded(node: Node) -> None:
    before = resident(node)
    with ExitStack() as stack:
        asks = Frame(0x80, Opcode.GET_ERROR_MAP, value=pack(">H", 2)).encode() * 1500
        for _ in range(20):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 120))
            sock.settimeout(0.2)
            try:
                while True:
                    sock.sendall(asks)
            except OSError:
                continue
        with Client(node.port) as client:
            log_in(client)
        assert resident(node) - before < 64 << 20
