"""The promotion of one node's replicas, for a pair without a cluster map (set up by `headwater replicate`).

1. The owner must not answer, nor accept connections, or its vbuckets must be made dead there first (with
   FailoverRefusal.ALIVE accepted).
2. The node stops following.
3. Its replicas become active: each begins a new branch of history at its last whole snapshot (failover.md 1 and 5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from headwater.client.routing import Address, parse
from headwater.cluster.admin import vbucket_list
from headwater.cluster.members import Members
from headwater.cluster.refusals import FailoverRefusal, judge
from headwater.cluster.survey import NodeView
from headwater.errors import ClusterError, PeerSilent, TransportError
from headwater.wire.vbucket import State

FOLLOWERS = (State.REPLICA, State.PENDING)
CONNECT_SECONDS_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """The steps of a promotion.

    Attributes:
        node: the node to promote. sources: the nodes that it follows now, each with its vbuckets.
        vbuckets: the vbuckets that become active, with their seqnos.
        owned: the vbuckets that living sources still own, by source; they are made dead there first, if that is
            accepted.
        gaps: vbuckets that lack refused changes, or have damaged ones, and become active all the same.
        accepted: the overridden refusals, each with its text.
        owners: the nodes that have to be dead.
    """

    node: Address
    sources: dict[Address, list[int]]
    vbuckets: dict[int, int]
    owned: dict[Address, list[int]]
    gaps: frozenset[int] = frozenset()
    accepted: Mapping[FailoverRefusal, str] = field(default_factory=dict)
    owners: Collection[Address] = ()


async def plan_promotion(
    members: Members,
    node: Address,
    *,
    source: Address | None = None,
    vbuckets: Iterable[int] | None = None,
    force: bool = False,
    accept: Collection[FailoverRefusal] = (),
) -> PromotionPlan:
    """Look at the nodes and return the plan, without changing anything.

    Args:
        source: promote only vbuckets that follow this node, which has to be dead; None for all nodes that `node`
            follows.
        vbuckets: the vbuckets to promote; None for all replicas.
        force: True to accept all refusals. accept: the accepted refusals.

    Raises:
        ClusterError: there is nothing to promote, or the node has a cluster map; or one of these is not accepted: a
            replica refused changes, has damaged ones or was never whole, or the owner is alive.
        TransportError, StatusError: the node does not answer.
    """
    node, *_ = await members.identified([node])
    admin = members.admin(node)
    view = await members.view(node)
    if not view.answers:
        raise ClusterError(view.complaint, view.advice)
    if view.map is not None and len(view.map.servers) > 1:
        raise ClusterError(f"{node} is in a cluster", "use headwater cluster failover")
    sources = {parse(name).seeds[0]: sorted(report.vbuckets) for name, report in (await admin.replication()).items()}
    sources = {address: followed for address, followed in sources.items() if followed and source in (None, address)}
    numbers = set(view.states) if vbuckets is None else set(vbuckets)
    if source is not None and sources:
        numbers &= {vb for followed in sources.values() for vb in followed}
    seqnos = {vb: view.seqnos.get(vb, 0) for vb in sorted(numbers) if view.states.get(vb) in FOLLOWERS}
    if not seqnos:
        raise ClusterError(
            f"{node} has no replica to promote", "look with headwater cluster status, or name --vbuckets"
        )
    gaps = [vb for vb in await admin.refused() if vb in seqnos]
    damaged = [vb for vb in view.damaged if vb in seqnos]
    owners = tuple(dict.fromkeys((*sources, *([source] if source else []))))
    owned_by_node = {
        owner: vbuckets_ for owner in owners if (vbuckets_ := await _owned_vbuckets(members, owner, seqnos))
    }
    unheard = {owner: problem for owner in owners if (problem := await _silence_of(members, owner))}
    checks: dict[FailoverRefusal, Callable[[], None]] = {
        FailoverRefusal.ALIVE: lambda: _check_dead(node, owned_by_node, unheard),
        FailoverRefusal.DAMAGED: lambda: _check_sound(node, gaps, damaged),
        FailoverRefusal.PART: lambda: _check_whole(view, seqnos),
    }
    accepted_problems = judge(checks, frozenset(FailoverRefusal) if force else accept)
    return PromotionPlan(node, sources, seqnos, owned_by_node, frozenset((*gaps, *damaged)), accepted_problems, owners)


def _check_dead(
    node: Address, owned_by_node: Mapping[Address, Sequence[int]], unheard: Mapping[Address, str] = MappingProxyType({})
) -> None:
    for owner, problem in unheard.items():
        raise ClusterError(
            f"{owner} takes connections, and can't be asked what it owns ({problem})",
            f"name it as it can be called from here, with TLS or without: --from HOST:PORT;"
            f" or {FailoverRefusal.ALIVE.option} if nothing of it lives there",
        )
    for owner, vbuckets in owned_by_node.items():
        raise ClusterError(
            f"{owner} lives and owns the vbuckets {vbucket_list(vbuckets)}",
            f"hand them over and lose nothing: headwater move --from {owner} --to {node} --takeover;"
            f" or {FailoverRefusal.ALIVE.option}",
        )


def _check_sound(node: Address, gaps: Sequence[int], damaged: Sequence[int]) -> None:
    if damaged:
        raise ClusterError(
            f"{node} has damaged changes of the vbuckets {vbucket_list(damaged)}: a part of them can't be read",
            f"start the owner, which may have them; or promote them as they are with {FailoverRefusal.DAMAGED.option}",
        )
    if gaps:
        raise ClusterError(
            f"{node} refused changes of the vbuckets {vbucket_list(gaps)}: its replicas have gaps",
            f"drop them and let them follow anew, or promote them as they are with {FailoverRefusal.DAMAGED.option}",
        )


def _check_whole(view: NodeView, seqnos: Mapping[int, int]) -> None:
    parts = [vb for vb, seqno in seqnos.items() if seqno and not view.copy(vb, ()).complete]
    if parts:
        raise ClusterError(
            f"{view.address} has received a part only of the vbuckets {vbucket_list(parts)}: they were being made",
            f"start the owner, which has the rest; or promote them as they are with {FailoverRefusal.PART.option}",
        )


async def _owned_vbuckets(members: Members, owner: Address, vbuckets: Iterable[int]) -> list[int]:
    try:
        states = await members.admin(owner).states()
    except TransportError:
        return []
    return [vb for vb in vbuckets if states.get(vb) is State.ACTIVE]


async def _silence_of(members: Members, owner: Address) -> str:
    """Return why an owner that accepts connections does not answer, and so may be alive; empty if it answered or nobody
    listens.

    An owner that is called by TLS and does not support it, or the other way round, would look dead otherwise.
    """
    try:
        await members.admin(owner).states()
    except PeerSilent:
        return ""
    except TransportError as error:
        return str(error) if await _takes_connections(members.endpoint(owner).dialled) else ""
    return ""


async def _takes_connections(address: Address) -> bool:
    try:
        async with asyncio.timeout(CONNECT_SECONDS_MAX):
            _, writer = await asyncio.open_connection(*address)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def promote(members: Members, plan: PromotionPlan) -> None:
    """Carry the plan out; may be repeated.

    Raises:
        TransportError, StatusError: a node failed.
        ClusterError: another operator is at work, or an owner has come back since the plan was made.
    """
    async with members.alone("failover", (plan.node, *plan.owned)):
        _check_dead(plan.node, await _owned_since(members, plan))
        await _promote(members, plan)


async def _owned_since(members: Members, plan: PromotionPlan) -> dict[Address, list[int]]:
    """Return the vbuckets that owners have now and did not have when the plan was made.

    People may take time to confirm a plan.
    """
    since_by_owner = {owner: await _owned_vbuckets(members, owner, plan.vbuckets) for owner in plan.owners}
    new_vbuckets = {
        owner: [vb for vb in vbuckets if vb not in plan.owned.get(owner, ())]
        for owner, vbuckets in since_by_owner.items()
    }
    return {owner: vbuckets for owner, vbuckets in new_vbuckets.items() if vbuckets}


async def _promote(members: Members, plan: PromotionPlan) -> None:
    # In this order there are never two owners: the old one is dead, on its disk, before a copy becomes active.
    for owner, vbuckets in plan.owned.items():
        await members.set_states(owner, dict.fromkeys(vbuckets, State.DEAD))
    for source, followed in plan.sources.items():
        promoted = [vb for vb in followed if vb in plan.vbuckets]
        await members.admin(plan.node).stop_replicating(members.endpoint(source), promoted)
    await members.set_states(plan.node, dict.fromkeys(plan.vbuckets, State.ACTIVE), forced=plan.gaps)
