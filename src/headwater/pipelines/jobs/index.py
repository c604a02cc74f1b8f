"""The index, as users see it: its options, its progress and its line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import ClassVar

from headwater.options import option
from headwater.pipelines.jobs.declared import JobProgress, OnEngines, losses_line

CHANGES_MAX = "50000"
"""Changes of a batch, unless told otherwise: its transaction is open for as long as they take."""


@dataclass
class IndexProgress(JobProgress):
    """Progress of an index, reported after each batch.

    Attributes:
        indexed: documents added or replaced.
        removed: deletions and expirations.
        aside: documents kept aside, since they are no text or the server refuses them.
        behind: changes that a server did not need.
    """

    ROWS: ClassVar[tuple[str, ...]] = ("indexed", "removed", "aside", "behind")

    indexed: int = 0
    removed: int = 0
    aside: int = 0
    behind: int = 0


@dataclass
class TextIndex(OnEngines[IndexProgress]):
    """Index the text of documents, for `headwater search`.

    What is stored, deleted or expires, and what a failover takes back, arrives there too. Of the default collection,
    unless others are chosen. Ended at any moment, it goes on where the index stands when started again with the same
    DIR.
    """

    NAME: ClassVar[str] = "index"
    PART: ClassVar[tuple[str, int]] = ("follow", 20)
    WORK: ClassVar[str] = "headwater.pipelines.index:work"
    PROGRESS = IndexProgress
    DONE: ClassVar[str] = "in the index"
    LEVEL: ClassVar[str] = "the index is level with the bucket"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater index couchbase://127.0.0.1:11210/default ./search",
        "headwater index couchbase://10.0.0.7/articles ./search --field title --field body.text --tokenizer english",
        "headwater index couchbase://10.0.0.7/articles ./search --opensearch http://10.0.0.9:9200/articles",
        "headwater index couchbase://10.0.0.7/store ./search-store --collections shop.orders,shop.carts",
    )

    source: str = option(..., "couchbase://HOST:PORT/BUCKET", positional=True, metavar="URL")
    to: str | Path = option(..., "The index's folder, made if missing.", positional=True, metavar="DIR")
    _: KW_ONLY
    fields: Sequence[str] = option(
        (), "A field to index, such as address.city; repeatable. Else all.", flag="field", metavar="PATH", many=True
    )
    others: str = option(
        "key",
        "Documents that are no JSON: found by key, or as text, or kept aside.",
        choices=("key", "text", "quarantine"),
    )
    tokenizer: str = option(
        "words", "Whole words, English word stems, or parts of words.", choices=("words", "english", "parts")
    )
    opensearch: str | None = option(None, "Index there, http://HOST:PORT/INDEX, instead of in DIR.", metavar="URL")
    opensearch_user: str | None = option(None, "Who asks OpenSearch, if it wants to know.", metavar="NAME")
    opensearch_password: str | None = option(
        None, "Their password.", metavar="TEXT", env="HEADWATER_OPENSEARCH_PASSWORD", secret=True
    )

    def source_options(self) -> dict[str, str]:
        """Return the options of the source, with the size of a batch."""
        return {"maxChangesPerTrigger": CHANGES_MAX, **super().source_options()}

    def line(self, progress: IndexProgress) -> str:
        """Return the progress after a batch as a line for people."""
        parts = [f"batch {progress.batches}: {progress.indexed:,} indexed and {progress.removed:,} removed"]
        if progress.aside:
            parts.append(f"{progress.aside:,} kept aside")
        if progress.behind:
            parts.append(f"{progress.behind:,} not needed")
        if progress.rollbacks:
            parts.append(f"{progress.rollbacks} vbuckets rolled back")
        parts += losses_line(progress.data_loss)
        return ", ".join(parts) + f" in {progress.seconds:.1f} s"
