"""TAP connections without sockets: a real store, turns when the test says so, time as an argument."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from headwater.node.tap.hub import TapHub
from headwater.node.tap.session import TapSession
from headwater.protocol.tap.options import TapOptions
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, response
from headwater.wire.opcodes import Opcode
from headwater.wire.tap import MessageFlag
from tests.node.streams.support import Loop, StreamDesk, Wire
from tests.node.support import Talk

CAPTURES = Path(__file__).parents[2] / "data" / "captures"


class Timer:
    """Something that will be called, unless it is cancelled."""

    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self.at, self.callback, self.is_cancelled = at, callback, False

    def cancel(self) -> None:
        self.is_cancelled = True


class TimedLoop(Loop):
    """A clock with an alarm."""

    def __init__(self) -> None:
        super().__init__()
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(self.now + delay, callback))
        return self.timers[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now and not timer.is_cancelled]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.callback()


class TapDesk(StreamDesk):
    """A desk that takes TAP connections."""

    def __init__(self, path: Path, *, vbuckets: int = 4, keep_alive_seconds: float = 0.0) -> None:
        super().__init__(path, vbuckets=vbuckets)
        self.time = TimedLoop()
        self.loop = self.time  # type: ignore[assignment]
        self.tap = TapHub(self.bucket, self.time, keep_alive_seconds)  # type: ignore[arg-type]

    def advance(self, seconds: float) -> None:
        assert isinstance(self.time, TimedLoop)
        self.time.advance(seconds)


class TapClient(Talk):
    """A client of one connection: plain at first, TAP after `connect`."""

    def __init__(self, desk: TapDesk) -> None:
        super().__init__(desk)
        self.connection: Wire = Wire()
        self.speak_over(self.connection)
        self.buffer = FrameBuffer()

    def give(self, data: bytes) -> int:
        return self.connection.session.receive(memoryview(bytearray(data)))

    def connect(self, options: TapOptions | bytes) -> TapClient:
        self.give(options if isinstance(options, bytes) else options.encode())
        return self

    def turn(self) -> list[Frame]:
        """Return the frames that one turn sends."""
        session: object = self.connection.session
        if isinstance(session, TapSession) and not self.connection.is_closed:
            session.pump()
        return self.buffer.receive_data(self.bytes_sent())

    def read(self, *, acknowledge: bool = True) -> list[Frame]:
        """Everything that is sent until nothing more comes; what asks is acknowledged."""
        found: list[Frame] = []
        while more := self.turn():
            found += more
            for frame in more:
                if acknowledge and asks(frame):
                    self.give(response(frame).encode())
        return found

    def until_data(self) -> list[Frame]:
        """Everything that is sent, acknowledged, up to the turn that sends changes, which is not."""
        while not any(map(is_data, sent := self.turn())):
            for frame in filter(asks, sent):
                self.give(response(frame).encode())
        return sent

    def tick(self) -> None:
        """The session's deadline has come, if it has."""
        session: object = self.connection.session
        assert isinstance(session, TapSession)
        assert session.deadline is not None
        if self.desk.loop.time() >= session.deadline:
            session.tick(self.desk.loop.time())

    def cut(self) -> None:
        """The socket breaks."""
        self.connection.drop("cut", fault=False)


def asks(frame: Frame) -> bool:
    return not frame.is_response and bool(int.from_bytes(frame.extras[2:4]) & MessageFlag.ACK)


def is_data(frame: Frame) -> bool:
    return frame.opcode in (Opcode.TAP_MUTATION, Opcode.TAP_DELETE)


def captured(name: str, direction: str) -> list[bytes]:
    """The frames of a recording of a real server, one way."""
    (path,) = CAPTURES.glob(f"{name}-*.jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return [bytes.fromhex(row["hex"]) for row in rows if row["dir"] == direction and row["hex"]]
