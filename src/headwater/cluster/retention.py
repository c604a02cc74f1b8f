"""Nodes that join a bucket get its history: the time and the size of the old versions that it keeps.

Each node keeps the setting for itself, so a node that joins has none: after a failover to it no old version would be
left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["bring_history"]


async def bring_history(members: Members, known: Sequence[Address], joining: Sequence[Address]) -> None:
    """Give nodes that join a bucket the history of the first known node that keeps any.

    Raises:
        StatusError, TransportError: a node refused, as one of an older release does, or does not answer.
    """
    if not joining:
        return
    defaults = await asyncio.gather(*(members.admin(each).collections_have_history() for each in known))
    if False in defaults:
        await asyncio.gather(*(members.admin(each).give_collections_history(history=False) for each in joining))
    limits = await asyncio.gather(*(members.admin(each).history() for each in known))
    kept = next(filter(any, limits), None)
    if kept is not None:
        await asyncio.gather(*(members.admin(each).keep_history(*kept) for each in joining))
