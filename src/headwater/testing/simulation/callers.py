"""A client of a simulated node that asks and is answered.

It runs on the world's own loop, which no crash ends. Nothing here waits: answers come by callbacks, time passes when
the schedule is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from headwater.testing.simulation.scheduler import SimLoop
    from headwater.testing.simulation.sockets import Network, SimSocket

PLACE = "client"
READ_BYTES = 64 << 10
Answered = Callable[[Frame | None], None]


class Caller:
    """A key-value connection to one place that is opened when it is needed, and again after it was lost."""

    def __init__(self, network: Network, loop: SimLoop, target: str) -> None:
        self.target = target
        self._network, self._loop = network, loop
        self._sock: SimSocket | None = None
        self._frames = FrameBuffer()
        self._waiting: dict[int, Answered] = {}
        self._opaque = 0

    def ask(self, opcode: int, answered: Answered, **sections: bytes | int) -> None:
        """Send a request; `answered` gets its answer, or None if the connection was lost first."""
        if self._sock is None and not self._connect():
            answered(None)
            return
        self._send(Frame(0x80, opcode, **sections), answered)  # type: ignore[arg-type]

    def hang_up(self) -> None:
        """Lose the connection; whoever waits hears None."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._loop.remove_reader(sock.fileno())
            sock.close()
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None)

    def _connect(self) -> bool:
        sock = self._network.socket(PLACE)
        try:
            self._network.join(sock, self.target)
        except ConnectionError:
            sock.close()
            return False
        self._sock, self._frames = sock, FrameBuffer()
        self._loop.add_reader(sock.fileno(), self._readable)
        features = b"".join(int(each).to_bytes(2) for each in (Feature.MUTATION_SEQNO, Feature.XERROR))
        self._send(Frame(0x80, Opcode.HELLO, value=features), lambda _: None)
        return True

    def _send(self, frame: Frame, answered: Answered) -> None:
        self._opaque += 1
        self._waiting[self._opaque] = answered
        data = replace(frame, opaque=self._opaque).encode()
        try:
            sent = self._sock.send(data) if self._sock is not None else 0
        except OSError:
            sent = 0
        if sent < len(data):
            self.hang_up()

    def _readable(self) -> None:
        try:
            data = b"" if self._sock is None else self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.hang_up()
            return
        for frame in self._frames.receive_data(data):
            answered = self._waiting.pop(frame.opaque, None)
            if answered is not None:
                answered(frame)
