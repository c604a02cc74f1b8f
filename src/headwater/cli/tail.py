"""`headwater tail`: watch the changes of a bucket as they become durable.

Objects, one a change: right for people and pipes at moderate rates. Bulk reading is `client.batches` and the Spark
source.
"""

import base64
import datetime
import json
import re
import time
from contextlib import closing
from dataclasses import asdict, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeAlias

import typer

from headwater.cli.ages import age_of
from headwater.cli.forms import remark
from headwater.cli.options import (
    DEFAULT_URL,
    Loss,
    NodeUrl,
    OnDataLoss,
    Password,
    User,
    Vbuckets,
    connect,
    examples,
    vbucket_set,
)
from headwater.cli.positions import SAVE_SECONDS, PrintedPositions, events
from headwater.cli.stopping import until_stopped
from headwater.cli.tail_format import CSV_HEADER, FIELDS, csv_line, template, wanted_keys
from headwater.cli.tail_status import TailStatus
from headwater.cli.tap import tap
from headwater.client.lines import key_members, line, text, value_members
from headwater.wire.event_columns import SHOWN
from headwater.wire.json_text import read_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.client import (
        Before,
        Client,
        CollectionEvent,
        Coverage,
        Deletion,
        DeletionsPurged,
        Expiration,
        Mutation,
        Position,
        SnapshotMarker,
    )
    from headwater.client.changes import Event
    from headwater.client.feeds import Changes
    from headwater.client.options import Start

    Row: TypeAlias = Mutation | Deletion | Expiration
    Missing: TypeAlias = DeletionsPurged | SnapshotMarker

PART = ("first", 50)
EXAMPLES = examples(
    "headwater tail",
    "headwater tail --from now --keys-only",
    "headwater tail --once --json | jq -r .key | sort -u",
    "headwater tail --once --json > copy.jsonl; headwater load copy.jsonl --format changes --node other",
    "headwater tail --from 2h --json",
    "headwater tail --key 'order:*' --format '{time} {key} {value}'",
    "headwater tail --collection shop.orders --collection shop.carts",
    "headwater tail --from 1200 --vbuckets 7",
    "headwater tail --once --history --key order:1200",
    "headwater tail --before --json",
    "headwater tail --positions audit.json --json >> audit.jsonl",
    "headwater tail --from now --status",
    "headwater tail --vbuckets 0-511 --node couchbase://10.0.0.7:11210/orders",
)
EXITS = {
    0: "--once: all is printed; else Ctrl-C or SIGTERM",
    1: "the history has left the one printed so far, or lacks deletions",
}
JSON_DATATYPE = 0x01
FROM = (
    "beginning: the oldest change kept. now: the next one. A number: behind that seqno of the one vbucket in "
    "--vbuckets. A time (2026-11-22T10:00, local unless it says a zone) or 10m, 2h, 3d ago: what changed since, by the "
    "clock in the CAS; all of the history is read for it."
)
FORM = (
    f"text, json (as --json), csv, or a template of the fields {', '.join(FIELDS[:-1])} and {FIELDS[-1]}: "
    "'{key} {value}'."
)


class Begin(NamedTuple):
    """The start of a tail: `seqno` of a vbucket, or changes from `since_ns` (Unix) on, or neither: `now`, or the whole
    history.
    """

    now: bool = False
    seqno: int | None = None
    since_ns: int = 0


def begin(text: str) -> Begin:
    """Read the value of --from; raises typer.BadParameter."""
    if text in ("beginning", "now"):
        return Begin(now=text == "now")
    if text.isdecimal():
        return Begin(seqno=int(text))
    if (ago := age_of(text)) is not None:
        return Begin(since_ns=time.time_ns() - int(ago.total_seconds()) * 10**9)
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is none of beginning, now, a seqno such as 1200, a time such as 2026-11-22T10:00, 10m, 2h or 3d."
        ) from None
    return Begin(since_ns=int(moment.timestamp() * 1e6) * 1000)


class TailDialect(StrEnum):
    """The protocol in which `tail` asks the node for changes."""

    DCP = "dcp"
    TAP = "tap"


