"""The lake mirror: a Delta table that is kept equal to a bucket, batch after batch.

    node -> task: Parquet, index, dead rows -> driver: one Delta commit

A task drains its vbuckets, writes their documents to files and finds the rows that they replace in an index beside the
files; the driver makes one commit of all tasks' files, the vectors, and the table's new record. A batch may be planned,
read and written any number of times: it is in the table once its commit is, and only once, for a commit names the
record from which it was planned.

Two engines run the same tasks: Spark, on a laptop or a cluster, and worker processes of our own, without Java.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import OptionError
from headwater.lake.forms import FORMS
from headwater.lake.iceberg.place import CatalogName
from headwater.lake.layout import Formats
from headwater.lake.places import CHANGES, place_of
from headwater.lake.shape import TableForm
from headwater.lake.unfold import UNFOLDED
from headwater.lake.upkeep import Maintenance
from headwater.lake.writer import TaskResult
from headwater.pipelines.attempts import Attempts, attempts_of, patience, patient_source
from headwater.pipelines.catalog import NamedTable
from headwater.pipelines.failures import MirrorFailed, passes, reason
from headwater.pipelines.job import engine_of
from headwater.pipelines.jobs import Mirror, MirrorProgress
from headwater.pipelines.jobs.declared import with_session
from headwater.pipelines.local import Folds
from headwater.pipelines.query import session_of
from headwater.pipelines.sink import TableSink, changes_in
from headwater.pipelines.table import Making
from headwater.spark.planning import Planning
from headwater.spark.settings import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 10.0
"""The longest time that a stopped mirror waits for a fold: service managers kill after 30 s and more."""

__all__ = ["Mirror", "MirrorFailed", "MirrorProgress", "mirror", "work"]


def work(job: Mirror) -> MirrorProgress:
    """Keep a Delta table equal to a bucket, until `job.stop` returns True; return the last progress.

    A table keeps its shape: an unfolded table, say, stays unfolded without the option. The change log lies in the
    folder `<to>_changes`, the quarantine in `<to>_quarantine`. A name in a catalog is looked up at each start; `to` is
    then only the place of a new table.

    Raises:
        SparkUnavailable: Spark can't be started here.
        HeadwaterError: a failure that does not pass; the next run continues from the table's record.
    """
    begins = job.engine == "spark" and job.spark is None
    if begins and job.table is None and job.once and (level := _level(job)) is not None:
        return level
    with session_of(job, "512m", delta=job.table is not None, settings=job.conf) as spark:
        return _mirror(job, spark)


mirror: Final = with_session(Mirror)
"""Mirror with a session of Spark, or with worker processes where it is None."""


def _mirror(job: Mirror, spark: SparkSession | None) -> MirrorProgress:
    table, source_options = table_of(spark, job.table, job.to), retry_options(job)
    attempts, created = attempts_of(job, MirrorProgress()), set[str]()

    def attempt() -> None:
        sink = opened(table, job, created)
        with ExitStack() as stack:
            apart = stack.enter_context(closing(Folds())) if spark is None and job.workers != 0 else None
            batches = _Batches(attempts, sink, sink.maintenance(apart) if job.upkeep else [])
            stack.callback(batches.close)
            engine = engine_of(spark, sink, source_options | sink.source_options, job.workers, attempts.watch)
            engine.follow(
                once=job.once,
                interval_seconds=job.interval_seconds,
                on_batch=batches.done,
                stop=job.stop,
                on_calm=attempts.calm,
            )

    attempts.run(attempt)
    return attempts.progress


def _level(job: Mirror) -> MirrorProgress | None:
    """Return the progress of a table that has all changes; None if there is something to do, or a failure may pass.

    It saves the start of Spark, which takes longer than many batches.

    Raises:
        HeadwaterError: a failure that another attempt would meet again.
    """
    try:
        sink = opened(place_of(job.to or ""), job)
        planning = Planning(parse(job.source_options(), streaming=True), settle=True)
        try:
            planning.aim()
            end = planning.latest(dict(sink.record.end), None)
        finally:
            planning.close()
    except Exception as error:
        if passes(error):
            return None  # the mirror will meet it, too, and wait
        raise reason(error) from error
    if end != sink.record.end:
        return None
    return MirrorProgress(batch=sink.record.batch, changes=changes_in(sink.record.end))


def table_of(spark: SparkSession | None, table: str | None, to: str | Path | None) -> str | NamedTable:
    """Return the table that `to` (a folder) or `table` (a catalog name) names.

    Raises:
        OptionError: neither is given, or a name without a session.
    """
    if table is not None:
        return NamedTable(spark, table, to)
    if to is None:
        raise OptionError("to", "", "the table's folder or url; or a name in a catalog is given with --table")
    return place_of(to)


def opened(table: str | NamedTable, job: Mirror, created: set[str] | None = None) -> TableSink:
    """Open a table, created if there is none, and register its name if it has one.

    Args:
        table: its place or its name.
        job: the job with its bucket and shape.
        created: as of `Table`.

    Raises:
        TableError: as `TableSink` and `NamedTable`.
    """
    if isinstance(table, str):
        return sink_of(job, table, job.bucket, created, catalog=CatalogName.parse(job.catalog) if job.catalog else None)
    with table.naming():
        sink = opened(table.place(), job, created)
    table.register(sink)
    return sink


def sink_of(
    job: Mirror,
    place: str,
    bucket: str,
    created: set[str] | None,
    making: Making = Making.CLEAR,
    catalog: CatalogName | None = None,
) -> TableSink:
    """Return a table in the shape of a job. An existing table keeps its shape: a start without the option, as from a
    rewritten cron line, does not change it.
    """
    return TableSink(
        place,
        bucket,
        changelog=f"{place}{CHANGES}" if job.changelog else None,
        befores=job.before,
        form=_form(job),
        copy_on_write=job.copy_on_write,
        quarantine=job.quarantine,
        formats=Formats(job.format),
        catalog=catalog,
        row_ids=job.row_ids,
        widen=job.widen,
        making=making,
        created=created,
    )


def _form(job: Mirror) -> TableForm | None:
    """Return the form in a job's options; None to keep that of the table."""
    forms = [form for form in FORMS if getattr(job, form.option) or (form is UNFOLDED and job.json)]
    if len(forms) > 1:
        first, second, *_ = (form.option for form in forms)
        raise OptionError(first, "true", f"without {second}: a table keeps documents in one form")
    return forms[0] if forms else None


