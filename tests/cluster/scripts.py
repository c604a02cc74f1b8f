"""Faults at every step of a takeover: which frame a step is, and what is done to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.owners import Nomad
from headwater.testing.proxy import Fault, FaultProxy, Way
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode

PACE_SECONDS_MAX = 60.0

STEPS = {
    1: "ADD_STREAM to the target",
    2: "STREAM_REQ to the source",
    3: "its answer",
    4: "the marker of the first snapshot",
    6: "SET_VBUCKET_STATE pending",
    7: "its answer leaves the target",
    8: "its answer has reached the source, which is dead now",
    9: "the marker of what was written last",
    10: "SET_VBUCKET_STATE active",
    11: "its answer leaves the target",
    12: "STREAM_END",
}
"""failover 4, by the frame that passes the mover. Step 5 is step 4 again, with what was written meanwhile, if anything
was; its marker asks for an answer, as that of step 9 does."""


@dataclass
class Script:
    """Recognises the steps as they pass two proxies, one in front of each node, and acts once, at one of them.

    A takeover without writes would skip the steps 4 and 9: so the frames before those wait until a few more writes
    were acknowledged.
    """

    step: int
    act: Callable[[], Fault]
    nomad: Nomad
    seen: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def attach(self, source: FaultProxy, target: FaultProxy) -> None:
        source.before = lambda way, frame: self._judge(self._source_step(way, frame))
        target.before = lambda way, frame: self._judge(self._target_step(way, frame))

    def begin_anew(self) -> None:
        """Before another try: the steps come once more."""
        with self.lock:
            self.seen.clear()

    def _judge(self, step: int) -> Fault:
        with self.lock:
            if not step or step in self.seen:
                return Fault.NONE
            self.seen.add(step)
            if step == self.step:
                return self.act()
        if step in (1, 3, 6):
            self.nomad.wait(3, PACE_SECONDS_MAX)
        return Fault.NONE

    def _source_step(self, way: Way, frame: Frame) -> int:
        """Steps at the link to the source; 0 for none."""
        match way, frame.opcode, frame.is_response:
            case Way.UP, Opcode.DCP_STREAM_REQ, False:
                return 2 if frame.extras[3] & 1 else 0
            case Way.UP, Opcode.DCP_SET_VBUCKET_STATE, True:
                return 0 if 10 in self.seen else 8
            case Way.DOWN, Opcode.DCP_STREAM_REQ, True:
                return 3 if 2 in self.seen else 0
            case Way.DOWN, Opcode.DCP_SNAPSHOT_MARKER, False:
                return self._marker()
            case Way.DOWN, Opcode.DCP_SET_VBUCKET_STATE, False:
                return 10 if frame.extras == b"\x01" else 6
            case Way.DOWN, Opcode.DCP_STREAM_END, False:
                return 12 if 10 in self.seen else 0
        return 0

    def _marker(self) -> int:
        if 3 not in self.seen:
            return 0
        return 9 if 8 in self.seen else 4

    def _target_step(self, way: Way, frame: Frame) -> int:
        """Steps at the link to the target; 0 for none."""
        match way, frame.opcode, frame.is_response:
            case Way.UP, Opcode.DCP_ADD_STREAM, False:
                return 1 if frame.extras[3] & 1 else 0
            case Way.DOWN, Opcode.DCP_SET_VBUCKET_STATE, True:
                return 11 if 10 in self.seen else 7
        return 0
