"""Promoting the replicas of one node, for a pair without a cluster map (made by `headwater replicate`).

1. the owner must not answer, or must be made dead there first (`force`)
2. the node follows nobody any more
3. its replicas become active: each begins a new branch of history at its last whole snapshot (failover.md 1 and 5)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headwater.client.routing import Address, parse
from headwater.cluster.admin import vbucket_list
from headwater.cluster.members import Members
from headwater.errors import ClusterError, TransportError
from headwater.wire.vbucket import State

FOLLOWERS = (State.REPLICA, State.PENDING)


@dataclass(frozen=True, slots=True)
class PromotionPlan:
    """The steps of a promotion.

    Attributes:
        node: who is promoted. sources: whom it follows now, and with which vbuckets.
        vbuckets: what becomes active, and its seqno.
        owned: what living sources still own of it, by source; made dead there first if that was forced.
        gaps: vbuckets that lack changes they refused, or have damaged ones, and become active all the same.
    """

    node: Address
    sources: dict[Address, list[int]]
    vbuckets: dict[int, int]
    owned: dict[Address, list[int]]
    gaps: frozenset[int] = frozenset()


async def plan_promotion(
    members: Members,
    node: Address,
    *,
    source: Address | None = None,
    vbuckets: Iterable[int] | None = None,
    force: bool = False,
) -> PromotionPlan:
    """Look and decide; touches nothing.

    Args:
        source: only what follows this node, and who has to be dead; None: whomever `node` follows.
        vbuckets: only these; None: all replicas.

    Raises:
        ClusterError: nothing to promote, a replica refused changes or has damaged ones, the owner lives, or the node
            has a cluster map.
        TransportError, StatusError: the node does not answer.
    """
    node, *_ = await members.identified([node])
    admin = members.admin(node)
    view = await members.view(node)
    if not view.answers:
        raise ClusterError(view.complaint, view.advice)
    if view.map is not None and len(view.map.servers) > 1:
        raise ClusterError(f"{node} is in a cluster", "use headwater cluster failover")
    sources = {parse(name).seeds[0]: sorted(told.vbuckets) for name, told in (await admin.replication()).items()}
    sources = {address: found for address, found in sources.items() if found and source in (None, address)}
    wanted = set(view.states) if vbuckets is None else set(vbuckets)
    if source is not None and sources:
        wanted &= {vb for found in sources.values() for vb in found}
    chosen = {vb: view.seqnos.get(vb, 0) for vb in sorted(wanted) if view.states.get(vb) in FOLLOWERS}
    if not chosen:
        raise ClusterError(
            f"{node} has no replica to promote", "look with headwater cluster status, or name --vbuckets"
        )
    gaps = [vb for vb in await admin.refused() if vb in chosen]
    if gaps and not force:
        raise ClusterError(
            f"{node} refused changes of the vbuckets {vbucket_list(gaps)}: its replicas have gaps",
            "drop them and let them follow anew, or promote them as they are with --force",
        )
    damaged = [vb for vb in view.damaged if vb in chosen]
    if damaged and not force:
        raise ClusterError(
            f"{node} has damaged changes of the vbuckets {vbucket_list(damaged)}: a part of them can't be read",
            "start the owner, which may have them; or promote them as they are with --force",
        )
    owned = {}
    for owner in dict.fromkeys((*sources, *([source] if source else []))):
        held = await _owned(members, owner, chosen)
        if held and not force:
            raise ClusterError(
                f"{owner} lives and owns the vbuckets {vbucket_list(held)}",
                f"hand them over and lose nothing: headwater move --from {owner} --to {node} --takeover; or --force",
            )
        if held:
            owned[owner] = held
    return PromotionPlan(node, sources, chosen, owned, frozenset((*gaps, *damaged)))


async def _owned(members: Members, owner: Address, vbuckets: Iterable[int]) -> list[int]:
    try:
        states = await members.admin(owner).states()
    except TransportError:
        return []
    return [vb for vb in vbuckets if states.get(vb) is State.ACTIVE]


async def promote(members: Members, plan: PromotionPlan) -> None:
    """Carry it out; may be repeated.

    Raises:
        TransportError, StatusError: a node does not do its part.
        ClusterError: another operator is at work.
    """
    async with members.alone("failover", (plan.node, *plan.owned)):
        await _promote(members, plan)


async def _promote(members: Members, plan: PromotionPlan) -> None:
    for owner, vbuckets in plan.owned.items():
        await members.set_states(owner, dict.fromkeys(vbuckets, State.DEAD))
    for source, followed in plan.sources.items():
        mine = [vb for vb in followed if vb in plan.vbuckets]
        await members.admin(plan.node).stop_replicating(members.endpoint(source), mine)
    await members.set_states(plan.node, dict.fromkeys(plan.vbuckets, State.ACTIVE), forced=plan.gaps)
