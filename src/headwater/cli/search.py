"""`headwater search`: find documents in an index that `headwater index` keeps."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.failures import CommandError
from headwater.cli.options import ChosenCollections, ChosenScope, examples

if TYPE_CHECKING:
    from headwater.pipelines.fulltext import Hit, KeptAside

PART = ("follow", 30)
EXAMPLES = examples(
    "headwater search ./search 'red wine'",
    "headwater search ./search '\"red wine\" bord*' --limit 3",
    "headwater search ./search --aside",
    "headwater search ./search-store 'red wine' --collections shop.orders",
)
EXITS = {1: "nothing was found"}
SearchUser = Annotated[
    str | None, typer.Option("--opensearch-user", metavar="NAME", help="Who asks OpenSearch, if it wants to know.")
]
SearchPassword = Annotated[
    str | None,
    typer.Option(
        "--opensearch-password", metavar="TEXT", envvar="HEADWATER_OPENSEARCH_PASSWORD", help="Their password."
    ),
]


def search(
    place: Annotated[str, typer.Argument(metavar="DIR", help="The index's folder.")],
    words: Annotated[
        str | None, typer.Argument(metavar="WORDS", help='Words, "several in a row", beginnings such as bord*.')
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, metavar="N", help="Hits at most.")] = 10,
    any_of: Annotated[bool, typer.Option("--any", help="One of the words is enough; otherwise all.")] = False,
    aside: Annotated[
        bool, typer.Option("--aside", help="List documents that were kept aside instead, each with the reason.")
    ] = False,
    collections: ChosenCollections = None,
    scope: ChosenScope = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    opensearch_user: SearchUser = None,
    opensearch_password: SearchPassword = None,
) -> None:
    """Find documents: a line with the score, the key and where the words stand, the best first.

    In an index of collections the key stands behind its collection's name. Status 1 when nothing was found. Words that
    begin with a dash go behind `--`.
    """
    from headwater.pipelines.fulltext import kept_aside

    if aside:
        for each in kept_aside(place):
            typer.echo(json.dumps(_object(each) | {"reason": each.reason}) if as_json else _line(each, each.reason))
        return
    if words is None:
        raise typer.BadParameter("WORDS are missing.")
    scope_options = {"collections": _names(collections), "scope": scope}
    hits = _hits(place, words, (opensearch_user, opensearch_password), limit=limit, any_of=any_of, **scope_options)
    for hit in hits:
        row = _object(hit) | {"score": round(hit.score, 6), "snippet": hit.snippet}
        line = f"{hit.score:8.3f}  {_line(hit, ' '.join(hit.snippet.split()))}"
        typer.echo(json.dumps(row) if as_json else line)
    if not hits:
        raise CommandError("nothing was found")


def _names(collections: str | None) -> list[str]:
    """Return the chosen names; none for all that the index has."""
    from headwater.client.collections import read_names

    return [] if collections is None else read_names(collections) or []


def _hits(place: str, words: str, login: tuple[str | None, str | None], **options: Any) -> "list[Hit]":
    from contextlib import closing

    from headwater.pipelines import fulltext
    from headwater.pipelines.opensearch import SearchClient, SearchServer

    shape = fulltext.shape_of(place)
    if shape.get("opensearch") is None:
        return fulltext.search(place, words, **options)
    server = SearchServer(shape["opensearch"], *login, retry_seconds=0.0, by_collection=fulltext.BY_COLLECTION in shape)
    with closing(SearchClient(server)) as client:
        return client.search(words, **options)


def _object(hit: "Hit | KeptAside") -> dict[str, Any]:
    row = {"key": _text(hit.key)}
    return row if hit.scope is None else {"scope": hit.scope, "collection": hit.collection} | row


def _line(hit: "Hit | KeptAside", text: str) -> str:
    path = [] if hit.scope is None else [f"{hit.scope}.{hit.collection}"]
    return "  ".join([*path, _text(hit.key), text])


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
