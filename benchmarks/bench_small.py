"""Small requests: fifty clients that wait for each answer, beside memcached with one thread, which keeps nothing.

The clients are compiled (askers.py) and take turns between the two servers. Printed are answers a second, the median
time of an answer, and answers by a processor second of the server, which other work on the machine changes least. A
durable set's time stands beside memcached's, and beside twice the time of a write of 4 KiB and fdatasync in the node's
folder: a set takes that long if its batch has to wait for the previous one.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import askers
from benchmarks.bench_kv import CONNECTIONS, VBUCKETS, memcached_process
from benchmarks.harness import publish
from headwater import testing
from headwater.wire.header import HEADER_BYTES, Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import vbucket_of

VALUE_BYTES = 256
FOUND_EXTRAS_BYTES = 4
SECONDS = 1.0
TURNS = 5
SYNCED_BYTES, SYNCS = 4096, 50
GET_RATIO = 0.9
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Taken:
    """The medians of one server's turns: answers a second, microseconds of an answer, and microseconds of the server's
    processor for an answer.
    """

    rate: float
    median_us: float
    cpu_us: float


@dataclass(frozen=True, slots=True)
class Small:
    """The figures of one kind of request."""

    name: str
    ours: Taken
    memcached: Taken | None
    fdatasync_us: float

    def __str__(self) -> str:
        ours, theirs = self.ours, self.memcached
        text = f"{self.name}, {CONNECTIONS} connections one at a time: {_line(ours)}"
        if theirs is not None:
            text += f"; memcached {_line(theirs)}; ratio of the rates {ours.rate / theirs.rate:.2f}, "
            text += f"by processor second {theirs.cpu_us / max(ours.cpu_us, 0.01):.2f}"
            wanted = theirs.median_us + 2 * self.fdatasync_us
            text += f"; memcached and two fdatasync of {self.fdatasync_us:.0f} us: {wanted:.0f} us"
        return text


def _line(taken: Taken) -> str:
    return f"{taken.rate:,.0f} answers/s, median {taken.median_us:.0f} us, {taken.cpu_us:.1f} us of its processor each"


def requests(opcode: int) -> list[bytes]:
    """Return the request of each client, each with a key of its own."""
    extras, value = (bytes(8), b"\xff" * VALUE_BYTES) if opcode == Opcode.SET else (b"", b"")
    keys = [b"small-%010d" % number for number in range(CONNECTIONS)]
    return [Frame(0x80, opcode, key, extras, value, vbucket=vbucket_of(key, VBUCKETS)).encode() for key in keys]


def processor_seconds(pid: int) -> float:
    """Return the processor seconds of a process so far. Source: proc(5), `stat`."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


def turn(port: int, pid: int, opcode: int) -> Taken:
    """Let all clients ask one server for SECONDS; return the measurement."""
    answer_bytes = HEADER_BYTES if opcode == Opcode.SET else HEADER_BYTES + FOUND_EXTRAS_BYTES + VALUE_BYTES
    before = processor_seconds(pid)
    rate, taken = askers.round_trips(port, requests(opcode), answer_bytes, SECONDS)
    spent = processor_seconds(pid) - before
    return Taken(rate, statistics.median(taken), 1e6 * spent / len(taken))


def synced(folder: str) -> float:
    """Return the median time of a write of 4 KiB and fdatasync in a folder, in microseconds."""
    times, piece = [], os.urandom(SYNCED_BYTES)
    descriptor = os.open(f"{folder}/synced", os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, SYNCS * SYNCED_BYTES)
        for number in range(SYNCS):
            begun = time.perf_counter()
            os.pwrite(descriptor, piece, number * SYNCED_BYTES)
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
    return 1e6 * statistics.median(times)


def _median(turns: Sequence[Taken]) -> Taken:
    columns = ([getattr(turn, name) for turn in turns] for name in ("rate", "median_us", "cpu_us"))
    return Taken(*map(statistics.median, columns))


def small(node: testing.Node, other: tuple[int, int] | None, folder: str, opcode: Opcode) -> Small:
    """Measure one kind of request at both servers in turn, and the disk before each turn."""
    ours, theirs, disk = [], [], []
    for _ in range(TURNS):
        disk.append(synced(folder))
        ours.append(turn(node.port, node.pid, opcode))
        if other is not None:
            theirs.append(turn(*other, opcode))
    name = "durable set" if opcode == Opcode.SET else "get"
    return publish(Small(name, _median(ours), _median(theirs) if theirs else None, statistics.median(disk)))


def main() -> None:
    """Measure durable sets, then gets of the same documents."""
    with (
        memcached_process() as other,
        testing.node(vbuckets=VBUCKETS) as node,
        TemporaryDirectory(dir=node.data.parent) as folder,
    ):
        for opcode in (Opcode.SET, Opcode.GET):
            turn(node.port, node.pid, opcode)  # kernels are compiled, pages there
        for opcode in (Opcode.SET, Opcode.GET):
            figure = small(node, other, folder, opcode)
            if figure.memcached is not None and opcode == Opcode.GET:
                met = "met" if figure.ours.rate >= GET_RATIO * figure.memcached.rate else "MISSED"
                print(f"  target {GET_RATIO} of memcached's gets: {met}", flush=True)
