"""The lake mirror: a Delta table that is what the bucket is, batch after batch.

    node -> dcp source -> micro-batch -> [change log: append] -> table: one MERGE

Every batch may come twice: Spark repeats one that it had not noted as done. So everything that a batch does is
idempotent: Delta skips a (query, batch) that it knows, and a change that is not newer than its row does nothing. The
two tables are written one after the other, the log first: after a crash between them the log is ahead by one batch,
never behind.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.errors import HeadwaterError
from headwater.pipelines.changelog import ChangeLog
from headwater.pipelines.session import local_session
from headwater.pipelines.table import KEPT, MirrorTable, newest, restored
from headwater.pipelines.unfold import Unfolding, infer
from headwater.spark.offsets import Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOOK_SECONDS = 0.2
CHECKPOINT = "_checkpoint"
_OURS = re.compile(r"headwater\.(?:errors|pipelines\.\w+)\.(\w+): (.+)")


class MirrorFailed(HeadwaterError):  # noqa: N818 -- says what happened
    """The mirror ended; `problem` is the reason, in one line."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem

    def __str__(self) -> str:
        return self.problem


@dataclass
class Progress:
    """How far a mirror is, after each batch.

    Attributes:
        batch: number of the last batch that is in the table; -1 before the first.
        changes: seqnos of the bucket that the table covers, over all vbuckets. Equal to the sum of the nodes' high
        seqnos
            when the table is level with them.
        mutations, deletions: rows of this run (expirations count as deletions).
        rollbacks: vbuckets whose lost changes this run took back.
        seconds: since this run began.
        conflicts: JSON fields that do not fit their column (only when values are unfolded).
    """

    batch: int = -1
    changes: int = 0
    mutations: int = 0
    deletions: int = 0
    rollbacks: int = 0
    seconds: float = 0.0
    conflicts: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as a dict of JSON types."""
        return asdict(self)


def run(
    url: str,
    to: str | Path,
    *,
    once: bool = False,
    changelog: bool = False,
    json: bool = False,
    user: str | None = None,
    password: str | None = None,
    progress: Callable[[Progress], None] = lambda told: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Mirror a bucket with a local Spark of its own; the arguments are those of `mirror`."""
    spark = local_session("headwater-mirror", quiet=True)
    login = {name: text for name, text in (("user", user), ("password", password)) if text is not None}
    try:
        return mirror(
            spark, url, to, once=once, changelog=changelog, json=json, options=login, progress=progress, stop=stop
        )
    finally:
        spark.stop()


def mirror(
    spark: SparkSession,
    source: str,
    to: str | Path,
    *,
    once: bool = False,
    changelog: bool = False,
    json: bool = False,
    options: Mapping[str, str] | None = None,
    interval_seconds: float = 1.0,
    progress: Callable[[Progress], None] = lambda told: None,
    stop: Callable[[], bool] = lambda: False,
) -> Progress:
    """Keep a Delta table equal to a bucket, until told to stop.

    Args:
        spark: a session with Delta Lake and the `dcp` source (`pipelines.session.local_session` makes one).
        source: the bucket, couchbase://host:port/bucket.
        to: where the table lies. The checkpoint lies inside of it, the change log beside it as `<to>_changes`.
        once: end when everything that was there at the start is in the table.
        changelog: keep every change as a row, too.
        json: unfold JSON documents into columns; keys are then text.
        options: more options of the source, such as `maxChangesPerTrigger` or `user`.
        interval_seconds: time from the start of one batch to that of the next, at least.
        progress: called after each batch.
        stop: asked several times a second; True ends the mirror.

    Returns: the last progress.

    Raises:
        MirrorFailed: the query failed; what it had not committed is done again by the next run.
    """
    place = str(to)
    chosen = {"keyFormat": "string"} if json else {}
    chosen |= {"retrySeconds": "300"} if not once else {}
    chosen |= dict(options or {})
    _refuse_orphan(spark, place)
    job = _Job(spark, source, place, chosen, changelog=changelog, json=json)
    trigger: dict[str, Any] = {"processingTime": f"{int(interval_seconds * 1000)} milliseconds"}
    writer = (
        spark.readStream.format("dcp")
        .options(**chosen)
        .load(source)
        .writeStream.foreachBatch(job.take)
        .option("checkpointLocation", f"{place}/{CHECKPOINT}")
        .trigger(**({"availableNow": True} if once else trigger))
    )
    query = writer.start()
    job.query_id.set_result(str(query.id))
    return _watch(query, job, progress, stop)


def _refuse_orphan(spark: SparkSession, place: str) -> None:
    """A table without its checkpoint can't be brought up to date: what was deleted meanwhile may be purged by now."""
    from delta.tables import DeltaTable

    known = Path(place, CHECKPOINT, "metadata").exists() or "://" in place
    if not known and DeltaTable.isDeltaTable(spark, place) and not spark.read.format("delta").load(place).isEmpty():
        raise MirrorFailed(f"{place} holds a table, but its {CHECKPOINT} is gone: remove it, or mirror elsewhere")


