"""Asking other nodes for their map."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from headwater.errors import RemoteProtocolError
from headwater.node.calling import connect
from headwater.node.membership.map import Address
from headwater.node.membership.peers import FEATURES, Peers
from headwater.protocol.handshake import Login
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk

LOGIN = Login("test", "default", features=FEATURES)
SECONDS_MAX = 120.0


class Asked:
    """The results of asking, and the first event."""

    def __init__(self, error: Exception | None = None) -> None:
        self.maps: dict[Address, bytes] = {}
        self.error = error
        self.called = asyncio.Event()

    async def told(self, peer: Address, config: bytes, requested_after: int) -> None:
        self.maps[peer] = config
        self.called.set()
        if self.error is not None:
            raise self.error


async def call(address: Address) -> socket.socket:
    return await connect(asyncio.get_running_loop(), *address)


async def ask(address: Address, asked: Asked) -> Peers:
    peers = Peers(asyncio.get_running_loop, lambda: LOGIN, call, asked.told)
    peers.watch([address])
    await asyncio.wait_for(asked.called.wait(), SECONDS_MAX)
    for _ in range(3):
        await asyncio.sleep(0)
    return peers


def test_the_map_of_a_node_is_fetched() -> None:
    async def fetch(address: Address) -> None:
        asked = Asked()
        peers = await ask(address, asked)
        assert json.loads(asked.maps[address])["name"] == "default"
        assert peers.known[address].problem == "" and peers.known[address].heard_at is not None
        peers.stop()
        assert peers.known == {}

    with embedded(Path(), disk=FaultyDisk()) as node:
        asyncio.run(fetch(Address("127.0.0.1", node.port)))


def test_an_answer_that_is_no_use_is_a_problem() -> None:
    async def fetch(address: Address) -> None:
        peers = await ask(address, Asked(RemoteProtocolError("of another cluster")))
        assert peers.known[address].problem == "of another cluster" and peers.known[address].heard_at is None
        peers.stop()

    with embedded(Path(), disk=FaultyDisk()) as node:
        asyncio.run(fetch(Address("127.0.0.1", node.port)))


async def problem_with(address: Address) -> str:
    """Return the problem that asking reports, once it has been tried."""
    peers = Peers(asyncio.get_running_loop, lambda: LOGIN, call, Asked().told)
    peers.watch([address])
    async with asyncio.timeout(SECONDS_MAX):
        while peers.known[address].problem == "not asked yet":
            await asyncio.sleep(0.01)
    assert peers.known[address].heard_at is None
    problem = peers.known[address].problem
    peers.stop()
    return problem


def test_nobody_there_is_a_problem() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname()[:2])
    assert "refused" in asyncio.run(problem_with(address)) or "failed" in asyncio.run(problem_with(address))


def test_a_node_that_hangs_up_is_a_problem() -> None:
    async def hang_up(listener: socket.socket) -> str:
        listener.setblocking(False)
        asking = asyncio.create_task(problem_with(Address(*listener.getsockname()[:2])))
        sock, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(listener), SECONDS_MAX)
        with sock:
            sock.shutdown(socket.SHUT_WR)
            return await asking

    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert "hung up" in asyncio.run(hang_up(listener))


class Clocks:
    """A steady clock and a wall clock, both put forward by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.suspended = 0.0
        wall = time.time
        monkeypatch.setattr(
            "headwater.node.membership.peers.time", SimpleNamespace(time=lambda: wall() + self.suspended)
        )


def test_an_answer_to_a_request_from_before_a_standstill_is_not_taken_for_one_from_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clocks, heard, stills = Clocks(monkeypatch), list[int](), list[float]()
    address = Address("127.0.0.1", 1)

    async def run() -> None:
        told = asyncio.Event()

        async def on_map(peer: Address, config: bytes, requested_after: int) -> None:
            heard.append(requested_after)
            if len(heard) == 2:
                told.set()

        peers = Peers(asyncio.get_running_loop, lambda: LOGIN, call, on_map, stills.append)

        async def suspended_once(peer: Address) -> bytes:
            if not heard:
                clocks.suspended = 60.0
                peers.look()
            return b"{}"

        monkeypatch.setattr(peers, "_ask", suspended_once)
        peers.watch([address])
        await asyncio.wait_for(told.wait(), SECONDS_MAX)
        assert peers.standstills == 1
        peers.stop()

    asyncio.run(run())
    assert heard == [0, 1] and 55 < stills[0] < 60


def test_without_other_nodes_a_standstill_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks, stills = Clocks(monkeypatch), list[float]()

    async def run() -> None:
        peers = Peers(asyncio.get_running_loop, lambda: LOGIN, call, Asked().told, stills.append)
        peers.look()
        clocks.suspended = 60.0
        peers.look()
        assert peers.standstills == 0

    asyncio.run(run())
    assert stills == []
