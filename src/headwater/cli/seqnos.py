"""`headwater seqnos`: the high seqno of each vbucket, or of its collections."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.options import (
    DEFAULT_URL,
    ChosenCollections,
    ChosenScope,
    NodeUrl,
    Password,
    User,
    Vbuckets,
    connect,
    examples,
    existing,
    vbucket_set,
)

if TYPE_CHECKING:
    from headwater.client import Client

PART = ("inside", 10)
EXAMPLES = examples(
    "headwater seqnos",
    "headwater seqnos --vbuckets 0-15 --json",
    "headwater seqnos | sort -k 2 -n | tail -5",
    "headwater seqnos --collections shop.orders,shop.carts",
)


def seqnos(
    vbuckets: Vbuckets = None,
    collections: ChosenCollections = None,
    scope: ChosenScope = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, vbucket to seqno; of collections, one for each.")
    ] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print each active vbucket and its high seqno: the number of its newest change, in whatever collection.

    Of collections that are chosen each has lines of its own, with its name behind the vbucket: the number of the newest
    change in it, 0 where it has none.
    """
    numbers = vbucket_set(vbuckets)
    with connect(node, user, password) as client:
        existing(client, numbers)
        if collections is None and scope is None:
            _show({"": client.seqnos("all")}, numbers, as_json=as_json)
        else:
            _show(_of_collections(client, collections, scope), numbers, as_json=as_json, with_names=True)


def _of_collections(client: "Client", collections: str | None, scope: str | None) -> dict[str, dict[int, int]]:
    """Return the seqnos of each chosen collection, by its name.

    Raises: OptionError, UnknownCollection, UnknownScope.
    """
    choice, manifest = client.choose(collections, scope), client.manifest()
    seqnos = {}
    for scope_, collection in manifest.each_collection():
        if choice is not None and (
            choice.is_whole or scope_.id == choice.scope or collection.id in (choice.collections or ())
        ):
            seqnos[f"{scope_.name}.{collection.name}"] = client.seqnos(collection.id)
    return seqnos


def _show(
    seqnos: dict[str, dict[int, int]], numbers: list[int] | None, *, as_json: bool, with_names: bool = False
) -> None:
    selected = {
        name: {vb: by_vbucket[vb] for vb in sorted(by_vbucket) if numbers is None or vb in numbers}
        for name, by_vbucket in sorted(seqnos.items())
    }
    if as_json:
        typer.echo(json.dumps(selected if with_names else selected[""]))
        return
    lines = [
        f"{vb} {name} {seqno}" if with_names else f"{vb} {seqno}"
        for name, by_vbucket in selected.items()
        for vb, seqno in by_vbucket.items()
    ]
    if lines:
        typer.echo("\n".join(lines))
