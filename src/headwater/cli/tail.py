"""`headwater tail`: watch the changes of a bucket as they become durable.

Objects, one a change: right for people and pipes at moderate rates. Bulk reading is `client.batches` and the Spark
source.
"""

import base64
import json
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from headwater.cli.lines import line, text
from headwater.cli.options import DEFAULT_URL, NodeUrl, Password, User, Vbuckets, connect, examples, vbucket_set
from headwater.cli.stopping import until_stopped
from headwater.cli.tap import tap

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.client import Deletion, Expiration, Mutation
    from headwater.client.feeds import Changes

    Row: TypeAlias = Mutation | Deletion | Expiration

EXAMPLES = examples(
    "headwater tail",
    "headwater tail --from now --keys-only",
    "headwater tail --once --json | jq -r .key | sort -u",
    "headwater tail --vbuckets 0-511 --node couchbase://10.0.0.7:11210/orders",
)
JSON_DATATYPE = 0x01


class Start(StrEnum):
    """Where to begin."""

    BEGINNING = "beginning"
    NOW = "now"


class Dialect(StrEnum):
    """Which protocol to ask the node in."""

    DCP = "dcp"
    TAP = "tap"


def tail(
    start: Annotated[
        Start, typer.Option("--from", help="Begin with the oldest change kept, or with the next one.")
    ] = Start.BEGINNING,
    follow: Annotated[
        bool, typer.Option("--follow/--once", help="Go on for ever, or end at the seqnos of now.")
    ] = True,
    keys_only: Annotated[
        bool, typer.Option("--keys-only", help="Leave the values out; they are not even sent.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, complete.")] = False,
    protocol: Annotated[
        Dialect, typer.Option(help="TAP tells no seqnos, and is for nodes that have nothing newer.")
    ] = Dialect.DCP,
    vbuckets: Vbuckets = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print every change as it happens: stored, deleted and expired documents, in order within each vbucket.

    Ctrl-C and SIGTERM end it with exit status 0. When the node's history turns out to have left the one printed so far
    (a failover that lost changes), tail says so and ends with status 1.
    """
    if protocol is Dialect.TAP:
        future = start is Start.NOW
        shown = partial(tap, keys_only=keys_only, as_json=as_json)
        shown(dump=not follow, future=future, vbuckets=vbuckets, node=node, user=user, password=password)
        return
    wanted = vbucket_set(vbuckets)
    with until_stopped(), connect(node, user, password) as client:
        begin: Literal["now"] | None = "now" if start is Start.NOW else None
        changes = client.changes(begin, vbuckets=wanted, until=None if follow else "now", no_value=keys_only)
        with changes:
            _print(changes, _json_line if as_json else _line, keys_only)


def _print(changes: "Changes", show: "Callable[[str, Row, bool], str]", keys_only: bool) -> None:
    """Print what is told of documents, a line each."""
    from headwater.client import Deletion, Expiration, Mutation

    about_documents = Mutation | Deletion | Expiration
    for change in changes:
        if isinstance(change, about_documents):
            typer.echo(show(type(change).__name__.lower(), change, keys_only))


def _line(kind: str, change: "Row", keys_only: bool) -> str:
    """One change for people: `512:7 mutation greeting hello world`."""
    value = b"" if keys_only else change.value
    return line(f"{change.vbucket}:{change.seqno}", kind, text(change.key), value=value)


def _json_line(kind: str, change: "Row", keys_only: bool) -> str:
    """One change for programs. CAS and revision are numbers up to 2^64 - 1."""
    row: dict[str, Any] = {
        "event": kind,
        "vbucket": change.vbucket,
        "seqno": change.seqno,
        "key": text(change.key),
        "cas": change.cas,
        "rev_seqno": change.rev_seqno,
    }
    for field in ("flags", "expiry", "delete_time"):
        if hasattr(change, field):
            row[field] = getattr(change, field)
    return json.dumps(row if keys_only or not change.value else row | _value(change), ensure_ascii=False)


def _value(change: "Row") -> dict[str, Any]:
    """The value in the most readable form that loses nothing: JSON itself, text, or base64."""
    if change.datatype & JSON_DATATYPE:
        return {"value": json.loads(change.value)}
    try:
        return {"text": bytes(change.value).decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(change.value).decode()}
