"""Caches kept correct, on Spark: keys that change in a bucket are deleted in a cache. Only keys are read, no value
leaves a node.

    node -> dcp source, keys -> task: DELETE -> memcached, Redis

A batch may come twice: a deletion too many costs the cache a miss. When a failover takes back changes, the cache may
hold copies of them, so all present keys of the vbucket are deleted. The key of a document that only the lost branch had
is unknown: give cache entries a time to live, for these and for the documents of a dropped collection.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.errors import OptionError
from headwater.pipelines.attempts import Attempts, attempts_of
from headwater.pipelines.caches import KEYS_PER_CALL, address, chunks, expanded, names_collections, open_cache, template
from headwater.pipelines.failures import passing_failovers
from headwater.pipelines.job import follow
from headwater.pipelines.jobs import Invalidation, InvalidationProgress
from headwater.pipelines.owners import CheckpointOwner, JobEnd, bucket_end, claim
from headwater.pipelines.query import session_of
from headwater.spark import nodes, settings
from headwater.spark.nodes import patiently
from headwater.spark.settings import SourceSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "vbucket int, seqno long, snapshot_end long, event string, key binary"
OF_COLLECTIONS = "scope string, collection string"
Whose = tuple[str, str] | None
"""A scope and a collection; None where none was chosen."""


@dataclass(frozen=True)
class CacheTarget:
    """The cache of a job, as its tasks need it.

    Args:
        url: see `caches.open_cache`.
        templates: cache keys of a document, with {key} where its key stands; {scope} and {collection} likewise.
        retry_seconds: the time of further attempts at a cache that does not answer.
    """

    url: str
    user: str | None
    password: str | None
    templates: tuple[bytes, ...]
    retry_seconds: float

    def __repr__(self) -> str:
        return f"Target({len(self.templates)} templates)"  # the url of a Redis has its password

    def delete(self, keys: Iterable[bytes], path: Whose = None) -> tuple[int, int]:
        """Delete the cache keys of these documents; return the number of keys, and of those that were there."""
        deleted = found_count = 0
        for chunk in chunks(expanded(keys, self.templates, path), KEYS_PER_CALL):
            found_count += patiently(lambda chunk=chunk: self._delete_chunk(chunk), self.retry_seconds)  # type: ignore[misc]
            deleted += len(chunk)
        return deleted, found_count

    def _delete_chunk(self, keys: Sequence[bytes]) -> int:
        with closing(open_cache(self.url, self.user, self.password)) as cache:
            return cache.delete(keys)


def work(job: Invalidation) -> InvalidationProgress:
    """Delete the keys in a cache that change in a bucket, until `job.stop` returns True; return the last progress.

    Without a checkpoint the job begins with new changes, or with all changes if `once`; the option `startingOffsets`
    overrides this.

    Raises:
        OptionError: an option is wrong, or the checkpoint is of another job, source or cache.
        HeadwaterError: the query failed; the next run repeats the batches that Spark has not noted as done.
    """
    attempts, options = attempts_of(job, InvalidationProgress()), job.source_options()
    reads, seconds = settings.parse(options, streaming=True), attempts.retry_seconds
    templates = tuple(map(template, job.templates))
    if not templates:
        raise OptionError("template", "", "at least one, or left out for {key}; without any nothing would be deleted")
    if names_collections(templates) and not reads.chooses:
        raise OptionError(
            "template", " ".join(job.templates), "possible without collections: choose some, or leave {scope} out"
        )
    target = CacheTarget(job.cache, job.cache_user, job.cache_password, templates, min(seconds, 60.0))
    columns = f"{COLUMNS}, {OF_COLLECTIONS}" if reads.chooses else COLUMNS
    with session_of(job) as spark:
        claim(job.place, CheckpointOwner(job.NAME, bucket_end(reads, seconds), JobEnd(address(job.cache))), spark)
        return follow(job, spark, attempts, _Batches(reads, target, attempts).take, options, columns)


class _Batches:
    """A handler of batches that deletes their keys in the cache, and counts them."""

    def __init__(self, source: SourceSettings, target: CacheTarget, attempts: Attempts[InvalidationProgress]) -> None:
        self._source, self._target, self._attempts = source, target, attempts

    def take(self, batch: DataFrame, number: int) -> None:
        """Handle one batch; Spark calls this again if it has not noted that the batch was done."""
        source, target = self._source, self._target

        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            yield pa.RecordBatch.from_pydict({"counts": [json.dumps(deleted(source, target, batches))]})

        parts = [json.loads(row.counts) for row in batch.mapInArrow(task, "counts string").collect()]
        progress = self._attempts.progress
        progress.batches += 1
        for part in parts:
            progress.changes, progress.asked = progress.changes + part["changes"], progress.asked + part["asked"]
            progress.there, progress.rollbacks = progress.there + part["there"], progress.rollbacks + part["rollbacks"]
            progress.note_losses(part["data_loss"])
        self._attempts.batch_done()


def deleted(source: SourceSettings, target: CacheTarget, batches: Iterable[Any]) -> dict[str, Any]:
    """Delete the keys in a task's batches, and return the counts; the part that runs in a task.

    Args:
        batches: Arrow batches with the columns `COLUMNS`.
    """
    counts: dict[str, Any] = dict.fromkeys(("changes", "asked", "there", "rollbacks"), 0)
    rolled_back: set[int] = set()
    purged_vbuckets: set[int] = set()
    for batch in batches:
        names = "vbucket", "event", "seqno", "snapshot_end"
        for vbucket, event, seqno, purge_seqno in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            if event == "rollback":
                rolled_back.add(vbucket)
                purged_vbuckets |= {vbucket} if purge_seqno > seqno else set()
        for path, keys in _keys_in(batch):
            _count(counts, len(keys), target.delete(keys, path))
    counts["data_loss"] = sorted(purged_vbuckets)
    if rolled_back:
        counts["rollbacks"] = len(rolled_back)
        for path, keys in _keys_of(source, sorted(rolled_back)):
            _count(counts, 0, target.delete(keys, path))
    return counts


def _keys_in(batch: Any) -> Iterator[tuple[Whose, list[bytes]]]:
    """Yield the keys of a batch, grouped by collection; keys of a collection without a known name are left out."""
    keys = batch.column("key").to_pylist()
    if "scope" not in batch.schema.names:
        yield None, [key for key in keys if key is not None]
        return
    keys_by_owner: dict[Whose, list[bytes]] = {}
    for key, *path in zip(keys, batch.column("scope").to_pylist(), batch.column("collection").to_pylist(), strict=True):
        if key is not None and None not in path:
            keys_by_owner.setdefault((path[0], path[1]), []).append(key)
    yield from keys_by_owner.items()


def _count(counts: dict[str, Any], changes: int, deletions: tuple[int, int]) -> None:
    counts["changes"] += changes
    counts["asked"] += deletions[0]
    counts["there"] += deletions[1]


def _keys_of(source: SourceSettings, vbuckets: Sequence[int]) -> Iterator[tuple[Whose, list[bytes]]]:
    """Yield all keys of these vbuckets, those of tombstones too."""
    names = "all" if source.collections == ("all",) else source.collections
    patience = source.retry_seconds
    with patiently(lambda: nodes.connect(source), patience) as client:
        coverage = client.choose(names, source.scope)
        reading = client.batches(
            vbuckets=vbuckets, until="now", no_value=True, patience_seconds=patience, collections=coverage
        )
        with passing_failovers(source.url), reading as batches:
            for batch in batches:
                yield from _keys_in(batch.records)
