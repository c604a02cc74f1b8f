"""The lake mirror: a Delta table that is what the bucket is, batch after batch.

    node -> task: Parquet, index, dead rows -> driver: one Delta commit

A task drains its vbuckets, writes their documents to files and finds the rows that they replace in an index beside the
files; the driver makes one commit of all tasks' files, vectors, and of how far the table then is. A batch may be
planned, read and written any number of times: it is in the table when its commit is, and only once, for a commit names
the state it was planned from.

Two engines run the same tasks: Spark, on a laptop or a cluster, and worker processes of our own, without Java.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from headwater.errors import OptionError
from headwater.lake.places import CHANGES, place_of
from headwater.lake.upkeep import Maintenance
from headwater.lake.writer import TaskResult
from headwater.pipelines.attempts import Attempts, patience, patient_source
from headwater.pipelines.catalog import NamedTable
from headwater.pipelines.failures import MirrorFailed, passes, reason
from headwater.pipelines.local import Folds, LocalEngine
from headwater.pipelines.query import own_session
from headwater.pipelines.sink import TableSink, bucket_of, changes_in
from headwater.pipelines.sinks import Done
from headwater.pipelines.watch import NOBODY, BatchWatch
from headwater.spark.planning import Planning
from headwater.spark.settings import parse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STOP_SECONDS = 10.0
"""How long a mirror that was told to stop waits for a fold: service managers kill after 30 s and more."""

__all__ = ["MirrorFailed", "MirrorProgress", "mirror", "run"]


@dataclass
class MirrorProgress:
    """How far a mirror is, after each batch.

    Attributes:
        batch: how many batches are in the table, over all runs.
        changes: seqnos of the bucket that the table covers, over all vbuckets. Equal to the sum of the nodes' high
            seqnos when the table is level with them.
        mutations, deletions: changes of this run (expirations count as deletions).
        rollbacks: vbuckets whose lost changes this run took back.
        data_loss: vbuckets of which deletions were purged before this run came to them; each was read again whole.
        quarantined: how many changes of this run brought a document that does not fit into the quarantine.
        seconds: since this run began.
        retries: how often this run began anew after a failure that passed.
        problem: what the last of them was, until a batch went well.
        conflicts: JSON fields that do not fit their column (only when values are unfolded).
        collection: whose table had the last batch, of a mirror with a table for each collection; the numbers are of all
            tables together then.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("mutations", "deletions")

    batch: int = 0
    changes: int = 0
    mutations: int = 0
    deletions: int = 0
    rollbacks: int = 0
    quarantined: int = 0
    seconds: float = 0.0
    retries: int = 0
    problem: str = ""
    conflicts: list[str] = field(default_factory=list)
    data_loss: list[int] = field(default_factory=list)
    collection: str = ""

    def count(self, written: Sequence[TaskResult]) -> None:
        """Add what a batch's tasks did."""
        for each in written:
            self.mutations += each.counts.get("mutations", 0)
            self.deletions += each.counts.get("deletions", 0)
            self.rollbacks += each.counts.get("rollbacks", 0)
            self.quarantined += each.counts.get("quarantined", 0)
        self.conflicts = sorted({*self.conflicts, *(line for each in written for line in each.conflicts)})

    def note_losses(self, end: Mapping[str, Any]) -> None:
        """Note the data losses that the offset of a batch names."""
        self.data_loss = sorted({*self.data_loss, *map(int, end.get("dataLoss", ()))})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON types."""
        return asdict(self)


class Engine(Protocol):
    """The engine that runs a mirror's tasks."""

    def follow(
        self,
        *,
        once: bool,
        interval_seconds: float,
        done: Done,
        stop: Callable[[], bool],
        calm: Callable[[], None] = ...,
    ) -> None:
        """Bring the table up to date, and keep it so unless `once`."""


