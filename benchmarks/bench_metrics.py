"""The cost of a node's metrics: CPU seconds of two nodes, one that counts and one with --no-metrics, for the same work.

Each node is a process of its own. They take turns at short pieces of work, and another begins each time: bulk sets (a
client's pipeline of quiet sets), a drain of all vbuckets, and sets of fifty connections that wait for each answer,
where a request comes alone. CPU seconds are those of all threads of the node, by the scheduler's clock.

A disturbance of the machine that lasts longer than a piece of work affects both nodes of a pair; so each pair of pieces
gives a ratio, and each pair of processes the median of its ratios. A process's place in memory makes it quicker or
slower for its whole life, by a percent or two; so there are several pairs of processes, and the interval is that of the
mean of their medians (Student's t).
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.bench_kv import feeding, round_trips
from benchmarks.bench_kv import requests as sets
from benchmarks.harness import publish
from headwater import client, testing
from headwater.wire.opcodes import Opcode

VBUCKETS = 64
VALUE_BYTES = 256
PROCESSES = 10
STUDENT = 2.262  # the 97.5th percentile of Student's t with PROCESSES - 1 degrees of freedom
PAIRS = 20
WARMING = 2  # pairs of each that are not counted: caches fill
PIECES = 50
"""The number of pieces into which a million bulk sets are divided."""
ALONE_SECONDS = 0.1
SHARE_MAX = 0.02

Work: TypeAlias = Callable[[testing.Node], float]


@dataclass(frozen=True, slots=True)
class MetricsCost:
    """CPU seconds of the node with metrics beside those of the one without.

    Attributes:
        counting, without: CPU seconds, medians over all pieces.
        ratio: counting / without; the mean of the medians of PROCESSES pairs of processes with PAIRS pairs of pieces.
        low, high: the ratio's 95 % interval.
        promised: whether a bound of the ratio is promised.
    """

    name: str
    unit: str
    counting: float
    without: float
    ratio: float
    low: float
    high: float
    promised: bool

    def __str__(self) -> str:
        line = f"{self.name}: {self.counting:.4g} {self.unit} with metrics, {self.without:.4g} without, "
        line += f"ratio {self.ratio:.4f}, 95 % from {self.low:.4f} to {self.high:.4f}"
        if self.promised:
            bound = 1 + SHARE_MAX
            judged = "met" if self.high <= bound else "MISSED" if self.low > bound else "not decided by this run"
            line += f"; at most {bound:.2f}: {judged}"
        return line


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process so far, those of its ended threads as well. Source:
    clock_getcpuclockid(3).
    """
    return time.clock_gettime(~pid << 3 | 2)


def paired(nodes: tuple[testing.Node, testing.Node], work: Work) -> list[tuple[float, float]]:
    """Let both nodes work in turn, PAIRS times; return the CPU seconds of each pair, divided by what `work` returns."""
    found = []
    for number in range(PAIRS + WARMING):
        taken = [0.0, 0.0]
        for which in (0, 1) if number % 2 else (1, 0):
            before = cpu_seconds(nodes[which].pid)
            amount = work(nodes[which])
            taken[which] = (cpu_seconds(nodes[which].pid) - before) / amount
        if number >= WARMING:
            found.append((taken[0], taken[1]))
    return found


def cost(name: str, unit: str, promised: bool, processes: list[list[tuple[float, float]]]) -> MetricsCost:
    """Return the figures of one kind of work from the seconds that the pairs of processes took."""
    medians = [
        statistics.median(math.log(counting / without) for counting, without in process) for process in processes
    ]
    middle = statistics.fmean(medians)
    half = STUDENT * statistics.stdev(medians) / math.sqrt(len(medians))
    counting, without = (
        statistics.median(pair[which] for process in processes for pair in process) for which in (0, 1)
    )
    ratio, low, high = (math.exp(each) for each in (middle, middle - half, middle + half))
    return MetricsCost(name, unit, counting, without, ratio, low, high, promised)


def works() -> dict[str, tuple[str, bool, Work]]:
    """Return the three kinds of work, by name: the unit, whether a bound is promised, and a function that does the
    work.
    """
    pieces = sets(VALUE_BYTES)
    part = pieces[::PIECES]

    def bulk(node: testing.Node) -> float:
        feeding(node.port, part)()
        return len(part) / len(pieces)

    def drain(node: testing.Node) -> float:
        with client.connect(node.url) as bucket, bucket.batches(until="now") as batches:
            for _ in batches:
                pass
        return 1.0

    def alone(node: testing.Node) -> float:
        return len(round_trips(node.port, Opcode.SET, ALONE_SECONDS)) / 1e6

    return {
        f"bulk sets, a million, {VALUE_BYTES} B": ("CPU s", True, bulk),
        "drain of what they set": ("CPU s", True, drain),
        "sets one at a time, 50 connections": ("CPU s a million", False, alone),
    }


def main() -> None:
    """Measure each kind of work on PROCESSES pairs of nodes."""
    all_works = works()
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name in all_works}
    for number in range(PROCESSES):
        odd = bool(number % 2)
        with (
            testing.node(vbuckets=VBUCKETS, no_metrics=odd) as one,
            testing.node(vbuckets=VBUCKETS, no_metrics=not odd) as other,
        ):
            for name, (_, _, work) in all_works.items():
                found[name].append(paired((other, one) if odd else (one, other), work))
    for name, (unit, promised, _) in all_works.items():
        publish(cost(name, unit, promised, found[name]))
