"""`headwater mirror`: keep a table equal to a bucket, until told to end."""

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.options import Password, User, examples

EXAMPLES = examples(
    "headwater mirror couchbase://127.0.0.1:11210/default --to ./lake/default",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --once",
    "headwater mirror couchbase://10.0.0.7:11210/orders --to ./lake/orders --changelog --json",
)


def mirror(
    url: Annotated[str, typer.Argument(metavar="URL", help="couchbase://HOST:PORT/BUCKET")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the table lies; made if missing.")],
    once: Annotated[bool, typer.Option("--once", help="End when all changes of now are in the table.")] = False,
    changelog: Annotated[bool, typer.Option("--changelog", help="Keep every change as a row as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Report progress as one JSON object a line.")] = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Mirror a bucket into a Delta table with Spark: each document a row; deletions and rollbacks arrive there too.

    Ended at any moment, it goes on where the table stands when started again with the same DIR.
    """
    from headwater.pipelines import mirror as pipeline

    pipeline.run(url, to, once=once, changelog=changelog, user=user, password=password)
