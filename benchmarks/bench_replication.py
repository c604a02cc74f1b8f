"""From one node's disk to another's: a million items of 256 bytes, durable on the replica; and takeovers.

Two nodes in processes of their own on one machine, 64 vbuckets, over loopback; the replica calls the producer. Counted
is from the request to the moment when the replica's durable seqnos are the producer's. Wall time on a shared machine
says little, so the CPU seconds of both nodes are told as well.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import time
from pathlib import Path

from benchmarks.bench_streams import load
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


def call(node: testing.Node, opcode: int, key: bytes = b"", value: bytes = b"", extras: bytes = b"") -> Frame:
    """One request on a connection of its own."""
    with socket.create_connection((node.host, node.port)) as sock, sock.makefile("rb") as file:
        sock.sendall(Frame(0x80, opcode, key, extras, value).encode())
        header = file.read(24)
        return Frame.decode(header + file.read(int.from_bytes(header[8:12])))


def seqnos(node: testing.Node, state: State) -> bytes:
    """The durable seqnos of the vbuckets in a state."""
    return call(node, Opcode.GET_ALL_VB_SEQNOS, extras=int(state).to_bytes(4)).value


def cpu_seconds(node: testing.Node) -> float:
    """User and system time of a node so far."""
    fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def follow(source: testing.Node, replica: testing.Node, *, takeover: bool) -> float:
    """Let the replica follow until it has everything (takeover: owns it); seconds."""
    wanted, state = seqnos(source, State.ACTIVE), State.ACTIVE if takeover else State.REPLICA
    asked = json.dumps({"from": source.address, "vbuckets": f"0-{VBUCKETS - 1}", "takeover": takeover})
    start = time.perf_counter()
    answer = call(replica, Opcode.IOCTL_SET, b"replicate", asked.encode())
    if answer.status:
        raise AssertionError(f"replicate was refused: {answer}")
    while seqnos(replica, state) != wanted:
        if time.perf_counter() - start > SECONDS_MAX:
            raise AssertionError("the replica did not catch up")
        time.sleep(0.01)
    return time.perf_counter() - start


def main() -> None:
    """Measure."""
    rates, costs, moves = [], [], []
    with testing.node(vbuckets=VBUCKETS) as source:
        load(source, ITEMS)
        for _ in range(ROUNDS):
            with testing.node(vbuckets=VBUCKETS, vbucket_state="none") as replica:
                before = cpu_seconds(source) + cpu_seconds(replica)
                rates.append(ITEMS / follow(source, replica, takeover=False))
                costs.append(cpu_seconds(source) + cpu_seconds(replica) - before)
        with testing.node(vbuckets=VBUCKETS, vbucket_state="none") as replica:
            follow(source, replica, takeover=False)
            moves.append(VBUCKETS / follow(source, replica, takeover=True))
    publish(
        Figure(
            "replicate 1 M items of 256 bytes, durable",
            "items/s",
            statistics.median(rates),
            min(rates),
            max(rates),
            target=ITEMS_PER_SECOND_MIN,
        )
    )
    cost = [ITEMS / each for each in costs]
    publish(Figure("the same, for each CPU second of both", "items", statistics.median(cost), min(cost), max(cost)))
    publish(Figure("take over 64 vbuckets that are caught up", "vbuckets/s", moves[0], moves[0], moves[0]))


if __name__ == "__main__":
    main()
