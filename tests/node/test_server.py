"""A real node on a real socket: pipelines, limits, liars, and many clients."""

from __future__ import annotations

import random
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from struct import pack
from threading import Thread
from types import SimpleNamespace

import pytest

from harness.nodes import until
from headwater import testing
from headwater.errors import OptionError
from headwater.node.config import NodeConfig
from headwater.node.connections.places import PAGES_RESERVED
from headwater.node.server import Server
from headwater.node.users.logins import Users
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from tests.node.wire import Client

NOOP = Frame(0x80, 0x0A, opaque=9).encode()


@pytest.fixture(scope="module")
def node() -> Iterator[testing.Node]:
    with testing.node(vbuckets=16) as running:
        yield running


def test_a_pipeline_is_answered_in_order(node: testing.Node) -> None:
    """SETQ ok + SETQ wrong vbucket + NOOP in one write, byte for byte as the reference server answers."""
    with Client(node.port) as client:
        client.send(
            bytes.fromhex("80110002080000000000000b000000070000000000000000000000000000000071317680")
            + bytes.fromhex("110002080003e80000000b0000000800000000000000000000000000000000713276")
            + bytes.fromhex("800a00000000000000000000000000090000000000000000")
        )
        assert [frame.encode().hex() for frame in (client.read(), client.read()) if frame] == [
            "811100000000000700000000000000080000000000000000",
            "810a00000000000000000000000000090000000000000000",
        ]


def test_one_byte_at_a_time_is_as_good_as_all_at_once(node: testing.Node) -> None:
    with Client(node.port) as client:
        client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in Frame(0x80, 1, b"slow", bytes(8), b"value", vbucket=1).encode() + NOOP:
            client.send(bytes([byte]))
        assert (client.read() or NOOP).opcode == 1 and (client.read() or NOOP).opcode == 0x0A  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "0x47, which is no magic"),
        (b"\x00" * 24, "0x00, which is no magic"),
        (pack(">BBHBBHIIQ", 0x80, 0, 10, 8, 0, 0, 5, 0, 0), "do not fit into a body of 5"),
        (pack(">BBHBBHIIQ", 0x80, 1, 1, 8, 0, 0, (30 << 20) + 1, 0, 0), "31457281"),
        (pack(">BBHBBHIIQ", 0x80, 1, 1, 8, 0, 0, 0xFFFF_FFFF, 0, 0), "4294967295"),
        (pack(">BBHBBHIIQ", 0x08, 1, 0xFF01, 8, 0, 0, 20, 0, 0), "do not fit into a body of 20"),
    ],
)
def test_garbage_and_lying_lengths_close_with_a_line_that_names_peer_and_cause(
    node: testing.Node, data: bytes, cause: str
) -> None:
    with Client(node.port) as client:
        peer = "{}:{}".format(*client.socket.getsockname())
        client.send(NOOP + data)
        assert (client.read() or Frame(0x80, 0)).opcode == 0x0A
        assert client.read() is None
    assert any(peer in line and cause in line for line in node.log.splitlines())


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([b"version\r\n"], b"VERSION 7.6.0-0000-headwater\r\n"),
        ([b"set k 0 0 5 noreply\r\nhello\r\nget k\r\n"], b"VALUE k 0 5\r\nhello\r\nEND\r\n"),
        ([b"g", b"et some-key-of-many-letters\r", b"\n"], b"END\r\n"),
    ],
    ids=["short", "a write that wants no answer", "in pieces"],
)
def test_who_speaks_the_text_protocol_is_answered_in_it_on_the_same_port(
    node: testing.Node, pieces: list[bytes], answer: bytes
) -> None:
    with socket.create_connection((node.host, node.port), 120) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            line.sendall(piece)
        line.sendall(b"quit\r\n")
        assert b"".join(iter(lambda: line.recv(4096), b"")) == answer


def test_a_large_value_by_text_comes_and_goes_whole_and_a_flood_without_answers_is_all_there(
    node: testing.Node,
) -> None:
    value = bytes(range(256)) * (20 << 12)
    with socket.create_connection((node.host, node.port), 120) as line:
        line.sendall(b"set large 0 0 %d\r\n" % len(value) + value + b"\r\n")
        stream = line.makefile("rb")
        assert stream.readline() == b"STORED\r\n"
        flood = b"".join(b"set flood-%d 0 0 100 noreply\r\n%b\r\n" % (each, b"x" * 100) for each in range(5000))
        line.sendall(flood + b"get large\r\nget" + b"".join(b" flood-%d" % each for each in range(5000)) + b"\r\n")
        assert stream.readline() == b"VALUE large 0 %d\r\n" % len(value)
        assert stream.read(len(value) + 7) == value + b"\r\nEND\r\n"
        assert sum(each.startswith(b"VALUE") for each in iter(stream.readline, b"END\r\n")) == 5000
        stream.close()


