"""Caches kept honest, on Spark: what changes in a bucket is deleted in a cache. Keys only; no value leaves a node.

    node -> dcp source, keys -> task: DELETE -> memcached, Redis

A batch may come twice: a deletion too many costs the cache a miss. When a failover takes back changes, the cache may
hold what was read of them, so all keys that the vbucket has now are deleted. Of a document that only the lost branch
had, nobody can tell the key any more: give cache entries a time to live. So it is with the documents of a collection
that was dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwater.errors import OptionError
from headwater.pipelines.attempts import Attempts, patience
from headwater.pipelines.caches import KEYS_PER_CALL, address, chunks, expanded, names_collections, open_cache, template
from headwater.pipelines.job import JobProgress, follow
from headwater.pipelines.owners import CheckpointOwner, JobEnd, bucket_end, claim
from headwater.pipelines.query import own_session
from headwater.pipelines.watch import NOBODY, BatchWatch
from headwater.spark import nodes, settings
from headwater.spark.nodes import patiently
from headwater.spark.settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COLUMNS = "vbucket int, seqno long, snapshot_end long, event string, key binary"
OF_COLLECTIONS = "scope string, collection string"
Whose = tuple[str, str] | None
"""A scope and a collection; None where none was chosen."""


@dataclass(frozen=True)
class CacheTarget:
    """The cache, as every task needs to know it.

    Args:
        url: see `caches.open_cache`.
        templates: cache keys of a document, with {key} where its key stands; {scope} and {collection} likewise.
        retry_seconds: how long a cache that does not answer is tried again.
    """

    url: str
    user: str | None
    password: str | None
    templates: tuple[bytes, ...]
    retry_seconds: float

    def __repr__(self) -> str:
        return f"Target({len(self.templates)} templates)"  # the url of a Redis has its password

    def delete(self, keys: Iterable[bytes], whose: Whose = None) -> tuple[int, int]:
        """Delete what belongs to these documents; returns how many keys were asked for, and how many were there."""
        asked = there = 0
        for chunk in chunks(expanded(keys, self.templates, whose), KEYS_PER_CALL):
            there += patiently(lambda chunk=chunk: self._once(chunk), self.retry_seconds)  # type: ignore[misc]
            asked += len(chunk)
        return asked, there

    def _once(self, keys: Sequence[bytes]) -> int:
        with closing(open_cache(self.url, self.user, self.password)) as cache:
            return cache.delete(keys)


@dataclass
class InvalidationProgress(JobProgress):
    """How far a run is, after each batch. In vbuckets that a failover took back, all keys were deleted.

    Attributes:
        changes: changes of the bucket that were seen.
        asked: cache keys that were deleted; `there` is how many the cache had.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("changes", "asked", "there")

    changes: int = 0
    asked: int = 0
    there: int = 0


def run(source: str, cache: str, checkpoint: str | Path, **asked: Any) -> InvalidationProgress:
    """Invalidate with a local Spark of its own; the arguments are those of `invalidate`."""
    with own_session("headwater-invalidate") as spark:
        return invalidate(spark, source, cache, checkpoint, **asked)


def invalidate(
    spark: SparkSession,
    source: str,
    cache: str,
    checkpoint: str | Path,
    *,
    templates: Sequence[str] = ("{key}",),
    cache_user: str | None = None,
    cache_password: str | None = None,
    once: bool = False,
    reading: Mapping[str, str] | None = None,
    interval_seconds: float = 0.2,
    retry_seconds: float | None = None,
    progress: Callable[[InvalidationProgress], None] = lambda done: None,
    stop: Callable[[], bool] = lambda: False,
    watch: BatchWatch = NOBODY,
) -> InvalidationProgress:
    """Delete in a cache what changes in a bucket, until `stop` says so.

    Args:
        spark: a session; its workers reach both.
        source: the bucket, couchbase://host:port/bucket.
        cache: memcached://host:port, redis://host:port/db or couchbase://host:port/bucket.
        checkpoint: a folder of this run's own, where Spark keeps how far it is; made if missing.
        templates: the cache keys that belong to a document, with {key} where its key stands; where collections are
            chosen, {scope} and {collection} likewise.
        cache_user, cache_password: of a memcached with SASL, or of a bucket.
        once: end when everything that was there at the start is dealt with.
        reading: more options of the source. Without a checkpoint it begins with what is written from now on, and with
            everything if `once`; `startingOffsets` says otherwise. `collections` or `scope` choose others than the
            default collection.
        interval_seconds: time from the start of one batch to that of the next, at least.
        retry_seconds: how long to go on trying without a batch that went well; None for 300, and 30 with `once`.
        progress: called after each batch and before each new try, in whatever thread.
        stop: asked several times a second; True ends it.
        watch: is told of each batch's time, and of how far the job is behind the bucket.

    Returns: the last progress.

    Raises:
        OptionError: an option is wrong, or the checkpoint is of another job, source or cache.
        HeadwaterError: the query failed; what it had not noted as done is done again by the next run.
    """
    seconds = patience(retry_seconds, once=once)
    options = {"url": source, "startingOffsets": "earliest" if once else "latest", **(reading or {})}
    target = CacheTarget(cache, cache_user, cache_password, tuple(map(template, templates)), min(seconds, 60.0))
    attempts = Attempts(InvalidationProgress(), progress, stop=stop, retry_seconds=seconds, watch=watch)
    reads = settings.parse(options, streaming=True)
    if names_collections(target.templates) and not reads.chooses:
        raise OptionError(
            "template", " ".join(templates), "possible without collections: choose some, or leave {scope} out"
        )
    claim(checkpoint, CheckpointOwner("invalidate", bucket_end(reads, seconds), JobEnd(address(cache))), spark)
    batches = _Batches(reads, target, attempts)
    return follow(
        spark,
        attempts,
        batches.take,
        options,
        checkpoint,
        columns=f"{COLUMNS}, {OF_COLLECTIONS}" if reads.chooses else COLUMNS,
        once=once,
        interval_seconds=interval_seconds,
    )


