"""The waits of a request: the connection stands still, and goes on when what it waits for is there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.errors import CorruptStore, DiskFull, StorageError
from headwater.node.kv.parking import Parking, refusal_of
from headwater.node.refused import CommandRefused, NoRoom
from headwater.wire.header import Frame
from headwater.wire.layout import Done
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import FakeConnection

GET = Frame(0x80, Opcode.GET, b"a", opaque=7)


class PlayedSession:
    """A session that notes its answers and refusals."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.refusals: list[Status] = []
        self.counted: list[int] = []
        requests = SimpleNamespace(
            begun_at=1.0, answered=lambda _, status: self.counted.append(status), finished=lambda opcode, begun_at: None
        )
        self.server: Any = SimpleNamespace(loop=asyncio.get_running_loop(), requests=requests)

    def send(self, frame: Frame, answer: Any) -> None:
        self.answers.append(answer)

    def refuse(self, frame: Frame, refused: CommandRefused) -> None:
        self.refusals.append(refused.status)


Play = Callable[[Parking, PlayedSession, FakeConnection], Awaitable[None]]


def played(play: Play) -> None:
    async def run() -> None:
        connection = FakeConnection()
        await play(Parking(connection), PlayedSession(), connection)  # type: ignore[arg-type]

    asyncio.run(run())


def test_a_coroutine_answers_and_the_connection_reads_on() -> None:
    async def play(parking: Parking, session: PlayedSession, connection: FakeConnection) -> None:
        is_known = asyncio.Event()

        async def work() -> Any:
            await is_known.wait()
            return Done()

        parking.wait_for_answer(session, GET, work(), session.send, lasts=False)
        assert parking.is_at_work and connection.is_paused
        is_known.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not parking.is_at_work and not connection.is_paused
        assert (session.answers, session.counted) == ([Done()], [Status.SUCCESS])

    played(play)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CommandRefused(Status.EACCESS), Status.EACCESS),
        (StorageError("the disk is slow"), Status.ETMPFAIL),
        (CorruptStore(Path("log"), 9, "a flipped bit"), Status.EINTERNAL),
        (ZeroDivisionError(), Status.EINTERNAL),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else "",
)
def test_an_error_of_the_coroutine_is_a_refusal_and_the_connection_reads_on(error: Exception, status: Status) -> None:
    async def play(parking: Parking, session: PlayedSession, connection: FakeConnection) -> None:
        async def work() -> Any:
            raise error

        parking.wait_for_answer(session, GET, work(), session.send, lasts=False)
        await asyncio.sleep(0)
        assert (session.refusals, session.counted, connection.is_paused) == ([status], [status], False)

    played(play)


@pytest.mark.parametrize("lasts", [False, True])
def test_the_end_of_the_connection_cancels_what_does_not_last(lasts: bool) -> None:
    async def play(parking: Parking, session: PlayedSession, connection: FakeConnection) -> None:
        is_known = asyncio.Event()

        async def work() -> Any:
            await is_known.wait()
            return Done()

        parking.wait_for_answer(session, GET, work(), session.send, lasts=lasts)
        await asyncio.sleep(0)
        parking.end()
        is_known.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert session.answers == [Done()] * lasts

    played(play)


def test_a_request_without_room_waits_for_the_committer_unless_something_else_holds_the_connection() -> None:
    async def play(parking: Parking, session: PlayedSession, connection: FakeConnection) -> None:
        callbacks: list[Callable[[], None]] = []
        committer: Any = SimpleNamespace(when_room=callbacks.append)
        parking.wait_for_room(committer)
        assert connection.paused == {"commit"}
        parking.wait_for_room(committer)
        assert len(callbacks) == 1
        callbacks[0]()
        assert not connection.is_paused

    played(play)


def test_a_request_waits_for_the_state_of_its_vbucket_and_no_longer_than_the_connection() -> None:
    async def play(parking: Parking, session: PlayedSession, connection: FakeConnection) -> None:
        waiting: dict[int, Callable[[], None]] = {}
        bucket: Any = SimpleNamespace(
            when_state_changes=waiting.__setitem__, waits_no_more=lambda vbucket, _: waiting.pop(vbucket)
        )
        assert isinstance(parking.wait_for_state(bucket, 3), NoRoom) and connection.paused == {"pending"}
        waiting.pop(3)()
        assert not connection.is_paused
        parking.wait_for_state(bucket, 4)
        parking.end()
        assert waiting == {}
        parking.end()

    played(play)


def test_what_lacks_room_may_come_again_and_what_is_damaged_not() -> None:
    assert refusal_of(DiskFull(Path("log"))).status == Status.ETMPFAIL
    assert refusal_of(CorruptStore(Path("log"), 9, "a flipped bit")).status == Status.EINTERNAL