def retry_options(job: Mirror) -> dict[str, str]:
    """Return the options of the source, which waits for a node no longer than the job goes on trying."""
    seconds = patience(job.retry_seconds, once=job.once)
    retry = {} if job.once or job.retry_seconds is not None else {"retrySeconds": "300"}
    return patient_source(retry | job.source_options(), seconds)


def do_upkeep(maintenance: Sequence[Maintenance]) -> str:
    """Do the upkeep of the tables that is due; return the last problem of it, or an empty text."""
    problem = ""
    for each in maintenance:
        each.step()
        problem = each.problem or problem
    return problem


def end_upkeep(maintenance: Sequence[Maintenance], attempts: Attempts[MirrorProgress]) -> None:
    """Finish the upkeep under way, and report its problem. A stopped mirror does not wait long for it."""
    for each in maintenance:
        each.close(finish=True, seconds=STOP_SECONDS if attempts.stop() else None)
        if each.problem:
            attempts.remark(each.problem)


class _Batches:
    """The counts of the batches of one attempt, and the table's upkeep between them."""

    def __init__(self, attempts: Attempts[MirrorProgress], sink: TableSink, maintenance: Sequence[Maintenance]) -> None:
        self._attempts, self._maintenance = attempts, maintenance
        progress = attempts.progress
        progress.batch, progress.changes = sink.record.batch, changes_in(sink.record.end)

    def done(self, results: list[TaskResult], end: Mapping[str, Any]) -> None:
        """Count a batch that is in the table, and do the upkeep that is due."""
        progress = self._attempts.progress
        progress.count(results)
        progress.note_losses(end)
        progress.batch, progress.changes = progress.batch + 1, changes_in(end)
        self._attempts.batch_done(do_upkeep(self._maintenance))

    def close(self) -> None:
        """Finish the upkeep under way. A stopped mirror does not wait long for it."""
        end_upkeep(self._maintenance, self._attempts)
