"""`headwater cluster status`: the vbuckets of each node, and problems."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.cluster.running import Node, Password, StopRequest, User, addresses, run, table_of
from headwater.cli.failures import CommandError
from headwater.cli.options import examples
from headwater.cli.screen import count, out, several

if TYPE_CHECKING:
    from headwater.cluster.members import Members
    from headwater.cluster.status import ClusterStatus, NodeStatus

EXAMPLES = examples(
    "headwater cluster status 10.0.0.1:11210",
    "headwater cluster status 10.0.0.1:11210 --json | jq '.nodes[].active'",
    "until headwater cluster status 10.0.0.1:11210; do sleep 1; done",
)
EXITS = {1: "something needs a hand: it says what"}


def status(
    node: Node,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Show each node's vbuckets and documents, and say what is wrong.

    Exit status 1 when something needs a hand: a node that does not answer or has an old map, a vbucket without exactly
    one owner, a replica that is missing or has no place.
    """
    seeds, place = addresses([node])

    async def work(members: "Members", _: StopRequest) -> "ClusterStatus":
        from headwater.cluster import status as judging

        return judging.status(await members.survey(seeds))

    state = run(work, place, user, password)
    if as_json:
        typer.echo(json.dumps(state.to_json()))
    else:
        _show(state)
    if not state.is_healthy:
        raise CommandError("; ".join(state.problems))


def _show(state: "ClusterStatus") -> None:
    from rich.markup import escape

    map_ = state.map
    replicas = several(map_.replica_count, "replica")
    has_groups = any(node.group for node in state.nodes)
    columns = [*(["group"] if has_groups else []), "active", "replica", "pending", "dead", "documents", "behind", ""]
    table = table_of(f"{map_.bucket}: {map_.vbuckets} vbuckets, {replicas}, map {map_.epoch}:{map_.rev}", *columns)
    for node in state.nodes:
        group = [escape(node.group)] if has_groups else []
        table.add_row(str(node.address), *group, *_cells(node, map_.version))
    console = out()
    console.print(table)
    for remark in state.remarks:
        console.print(remark, markup=False)
    if state.is_healthy:
        console.print("each vbucket has one owner, all nodes have this map")


def _cells(node: "NodeStatus", newest: tuple[int, int]) -> list[str]:
    if not node.answers:
        return ["-"] * 6 + ["no answer"]
    numbers = (node.active, node.replica, node.pending, node.dead, node.items, node.behind)
    return [*map(count, numbers), "" if node.version == newest else "an older map"]
