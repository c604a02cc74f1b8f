"""Which nodes there are, by the map of any of their buckets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from headwater.wire.cluster_map import ClusterMap

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["known_map"]


async def known_map(
    members: Members, seeds: Sequence[Address], *, of_first_bucket: bool = False
) -> tuple[Address, ClusterMap | None]:
    """The first node that `seeds` name, and the first map of its buckets that names several; None without one.

    Args:
        of_first_bucket: look at the map of the node's first bucket alone, as nodes do to know whose users they have.
    """
    first = (await members.identified(seeds))[0]
    names = await members.of("").admin(first).buckets()
    for name in names[:1] if of_first_bucket else names:
        config = await members.of(name).admin(first).config()
        known = ClusterMap.from_json(config, first) if config else None
        if known is not None and len(known.servers) > 1:
            members.learn(known)
            return first, known
    return first, None
