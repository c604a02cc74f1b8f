"""From one node's disk to another's: a million items of 256 bytes, durable on the replica; and takeovers.

Two nodes in processes of their own on one machine, 64 vbuckets, over loopback; the replica calls the producer. The time
counts from the request to the moment when the replica's durable seqnos are the producer's. The time on the clock says
little on a shared machine. So the CPU seconds of both nodes are printed as well, and the time that the disk alone takes
to write and sync the same bytes piece by piece, measured right before each round: no replica can be faster than that.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_streams import VALUE_BYTES, load
from benchmarks.harness import Figure, publish
from headwater import testing
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.vbucket import State

ITEMS = 1_000_000
VBUCKETS = 64
ROUNDS = 3
ITEMS_PER_SECOND_MIN = 1_000_000
SECONDS_MAX = 120.0
FRAME_BYTES = 24 + 31 + 16 + VALUE_BYTES
DISK_PIECE_BYTES = 8 << 20  # about what the replica's batches come to


def call(node: testing.Node, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"") -> Frame:
    """Send one request on a connection of its own; return the answer."""
    with socket.create_connection((node.host, node.port)) as sock, sock.makefile("rb") as file:
        sock.sendall(Frame(0x80, opcode, key, extras, value).encode())
        header = file.read(24)
        return Frame.decode(header + file.read(int.from_bytes(header[8:12])))


def seqnos(node: testing.Node, state: State) -> bytes:
    """Return the durable seqnos of the vbuckets in a state, as the answer of GET_ALL_VB_SEQNOS encodes them."""
    return call(node, Opcode.GET_ALL_VB_SEQNOS, extras=int(state).to_bytes(4)).value


def cpu_seconds(node: testing.Node) -> float:
    """Return the user and system time of a node so far, in seconds."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def follow(source: testing.Node, replica: testing.Node, *, takeover: bool) -> float:
    """Let the replica follow until it has all changes, or, with `takeover`, owns all vbuckets; return the seconds that
    it took.
    """
    wanted, state = seqnos(source, State.ACTIVE), State.ACTIVE if takeover else State.REPLICA
    options = json.dumps({"from": source.address, "vbuckets": f"0-{VBUCKETS - 1}", "takeover": takeover})
    start = time.perf_counter()
    answer = call(replica, Opcode.IOCTL_SET, b"replicate", options.encode())
    if answer.status:
        raise AssertionError(f"replicate was refused: {answer}")
    while seqnos(replica, state) != wanted:
        if time.perf_counter() - start > SECONDS_MAX:
            raise AssertionError("the replica did not catch up")
        time.sleep(0.01)
    return time.perf_counter() - start


def disk_seconds(folder: Path, *, direct: bool) -> float:
    """Return how long the disk takes to write and sync the same bytes in pieces: past the page cache if `direct`."""
    memory = mmap.mmap(-1, DISK_PIECE_BYTES)  # aligned, as O_DIRECT wants it
    memory.write(os.urandom(DISK_PIECE_BYTES))
    path = folder / "reference"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | (os.O_DIRECT if direct else 0))
    try:
        os.posix_fallocate(descriptor, 0, ITEMS * FRAME_BYTES + DISK_PIECE_BYTES)
        start = time.perf_counter()
        for offset in range(0, ITEMS * FRAME_BYTES, DISK_PIECE_BYTES):
            os.pwrite(descriptor, memory, offset)
            os.fdatasync(descriptor)
        return time.perf_counter() - start
    finally:
        os.close(descriptor)
        path.unlink()
        memory.close()


@dataclass(frozen=True, slots=True)
class Round:
    """The seconds of one replica's filling: on the clock, of each node's processor, and of the disk alone before it."""

    wall: float
    producer: float
    replica: float
    disk_cached: float
    disk_direct: float

    @property
    def disk(self) -> float:
        """The seconds of the faster of the two ways to write."""
        return min(self.disk_cached, self.disk_direct)


def fill(source: testing.Node) -> Round:
    """Let a new replica follow; return the measurement."""
    with testing.node(vbuckets=VBUCKETS, vbucket_state="none") as replica:
        disk = [disk_seconds(replica.data.parent, direct=direct) for direct in (False, True)]
        before = cpu_seconds(source), cpu_seconds(replica)
        wall = follow(source, replica, takeover=False)
        return Round(wall, cpu_seconds(source) - before[0], cpu_seconds(replica) - before[1], *disk)


def tell(rounds: list[Round]) -> None:
    """Print the measurements."""
    rates = [ITEMS / one.wall for one in rounds]
    disk, rate = statistics.median(ITEMS / one.disk for one in rounds), statistics.median(rates)
    publish(
        Figure(
            "replicate 1 M items of 256 bytes, durable",
            "items/s",
            rate,
            min(rates),
            max(rates),
            reference="the disk alone",
            reference_figure=disk,
            ratio=rate / disk,
            target=ITEMS_PER_SECOND_MIN,
        )
    )
    for name, unit, figures in (
        ("the same, for each CPU second of both", "items", [ITEMS / (one.producer + one.replica) for one in rounds]),
        ("the same, CPU of the producer", "s", [one.producer for one in rounds]),
        ("the same, CPU of the replica", "s", [one.replica for one in rounds]),
        ("the disk alone, through the page cache", "items/s", [ITEMS / one.disk_cached for one in rounds]),
        ("the disk alone, past the page cache", "items/s", [ITEMS / one.disk_direct for one in rounds]),
    ):
        publish(Figure(name, unit, statistics.median(figures), min(figures), max(figures)))


def main() -> None:
    """Measure and print."""
    with testing.node(vbuckets=VBUCKETS) as source:
        load(source, ITEMS)
        tell([fill(source) for _ in range(ROUNDS)])
        with testing.node(vbuckets=VBUCKETS, vbucket_state="none") as replica:
            follow(source, replica, takeover=False)
            move = VBUCKETS / follow(source, replica, takeover=True)
    publish(Figure("take over 64 vbuckets that are caught up", "vbuckets/s", move, move, move))


if __name__ == "__main__":
    main()
