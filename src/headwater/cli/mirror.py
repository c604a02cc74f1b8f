"""`headwater mirror`: keep a table equal to a bucket, until told to end."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import Password, User, connect, examples
from headwater.cli.screen import count
from headwater.cli.stopping import asked

if TYPE_CHECKING:
    from headwater.pipelines.mirror import Progress

EXAMPLES = examples(
    "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake/default",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --json --once",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --changelog --progress json",
)


class Told(StrEnum):
    """How progress is told."""

    TEXT = "text"
    JSON = "json"
    NONE = "none"


def mirror(
    url: Annotated[str, typer.Argument(metavar="URL", help="couchbase://HOST:PORT/BUCKET")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the table lies; made if missing.")],
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are in the table.")] = False,
    changelog: Annotated[
        bool, typer.Option("--changelog", help="Keep every change as a row, too, in a table named DIR_changes.")
    ] = False,
    unfold: Annotated[bool, typer.Option("--json", help="Unfold JSON documents into columns.")] = False,
    told: Annotated[
        Told, typer.Option("--progress", help="A line for people or one JSON object for each batch, or nothing.")
    ] = Told.TEXT,
    user: User = None,
    password: Password = None,
) -> None:
    """Mirror a bucket into a Delta table with Spark: each document a row; deletions and rollbacks arrive there too.

    Ended at any moment, it goes on where the table stands when started again with the same DIR. Ctrl-C and SIGTERM end
    it with exit status 0. The first run on a machine fetches Delta Lake for Spark.
    """
    with connect(url, user, password) as client:
        client.seqnos()  # a wrong address or password is told now, not after Spark's start and its patience

    from headwater.pipelines import mirror as pipeline

    show = {Told.TEXT: _text, Told.JSON: _json, Told.NONE: lambda progress: None}[told]
    with asked() as stop:
        pipeline.run(
            url,
            to,
            once=once,
            changelog=changelog,
            json=unfold,
            user=user,
            password=password,
            progress=show,
            stop=stop,
        )


def _json(progress: "Progress") -> None:
    typer.echo(json.dumps(progress.to_json()))


def _text(progress: "Progress") -> None:
    parts = [
        f"batch {progress.batch}: the table holds {count(progress.changes)} changes",
        f"{count(progress.mutations)} stored and {count(progress.deletions)} deleted in {progress.seconds:.1f} s",
    ]
    if progress.rollbacks:
        parts.append(f"{progress.rollbacks} vbuckets rolled back")
    parts += [f"does not fit its column: {field}" for field in progress.conflicts]
    typer.echo(", ".join(parts))
