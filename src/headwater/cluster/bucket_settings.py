"""Nodes that join a bucket get its settings: how far back it keeps old versions, whether new collections have such a
history, and the quota of its files.

Each node keeps these settings for itself. A node that joins has none, and after a failover to it no old version would
be left, or its disk could be filled; or it has those of the time when it was a member, and would keep versions of a
history that was ended since, or refuse documents at a quota that was raised.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import NotSupported

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["bring_settings", "share_settings"]


class _Settings(NamedTuple):
    """The settings of one node.

    Attributes:
        history: seconds and bytes, 0 for no such limit.
        of_new: True if new collections have a history.
        quota_mib: MiB; 0 for no quota, as in a node's first bucket.
    """

    history: tuple[int, int]
    of_new: bool
    quota_mib: int


async def bring_settings(members: Members, present: Sequence[Address], joining: Sequence[Address]) -> None:
    """Give nodes that join a bucket the settings of its members; a setting that the members lack is removed.

    Members differ if one was away when a setting was changed. Then the value that most of them have counts; if equally
    many members have two values, the one that is not the default.

    Raises:
        InvalidArguments: a joining node still has files of a former membership, and they take more than the quota.
        StatusError, TransportError: a node refused, as a node of an older release does, or does not answer.
    """
    if joining:
        settings = await _settings(members, present)
        limited = await _with_a_quota(members, present, settings)
        histories = Counter(setting.history for setting in settings)
        defaults = Counter(setting.of_new for setting in settings)
        quotas = Counter(setting.quota_mib for setting in limited)
        settings_ = _Settings(
            max(histories, key=lambda each: (histories[each], any(each))),
            max(defaults, key=lambda each: (defaults[each], not each)),
            max(quotas, key=lambda each: (quotas[each], each > 0)),
        )
        await _give(members, joining, settings_)


async def share_settings(members: Members, nodes: Sequence[Address]) -> None:
    """Give all nodes of a new cluster without documents the same settings: the first history and the first quota that
    any of them has. New collections have no history if one of the nodes has that default.

    Raises: as `bring_settings`.
    """
    settings = await _settings(members, nodes)
    history = next(filter(any, (setting.history for setting in settings)), (0, 0))
    quota_mib = next(filter(None, (setting.quota_mib for setting in settings)), 0)
    await _give(members, nodes, _Settings(history, all(setting.of_new for setting in settings), quota_mib))


async def _with_a_quota(
    members: Members, nodes: Sequence[Address], settings: Sequence[_Settings]
) -> Sequence[_Settings]:
    """Return the settings of the nodes on which the bucket may have a quota; of all nodes if there is no such node.

    A node's first bucket has no quota. If such nodes counted, the nodes that join would lose their quota.
    """
    names = await asyncio.gather(*(members.of("").admin(node).buckets() for node in nodes))
    limited = [setting for setting, buckets in zip(settings, names, strict=True) if buckets[:1] != [members.bucket]]
    return limited or settings


async def _settings(members: Members, nodes: Sequence[Address]) -> list[_Settings]:
    histories = asyncio.gather(*(members.admin(node).history() for node in nodes))
    defaults = asyncio.gather(*(members.admin(node).collections_have_history() for node in nodes))
    quotas = asyncio.gather(*(members.admin(node).quota_mib() for node in nodes))
    answers = zip(await histories, await defaults, await quotas, strict=True)
    # An older release does not know the default: its collections all have a history.
    return [_Settings(history, of_new is not False, quota_mib) for history, of_new, quota_mib in answers]


async def _give(members: Members, nodes: Sequence[Address], settings_: _Settings) -> None:
    """Set the wanted settings on the nodes that have others."""
    # A setting that a node has already is not sent: an older release refuses a parameter that it does not know,
    # whatever its value.
    for node, present in zip(nodes, await _settings(members, nodes), strict=True):
        if present.quota_mib != settings_.quota_mib:
            # The first bucket of a node has no quota: the disk is its quota.
            with suppress(NotSupported):
                await members.admin(node).set_quota(settings_.quota_mib)
        if present.of_new != settings_.of_new:
            await members.admin(node).give_collections_history(history=settings_.of_new)
        if present.history != settings_.history:
            await members.admin(node).keep_history(*settings_.history)
