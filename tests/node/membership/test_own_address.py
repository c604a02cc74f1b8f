"""Calling the own address: who is found there, and when it counts that nobody answers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from headwater.node.membership import own_address
from headwater.node.membership.map import read_map
from headwater.node.membership.own_address import SILENCES, OwnAddress, is_copy
from headwater.node.membership.peers import FEATURES
from headwater.protocol.handshake import Login
from headwater.testing.embedded import embedded
from headwater.testing.faults import FaultyDisk
from headwater.wire.address import Address
from tests.node.membership.support import ALL_ON_FIRST, VBUCKETS, cluster_map


async def connected(address: Address) -> socket.socket:
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    try:
        await loop.sock_connect(sock, address)
    except OSError:
        sock.close()
        raise
    return sock


def first_told(address: Address, is_heard: Callable[[str], bool], call: object = connected) -> bytes | None:
    """Return what is told first of an address."""

    async def story() -> bytes | None:
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bytes | None] = loop.create_future()

        def hear(config: bytes | None) -> None:
            if not told.done():
                told.set_result(config)

        def login() -> Login:
            return Login("headwater-node", "default", None, None, "nonce", features=FEATURES)

        own = OwnAddress(lambda: loop, login, call, is_heard, hear)  # type: ignore[arg-type]
        own.watch(address)
        own.watch(address)  # as every map does
        try:
            return await asyncio.wait_for(told, 120)
        finally:
            own.stop()

    return asyncio.run(story())


def test_another_node_is_told_with_its_map_and_this_one_hears_its_own_call() -> None:
    with embedded(disk=FaultyDisk(), vbuckets=4) as node:
        address, heard = Address("127.0.0.1", node.port), list[str]()

        def hears_nothing(agent: str) -> bool:
            heard.append(agent)
            return False

        config = first_told(address, hears_nothing)
        assert config is not None and b'"rev"' in config
        assert len(heard) == 1 and heard[0].startswith("headwater-node ")
        assert first_told(address, lambda agent: True) is None


def test_where_nobody_listens_nobody_else_is_the_member() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert first_told(Address(*closed.getsockname()), lambda agent: False) is None


def test_a_node_that_is_only_slow_is_asked_again_before_it_counts_as_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "ANSWER_SECONDS_MAX", 0.01)
    calls = []

    async def silent(address: Address) -> socket.socket:
        calls.append(address)
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    assert first_told(Address("127.0.0.1", 1), lambda agent: False, silent) is None
    assert len(calls) == SILENCES


def test_a_copy_is_the_same_member_of_the_same_cluster() -> None:
    def seen(this: int | None, uuid: bytes = b"") -> object:
        config = cluster_map(1, ["127.0.0.1:1", "127.0.0.1:2"], ALL_ON_FIRST, this)
        config = config.replace(b"0123456789abcdef", uuid or b"0123456789abcdef")
        return read_map(config, bucket="default", vbuckets=VBUCKETS)

    assert is_copy(seen(0), seen(0))  # type: ignore[arg-type]
    assert not is_copy(seen(0), seen(1))  # type: ignore[arg-type]
    assert not is_copy(seen(0), seen(0, b"f" * 16))  # type: ignore[arg-type]
    assert not is_copy(seen(None), seen(None)) and not is_copy(None, seen(0))  # type: ignore[arg-type]
