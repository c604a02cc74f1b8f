"""`headwater copy`: keep one bucket level with another, with Spark, until it is ended."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import (
    Checkpoint,
    ChosenCollections,
    ChosenScope,
    Loss,
    OnDataLoss,
    Password,
    Retry,
    User,
    check_answers,
    examples,
    source_options,
)
from headwater.cli.reporting import (
    IdleRun,
    MetricsPort,
    ProgressFormat,
    ProgressOption,
    metered,
    reporter,
)
from headwater.cli.screen import count
from headwater.cli.stopping import asked
from headwater.pipelines.jobs import losses_line

if TYPE_CHECKING:
    from headwater.pipelines.copy import CopyProgress

EXAMPLES = examples(
    "headwater copy couchbase://10.0.0.7/orders couchbase://10.1.0.7/orders --checkpoint ./copy-orders",
    "headwater copy couchbase://a/orders couchbase://b/orders --checkpoint ./copy-orders --once",
    "headwater copy couchbase://a/orders couchbase://b/orders --checkpoint ./copy-orders --rollback keep",
    "headwater copy couchbase://a/store couchbase://b/store --checkpoint ./copy-shop --scope shop --dropped drop",
    "headwater copy couchbase://a/store couchbase://b/old --checkpoint ./copy-carts"
    " --collections shop.carts --into archive.carts",
)


class DroppedCollections(StrEnum):
    """The fate of a collection at the target that was dropped at the source."""

    KEEP = "keep"
    DROP = "drop"


class RollbackPolicy(StrEnum):
    """The ways to deal with copied changes that a failover took back at the source."""

    RESTORE = "restore"
    KEEP = "keep"
    FAIL = "fail"


Into = Annotated[
    str | None, typer.Option("--into", metavar="SCOPE.NAME", help="Of a copy of one collection: into this one.")
]
Dropped = Annotated[
    DroppedCollections,
    typer.Option("--dropped", help="What becomes of a collection at the target that was dropped at the source."),
]
TargetUser = Annotated[
    str | None, typer.Option("--target-user", metavar="NAME", help="Who writes; --user if left out.")
]
TargetPassword = Annotated[
    str | None,
    typer.Option("--target-password", metavar="TEXT", envvar="HEADWATER_TARGET_PASSWORD", help="Their password."),
]


def copy(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="couchbase://HOST:PORT/BUCKET")],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="couchbase://HOST:PORT/BUCKET")],
    checkpoint: Checkpoint,
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are copied.")] = False,
    rollback: Annotated[
        RollbackPolicy,
        typer.Option("--rollback", help="Take back what a failover took back, keep it at the target, or end."),
    ] = RollbackPolicy.RESTORE,
    dead_letters: Annotated[
        str | None,
        typer.Option("--dead-letters", metavar="DIR", help="Keep what the target refuses for good there, as Parquet."),
    ] = None,
    collections: ChosenCollections = None,
    scope: ChosenScope = None,
    into: Into = None,
    dropped: Dropped = DroppedCollections.KEEP,
    on_data_loss: Loss = OnDataLoss.WARN,
    retry: Retry = None,
    shown: ProgressOption = ProgressFormat.TEXT,
    metrics: MetricsPort = None,
    user: User = None,
    password: Password = None,
    target_user: TargetUser = None,
    target_password: TargetPassword = None,
) -> None:
    """Copy a bucket into another and keep it level: revision, CAS, expiry and extended attributes stay as they are.

    All collections are copied unless some are chosen; what the target lacks of them is made there. The version with the
    higher (revision, CAS) wins, so the target may be written to as well. Ended at any moment, it goes on where it was
    when started again with the same --checkpoint. Runs on a local Spark and needs Java 17.
    """
    writer, secret = (user, password) if target_user is None else (target_user, target_password)
    from headwater.pipelines import copy as pipeline
    from headwater.pipelines.job import given

    chosen = {"collections": collections, "scope": scope}
    check_answers(source, user, password, retry, say_unread=_leaves_out(checkpoint), **chosen)
    check_answers(target, writer, secret, retry, say_unread=False)
    idle = IdleRun(_line, "all that the source has was copied before")
    with asked(has_end=once) as stop, metered("copy", metrics, reporter(shown, idle.line)) as told:
        pipeline.run(
            source,
            target,
            checkpoint.absolute(),
            once=once,
            rollback=rollback.value,
            into=into,
            dropped=dropped.value,
            reading=source_options(user, password, on_data_loss, **chosen),
            writing=given(user=writer, password=secret, deadLetters=dead_letters),
            retry_seconds=retry,
            stop=stop,
            **told,
        )
        idle.tell(shown, unless=not once or stop())


def _leaves_out(checkpoint: Path) -> bool:
    """Whether a copy goes on as it began, before collections were copied."""
    from headwater.pipelines.carried import CarriedFile

    begun = CarriedFile(checkpoint).load()
    return begun is not None and not begun.chooses


def _line(progress: "CopyProgress") -> str:
    parts = [
        f"batch {progress.batches}: {count(progress.stored)} stored and {count(progress.deleted)} deleted",
        f"{count(progress.behind)} not needed",
    ]
    if progress.refused:
        parts.append(f"{count(progress.refused)} refused")
    if progress.left_out:
        parts.append(f"{count(progress.left_out)} of collections that are gone")
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks} vbuckets rolled back, {count(progress.restored)} keys put right")
    parts += losses_line(progress.data_loss)
    return ", ".join(parts) + f" in {progress.seconds:.1f} s"
