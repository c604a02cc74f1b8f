"""Carry a settlement out: after this, map and states agree, and every vbucket has one owner.

The repairs of a vbucket are in the table of `survey.py`. No copy is made active while another may be: `settle` has seen
all nodes, and a survey with a silent member is never settled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from headwater.client.routing import Address
from headwater.cluster.failover import check_asked, check_flaws, check_needed, check_rivals, needed_seqnos, promotion
from headwater.cluster.members import Members
from headwater.cluster.mover import Mover
from headwater.cluster.publisher import Publisher
from headwater.cluster.survey import Copy, Settlement, Survey, chain_with_owner
from headwater.errors import ClusterError, MoveError, StatusError, TransportError
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.vbucket import State


async def repair(members: Members, publisher: Publisher, survey: Survey, settlement: Settlement) -> None:
    """Carry out the repairs that an earlier run left.

    Raises:
        ClusterError, TransportError, StatusError: a node failed; run the command again. Or the best copy of a vbucket
            without an owner has a flaw, or two have histories of their own: the operator must decide.
    """
    # "A active (no ack seen); B may be pending: mover sets B to replica" (failover 4).
    for vb, nodes in settlement.waiting.items():
        for node in nodes:
            await members.admin(node).set_state(vb, State.REPLICA)
    # Whoever serves without being the owner stops before any copy is promoted.
    for vb, nodes in settlement.fenced.items():
        for node in nodes:
            await members.admin(node).set_state(vb, State.DEAD)
    for vb, (source, target) in settlement.cut.items():
        try:
            await _recover(members, publisher, vb, source, target)
        except MoveError as error:
            if error.retriable:
                raise
            # Not a hand-over between these two. No member owns it: so the best copy of all may.
            await _promote(members, publisher, survey.map, {vb: survey.in_state(vb, *State)})
    await _promote(members, publisher, survey.map, settlement.unowned)
    await asyncio.gather(*(_follow(publisher, vb, owner) for vb, owner in settlement.handed_over.items()))
    if settlement.unknown:
        await _find_out(members, publisher)


async def _find_out(members: Members, publisher: Publisher) -> None:
    """Set the seqnos that copies must reach to be promoted, which a failover left unknown when it broke off.

    All nodes have the map without the copy that was taken out, and each vbucket has an owner: no majority counts that
    copy any more, and the owner has all acknowledged changes.

    Raises:
        ClusterError: a member does not answer.
    """
    cluster_map = publisher.current
    survey = await members.survey(cluster_map.servers)
    for node in survey.silent:
        raise ClusterError(node.complaint, node.advice)
    await publisher.need(needed_seqnos(survey, cluster_map, cluster_map.unknown, {}))


async def _recover(members: Members, publisher: Publisher, vb: int, source: Address, target: Address) -> None:
    """Repair a takeover that broke off: one of the two nodes becomes the owner, by the failure table of failover 4."""
    async with Mover(members.endpoint(source), members.endpoint(target), operator=members.operator) as mover:
        await mover.recover(vb)
    if await members.admin(target).state(vb) is State.ACTIVE:
        await _follow(publisher, vb, target)


async def _promote(
    members: Members, publisher: Publisher, cluster_map: ClusterMap, unowned: Mapping[int, Sequence[Address]]
) -> None:
    """Promote the best copy of each vbucket without an owner, a copy of the map's chain among equals.

    The seqnos are requested when no copy follows any more: a copy that followed an unreachable owner may have advanced
    since the survey, and been part of its majorities.

    Raises:
        ClusterError: the operator must decide; the map has the former chains again, and the next run finds the same.
    """
    before = {vb: _chain(publisher.current, vb) for vb in unowned}
    await asyncio.gather(*(publisher.change(vb, (None, *publisher.current.copies(vb))) for vb in unowned))
    nodes = {
        node: [vb for vb in unowned if node in unowned[vb]]
        for vbucket_nodes in unowned.values()
        for node in vbucket_nodes
    }
    copies = {node: await copies_on(members, node, vbuckets) for node, vbuckets in nodes.items()}
    promotions = []
    for vb, having in unowned.items():
        order = dict.fromkeys([*(node for node in cluster_map.copies(vb) if node in having), *having])
        # Members that answer, as all have: a rebalance is refused else.
        promotions.append(promotion(cluster_map, vb, [copies[node][vb] for node in order], running=cluster_map.servers))
    try:
        for check in (check_flaws, check_rivals, check_asked, check_needed):
            check(promotions)
    except ClusterError:
        with suppress(ClusterError, TransportError, StatusError):  # then nobody owns them, which is settled as well
            await asyncio.gather(*(publisher.change(vb, chain) for vb, chain in before.items()))
        raise
    # The map first: killed in between, the next run finds no owner, and these copies in front of their chains.
    await asyncio.gather(*(_follow(publisher, promotion.vbucket, promotion.chosen) for promotion in promotions))
    for each in promotions:
        await members.admin(each.chosen).set_state(each.vbucket, State.ACTIVE)


def _chain(cluster_map: ClusterMap, vb: int) -> tuple[Address | None, ...]:
    return (cluster_map.owner(vb), *cluster_map.replicas(vb))


async def copies_on(members: Members, node: Address, vbuckets: Sequence[int]) -> dict[int, Copy]:
    """Return a node's present copies of some vbuckets.

    Raises:
        ClusterError: it does not answer.
    """
    view = await members.view(node)
    if not view.answers:
        raise ClusterError(view.complaint, view.advice)
    logs = await members.logs(node, vbuckets)
    return {vb: view.copy(vb, logs[vb]) for vb in vbuckets}


async def _follow(publisher: Publisher, vb: int, owner: Address) -> None:
    await publisher.change(vb, chain_with_owner(publisher.current.copies(vb), owner), first=(owner,))
