"""`headwater bucket`: the buckets of a node, or of all nodes of a cluster."""

import json
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headwater.cli.cluster.running import Password, StopRequest, User, addresses, run
from headwater.cli.cluster.work import NODE_OPTION, add_work
from headwater.cli.options import DEFAULT_URL, NodeUrl, examples, paragraphs
from headwater.cluster.work import CreateBucket, DropBucket, SetHistory, SetQuota

if TYPE_CHECKING:
    from headwater.cluster.members import Members

PART = ("operate", 30)
HELP = """The buckets of a node, or of all nodes of its cluster, beside the one that it was started with.

Each has its own vbuckets, collections, files and rights; a client says in its URL which one it means. The first bucket,
named by --bucket of serve, is always there and can't be dropped."""
EXAMPLES = examples(
    "headwater bucket create orders",
    "headwater bucket create carts --vbuckets 64 --quota-mib 2048",
    "headwater bucket list",
    "headwater bucket quota carts 4096",
    "headwater bucket history carts --seconds 7d --mib 20GiB",
    "headwater bucket drop carts --yes",
)


def list_(
    as_json: Annotated[bool, typer.Option("--json", help="Print an array, JSON.")] = False,
    node: NodeUrl = DEFAULT_URL,
    user: User = None,
    password: Password = None,
) -> None:
    """Print the buckets that the user may do something in, the first one first."""
    from headwater.cluster.buckets import names

    seeds, place = addresses([node])

    async def work(members: "Members", _: StopRequest) -> list[str]:
        return await names(members, seeds)

    buckets = run(work, place, user, password)
    typer.echo(json.dumps(buckets) if as_json else "\n".join(buckets))


group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
add_work(group, CreateBucket, NODE_OPTION)
add_work(group, DropBucket, NODE_OPTION)
group.command(
    "list",
    help=paragraphs(list_.__doc__),
    epilog=examples("headwater bucket list", "headwater bucket list --json | jq -r '.[]'"),
)(list_)
add_work(group, SetQuota, NODE_OPTION)
add_work(group, SetHistory, NODE_OPTION)
