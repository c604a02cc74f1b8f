"""The HTTP pages: those that clients were seen to read (interop.md 4.2, 4.3), and those that operators' tools do.

Everything comes from the cluster map, the bucket and the node's users. A node in the map counts as healthy: who is in
it and is not there is for the operator to fail over. What clients ask for and a node here does not do is refused in the
words by which they tell one refusal from another: a 404 would be "no such bucket" to them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.node.kv.admin import VERSION_TEXT
from headwater.node.rest import collections
from headwater.node.rest.made import Made
from headwater.node.users.roles import ROLES, Grant
from headwater.wire.privilege import ADMINISTER, LOGIN, MONITOR, NONE, Privilege, in_words

if TYPE_CHECKING:
    from headwater.node.kv.api import Services

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
_ROLES = {
    "read": "data_reader",
    "write": "data_writer",
    "stream": "data_dcp_reader",
    "replicate": "replication_target",
    "monitor": "data_monitoring",
    "administer": "admin",
}
_USERS_ARE = "the users of a node are added by headwater user, or given by --user or --users-file when it is started"
_BUCKET_IS = "a node has one bucket, named by --bucket when it is started"
_NOT = "Not allowed on this "


@dataclass(frozen=True, slots=True)
class Page:
    """One page: its path ({} is the bucket), the privilege that its reader needs, and what makes it.

    `make` is called with the server, who asks, and what the path's groups matched; it returns None where there is
    nothing by that name, what is JSON, or the page as it is sent. A page without it never ends: the map now, and each
    later one; or it is one of `methods` that `change` something, which is called with what the path's groups matched
    and the body.
    """

    path: str
    privilege: Privilege
    make: Callable[[Services, str, tuple[str, ...]], object] | None
    methods: tuple[str, ...] = ("GET", "HEAD")
    change: collections.Change | None = None


@dataclass(frozen=True, slots=True)
class PageRefusal:
    """Something that clients ask for and nobody gets here, and why; the words that they look for come first."""

    methods: tuple[str, ...]
    path: str
    privilege: Privilege
    why: str


PAGES = (
    Page("/healthz", NONE, lambda *_: {"alive": True}),
    Page("/readyz", NONE, lambda server, *_: _readiness(server)),
    Page("/metrics", MONITOR, lambda server, *_: _metrics(server)),
    Page("/whoami", LOGIN, lambda server, user, _: {"id": user, "domain": "local"}),
    Page("/pools", LOGIN, lambda server, *_: _pools(server)),
    Page("/pools/default", LOGIN, lambda server, *_: _cluster(server)),
    Page("/pools/default/buckets", LOGIN, lambda server, *_: [_bucket(server)]),
    Page("/pools/default/buckets/{}", LOGIN, lambda server, *_: _bucket(server)),
    Page("/pools/default/b/{}", LOGIN, lambda server, *_: _config(server)),
    Page("/pools/default/bs/{}", LOGIN, None),
    Page("/pools/default/bucketsStreaming/{}", LOGIN, None),
    Page("/pools/default/buckets/{}/scopes", LOGIN, lambda server, *_: server.bucket.collections.manifest.as_json()),
    Page("/pools/default/buckets/{}/scopes", ADMINISTER, None, ("POST",), collections.create_scope),
    Page("/pools/default/buckets/{}/scopes/([^/]+)", ADMINISTER, None, ("DELETE",), collections.drop_scope),
    Page(
        "/pools/default/buckets/{}/scopes/([^/]+)/collections",
        ADMINISTER,
        None,
        ("POST",),
        collections.create_collection,
    ),
    Page(
        "/pools/default/buckets/{}/scopes/([^/]+)/collections/([^/]+)",
        ADMINISTER,
        None,
        ("DELETE",),
        collections.drop_collection,
    ),
    Page(
        "/settings/rbac/roles",
        ADMINISTER,
        lambda *_: _roles(),
    ),
    Page("/settings/rbac/groups", ADMINISTER, lambda *_: []),
    Page("/settings/rbac/users(?:/local)?", ADMINISTER, lambda server, *_: _users(server)),
    Page("/settings/rbac/users/local/(.+)", ADMINISTER, lambda server, _, found: _user(server, *found)),
)
REFUSED = (
    PageRefusal(
        ("POST",),
        "/pools/default/buckets/{}/controller/doFlush",
        ADMINISTER,
        "Flush is disabled by HTTP: send FLUSH, opcode 0x08",
    ),
    PageRefusal(("POST", "PUT"), "/pools/default/buckets", ADMINISTER, _BUCKET_IS),
    PageRefusal(("POST", "PUT", "DELETE"), "/pools/default/buckets/{}", ADMINISTER, _BUCKET_IS),
    PageRefusal(("PUT", "PATCH"), "/settings/rbac/(?:users|groups)/.*", ADMINISTER, _USERS_ARE),
)


def needed(server: Services, method: str, path: str) -> Privilege:
    """Return the privilege for a page, or for a refusal in its own words; that of any user where there is neither."""
    for each in (*PAGES, *REFUSED):
        if method in each.methods and _match(server, each.path, path):
            return each.privilege
    return LOGIN


def forbidden(missing: int) -> bytes:
    """Return the JSON for who may not read a page."""
    return json.dumps({"message": f"Forbidden. User needs the role {in_words(missing)}"}).encode()


def is_stream(server: Services, path: str) -> bool:
    """Whether this is a page that never ends: the map now, and each later one."""
    return any(each.make is None and each.change is None and _match(server, each.path, path) for each in PAGES)


def page(server: Services, path: str, user: str) -> Made | None:
    """Make a page; None if there is no such page. `user` is who asks."""
    for each in PAGES:
        if each.make is not None and (found := _match(server, each.path, path)):
            made = each.make(server, user, found.groups())
            return made if made is None or isinstance(made, Made) else Made(json.dumps(made).encode())
    return None


def change(server: Services, method: str, path: str, body: bytes) -> Awaitable[Made] | None:
    """Begin what a request changes; None if there is no such page."""
    for each in PAGES:
        if each.change is not None and method in each.methods and (found := _match(server, each.path, path)):
            return each.change(server, found.groups(), body)
    return None


def refusal(server: Services, method: str, path: str) -> bytes | None:
    """The JSON that says why something can't be done here; None where there is simply nothing by that name."""
    for each in REFUSED:
        if method in each.methods and _match(server, each.path, path):
            return json.dumps({"errors": {"_": each.why}}).encode()
    return None


