"""A writer at a steady rate that follows its vbuckets from node to node by NOT_MY_VBUCKET; a process of its own.

Every millisecond it sends the sets that are due, each to the node that the newest map names. A set that is refused
(NOT_MY_VBUCKET, ETMPFAIL) is sent again a millisecond later, or at once if the refusal brought a newer map. It records
how long each vbucket refused writes: from the first refused (or parked) write to the first accepted one.
"""

from __future__ import annotations

import json
import select
import socket
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from headwater.wire.features import Feature
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import vbucket_of

KEYS = 40_000
VALUE_BYTES = 256
TICK_SECONDS = 0.001
AGAIN_SECONDS = 0.001
BURST_MAX = 64
DRAIN_SECONDS = 5.0


@dataclass
class Report:
    """The result of a run.

    Attributes:
        held: of each key, the number in its last acknowledged value.
        refused: how many answers were refusals.
        gaps: by vbucket, the longest time in which it refused writes, in seconds; only of vbuckets that did.
        latencies: of every write, the seconds from the first try to the acknowledgement.
        answered: of every write, when the acknowledgement came, by time.perf_counter (one clock for all processes).
    """

    held: dict[bytes, int] = field(default_factory=dict)
    refused: int = 0
    gaps: dict[int, float] = field(default_factory=dict)
    latencies: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Write:
    """One write on its way; it was first tried at `began`."""

    key: bytes
    vbucket: int
    number: int
    began: float


class Roamer:
    """The writer. `owners` has, of each vbucket, the index of its owner in `ports`."""

    def __init__(self, ports: list[int], owners: list[int], per_second: float) -> None:
        self.report = Report()
        self._owners, self._rate, self._rev = owners, per_second, 0
        self._socks = [_connect(port) for port in ports]
        self._frames = [FrameBuffer() for _ in ports]
        self._flying: dict[int, Write] = {}
        self._busy: set[bytes] = set()
        self._again: deque[tuple[float, Write]] = deque()
        self._refused_at: dict[int, float] = {}
        self._number = 0

    def run(self, control: Connection) -> None:
        """Write until something comes through `control`, then wait for the last answers."""
        began, poll = time.perf_counter(), select.poll()
        places = {sock.fileno(): index for index, sock in enumerate(self._socks)}
        for descriptor in (*places, control.fileno()):
            poll.register(descriptor, select.POLLIN)
        stopping = 0.0
        while not stopping or (self._busy and time.perf_counter() < stopping):
            for descriptor, _ in poll.poll(1000 * TICK_SECONDS):
                if descriptor in places:
                    self._receive(places[descriptor])
                elif not stopping:
                    stopping = time.perf_counter() + DRAIN_SECONDS
                    poll.unregister(descriptor)
            due = int((time.perf_counter() - began) * self._rate) - self._number
            self._send(0 if stopping else min(due, BURST_MAX))

    def _send(self, count: int) -> None:
        now, out = time.perf_counter(), defaultdict(bytearray)
        while self._again and self._again[0][0] <= now:
            self._put(self._again.popleft()[1], out)
        for _ in range(count):
            self._number += 1
            key = b"roam-%d" % (self._number % KEYS)
            if key not in self._busy:
                self._busy.add(key)
                self._put(Write(key, vbucket_of(key, len(self._owners)), self._number, now), out)
        for index, data in out.items():
            self._socks[index].sendall(data)

    def _put(self, write: Write, out: defaultdict[int, bytearray]) -> None:
        opaque = write.number & 0xFFFF_FFFF
        self._flying[opaque] = write
        value = b"%d " % write.number + b"r" * VALUE_BYTES
        frame = Frame(0x80, Opcode.SET, write.key, bytes(8), value[:VALUE_BYTES], vbucket=write.vbucket, opaque=opaque)
        out[self._owners[write.vbucket]] += frame.encode()

    def _receive(self, index: int) -> None:
        data = self._socks[index].recv(1 << 18)
        if not data:
            raise ConnectionError("a node hung up")
        now = time.perf_counter()
        for frame in self._frames[index].receive_data(data):
            write = self._flying.pop(frame.opaque)
            if frame.status == Status.SUCCESS:
                self._accepted(write, now)
            elif frame.status in (Status.NOT_MY_VBUCKET, Status.ETMPFAIL):
                self._refused(write, frame, now)
            else:
                raise AssertionError(f"{write} was answered {frame}")

    def _accepted(self, write: Write, now: float) -> None:
        report, vb = self.report, write.vbucket
        report.held[write.key] = write.number
        report.latencies.append(now - write.began)
        report.answered.append(now)
        self._busy.discard(write.key)
        first = self._refused_at.pop(vb, None)
        if first is not None:
            report.gaps[vb] = max(report.gaps.get(vb, 0.0), now - first)

    def _refused(self, write: Write, frame: Frame, now: float) -> None:
        self.report.refused += 1
        self._refused_at[write.vbucket] = min(write.began, self._refused_at.get(write.vbucket, write.began))
        is_news = frame.value.startswith(b"{") and self._learn(frame.value)
        self._again.appendleft((now, write)) if is_news else self._again.append((now + AGAIN_SECONDS, write))

    def _learn(self, config: bytes) -> bool:
        newest = json.loads(config)
        if newest["rev"] <= self._rev:
            return False
        self._rev = newest["rev"]
        self._owners = [chain[0] for chain in newest["vBucketServerMap"]["vBucketMap"]]
        return True


def roam(control: Connection, ports: list[int], owners: list[int], per_second: float) -> None:
    """Write from the parent's first message to its second, then send it the report; the body of a process."""
    roamer = Roamer(ports, owners, per_second)
    control.send("ready")
    control.recv()
    roamer.run(control)
    control.recv()
    control.send(roamer.report)


def _connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    features = b"".join(feature.to_bytes(2) for feature in (Feature.XERROR, Feature.JSON))
    sock.sendall(Frame(0x80, Opcode.HELLO, b"roaming", value=features).encode())
    sock.recv(4096)
    return sock
