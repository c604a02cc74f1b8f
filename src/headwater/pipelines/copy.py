"""Bucket to bucket on Spark: each change stored at the target with its revision, CAS, expiry and attributes.

    node -> dcp source -> task: SET_WITH_META, DELETE_WITH_META -> target

The version with the higher (revision, CAS) wins, as everywhere in this family, so a batch may come twice and others may
write to the target. Changes that a failover takes back at the source are taken back at the target (restore.py): the
conflict rule does not help there, since the lost revision may be the higher one. Changes that a failover takes back at
the target are sent there again (target_histories.py).

Documents keep their collections, by name; carried.py creates these at the target.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import ConnectionLost
from headwater.pipelines.attempts import Attempts, attempts_of
from headwater.pipelines.beside import FileBeside
from headwater.pipelines.carried import Carried, CarriedCollections, CarriedFile, as_source, choice
from headwater.pipelines.job import follow
from headwater.pipelines.jobs import BucketCopy, CopyProgress
from headwater.pipelines.owners import COPY, CheckpointOwner, bucket_end, claim
from headwater.pipelines.query import session_of
from headwater.pipelines.restore import restore, send_again
from headwater.pipelines.target_histories import FILE as HISTORIES
from headwater.pipelines.target_histories import TargetHistories
from headwater.spark import nodes, settings
from headwater.spark.nodes import SourceNodes, patiently
from headwater.spark.rows import check_columns
from headwater.spark.schema import ON_REQUEST, ddl, types
from headwater.spark.settings import SourceSettings, WriteSettings
from headwater.spark.writing import WriteCounts, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ID = "collection_id"
_LOST = (
    "%s: a failover took back copied changes in %d vbuckets; what the source has in %d of its vbuckets is sent again"
)

TRIES: Final = 3
"""The times that a batch is written while new branches begin at the target under it."""

log: Final = logging.getLogger(__name__)


def work(job: BucketCopy) -> CopyProgress:
    """Keep one bucket level with another, until `job.stop` returns True; return the last progress.

    After a rollback of the source, `job.rollback` decides: make the vbucket at the target equal to the source's
    (`restore`), leave it as it is (for a target that others write to), or end the copy.

    Raises:
        OptionError: an option is wrong, the checkpoint is of another job, source or target, or a collection can't be
            created there.
        SparkUnavailable: Spark can't be started here.
        HeadwaterError: the query failed; the next run repeats the batches that Spark has not noted as done.
    """
    source_options, writer_options = job.source_options(), job.target_options()
    ends = settings.parse(source_options, streaming=True), settings.parse_write(writer_options)
    attempts = attempts_of(job, CopyProgress())
    seconds = attempts.retry_seconds
    with session_of(job) as spark:
        carried, file = _carried_collections(CarriedFile(job.place, spark), source_options, *ends, job.into, seconds)
        options = source_options | carried.options()
        reads, writes = settings.parse(options, streaming=True), ends[1]
        check = partial(_claim, file, reads, writes, seconds)
        collections = CarriedCollections(reads, writes, carried, file, job.dropped, check) if carried.chooses else None
        histories = TargetHistories(as_source(writes), FileBeside(job.place, HISTORIES, spark))
        batches = _Batches(
            reads, writes, attempts, collections, histories, restores=job.rollback == "restore", check=check
        )
        columns = f"{ddl(collections=True)}, {_ID} {ON_REQUEST[_ID][0]}" if collections else ""
        try:
            if collections is not None:
                patiently(collections.settle, seconds)  # what is missing is told before the first batch
            return follow(job, spark, attempts, batches.take, options, columns, partial(batches.begin, spark))
        finally:
            histories.close()
            if collections is not None:
                collections.close()


def _carried_collections(
    file: CarriedFile,
    source_options: Mapping[str, str],
    reads: SourceSettings,
    writes: WriteSettings,
    into: str | None,
    seconds: float,
) -> tuple[Carried, CarriedFile]:
    """Return the collections of a copy, and the file that notes them, if the checkpoint belongs to this copy."""
    _claim(file, reads, writes, seconds)
    carried = choice(file.load(), source_options, into, reads)
    file.save(carried)
    return carried, file


def _claim(file: CarriedFile, reads: SourceSettings, writes: WriteSettings, seconds: float) -> None:
    """Check that the checkpoint belongs to these two buckets."""
    ends = [bucket_end(each, seconds) for each in (reads, as_source(writes))]
    claim(file.checkpoint, CheckpointOwner(COPY, *ends), file.spark)


@dataclass(frozen=True)
class _Outcome:
    """The counts of a batch: rows by the result of their write, vbuckets that rolled back, and rows of dropped
    collections.
    """

    written: WriteCounts
    rollbacks: int
    left_out: int


class _Batches:
    """A copier of batches, which counts their changes."""

    def __init__(
        self,
        source: SourceSettings,
        target: WriteSettings,
        attempts: Attempts[CopyProgress],
        collections: CarriedCollections | None,
        histories: TargetHistories,
        *,
        restores: bool,
        check: Callable[[], None],
    ) -> None:
        from headwater.spark.deadletters import located, prepare_folder

        if target.dead_letters is not None:
            target = replace(target, dead_letters=prepare_folder(located(target.dead_letters)))
        self._source, self._target, self._restores, self._attempts = source, target, restores, attempts
        self._collections, self._histories, self._check = collections, histories, check

    def begin(self, spark: SparkSession) -> None:
        """Send again what the target has lost since the last batch, which may have been in another run, and note its
        histories.
        """
        self._level(spark)
        self._histories.note()

    def take(self, batch: DataFrame, number: int) -> None:
        """Copy one batch; Spark calls this again if it has not noted that the batch was done."""
        for _ in range(TRIES):
            outcome = self._copy_batch(batch, number)
            if self._histories.note():
                self._count(outcome)
                return
        problem = "nodes are restarted or failed over again and again while a batch is written"
        raise ConnectionLost(self._target.url, problem)

    def _copy_batch(self, batch: DataFrame, number: int) -> _Outcome:
        """Write a batch, and repair the changes that a failover took back at either end."""
        # Looked up before the rows are written: those of a collection that nobody knew by then are left out, and
        # `check_left_out` finds them below.
        alive = None if self._collections is None else self._collections.settle()
        self._level(batch.sparkSession)
        rows = batch.mapInArrow(_writing(self._target, number, alive), "counts string").collect()
        parts = [json.loads(row.counts) for row in rows]
        left_out = sum((Counter(part["left_out"]) for part in parts), Counter[str]())
        if self._collections is not None:
            self._collections.check_left_out([int(each) for each in left_out])
        counts_ = sum((WriteCounts(**part["written"]) for part in parts), WriteCounts())
        branch_ends = {int(vb): seqno for part in parts for vb, seqno in part["rollbacks"].items()}
        highs = {int(vb): seqno for part in parts for vb, seqno in part["highs"].items()}
        self._attempts.progress.note_losses(vb for part in parts for vb in part["data_loss"])
        # Compared up to where this batch has come, not only to the rollback: it may have written behind it already.
        ends = {vb: max(seqno, highs.get(vb, 0)) for vb, seqno in branch_ends.items()}
        if branch_ends and self._restores:
            self._check()  # what was made anew under its name is no history to go back in
            self._attempts.progress.restored += self._restore_documents(batch.sparkSession, ends)
            self._histories.forced |= branch_ends.keys()
        self._histories.copied |= {
            vb: max(seqno, self._histories.copied.get(vb, 0)) for vb, seqno in highs.items()
        } | ends
        return _Outcome(counts_, len(branch_ends), left_out.total())

    def _count(self, outcome: _Outcome) -> None:
        progress, counts_ = self._attempts.progress, outcome.written
        progress.batches, progress.rollbacks = progress.batches + 1, progress.rollbacks + outcome.rollbacks
        progress.stored, progress.deleted = (
            progress.stored + counts_.stored,
            progress.deleted + counts_.deleted + counts_.absent,
        )
        progress.behind, progress.refused = progress.behind + counts_.behind, progress.refused + counts_.refused
        progress.left_out += outcome.left_out
        self._attempts.batch_done()

    def _level(self, spark: SparkSession) -> None:
        """Write copied changes again that a failover took back at the target."""
        affected = self._histories.lost()
        if not affected:
            return
        self._check()  # one that was made anew has nothing of what was copied, nor of what others wrote
        with nodes.connect(self._source) as origin:
            count = origin.map.vbuckets
        numbers = self._source.vbuckets or range(count)
        # With another number of vbuckets a key has another one there: then any vbucket of the source may be concerned.
        concerned = [vb for vb in numbers if vb in affected or count != self._histories.vbuckets()]
        log.warning(_LOST, self._target.url, len(affected), len(concerned))
        ends = {vb: end for vb in concerned if (end := self._histories.reached(vb))}
        forced = {vb: end for vb, end in ends.items() if self._restores and vb in self._histories.forced}
        sent_count = self._sent_again(spark, {vb: end for vb, end in ends.items() if vb not in forced})
        self._attempts.progress.restored += self._restore_documents(spark, forced) + sent_count

    def _settled_source(self) -> SourceSettings:
        """Return the source's settings with the newest map of all of its nodes, for the tasks of a batch.

        A former owner that was cut off may still answer, with changes that a failover took back.
        """
        with closing(SourceNodes(self._source)) as nodes:
            return nodes.known().for_task(self._source)

    def _restore_documents(self, spark: SparkSession, ends: Mapping[int, int]) -> int:
        if not ends:
            return 0
        source, target = self._settled_source(), self._target

        def work(seqnos: dict[int, int]) -> int:
            counts = restore(source, target, seqnos)
            return counts.forced + counts.removed

        return _spread(spark, ends, work)

    def _sent_again(self, spark: SparkSession, ends: Mapping[int, int]) -> int:
        if not ends:
            return 0
        source, target = self._settled_source(), self._target
        return _spread(spark, ends, lambda seqnos: send_again(source, target, seqnos))


def _spread(spark: SparkSession, ends: Mapping[int, int], work: Callable[[dict[int, int]], int]) -> int:
    """Run `work` on vbuckets with their ends in several tasks; return the sum of the results."""

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        seqnos = {row["vbucket"]: row["end"] for part in batches for row in part.to_pylist()}
        if seqnos:
            yield pa.RecordBatch.from_pydict({"done": [work(seqnos)]})

    spread = spark.createDataFrame(sorted(ends.items()), "vbucket int, end long").repartition("vbucket")
    return sum(row.done for row in spread.mapInArrow(task, "done long").collect())


def _writing(
    target: WriteSettings, number: int, alive: tuple[int, ...] | None
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return the function of a task: it writes the task's rows and yields one row with its counts.

    Args:
        number: the number of the batch.
        alive: the ids of the collections whose rows are written; None for a source without the column `collection_id`.
    """
    names = check_columns(list(types(collections=alive is not None).items()), with_meta=True)

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from headwater.spark.deadletters import task_name

        row_filter = _RowFilter(alive)
        counts_ = write(target, names, row_filter.watch(batches), task_name(f"{number:08d}", number))
        counts: dict[str, Any] = {
            "written": asdict(counts_),
            "rollbacks": row_filter.rollbacks,
            "highs": row_filter.highs,
        }
        counts |= {"left_out": row_filter.left_out, "data_loss": row_filter.data_loss}
        yield pa.RecordBatch.from_pydict({"counts": [json.dumps(counts)]})

    return task


