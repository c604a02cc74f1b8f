"""`headwater tap`: watch a node over TAP, the oldest of the three protocols.

TAP has no seqnos: it resumes by a name. `tail --protocol tap` is this command with its defaults.
"""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.forms import remark
from headwater.cli.options import DEFAULT_URL, NodeUrl, Password, User, Vbuckets, examples, vbucket_set
from headwater.cli.stopping import until_stopped
from headwater.client.lines import key_members, line, value_members

if TYPE_CHECKING:
    from headwater.protocol.tap.consumer import TapMessage

PART = ("older", 10)
EXAMPLES = examples(
    "headwater tap --dump",
    "headwater tap --name audit --future --keys-only",
    "headwater tap --vbuckets 0-511 --dump --json | jq -r .key",
)
EXITS = {0: "--dump: all is printed; else Ctrl-C or SIGTERM", 1: "the dump ended before all of it came"}

SINCE = (
    "Unix time, all or nothing: one that has passed means everything there is, then changes; one to come, changes "
    "only. TAP does not choose documents by their age."
)


def tap(
    name: Annotated[
        str,
        typer.Option(
            "--name", metavar="NAME", help="Name of the session; with one, a node that keeps sessions resumes."
        ),
    ] = "",
    dump: Annotated[bool, typer.Option("--dump", help="What there is, then the end.")] = False,
    future: Annotated[bool, typer.Option("--future", help="Changes only, nothing of what is there.")] = False,
    since: Annotated[int | None, typer.Option(metavar="SECONDS", help=SINCE)] = None,
    keys_only: Annotated[bool, typer.Option("--keys-only", help="Leave the values out.")] = False,
    checkpoints: Annotated[bool, typer.Option("--checkpoints", help="With the marks of checkpoints.")] = False,
    acknowledge: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge what was printed.")] = True,
    everything: Annotated[bool, typer.Option("--all", help="Messages about the stream as well.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
    vbuckets: Vbuckets = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print what a node sends over TAP: stored and deleted documents.

    Ctrl-C and SIGTERM end it with exit status 0, a dump with 130 and 143: it was not whole. A dump that ends by
    itself before all of it came ends with status 1. A lost connection is made anew; when changes may be missing
    since, a line on stderr says so.
    """
    from headwater.client import tap as client

    if future and since is not None:
        raise typer.BadParameter("--future and --since exclude each other.")
    stream = client.connect(
        node,
        name=name,
        since=client.NOW if future else since,
        dump=dump,
        vbuckets=vbucket_set(vbuckets),
        acknowledge=acknowledge,
        keys_only=keys_only,
        checkpoints={} if checkpoints else None,
        on_gap=_warn,
        user=user,
        password=password,
    )
    with until_stopped(has_end=dump), stream:
        for message in stream:
            row = describe(message, keys_only=keys_only)
            if everything or "key" in row:
                typer.echo(json.dumps(row, ensure_ascii=False) if as_json else _line(message, row, keys_only))


def _warn() -> None:
    remark(
        "the connection was lost and made anew; changes of the meantime may be missing. A node that keeps "
        "sessions (--tap-keep-alive-seconds) goes on where it was, for a client with --name that acknowledges."
    )


def describe(message: "TapMessage", *, keys_only: bool = False) -> dict[str, Any]:
    """Return a message as a row: event, vbucket, and its other fields."""
    from headwater.wire import tap as wire

    row: dict[str, Any] = {"event": type(message).__name__.lower(), "vbucket": message.vbucket}
    match message:
        case wire.Mutation() | wire.Delete():
            row |= key_members(message.key) | {"cas": message.cas, "rev_seqno": message.rev_seqno}
            if isinstance(message, wire.Mutation):
                row |= {"flags": message.client_flags, "expiry": message.item_expiration}
                row |= {} if keys_only else value_members(message.value)
        case wire.Opaque():
            row |= {"code": message.code}
        case wire.VbucketSet():
            row |= {"state": message.state}
        case wire.CheckpointStart():
            row |= {"checkpoint": message.checkpoint_id}
    return row


def _line(message: "TapMessage", row: dict[str, Any], keys_only: bool) -> str:
    """Return one message for people: `512 mutation greeting hello world`."""
    if "key" in row:
        value = b"" if keys_only else message.value
        return line(row["vbucket"], row["event"], row["key"], value=value)
    fields = [f"{name} {row[name]}" for name in ("code", "state", "checkpoint") if name in row]
    return line(row["vbucket"], row["event"], *fields)
