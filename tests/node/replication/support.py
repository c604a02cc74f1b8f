"""Real nodes and their raw connections: what a mover, a writer and an auditor say."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType

from headwater.testing.node import Node
from headwater.wire import dcp
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

DEADLINE_SECONDS = 30.0
Content = dict[bytes, tuple[int, int, int, bytes | None]]
"""Key: (seqno, CAS, revision, value; None for a tombstone)."""


class Line:
    """One connection that asks and reads."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)
        self.file = self.sock.makefile("rb")

    def __enter__(self) -> Line:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.file.close()
        self.sock.close()

    def send(self, frame: Frame) -> None:
        self.sock.sendall(frame.encode())

    def read(self) -> Frame:
        header = self.file.read(24)
        if len(header) < 24:
            raise ConnectionError("the node hung up")
        return Frame.decode(header + self.file.read(int.from_bytes(header[8:12])))

    def call(self, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbucket: int = 0) -> Frame:
        self.send(Frame(0x80, opcode, key, extras, value, vbucket=vbucket, opaque=7))
        return self.read()


def call(node: Node, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"", vbucket: int = 0) -> Frame:
    with Line(node.port) as line:
        return line.call(opcode, key, value, extras, vbucket)


def put(node: Node, vb: int, key: str, value: bytes) -> None:
    assert call(node, Opcode.SET, key.encode(), value, bytes(8), vb).status == 0


def replicate(node: Node, source: str, vbuckets: str, *, takeover: bool = False) -> None:
    asked = {"from": source, "vbuckets": vbuckets, "takeover": takeover}
    assert call(node, Opcode.IOCTL_SET, b"replicate", json.dumps(asked).encode()).status == 0


def leave(node: Node, source: str) -> None:
    call(node, Opcode.IOCTL_SET, b"replicate.stop", json.dumps({"from": source}).encode())


def state(node: Node, vb: int) -> State | None:
    answer = call(node, Opcode.GET_VBUCKET, vbucket=vb)
    return State(int.from_bytes(answer.value)) if answer.status == 0 else None


def set_state(node: Node, vb: int, wanted: State) -> None:
    assert call(node, Opcode.SET_VBUCKET, extras=bytes([wanted]), vbucket=vb).status == 0


def failover_log(node: Node, vb: int) -> list[tuple[int, int]]:
    log = call(node, Opcode.GET_FAILOVER_LOG, vbucket=vb).value
    return [(int.from_bytes(log[at : at + 8]), int.from_bytes(log[at + 8 : at + 16])) for at in range(0, len(log), 16)]


def high_seqno(node: Node, vb: int) -> int:
    for number in range(1, 5):
        found = call(node, Opcode.GET_ALL_VB_SEQNOS, extras=number.to_bytes(4)).value
        for at in range(0, len(found), 10):
            if int.from_bytes(found[at : at + 2]) == vb:
                return int.from_bytes(found[at + 2 : at + 10])
    return -1


def content(node: Node, vb: int) -> Content:
    """Everything a vbucket tells a stream from the beginning, newest versions only."""
    found: Content = {}
    with Line(node.port) as line:
        opening = dcp.Open(key=b"auditor-%d" % vb, flags=0x21, opaque=1)
        line.send(opening.frame())
        assert line.read().status == 0
        ask = dcp.StreamRequest(vbucket=vb, opaque=2, flags=4, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0)
        line.send(ask.frame())
        assert line.read().status == 0
        while (frame := line.read()).opcode != Opcode.DCP_STREAM_END:
            if frame.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION):
                seqno, revision = int.from_bytes(frame.extras[:8]), int.from_bytes(frame.extras[8:16])
                value = frame.value if frame.opcode == Opcode.DCP_MUTATION else None
                found[frame.key] = (seqno, frame.cas, revision, value)
    return found


def lost(acknowledged: dict[bytes, bytes], held: Content) -> dict[bytes, bytes]:
    """The acknowledged writes that are not there. A later one may be in their place: its answer was lost, not it."""
    return {
        key: value for key, value in acknowledged.items() if key not in held or int(held[key][3] or b"-1") < int(value)
    }


def until(condition: Callable[[], bool], what: str, seconds: float = DEADLINE_SECONDS) -> None:
    """Poll until the condition holds; fails after a deadline."""
    give_up, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < give_up, f"not within {seconds:g} s: {what}"
        pause.wait(0.02)


class Writer(threading.Thread):
    """Writes to one vbucket, one acknowledged set after the other, until it is told to stop or is refused."""

    def __init__(self, node: Node, vb: int) -> None:
        super().__init__(daemon=True)
        self.node, self.vb = node, vb
        self.acknowledged: dict[bytes, bytes] = {}
        self.statuses: set[int] = set()
        self._stop_asked = threading.Event()

    def run(self) -> None:
        number = 0
        while not self._stop_asked.is_set():
            try:
                with Line(self.node.port) as line:
                    while not self._stop_asked.wait(0.001):
                        key, value = b"w-%d" % (number % 50), b"%d" % number
                        answer = line.call(Opcode.SET, key, value, bytes(8), self.vb)
                        self.statuses.add(answer.status)
                        if answer.status == 0:
                            self.acknowledged[key] = value
                        number += 1
            except OSError:
                self._stop_asked.wait(0.05)

    def finish(self) -> dict[bytes, bytes]:
        """Stop; the last acknowledged value of every key."""
        self._stop_asked.set()
        self.join(DEADLINE_SECONDS)
        return self.acknowledged