def run(
    url: str,
    to: str | Path | None = None,
    *,
    engine: str = "spark",
    table: str | None = None,
    conf: Mapping[str, str] | None = None,
    once: bool = False,
    changelog: bool = False,
    json: bool = False,
    copy_on_write: bool = False,
    variant: bool = False,
    quarantine: bool = False,
    upkeep: bool = True,
    user: str | None = None,
    password: str | None = None,
    reading: Mapping[str, str] | None = None,
    retry_seconds: float | None = None,
    progress: Callable[[MirrorProgress], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
    watch: BatchWatch = NOBODY,
) -> MirrorProgress:
    """Mirror a bucket with a Spark or worker processes of its own; the arguments are those of `mirror`.

    Args:
        engine: `spark` or `local`.
        reading: more options of the source, such as `minPersisted`.
        conf: settings of the Spark session, such as those of a catalog.

    Raises:
        SparkUnavailable: Spark can't be started here.
    """
    login = {name: text for name, text in (("user", user), ("password", password)) if text is not None}
    login |= reading or {}
    asked: dict[str, Any] = {"once": once, "changelog": changelog, "json": json, "options": login, "upkeep": upkeep}
    asked |= {"copy_on_write": copy_on_write, "variant": variant, "quarantine": quarantine}
    asked |= {"retry_seconds": retry_seconds, "progress": progress, "stop": stop, "watch": watch, "table": table}
    if engine == "local":
        return mirror(None, url, to, **asked)
    shape = shape_of(json=json, variant=variant, copy_on_write=copy_on_write, quarantine=quarantine)
    if table is None and to is not None and once:
        found = _level(url, to, changelog=changelog, shape=shape, options=login)
        if found is not None:
            return found
    with own_session("headwater-mirror", memory="512m", delta=table is not None, settings=conf) as spark:
        return mirror(spark, url, to, **asked)


def mirror(
    spark: SparkSession | None,
    source: str,
    to: str | Path | None = None,
    *,
    table: str | None = None,
    once: bool = False,
    changelog: bool = False,
    json: bool = False,
    copy_on_write: bool = False,
    variant: bool = False,
    quarantine: bool = False,
    options: Mapping[str, str] | None = None,
    upkeep: bool = True,
    workers: int | None = None,
    interval_seconds: float = 1.0,
    retry_seconds: float | None = None,
    progress: Callable[[MirrorProgress], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
    watch: BatchWatch = NOBODY,
) -> MirrorProgress:
    """Keep a Delta table equal to a bucket, until `stop` says so.

    Args:
        spark: a session; it needs no Delta Lake. None for worker processes instead.
        source: the bucket, couchbase://host:port/bucket.
        to: the table's folder, which all workers see; made if missing. The change log lies beside it as `<to>_changes`.
        table: the table's name in a catalog of the session, `catalog.schema.name`, looked up at each start; the change
            log and the quarantine have names beside it. With a name `to` is only where a new table is made.
        once: end when everything that was there at the start is in the table.
        changelog: keep every change as a row, too.
        json: unfold JSON documents into columns; keys are then text. A table that is made so stays so, without it too.
        copy_on_write: for readers without deletion vectors: a file that loses rows is written anew, which costs as much
            as the files that a batch touches are large. A new table only; one that was made so stays so.
        variant: instead, keep each JSON document as one VARIANT, in the column `document`; keys are then text. It stays
            so likewise.
        quarantine: with one of the two, keep a table `<to>_quarantine` of the documents that are no JSON (with `json`:
            no JSON objects), or whose keys are no text, and why (`lake/quarantine.py`). A table that has one keeps it.
        options: more options of the source, such as `maxChangesPerTrigger` or `user`.
        upkeep: fold small files, rewrite mostly dead ones, checkpoint the log, remove old files (`lake/upkeep.py`).
        workers: processes, where there is no session: 0 for none but this one, None for one a core.
        interval_seconds: time from the start of one batch to that of the next, at least.
        retry_seconds: how long to go on trying after a failure that may pass, without a batch that went well; None for
            300, and 30 with `once`.
        progress: called after each batch and before each new try, in whatever thread.
        stop: asked several times a second; True ends the mirror.
        watch: is told of each batch's time, and of how far the table is behind the bucket.

    Returns: the last progress.

    Raises:
        HeadwaterError: what is not in the table is done again by the next run.
    """
    named = table_of(spark, table, to)
    chosen, seconds = retry_options(source, options, retry_seconds, once=once)
    shape = shape_of(json=json, variant=variant, copy_on_write=copy_on_write, quarantine=quarantine)
    attempts = Attempts(MirrorProgress(), progress, stop=stop, retry_seconds=seconds, watch=watch)
    seen: set[str] = set()

    def attempt() -> None:
        sink = opened(named, bucket_of(source), changelog=changelog, shape=shape, seen=seen)
        with ExitStack() as stack:
            apart = stack.enter_context(closing(Folds())) if spark is None and workers != 0 else None
            batches = _Batches(attempts, sink, sink.maintenance(apart) if upkeep else [])
            stack.callback(batches.close)
            engine = engine_of(spark, sink, chosen, workers, watch)
            heard: dict[str, Any] = {"done": batches.done, "stop": stop, "calm": attempts.calm}
            engine.follow(once=once, interval_seconds=interval_seconds, **heard)

    attempts.run(attempt)
    return attempts.progress


def _level(
    url: str, to: str | Path, *, changelog: bool, shape: Mapping[str, bool | None], options: Mapping[str, str]
) -> MirrorProgress | None:
    """Return the progress of a table that has all there is, None if there is something to do: starting Spark to find
    that out takes longer than many a batch.

    Raises:
        HeadwaterError: what another try will meet again.
    """
    try:
        place = place_of(to)
        sink = opened(place, bucket_of(url), changelog=changelog, shape=shape)
        planning = Planning(parse({"url": url} | dict(options), streaming=True), settle=True)
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
    """Return a table by its place or by its name, as `mirror` is told.

    Raises:
        OptionError: neither, or a name where there is no session.
    """
    if table is not None:
        return NamedTable(spark, table, to)
    if to is None:
        raise OptionError("to", "", "the table's folder or url; or a name in a catalog is given with --table")
    return place_of(to)


def shape_of(*, json: bool = False, variant: bool = False, **others: bool) -> dict[str, bool | None]:
    """Return arguments of `TableSink` from those of `mirror`. A table that is there keeps its shape: a start that does
    not ask for it again, as when a line of cron was written anew, does not ask for another."""
    return {"unfold": json or None, "variant": variant or None, **others}


def opened(
    table: str | NamedTable,
    bucket: str,
    *,
    changelog: bool,
    shape: Mapping[str, Any],
    seen: set[str] | None = None,
) -> TableSink:
    """Open a table, made if there is none, and see to it that it has its name if it is to have one.

    Args:
        table: by its place or by its name.
        bucket: its bucket's name.
        changelog: whether a change log lies beside it.
        shape: arguments of `TableSink`.
        seen: as of `Table`.

    Raises:
        TableError: as `TableSink` and `NamedTable`.
    """
    if isinstance(table, str):
        return TableSink(table, bucket, changelog=f"{table}{CHANGES}" if changelog else None, seen=seen, **shape)
    with table.naming():
        sink = opened(table.place(), bucket, changelog=changelog, shape=shape, seen=seen)
    table.register(sink)
    return sink


def retry_options(
    source: str, options: Mapping[str, str] | None, retry_seconds: float | None, *, once: bool
) -> tuple[dict[str, str], float]:
    """Return the options of the source, and for how many seconds to go on without a batch that went well."""
    seconds = patience(retry_seconds, once=once)
    mine = {} if once or retry_seconds is not None else {"retrySeconds": "300"}
    return patient_source({"url": source, **mine, **(options or {})}, seconds), seconds


def engine_of(
    spark: SparkSession | None, sink: TableSink, options: Mapping[str, str], workers: int | None, watch: BatchWatch
) -> Engine:
    """Return what runs a mirror's tasks: a Spark session, or worker processes."""
    settings = parse(options, streaming=True)
    if spark is None:
        return LocalEngine(sink, settings, workers, watch)
    from headwater.pipelines.streaming import SparkEngine

    return SparkEngine(spark, sink, options, watch)


def cared_for(maintenance: Sequence[Maintenance]) -> str:
    """Do the upkeep that is due; return its problem, if it had one."""
    problem = ""
    for each in maintenance:
        each.step()
        problem = each.problem or problem
    return problem


def end_upkeep(maintenance: Sequence[Maintenance], attempts: Attempts[MirrorProgress]) -> None:
    """Bring in the upkeep that is under way, and tell its problem. A mirror that was told to stop does not wait long
    for it."""
    for each in maintenance:
        each.close(finish=True, seconds=STOP_SECONDS if attempts.stop() else None)
        if each.problem:
            attempts.remark(each.problem)


class _Batches:
    """Counts the batches of one attempt, and lets the table be cared for between two of them."""

    def __init__(self, attempts: Attempts[MirrorProgress], sink: TableSink, maintenance: Sequence[Maintenance]) -> None:
        self._attempts, self._maintenance = attempts, maintenance
        progress = attempts.progress
        progress.batch, progress.changes = sink.record.batch, changes_in(sink.record.end)

    def done(self, written: list[TaskResult], end: Mapping[str, Any]) -> None:
        """Count a batch that is in the table, and do the upkeep that is due."""
        progress = self._attempts.progress
        progress.count(written)
        progress.note_losses(end)
        progress.batch, progress.changes = progress.batch + 1, changes_in(end)
        self._attempts.batch_done(cared_for(self._maintenance))

    def close(self) -> None:
        """Bring in the upkeep that is under way. A mirror that was told to stop does not wait long for it."""
        end_upkeep(self._maintenance, self._attempts)
