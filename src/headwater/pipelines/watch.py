"""A watch over a job's batches, for metrics and alarms: how long each took, and how far the job is behind its bucket.

A job tells its watch, whatever engine it runs on. On Spark both come out of the query's progress reports, without Spark
from the loop; with nobody watching neither costs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headwater.spark.behind import Lag, LagMeter, lag_of


class BatchWatch(Protocol):
    """The watch as a job sees it; called from any thread."""

    def batch(self, seconds: float) -> None:
        """Note a batch and its time."""

    def lag(self, lag: Lag) -> None:
        """Note the job's lag; called after each batch, and now and then while there is none."""


class _Nobody:
    def batch(self, seconds: float) -> None:
        pass

    def lag(self, lag: Lag) -> None:
        pass


NOBODY: BatchWatch = _Nobody()


class LagWatch:
    """Measures the lag of a loop of our own, if there is a watch.

    Args:
        watch: gets the lag.
        job: the name of the job.
    """

    def __init__(self, watch: BatchWatch, job: str) -> None:
        self._watch, self._job, self._meter = watch, job, LagMeter()

    def look(self, end: Mapping[str, Any], latest: Mapping[str, Any] | None) -> None:
        """Compare the job's offset with the nodes' newest one."""
        if self._watch is not NOBODY and latest is not None:
            self._watch.lag(lag_of(self._job, self._meter.measure(end, latest), latest))
