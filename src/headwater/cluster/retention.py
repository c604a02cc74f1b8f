"""Nodes that join a bucket get its history: the time and the size of the old versions that it keeps, and whether new
collections have one.

Each node keeps these settings for itself. A node that joins has none, and after a failover to it no old version would
be left; or it has those of the time when it was a member, and would keep versions of a history that was ended since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["bring_history", "share_history"]


class _Settings(NamedTuple):
    """The settings of one node: (seconds, bytes), 0 for no such limit, and True if new collections have a history."""

    limits: tuple[int, int]
    of_new: bool


async def bring_history(members: Members, known: Sequence[Address], joining: Sequence[Address]) -> None:
    """Give nodes that join a bucket the history that its members keep, also if they keep none.

    Members differ if one was away when a setting was changed: then what most of them have counts, and of equally many
    what was set on purpose.

    Raises:
        StatusError, TransportError: a node refused, as one of an older release does, or does not answer.
    """
    if joining:
        settings = await _settings(members, known)
        limits, of_new = ([each.limits for each in settings], [each.of_new for each in settings])
        kept = max(limits, key=lambda each: (limits.count(each), any(each)))
        await _give(members, joining, _Settings(kept, max(of_new, key=lambda each: (of_new.count(each), not each))))


async def share_history(members: Members, nodes: Sequence[Address]) -> None:
    """Give all nodes of a new cluster without documents the history of the first node that keeps any, and none to new
    collections if one node says so.

    Raises: as `bring_history`.
    """
    settings = await _settings(members, nodes)
    kept = next(filter(any, (each.limits for each in settings)), (0, 0))
    await _give(members, nodes, _Settings(kept, all(each.of_new for each in settings)))


async def _settings(members: Members, nodes: Sequence[Address]) -> list[_Settings]:
    limits = asyncio.gather(*(members.admin(each).history() for each in nodes))
    defaults = asyncio.gather(*(members.admin(each).collections_have_history() for each in nodes))
    # An older release does not know the default: its collections all have a history.
    return [_Settings(kept, of_new is not False) for kept, of_new in zip(await limits, await defaults, strict=True)]


async def _give(members: Members, nodes: Sequence[Address], wanted: _Settings) -> None:
    """Set what differs on the nodes."""
    # What a node has it is not sent: an older release refuses a parameter that it does not know, whatever its value.
    for node, present in zip(nodes, await _settings(members, nodes), strict=True):
        if present.of_new != wanted.of_new:
            await members.admin(node).give_collections_history(history=wanted.of_new)
        if present.limits != wanted.limits:
            await members.admin(node).keep_history(*wanted.limits)