class _Job:
    """What is done to each batch."""

    def __init__(
        self, spark: SparkSession, source: str, place: str, options: dict[str, str], *, changelog: bool, json: bool
    ) -> None:
        self.source = source
        self.restoring = {name: text for name, text in options.items() if name.lower() not in _STREAMING_ONLY}
        self.table = MirrorTable(spark, place, "string" if json else "binary")
        self.log = ChangeLog(spark, f"{place}_changes") if changelog else None
        self.unfolding = Unfolding() if json else None
        self.query_id: Future[str] = Future()
        self.told = Progress()

    def take(self, batch: DataFrame, number: int) -> None:
        """Write one batch; called by Spark, again should it not have noted that the batch was done."""
        batch.persist()  # Spark reads the source anew for each use
        try:
            summary = _summary(batch)
            if summary:
                self._write(batch, number, summary)
        finally:
            batch.unpersist()

    def _write(self, batch: DataFrame, number: int, summary: list[Any]) -> None:
        transaction = (self.query_id.result(), number)
        rollbacks = {row.vbucket: row.rollback for row in summary if row.rollback is not None}
        if self.log is not None:
            spans = {row.vbucket: (row.low, row.high) for row in summary if row.low is not None}
            self.log.append(batch, spans, rollbacks, transaction)
        changes = batch.where("event <> 'rollback'")
        older = restored(batch.sparkSession, self.source, self.restoring, rollbacks)
        if older is not None:
            # A merge looks at its source more than once; the node may have moved on in between.
            changes = changes.unionByName(older).persist()
        merged, columns = self._unfolded(newest(changes))
        self.table.merge(merged, rollbacks, columns, transaction)
        changes.unpersist()
        self.told.mutations += sum(row.mutations for row in summary)
        self.told.deletions += sum(row.deletions for row in summary)
        self.told.rollbacks += len(rollbacks)

    def _unfolded(self, changes: DataFrame) -> tuple[DataFrame, list[str]]:
        if self.unfolding is None:
            return changes, list(KEPT)
        spark = changes.sparkSession
        present = self.table.columns(spark)
        added = self.unfolding.learn(infer(changes), present, KEPT)
        self.table.add_columns(spark, added)
        self.told.conflicts = sorted(self.unfolding.conflicts)
        columns = present | added
        return self.unfolding.apply(changes, columns), list(columns)


_STREAMING_ONLY = {"maxchangespertrigger", "pollintervalseconds", "startingoffsets"}


def _summary(batch: DataFrame) -> list[Any]:
    """Return, for each vbucket of a batch: span of seqnos, counts, and the seqno it was rolled back to."""
    from pyspark.sql import functions as f

    back = f.col("event") == "rollback"
    seqno = f.when(~back, f.col("seqno"))
    return (
        batch.groupBy("vbucket")
        .agg(
            f.min(seqno).alias("low"),
            f.max(seqno).alias("high"),
            f.count_if(f.col("event") == "mutation").alias("mutations"),
            f.count_if(f.col("event").isin("deletion", "expiration")).alias("deletions"),
            f.min(f.when(back, f.col("seqno"))).alias("rollback"),
        )
        .collect()
    )


def _watch(query: Any, job: _Job, progress: Callable[[Progress], None], stop: Callable[[], bool]) -> Progress:
    """Report each batch when it is done, until the query ends or is to end."""
    began = time.monotonic()
    try:
        while not query.awaitTermination(LOOK_SECONDS):
            _report(query, job, progress, began)
            if stop():
                query.stop()
        _report(query, job, progress, began)
    except Exception as error:
        raise _reason(error) from error
    finally:
        query.stop()
    return job.told


def _report(query: Any, job: _Job, progress: Callable[[Progress], None], began: float) -> None:
    last = query.lastProgress
    if last is None or not last["sources"] or last["sources"][0]["endOffset"] is None:
        return
    batch, end = int(last["batchId"]), last["sources"][0]["endOffset"]
    changes = sum(position.seqno for position in Offset.from_json(_decoded(end)).positions.values())
    if (batch, changes) != (job.told.batch, job.told.changes):
        job.told.batch, job.told.changes = batch, changes
        job.told.seconds = round(time.monotonic() - began, 3)
        progress(job.told)


def _decoded(offset: Any) -> Any:
    import json  # here, because `json` is the name of an option

    return json.loads(offset) if isinstance(offset, str) else offset


def _reason(error: Exception) -> HeadwaterError:
    """Return what went wrong in one line, without the traceback that Spark wraps around it."""
    if isinstance(error, HeadwaterError):
        return error
    ours = _OURS.findall(str(error))
    if ours:
        return MirrorFailed(ours[-1][1].strip())
    first = str(error).strip().splitlines() or [type(error).__name__]
    return MirrorFailed(first[0])
