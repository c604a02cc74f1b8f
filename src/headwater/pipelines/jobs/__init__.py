"""The jobs, each declared once: its options, its texts for people, and the function that does its work.

    Mirror("couchbase://127.0.0.1:11210/default", "./lake", once=True, engine="local").run()

The command line, its help, the man pages and the names in refusals are made of the same fields. No slow module is
imported here, since `headwater --help` imports this package.
"""

from typing import Any

from headwater.pipelines.jobs.copy import BucketCopy, CopyProgress
from headwater.pipelines.jobs.declared import (
    DeclaredJob,
    FollowingJob,
    FromNow,
    JobBucket,
    JobProgress,
    OnEngines,
    WithCheckpoint,
    losses_line,
)
from headwater.pipelines.jobs.index import IndexProgress, TextIndex
from headwater.pipelines.jobs.invalidate import Invalidation, InvalidationProgress
from headwater.pipelines.jobs.mirror import Mirror, MirrorProgress
from headwater.pipelines.jobs.observe import ObserveProgress, Observer
from headwater.pipelines.jobs.publish import Publish, PublishProgress
from headwater.pipelines.jobs.transition import Transition, TransitionProgress

JOBS: dict[str, type[DeclaredJob[Any]]] = {
    each.NAME: each for each in (Mirror, TextIndex, Observer, BucketCopy, Invalidation, Publish, Transition)
}
"""All jobs of this package, by the names of their commands."""

__all__ = [
    "JOBS",
    "BucketCopy",
    "CopyProgress",
    "DeclaredJob",
    "FollowingJob",
    "FromNow",
    "IndexProgress",
    "Invalidation",
    "InvalidationProgress",
    "JobBucket",
    "JobProgress",
    "Mirror",
    "MirrorProgress",
    "ObserveProgress",
    "Observer",
    "OnEngines",
    "Publish",
    "PublishProgress",
    "TextIndex",
    "Transition",
    "TransitionProgress",
    "WithCheckpoint",
    "losses_line",
]
