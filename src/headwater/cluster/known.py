"""The newest cluster map, and by it all nodes of a cluster.

An operator names some nodes; the maps that they hold name others, and so on. A node that left the cluster, or was
failed over while it was away, answers as any other, so the first node named may be no member any more. Therefore a map
counts only when none of its nodes has a newer one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from headwater.errors import StatusError, TransportError
from headwater.wire.cluster_map import ClusterMap

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = ["bucket_nodes", "known_map"]


async def known_map(
    members: Members, seeds: Sequence[Address], *, of_first_bucket: bool = False
) -> tuple[Address, ClusterMap | None]:
    """Return a member, and the newest map of the first bucket whose map has several nodes; None without such a map.

    The seeds are tried in turn. A seed that does not answer, or refuses, is passed over; so is one that is alone, if
    another is a member. If the map has one node left, the member is that node.

    Args:
        of_first_bucket: True to use only the map of the node's first bucket, by which nodes share users.

    Raises:
        StatusError, TransportError: no seed answers; the error is that of the first.
    """

    async def ask(seed: Address) -> ClusterMap | None:
        names = await members.of("").admin(seed).buckets()
        for name in names[:1] if of_first_bucket else names:
            if (cluster_map := await _newest(members.of(name), seed)) is not None:
                return cluster_map
        return None

    first, cluster_map = await _first(members, seeds, ask)
    return first, cluster_map if cluster_map is not None and len(cluster_map.servers) > 1 else None


async def bucket_nodes(members: Members, seeds: Sequence[Address]) -> list[Address]:
    """Return the nodes of the members' bucket, in the order of its newest map, which all operators share. Errors as
    `known_map`.
    """
    first, cluster_map = await _first(members, seeds, lambda seed: _newest(members, seed))
    return [first] if cluster_map is None else list(cluster_map.servers)


async def _first(
    members: Members, seeds: Sequence[Address], ask: Callable[[Address], Awaitable[ClusterMap | None]]
) -> tuple[Address, ClusterMap | None]:
    """Return the first map that one of the seeds leads to, with a member of it; without a map, None with a seed that
    answered.

    Args:
        ask: returns the map of a seed; None for a seed that is alone.

    Raises:
        StatusError, TransportError: no seed answers; the error is that of the first.
    """
    alone: Address | None = None
    errors: list[StatusError | TransportError] = []
    for seed in await members.identified(seeds):
        try:
            cluster_map = await ask(seed)
        except (StatusError, TransportError) as error:
            errors.append(error)
            continue
        if cluster_map is not None:
            members.learn(cluster_map)
            return seed if seed in cluster_map.servers else cluster_map.servers[0], cluster_map
        alone = alone or seed
    if alone is None:
        raise errors[0]
    return alone, None


async def _newest(members: Members, node: Address) -> ClusterMap | None:
    """Return the newest map of a bucket that a node's own map leads to; None for a node that is alone."""
    cluster_map = await _map(members, node)
    # A map of one node means that this node is alone, unless the node is not in it: then it was taken out, and the one
    # that is left is the cluster.
    if cluster_map is None or (
        len(cluster_map.servers) == 1 and (cluster_map.this is not None or node in cluster_map.servers)
    ):
        return None
    while True:
        members.learn(cluster_map)
        # A member that is away keeps no other from being heard: it can't make the newest map older.
        maps = await asyncio.gather(*(_map(members, server) for server in cluster_map.servers), return_exceptions=True)
        # Another uuid is another bucket of the same name, whose revisions mean nothing here.
        newer = [map_ for map_ in maps if isinstance(map_, ClusterMap) and map_.uuid == cluster_map.uuid]
        newest = max((cluster_map, *newer), key=lambda each: each.version)
        if newest.version == cluster_map.version:
            return cluster_map
        cluster_map = newest


async def _map(members: Members, node: Address) -> ClusterMap | None:
    config = await members.admin(node).config()
    return ClusterMap.from_json(config, node) if config else None
