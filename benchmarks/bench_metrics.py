"""The cost of a node's metrics: CPU seconds of two nodes, one that counts and one with --no-metrics, for the same work.

Both are processes of their own. They take turns within one run, and who begins changes with each round: bulk sets (a
client's pipeline of quiet sets), a drain of all vbuckets, and sets of fifty connections that wait for each answer,
where a request comes alone. CPU seconds are those of all threads of the node, by the scheduler's clock.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench_kv import feeding, round_trips
from benchmarks.bench_kv import requests as sets
from benchmarks.harness import publish
from headwater import client, testing
from headwater.wire.opcodes import Opcode

VBUCKETS = 64
VALUE_BYTES = 256
ROUNDS = 15
DRAINS = 10
ALONE_SECONDS = 1.0
SHARE_MAX = 0.02


@dataclass(frozen=True, slots=True)
class MetricsCost:
    """CPU seconds of the node with metrics and without, least of the rounds and medians.

    Attributes:
        ratio: of the least ones: what disturbs a round only ever adds. median_ratio: of the medians.
        promised: whether a bound was.
    """

    name: str
    unit: str
    counting: float
    without: float
    ratio: float
    median_ratio: float
    promised: bool

    def __str__(self) -> str:
        told = f"{self.name}: {self.counting:.4g} {self.unit} with metrics, {self.without:.4g} without, "
        told += f"ratio {self.ratio:.3f} (of medians {self.median_ratio:.3f})"
        if self.promised:
            told += f"; at most {1 + SHARE_MAX:.2f}: {'met' if self.ratio <= 1 + SHARE_MAX else 'MISSED'}"
        return told


def cpu_seconds(pid: int) -> float:
    """CPU seconds of a process's threads so far. Source: the kernel's Documentation/scheduler/sched-stats."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            total += int((thread / "schedstat").read_text().split()[0])
    return total / 1e9


def compare(
    name: str,
    nodes: tuple[testing.Node, testing.Node],
    work: Callable[[testing.Node], float],
    *,
    unit: str = "CPU s",
    promised: bool = True,
) -> None:
    """Let both work in turn; `work` returns by what its CPU seconds are to be divided."""
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS + 1):
        for which in (0, 1) if number % 2 else (1, 0):
            before = cpu_seconds(nodes[which].pid)
            amount = work(nodes[which])
            if number:  # the first one fills caches
                taken[which].append((cpu_seconds(nodes[which].pid) - before) / amount)
    least, middle = [min(each) for each in taken], [statistics.median(each) for each in taken]
    ratios = least[0] / least[1], middle[0] / middle[1]
    publish(MetricsCost(name, unit, least[0], least[1], *ratios, promised))


def main() -> None:
    """Sets in bulk, drains, and sets that are waited for one by one."""
    pieces = sets(VALUE_BYTES)

    def bulk(node: testing.Node) -> float:
        feeding(node.port, pieces)()
        return 1.0

    def drain(node: testing.Node) -> float:
        with client.connect(node.url) as bucket:
            for _ in range(DRAINS):
                with bucket.batches(until="now") as batches:
                    for _ in batches:
                        pass
        return DRAINS

    def alone(node: testing.Node) -> float:
        return len(round_trips(node.port, Opcode.SET, ALONE_SECONDS)) / 1e6

    with testing.node(vbuckets=VBUCKETS) as counting, testing.node(vbuckets=VBUCKETS, no_metrics=True) as without:
        nodes = counting, without
        compare(f"bulk sets, a million, {VALUE_BYTES} B", nodes, bulk)
        compare("drain, 250,000 documents", nodes, drain)
        compare("sets one at a time, 50 connections", nodes, alone, unit="CPU s a million", promised=False)
