"""Watches the cluster map for a drain, in case a node does not know that it lost its vbuckets.

A node that gives a vbucket away ends its streams, and the drain looks for the new owner. But a node that was failed
over because only we could reach it keeps its streams open, and sends no changes any more. So every few seconds the
drain requests the map of one node, each in its turn. If that map gives a vbucket to another node than the one that
streams it, the old node gets some time to end the stream by itself; then its connection is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from headwater.client.cluster import Cluster
from headwater.client.routing import Address
from headwater.client.worker import Worker
from headwater.errors import HeadwaterError, StatusError, TransportError
from headwater.transport.waiting import Ready, Steps

REFRESH_SECONDS = 0.1
"""The shortest time between two fetches of the map, however many vbuckets need a node."""


def watch(
    cluster: Cluster,
    poll_seconds: float | None,
    workers: Mapping[Address, Worker],
    drop: Callable[[Address, HeadwaterError], None],
) -> Steps[None]:
    """Poll the cluster map for ever, and call `drop(node, reason)` for a node that streams a vbucket of another owner.

    A vbucket must be misplaced at two polls in a row. A cluster of one node is not polled.

    Args:
        poll_seconds: the interval; None for no polling.
    """
    polls = 0
    suspects: set[tuple[Address, int]] = set()
    while True:
        yield from _pause(cluster, poll_seconds)
        if len(cluster.map.servers) < 2:
            continue
        polls += 1
        with suppress(TransportError, StatusError):
            yield from cluster.ask_map_of(cluster.map.servers[polls % len(cluster.map.servers)])
        # Only what is misplaced at two looks in a row is dropped: a node that has just given a vbucket away ends its
        # stream by itself, and says more by that.
        misplaced = set(_misplaced_vbuckets(cluster, workers))
        for address, vbucket in sorted(misplaced & suspects):
            if address in workers:
                drop(address, cluster.misplaced(vbucket, "stream", address))
        suspects = misplaced - suspects


def _pause(cluster: Cluster, seconds: float | None) -> Steps[None]:
    until = None if seconds is None else cluster.clock() + seconds
    yield Ready((), until)
    while until is None or cluster.clock() < until:
        yield Ready((), until)


def _misplaced_vbuckets(cluster: Cluster, workers: Mapping[Address, Worker]) -> list[tuple[Address, int]]:
    """Return (node, vbucket) for each stream that comes from another node than the vbucket's owner in the map."""
    cluster_map = cluster.map
    return [
        (address, vbucket)
        for address, worker in workers.items()
        for vbucket in worker.vbuckets
        if cluster_map.owner(vbucket) not in (None, address)
    ]
