"""`headwater get`: one document to stdout."""

import json
from typing import Annotated

import typer

from headwater.cli.options import DEFAULT_URL, NodeUrl, Password, User, connect, examples

EXAMPLES = examples(
    "headwater get greeting", "headwater get --json greeting", "headwater get 2013-01-01/UA1545/EWR | jq .dest"
)


def get(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The document's key.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print key, CAS, flags and value as one JSON object.")
    ] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print the document stored under KEY, byte for byte.

    Exit status 1 when there is none.
    """
    with connect(node, user, password) as client:
        document = client.get(key)
    if as_json:
        value = document.value.decode(errors="backslashreplace")
        typer.echo(json.dumps({"key": key, "cas": document.cas, "flags": document.flags, "value": value}))
    else:
        typer.echo(document.value)
