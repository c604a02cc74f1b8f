"""The group `headwater cluster`: its commands, in the order in which one needs them."""

import typer

from headwater.cli.cluster.failover import EXAMPLES as FAILOVER_EXAMPLES
from headwater.cli.cluster.failover import failover
from headwater.cli.cluster.init import EXAMPLES as INIT_EXAMPLES
from headwater.cli.cluster.init import init
from headwater.cli.cluster.rebalance import EXAMPLES as REBALANCE_EXAMPLES
from headwater.cli.cluster.rebalance import rebalance
from headwater.cli.cluster.status import EXAMPLES as STATUS_EXAMPLES
from headwater.cli.cluster.status import status
from headwater.cli.cluster.tls import EXAMPLES as TLS_EXAMPLES
from headwater.cli.cluster.tls import tls
from headwater.cli.options import examples, paragraphs

HELP = """Several nodes as one bucket: make a cluster, look at it, spread its vbuckets, take a dead node out.

The nodes need no coordinator: what is known of a cluster stands in the map that each of them has."""
EXAMPLES = examples(
    "headwater cluster init 10.0.0.1:11210",
    "headwater cluster rebalance 10.0.0.1:11210 --add 10.0.0.2:11210 --replicas 1",
    "headwater cluster status 10.0.0.1:11210",
)

group = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")
for _name, _command, _examples in (
    ("init", init, INIT_EXAMPLES),
    ("status", status, STATUS_EXAMPLES),
    ("rebalance", rebalance, REBALANCE_EXAMPLES),
    ("failover", failover, FAILOVER_EXAMPLES),
    ("tls", tls, TLS_EXAMPLES),
):
    group.command(_name, help=paragraphs(_command.__doc__), epilog=_examples)(_command)
