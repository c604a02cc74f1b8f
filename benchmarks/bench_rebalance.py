"""From one node to three while nobody writes: 1,024 vbuckets with a million documents of 64 bytes, a replica of each.

Four processes on one machine: three nodes and the operator's run. The reference is the same with every next owner
filled by the mover, through the operator's process. Both take turns, each with nodes of its own. Besides the rates, the
processor seconds of all four processes are printed: on a machine whose cores are all busy they tell more than the
clock.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from benchmarks import bench_streams
from benchmarks.harness import Figure, publish
from headwater import testing
from headwater.client.routing import Address
from headwater.cluster import rebalance as module
from headwater.cluster.balance import Move
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.wire.header import HEADER_BYTES, Frame
from headwater.wire.opcodes import Opcode

DOCUMENTS = int(os.environ.get("HEADWATER_BENCH_DOCUMENTS", "1000000"))
VBUCKETS = int(os.environ.get("HEADWATER_BENCH_VBUCKETS", "1024"))
ROUNDS = int(os.environ.get("HEADWATER_BENCH_ROUNDS", "3"))
VALUE_BYTES = 64
RATE_MIN = 80.0


@dataclass(frozen=True, slots=True)
class Run:
    """One rebalance: seconds on the clock, processor seconds of all nodes together, and of the operator's process."""

    wall: float
    nodes: float
    operator: float


def through_the_mover(move: Move, _copies: int) -> list[Address]:
    """Return the copies that join a chain first: all new ones but the next owner."""
    return [node for node in move.copied_to if node != move.target]


def cpu_seconds(nodes: Sequence[testing.Node]) -> float:
    """Return the user and system time of all nodes so far, in seconds."""
    fields = [Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split() for node in nodes]
    return sum(int(field[11]) + int(field[12]) for field in fields) / os.sysconf("SC_CLK_TCK")


def load(node: testing.Node) -> None:
    """Store the documents and wait until the node has them."""
    address = node.host, node.port
    with patch.object(bench_streams, "VALUE_BYTES", VALUE_BYTES), socket.create_connection(address) as sock:
        for piece in bench_streams.requests(DOCUMENTS, 1, VBUCKETS):
            sock.sendall(piece)
        sock.sendall(Frame(0x80, Opcode.NOOP).encode())
        sock.recv(HEADER_BYTES, socket.MSG_WAITALL)


async def found_alone(node: Address) -> None:
    """Found a cluster of one node."""
    async with Members() as members:
        await found_cluster(members, [node], 0)


async def spread(first: Address, others: Sequence[Address]) -> float:
    """Rebalance from the first node to all; return the seconds that it took."""
    async with Members() as members:
        began = time.perf_counter()
        await Rebalance(members, [first], add=others, replicas=1).run()
        return time.perf_counter() - began


def run() -> Run:
    """Start three nodes, fill the first, and rebalance; return the measurement."""
    with ExitStack() as stack:
        states = ("active", "none", "none")
        nodes = [stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state=state)) for state in states]
        load(nodes[0])
        first, *others = (Address(node.host, node.port) for node in nodes)
        asyncio.run(found_alone(first))
        used, own = cpu_seconds(nodes), time.process_time()
        wall = asyncio.run(spread(first, others))
        return Run(wall, cpu_seconds(nodes) - used, time.process_time() - own)


def through() -> Run:
    """Do the same as `run`, with every next owner filled by the mover."""
    with patch.object(module, "_joining", through_the_mover):
        return run()


def tell(way: str, runs: Sequence[Run]) -> None:
    """Print the processor seconds of one way."""
    nodes, operator = (
        statistics.median(each) for each in ([one.nodes for one in runs], [one.operator for one in runs])
    )
    print(f"{way}: processor seconds of the nodes {nodes:.1f}, of the operator {operator:.1f}", flush=True)


def main() -> None:
    """Measure and print."""
    ways: dict[str, Callable[[], Run]] = {"node to node": run, "through the mover": through}
    taken: dict[str, list[Run]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            taken[name].append(way())
    rates = {name: [VBUCKETS / each.wall for each in runs] for name, runs in taken.items()}
    ours, reference = (statistics.median(rate) for rate in rates.values())
    name = f"rebalance {VBUCKETS} vbuckets with {DOCUMENTS:,} documents from 1 node to 3"
    low, high = min(rates["node to node"]), max(rates["node to node"])
    compared = "through the mover", reference, ours / reference
    publish(Figure(name, "vbuckets/s", ours, low, high, *compared, RATE_MIN))
    for way, runs in taken.items():
        tell(way, runs)


if __name__ == "__main__":
    main()
