"""`headwater delete`: remove one document."""

from typing import Annotated

import typer

from headwater.cli.forms import report
from headwater.cli.options import (
    DEFAULT_URL,
    CollectionName,
    DurabilityName,
    DurabilityTimeout,
    NodeUrl,
    Password,
    User,
    connect,
    documents,
    durability,
    examples,
    typed,
)

PART = ("first", 40)
EXAMPLES = examples("headwater delete greeting", "headwater delete greeting --cas 1763724000000065536")
EXITS = {1: "there is no such document, or its CAS is another"}


def delete(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The document's key.")],
    cas: Annotated[
        int,
        typer.Option(
            "--cas",
            min=0,
            metavar="NUMBER",
            help="Delete only if it still has this CAS; 0: whatever it has.",
        ),
    ] = 0,
    durability_level: DurabilityName = None,
    durability_timeout: DurabilityTimeout = None,
    collection: CollectionName = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Delete the document stored under KEY and print the CAS of the deletion.

    Exit status 1 when there is none.
    """
    durability_ = durability(durability_level, durability_timeout)
    with connect(node, user, password) as client:
        deleted = documents(client, collection).delete(typed(key), cas=cas, durability=durability_)
    report(f"cas {deleted}", key=key, cas=deleted)
