"""`headwater invalidate`: delete in a cache what changes in a bucket, with Spark, until it is ended."""

from enum import StrEnum
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
    from headwater.pipelines.invalidate import InvalidationProgress

EXAMPLES = examples(
    "headwater invalidate couchbase://10.0.0.7/users memcached://10.0.0.9:11211 --checkpoint ./users-cache",
    "headwater invalidate couchbase://10.0.0.7/users redis://10.0.0.9:6379/0 --checkpoint ./users-cache"
    " --template user:{key} --template user:{key}:page",
    "headwater invalidate couchbase://10.0.0.7/store redis://10.0.0.9:6379/0 --checkpoint ./store-cache"
    " --collections all --template {scope}.{collection}:{key}",
)


class Start(StrEnum):
    """The place to begin at without a checkpoint."""

    LATEST = "latest"
    EARLIEST = "earliest"


CachePassword = Annotated[
    str | None,
    typer.Option("--cache-password", metavar="TEXT", envvar="HEADWATER_CACHE_PASSWORD", help="Of memcached."),
]


Templates = Annotated[
    list[str] | None,
    typer.Option(
        "--template",
        metavar="TEXT",
        help="A cache key of a document, {key} being its key, {scope} and {collection} whose it is; repeatable.",
    ),
]


def invalidate(
    url: Annotated[str, typer.Argument(metavar="URL", help="couchbase://HOST:PORT/BUCKET")],
    cache: Annotated[
        str,
        typer.Argument(
            metavar="CACHE", help="memcached://HOST:PORT, redis://HOST:PORT/DB or couchbase://HOST:PORT/BUCKET"
        ),
    ],
    checkpoint: Checkpoint,
    templates: Templates = None,
    start: Annotated[
        Start | None,
        typer.Option("--from", help="Without a checkpoint: latest, what is written from now on; with --once earliest."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are dealt with.")] = False,
    collections: ChosenCollections = None,
    scope: ChosenScope = None,
    on_data_loss: Loss = OnDataLoss.WARN,
    retry: Retry = None,
    shown: ProgressOption = ProgressFormat.TEXT,
    metrics: MetricsPort = None,
    user: User = None,
    password: Password = None,
    cache_user: Annotated[str | None, typer.Option("--cache-user", metavar="NAME", help="Of memcached.")] = None,
    cache_password: CachePassword = None,
) -> None:
    """Delete in a cache what changes in a bucket: keys only, no value leaves a node.

    Of the default collection, unless others are chosen. Ended at any moment, it goes on where it was when started again
    with the same --checkpoint: no change is left out. Runs on a local Spark and needs Java 17.
    """
    check_answers(url, user, password, retry, collections=collections, scope=scope)

    from headwater.pipelines import invalidate as pipeline
    from headwater.pipelines.caches import open_cache

    begin = start.value if start else None
    reading = source_options(user, password, on_data_loss, startingOffsets=begin, collections=collections, scope=scope)
    open_cache(cache, cache_user, cache_password).close()
    idle = IdleRun(_line, "nothing has changed since the last run")
    with asked(has_end=once) as stop, metered("invalidate", metrics, reporter(shown, idle.line)) as told:
        pipeline.run(
            url,
            cache,
            checkpoint.absolute(),
            templates=templates or ["{key}"],
            cache_user=cache_user,
            cache_password=cache_password,
            once=once,
            reading=reading,
            retry_seconds=retry,
            stop=stop,
            **told,
        )
        idle.tell(shown, unless=not once or stop())


def _line(progress: "InvalidationProgress") -> str:
    parts = [f"batch {progress.batches}: {count(progress.changes)} changes, {count(progress.asked)} keys deleted"]
    parts.append(f"{count(progress.there)} of them were there")
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks} vbuckets rolled back")
    parts += losses_line(progress.data_loss, "and their keys may still be in the cache")
    return ", ".join(parts) + f" in {progress.seconds:.1f} s"
