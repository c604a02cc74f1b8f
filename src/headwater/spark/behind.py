"""Lag as a number: which vbuckets of a job are behind their bucket, by how many changes, and for how long.

Seqnos have no times, so seconds are measured: how long ago the nodes were first seen to have a change that is not read
yet. They are no more than that, and no more exact than looks are frequent.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headwater.spark.offsets import Offset

WORST = 5
SEEN_MAX = 64
"""Observations that are remembered for each vbucket that is behind; of more the oldest and the newest are kept."""


class Behind(NamedTuple):
    """A vbucket that is behind.

    Attributes:
        changes: seqnos that are not read yet, an upper bound of the changes.
        seconds: for how long the first of them has been known.
    """

    vbucket: int
    changes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a query.

    Attributes:
        query: its name, or its id if it has none.
        changes: seqnos of all vbuckets that are not read yet; 0 when level.
        seconds: of the vbucket that has waited longest.
        vbuckets: how many are behind.
        worst: those with the most changes, at most five, the worst first.
        ownerless: vbuckets that no node has, of which nobody knows how far behind they are; ownerless_seconds: for how
            long there have been any.
    """

    query: str
    changes: int = 0
    seconds: float = 0.0
    vbuckets: int = 0
    worst: tuple[Behind, ...] = ()
    ownerless: int = 0
    ownerless_seconds: float = 0.0

    def __str__(self) -> str:
        lost = f"; {self.ownerless} vbuckets have no node, for {self.ownerless_seconds:.0f} s" if self.ownerless else ""
        if not self.vbuckets:
            return f"{self.query}: level{lost}"
        named = ", ".join(f"vbucket {each.vbucket} by {each.changes:,}" for each in self.worst)
        behind = f"{self.changes:,} changes and {self.seconds:.1f} s behind in {self.vbuckets} vbuckets"
        return f"{self.query}: {behind}: {named}{lost}"


class LagMeter:
    """Remembers when which seqnos were first seen, for one source of one query.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[int, deque[tuple[int, float]]] = {}

    def measure(self, end: Mapping[str, Any], latest: Mapping[str, Any]) -> list[Behind]:
        """Return the vbuckets that are behind, the worst first.

        Args:
            end: the offset up to which is read. latest: that of what the nodes have.

        Raises:
            OptionError: no offsets of this source.
        """
        now, read = self._clock(), Offset.from_json(end)
        return sorted(self._behind(now, read, Offset.from_json(latest)), key=lambda each: (-each.changes, each.vbucket))

    def _behind(self, now: float, read: Offset, there: Offset) -> Iterator[Behind]:
        for vb, place in there.positions.items():
            done = read.position(vb).seqno
            seen = self._seen.setdefault(vb, deque())
            if seen and place.seqno < seen[-1][0]:
                seen.clear()  # a failover took back what was seen
            while seen and seen[0][0] <= done:
                seen.popleft()
            if place.seqno <= done:
                continue
            if not seen or place.seqno > seen[-1][0]:
                if len(seen) == SEEN_MAX:
                    seen.pop()
                seen.append((place.seqno, now))
            yield Behind(vb, place.seqno - done, now - seen[0][1])


def told_ownerless(vbuckets: int, seconds: float) -> dict[str, Any]:
    """Return what an offset that only reports says beside its positions of vbuckets that no node has."""
    return {"noNode": {"vbuckets": vbuckets, "seconds": round(seconds, 3)}} if vbuckets else {}


def lag_of(query: str, behind: list[Behind], latest: Mapping[str, Any] | None = None) -> Lag:
    """Sum up a query; `latest` is what the nodes have, as an offset that reports."""
    changes, seconds = sum(each.changes for each in behind), max((each.seconds for each in behind), default=0.0)
    lost = (latest or {}).get("noNode", {})
    without = int(lost.get("vbuckets", 0)), float(lost.get("seconds", 0.0))
    return Lag(query, changes, seconds, len(behind), tuple(behind[:WORST]), *without)
