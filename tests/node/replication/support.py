"""Real nodes and their raw connections: what a mover, a writer and an auditor say."""

from __future__ import annotations

import threading

from harness.nodes import (
    DEADLINE_SECONDS,
    Line,
    call,
    failover_log,
    high_seqno,
    leave,
    put,
    replicate,
    set_state,
    state,
    until,
)
from headwater.testing.node import Node
from headwater.wire import dcp
from headwater.wire.opcodes import Opcode

__all__ = [
    "DEADLINE_SECONDS",
    "Content",
    "Line",
    "Writer",
    "call",
    "content",
    "failover_log",
    "high_seqno",
    "leave",
    "lost",
    "put",
    "replicate",
    "set_state",
    "state",
    "until",
]

Content = dict[bytes, tuple[int, int, int, bytes | None]]
"""Key: (seqno, CAS, revision, value; None for a tombstone)."""


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
