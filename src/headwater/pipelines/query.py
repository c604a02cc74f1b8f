"""A streaming query that gives its batches to a function of ours, and the local Spark session of a single job."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater.pipelines import starting
from headwater.pipelines.jobs import DeclaredJob
from headwater.pipelines.watch import NOBODY, BatchWatch

LOOK_SECONDS = 0.2
CALM_SECONDS = 5.0
"""The pause between two looks at whether a query is idle."""

BETWEEN_TRIGGERS = "Waiting for next trigger"
JVM_OPTIONS = "spark.driver.extraJavaOptions"
JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss16m"
"""For a JVM of our own: it moves batches along, so it needs neither its large compiler nor a parallel collector.

It needs deep stacks: when a batch is broken off, Spark looks through what it failed with by a regular expression that
takes several frames a character. With a megabyte, as threads have it otherwise, that was a StackOverflowError.
"""


@contextmanager
def own_session(
    app: str, memory: str = "1g", *, delta: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """Start a local Spark for one job, and end it with the job.

    Args:
        app: the name that Spark shows.
        memory: the memory of the JVM; `settings` override it.
        delta: with Delta Lake, for its catalogs.
        settings: further Spark settings.

    Raises:
        SparkUnavailable: Spark can't be started here.
    """
    from headwater.pipelines.session import local_session

    os.environ.setdefault("PYSPARK_PYTHON", starting.python())
    archive = starting.ClassArchive()
    configuration = dict(settings or {})
    configuration[JVM_OPTIONS] = f"{JVM} {archive.option} {configuration.get(JVM_OPTIONS, '')}".strip()
    spark = local_session(app, quiet=True, delta=delta, memory=memory, settings=configuration)
    try:
        yield spark
    finally:
        spark.stop()
    # Only after a run that went well, for the archive has the classes that it needed.
    if archive.wanted:
        _end_jvm(archive)


@contextmanager
def session_of(
    job: DeclaredJob[Any], memory: str = "1g", *, delta: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[Any]:
    """Yield the session for a job: its own, one that is started and ended with it, or None on the local engine.
    Arguments and errors are those of `own_session`.
    """
    if job.engine != "spark" or job.spark is not None:
        yield job.spark if job.engine == "spark" else None
        return
    with own_session(f"headwater-{job.NAME}", memory, delta=delta, settings=settings) as spark:
        yield spark


def _end_jvm(archive: starting.ClassArchive) -> None:
    """End the JVM, which PySpark would keep for the next session: only at its end it writes the archive of its
    classes.
    """
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is not None:
        print("headwater: first run, keeping Spark's classes for sooner starts; this happens once", file=sys.stderr)
        gateway.shutdown()
        SparkContext._gateway = SparkContext._jvm = None
        process.stdin.close()
        archive.keep(process)


def started(
    stream: Any, take: Callable[[Any, int], None], checkpoint: str | Path, *, once: bool, interval_seconds: float
) -> Any:
    """Start a query that gives each batch to `take`; with `once` it ends when it has all changes that were there at the
    start.
    """
    trigger = {"availableNow": True} if once else {"processingTime": f"{int(interval_seconds * 1000)} milliseconds"}
    return (
        stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).trigger(**trigger).start()
    )


def until_ended(
    start: Callable[[], Any],
    stop: Callable[[], bool],
    spark: Any,
    watch: BatchWatch,
    on_calm: Callable[[], None] = lambda: None,
) -> None:
    """Start a query and wait until it has ended, by itself or because `stop` returned True.

    Args:
        stop: called several times a second.
        on_calm: called now and then while the query finds nothing to do.

    Raises:
        StreamingQueryException: it failed.
    """
    with _watched(spark, watch) as started_as:
        query = start()
        started_as(str(query.id))
        _wait(query, stop, on_calm)


@contextmanager
def _watched(spark: Any, watch: BatchWatch) -> Iterator[Callable[[str], None]]:
    """Report a query's progress to a watch during the block; yield the function that sets the query's id."""
    if watch is NOBODY:
        yield lambda query: None
        return
    from headwater.spark.lag import QueryListener

    listener = QueryListener(watch.lag, watch.batch)
    spark.streams.addListener(listener)
    try:
        yield listener.query.set_result
    finally:
        listener.query.cancel()  # of a query that did not start: nobody is to wait for its name
        spark.streams.removeListener(listener)


def _wait(query: Any, stop: Callable[[], bool], on_calm: Callable[[], None]) -> None:
    looked_at = time.monotonic()
    try:
        while not query.awaitTermination(LOOK_SECONDS):
            if stop():
                query.stop()
            elif time.monotonic() >= looked_at + CALM_SECONDS:
                looked_at = time.monotonic()
                if _is_idle(query.status):
                    on_calm()
    finally:
        query.stop()


def _is_idle(status: Mapping[str, Any]) -> bool:
    """Return True if a query's last trigger went well and found no data."""
    return status["message"] == BETWEEN_TRIGGERS and not status["isDataAvailable"]
