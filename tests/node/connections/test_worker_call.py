"""A call of another worker: whole frames are taken as they come, its end after what came before it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headwater.node.connections.worker_call import WorkerCall
from headwater.wire.header import Frame, frame_bytes
from headwater.wire.opcodes import Opcode

NOOP = Frame(0x80, Opcode.NOOP, value=b"x" * 100).encode()


class Call(WorkerCall):
    """Keeps what happens."""

    def __init__(self, path: str, begin: bytes = b"") -> None:
        super().__init__(asyncio.get_running_loop(), path, begin)
        self.happened: list[str | int] = []

    def say(self, data: bytes) -> None:
        self._out += data
        self._write()

    def _take(self, data: bytearray) -> int:
        at = 0
        while len(data) - at >= 24 and at + frame_bytes(data, at) <= len(data):
            at += frame_bytes(data, at)
        self.happened.append(at)
        return at

    def _taken(self) -> None:
        self.happened.append("taken")

    def _lost(self) -> None:
        self.happened.append("lost")

    def _wrote(self) -> None:
        self.happened.append("wrote")


def played(play: Callable[[Call, socket.socket], Awaitable[None]]) -> None:
    async def run(folder: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path := str(Path(folder) / "s"))
            listener.listen()
            call = Call(path, NOOP)
            there, _ = listener.accept()
            with there:
                await play(call, there)
            call.close()

    with TemporaryDirectory(prefix="headwater-call-") as folder:
        asyncio.run(run(folder))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0.01)


def test_frames_are_taken_when_they_are_whole_and_the_end_comes_last() -> None:
    async def play(call: Call, there: socket.socket) -> None:
        there.sendall(NOOP + NOOP[:50])
        await turns()
        assert (call.happened, call.kept_bytes) == ([len(NOOP), "taken"], len(NOOP) + 50)
        there.sendall(NOOP[50:])
        there.close()
        await turns()
        assert call.happened[2:] == [len(NOOP), "taken", "lost"] and call.is_closed

    played(play)


def test_what_was_said_before_a_broken_pipe_is_still_taken() -> None:
    async def play(call: Call, there: socket.socket) -> None:
        call.unwatch()
        there.sendall(NOOP)
        there.close()
        call.say(NOOP)
        await turns()
        assert call.happened == [len(NOOP), "taken", "lost"]

    played(play)


def test_what_the_other_does_not_read_waits_and_leaves_later() -> None:
    async def play(call: Call, there: socket.socket) -> None:
        call.say(large := bytes(4 << 20))
        assert call.waiting_bytes and not call.happened
        received = 0
        while received < len(NOOP) + len(large):
            there.setblocking(False)
            try:
                received += len(there.recv(1 << 20))
            except BlockingIOError:
                await asyncio.sleep(0.001)
        assert not call.waiting_bytes and set(call.happened) == {"wrote"}

    played(play)


def test_nobody_there_is_an_error() -> None:
    async def run() -> None:
        with pytest.raises(OSError, match="No such file"):
            Call("/nowhere/at-all")

    asyncio.run(run())
