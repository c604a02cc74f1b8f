"""STAT cluster: the node's view of its cluster, and the vbuckets whose roles differ from the map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.kv.api import Services
    from headwater.node.membership.member import Membership


def stats(server: Services, membership: Membership) -> Iterable[tuple[str, str]]:
    """Yield the names and values of the group's statistics; times are in seconds."""
    bucket = server.bucket
    epoch, revision = server.cluster.version
    yield "epoch", str(epoch)
    yield "revision", str(revision)
    cluster_map = membership.map
    yield "port", str(server.cluster.port)
    if server.cluster.tls_port is not None:
        yield "tls_port", str(server.cluster.tls_port)
    if server.config.group:
        yield "group", server.config.group
    yield "member", str(cluster_map is not None and cluster_map.this is not None).lower()
    states = Counter(vbucket.state for vbucket in bucket.vbuckets.values())
    for state in State:
        yield f"vb_{state.name.lower()}", str(states[state])
    yield "fence", "open" if membership.fence is None or membership.fence.is_open else "closed"
    yield "fenced", str(len(bucket.fenced))
    yield "damaged_batches", str(bucket.store.damaged_batches)
    if cluster_map is not None:
        yield "uuid", cluster_map.uuid
        yield "this_node", str(cluster_map.here or "")
        yield "nodes", str(len(cluster_map.servers))
        yield "map_active", str(sum(map(cluster_map.is_owner, range(len(cluster_map.chains)))))
        yield "map_replica", str(sum(map(cluster_map.is_replica, range(len(cluster_map.chains)))))
        yield from _member(membership, server.loop.time())


def _member(membership: Membership, now: float) -> Iterable[tuple[str, str]]:
    membership.peers.look()  # an operator may ask sooner than the next look of its own would come
    yield "answers_missing", str(membership.fence.missing if membership.fence is not None else 0)
    if membership.fence is not None and membership.fence.in_doubt:
        yield "in_doubt", "true"
    if membership.fence is not None and membership.fence.alone is False:
        yield "copy_of", str(membership.map.here if membership.map is not None else "")
    yield "following", str(len(membership.following.sources))
    yield "held", str(len(membership.following.held))
    yield "moving", str(len(membership.reconciler.moving))
    for address, peer in membership.peers.known.items():
        yield f"{address}:heard", "never" if peer.heard_at is None else f"{now - peer.heard_at:.1f}"
        yield f"{address}:problem", peer.problem
