"""Seconds on the clock, and CPU seconds of this process and all its descendants: JVM, workers, nodes.

CPU seconds are read from /proc. A process that ended is counted by its parent, which keeps the sum of those it has
waited for; one whose parent ended first (a JVM, the server of workers) counts only if this process adopts it.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds that some work took: on the clock, and of CPU on all cores together."""

    wall: float
    cpu: float


def adopt_orphans() -> None:
    """Become the parent of all descendants whose own parent ends. Source: prctl(2), PR_SET_CHILD_SUBREAPER."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and its descendants so far, ended ones included."""
    parents: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parents[int(entry.name)] = _stat(entry)
    mine, grown = {os.getpid()}, True
    while grown:
        children = {pid for pid, (parent, _) in parents.items() if parent in mine} - mine
        mine |= children
        grown = bool(children)
    return sum(parents[pid][1] for pid in mine if pid in parents)


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of one process so far."""
    return _stat(Path(f"/proc/{pid}"))[1]


def _stat(process: Path) -> tuple[int, float]:
    """Return a process's parent, and the CPU seconds of the process and of the children that it has waited for. Source:
    proc(5), `stat`.
    """
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return int(fields[1]), sum(map(int, fields[11:15])) / _TICKS


def cost(run: Callable[[], object]) -> Cost:
    """Run something and return its cost."""
    cpu, began = cpu_seconds(), time.perf_counter()
    run()
    wall = time.perf_counter() - began
    return Cost(wall, cpu_seconds() - cpu)


def median(costs: Iterable[Cost]) -> Cost:
    """Return the median of the seconds on the clock, and that of the CPU seconds."""
    kept = list(costs)
    return Cost(statistics.median(each.wall for each in kept), statistics.median(each.cpu for each in kept))
