"""Work that is done before its request: the connection pauses, and what was prepared is given back once."""

from __future__ import annotations

import asyncio

from headwater.node.kv.preparation import Preparation
from headwater.node.refused import NoRoom
from tests.node.support import FakeConnection


class Held:
    """Something prepared that counts how often it is given back."""

    def __init__(self) -> None:
        self.dropped = 0

    def drop(self) -> None:
        self.dropped += 1


def test_the_connection_pauses_until_the_work_is_done() -> None:
    connection, held = FakeConnection(), Held()

    async def work() -> Held:
        assert connection.paused == {"preparing"}
        return held

    async def run() -> None:
        preparation = Preparation(connection)  # type: ignore[arg-type]
        assert isinstance(preparation.begin(asyncio.get_running_loop(), work()), NoRoom)
        while connection.is_paused:
            await asyncio.sleep(0)
        assert preparation.done is held
        preparation.drop()
        preparation.drop()
        assert preparation.done is None and held.dropped == 1

    asyncio.run(run())


def test_work_that_fails_ends_the_connection() -> None:
    connection = FakeConnection()

    async def work() -> Held:
        raise ValueError("damaged")

    async def run() -> None:
        preparation = Preparation(connection)  # type: ignore[arg-type]
        preparation.begin(asyncio.get_running_loop(), work())
        while connection.is_paused:
            await asyncio.sleep(0)
        assert preparation.done is None

    asyncio.run(run())
    assert connection.dropped == "its request could not be prepared"


def test_work_for_a_connection_that_is_gone_is_stopped_even_before_it_began() -> None:
    async def work() -> Held:
        raise AssertionError("nobody waits")

    async def run() -> None:
        preparation = Preparation(FakeConnection())  # type: ignore[arg-type]
        preparation.begin(asyncio.get_running_loop(), work())
        preparation.end()
        await asyncio.sleep(0)
        preparation.end()

    asyncio.run(run())


def test_what_was_prepared_is_given_back_when_the_connection_ends() -> None:
    held = Held()
    preparation = Preparation(FakeConnection())  # type: ignore[arg-type]
    preparation.done = held
    preparation.end()
    assert held.dropped == 1
