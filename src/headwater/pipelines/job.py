"""The frame that the jobs share: their progress, and the two ways in which one follows a bucket.

`follow` gives batches of the `dcp` source to a function, from a checkpoint that Spark keeps: for jobs whose effects lie
elsewhere and may be had twice (copy, invalidate). `follow_into` brings them into a sink that knows how far it is
(sinks.py), with Spark or with worker processes: for jobs whose result must be exact (index, observe, and the mirror by
itself).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from headwater.pipelines.attempts import Attempts, patient_source
from headwater.pipelines.checkpoint import mend
from headwater.pipelines.query import own_session, started, until_ended
from headwater.pipelines.sinks import ChangeSink, Done
from headwater.spark.settings import parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class JobProgress:
    """How far a job is, after each batch, counted from the beginning of this run; each job has counts of its own.

    Attributes:
        batches: how many were done.
        rollbacks: vbuckets of which a failover took back changes that had been dealt with.
        retries: how often the job began anew; `problem` why, until a batch went well.
        seconds: since this run began.
        data_loss: vbuckets of which deletions were purged before this run came to them; each was read again whole.
    """

    ROWS: ClassVar[tuple[str, ...]] = ()
    """The counts of rows or changes, by what became of them."""

    batches: int = 0
    rollbacks: int = 0
    retries: int = 0
    problem: str = ""
    seconds: float = 0.0
    data_loss: list[int] = field(default_factory=list)

    def note_losses(self, vbuckets: Iterable[int | str]) -> None:
        """Note vbuckets in which deletions were missed."""
        self.data_loss = sorted({*self.data_loss, *map(int, vbuckets)})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON types."""
        return asdict(self)


P = TypeVar("P", bound=JobProgress)


def given(**options: str | None) -> dict[str, str]:
    """Return the options that were given."""
    return {name: text for name, text in options.items() if text is not None}


def follow(
    spark: SparkSession,
    attempts: Attempts[P],
    take: Callable[[DataFrame, int], None],
    options: Mapping[str, str],
    checkpoint: str | Path,
    *,
    columns: str = "",
    once: bool,
    interval_seconds: float,
) -> P:
    """Give each batch of a bucket's changes to `take`, until the job ends or is to end; returns the last progress.

    Args:
        attempts: begins anew after failures that may pass.
        take: deals with one batch, perhaps with one that it had before.
        options: of the source, with `url`.
        columns: of the source, as Spark writes a schema; all if left out.

    Raises:
        HeadwaterError: the query failed; what it had not noted as done is done again by the next run.
    """
    options = patient_source(options, attempts.retry_seconds)

    def attempt() -> None:
        beginning = {"startingOffsets": "earliest"} if mend(checkpoint) else {}
        reader = spark.readStream.format("dcp").options(**{**options, **beginning})
        stream = (reader.schema(columns) if columns else reader).load()
        until_ended(
            lambda: started(stream, take, checkpoint, once=once, interval_seconds=interval_seconds),
            attempts.stop,
            spark,
            attempts.watch,
            attempts.calm,
        )

    attempts.run(attempt)
    return attempts.progress


def follow_into(
    engine: str,
    name: str,
    attempts: Attempts[P],
    open_sink: Callable[[], ChangeSink],
    done: Done,
    options: Mapping[str, str],
    *,
    once: bool,
    interval_seconds: float,
    spark: SparkSession | None = None,
    workers: int | None = None,
) -> P:
    """Bring a bucket's changes into a sink, until the job ends or is to end; returns the last progress.

    Args:
        engine: `spark`, in `spark` or in a local session of its own named `name`; `local`, in worker processes.
        open_sink: called for each attempt.
        done: called after each batch.
        workers: processes of `local`: 0 for none but this one, None for one a core.

    Raises:
        SparkUnavailable: Spark can't be started here.
        HeadwaterError: what is not in the sink is done again by the next run.
    """
    options = patient_source(options, attempts.retry_seconds)

    def attempt(session: SparkSession | None) -> None:
        from headwater.pipelines.local import LocalEngine

        sink = open_sink()
        made: Any = LocalEngine(sink, parse(options, streaming=True), workers, attempts.watch)
        if session is not None:
            from headwater.pipelines.streaming import SparkEngine

            made = SparkEngine(session, sink, options, attempts.watch)
        told: dict[str, Any] = {"done": done, "stop": attempts.stop, "calm": attempts.calm}
        made.follow(once=once, interval_seconds=interval_seconds, **told)

    if engine == "spark" and spark is None:
        with own_session(name) as session:
            attempts.run(lambda: attempt(session))
    else:
        attempts.run(lambda: attempt(spark if engine == "spark" else None))
    return attempts.progress
