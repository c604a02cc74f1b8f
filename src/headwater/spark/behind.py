"""Lag in numbers: the vbuckets of a job that are behind their bucket, by how many changes, and for how long.

Seqnos have no times, so seconds are measured: the time since the nodes were first seen to have a change that is not
read yet. They are only as exact as observations are frequent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headwater.protocol.dcp.complete import NANOSECONDS
from headwater.spark.offsets import Offset

WORST = 5
SEEN_MAX = 64
"""The observations kept for each vbucket that is behind: of more, the oldest and the newest."""


class Behind(NamedTuple):
    """A vbucket that is behind.

    Attributes:
        changes: seqnos that are not read yet, an upper bound of the changes.
        seconds: time since the first of them was seen.
    """

    vbucket: int
    changes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a query.

    Attributes:
        query: its name, or its id if it has none.
        changes: seqnos of all vbuckets that are not read yet; 0 if none is behind.
        seconds: seconds of the vbucket that has waited longest.
        vbuckets: number of vbuckets that are behind.
        worst: those with the most changes, at most five, the worst first.
        ownerless: number of vbuckets that no node has, whose lag is unknown.
        ownerless_seconds: seconds since there have been such vbuckets.
        complete_until: nothing older than this time is missing, Unix seconds; 0.0 if that is not known.
        stands_for: why that time stands still; empty if it does not.
    """

    query: str
    changes: int = 0
    seconds: float = 0.0
    vbuckets: int = 0
    worst: tuple[Behind, ...] = ()
    ownerless: int = 0
    ownerless_seconds: float = 0.0
    complete_until: float = 0.0
    stands_for: str = ""

    @property
    def stands(self) -> float:
        """1.0 if the time up to which the reader lacks no change does not advance; 0.0 otherwise."""
        return float(bool(self.stands_for))

    def __str__(self) -> str:
        ownerless = (
            f"; {self.ownerless} vbuckets have no node, for {self.ownerless_seconds:.0f} s" if self.ownerless else ""
        )
        if not self.vbuckets:
            return f"{self.query}: level{ownerless}"
        worst = ", ".join(f"vbucket {backlog.vbucket} by {backlog.changes:,}" for backlog in self.worst)
        lag_text = f"{self.changes:,} changes and {self.seconds:.1f} s behind in {self.vbuckets} vbuckets"
        return f"{self.query}: {lag_text}: {worst}{ownerless}"


class LagMeter:
    """A memory of when each seqno was first seen, for one source of one query.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sightings: dict[int, deque[tuple[int, float]]] = {}

    def measure(self, end: Mapping[str, Any], latest: Mapping[str, Any]) -> list[Behind]:
        """Return the vbuckets that are behind, the worst first.

        Args:
            end: the offset up to which the query has read. latest: the offset of the nodes' newest changes.

        Raises:
            OptionError: not offsets of this source.
        """
        now, read = self._clock(), Offset.from_json(end)
        return sorted(self._lags(now, read, Offset.from_json(latest)), key=lambda each: (-each.changes, each.vbucket))

    def _lags(self, now: float, read: Offset, nodes_end: Offset) -> Iterator[Behind]:
        for vb, place in nodes_end.positions.items():
            seqno_read = read.position(vb).seqno
            sightings = self._sightings.setdefault(vb, deque())
            if sightings and place.seqno < sightings[-1][0]:
                sightings.clear()  # a failover took back what was seen
            while sightings and sightings[0][0] <= seqno_read:
                sightings.popleft()
            if place.seqno <= seqno_read:
                continue
            if not sightings or place.seqno > sightings[-1][0]:
                if len(sightings) == SEEN_MAX:
                    sightings.pop()
                sightings.append((place.seqno, now))
            yield Behind(vb, place.seqno - seqno_read, now - sightings[0][1])


def ownerless_entry(vbuckets: int, seconds: float) -> dict[str, Any]:
    """Return the entry of a report's offset for vbuckets that no node has."""
    return {"noNode": {"vbuckets": vbuckets, "seconds": round(seconds, 3)}} if vbuckets else {}


def complete_entry(until: int, problem: str) -> dict[str, Any]:
    """Return the entry of a report's offset for the time, as a CAS, up to which the reader has everything."""
    return {"complete": {"until": until, "standsFor": problem}}


def lag_of(query: str, lags: list[Behind], latest: Mapping[str, Any] | None = None) -> Lag:
    """Return the lag of a query.

    Args:
        latest: the offset of the nodes' newest changes, which also names vbuckets that no node has; None if unknown.
    """
    changes, seconds = sum(lag.changes for lag in lags), max((lag.seconds for lag in lags), default=0.0)
    ownerless = (latest or {}).get("noNode", {})
    without = int(ownerless.get("vbuckets", 0)), float(ownerless.get("seconds", 0.0))
    complete = (latest or {}).get("complete", {})
    until, stands_for = int(complete.get("until", 0)) / NANOSECONDS, str(complete.get("standsFor", ""))
    return Lag(query, changes, seconds, len(lags), tuple(lags[:WORST]), *without, until, stands_for)
