"""`headwater set`: store one document."""

import sys
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
from headwater.cli.units import seconds

PART = ("first", 20)
EXAMPLES = examples(
    "headwater set greeting 'hello world'",
    "headwater set session:7 '{\"user\": 7}' --expiry 3600",
    "headwater set order:1 paid --durability majority",
    "headwater set temperature -- -40",
    "headwater set picture - < picture.png",
)
EXITS = {1: "the CAS is another, or the node refused it"}


def set_(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The document's key, at most 250 bytes.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="What to store; - reads it from stdin.")],
    expiry: Annotated[
        int | None, seconds("--expiry", "Expire after so long; 0 for never, over 30 days a Unix time.", int)
    ] = None,  # a default that is a number costs the import of a reader (values.py)
    flags: Annotated[
        int, typer.Option("--flags", min=0, max=0xFFFF_FFFF, metavar="NUMBER", help="The application's own 32 bits.")
    ] = 0,
    cas: Annotated[
        int,
        typer.Option(
            "--cas",
            min=0,
            metavar="NUMBER",
            help="Store only if it still has this CAS; 0: whatever is there.",
        ),
    ] = 0,
    durability_level: DurabilityName = None,
    durability_timeout: DurabilityTimeout = None,
    collection: CollectionName = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Store VALUE under KEY and print the new CAS; it is on the disk of its node when the command returns.

    With --durability other copies have it as well. SYNC_WRITE_AMBIGUOUS says that nobody knows whether it was stored:
    read the document before storing it again.
    """
    body = sys.stdin.buffer.read() if value == "-" else typed(value)
    durability_ = durability(durability_level, durability_timeout)
    with connect(node, user, password) as client:
        documents_ = documents(client, collection)
        new_cas = documents_.set(typed(key), body, expiry=expiry or 0, flags=flags, cas=cas, durability=durability_)
    report(f"cas {new_cas}", key=key, cas=new_cas)
