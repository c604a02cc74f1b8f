"""Options that several commands share, declared once: the node's address, the user, the vbuckets."""

import inspect
import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.forms import detail, remark
from headwater.cli.units import seconds
from headwater.counting import several
from headwater.errors import OptionError
from headwater.wire import vbucket

if TYPE_CHECKING:
    from headwater.client import Client, Documents, Durability
    from headwater.cluster.admin import Endpoint

DEFAULT_URL = "couchbase://127.0.0.1:11210/default"

NodeUrl = Annotated[
    str,
    typer.Option(
        "--node",
        "-n",
        metavar="URL",
        envvar="HEADWATER_NODE",
        help="The node to talk to, and its bucket.",
        show_default=True,
    ),
]
User = Annotated[str | None, typer.Option("--user", metavar="NAME", envvar="HEADWATER_USER", help="Who asks.")]
Password = Annotated[
    str | None,
    typer.Option(
        "--password",
        metavar="TEXT",
        envvar="HEADWATER_PASSWORD",
        help="The user's password; it is asked for when left out. Others may see what is typed here: --password-file.",
    ),
]
Vbuckets = Annotated[
    str | None,
    typer.Option("--vbuckets", metavar="LIST", help="Which vbuckets, e.g. 0-511,700. All of them when left out."),
]

CollectionName = Annotated[
    str | None,
    typer.Option(
        "--collection", metavar="SCOPE.NAME", help="Whose documents are meant; the default collection when left out."
    ),
]

DurabilityName = Annotated[
    str | None,
    typer.Option(
        "--durability",
        metavar="LEVEL",
        help="Return when so many copies have it: majority, majority-and-persist-to-active or persist-to-majority.",
    ),
]
DurabilityTimeout = Annotated[
    float | None, seconds("--durability-timeout", "How long the copies may take, less than 10s; 9s when left out.")
]

ChosenCollections = Annotated[
    str | None,
    typer.Option("--collections", metavar="NAMES", help="Which collections: all, or names such as shop.orders,..."),
]
ChosenScope = Annotated[
    str | None, typer.Option("--scope", metavar="NAME", help="All collections of this scope, instead of --collections.")
]


class OnDataLoss(StrEnum):
    """The reaction to deletions that were purged before they were read."""

    WARN = "warn"
    FAIL = "fail"


Loss = Annotated[
    OnDataLoss,
    typer.Option("--on-data-loss", help="When deletions were purged unread: read again whole and say so, or end."),
]


def durability(level: str | None, timeout_seconds: float | None) -> "Durability | None":
    """Return the durability in the options; None for none.

    Raises:
        OptionError: there is no such level, the time is invalid, or it has no level.
    """
    from headwater.client import Durability

    if level is not None:
        return Durability(level, timeout_seconds)
    if timeout_seconds is not None:
        raise OptionError("--durability-timeout", timeout_seconds, "given with --durability")
    return None


DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, do nothing.")]
Concurrency = Annotated[
    int, typer.Option("--concurrency", min=1, max=64, metavar="N", help="How many vbuckets are moved at the same time.")
]
Patience = Annotated[float, seconds("--patience", "Give up a vbucket of which nothing has come for so long.")]


TableName = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="NAME", help="The table's name in a catalog of Spark's session: catalog.schema.name."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's session; may be given more than once."),
]


def typed(text: str) -> bytes:
    """Return what was typed as bytes: text as UTF-8, whatever the terminal's encoding; the rest as it came."""
    return text.encode(errors="surrogateescape")


def documents(client: "Client", collection: str | None) -> "Documents":
    """Return the documents of the collection that `--collection` names."""
    return client if collection is None else client.collection(collection)


_MARKUP = re.compile(r"\[(?=[a-z#/@])")


def examples(*lines: str) -> str:
    """Return the closing part of a command's help: lines to copy, each shown on a line of its own."""
    return escaped("\n\n".join(["Examples:", *(f"  $ {line}" for line in lines)]))


def paragraphs(docstring: str | None) -> str:
    """Return a docstring as help text, one line for each paragraph: the screen folds the lines."""
    parts = inspect.cleandoc(docstring or "").split("\n\n")
    return escaped("\n\n".join(" ".join(part.split()) for part in parts))


def escaped(text: str) -> str:
    """Return text for the screen of help, which would take `[orders]` for a style and leave it out."""
    return _MARKUP.sub(r"\\[", text)


def unescaped(text: str) -> str:
    """Return the same text for pages without styles."""
    return text.replace("\\[", "[")


def vbucket_set(text: str | None) -> list[int] | None:
    """Read a list such as `0-511,700` into sorted vbucket numbers (0 to 1023); None stays None, which means all.

    Raises: typer.BadParameter naming the part that is not a vbucket or a range of them.
    """
    try:
        return None if text is None else list(vbucket.vbucket_set(text))
    except OptionError as error:
        raise typer.BadParameter(f"{error}.") from None


def existing(client: "Client", numbers: list[int] | None) -> None:
    """Check that the bucket has these vbuckets.

    Raises: OptionError: it names the first missing one, and those the bucket has.
    """
    check_count(numbers, client.map.vbuckets)


def check_count(numbers: list[int] | None, vbuckets: int) -> None:
    """Check vbuckets against the known number of the bucket's vbuckets."""
    beyond = [vbucket for vbucket in numbers or () if vbucket >= vbuckets]
    if beyond:
        raise OptionError("vbuckets", beyond[0], f"of this bucket, which has 0 to {vbuckets - 1}")


def connect(url: str, user: str | None, password: str | None) -> "Client":
    """Open the client of a command; imported here because light commands must start at once."""
    from headwater import client

    connected = client.connect(url, user=user, password=password)
    detail(f"connected to {', '.join(map(str, connected.map.servers))}, {several(connected.map.vbuckets, 'vbucket')}")
    return connected


def check_answers(
    url: str,
    user: str | None,
    password: str | None,
    retry_seconds: float | None = None,
    *,
    say_unread: bool = True,
    collections: str | None = None,
    scope: str | None = None,
) -> None:
    """Ask the bucket something, so that a wrong address, password or collection is reported now, not after Spark's
    start and its patience.

    The retry time holds for this first request, too: a node that is away is waited for. Collections that the command
    will not read are reported on stderr.

    Raises: TransportError, StatusError, OptionError.
    """
    from headwater.client.unread import unread_collections
    from headwater.spark.nodes import patiently

    def ask() -> dict[str, int]:
        with connect(url, user, password) as client:
            if client.choose(collections, scope) is not None:
                return {}
            client.seqnos()
            return {} if collections else unread_collections(client)

    unread_scopes: dict[str, int] = patiently(ask, retry_seconds or 0.0)
    if unread_scopes and say_unread:
        remark(f"only the default collection is read; left out: {scopes_text(unread_scopes)}")


def scopes_text(scopes: dict[str, int]) -> str:
    """Return the number of collections of each scope, for a line to the user."""
    return ", ".join(f"{several(number, 'collection')} of scope {name}" for name, number in sorted(scopes.items()))


def endpoint(node: str, user: str | None, password: str | None) -> "Endpoint":
    """Return a bucket on one node, from `host:port`, `host:port/bucket` or a whole connection string."""
    from headwater.cluster.admin import Endpoint

    return Endpoint.of(node, user, password)
