"""What is told by HTTP: the pages that clients were seen to read (interop.md 4.2, 4.3), and nothing more.

Everything comes from the cluster map and the bucket. A node in the map counts as healthy: who is in it and is not there
is for the operator to fail over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headwater.node.kv.admin import VERSION_TEXT

if TYPE_CHECKING:
    from headwater.node.server import Server

_SETTINGS = {  # what a bucket here is, in the words of the other server; its Python SDK aborts where one is missing
    "bucketType": "membase",
    "storageBackend": "couchstore",
    "evictionPolicy": "valueOnly",
    "conflictResolutionType": "seqno",
    "compressionMode": "passive",
    "durabilityMinLevel": "none",
    "replicaIndex": False,
    "maxTTL": 0,
    "quota": {"ram": 0, "rawRAM": 0},
    "controllers": {},
}
_NODE = {
    "status": "healthy",
    "clusterMembership": "active",
    "clusterCompatibility": 7 << 16 | 6,
    "version": VERSION_TEXT.decode(),
    "os": "any",
    "services": ["kv"],
}
_STREAMS = ("/pools/default/bs/{}", "/pools/default/bucketsStreaming/{}")


def is_stream(server: Server, path: str) -> bool:
    """Whether this is a page that never ends: the map now, and each later one."""
    return path in {each.format(server.bucket.name) for each in _STREAMS}


def page(server: Server, path: str, user: str) -> bytes | None:
    """The JSON of a page; None if there is no such page. `user` is who asks."""
    name = server.bucket.name
    made: dict[str, Callable[[], object]] = {
        "/whoami": lambda: {"id": user, "domain": "local"},
        "/pools": lambda: _pools(server),
        "/pools/default": lambda: {"name": "default", "nodes": _nodes(_config(server))},
        "/pools/default/buckets": lambda: [_bucket(server)],
        f"/pools/default/buckets/{name}": lambda: _bucket(server),
        f"/pools/default/b/{name}": lambda: _config(server),
    }
    return json.dumps(made[path]()).encode() if path in made else None


def _config(server: Server) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(server.cluster.config())
    return config


def _pools(server: Server) -> dict[str, Any]:
    return {
        "implementationVersion": VERSION_TEXT.decode(),
        "uuid": server.bucket.uuid,
        "pools": [{"name": "default", "uri": "/pools/default"}],
    }


def _bucket(server: Server) -> dict[str, Any]:
    config = _config(server)
    replicas = config.get("vBucketServerMap", {}).get("numReplicas", 0)
    return {**config, **_SETTINGS, "replicaNumber": replicas, "nodes": _nodes(config)}


def _nodes(config: dict[str, Any]) -> list[dict[str, Any]]:
    """A map lists its nodes twice; the list `nodesExt` has those that hold no vbucket yet, too."""
    ports = [(each.get("hostname", "$HOST"), each.get("services", {})) for each in config.get("nodesExt", [])]
    return [
        {**_NODE, "hostname": f"{host}:{services['mgmt']}", "ports": {"direct": services["kv"]}}
        for host, services in ports
        if services.keys() >= {"kv", "mgmt"}
    ]
