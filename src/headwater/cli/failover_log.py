"""`headwater failover-log`: the branches of a vbucket's history."""

import json
from typing import Annotated

import typer

from headwater.cli.options import DEFAULT_URL, NodeUrl, Password, User, connect, examples, existing
from headwater.wire.vbucket import VBUCKETS_MAX

PART = ("inside", 20)
EXAMPLES = examples("headwater failover-log 0", "headwater failover-log 512 --json")
EXITS = {1: "the node has no such vbucket"}


def failover_log(
    vbucket: Annotated[
        int, typer.Argument(metavar="VBUCKET", min=0, max=VBUCKETS_MAX - 1, help="Which vbucket, 0 to 1023.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list of objects.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print a vbucket's failover log, newest branch first: its uuid and the seqno after which it began."""
    with connect(node, user, password) as client:
        existing(client, [vbucket])
        log = client.failover_log(vbucket)
    # 16 hexadecimal digits everywhere: as a number a vb uuid does not survive readers that keep 53 bits.
    if as_json:
        typer.echo(json.dumps([{"vb_uuid": f"{uuid:016x}", "seqno": seqno} for uuid, seqno in log]))
    else:
        typer.echo("\n".join(f"{uuid:016x} {seqno}" for uuid, seqno in log))
