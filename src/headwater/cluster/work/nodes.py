"""Work on the nodes of a cluster: making a cluster of them, and TLS among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headwater.cluster.work.declared import NODE, DeclaredWork, WorkOutcome, WorkPlan, WorkRun
from headwater.counting import several
from headwater.options import option

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.founding import NewCluster
    from headwater.cluster.members import Members

__all__ = ["AGAIN", "EncryptCluster", "InitCluster"]

AGAIN: Mapping[int, str] = {1: "a node does not answer, or the cluster does not allow it; typed again, it goes on"}


@dataclass(frozen=True)
class InitCluster(DeclaredWork):
    """Make a cluster of nodes: give them a map and, if they are empty, their vbuckets.

    Start nodes of a cluster with `serve --vbucket-state none`; empty ones with vbuckets will do as well. One of the
    nodes may have data: then it owns all vbuckets until `headwater cluster rebalance` spreads them. A node that is
    still starting is waited for, up to a minute. Killed in the middle, it goes on when typed again.
    """

    KIND: ClassVar[str] = "init"
    HEADING: ClassVar[str] = "Make a cluster"
    CONFIRMATION: ClassVar[str] = "yes"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater cluster init 10.0.0.1:11210 10.0.0.2:11210 10.0.0.3:11210 --replicas 1",
        "headwater cluster init couchbase://10.0.0.1:11210/orders",
    )
    EXITS: ClassVar[Mapping[int, str]] = AGAIN
    HAS_DRY_RUN: ClassVar[bool] = True

    nodes: Sequence[Address] = option(
        ...,
        "host:port of each; all with the same bucket.",
        positional=True,
        metavar=NODE,
        many=True,
        allowed="at least one node",
    )
    replicas: int = option(0, "How many replicas each vbucket is to have.", metavar="N", least=0, most=3)
    tls: bool = option(False, "Nodes speak TLS with each other.")

    @property
    def title(self) -> str:
        """The work in a few words."""
        return f"Make a cluster of {', '.join(map(str, self.nodes))}"

    @property
    def is_patient(self) -> bool:
        """True: the work waits for nodes that may still be starting."""
        return True

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return the number of vbuckets that each node would own."""
        from headwater.cluster.founding import planned

        plan = await planned(members, self.nodes, self.replicas, encrypted=self.tls)
        rows = [
            (str(server), *(f"{len(vbuckets):,}" for vbuckets in plan.map.held_by(server)))
            for server in plan.map.servers
        ]
        lines, facts = self._lines(plan)
        return WorkPlan(lines, facts | {"begun": False}, ("node", "active", "replicas"), tuple(rows))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Send the nodes the map, and create their vbuckets."""
        from headwater.cluster.founding import found_cluster

        lines, facts = self._lines(await found_cluster(members, self.nodes, self.replicas, encrypted=self.tls))
        return WorkOutcome("\n".join(lines), facts | {"begun": True})

    def _lines(self, cluster: NewCluster) -> tuple[tuple[str, ...], dict[str, object]]:
        map_, on = cluster.map, cluster.data_on
        version, nodes = f"{map_.epoch}:{map_.rev}", [str(server) for server in map_.servers]
        lines = [
            f"{map_.vbuckets:,} vbuckets of {map_.bucket} on {several(len(nodes), 'node')}, "
            f"{several(map_.replica_count, 'replica')} of each, map {version}"
        ]
        if on is not None and (len(self.nodes) > 1 or self.replicas):
            lines.append(f"{on} owns them all; spread them: headwater cluster rebalance {on}")
        facts = {"vbuckets": map_.vbuckets, "replicas": map_.replica_count, "map": version, "nodes": nodes}
        return tuple(lines), {"bucket": map_.bucket} | facts | {"data_on": None if on is None else str(on)}


@dataclass(frozen=True)
class EncryptCluster(DeclaredWork):
    """Let the nodes of a cluster speak TLS with each other, or without.

    Each needs --tls-certificate, and --tls-ca by which it knows the others. Type it again after ports for TLS have
    changed: clients learn them from the map. All members must answer.
    """

    KIND: ClassVar[str] = "tls"
    HEADING: ClassVar[str] = "TLS among the nodes"
    CONFIRMATION: ClassVar[str] = "yes"
    EXAMPLES: ClassVar[tuple[str, ...]] = (
        "headwater cluster tls couchbases://10.0.0.1:11207?trust_store=ca.pem --on",
        "headwater cluster tls 10.0.0.1:11210 --off",
    )
    EXITS: ClassVar[Mapping[int, str]] = AGAIN
    REMARKS: ClassVar[tuple[str, ...]] = ("Ports for TLS are taken up as they are now.",)

    encrypted: bool = option(True, "With TLS, or without.", flag="on/--off")

    @property
    def title(self) -> str:
        """The work in a few words."""
        return f"Nodes speak {'TLS' if self.encrypted else 'without TLS'} with each other"

    async def plan(self, members: Members, seeds: Sequence[Address]) -> WorkPlan:
        """Return a line with the use of TLS among the nodes, before and after the change."""
        map_ = (await members.survey(seeds)).map
        old, new = ("by" if encrypts else "without" for encrypts in (map_.encrypted, self.encrypted))
        return WorkPlan((f"The {len(map_.servers):,} nodes call each other {old} TLS now, and then {new} TLS",))

    async def run(self, members: Members, seeds: Sequence[Address], run: WorkRun) -> WorkOutcome:
        """Send the nodes the map with the new setting."""
        from headwater.cluster.encryption import set_encryption

        cluster_map = await set_encryption(members, seeds, encrypted=self.encrypted)
        how, version = "by" if cluster_map.encrypted else "without", f"{cluster_map.epoch}:{cluster_map.rev}"
        return WorkOutcome(
            f"the nodes call each other {how} TLS, map {version}", {"encrypted": cluster_map.encrypted, "map": version}
        )