def test_who_asks_by_text_for_more_than_is_read_holds_no_more_memory_than_others(node: testing.Node) -> None:
    with socket.create_connection((node.host, node.port), 120) as line, line.makefile("rb") as stream:
        line.sendall(b"set m 0 0 1000000\r\n" + b"x" * 1000000 + b"\r\n")
        assert stream.readline() == b"STORED\r\n"
        before = resident(node)
        line.sendall(b"get" + b" m" * 500 + b"\r\n")
        for each in range(500):
            assert len(stream.read(1000021)) == 1000021
            assert each % 25 or resident(node) - before < 40 << 20, "500 MB are asked for"
        assert stream.readline() == b"END\r\n"


def test_a_conversation_in_frames_is_never_answered_in_text(node: testing.Node) -> None:
    with Client(node.port) as client:
        client.send(NOOP)
        assert (client.read() or Frame(0x80, 0)).opcode == 0x0A
        client.send(b"set k 0 0 5 noreply\r\nhello\r\n")
        assert client.socket.recv(4096) == b""


def test_a_claim_without_bytes_costs_nothing_and_blocks_nobody(node: testing.Node) -> None:
    before = resident(node)
    with ExitStack() as stack:
        for _ in range(40):
            liar = stack.enter_context(Client(node.port))
            liar.send(pack(">BBHBBHIIQ", 0x80, 1, 1, 8, 0, 0, 29 << 20, 0, 0) + b"x" * 100)
        assert stack.enter_context(Client(node.port)).ask(0x0A).status == 0
        assert resident(node) < before + (64 << 20)


def resident(node: testing.Node) -> int:
    """Bytes of memory the node's process really uses."""
    return int(Path(f"/proc/{node.pid}/statm").read_text().split()[1]) * 4096


def test_a_frame_that_comes_in_many_pieces_and_a_large_value(node: testing.Node) -> None:
    value = random.Random(1).randbytes(20 << 20)
    with Client(node.port) as client:
        assert client.ask(1, key=b"large", extras=bytes(8), value=value, vbucket=2).status == 0
        assert client.ask(0, key=b"large", vbucket=2).value == value


def test_more_than_an_arena_of_answers_comes_back_whole(node: testing.Node) -> None:
    with Client(node.port) as client:
        client.ask(1, key=b"k", extras=bytes(8), value=b"v" * 1000, vbucket=3)
        sender = Thread(target=client.send, args=(Frame(0x80, 0, b"k", vbucket=3).encode() * 20_000 + NOOP,))
        sender.start()
        answers = 0
        while (frame := client.read()) is not None and frame.opcode == 0:
            assert len(frame.value) == 1000
            answers += 1
        sender.join()
        assert answers == 20_000


def test_pipelined_quiet_sets_are_all_there_after_the_noop(node: testing.Node) -> None:
    count = 50_000
    with Client(node.port) as client:
        client.send(
            b"".join(
                Frame(0x80, 0x11, b"bulk-%d" % number, bytes(8), b"%d" % number, vbucket=number % 16).encode()
                for number in range(count)
            )
            + NOOP
        )
        assert (client.read() or Frame(0x80, 0)).opcode == 0x0A
        for number in range(0, count, 997):
            assert client.ask(0, key=b"bulk-%d" % number, vbucket=number % 16).value == b"%d" % number


def test_fifty_clients_one_request_at_a_time(node: testing.Node) -> None:
    def work(number: int) -> None:
        with Client(node.port) as client:
            for turn in range(20):
                key, value = b"c%d" % number, b"%d-%d" % (number, turn)
                assert client.ask(1, key=key, extras=bytes(8), value=value, vbucket=number % 16).status == 0
                assert client.ask(0, key=key, vbucket=number % 16).value == value
        done.append(number)

    done: list[int] = []
    threads = [Thread(target=work, args=(number,)) for number in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(50))


def test_whoever_only_sends_and_then_half_closes_gets_every_answer(node: testing.Node) -> None:
    with Client(node.port) as client:
        client.send(Frame(0x80, 1, b"half", bytes(8), b"v").encode() + NOOP)
        client.socket.shutdown(socket.SHUT_WR)
        assert [frame.opcode for frame in (client.read(), client.read()) if frame] == [1, 0x0A]
        assert client.read() is None


