"""A consumer node's end of a connection, and somebody who plays its producer and its mover."""

import struct

from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.consumer_stream import ConsumerStream
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.events import (
    Event,
    Opened,
    StreamWanted,
)
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.dcp.position import Position
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

LOG = ((0x1122334455667788, 0),)


VB = 20


class Talk:
    """A consumer, and somebody who plays producer and mover."""

    def __init__(self, settings: ConsumerSettings | None = None, *, xerror: bool = True) -> None:
        self.end = Consumer(Negotiated(xerror=xerror, connection_name="c"), settings or ConsumerSettings(), now=0.0)
        self.now = 0.0
        self.asked: list[Frame] = []

    def give(self, frame: Frame) -> list[Event]:
        return self.end.receive_frame(Frame.decode(frame.encode()), self.now)

    def sent(self) -> list[Frame]:
        return FrameBuffer().receive_data(self.end.data_to_send())

    def one(self, frame: Frame) -> Frame:
        """The only answer to a message that brings about nothing else."""
        assert self.give(frame) == []
        (answer,) = self.sent()
        assert answer.opaque == frame.opaque
        return answer

    def control_all(self, *refused: str) -> tuple[list[tuple[str, str]], list[Event]]:
        """Answer every control; those named are refused. Returns them, and what came of the last."""
        seen, events = [], []
        while frames := [frame for frame in self.sent() if frame.opcode == Opcode.DCP_CONTROL]:
            (frame,) = frames
            seen.append((frame.key.decode(), frame.value.decode()))
            status = Status.EINVAL if frame.key.decode() in refused else Status.SUCCESS
            events = self.give(answer_to(frame, status))
        return seen, events

    def open(
        self, position: Position | None = None, *, flags: int = 0, refused: tuple[str, ...] = ()
    ) -> ConsumerStream:
        """Bring a stream to where data comes."""
        mover = add_stream(flags)
        assert self.give(mover) == [StreamWanted(VB, flags, mover)]
        stream, _ = self.end.add(VB, flags, mover)
        self.control_all(*refused)
        self.end.ask(stream, position or Position.beginning(VB))
        (self.asked_last,) = [frame for frame in self.sent() if frame.opcode == Opcode.DCP_STREAM_REQ]
        assert self.give(answer_to(self.asked_last, value=struct.pack(">QQ", *LOG[0]))) == [Opened(stream, LOG)]
        (added,) = self.sent()
        assert (added.opcode, added.status, added.opaque) == (Opcode.DCP_ADD_STREAM, 0, mover.opaque)
        assert added.extras == stream.opaque.to_bytes(4)
        return stream


def answer_to(frame: Frame, status: int = 0, **more: bytes) -> Frame:
    return Frame(Magic.CLIENT_RESPONSE, frame.opcode, vbucket=status, opaque=frame.opaque, **more)


def add_stream(flags: int = 0, opaque: int = 0xADADADAD) -> Frame:
    return dcp.AddStream(vbucket=VB, opaque=opaque, flags=flags).frame()


def marker(opaque: int, start: int, end: int, flags: int = 1, vbucket: int = VB) -> Frame:
    return dcp.SnapshotMarker(vbucket=vbucket, opaque=opaque, start_seqno=start, end_seqno=end, flags=flags).frame()


def mutation(opaque: int, seqno: int, vbucket: int = VB, **more: int) -> Frame:
    fields: dict[str, int] = {"by_seqno": seqno, "rev_seqno": 1, **more}
    return dcp.Mutation(vbucket=vbucket, opaque=opaque, cas=77, key=b"k", value=b"v", **fields).frame()
