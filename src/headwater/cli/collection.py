"""`headwater collection`: the scopes and collections of a bucket."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.cluster.running import Password, StopRequest, User, addresses, run
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, ask, report
from headwater.cli.options import DEFAULT_URL, DryRun, NodeUrl, examples, paragraphs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headwater.client.routing import Address
    from headwater.cluster.collections import CollectionPath, Edit
    from headwater.cluster.members import Members
    from headwater.wire.manifest import CollectionsManifest

HELP = """The scopes and collections of a bucket, on one node or on all that are in its cluster.

A collection is named scope.collection; the scope _default and its collection _default are there from the beginning. All
nodes get the same manifest; if one of them could not be told, type the same again."""
EXAMPLES = examples(
    "headwater collection create shop.orders",
    "headwater collection create shop.carts --max-ttl 86400",
    "headwater collection list --json",
    "headwater collection drop shop.carts --yes",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="SCOPE or SCOPE.COLLECTION.")]


def create(
    name: Name,
    max_ttl: Annotated[
        int | None,
        typer.Option("--max-ttl", metavar="SECONDS", min=1, max=2**31 - 1, help="No document lives longer."),
    ] = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Make a scope, or a collection and its scope if need be.

    What is there already stays as it is. Ends when it is durable on all nodes.
    """
    from headwater.cluster.collections import CollectionPath, creation

    path = CollectionPath.parse(name)
    if max_ttl is not None and not path.collection:
        raise typer.BadParameter("--max-ttl is of a collection; a scope has none.")
    made = _change(creation(path, max_ttl), node, user, password)
    report(f"{path} is there; manifest {made.uid:x}", name=str(path), manifest=f"{made.uid:x}")


def drop(
    name: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Although other nodes have another name for its id, which is dropped, too.")
    ] = False,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it begins.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Drop a collection, or a scope and all that is in it.

    Its documents are gone for everybody at once; what they took on the disk comes back with the next compaction.
    """
    from headwater.cluster.collections import CollectionPath, drop_everywhere, removal

    path = CollectionPath.parse(name)
    if dry_run:
        gone = _doomed(path, _current(node, user, password))
        answer(
            "\n".join([*gone, f"{path} would be dropped with all documents of these"]), name=str(path), would_drop=gone
        )
        return
    ask(f"Drop {path} with all its documents?", yes)
    if force:
        made = _done(lambda members, seeds: drop_everywhere(members, seeds, path), node, user, password)
    else:
        made = _change(removal(path), node, user, password)
    report(f"{path} is dropped; manifest {made.uid:x}", name=str(path), manifest=f"{made.uid:x}", dropped=True)


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest, JSON.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print each collection and its id; of a scope without any, the scope."""
    found = _current(node, user, password)
    if as_json:
        typer.echo(json.dumps(found.as_json()))
        return
    for scope in found.scopes:
        for each in scope.collections:
            limit = "" if each.max_ttl is None else f" {each.max_ttl} s"
            typer.echo(f"{scope.name}.{each.name} {each.id:x}{limit}")
        if not scope.collections:
            typer.echo(scope.name)


def _current(node: str, user: str | None, password: str | None) -> "CollectionsManifest":
    from headwater.cluster.collections import current

    seeds, place = addresses([node])

    async def work(members: "Members", _: StopRequest) -> "CollectionsManifest":
        return await current(members, seeds)

    return run(work, place, user, password)


def _doomed(path: "CollectionPath", found: "CollectionsManifest") -> list[str]:
    """The collections that go with a scope, or the one; raises CommandError when there is none of that name."""
    scopes = [scope for scope in found.scopes if scope.name == path.scope]
    names = [f"{scope.name}.{each.name}" for scope in scopes for each in scope.collections]
    gone = [name for name in names if not path.collection or name == str(path)]
    if not scopes or (path.collection and not gone):
        raise CommandError(f"there is no {path}; see headwater collection list")
    return gone


def _change(edit: "Edit", node: str, user: str | None, password: str | None) -> "CollectionsManifest":
    from headwater.cluster.collections import change

    return _done(lambda members, seeds: change(members, seeds, edit), node, user, password)


def _done(
    work: "Callable[[Members, list[Address]], Awaitable[CollectionsManifest]]",
    node: str,
    user: str | None,
    password: str | None,
) -> "CollectionsManifest":
    from headwater.wire.manifest import ManifestRefused

    seeds, place = addresses([node])

    async def run_it(members: "Members", _: StopRequest) -> "CollectionsManifest":
        return await work(members, seeds)

    try:
        return run(run_it, place, user, password)
    except ManifestRefused as error:
        raise CommandError(str(error)) from None


group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    (
        "create",
        create,
        examples(
            "headwater collection create shop",
            "headwater collection create shop.orders",
            "headwater collection create shop.carts --max-ttl 86400",
        ),
    ),
    ("drop", drop, examples("headwater collection drop shop --dry-run", "headwater collection drop shop.carts --yes")),
    ("list", list_, examples("headwater collection list", "headwater collection list --json | jq '.scopes[].name'")),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
