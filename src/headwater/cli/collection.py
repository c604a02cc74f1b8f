"""`headwater collection`: the scopes and collections of a bucket."""

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.cli.cluster.running import Password, StopRequest, User, addresses, run
from headwater.cli.cluster.work import NODE_OPTION, add_work
from headwater.cli.options import DEFAULT_URL, NodeUrl, examples, paragraphs
from headwater.cluster.work import AlterCollection, CreateCollection, DropCollection

if TYPE_CHECKING:
    from headwater.cluster.members import Members
    from headwater.wire.manifest import CollectionsManifest

PART = ("operate", 40)
HELP = """The scopes and collections of a bucket, on one node or on all that are in its cluster.

A collection is named scope.collection; the scope _default and its collection _default are there from the beginning. All
nodes get the same manifest; if one of them could not be told, type the same again."""
EXAMPLES = examples(
    "headwater collection create shop.orders",
    "headwater collection create shop.carts --max-ttl 86400",
    "headwater collection alter shop.carts --history off",
    "headwater collection list --json",
    "headwater collection drop shop.carts --yes",
)


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest, JSON.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print each collection and its id; of a scope without any, the scope."""
    from headwater.cluster.collections import current

    seeds, place = addresses([node])

    async def work(members: "Members", _: StopRequest) -> "CollectionsManifest":
        return await current(members, seeds)

    manifest = run(work, place, user, password)
    if as_json:
        typer.echo(json.dumps(manifest.as_json()))
        return
    for scope in manifest.scopes:
        for collection in scope.collections:
            limit = "" if collection.max_ttl is None else f" {collection.max_ttl} s"
            history = "" if collection.history else " without a history"
            typer.echo(f"{scope.name}.{collection.name} {collection.id:x}{limit}{history}")
        if not scope.collections:
            typer.echo(scope.name)


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
add_work(group, CreateCollection, NODE_OPTION)
add_work(group, AlterCollection, NODE_OPTION)
add_work(group, DropCollection, NODE_OPTION)
group.command(
    "list",
    help=paragraphs(list_.__doc__),
    epilog=examples("headwater collection list", "headwater collection list --json | jq '.scopes[].name'"),
)(list_)
