"""A job with a sink on Spark: a Structured Streaming query over a source of our own, and the commit of each batch.

`foreachBatch` collects a few short rows and makes one commit of them; the mirror's is a Delta commit
(docs/decisions/0027 has the reasons for using the published protocol, not Delta's classes). A session needs no Delta
Lake.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from headwater.client.routing import parse as parse_url
from headwater.errors import TableChanged
from headwater.lake.places import is_url
from headwater.pipelines import spans
from headwater.pipelines.checkpoint import mend
from headwater.pipelines.query import started, until_ended
from headwater.pipelines.sinks import REPEATS_MAX, ChangeSink, Done, to_text
from headwater.pipelines.watch import NOBODY, BatchWatch
from headwater.spark import slots
from headwater.tracing import past, span

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT = "_checkpoint"
SLOTS_UNSEEN = 2
"""Tasks at once where a session does not show how many it runs."""


class SparkEngine:
    """An engine that follows a bucket with a Spark query.

    Args:
        spark: the session.
        sink: the sink of the changes.
        options: the options of the source, with `url`.
        watch: gets the times of batches and the lag, from the query's reports.
    """

    def __init__(
        self, spark: SparkSession, sink: ChangeSink, options: Mapping[str, str], watch: BatchWatch = NOBODY
    ) -> None:
        self.spark: SparkSession = spark
        self.sink: Final = sink
        self.options: Mapping[str, str] = options
        self.watch: BatchWatch = watch

    def follow(
        self,
        *,
        once: bool,
        interval_seconds: float,
        on_batch: Done,
        stop: Callable[[], bool],
        on_calm: Callable[[], None] = lambda: None,
    ) -> None:
        """Bring the sink up to date, and keep it so; arguments as of `LocalEngine.follow`.

        Raises:
            Exception: Spark's, with the reason somewhere in its text.
        """
        batches = _Batches(parse_url(self.options["url"]).bucket, self.sink, on_batch)

        def start() -> Any:
            query = self._start(batches, once, interval_seconds)
            batches.query.set_result(str(query.id))
            return query

        until_ended(start, stop, self.spark, self.watch, on_calm)

    def _start(self, batches: _Batches, once: bool, interval_seconds: float) -> Any:
        from headwater.pipelines.source import SinkDataSource

        self.spark.dataSource.register(SinkDataSource)
        own_options = {"secretSink": to_text(self.sink.opening()), "slots": str(slots(self.spark) or SLOTS_UNSEEN)}
        stream = self.spark.readStream.format(SinkDataSource.name()).options(**self.options, **own_options).load()
        checkpoint = self._checkpoint()
        mend(checkpoint)
        return started(stream, batches.take, checkpoint, once=once, interval_seconds=interval_seconds)

    def _checkpoint(self) -> str:
        """Return the folder in which Spark notes its triggers.

        Only the sink's record counts. So for a sink on an object store, which Spark may have no library for, a
        temporary folder of this run is enough.
        """
        if is_url(self.sink.place):
            folder = tempfile.mkdtemp(prefix="headwater-checkpoint-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            return f"file://{folder}"
        return f"file://{self.sink.place}/{CHECKPOINT}"


class _Batches:
    """The handler of a query's batches: commits the results of their tasks."""

    def __init__(self, job: str, sink: ChangeSink, on_batch: Done) -> None:
        self._job, self._sink, self._on_batch = job, sink, on_batch
        self.query: Future[str] = Future()

    def take(self, batch: DataFrame, number: int) -> None:
        """Commit a batch; leave it out if it was planned from another record than the sink has."""
        for repeat in range(REPEATS_MAX):
            began = time.time()
            rows = batch.collect()
            ran = time.time()
            if not rows or rows[0].after != (before := self._sink.refresh()).digest:
                return
            results = [self._sink.read(bytes(row.written)) for row in rows if row.written]
            if self._sink.begun() is None and any(result.unread for result in results):
                return  # a failover came between: the next batch is planned from the same record
            end, transaction = json.loads(rows[0].end), (self.query.result(), number)
            with span("batch", began=began) as attributes:
                past("batch.tasks", began, ran)
                spans.tell_plan(attributes, self._job, before, end)
                spans.tell_tasks(attributes, results)
                try:
                    with span("batch.commit"):
                        new_record = self._sink.commit(rows[0].after, end, results, transaction)
                except TableChanged:
                    if repeat == REPEATS_MAX - 1:
                        raise
                    continue  # the tasks run again and look up anew
                self._on_batch(results, new_record.end)
                return