KeysOnly = Annotated[bool, typer.Option("--keys-only", help="Leave the values out; they are not even sent.")]
History = Annotated[
    bool, typer.Option("--history", help="Every version of each document, as far as the server keeps them.")
]
WithBefore = Annotated[
    bool,
    typer.Option("--before", help="Every version, and with each change what it replaced; for text and JSON."),
]


Follow = Annotated[bool, typer.Option("--follow/--once", help="Go on for ever, or end at the seqnos of now.")]
Keys = Annotated[
    list[str] | None, typer.Option("--key", metavar="GLOB", help="Only keys such as 'order:*'; may be repeated.")
]
OnlyCollection = Annotated[
    list[str] | None, typer.Option("--collection", metavar="SCOPE.NAME", help="Only this one; may be repeated.")
]
OnlyScope = Annotated[str | None, typer.Option("--scope", metavar="NAME", help="Only the collections of this scope.")]
Status = Annotated[
    bool,
    typer.Option("--status", help="Say each second on stderr until when everything is printed, by the nodes' clocks."),
]


def tail(
    start: Annotated[str, typer.Option("--from", metavar="WHERE", help=FROM)] = "beginning",
    positions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Go on behind what was printed before, as FILE says, and keep that there; the first time as --from.",
        ),
    ] = None,
    follow: Follow = True,
    keys_only: KeysOnly = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, complete.")] = False,
    key: Keys = None,
    form: Annotated[str, typer.Option("--format", metavar="FORM", help=FORM)] = "text",
    protocol: Annotated[
        TailDialect, typer.Option(help="TAP tells no seqnos, and is for nodes that have nothing newer.")
    ] = TailDialect.DCP,
    vbuckets: Vbuckets = None,
    collection: OnlyCollection = None,
    scope: OnlyScope = None,
    history: History = False,
    before: WithBefore = False,
    status: Status = False,
    on_data_loss: Loss = OnDataLoss.FAIL,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print every change as it happens: stored, deleted and expired documents, in order within each vbucket.

    Those of all collections, unless some are named, and what becomes of collections and scopes themselves.
    Ctrl-C and SIGTERM end it with exit status 0, with --once 130 and 143: not all was printed. When the node's history
    turns out to have left the one printed so far (a failover that lost changes, or deletions that were purged before
    they were printed), tail says so and ends with status 1; with --on-data-loss warn such deletions are an event, and
    their vbuckets are printed again whole.

    With --history every version is printed that the server keeps; where it keeps none any more, an event says so, and
    the last version of each document stands for all. A server that keeps none at all refuses it.

    With --before a change is a create, an update, a delete or an expire, and comes with the version that it replaced,
    as long as the node keeps that; nodes of headwater do.

    With --status tail says each second until when everything is printed: no change that comes later is older than that.
    """
    begin_at, form = begin(start), _form("json" if as_json else form, before)
    if protocol is TailDialect.TAP:
        _check_tap(start, positions, collection or scope, bool(key) or form not in ("text", "json"), history or before)
        _check_tap_status(status)
        arguments = partial(tap, keys_only=keys_only, as_json=form == "json", future=begin_at.now)
        arguments(dump=not follow, vbuckets=vbuckets, node=node, user=user, password=password)
        return
    numbers, lines = vbucket_set(vbuckets), line_maker(form, keys_only)
    with until_stopped(has_end=not follow), connect(node, user, password) as client:
        coverage = _choice(client, collection, scope, positions)
        saved_positions = _saved_positions(client, positions, coverage)
        first = _start(client, begin_at, numbers, coverage, saved_positions)
        keep = positions is not None or status
        reading = _reading(on_data_loss, history, before, follow=follow, keep=keep)
        changes = client.changes(first, **reading, vbuckets=numbers, no_value=keys_only, collections=coverage)
        with changes, closing(PrintedPositions(changes, positions, saved_positions)) as printed:
            if status:
                printed.on_pause = TailStatus(client, changes, numbers, chooses=coverage is not None).tell
            _print(
                changes, TailShown(*lines, wanted_keys(key), bool(key), history or before), begin_at.since_ns, printed
            )


def _check_tap(start: str, positions: Path | None, collections: object, formed: bool, history: bool) -> None:
    if start not in ("beginning", "now") or positions:
        raise typer.BadParameter("TAP begins with what there is or with the next change, and tells no positions.")
    if collections:
        raise typer.BadParameter("TAP knows the default collection only.")
    if history:
        raise typer.BadParameter("TAP has no old versions of documents: --history and --before need --protocol dcp.")
    if formed:
        raise typer.BadParameter("with TAP there is no --key, and no --format but text and json.")


def _check_tap_status(status: bool) -> None:
    if status:
        raise typer.BadParameter("TAP tells no seqnos, so nobody knows until when everything is printed: no --status.")


def _form(form: str, before: bool) -> str:
    """Return the form of the lines; raises typer.BadParameter if it has no place for the version that a change
    replaced.
    """
    if before and form not in ("text", "json"):
        raise typer.BadParameter("what a change replaced is shown as text or JSON: no other --format with --before.")
    return form


def _reading(on_data_loss: OnDataLoss, history: bool, before: bool, *, follow: bool, keep: bool) -> dict[str, Any]:
    """Return the options of the read; with `keep` it pauses, so that positions are saved in a quiet time as well."""
    answer = "raise" if on_data_loss is OnDataLoss.FAIL else "read_again"
    wait = SAVE_SECONDS if keep else None
    reading = {"until": None if follow else "now", "on_data_loss": answer, "max_wait_seconds": wait}
    return reading | {"history": history, "before": before}


def _choice(
    client: "Client", collection: list[str] | None, scope: str | None, positions: Path | None
) -> "Coverage | None":
    if positions is not None and positions.exists() and not (collection or scope):
        return _saved_choice(positions)
    return client.choose(collection or (None if scope else "all"), scope)


def _saved_choice(positions: Path) -> "Coverage | None":
    """Return the collections of saved positions, which tail goes on with."""
    from headwater.client import load_positions

    saved_positions = load_positions(positions.read_bytes())
    return next((position.coverage for position in saved_positions.values()), None)


def _saved_positions(client: "Client", positions: Path | None, coverage: "Coverage | None") -> "dict[int, Position]":
    """Return the positions of a file, none if there is none yet. All of them must have the present choice of
    collections, also those of vbuckets that are left out this time, which stay in the file.
    """
    from headwater.client import load_positions
    from headwater.client.collections import check_start

    if positions is None or not positions.exists():
        return {}
    saved_positions = load_positions(positions.read_bytes())
    if coverage is not None:
        check_start(saved_positions, coverage, client.manifest())
    return saved_positions


def _start(
    client: "Client",
    begin_at: Begin,
    numbers: list[int] | None,
    coverage: "Coverage | None",
    saved_positions: "dict[int, Position]",
) -> "Start":
    """Return the start of the drain: the saved positions of the wanted vbuckets or, without one, the value of
    --from.
    """
    from headwater.client import Position

    if (
        positions := saved_positions
        if numbers is None
        else {vbucket: saved_positions[vbucket] for vbucket in numbers if vbucket in saved_positions}
    ):
        return positions
    if begin_at.seqno is None:
        return "now" if begin_at.now else None
    if numbers is None or len(numbers) != 1:
        raise typer.BadParameter(f"a seqno belongs to a vbucket: --from {begin_at.seqno} --vbuckets 7.")
    [vbucket] = numbers
    return {vbucket: replace(Position.after(vbucket, begin_at.seqno, client.failover_log(vbucket)), coverage=coverage)}


class TailShown(NamedTuple):
    """The printed changes and their forms.

    Attributes:
        change: makes the line of a change.
        event: makes the line of an event of a collection or scope, None for an event that was printed before. Without
            this function no event is printed.
        loss: makes the line about deletions that were purged unread, or about versions that the node no longer keeps.
            Without this function they are reported on stderr.
        wanted: returns True if the changes of a key are printed.
        only_keys: True if the user chose keys: events without a key are not printed then.
        history: True if the user requested every version: a snapshot that lacks some versions is an event then.
    """

    change: "Callable[[str, Row], str]"
    event: "Callable[[str, CollectionEvent], str | None] | None"
    loss: "Callable[[str, Missing], str] | None"
    wanted: "Callable[[bytes], bool]"
    only_keys: bool
    history: bool = False


def line_maker(form: str, keys_only: bool) -> "tuple[Callable[[str, Row], str], Any, Any]":
    """Return the makers of lines in a form, for changes, events of collections, and losses, as in TailShown."""
    if form == "json":
        return lambda kind, change: json_line(kind, change, keys_only), _json_event, _json_loss
    if form == "text":
        return lambda kind, change: _line(kind, change, keys_only), _events_once(), _loss
    return (csv_line if form == "csv" else template(form)), None, None


def _print(changes: "Changes", output: TailShown, since_ns: int, printed: PrintedPositions) -> None:
    """Print the changes of documents and the events of collections, a line each."""
    if output.change is csv_line:
        typer.echo(CSV_HEADER)
    for event in events(changes, printed):
        if (row := _line_to_print(event, output, since_ns)) is not None:
            typer.echo(row)
        printed.note(event.vbucket)


def _line_to_print(event: "Event", output: TailShown, since_ns: int) -> str | None:
    """Return the line of an event; None if it has none."""
    from headwater.client import Deletion, DeletionsPurged, Expiration, Mutation, SnapshotMarker, StreamEnd

    match event:
        case DeletionsPurged():
            return _told_loss("deletions_purged", event, output)
        case SnapshotMarker() if output.history and event.is_deduplicated and not since_ns:
            return _told_loss("snapshot_deduplicated", event, output)
        case Mutation() | Deletion() | Expiration() if event.cas >= since_ns and output.wanted(event.key):
            return output.change(_kind(event), event)
        case Mutation() | Deletion() | Expiration() | SnapshotMarker() | StreamEnd():
            pass
        case _ if since_ns or output.only_keys or output.event is None:  # when that was, is not known; it has no key
            pass
        case _:
            return output.event(_kind(event), event)
    return None


def _told_loss(kind: str, event: "Missing", output: TailShown) -> str | None:
    """Return the line about changes that do not come; None if it went to stderr."""
    if output.loss is not None:
        return output.loss(kind, event)
    remark(_loss(kind, event))
    return None


def _kind(change: "Row | CollectionEvent") -> str:
    """Return the name of an event: mutation, collection_created."""
    return re.sub("(?<=.)(?=[A-Z])", "_", type(change).__name__).lower()


def _line(kind: str, change: "Row", keys_only: bool) -> str:
    """Return one change for people: `512:7 mutation greeting hello world`, `512:8 mutation shop.orders one
    {...}`.
    """
    path = [change.within.path] if change.collection_id else []
    value = b"" if keys_only else change.value
    line_ = line(f"{change.vbucket}:{change.seqno}", _operation(kind, change), *path, text(change.key), value=value)
    return line_ + _replaced(change, keys_only)


def _operation(kind: str, change: "Row") -> str:
    """Return the operation of a change, if it comes with the version that it replaced; else the kind of event."""
    from headwater.client import Lack

    return kind if change.before is Lack.NOT_REQUESTED else change.operation or kind


def _replaced(change: "Row", keys_only: bool) -> str:
    """Return the version that a change replaced, for people: `, was seqno 7: {...}`; empty if there was none."""
    from headwater.client import Before, Lack

    if change.before is Lack.NOT_KEPT:
        return ", was: not kept any more"
    if not isinstance(change.before, Before):
        return ""
    place = f", was seqno {change.before.seqno}"
    return place if keys_only else line(f"{place}:", value=change.before.value)


def _events_once() -> "Callable[[str, CollectionEvent], str | None]":
    """Return the maker of lines for people that shows each event once, for its first vbucket: a thousand others have
    it, too.
    """
    losses: set[object] = set()

    def first(kind: str, change: "CollectionEvent") -> str | None:
        event = replace(change, vbucket=0, seqno=0, snapshot_start=0, snapshot_end=0)
        if event in losses:
            return None
        losses.add(event)
        return _event(kind, change)

    return first


def _event(kind: str, change: "CollectionEvent") -> str:
    """Return one event of a collection or scope for people: `512:8 collection_created shop.orders`."""
    name = ".".join(filter(None, (getattr(change, "scope", ""), getattr(change, "collection", ""))))
    return line(f"{change.vbucket}:{change.seqno}", kind, name)


def _loss(kind: str, event: "Missing") -> str:
    """Return the line for people about changes that do not come: `512:120 deletions_purged after seqno 90: ...`."""
    from headwater.client import SnapshotMarker

    if isinstance(event, SnapshotMarker):
        message = f"from seqno {event.start_seqno}: old versions are not kept any more, the last of each follows"
        return line(f"{event.vbucket}:{event.end_seqno}", kind, message)
    message = f"after seqno {event.seqno}: they were not printed, and never will be; all of the vbucket comes again"
    return line(f"{event.vbucket}:{event.purge_seqno}", kind, message)


def _json_loss(kind: str, event: "Missing") -> str:
    """Return the line for programs about changes that do not come."""
    return json.dumps({"event": kind} | asdict(event))


def _json_event(kind: str, change: "CollectionEvent") -> str:
    """Return one event of a collection or scope for programs."""
    fields = (
        "vbucket",
        "seqno",
        "scope",
        "scope_id",
        "collection",
        "collection_id",
        "max_ttl",
        "history",
        "manifest_uid",
    )
    row: dict[str, Any] = {"event": kind} | {name: getattr(change, name) for name in fields if hasattr(change, name)}
    if isinstance(raw := getattr(change, "value", None), bytes):  # of an event that nobody here understands
        row |= {"number": getattr(change, "event", None), "value_base64": base64.b64encode(raw).decode()}
    return json.dumps(row)


def json_line(kind: str, change: "Row", keys_only: bool = False) -> str:
    """Return one change for programs. CAS and revision are numbers up to 2^64 - 1."""
    row: dict[str, Any] = {
        "event": kind,
        "vbucket": change.vbucket,
        "seqno": change.seqno,
        "scope": change.scope,
        "collection": change.collection,
        **key_members(change.key),
    }
    for field in (*SHOWN, "delete_time"):
        if hasattr(change, field):
            row[field] = getattr(change, field)
    fields = row if keys_only or not change.value else row | _value(change)
    fields |= _json_before(change, keys_only)
    text_line = json.dumps(fields, ensure_ascii=False)
    # JSON may name half a character (a lone surrogate), which no encoding can write but JSON's own.
    return text_line if text_line.isprintable() or writable(text_line) else json.dumps(fields)


def _json_before(change: "Row", keys_only: bool) -> dict[str, Any]:
    """Return the version that a change replaced, for programs; empty if it was not requested."""
    from headwater.client import Before, Lack

    before = change.before
    if before is Lack.NOT_REQUESTED:
        return {}
    members: dict[str, Any] = {"operation": change.operation, "before_known": before is not Lack.NOT_KEPT}
    if not isinstance(before, Before):
        return members | {"before": None}
    version = {name: getattr(before, name) for name in ("seqno", "rev_seqno", "cas", "flags", "expiry")}
    return members | {"before": version | ({} if keys_only or not before.value else _value(before))}


def writable(text: str, encoding: str = "utf-8") -> bool:
    """Return True if an encoding can write a text."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _value(change: "Row | Before") -> dict[str, Any]:
    """Return the value in the most readable form that loses nothing: JSON itself, text, or base64.

    JSON that would be written in another form again (spaces, 1.0e3, a name twice) also comes as text. JSON that a
    reader of the line could not parse comes as text only: numbers beyond a double, thousands of digits, a hundred
    levels.
    """
    bare = value_members(change.value)
    if not change.datatype & JSON_DATATYPE or "text" not in bare:
        return bare
    try:
        parsed = read_json(bare["text"])
        compact = json.dumps(parsed, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return bare
    return {"value": parsed} if compact == bare["text"] else {"value": parsed, **bare}
