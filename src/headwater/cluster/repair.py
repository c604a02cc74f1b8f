"""Carrying a settlement out: after this, map and states agree, and every vbucket has one owner.

What is done to a vbucket stands in the table of `survey.py`. Nothing is made active while another node may be: `settle`
has seen all nodes, and a survey in which a member is silent is not settled by anybody.
"""

from __future__ import annotations

import asyncio

from headwater.client.routing import Address
from headwater.cluster.members import Members
from headwater.cluster.mover import Mover
from headwater.cluster.publisher import Publisher
from headwater.cluster.survey import Copy, Settlement, Survey, best, chain_with_owner
from headwater.errors import MoveError
from headwater.wire.vbucket import State


async def repair(members: Members, publisher: Publisher, survey: Survey, settlement: Settlement) -> None:
    """Settle what an earlier run left open.

    Raises:
        ClusterError, TransportError, StatusError: a node does not do its part; type it again.
    """
    for vb, nodes in settlement.waiting.items():
        for node in nodes:
            await members.admin(node).set_state(vb, State.REPLICA)
    for vb, nodes in settlement.fenced.items():
        for node in nodes:
            await members.admin(node).set_state(vb, State.DEAD)
    for vb, (source, target) in settlement.cut.items():
        try:
            await _recover(members, publisher, vb, source, target)
        except MoveError as refused:
            if refused.retriable:
                raise
            # Not a hand-over between these two. No member owns it: so the best copy of all may.
            await _promote(members, publisher, survey, vb, survey.in_state(vb, *State))
    for vb, nodes in settlement.unowned.items():
        await _promote(members, publisher, survey, vb, nodes)
    await asyncio.gather(*(_follow(publisher, vb, owner) for vb, owner in settlement.handed_over.items()))


async def _recover(members: Members, publisher: Publisher, vb: int, source: Address, target: Address) -> None:
    """A takeover that was cut: one of the two becomes the owner, by the failure table of failover 4."""
    async with Mover(members.endpoint(source), members.endpoint(target), operator=members.operator) as mover:
        await mover.recover(vb)
    if await members.admin(target).state(vb) is State.ACTIVE:
        await _follow(publisher, vb, target)


async def _promote(members: Members, publisher: Publisher, survey: Survey, vb: int, nodes: list[Address]) -> None:
    """A vbucket that nobody owns, with copies: the best of them, a copy of the map's chain if they are equal."""
    order = [*(node for node in survey.map.copies(vb) if node in nodes), *nodes]
    candidates = [
        Copy(node, survey.nodes[node].seqnos.get(vb, 0), await members.admin(node).failover_log(vb))
        for node in dict.fromkeys(order)
    ]
    chosen = best(candidates).address
    await _follow(publisher, vb, chosen)
    await members.admin(chosen).set_state(vb, State.ACTIVE)


async def _follow(publisher: Publisher, vb: int, owner: Address) -> None:
    await publisher.change(vb, chain_with_owner(publisher.current.copies(vb), owner), first=(owner,))
