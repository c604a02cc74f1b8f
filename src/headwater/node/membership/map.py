"""Read and check a cluster map for a node: it must belong to the node's bucket and have its number of vbuckets.

An orchestrator sends each node its own copy, with `thisNode` in the node's entry of `nodesExt`; `seen_from` converts a
copy that was fetched from another node. All checks are here: a node that accepted a broken map would drop vbuckets that
no other node owns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from headwater.errors import RemoteProtocolError
from headwater.wire.address import Address
from headwater.wire.cluster_map import ClusterMap


def read_map(text: bytes, *, bucket: str, vbuckets: int, content: Any = None) -> ClusterMap:
    """Return the map in a text, after all checks.

    Args:
        text: the map as JSON.
        bucket: the name of this node's bucket, which the map must have if it has a name.
        vbuckets: the number of the bucket's vbuckets.
        content: the parsed JSON of the text; None if it is not parsed yet.

    Raises:
        RemoteProtocolError: not JSON, not a map, or the map of another bucket; the text names the problem.
    """
    map_ = ClusterMap.from_json(text, epoch=1, content=content)
    if map_.bucket not in ("", bucket):
        raise RemoteProtocolError(f'the map is of bucket "{map_.bucket}", this node has "{bucket}"')
    if map_.vbuckets != vbuckets:
        raise RemoteProtocolError(f"the map has {map_.vbuckets} vbuckets, this node {vbuckets}")
    return map_ if map_.bucket else replace(map_, bucket=bucket)


def says_the_same(first: ClusterMap, second: ClusterMap) -> bool:
    """Return True if two maps have the same meaning for this node; their parts for clients may differ."""
    return _facts(first) == _facts(second)


def _facts(map_: ClusterMap) -> tuple[object, ...]:
    facts = (map_.version, map_.bucket, map_.uuid, map_.servers, map_.chains, map_.this)
    return (*facts, dict(map_.tls_ports), map_.encrypted)


def seen_from(cluster_map: ClusterMap, here: Address) -> ClusterMap:
    """Return a map in the form for the node `here`: with `thisNode` in its entry. The map may lack the node."""
    this = cluster_map.servers.index(here) if here in cluster_map.servers else None
    content = json.loads(cluster_map.text)
    for index, entry in enumerate(content.get("nodesExt", ())):
        entry.pop("thisNode", None)
        if index == this:
            entry["thisNode"] = True
    return replace(cluster_map, this=this, text=json.dumps(content, separators=(",", ":")).encode())