def _match(server: Services, pattern: str, path: str) -> re.Match[str] | None:
    return re.fullmatch(pattern.format(re.escape(server.bucket.name)), path)


def _metrics(server: Services) -> Made:
    from headwater.node import metrics  # noqa: PLC0415 - its library takes 30 ms, which nodes that nobody scrapes save

    return Made(metrics.page(server), content_type=metrics.CONTENT_TYPE)


def _readiness(server: Services) -> Made:
    """Tell whether requests are served: 503 while it is not known whose the vbuckets are, or traffic is off.

    A full disk is shown, and is no reason to be taken out of service: reads and deletions go on.
    """
    bucket = server.bucket
    told = {"fenced_vbuckets": len(bucket.fenced), "traffic_disabled": bucket.traffic_disabled}
    ready = not any(told.values())
    body = json.dumps({"ready": ready, **told, "disk_full": bucket.store.full}).encode()
    return Made(body, 200 if ready else 503)


def _cluster(server: Services) -> dict[str, Any]:
    buckets = [{"bucketName": server.bucket.name, "uuid": server.bucket.uuid}]
    return {"name": "default", "nodes": _nodes(_config(server)), "bucketNames": buckets}


def _users(server: Services) -> list[dict[str, Any]]:
    users = server.users
    return [
        {"id": name, "domain": "local", "roles": [_role(each) for each in users.grants(name)]} for name in users.names
    ]


def _role(grant: Grant) -> dict[str, str]:
    """A role here by the name of the other server's that is nearest to it."""
    told = {"role": _ROLES[grant.role]}
    return told if grant.role == "administer" else {**told, "bucket_name": grant.bucket or "*"}


def _roles() -> list[dict[str, str]]:
    return [
        {"role": name, "name": role, "desc": f"May {in_words(ROLES[role] & ~LOGIN)}."} for role, name in _ROLES.items()
    ]


def _user(server: Services, name: str) -> dict[str, Any] | None:
    return next((each for each in _users(server) if each["id"] == name), None)


def _config(server: Services) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(server.cluster.config())
    return config


def _pools(server: Services) -> dict[str, Any]:
    return {
        "implementationVersion": VERSION_TEXT.decode(),
        "uuid": server.bucket.uuid,
        "pools": [{"name": "default", "uri": "/pools/default"}],
    }


def _bucket(server: Services) -> dict[str, Any]:
    config = _config(server)
    replicas = config.get("vBucketServerMap", {}).get("numReplicas", 0)
    return {**config, **_SETTINGS, "replicaNumber": replicas, "nodes": _nodes(config)}


def _nodes(config: dict[str, Any]) -> list[dict[str, Any]]:
    """A map lists its nodes twice; the list `nodesExt` has those that hold no vbucket yet, too."""
    ports = [(each.get("hostname", "$HOST"), each.get("services", {})) for each in config.get("nodesExt", [])]
    return [
        {
            **_NODE,
            "hostname": f"{host}:{services['mgmt']}",
            "otpNode": f"n_{number}@{host}",
            "ports": {"direct": services["kv"]},
        }
        for number, (host, services) in enumerate(ports, 1)
        if services.keys() >= {"kv", "mgmt"}
    ]
