"""The buckets of a node, or of all nodes of a cluster.

Each node of a cluster gets a new bucket, without vbuckets at first; then the bucket gets its first map as any other
(founding.py).

The nodes are those in the map of an existing bucket. Each step may be repeated: an existing bucket is left as it is,
and a missing one needs no drop.

Source: kv.md 1.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.cluster.founding import found_cluster
from headwater.cluster.known import bucket_nodes, known_map
from headwater.errors import ClusterError, KeyExists, KeyNotFound, StatusError, TransportError

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

__all__ = [
    "BucketWish", "collections_have_history", "create", "drop", "give_collections_history", "histories", "keep_history",
    "names", "quotas", "set_quota", "uuids",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class BucketWish:
    """A bucket to create.

    Attributes:
        vbuckets: None for as many as the first bucket has.
        quota_mib: on each node, MiB; 0 for none.
        replicas: None for as many as the existing bucket has.
    """

    name: str
    vbuckets: int | None = None
    quota_mib: int = 0
    replicas: int | None = None


async def names(members: Members, seeds: Sequence[Address]) -> list[str]:
    """Return the buckets of a member in which our user has any right, its first bucket first."""
    first, _ = await known_map(members, seeds)
    return await members.of("").admin(first).buckets()


async def create(members: Members, seeds: Sequence[Address], wish: BucketWish) -> int:
    """Create a bucket on all nodes that `seeds` lead to; on return it is durable on each. Return the number of nodes.

    Raises:
        KeyExists: it exists (on a node that is alone).
        ClusterError: some nodes did not create it; repeat the call to continue. Or it exists on other nodes.
        StatusError, TransportError: a node refused, or did not answer the first request.
    """
    nodes, replicas = await _nodes(members, seeds)
    await _refuse_second(members, nodes, seeds, wish.name)
    # A node alone owns all vbuckets of its bucket at once: no map is needed, which would make it a cluster of one.
    if len(nodes) == 1:
        await members.of("").admin(nodes[0]).create_bucket(wish.name, wish.vbuckets, wish.quota_mib)
        return 1
    # Without vbuckets: otherwise each node would own all of them, until the first map takes most away again.
    requests = (
        members.of("").admin(node).create_bucket(wish.name, wish.vbuckets, wish.quota_mib, is_empty=True)
        for node in nodes
    )
    # A node that has the bucket got it from a call that was cut off: going on from there is the repetition that users
    # are advised to make.
    await _everywhere(nodes, await asyncio.gather(*requests, return_exceptions=True), KeyExists, "not made")
    replica_count = replicas if wish.replicas is None else wish.replicas
    await found_cluster(members.of(wish.name), nodes, replica_count)
    return len(nodes)


async def _refuse_second(members: Members, nodes: Sequence[Address], seeds: Sequence[Address], name: str) -> None:
    """Refuse to create a bucket that other nodes than `nodes` have, or only some of them: it would be a second one of
    this name, or its map would lack a node that got it.

    A rebalance goes from bucket to bucket, and may have stopped in between.

    Raises:
        ClusterError: they have it.
    """
    having = await _members_of(members.of(name), [*nodes, *seeds])
    if (len(having) > 1 and set(having) != set(nodes)) or not set(having) <= set(nodes):
        raise ClusterError(
            f"the bucket {name} is on {', '.join(map(str, having))} already, and not on the nodes of the first bucket",
            "go on with the rebalance that was stopped: headwater cluster rebalance, as it was typed; or drop it first",
        )


async def drop(members: Members, seeds: Sequence[Address], name: str) -> int:
    """Drop a bucket on all nodes that `seeds` lead to, and on all its members; on return it is gone for good on each.
    Return the number of nodes.

    Raises:
        KeyNotFound: no node has it.
        ClusterError: a node still has it; repeat the call to continue. Or, if `members.of(name)` is bound, the bucket
            of this name is another one.
    """
    nodes, _ = await _nodes(members, seeds)
    bucket_members = members.of(name)
    asking = (
        bucket_members if bucket_members.is_bound else members.of("")
    )  # who has selected it drops none that was made since
    # First on the nodes that only the bucket's own map leads to: once the bucket is gone elsewhere, nothing leads to
    # them.
    former_members = [member for member in await _members_of(bucket_members, nodes) if member not in nodes]
    all_results: list[BaseException | None] = []
    for some in (former_members, nodes):
        results = await asyncio.gather(*(asking.admin(node).drop_bucket(name) for node in some), return_exceptions=True)
        all_results += results
        if not all(isinstance(result, KeyNotFound) for result in all_results):
            await _everywhere(some, results, KeyNotFound, "still there")
    if all(isinstance(result, KeyNotFound) for result in all_results):
        raise next(result for result in all_results if isinstance(result, KeyNotFound))
    return len(all_results)


async def _all_nodes(members: Members, seeds: Sequence[Address], name: str) -> list[Address]:
    """Return the nodes that `seeds` lead to, and all members of a bucket."""
    nodes, _ = await _nodes(members, seeds)
    return list(dict.fromkeys([*nodes, *await _members_of(members.of(name), nodes)]))


async def _members_of(bucket: Members, nodes: Sequence[Address]) -> list[Address]:
    """Return the members of a bucket by its own map; none if no node has one.

    Its map may differ from other buckets' maps, since a node joins or leaves one bucket after the other.
    """
    try:
        return await bucket_nodes(bucket, nodes)
    except (StatusError, TransportError):
        return []


async def uuids(members: Members, seeds: Sequence[Address], name: str) -> frozenset[str]:
    """Return the uuids of a bucket on the nodes that `seeds` lead to; raises as `Members.uuids`."""
    return await members.of(name).uuids(await _all_nodes(members, seeds, name))


async def set_quota(members: Members, seeds: Sequence[Address], name: str, quota_mib: int) -> int:
    """Set a bucket's quota on each node that `seeds` lead to; 0 for none. Return the number of nodes.

    Raises:
        BucketNotFound: there is no such bucket.
        ClusterError: a node refused it, and keeps the old quota.
    """
    nodes = await _all_nodes(members, seeds, name)
    requests = (members.of(name).admin(node).set_quota(quota_mib) for node in nodes)
    await _everywhere(nodes, await asyncio.gather(*requests, return_exceptions=True), (), "as before")
    return len(nodes)


async def quotas(members: Members, seeds: Sequence[Address], name: str) -> dict[Address, int]:
    """Return the quota of a bucket on each node, MiB; 0 for none."""
    nodes = await _all_nodes(members, seeds, name)
    quotas = await asyncio.gather(*(members.of(name).admin(node).quota_mib() for node in nodes))
    return dict(zip(nodes, quotas, strict=True))


async def keep_history(
    members: Members, seeds: Sequence[Address], name: str, seconds: int | None, size: int | None
) -> int:
    """Set how far back a bucket keeps superseded versions, on each node that `seeds` lead to. Return the number of
    nodes.

    Args:
        seconds: the age of the oldest version. size: the bytes of all versions of the whole bucket. 0 for no such
            limit, None to keep the present one.

    Raises:
        BucketNotFound: there is no such bucket.
        ClusterError: a node refused it, and keeps the old setting.
    """
    nodes = await _all_nodes(members, seeds, name)
    requests = (members.of(name).admin(node).keep_history(seconds, size) for node in nodes)
    await _everywhere(nodes, await asyncio.gather(*requests, return_exceptions=True), (), "as before")
    return len(nodes)


async def give_collections_history(members: Members, seeds: Sequence[Address], name: str, *, history: bool) -> None:
    """Set on each node whether new collections of a bucket have a history; errors as `keep_history`."""
    nodes = await _all_nodes(members, seeds, name)
    requests = (members.of(name).admin(node).give_collections_history(history=history) for node in nodes)
    await _everywhere(nodes, await asyncio.gather(*requests, return_exceptions=True), (), "as before")


async def collections_have_history(members: Members, seeds: Sequence[Address], name: str) -> dict[Address, bool]:
    """Return for each node whether new collections of a bucket have a history."""
    nodes = await _all_nodes(members, seeds, name)
    defaults = await asyncio.gather(*(members.of(name).admin(node).collections_have_history() for node in nodes))
    return {node: default is not False for node, default in zip(nodes, defaults, strict=True)}


async def histories(members: Members, seeds: Sequence[Address], name: str) -> dict[Address, tuple[int, int]]:
    """Return the history that a bucket keeps on each node: seconds and bytes, 0 for no such limit."""
    nodes = await _all_nodes(members, seeds, name)
    limits = await asyncio.gather(*(members.of(name).admin(node).history() for node in nodes))
    return dict(zip(nodes, limits, strict=True))


async def _everywhere(
    nodes: Sequence[Address], results: Sequence[object], fine: type[StatusError] | tuple[()], action: str
) -> None:
    """Raise the errors among the results of all nodes.

    Args:
        results: an error or another result for each node.
        fine: errors that count as success.
        action: the work in words, for the error.

    Raises:
        ClusterError: nodes failed; it names them. A single node's error, and errors of other kinds, are raised
            themselves.
    """
    errors = {
        node: result
        for node, result in zip(nodes, results, strict=True)
        if isinstance(result, BaseException) and not isinstance(result, fine)
    }
    for error in errors.values():
        # A cancellation or a bug is no node's answer, and is not summed up as one.
        if len(nodes) == 1 or not isinstance(error, StatusError | TransportError):
            raise error
    if errors:
        problems = "; ".join(f"{node}: {error}" for node, error in errors.items())
        raise ClusterError(f"{action} on {len(errors)} of {len(nodes)} nodes: {problems}", "type the same again")


async def _nodes(members: Members, seeds: Sequence[Address]) -> tuple[list[Address], int]:
    """Return the nodes of the cluster, and the number of replicas of each vbucket, by the newest map with several
    nodes; without such a map, the one node and 0.
    """
    first, cluster_map = await known_map(members, seeds)
    return ([first], 0) if cluster_map is None else (list(cluster_map.servers), cluster_map.replica_count)
