"""A client of a simulated node that sends requests and receives answers.

It runs on the world's own loop, which no crash ends. Nothing here waits: answers come by callbacks, time passes when
the schedule is run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.simulation.lines import Line
from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

if TYPE_CHECKING:
    from harness.simulation.scheduler import SimLoop
    from harness.simulation.sockets import Network

Answered = Callable[[Frame | None], None]


class Caller:
    """A key-value connection to one node that is opened when it is needed, and again after it was lost.

    Args:
        features: additional features to negotiate.
        bucket: the bucket to select; no request is sent before that succeeds, and a refusal closes the connection.
    """

    def __init__(self, network: Network, loop: SimLoop, target: str, *features: Feature, bucket: str = "") -> None:
        self.target = target
        self._bucket = bucket
        self._features = (Feature.MUTATION_SEQNO, Feature.XERROR, Feature.SELECT_BUCKET, *features)
        self._held_back: list[bytes] | None = None
        self._line = Line(network, loop, received=self._received, lost=lambda _: self.hang_up())
        self._frames = FrameBuffer()
        self._waiting: dict[int, Answered] = {}
        self._opaque = 0

    def ask(self, opcode: int, answered: Answered, **sections: bytes | int) -> None:
        """Send a request; `answered` gets its answer, or None if the connection was lost first."""
        if not self._line.is_open and not self._connect():
            answered(None)
            return
        magic = 0x08 if sections.get("framing") else 0x80
        self._send(Frame(magic, opcode, **sections), answered)  # type: ignore[arg-type]

    def hang_up(self) -> None:
        """Close the connection; each pending request gets None."""
        self._line.close()
        self._held_back = None
        waiting, self._waiting = self._waiting, {}
        for answered in waiting.values():
            answered(None)

    def _connect(self) -> bool:
        if not self._line.connect(self.target):
            return False
        self._frames = FrameBuffer()
        features = b"".join(int(feature).to_bytes(2) for feature in self._features)
        self._send(Frame(0x80, Opcode.HELLO, value=features), lambda _: None)
        if self._bucket:
            self._send(Frame(0x80, Opcode.SELECT_BUCKET, key=self._bucket.encode()), self._selected)
            self._held_back = [] if self._line.is_open else None
        return self._line.is_open

    def _selected(self, answer: Frame | None) -> None:
        held_back, self._held_back = self._held_back, None
        if answer is not None and answer.status:
            self.hang_up()
        elif answer is not None:
            self._line.send(b"".join(held_back or ()))

    def _send(self, frame: Frame, answered: Answered) -> None:
        self._opaque += 1
        self._waiting[self._opaque] = answered
        data = replace(frame, opaque=self._opaque).encode()
        if self._held_back is None:
            self._line.send(data)
        else:
            self._held_back.append(data)

    def _received(self, data: bytes) -> None:
        for frame in self._frames.receive_data(data):
            answered = self._waiting.pop(frame.opaque, None)
            if answered is not None:
                answered(frame)
