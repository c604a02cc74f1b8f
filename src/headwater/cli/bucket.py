"""`headwater bucket`: the buckets of a node, or of all nodes of a cluster."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.cluster.running import Password, StopRequest, User, addresses, run
from headwater.cli.failures import CommandError
from headwater.cli.forms import answer, ask, report
from headwater.cli.options import DEFAULT_URL, DryRun, NodeUrl, examples, paragraphs
from headwater.cli.screen import several

if TYPE_CHECKING:
    from headwater.cluster.members import Members

HELP = """The buckets of a node, or of all nodes of its cluster, beside the one that it was started with.

Each has its own vbuckets, collections, files and rights; a client says in its URL which one it means. The first bucket,
named by --bucket of serve, is always there and can't be dropped."""
EXAMPLES = examples(
    "headwater bucket create orders",
    "headwater bucket create carts --vbuckets 64 --quota-mib 2048",
    "headwater bucket list",
    "headwater bucket quota carts 4096",
    "headwater bucket drop carts --yes",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The bucket.")]


def create(
    name: Name,
    vbuckets: Annotated[
        int | None,
        typer.Option("--vbuckets", metavar="N", min=1, help="A power of two, up to 1024; as the first bucket."),
    ] = None,
    quota_mib: Annotated[
        int,
        typer.Option("--quota-mib", metavar="MIB", min=0, help="How much its files on a node may take; 0: no limit."),
    ] = 0,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", min=0, max=3, help="Of each vbucket of a cluster; as the first bucket."
        ),
    ] = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Make a bucket.

    On a cluster each node gets it, and its vbuckets are dealt out. Over its quota a bucket refuses documents as on a
    full disk, and goes on once deletions and compaction made room.
    """
    from headwater.cluster.buckets import BucketWish
    from headwater.cluster.buckets import create as create_everywhere

    seeds, place = addresses([node])
    wish = BucketWish(name, vbuckets, quota_mib, replicas)

    async def work(members: "Members", _: StopRequest) -> int:
        return await create_everywhere(members, seeds, wish)

    nodes = run(work, place, user, password)
    report(f"{name} is there, on {several(nodes, 'node')}", name=name, nodes=nodes)


def drop(
    name: Name,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before it begins.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Drop a bucket and all that is in it, on all nodes.

    Its clients are disconnected, and its files removed. Nothing brings it back.
    """
    from headwater.cluster.buckets import drop as drop_everywhere

    seeds, place = addresses([node])
    if dry_run:
        _check_droppable(name, _names(node, user, password))
        answer(f"{name} would be dropped, with all its documents", name=name, dropped=False)
        return
    ask(f"Drop bucket {name} with all its documents?", yes)

    async def work(members: "Members", _: StopRequest) -> int:
        return await drop_everywhere(members, seeds, name)

    nodes = run(work, place, user, password)
    report(f"{name} is dropped, on {several(nodes, 'node')}", name=name, nodes=nodes, dropped=True)


def quota(
    name: Name,
    mib: Annotated[
        int | None,
        typer.Argument(metavar="MIB", min=0, help="How much its files on a node may take; 0: no limit."),
    ] = None,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Change the quota of a bucket, or print it.

    It is in force at once, on all nodes. One that is less than the bucket's files take already is refused: delete
    documents, drop collections, compact. Over its quota a bucket refuses documents as on a full disk.
    """
    from headwater.cluster.buckets import quotas, set_quota

    seeds, place = addresses([node])

    async def look(members: "Members", _: StopRequest) -> dict[str, int]:
        return {str(each): found for each, found in (await quotas(members, seeds, name)).items()}

    async def change(members: "Members", _: StopRequest) -> int:
        return await set_quota(members, seeds, name, mib or 0)

    if mib is None:
        found = run(look, place, user, password)
        answer("\n".join(f"{each}: {_mib(told)}" for each, told in found.items()), name=name, quota_mib=found)
    else:
        nodes = run(change, place, user, password)
        report(f"{name} may take {_mib(mib)}, on {several(nodes, 'node')}", name=name, quota_mib=mib, nodes=nodes)


def _mib(quota_mib: int) -> str:
    return f"{quota_mib} MiB" if quota_mib else "the disk"


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print an array, JSON.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print the buckets that the user may do something in, the first one first."""
    found = _names(node, user, password)
    typer.echo(json.dumps(found) if as_json else "\n".join(found))


def _names(node: str, user: str | None, password: str | None) -> list[str]:
    from headwater.cluster.buckets import names

    seeds, place = addresses([node])

    async def work(members: "Members", _: StopRequest) -> list[str]:
        return await names(members, seeds)

    return run(work, place, user, password)


def _check_droppable(name: str, found: list[str]) -> None:
    """Raise CommandError for a bucket that is not there, or the first."""
    if name not in found:
        raise CommandError(f"there is no bucket {name}; see headwater bucket list")
    if name == found[0]:
        told = "the first bucket: it is the folder of the node, where users and the other buckets are kept as well"
        raise CommandError(f"{name} is {told}; to empty it: flush_all; to be rid of it: serve another folder")


group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    (
        "create",
        create,
        examples("headwater bucket create orders", "headwater bucket create carts --vbuckets 64 --quota-mib 2048"),
    ),
    ("drop", drop, examples("headwater bucket drop carts --dry-run", "headwater bucket drop carts --yes")),
    ("list", list_, examples("headwater bucket list", "headwater bucket list --json | jq -r '.[]'")),
    ("quota", quota, examples("headwater bucket quota carts", "headwater bucket quota carts 4096")),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
