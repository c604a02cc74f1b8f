"""`headwater seqnos`: how far each vbucket's history goes."""

import json
from typing import Annotated

import typer

from headwater.cli.options import (
    DEFAULT_URL,
    NodeUrl,
    Password,
    User,
    Vbuckets,
    connect,
    examples,
    existing,
    vbucket_set,
)

EXAMPLES = examples(
    "headwater seqnos", "headwater seqnos --vbuckets 0-15 --json", "headwater seqnos | sort -k 2 -n | tail -5"
)


def seqnos(
    vbuckets: Vbuckets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object, vbucket to seqno.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print each active vbucket and its high seqno: the number of its newest change."""
    wanted = vbucket_set(vbuckets)
    with connect(node, user, password) as client:
        existing(client, wanted)
        found = client.seqnos()
    shown = {vbucket: found[vbucket] for vbucket in sorted(found) if wanted is None or vbucket in wanted}
    if as_json:
        typer.echo(json.dumps(shown))
    else:
        typer.echo("\n".join(f"{vbucket} {seqno}" for vbucket, seqno in shown.items()))