class _Batches:
    """Deletes the keys of each batch in the cache, and counts them."""

    def __init__(self, source: SourceSettings, target: CacheTarget, attempts: Attempts[InvalidationProgress]) -> None:
        self._source, self._target, self._attempts = source, target, attempts

    def take(self, batch: DataFrame, number: int) -> None:
        """Deal with one batch; called by Spark, again should it not have noted that the batch was done."""
        source, target = self._source, self._target

        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            yield pa.RecordBatch.from_pydict({"counts": [json.dumps(deleted(source, target, batches))]})

        parts = [json.loads(row.counts) for row in batch.mapInArrow(task, "counts string").collect()]
        done = self._attempts.progress
        done.batches += 1
        for part in parts:
            done.changes, done.asked = done.changes + part["changes"], done.asked + part["asked"]
            done.there, done.rollbacks = done.there + part["there"], done.rollbacks + part["rollbacks"]
            done.note_losses(part["data_loss"])
        self._attempts.batch_done()


def deleted(source: SourceSettings, target: CacheTarget, batches: Iterable[Any]) -> dict[str, Any]:
    """Delete what a task's batches name, and return the counts; the part that runs in a task.

    Args:
        batches: Arrow batches with the columns `COLUMNS`.
    """
    counts: dict[str, Any] = dict.fromkeys(("changes", "asked", "there", "rollbacks"), 0)
    lost: set[int] = set()
    purged: set[int] = set()
    for batch in batches:
        names = "vbucket", "event", "seqno", "snapshot_end"
        for vbucket, event, seqno, upto in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            if event == "rollback":
                lost.add(vbucket)
                purged |= {vbucket} if upto > seqno else set()
        for whose, keys in _keys_in(batch):
            _count(counts, len(keys), target.delete(keys, whose))
    counts["data_loss"] = sorted(purged)
    if lost:
        counts["rollbacks"] = len(lost)
        for whose, keys in _keys_of(source, sorted(lost)):
            _count(counts, 0, target.delete(keys, whose))
    return counts


def _keys_in(batch: Any) -> Iterator[tuple[Whose, list[bytes]]]:
    """Yield the keys of a batch, those of each collection by themselves. Of a collection whose name nobody knows any
    more there is nothing to be said."""
    keys = batch.column("key").to_pylist()
    if "scope" not in batch.schema.names:
        yield None, [key for key in keys if key is not None]
        return
    found: dict[Whose, list[bytes]] = {}
    for key, *whose in zip(
        keys, batch.column("scope").to_pylist(), batch.column("collection").to_pylist(), strict=True
    ):
        if key is not None and None not in whose:
            found.setdefault((whose[0], whose[1]), []).append(key)
    yield from found.items()


def _count(counts: dict[str, Any], changes: int, deletions: tuple[int, int]) -> None:
    counts["changes"] += changes
    counts["asked"] += deletions[0]
    counts["there"] += deletions[1]


def _keys_of(source: SourceSettings, vbuckets: Sequence[int]) -> Iterator[tuple[Whose, list[bytes]]]:
    """Yield all keys of these vbuckets, those of tombstones too."""
    names = "all" if source.collections == ("all",) else source.collections
    patience = source.retry_seconds
    with patiently(lambda: nodes.connect(source), patience) as client:
        chosen = client.choose(names, source.scope)
        reading = client.batches(
            vbuckets=vbuckets, until="now", no_value=True, patience_seconds=patience, collections=chosen
        )
        with reading as batches:
            for batch in batches:
                yield from _keys_in(batch.records)
