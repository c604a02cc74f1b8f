"""The frame that the jobs share: their engines, and the two ways in which a job follows a bucket.

`follow` gives batches of the `dcp` source to a function, from a checkpoint that Spark keeps: for jobs with outside
effects that may happen twice (copy, invalidate). `follow_into` brings them into a sink with its own record (sinks.py),
with Spark or with worker processes: for jobs whose result must be exact (index, observe, and the mirror in its own
way).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headwater.pipelines.attempts import Attempts, attempts_of, patient_source
from headwater.pipelines.checkpoint import mend
from headwater.pipelines.jobs import JobProgress, OnEngines, WithCheckpoint
from headwater.pipelines.local import LocalEngine
from headwater.pipelines.query import session_of, started, until_ended
from headwater.pipelines.sinks import ChangeSink, CountingSink, Done
from headwater.pipelines.watch import BatchWatch
from headwater.spark.settings import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

P = TypeVar("P", bound=JobProgress)


def follow(
    job: WithCheckpoint[P],
    spark: SparkSession,
    attempts: Attempts[P],
    take: Callable[[DataFrame, int], None],
    options: Mapping[str, str],
    columns: str = "",
    begin: Callable[[], None] = lambda: None,
) -> P:
    """Call `take` with each batch of a bucket's changes, until the job has ended or was stopped; return the last
    progress.

    Args:
        attempts: begins anew after failures that may pass.
        take: handles one batch, which may come twice.
        options: the options of the source, with `url`.
        columns: the columns of the source, as a Spark schema; by default all.
        begin: called before the query starts, in each attempt.

    Raises:
        HeadwaterError: the query failed; the next run repeats the batches that Spark has not noted as done.
    """
    options = patient_source(options, attempts.retry_seconds)

    def attempt() -> None:
        begin()
        # A query that has lost its first batch would begin with "latest" behind changes that it never finished.
        beginning = {"startingOffsets": "earliest"} if mend(job.place) else {}
        reader = spark.readStream.format("dcp").options(**{**options, **beginning})
        stream = (reader.schema(columns) if columns else reader).load()
        until_ended(
            lambda: started(stream, take, job.place, once=job.once, interval_seconds=job.interval_seconds),
            attempts.stop,
            spark,
            attempts.watch,
            attempts.calm,
        )

    attempts.run(attempt)
    return attempts.progress


class Engine(Protocol):
    """The engine that runs a job's tasks."""

    def follow(
        self,
        *,
        once: bool,
        interval_seconds: float,
        on_batch: Done,
        stop: Callable[[], bool],
        on_calm: Callable[[], None] = ...,
    ) -> None:
        """Bring the sink up to date, and keep it so unless `once`; arguments as of `LocalEngine.follow`."""


def work(job: OnEngines[P]) -> P:
    """Follow a bucket into a job's sink; the work of a job that declares no other."""
    return follow_into(job)


def follow_into(
    job: OnEngines[P],
    open_sink: Callable[[], CountingSink[P]] | None = None,
    on_end: Callable[[Attempts[P]], None] = lambda attempts: None,
) -> P:
    """Follow a bucket into a sink, with the job's engine, until the job has ended or was stopped; return the last
    progress.

    Args:
        open_sink: called for each attempt; None for the job's own sink.
        on_end: called when the last attempt went well.

    Raises:
        SparkUnavailable: Spark can't be started here.
        HeadwaterError: a failure that does not pass; the next run continues from the sink's record.
    """
    attempts: Attempts[P] = attempts_of(job, job.PROGRESS())
    options = patient_source(job.source_options(), attempts.retry_seconds)

    def attempt(session: SparkSession | None) -> None:
        sink = (open_sink or job.sink)()

        def done(answers: list[Any], end: Mapping[str, Any]) -> None:
            attempts.progress.batches += 1
            attempts.progress.note_losses(end.get("dataLoss", ()))
            sink.count(attempts.progress, answers)
            attempts.batch_done()

        engine_of(session, sink, options, job.workers, attempts.watch).follow(
            once=job.once,
            interval_seconds=job.interval_seconds,
            on_batch=done,
            stop=attempts.stop,
            on_calm=attempts.calm,
        )

    with session_of(job) as session:
        attempts.run(lambda: attempt(session))
    on_end(attempts)
    return attempts.progress


def engine_of(
    spark: SparkSession | None, sink: ChangeSink, options: Mapping[str, str], workers: int | None, watch: BatchWatch
) -> Engine:
    """Return the engine that brings changes into a sink: a Spark session, or worker processes if it is None."""
    if spark is None:
        return LocalEngine(sink, parse(options, streaming=True), workers, watch)
    from headwater.pipelines.streaming import SparkEngine

    return SparkEngine(spark, sink, options, watch)
