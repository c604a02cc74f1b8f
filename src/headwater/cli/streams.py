"""`headwater streams`: the readers of a bucket, and their lag."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.failures import CommandError
from headwater.cli.options import DEFAULT_URL, NodeUrl, Password, User, connect, examples
from headwater.cli.screen import count, several
from headwater.client.lines import printable

if TYPE_CHECKING:
    from headwater.cluster.streams import ConnectionRow
    from headwater.errors import TransportError

PART = ("inside", 30)
EXAMPLES = examples(
    "headwater streams", "headwater streams --worst 3", "headwater streams --json | jq '.connections[].backlog'"
)
EXITS = {1: "a node does not answer; the others are shown"}
_FIELDS = ("node", "name", "part", "dialect", "peer", "count", "backlog", "worst", "unacked", "window", "paused")


def streams(
    worst: Annotated[
        int, typer.Option("--worst", min=0, metavar="COUNT", help="Of each, the vbuckets that are furthest behind.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Show the connections on which changes flow, those that are furthest behind first.

    Of each node of the bucket: who reads from it (producer), and whom it follows (consumer). The backlog is how many
    changes a reader has yet to be sent on the streams that it has open: of a vbucket that it has not asked for, or no
    more, the node does not know how far it is. Unacked is what it was sent and has not confirmed, in bytes. With status
    1 a node does not answer.
    """
    from headwater.client.routing import parse
    from headwater.cluster.streams import connections

    silent: dict[str, TransportError] = {}
    with connect(node, user, password) as client:
        dcp, tap = client.stats_by_node("dcp", silent), client.stats_by_node("tap", silent)
    seeds = {address: parse(address).seeds[0] for address in dcp}
    rows = [row for each, stats in dcp.items() for row in connections(seeds[each], stats, tap.get(each, {}))]
    rows.sort(key=lambda row: -(row.backlog or 0))
    if as_json:
        facts: dict[str, Any] = {"connections": [_json(row, worst) for row in rows]}
        facts |= {"silent": {address: _error_text(error) for address, error in silent.items()}} if silent else {}
        typer.echo(json.dumps(facts))
    elif rows:
        typer.echo("\n".join(line for row in rows for line in _lines(row, worst)))
    else:
        typer.echo(f"nobody reads from {several(len(dcp), 'node')}")
    if silent:
        raise CommandError(
            "; ".join(f"{address} does not answer ({_error_text(error)})" for address, error in silent.items())
        )


def _error_text(error: "TransportError") -> str:
    return str(error).partition(": ")[2] or str(error)


def _lines(row: "ConnectionRow", worst: int) -> Iterator[str]:
    """Yield the lines of a connection for people, and of its vbuckets with the most lag."""
    facts = [several(row.count or 0, "stream")]
    if row.backlog is not None:
        facts.append(f"backlog {count(row.backlog)}")
    if row.worst:
        facts.append(f"of one vbucket up to {count(row.worst)}")
    if row.unacked is not None:
        facts.append(f"unacked {count(row.unacked)}{f' of {count(row.window)}' if row.window else ''} bytes")
    if row.paused:
        facts.append("paused")
    name, peer = printable(row.name), printable(row.peer)
    yield f"{name}: {row.dialect} {row.part} of {row.node}, peer {peer}: {', '.join(facts)}"
    for stream in row.streams[:worst]:
        backlog = "-" if stream.remaining is None else count(stream.remaining)
        yield f"  vbucket {stream.vbucket}: {stream.state}, backlog {backlog}"


def _json(row: "ConnectionRow", worst: int) -> dict[str, Any]:
    facts: dict[str, Any] = {name: getattr(row, name) for name in _FIELDS} | {"node": str(row.node)}
    return facts | ({"streams": [asdict(stream) for stream in row.streams[:worst]]} if worst else {})
