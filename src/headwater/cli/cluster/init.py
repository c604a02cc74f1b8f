"""`headwater cluster init`: the first map."""

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.cluster.running import FIRST_START_SECONDS, Password, StopRequest, User, addresses, run
from headwater.cli.forms import answer, report
from headwater.cli.options import DryRun, examples
from headwater.cli.screen import count, several

if TYPE_CHECKING:
    from headwater.cluster.founding import Founded
    from headwater.cluster.members import Members

EXAMPLES = examples(
    "headwater cluster init 10.0.0.1:11210 10.0.0.2:11210 10.0.0.3:11210 --replicas 1",
    "headwater cluster init couchbase://10.0.0.1:11210/orders",
)


def init(
    nodes: Annotated[list[str], typer.Argument(metavar="NODE", help="host:port of each; all with the same bucket.")],
    replicas: Annotated[
        int, typer.Option("--replicas", min=0, max=3, metavar="N", help="How many replicas each vbucket is to have.")
    ] = 0,
    tls: Annotated[bool, typer.Option("--tls", help="Nodes speak TLS with each other.")] = False,
    dry_run: DryRun = False,
    user: User = None,
    password: Password = None,
) -> None:
    """Make a cluster of nodes: give them a map and, if they are empty, their vbuckets.

    Start nodes of a cluster with `serve --vbucket-state none`; empty ones with vbuckets will do as well. One of the
    nodes may have data: then it owns all vbuckets until `headwater cluster rebalance` spreads them. A node that is
    still starting is waited for, up to a minute. Killed in the middle, it goes on when typed again.
    """
    members, place = addresses(nodes)

    async def work(them: "Members", _: StopRequest) -> "Founded":
        from headwater.cluster.founding import found, planned

        return await (planned if dry_run else found)(them, members, replicas, encrypted=tls)

    made = run(work, place, user, password, answer_seconds=FIRST_START_SECONDS)
    version = f"{made.map.epoch}:{made.map.rev}"
    line = (
        f"{count(made.map.vbuckets)} vbuckets of {made.map.bucket} on {several(len(made.map.servers), 'node')}, "
        f"{several(made.map.replica_count, 'replica')} of each, map {version}"
    )
    if made.data_on is not None and (len(members) > 1 or replicas):
        line += f"\n{made.data_on} owns them all; spread them: headwater cluster rebalance {made.data_on}"
    nodes_told = list(map(str, made.map.servers))
    told = {"vbuckets": made.map.vbuckets, "replicas": made.map.replica_count, "map": version, "nodes": nodes_told}
    on = None if made.data_on is None else str(made.data_on)
    (answer if dry_run else report)(line, bucket=made.map.bucket, **told, data_on=on, begun=not dry_run)
