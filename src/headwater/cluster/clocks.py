"""All members of a bucket promise what any of them has promised its readers (node/buckets/clock_floor.py).

Readers ask all nodes of their map to give no change a CAS at or below a time. A node that joins was not asked. Its
clock may be behind, and as soon as it owns a vbucket it would give changes a CAS that readers have long claimed to have
passed. So a rebalance asks all members what they promised, when all of them have the map that names the joining nodes
and before any of these gets a vbucket; whoever promises later goes by that map, and its reader asks the new nodes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.cluster.together import call_each

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["level_clocks"]


async def level_clocks(members: Members, nodes: Sequence[Address]) -> None:
    """Let each of the nodes promise the latest time that one of them has promised.

    Raises:
        StatusError, TransportError: a node could not write it, or does not answer.
    """
    clocks = await call_each(lambda node: members.admin(node).clock_held(), nodes)
    latest = max((clock for clock in clocks if clock is not None), default=0)
    late_nodes = [node for node, clock in zip(nodes, clocks, strict=True) if clock is not None and clock < latest]
    await call_each(lambda node: members.admin(node).hold_clock(latest), late_nodes)
