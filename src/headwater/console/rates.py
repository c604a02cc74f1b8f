"""Rates and latencies over time: statistics of each node at intervals, as points of charts.

A rate is the difference of two answers of one node, divided by the time between them. If one of them is missing, or a
counter went back because the node was restarted, there is no point: the chart has a gap there, and no line across it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.client.routing import Address
from headwater.cluster.answers import number_of
from headwater.console.lookout import Lookout, TimedAnswer

TICK_SECONDS = 2.0
POINTS_MAX = 450
"""The most points: a quarter of an hour."""
LOOK_SECONDS = 20.0
COUNTERS = {"reads": "cmd_get", "writes": "cmd_set", "deletions": "cmd_delete", "commits": "ep_commit_num"}
COMMIT = "disk_commit_"
MEASURES = (
    ("reads", "Reads", "a second"),
    ("writes", "Writes", "a second"),
    ("deletions", "Deletions", "a second"),
    ("commits", "Commits to disk", "a second"),
    ("commit_p50_ms", "Half of the commits took at most", "ms"),
    ("commit_p99_ms", "99 of 100 commits took at most", "ms"),
    ("answer_ms", "A request for statistics was answered after", "ms"),
    ("connections", "Open connections", ""),
)
"""The charts: name, title, unit."""


@dataclass(frozen=True, slots=True)
class RatePoint:
    """The measures of all nodes at one time (Unix seconds), by node and name; unknown values are left out."""

    at: float
    nodes: Mapping[str, Mapping[str, float]]

    def to_json(self) -> dict[str, Any]:
        """Return the point for a page."""
        return {"at": self.at, "nodes": self.nodes}


@dataclass(slots=True)
class _Before:
    at: float = 0.0
    counters: Mapping[str, int | None] = field(default_factory=dict)
    commits: Mapping[int, int] = field(default_factory=dict)


class RateWatch:
    """A poller of the nodes, every `seconds` while it runs, which keeps the last points."""

    def __init__(self, lookout: Lookout, seconds: float = TICK_SECONDS) -> None:
        self.points: deque[RatePoint] = deque(maxlen=POINTS_MAX)
        self._lookout, self._seconds = lookout, seconds
        self._last_counters: dict[Address, _Before] = {}
        self._task: asyncio.Task[None] | None = None
        self._next: asyncio.Future[RatePoint] | None = None

    def start(self) -> None:
        """Start polling."""
        self._next = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Stop polling, and end all iterators of `follow`."""
        if self._task is not None:
            self._task.cancel()
        if self._next is not None and not self._next.done():
            self._next.cancel()

    async def follow(self) -> AsyncIterator[RatePoint]:
        """Yield each point as it comes, until the watch stops."""
        with contextlib.suppress(asyncio.CancelledError):
            while self._next is not None and not self._next.cancelled():
                yield await asyncio.shield(self._next)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            point = await self.look()
            self.points.append(point)
            future, self._next = self._next, loop.create_future()
            if future is not None and not future.done():
                future.set_result(point)
            await asyncio.sleep(self._seconds)

    async def look(self) -> RatePoint:
        """Poll all nodes once, and return the point."""
        await self._lookout.look(LOOK_SECONDS)  # a node that joined meanwhile has its line as well
        seconds = self._seconds / 2
        general, timings = (await self._lookout.groups_by_node(("", "timings"), seconds)).values()
        measured = {}
        for address, answer in general.items():
            if answer.is_fresh and answer.answer is not None:
                measured[str(address)] = self._measured(address, answer, timings[address])
            else:
                self._last_counters.pop(address, None)
        return RatePoint(self._lookout.now(), measured)

    def _measured(
        self, address: Address, answer: TimedAnswer[Mapping[str, str]], timings: TimedAnswer[Mapping[str, str]]
    ) -> dict[str, float]:
        counters = {name: number_of(answer.answer, statistic) for name, statistic in COUNTERS.items()}
        commits = histogram(timings.answer or {}) if timings.is_fresh else {}
        before = self._last_counters.get(address)
        measured = {"answer_ms": 1000 * answer.seconds}
        if (connections := number_of(answer.answer, "curr_connections")) is not None:
            measured["connections"] = connections
        if before is not None and answer.at > before.at:
            measured |= rates(before.counters, counters, answer.at - before.at)
            measured |= percentiles(before.commits, commits)
        if before is None or answer.at > before.at:
            self._last_counters[address] = _Before(answer.at, counters, commits)
        return measured


def rates(before: Mapping[str, int | None], now: Mapping[str, int | None], seconds: float) -> dict[str, float]:
    """Return the rise of counters per second; counters that are missing, or went back, are left out."""
    rises = {}
    for name, value in now.items():
        last = before.get(name)
        if value is not None and last is not None and value >= last:
            rises[name] = (value - last) / seconds
    return rises


def histogram(stats: Mapping[str, str]) -> dict[int, int]:
    """Return the number of commits for each upper bound in microseconds, from STAT timings."""
    counts = {}
    for name, value in stats.items():
        bounds = name.removeprefix(COMMIT).split(",")
        if name.startswith(COMMIT) and len(bounds) == 2 and bounds[1].isdecimal() and value.isdecimal():
            counts[int(bounds[1])] = int(value)
    return counts


def percentiles(before: Mapping[int, int], now: Mapping[int, int]) -> dict[str, float]:
    """Return the times, in milliseconds, that 50 and 99 percent of the commits between two histograms did not exceed.

    Empty if there was no commit, a histogram is missing, or a count went back. A percentile above the last bound is
    left out.
    """
    if before.keys() != now.keys():
        return {}
    counts = [(bound, now[bound] - before[bound]) for bound in sorted(now)]
    total = sum(count for _, count in counts)
    if total <= 0 or any(count < 0 for _, count in counts):
        return {}
    bounds: dict[str, float] = {}
    passed = 0
    for bound, count in counts[:-1]:
        passed += count
        for name, part in (("commit_p50_ms", 0.5), ("commit_p99_ms", 0.99)):
            if passed >= part * total:
                bounds.setdefault(name, bound / 1000)
    return bounds
