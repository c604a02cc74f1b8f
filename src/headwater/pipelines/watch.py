"""A watch over a job's batches, for metrics and alarms: how long each took, and how far the job is behind its bucket.

A job tells its watch, whatever engine it runs on. On Spark both come out of the query's progress reports, without Spark
from the loop; with nobody watching neither costs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headwater.spark.behind import Lag, LagMeter, lag_of


class BatchWatch(Protocol):
    """The watch as a job sees it; called from whatever thread."""

    def batch(self, seconds: float) -> None:
        """Take note of a batch that is done, and how long it took."""

    def lag(self, lag: Lag) -> None:
        """Take note of how far the job is behind; after each batch, and now and then while there is none."""


class _Nobody:
    def batch(self, seconds: float) -> None:
        pass

    def lag(self, lag: Lag) -> None:
        pass


NOBODY: BatchWatch = _Nobody()


class LagWatch:
    """Measures the lag of a loop of our own, if anybody watches.

    Args:
        watch: is told.
        job: the name of what is behind.
    """

    def __init__(self, watch: BatchWatch, job: str) -> None:
        self._watch, self._job, self._meter = watch, job, LagMeter()

    def look(self, end: Mapping[str, Any], latest: Mapping[str, Any] | None) -> None:
        """Compare where the job is with what the nodes were last seen to have, both as offsets."""
        if self._watch is not NOBODY and latest is not None:
            self._watch.lag(lag_of(self._job, self._meter.measure(end, latest), latest))
