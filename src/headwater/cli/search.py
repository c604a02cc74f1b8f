"""`headwater search`: find documents in an index that `headwater index` keeps."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.failures import CommandError
from headwater.cli.index import SearchPassword, SearchUser
from headwater.cli.options import examples

if TYPE_CHECKING:
    from headwater.pipelines.fulltext import Hit

EXAMPLES = examples(
    "headwater search ./search 'red wine'",
    "headwater search ./search '\"red wine\" bord*' --limit 3",
    "headwater search ./search --aside",
)


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
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
    opensearch_user: SearchUser = None,
    opensearch_password: SearchPassword = None,
) -> None:
    """Find documents: a line with the score, the key and where the words stand, the best first.

    Status 1 when nothing was found.
    """
    from headwater.pipelines.fulltext import kept_aside

    if aside:
        for key, why in kept_aside(place):
            typer.echo(json.dumps({"key": _text(key), "reason": why}) if as_json else f"{_text(key)}  {why}")
        return
    if words is None:
        raise typer.BadParameter("WORDS are missing.")
    hits = _hits(place, words, limit, any_of, (opensearch_user, opensearch_password))
    for hit in hits:
        typer.echo(_json(hit) if as_json else f"{hit.score:8.3f}  {_text(hit.key)}  {' '.join(hit.snippet.split())}")
    if not hits:
        raise CommandError("nothing was found")


def _hits(place: str, words: str, limit: int, any_of: bool, login: tuple[str | None, str | None]) -> "list[Hit]":
    from contextlib import closing

    from headwater.pipelines import fulltext
    from headwater.pipelines.opensearch import SearchClient, SearchServer

    server = fulltext.shape_of(place).get("opensearch")
    if server is None:
        return fulltext.search(place, words, limit=limit, any_of=any_of)
    with closing(SearchClient(SearchServer(server, *login, retry_seconds=0.0))) as client:
        return client.search(words, limit=limit, any_of=any_of)


def _json(hit: "Hit") -> str:
    return json.dumps({"key": _text(hit.key), "score": round(hit.score, 6), "snippet": hit.snippet})


def _text(key: bytes) -> str:
    return key.decode("utf-8", "backslashreplace")
