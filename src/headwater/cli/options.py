"""Options that several commands share, declared once: the node's address, who asks, which vbuckets."""

import inspect
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.cluster.admin import Endpoint

DEFAULT_URL = "couchbase://127.0.0.1:11210/default"
VBUCKETS_MAX = 1024

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
    str | None, typer.Option("--password", metavar="TEXT", envvar="HEADWATER_PASSWORD", help="The user's password.")
]
Vbuckets = Annotated[
    str | None,
    typer.Option("--vbuckets", metavar="LIST", help="Which vbuckets, e.g. 0-511,700. All of them when left out."),
]


def examples(*lines: str) -> str:
    """The closing part of a command's help: lines to copy, each shown on a line of its own."""
    return "\n\n".join(["Examples:", *(f"  $ {line}" for line in lines)])


def paragraphs(docstring: str | None) -> str:
    """A docstring as help text: the screen folds the lines, not we."""
    parts = inspect.cleandoc(docstring or "").split("\n\n")
    return "\n\n".join(" ".join(part.split()) for part in parts)


def vbucket_set(text: str | None) -> list[int] | None:
    """Read a list such as `0-511,700` into sorted vbucket numbers (0 to 1023); None stays None, which means all.

    Raises: typer.BadParameter naming the part that is not a vbucket or a range of them.
    """
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise typer.BadParameter(f"--vbuckets {text!r}: {part.strip()!r} is no vbucket and no range like 0-511.")
        low, high = int(first), int(last or first)
        if low > high or high >= VBUCKETS_MAX:
            raise typer.BadParameter(f"--vbuckets {text!r}: {part.strip()!r} is outside of 0 to {VBUCKETS_MAX - 1}.")
        chosen.update(range(low, high + 1))
    return sorted(chosen)


def connect(url: str, user: str | None, password: str | None) -> "Client":
    """Open the client of a command; imported here because light commands must start at once."""
    from headwater import client

    return client.connect(url, user=user, password=password)


def endpoint(node: str, user: str | None, password: str | None) -> "Endpoint":
    """A bucket on one node, from `host:port`, `host:port/bucket` or a whole connection string."""
    from headwater.client.routing import parse
    from headwater.cluster.admin import Endpoint

    target = parse(node)
    return Endpoint(target.seeds[0], target.bucket, user, password)
