"""A watch over a job's batches, for metrics and alarms: how long each took, and how far the job is behind its bucket.

A job reports to its watch on every engine. On Spark both numbers are taken from the query's progress reports, otherwise
from our own loop; without a watch neither costs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from headwater.spark.behind import Lag, LagMeter, lag_of


class BatchWatch(Protocol):
    """A receiver of a job's times and lag; called from any thread."""

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
    """A meter of the lag in a loop of our own, if there is a watch.

    Args:
        watch: gets the lag.
        job: the name of the job.
    """

    def __init__(self, watch: BatchWatch, job: str) -> None:
        self._watch, self._job, self._meter = watch, job, LagMeter()

    def look(self, end: Mapping[str, Any], latest: Mapping[str, Any] | None) -> None:
        """Measure the lag between the job's offset and the nodes' newest one, and report it."""
        if self._watch is not NOBODY and latest is not None:
            self._watch.lag(lag_of(self._job, self._meter.measure(end, latest), latest))
