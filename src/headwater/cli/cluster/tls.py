"""`headwater cluster tls`: whether the nodes speak TLS with each other."""

from typing import TYPE_CHECKING, Annotated

import typer

from headwater.cli.cluster.running import Node, Password, StopRequest, User, addresses, run
from headwater.cli.forms import report
from headwater.cli.options import examples

if TYPE_CHECKING:
    from headwater.cluster.members import Members
    from headwater.wire.cluster_map import ClusterMap

EXAMPLES = examples(
    "headwater cluster tls couchbases://10.0.0.1:11207?trust_store=ca.pem --on",
    "headwater cluster tls 10.0.0.1:11210 --off",
)


def tls(
    node: Node,
    on: Annotated[bool, typer.Option("--on/--off", help="With TLS, or without.")] = True,
    user: User = None,
    password: Password = None,
) -> None:
    """Let the nodes of a cluster speak TLS with each other, or without.

    Each needs --tls-certificate, and --tls-ca by which it knows the others. Type it again after ports for TLS have
    changed: clients learn them from the map. All members must answer.
    """
    seeds, place = addresses([node])

    async def work(members: "Members", _: StopRequest) -> "ClusterMap":
        from headwater.cluster.encryption import set_encryption

        return await set_encryption(members, seeds, encrypted=on)

    known = run(work, place, user, password)
    how = "by TLS" if known.encrypted else "without TLS"
    version = f"{known.epoch}:{known.rev}"
    report(f"the nodes call each other {how}, map {version}", encrypted=known.encrypted, map=version)