def test_one_connection_too_many_is_closed_at_once() -> None:
    with testing.node(vbuckets=1, connections_max=3) as node, ExitStack() as stack:
        clients = [stack.enter_context(Client(node.port)) for _ in range(3)]
        assert all(client.ask(0x0A).status == 0 for client in clients)
        with Client(node.port) as late:
            assert late.read() is None
        until(lambda: "3 connections are open, the limit" in node.log, "it is told")
        clients[0].socket.close()
        found = False
        while not found:
            with Client(node.port) as again, suppress(OSError):
                again.send(NOOP)
                found = again.read() is not None
        assert all(client.ask(0x0A).status == 0 for client in clients[1:])


def test_a_node_with_as_many_connections_as_it_may_have_is_alive_for_who_watches_it() -> None:
    """A supervisor whose question is refused ends the node, and with it every connection that was served."""
    with testing.node(vbuckets=1, connections_max=3, http_port=0) as node, ExitStack() as stack:
        clients = [stack.enter_context(Client(node.port)) for _ in range(3)]
        assert all(client.ask(0x0A).status == 0 for client in clients)
        with Client(node.port) as late:
            assert late.read() is None
        with urllib.request.urlopen(f"http://{node.host}:{node.http_port}/healthz", timeout=60) as page:
            assert page.status == 200
        for _ in range(PAGES_RESERVED + 1):
            stack.enter_context(Client(node.http_port))
        until(lambda: f"{3 + PAGES_RESERVED} connections are open, the limit" in node.log, "those have a limit, too")
        assert all(client.ask(0x0A).status == 0 for client in clients)


def test_members_and_administrators_come_in_though_clients_have_filled_the_node(tmp_path: Path) -> None:
    """Else nobody replicates, and nobody can fail over, for as long as the clients stay."""
    file = tmp_path / "users"
    file.write_text("root:secret\nann:secret\n")
    file.chmod(0o600)
    with testing.node(vbuckets=1, users_file=file, connections_max=3) as node, ExitStack() as stack:
        clients = [stack.enter_context(Client(node.port)) for _ in range(3)]
        assert all(logs_in(client, "ann") for client in clients)
        operator, late = (stack.enter_context(Client(node.port)) for _ in range(2))
        assert logs_in(operator, "root") and operator.ask(Opcode.NOOP).status == 0
        assert not logs_in(late, "ann")
        silent = stack.enter_context(Client(node.port))
        assert silent.read() is None
        until(lambda: "connections are open, the limit, but for members" in node.log, "who is turned away is told")
        until(lambda: "it did not log in within 3 s" in node.log, "so is who says nothing")
        assert all(client.ask(Opcode.NOOP).status == 0 for client in (*clients, operator))


def logs_in(client: Client, user: str) -> bool:
    """Log in; False where the node hangs up instead."""
    try:
        client.send(Frame(0x80, Opcode.SASL_AUTH, b"PLAIN", value=f"\0{user}\0secret".encode()).encode())
        answer = client.read()
    except OSError:
        return False
    return answer is not None and answer.status == 0


def test_the_node_tells_of_its_connections_and_what_memory_they_hold() -> None:
    with (
        testing.node(vbuckets=1, connections_max=2, memory_mib=100) as node,
        Client(node.port) as client,
        Client(node.port) as silent,
    ):
        assert silent.ask(0x0A).status == 0
        with Client(node.port) as late:
            assert late.read() is None
        told = {}
        answer = client.ask(0x10)
        while answer is not None and answer.key:
            told[answer.key.decode()] = int(answer.value) if answer.value.isdigit() else answer.value
            answer = client.read()
    assert (told["curr_connections"], told["total_connections"], told["rejected_connections"]) == (2, 2, 1)
    assert told["ep_connections_memory_max"] == 100 << 20 and 0 <= told["ep_strangers_memory"] < 1 << 20
    assert 0 <= told["uptime"] < 600 and told["ep_scrub_runs"] == told["ep_slow_streams_ended"] == 0


def test_the_idle_are_closed_where_that_is_configured() -> None:
    with testing.node(vbuckets=1, idle_seconds=2) as node, Client(node.port) as client:
        assert client.ask(0x0A).status == 0
        assert client.read() is None
        until(lambda: "said nothing for" in node.log, "it is told")


