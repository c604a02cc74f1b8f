"""`headwater get`: print one document to stdout."""

import base64
import json
import sys
from typing import Annotated

import typer

from headwater.cli.options import (
    DEFAULT_URL,
    CollectionName,
    NodeUrl,
    Password,
    User,
    connect,
    documents,
    examples,
    typed,
)
from headwater.client.lines import printable, text

PART = ("first", 30)
EXAMPLES = examples(
    "headwater get greeting",
    "headwater get --json greeting",
    "headwater get one --collection shop.orders",
    "headwater get 2013-01-01/UA1545/EWR | jq .dest",
)
EXITS = {1: "there is no such document"}


def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The document's key.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print key, CAS, flags and value as one JSON object.")
    ] = False,
    collection: CollectionName = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print the document stored under KEY: into files and pipes byte for byte, on a terminal as text.

    Exit status 1 when there is none.
    """
    with connect(node, user, password) as client:
        document = documents(client, collection).get(typed(key))
    if as_json:
        collection_field = {} if collection is None else {"collection": collection}
        row = {"key": key, **collection_field, "cas": document.cas, "flags": document.flags, **_value(document.value)}
        typer.echo(json.dumps(row))
    elif is_terminal():
        typer.echo("\n".join(map(_masked, text(document.value).removesuffix("\n").split("\n"))))
    else:
        sys.stdout.buffer.write(document.value)
        sys.stdout.buffer.flush()


def is_terminal() -> bool:
    """Return True if the output goes to a terminal."""
    return sys.stdout.isatty()


def _masked(line: str) -> str:
    return "\t".join(map(printable, line.split("\t")))


def _value(value: bytes) -> dict[str, str]:
    """Return the value as text, or as base64 if it is none."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
