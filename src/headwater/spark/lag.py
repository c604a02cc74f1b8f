"""How far a streaming query is behind its bucket: in changes and in seconds, by vbucket, the worst first.

    spark.streams.addListener(LagListener(lambda lag: print(lag)))

Spark's progress reports have where a batch ended and what the nodes were seen to have then; both are offsets of this
source. Seqnos have no times, so seconds are measured: how long ago the nodes were first seen to have a change that is
not read yet. They are no more than that, and no more exact than reports are frequent.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pyspark.sql.streaming.listener import StreamingQueryListener

from headwater.errors import OptionError
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
    """

    query: str
    changes: int = 0
    seconds: float = 0.0
    vbuckets: int = 0
    worst: tuple[Behind, ...] = ()

    def __str__(self) -> str:
        if not self.vbuckets:
            return f"{self.query}: level"
        named = ", ".join(f"vbucket {each.vbucket} by {each.changes:,}" for each in self.worst)
        behind = f"{self.changes:,} changes and {self.seconds:.1f} s behind in {self.vbuckets} vbuckets"
        return f"{self.query}: {behind}: {named}"


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


def lag_of(query: str, behind: list[Behind]) -> Lag:
    """Sum up a query."""
    changes, seconds = sum(each.changes for each in behind), max((each.seconds for each in behind), default=0.0)
    return Lag(query, changes, seconds, len(behind), tuple(behind[:WORST]))


class LagListener(StreamingQueryListener):
    """Calls a function with the lag of each query over this source, or over the mirror's, at each progress report.

    Spark reports after each batch, and every ten seconds while there is none.

    Args:
        told: takes it, in a thread of Spark's.
        clock: seconds.
    """

    def __init__(self, told: Callable[[Lag], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._told, self._clock = told, clock
        self._meters: dict[tuple[str, int], LagMeter] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Do nothing."""

    def onQueryProgress(self, event: Any) -> None:
        """Measure, if the query has a source of this kind."""
        progress = event.progress
        behind: list[Behind] = []
        known = False
        for number, source in enumerate(progress.sources):
            meter = self._meters.setdefault((str(progress.id), number), LagMeter(self._clock))
            end, latest = _offset(source.endOffset), _offset(source.latestOffset)
            if end is not None and latest is not None:
                known = True
                behind += meter.measure(end, latest)
        if known:
            self._told(lag_of(progress.name or str(progress.id), behind))

    def onQueryIdle(self, event: Any) -> None:
        """Do nothing: a query that is idle has what its last report says."""

    def onQueryTerminated(self, event: Any) -> None:
        """Forget the query."""
        for known in [known for known in self._meters if known[0] == str(event.id)]:
            del self._meters[known]


def _offset(text: Any) -> Mapping[str, Any] | None:
    """An offset of a report, if it is one of ours: other sources of the query have offsets as well."""
    try:
        written = json.loads(text) if isinstance(text, str) else text
        written = json.loads(written) if isinstance(written, str) else written  # a text in JSON, under Spark Connect
        Offset.from_json(written)
    except (ValueError, TypeError, OptionError):
        return None
    return written if isinstance(written, Mapping) else None
