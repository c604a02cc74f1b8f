"""The seeds' examples by name, and connections to a live node that say them, or expect to hear them, byte for byte."""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

from headwater.testing import Node
from headwater.wire import dcp, upr
from headwater.wire.header import Frame
from headwater.wire.layout import Request
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

SECONDS_MAX = 120.0
SEEDS = ("seed:dcp-add-stream", "seed:dcp-stream-request", "seed:upr", "seed:failover-log")
VECTORS = json.loads((Path(__file__).parent.parent / "data" / "vectors.json").read_text("utf-8"))
EXAMPLES = {each["name"]: bytes.fromhex(each["hex"]) for each in VECTORS if each["source"] in SEEDS}
SOUND = [each["name"] for each in VECTORS if each["source"] in SEEDS and not each["errata"]]
LOG = EXAMPLES["failover_log_rsp"][24:]


def with_opaque(frame: bytes, opaque: int) -> bytes:
    return frame[:12] + struct.pack(">I", opaque) + frame[16:]


@dataclass
class Line:
    """One connection; `exchanged` collects the names of the examples that went over it."""

    port: int
    exchanged: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self.port), SECONDS_MAX)
        self.file = self.socket.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()

    def send(self, *messages: Frame | Request) -> None:
        self.socket.sendall(b"".join(message.encode() for message in messages))

    def say(self, name: str, opaque: int | None = None) -> None:
        """Send an example. `opaque`: its stream's, where the document could not know what the receiver chooses."""
        self.exchanged.add(name)
        self.socket.sendall(EXAMPLES[name] if opaque is None else with_opaque(EXAMPLES[name], opaque))

    def read(self) -> bytes:
        header = self.file.read(24)
        if len(header) < 24:
            raise ConnectionError("the node hung up")
        return header + self.file.read(int.from_bytes(header[8:12]))

    def frame(self) -> Frame:
        return Frame.decode(self.read())

    def hear(self, *names: str) -> None:
        """The next frame is exactly this example (or these, where two documents print the same bytes)."""
        heard = self.read()
        for name in names:
            assert heard.hex() == EXAMPLES[name].hex(), name
        self.exchanged.update(names)

    def ask(self, message: Frame | Request) -> Frame:
        self.send(message)
        return self.frame()

    def done(self, message: Frame | Request) -> None:
        answer = self.ask(message)
        assert answer.status == Status.SUCCESS, answer

    def accepted(self, request: Request) -> None:
        """Ask for a stream until the vbucket has something whole."""
        deadline = time.monotonic() + SECONDS_MAX
        while (answer := self.ask(request)).status == Status.ETMPFAIL:
            assert time.monotonic() < deadline
        assert answer.status == Status.SUCCESS, answer


def set_state(live: Node, vb: int, state: State) -> None:
    with Line(live.port) as line:
        line.done(Frame(0x80, Opcode.SET_VBUCKET, extras=bytes([state]), vbucket=vb))


def put(live: Node, vb: int, *keys: bytes) -> None:
    """Store a document under each key, one acknowledged after the other."""
    with Line(live.port) as line:
        for key in keys:
            line.done(Frame(0x80, Opcode.SET, key, bytes(8), b"v", vbucket=vb))


def read_log(value: bytes) -> list[tuple[int, int]]:
    """The (uuid, seqno) entries of a failover log."""
    return list(struct.iter_unpack(">QQ", value))


def become_dcp(line: Line) -> None:
    line.done(Frame(0x80, Opcode.HELLO, b"seeds", value=b"\0\x08"))


def negotiate(line: Line, status: Status) -> Frame:
    """Add a first stream, answer the controls with `status`; the first stream request."""
    line.send(dcp.AddStream(vbucket=1, opaque=1, flags=0))
    while (frame := line.frame()).opcode == Opcode.DCP_CONTROL:
        line.send(Frame(0x81, frame.opcode, vbucket=status, opaque=frame.opaque))
    return frame


def reach(line: Line, used: int, wanted: int) -> None:
    """Use up the node's opaques, so that the next stream has `wanted`: each stream that is added takes one."""
    count = wanted - used - 1
    pair = dcp.AddStream(vbucket=1, opaque=2, flags=0).encode() + dcp.CloseStream(vbucket=1, opaque=3).encode()
    while count:
        chunk = min(count, 200)
        line.socket.sendall(pair * chunk)
        for _ in range(3 * chunk):  # the stream request, the answer to the one and to the other
            last = line.frame()
        assert last.opcode == Opcode.DCP_CLOSE_STREAM and last.status == Status.SUCCESS
        count -= chunk


def open_upr_consumer(line: Line, wanted: int) -> None:
    """The node consumes from us, who speak UPR only; the next stream it is told to add has the opaque `wanted`."""
    line.say("upr_open_consumer_req")
    line.hear("upr_open_rsp")
    asked = negotiate(line, Status.UNKNOWN_COMMAND)
    assert len(asked.extras) == 48  # what a producer of that time does not know
    line.send(Frame(0x81, Opcode.DCP_STREAM_REQ, vbucket=Status.EINVAL, opaque=asked.opaque))
    again = line.frame()
    assert (len(again.extras), again.opaque) == (40, asked.opaque)
    line.send(Frame(0x81, Opcode.DCP_STREAM_REQ, value=LOG, opaque=again.opaque))
    assert line.frame().opcode == Opcode.DCP_ADD_STREAM
    line.done(dcp.CloseStream(vbucket=1, opaque=3))
    line.send(dcp.AddStream(vbucket=1, opaque=2, flags=0), dcp.CloseStream(vbucket=1, opaque=3))
    used = line.frame().opaque
    assert [line.frame().opcode, line.frame().opcode] == [Opcode.DCP_ADD_STREAM, Opcode.DCP_CLOSE_STREAM]
    reach(line, used, wanted)


def add_stream(line: Line, vbucket: int) -> int:
    """Tell the node to add a stream, accept its request; the stream's opaque."""
    asked = line.ask(dcp.AddStream(vbucket=vbucket, opaque=4, flags=0))
    assert asked.opcode == Opcode.DCP_STREAM_REQ
    line.send(Frame(0x81, Opcode.DCP_STREAM_REQ, value=LOG, opaque=asked.opaque))
    answer = line.frame()
    assert (answer.opcode, answer.status, answer.extras) == (Opcode.DCP_ADD_STREAM, 0, asked.opaque.to_bytes(4))
    return asked.opaque


def open_reader(line: Line, name: bytes) -> None:
    line.done(dcp.Open(key=name, flags=1))


def upr_request(vbucket: int, opaque: int, end_seqno: int = (1 << 64) - 1) -> upr.StreamRequest:
    return upr.StreamRequest(vbucket=vbucket, opaque=opaque, start_seqno=0, end_seqno=end_seqno)