def test_users_are_asked_for_their_password(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("users") / "users"
    file.write_text("ann:secret\n")
    file.chmod(0o600)
    with testing.node(vbuckets=1, users_file=file) as node, Client(node.port) as client:
        assert client.ask(0, key=b"k").status == 0x24
        assert client.ask(0x21, key=b"PLAIN", value=b"\0ann\0wrong").status == 0x20
        assert client.ask(0x21, key=b"PLAIN", value=b"\0ann\0secret").status == 0
        assert client.ask(0, key=b"k").status == 1
        assert "secret" not in node.log


def test_a_pipelined_bootstrap_is_answered_in_order(node: testing.Node) -> None:
    with Client(node.port) as client:
        frames = [
            Frame(0x80, 0x1F, b"sdk", value=bytes.fromhex("00080007000b000a0004"), opaque=1),
            Frame(0x80, 0xFE, value=b"\0\2", opaque=2),
            Frame(0x80, 0x20, opaque=3),
            Frame(0x80, 0x21, b"PLAIN", value=b"\0u\0p", opaque=4),
            Frame(0x80, 0x89, b"default", opaque=5),
            Frame(0x80, 0xB5, opaque=6),
        ]
        client.send(b"".join(frame.encode() for frame in frames))
        answers = [client.read() for _ in frames]
        assert [(answer.opaque, answer.status) for answer in answers if answer] == [(n, 0) for n in range(1, 7)]


def test_a_socket_that_can_not_be_used_is_closed_and_told() -> None:
    """An accepted socket may have been reset before; here it is one that knows no TCP_NODELAY."""
    with embedded(Path(), disk=FaultyDisk()) as node:
        here, there = socket.socketpair(socket.AF_UNIX)
        with here:
            admit = partial(node.server._admit, there, "nowhere", speaks_tls=False)
            node.server.loop.call_soon_threadsafe(admit)
            here.settimeout(120)
            assert here.recv(1) == b""
        with Client(node.port) as client:
            assert client.ask(0x0A).status == 0


@pytest.mark.parametrize(
    ("plain", "peer", "tls", "users", "heard"),
    [
        ("loopback", "127.0.0.1:5", None, {"ann": "x"}, True),
        ("loopback", "10.0.0.7:5", None, {"ann": "x"}, False),
        ("loopback", "10.0.0.7:5", object(), {"ann": "x"}, True),
        ("anywhere", "10.0.0.7:5", None, {"ann": "x"}, True),
        ("loopback", "10.0.0.7:5", None, {}, True),
    ],
)
def test_a_password_as_it_is_may_come_from_the_same_machine_and_over_tls(
    plain: str, peer: str, tls: object, users: dict[str, str], heard: bool
) -> None:
    server = SimpleNamespace(config=NodeConfig(plain=plain), users=Users(users))
    connection = SimpleNamespace(peer=peer, tls=tls)
    assert Server.hears_passwords(server, connection) is heard  # type: ignore[arg-type]


def test_whoever_insists_lets_a_network_in_without_users() -> None:
    for config, users, is_refused in (
        (NodeConfig(), {}, True),
        (NodeConfig(insecure=True), {}, False),
        (NodeConfig(), {"ann": "x"}, False),
    ):
        server = SimpleNamespace(config=config, users=Users(users), _users_folder=config.data)
        with pytest.raises(OptionError) if is_refused else nullcontext():
            Server._refuse_an_open_network(server, "10.0.0.1")  # type: ignore[arg-type]


def test_who_waits_for_an_answer_of_this_node_is_not_idle() -> None:
    with testing.node(vbuckets=1, idle_seconds=1) as node, Client(node.port) as waiting, Client(node.port) as silent:
        waiting.send(Frame(0x80, Opcode.SEQNO_PERSISTENCE, extras=(1).to_bytes(8)).encode())
        assert silent.ask(Opcode.NOOP).status == 0
        assert silent.read() is None, "who is idle has been let go"
        with Client(node.port) as writer:
            assert writer.ask(Opcode.SET, key=b"k", extras=bytes(8)).status == 0
        answer = waiting.read()
        assert answer is not None and answer.status == 0


def test_a_look_at_the_users_that_fails_is_not_the_last_one_at_the_connections() -> None:
    looks = list[int]()

    def broken() -> None:
        looks.append(1)
        raise RuntimeError("broken")

    with embedded(Path(), disk=FaultyDisk()) as node:
        node.server._refresh_users = broken  # type: ignore[method-assign]
        until(lambda: len(looks) >= 2, "it looks again")
