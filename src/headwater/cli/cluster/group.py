"""The group `headwater cluster`: its commands, in the order of their use."""

from typing import Final

import typer

from headwater.cli.cluster.status import EXAMPLES as STATUS_EXAMPLES
from headwater.cli.cluster.status import status
from headwater.cli.cluster.work import NODE_ARGUMENT, add_work
from headwater.cli.options import examples, paragraphs
from headwater.cluster.work import EncryptCluster, FailOver, InitCluster, SpreadVbuckets

PART = ("operate", 10)
HELP = """Several nodes as one bucket: make a cluster, look at it, spread its vbuckets, take a dead node out.

The nodes need no coordinator: what is known of a cluster stands in the map that each of them has."""
EXAMPLES = examples(
    "headwater cluster init 10.0.0.1:11210",
    "headwater cluster rebalance 10.0.0.1:11210 --add 10.0.0.2:11210 --replicas 1",
    "headwater cluster status 10.0.0.1:11210",
)

group: Final = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
add_work(group, InitCluster, None)
group.command("status", help=paragraphs(status.__doc__), epilog=STATUS_EXAMPLES)(status)
for _work in (SpreadVbuckets, FailOver, EncryptCluster):
    add_work(group, _work, NODE_ARGUMENT)
