"""The invalidation of a cache, as users see it: its options, its progress and its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

from headwater.options import option
from headwater.pipelines.jobs.declared import CHECKPOINT, FromNow, JobProgress, WithCheckpoint, losses_line


@dataclass
class InvalidationProgress(JobProgress):
    """Progress of an invalidation, reported after each batch. In vbuckets that a failover took back, all keys were
    deleted.

    Attributes:
        changes: changes of the bucket that were read.
        asked: cache keys that were deleted.
        there: how many of these the cache had.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("changes", "asked", "there")

    changes: int = 0
    asked: int = 0
    there: int = 0


@dataclass
class Invalidation(FromNow[InvalidationProgress], WithCheckpoint[InvalidationProgress]):
    """Delete in a cache what changes in a bucket: keys only, no value leaves a node.

    Of the default collection, unless others are chosen. Ended at any moment, it goes on where it was when started again
    with the same --checkpoint: no change is left out. Runs on a local Spark and needs Java 17.
    """

    NAME: ClassVar[str] = "invalidate"
    PART: ClassVar[tuple[str, int]] = ("follow", 60)
    WORK: ClassVar[str] = "headwater.pipelines.invalidate:work"
    LEVEL: ClassVar[str] = "nothing has changed since the last run"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater invalidate couchbase://10.0.0.7/users memcached://10.0.0.9:11211 --checkpoint ./users-cache",
        "headwater invalidate couchbase://10.0.0.7/users redis://10.0.0.9:6379/0 --checkpoint ./users-cache"
        " --template user:{key} --template user:{key}:page",
        "headwater invalidate couchbase://10.0.0.7/store redis://10.0.0.9:6379/0 --checkpoint ./store-cache"
        " --collections all --template {scope}.{collection}:{key}",
    )

    source: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="URL")
    cache: str = option(
        ...,
        "memcached://HOST:PORT, redis://HOST:PORT/DB or couchbase://HOST:PORT/BUCKET",
        positional=True,
        metavar="CACHE",
    )
    checkpoint: str | Path = option(..., CHECKPOINT, metavar="DIR")
    _: KW_ONLY
    templates: Sequence[str] = option(
        ("{key}",),
        "A cache key of a document, {key} being its key, {scope} and {collection} whose it is; repeatable.",
        flag="template",
        metavar="TEXT",
        many=True,
    )
    cache_user: str | None = option(None, "Of memcached.", metavar="NAME")
    cache_password: str | None = option(
        None, "Of memcached.", metavar="TEXT", env="HEADWATER_CACHE_PASSWORD", secret=True
    )
    interval_seconds: float = 0.2

    def reach(self) -> None:
        """Log in to the cache."""
        from headwater.pipelines.caches import open_cache

        open_cache(self.cache, self.cache_user, self.cache_password).close()

    def line(self, progress: InvalidationProgress) -> str:
        """Return the progress after a batch as a line for people."""
        parts = [
            f"batch {progress.batches}: {progress.changes:,} changes, {progress.asked:,} keys deleted",
            f"{progress.there:,} of them were there",
        ]
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} vbuckets rolled back")
        parts += losses_line(progress.data_loss, "and their keys may still be in the cache")
        return ", ".join(parts) + f" in {progress.seconds:.1f} s"
