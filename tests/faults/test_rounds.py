"""Nodes whose small requests are answered by rounds of a kernel: killed, on a disk that fails, with users."""

from __future__ import annotations

import select
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from struct import pack

import pytest

from headwater import testing
from headwater.testing.node import Node
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.faults.test_roles import login, private
from tests.node.wire import Client

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="there are no rounds without epoll")

WITHOUT = {"HEADWATER_NO_REQUEST_ROUNDS": "1"}
VBUCKETS = 4
CLIENTS = 16
TURNS_MAX = 500
PASS = 40
"""The batch at which a fault comes: the start has a few, each turn of the clients one or two."""


def put(number: int, turn: int) -> bytes:
    """Return the request of a client to store the number of its turn."""
    return Frame(0x80, Opcode.SET, b"k%d" % number, bytes(8), b"%d" % turn, vbucket=number % VBUCKETS).encode()


def stored(node: Node) -> list[int]:
    """Return the turn that each client's document is of; -1 for none."""
    with Client(node.port) as client:
        found = [client.ask(Opcode.GET, key=b"k%d" % each, vbucket=each % VBUCKETS) for each in range(CLIENTS)]
    return [int(each.value) if each.status == 0 else -1 for each in found]


@contextmanager
def clients_of(node: Node) -> Iterator[list[Client]]:
    with ExitStack() as open_clients:
        yield [open_clients.enter_context(Client(node.port)) for _ in range(CLIENTS)]


def take_turns(clients: list[Client]) -> list[int]:
    """Let each client store one document after the other until the node hangs up on one of them; return the last turn
    that was acknowledged to each.
    """
    acknowledged = [-1] * CLIENTS
    for turn in range(TURNS_MAX):
        for number, client in enumerate(clients):
            with suppress(ConnectionError):
                client.send(put(number, turn))
        answers = [client.read() for client in clients]
        for number, answer in enumerate(answers):
            if answer is not None:
                assert answer.status == Status.SUCCESS
                acknowledged[number] = turn
        if None in answers:
            return acknowledged
    pytest.fail(f"nothing failed in {TURNS_MAX} turns")


def holds(found: list[int], acknowledged: list[int]) -> bool:
    """Return True if each document is of the last turn that was acknowledged, or of the one behind it."""
    return all(last <= turn <= last + 1 for turn, last in zip(found, acknowledged, strict=True))


def epolls(node: Node) -> int:
    """Return the number of epoll descriptors that a node has; one that it closes meanwhile is none."""
    count = 0
    for descriptor in Path(f"/proc/{node.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += "eventpoll" in str(descriptor.readlink())
    return count


@pytest.mark.parametrize("place", ["log.append", "log.before_sync", "log.after_sync"])
def test_a_node_that_is_killed_has_all_that_its_rounds_have_acknowledged(place: str) -> None:
    faults = {"HEADWATER_FAILPOINTS": f"{place}=kill@{PASS}"}
    with testing.node(vbuckets=VBUCKETS, environment=faults) as node:
        with clients_of(node) as clients:
            acknowledged = take_turns(clients)
        node.kill()
        node.environment = {}
        node.start()
        assert holds(stored(node), acknowledged) and max(acknowledged) >= 0


@pytest.mark.parametrize("place", ["log.append", "log.before_sync"])
def test_who_waits_in_a_round_for_a_batch_that_is_lost_is_let_go_and_the_node_goes_on(place: str) -> None:
    faults = {"HEADWATER_FAILPOINTS": f"{place}=eio@{PASS}"}
    with testing.node(vbuckets=VBUCKETS, environment=faults) as node:
        with clients_of(node) as clients:
            for _ in range(2):  # a connection joins when the first is answered
                clients[0].ask(Opcode.NOOP)
            assert epolls(node) == 2, "the connections are not in rounds"
            acknowledged = take_turns(clients)
        assert holds(stored(node), acknowledged) and max(acknowledged) >= 0
        with Client(node.port) as client:
            client.send(put(0, TURNS_MAX))
            answer = client.read()
            assert answer is not None and answer.status == Status.SUCCESS
        node.kill()
        node.start()
        assert holds(stored(node)[1:], acknowledged[1:]) and stored(node)[0] == TURNS_MAX


@pytest.mark.parametrize("is_without", [False, True])
def test_a_node_tells_how_many_requests_its_rounds_have_answered(is_without: bool) -> None:
    """The first connection that stores makes room in the index; the rounds answer the others once kernels are ready."""
    with (
        testing.node(vbuckets=VBUCKETS, environment=WITHOUT if is_without else None) as node,
        Client(node.port) as client,
    ):
        for number in range(VBUCKETS):
            client.ask(Opcode.SET, key=b"k%d" % number, extras=bytes(8), value=b"1", vbucket=number)
        assert (rounds_of(client, node) > 0) is not is_without


def rounds_of(client: Client, node: Node) -> int:
    """Return the number of requests that the rounds of a node have answered: after 100 reads, or the first answered."""
    for _ in range(100):
        assert client.ask(Opcode.GET, key=b"k0").status == Status.SUCCESS
        if count := int(statistics(client)["ep_round_requests"]):
            break
    metric = urllib.request.urlopen(f"http://127.0.0.1:{node.port}/metrics").read().decode()
    assert f'headwater_round_requests_total{{bucket="default"}} {count}' in metric
    return count


def statistics(client: Client) -> dict[str, str]:
    """Return the general statistics of a node."""
    values = {}
    answer = client.ask(Opcode.STAT)
    while answer is not None and answer.key:
        values[answer.key.decode()] = answer.value.decode()
        answer = client.read()
    return values


def test_what_comes_after_a_login_is_answered_though_the_login_took_a_while(tmp_path: Path) -> None:
    users = private(tmp_path / "users", "bob:bob-s3cret\n")
    with (
        testing.node(vbuckets=VBUCKETS, users_file=users) as node,
        login(node, "bob") as line,
    ):
        assert line.call(Opcode.VERSION).status == 0
        assert line.call(Opcode.SELECT_BUCKET, b"default").status == 0
        assert line.call(Opcode.HELLO, b"guest", pack(">H", 11)).status == 0
        assert line.call(Opcode.GET, b"nothing").status == Status.KEY_ENOENT
        assert line.call(Opcode.VERSION).status == 0
