"""The copy of a bucket, as users see it: its options, its progress and its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from headwater.errors import OptionError
from headwater.options import option
from headwater.pipelines.jobs.declared import CHECKPOINT, JobBucket, JobProgress, WithCheckpoint, losses_line


@dataclass
class CopyProgress(JobProgress):
    """Progress of a copy, reported after each batch.

    Attributes:
        stored, deleted: changes that the target accepted, deletions of missing documents included.
        behind: changes that the target did not need, since it had these or later ones.
        refused: changes that went to the dead letters.
        left_out: changes of collections that were dropped since, and of a server's own.
        restored: keys that were written again in vbuckets of which a failover took changes back, at either end.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("stored", "deleted", "behind", "refused", "left_out", "restored")

    stored: int = 0
    deleted: int = 0
    behind: int = 0
    refused: int = 0
    left_out: int = 0
    restored: int = 0


@dataclass
class BucketCopy(WithCheckpoint[CopyProgress]):
    """Copy a bucket into another and keep it level: revision, CAS, expiry and extended attributes stay as they are.

    All collections are copied unless some are chosen; what the target lacks of them is made there. The version with the
    higher (revision, CAS) wins, so the target may be written to as well. Ended at any moment, it goes on where it was
    when started again with the same --checkpoint. Runs on a local Spark and needs Java 17.
    """

    NAME: ClassVar[str] = "copy"
    PART: ClassVar[tuple[str, int]] = ("follow", 50)
    WORK: ClassVar[str] = "headwater.pipelines.copy:work"
    DONE: ClassVar[str] = "copied"
    LEVEL: ClassVar[str] = "all that the source has was copied before"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater copy couchbase://10.0.0.7/orders couchbase://10.1.0.7/orders --checkpoint ./copy-orders",
        "headwater copy couchbase://a/orders couchbase://b/orders --checkpoint ./copy-orders --once",
        "headwater copy couchbase://a/orders couchbase://b/orders --checkpoint ./copy-orders --rollback keep",
        "headwater copy couchbase://a/store couchbase://b/store --checkpoint ./copy-shop --scope shop --dropped drop",
        "headwater copy couchbase://a/store couchbase://b/old --checkpoint ./copy-carts"
        " --collections shop.carts --into archive.carts",
    )

    source: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="SOURCE")
    target: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="TARGET")
    checkpoint: str | Path = option(..., CHECKPOINT, metavar="DIR")
    _: KW_ONLY
    rollback: str = option(
        "restore",
        "Take back what a failover took back, keep it at the target, or end.",
        choices=("restore", "keep", "fail"),
    )
    dead_letters: str | None = option(None, "Keep what the target refuses for good there, as Parquet.", metavar="DIR")
    into: str | None = option(None, "Of a copy of one collection: into this one.", metavar="SCOPE.NAME")
    dropped: Literal["keep", "drop"] = option(
        "keep",
        "What becomes of a collection at the target that was dropped at the source.",
        choices=("keep", "drop"),
    )
    target_user: str | None = option(None, "Who writes; --user if left out.", metavar="NAME")
    target_password: str | None = option(
        None, "Their password.", metavar="TEXT", env="HEADWATER_TARGET_PASSWORD", secret=True
    )
    writing: Mapping[str, str] = field(default_factory=dict)
    """More options of the writer, such as `retrySeconds`; those of `reading` choose collections, too: without a choice
    a copy goes on with what it was begun with, and a new one takes all of the bucket."""

    def check(self) -> None:
        """Check each option, and refuse a copy of a bucket into itself. Raises OptionError."""
        super().check()
        if self.source == self.target:
            raise OptionError("target", self.target, "another bucket than the source")

    def source_options(self) -> dict[str, str]:
        """Return the options of the source: with attributes, and ending at a rollback if that is wanted."""
        policy = {"rollbackPolicy": "fail"} if self.rollback == "fail" else {}
        return {"xattrs": "true", **policy, **super().source_options()}

    def target_options(self) -> dict[str, str]:
        """Return the options of the writer."""
        user, password = self._writer
        options = {"user": user, "password": password, "deadLetters": self.dead_letters, "collection": self.into}
        set_options = {name: value for name, value in options.items() if value is not None}
        return {"url": self.target, "withMeta": "true", **set_options, **self.writing}

    @property
    def _writer(self) -> tuple[str | None, str | None]:
        """Return user and password for the target."""
        return (self.user, self.password) if self.target_user is None else (self.target_user, self.target_password)

    def buckets(self) -> Iterator[JobBucket]:
        """Yield source and target.

        The unread collections of the source are named only for a copy that began in a release without collections,
        which still copies the default one alone.
        """
        from headwater.pipelines.carried import CarriedFile

        carried = CarriedFile(self.place).load()
        for bucket in super().buckets():
            yield bucket._replace(say_unread=carried is not None and not carried.chooses)
        yield JobBucket(self.target, *self._writer, say_unread=False)

    def line(self, progress: CopyProgress) -> str:
        """Return the progress after a batch as a line for people."""
        parts = [
            f"batch {progress.batches}: {progress.stored:,} stored and {progress.deleted:,} deleted",
            f"{progress.behind:,} not needed",
        ]
        if progress.refused:
            parts.append(f"{progress.refused:,} refused")
        if progress.left_out:
            parts.append(f"{progress.left_out:,} of collections that are gone")
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} vbuckets rolled back, {progress.restored:,} keys put right")
        elif progress.restored:
            parts.append(f"{progress.restored:,} keys put right that the target had lost")
        parts += losses_line(progress.data_loss)
        return ", ".join(parts) + f" in {progress.seconds:.1f} s"
