"""A job's metrics for Prometheus: its progress, the times of its batches, and its lag behind the bucket.

They are computed for each scrape from the last progress and the last lag.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry, Histogram, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from headwater.errors import OptionError
from headwater.spark.behind import Lag

P = TypeVar("P")
WORST = ("job", "vbucket")
BUCKETS = (0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_COUNTERS = {
    "rollbacks": "vbuckets of which a failover took back changes that had been dealt with",
    "retries": "how often the job began anew after a failure that passed",
}
_GAUGES = {
    "lag_changes": ("changes", "changes of the bucket that the job has not dealt with, an upper bound"),
    "lag_seconds": ("seconds", "for how long the first of them has been known"),
    "lag_vbuckets": ("vbuckets", "vbuckets that are behind"),
    "ownerless_vbuckets": ("ownerless", "vbuckets that no node has: nothing of them is read"),
    "ownerless_seconds": ("ownerless_seconds", "for how long there have been any"),
    "complete_until_timestamp_seconds": (
        "complete_until",
        "no change that the job lacks is older, Unix seconds by the nodes' clocks; 0 if that is not known",
    ),
    "complete_stands": ("stands", "1 while that time can't move on: a vbucket has no node, or a node is silent"),
}


class JobMetrics(Collector):
    """The metrics of one job: a `BatchWatch` for its batches and lag, and a receiver of its progress.

    Args:
        job: its name, a label of all of them.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._progress: Any = None
        self._lag, self._heard_at = Lag(job), 0.0
        self.registry: CollectorRegistry = CollectorRegistry()
        about = "from the beginning of a batch to its end"
        family = Histogram("headwater_job_batch_seconds", about, ["job"], buckets=BUCKETS, registry=self.registry)
        self._batches = family.labels(job)
        self.registry.register(self)

    def batch(self, seconds: float) -> None:
        """Note the time of a batch."""
        self._batches.observe(seconds)
        self._heard_at = time.time()

    def lag(self, lag: Lag) -> None:
        """Note the lag of the job."""
        self._lag, self._heard_at = lag, time.time()

    def counting(self, report: Callable[[P], None]) -> Callable[[P], None]:
        """Return a function that notes a job's progress and reports it."""

        def take(progress: P) -> None:
            self._progress = progress
            report(progress)

        return take

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics but the times of batches, with their present values."""
        for name, (attribute, about) in _GAUGES.items():
            yield self._gauge(name, about, getattr(self._lag, attribute))
        about = "when the job last told of a batch or of its lag, Unix seconds: it does not while nodes are away"
        yield self._gauge("heard_timestamp_seconds", about, self._heard_at)
        worst = GaugeMetricFamily("headwater_job_vbucket_lag_changes", "the vbuckets furthest behind", labels=WORST)
        for each in self._lag.worst:
            worst.add_metric([self._job, str(each.vbucket)], each.changes)
        yield worst
        if self._progress is not None:
            yield from self._of_progress(self._progress)

    def _of_progress(self, progress: Any) -> Iterator[Metric]:
        rows = CounterMetricFamily("headwater_job_rows", "rows, by what became of them", labels=["job", "kind"])
        for kind in progress.ROWS:
            rows.add_metric([self._job, kind], getattr(progress, kind))
        yield rows
        for name, about in _COUNTERS.items():
            family = CounterMetricFamily(f"headwater_job_{name}", about, labels=["job"])
            family.add_metric([self._job], getattr(progress, name))
            yield family
        yield self._gauge("failing", "1 from a failure to the next batch that goes well", float(bool(progress.problem)))
        if hasattr(progress, "conflicts"):
            yield self._gauge("conflicts", "JSON fields that do not fit their column", len(progress.conflicts))
        if hasattr(progress, "data_loss"):
            about = "vbuckets of which deletions were purged before the job came to them"
            yield self._gauge("data_loss_vbuckets", about, len(progress.data_loss))
        if hasattr(progress, "moved"):
            yield self._gauge("vbuckets_left", "vbuckets that are not moved yet", progress.total - progress.moved)

    def _gauge(self, name: str, about: str, value: float) -> Metric:
        family = GaugeMetricFamily(f"headwater_job_{name}", about, labels=["job"])
        family.add_metric([self._job], value)
        return family


@contextmanager
def served(metrics: JobMetrics, host: str, port: int) -> Iterator[int]:
    """Serve metrics over HTTP at /metrics; yield the port, a free one for port 0.

    Raises:
        OptionError: the port can't be bound.
    """
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise OptionError(
            "metrics-port", f"{host}:{port}", f"an address of this machine that is free: {error}"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