class _RowFilter:
    """A filter for a task's batches that takes out rollback rows, and rows of collections that are not copied.

    It notes each vbucket's last seqno, rollbacks and data losses.
    """

    def __init__(self, alive: tuple[int, ...] | None) -> None:
        self._alive, self.left_out = alive, Counter[int]()
        self.rollbacks: dict[int, int] = {}
        self.data_loss: list[int] = []
        self.highs: dict[int, int] = {}

    def watch(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches without the rows that are not to be written."""
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            is_rollback = pc.equal(batch.column("event"), pa.scalar("rollback"))
            for row in batch.select(["vbucket", "seqno", "snapshot_end"]).filter(is_rollback).to_pylist():
                self.rollbacks[row["vbucket"]] = row["seqno"]
                if row["snapshot_end"] > row["seqno"]:  # the deletions up to there were purged
                    self.data_loss.append(row["vbucket"])
            changes = batch.filter(pc.invert(is_rollback))
            if changes.num_rows:
                for vb, seqno in zip(*(changes.column(name).to_pylist() for name in ("vbucket", "seqno")), strict=True):
                    self.highs[vb] = max(seqno, self.highs.get(vb, 0))
                yield self._of_living(changes)

    def _of_living(self, changes: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._alive is None:
            return changes
        ids = changes.column(_ID)
        alive = pc.is_in(ids, value_set=pa.array(self._alive, pa.int64()))
        self.left_out.update(ids.filter(pc.invert(alive)).to_pylist())
        return changes.filter(alive)
