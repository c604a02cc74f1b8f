"""The HTTP pages for clients (interop.md 4.2, 4.3) and for operators' tools.

The content comes from the cluster map, the bucket and the node's users. Every node in the map is shown as healthy: it
is the operator who fails over a node that is down. Requests that clients send, but that a node does not support, are
refused with a text that the clients recognise; they would take a 404 for "no such bucket".
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.accounts.roles import ROLES, Grant
from headwater.node.kv.admin import VERSION_TEXT
from headwater.node.process import kernel_modules
from headwater.node.rest import buckets, collection_edits
from headwater.node.rest.made import Made
from headwater.wire.privilege import ADMINISTER, LOGIN, MONITOR, NONE, Privilege, in_words

if TYPE_CHECKING:
    from headwater.node.kv.api import Services

_SETTINGS = {  # a bucket of a node, in Couchbase's terms; Couchbase's Python SDK aborts if one of them is missing
    "bucketType": "membase",
    "storageBackend": "couchstore",
    "evictionPolicy": "valueOnly",
    "conflictResolutionType": "seqno",
    "compressionMode": "passive",
    "durabilityMinLevel": "none",
    "replicaIndex": False,
    "maxTTL": 0,
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
_NOT = "Not allowed on this "


@dataclass(frozen=True, slots=True)
class Page:
    """One page: who may request it, and the function that returns it.

    A page with a bucket in its path is served by that bucket's server, and answers 404 to a user without any right in
    the bucket. Any other page is served by the first bucket's server. A page with neither `make` nor `change` is a
    stream: it sends the cluster map now, and each later map.

    Attributes:
        path: a regular expression for the path, in which {} stands for the bucket.
        privilege: the privilege that the user needs: in the bucket of the path, or in all buckets if there is none.
        make: returns the page's content; called with the server, the user, and the matches of the path's other groups.
            The content is None if nothing has that name, a value to send as JSON, or a finished page (Made).
        methods: the HTTP methods of the page.
        change: carries out a request that changes something; called with the server, the matches of the path's other
            groups, and the body.
        of_node: True if the privilege is needed in all buckets, although the path names one.
        in_some_bucket: True if the privilege in one bucket is enough; the page then shows only the buckets in which the
            user has it.
    """

    path: str
    privilege: Privilege
    make: Callable[[Services, str, tuple[str, ...]], object] | None
    methods: tuple[str, ...] = ("GET", "HEAD")
    change: collection_edits.Change | None = None
    of_node: bool = False
    in_some_bucket: bool = False


@dataclass(frozen=True, slots=True)
class PageRefusal:
    """A request that a node does not support.

    Attributes:
        methods: the HTTP methods of such a request.
        path: a regular expression for its path, in which {} stands for the bucket.
        privilege: the privilege that the user needs to be told the reason.
        why: the reason; it begins with the words that clients look for.
    """

    methods: tuple[str, ...]
    path: str
    privilege: Privilege
    why: str


PAGES = (
    Page("/healthz", NONE, lambda *_: {"alive": True}),
    Page("/readyz", NONE, lambda server, *_: _readiness(server)),
    Page("/metrics", MONITOR, lambda server, user, _: _metrics(server, user), in_some_bucket=True),
    Page("/whoami", LOGIN, lambda server, user, _: {"id": user, "domain": "local"}),
    Page("/pools", LOGIN, lambda server, *_: _pools(server)),
    Page("/pools/default", LOGIN, lambda server, user, _: _cluster(server, user)),
    Page("/pools/default/buckets", LOGIN, lambda server, user, _: _buckets(server, user)),
    Page("/pools/default/buckets", ADMINISTER, None, ("POST",), buckets.create),
    Page("/pools/default/buckets/{}", ADMINISTER, None, ("DELETE",), buckets.drop, of_node=True),
    Page("/pools/default/buckets/{}", ADMINISTER, None, ("POST",), buckets.alter, of_node=True),
    Page("/pools/default/buckets/{}", LOGIN, lambda server, *_: _bucket(server)),
    Page("/pools/default/b/{}", LOGIN, lambda server, *_: _config(server)),
    Page("/pools/default/bs/{}", LOGIN, None),
    Page("/pools/default/bucketsStreaming/{}", LOGIN, None),
    Page("/pools/default/buckets/{}/scopes", LOGIN, lambda server, user, _: _scopes(server, user)),
    Page("/pools/default/buckets/{}/scopes", ADMINISTER, None, ("POST",), collection_edits.create_scope),
    Page("/pools/default/buckets/{}/scopes/([^/]+)", ADMINISTER, None, ("DELETE",), collection_edits.drop_scope),
    Page(
        "/pools/default/buckets/{}/scopes/([^/]+)/collections",
        ADMINISTER,
        None,
        ("POST",),
        collection_edits.create_collection,
    ),
    Page(
        "/pools/default/buckets/{}/scopes/([^/]+)/collections/([^/]+)",
        ADMINISTER,
        None,
        ("DELETE",),
        collection_edits.drop_collection,
    ),
    Page(
        "/pools/default/buckets/{}/scopes/([^/]+)/collections/([^/]+)",
        ADMINISTER,
        None,
        ("PATCH",),
        collection_edits.alter_collection,
    ),
    Page(
        "/settings/rbac/roles",
        ADMINISTER,
        lambda *_: _roles(),
    ),
    Page("/settings/rbac/groups", ADMINISTER, lambda *_: []),
    Page("/settings/rbac/users(?:/local)?", ADMINISTER, lambda server, *_: _users(server)),
    Page("/settings/rbac/users/local/(.+)", ADMINISTER, lambda server, _, groups: _user(server, *groups)),
)
REFUSED = (
    PageRefusal(
        ("POST",),
        "/pools/default/buckets/{}/controller/doFlush",
        ADMINISTER,
        "Flush is disabled by HTTP: send FLUSH, opcode 0x08",
    ),
    PageRefusal(("PUT",), "/pools/default/buckets/{}", ADMINISTER, buckets.STAYS),
    PageRefusal(("PUT", "PATCH"), "/settings/rbac/(?:users|groups)/.*", ADMINISTER, _USERS_ARE),
)


def needed(server: Services, method: str, path: str) -> Privilege:
    """Return the privilege that a request needs; LOGIN if its path is in neither PAGES nor REFUSED."""
    match = _matching(server, method, path)
    return LOGIN if match is None else match[0].privilege


def missing(server: Services, method: str, path: str, user: str) -> int:
    """Return the privileges that a request needs and its user lacks, as bits; 0 if the user may send it."""
    match = _matching(server, method, path, user)
    if match is None:
        return int(LOGIN & ~server.users.rights(user, None))
    each, served = match
    if isinstance(each, Page) and each.in_some_bucket:
        return each.privilege & ~server.users.rights_anywhere(user)
    of_node = served is None or (isinstance(each, Page) and each.of_node)
    return each.privilege & ~server.users.rights(user, None if of_node or served is None else served.bucket.name)


def _matching(
    server: Services, method: str, path: str, user: str | None = None
) -> tuple[Page | PageRefusal, Services | None] | None:
    """Return the page or the refusal for a request, and the server of the bucket in its path.

    Args:
        server: any server of the node.
        method: the request's method.
        path: the request's path.
        user: the user, for whom only the buckets exist in which the user has a right; None: all buckets exist.

    Returns:
        The page or refusal, and the server, which is None if the path names no bucket. None if nothing matches.
    """
    for each in (*PAGES, *REFUSED):
        if method in each.methods and (match := _match(server, each.path, path, user)):
            return each, match.server if "{}" in each.path else None
    return None


def forbidden(missing: int) -> bytes:
    """Return the JSON that tells a user which role a refused request needs."""
    return json.dumps({"message": f"Forbidden. User needs the role {in_words(missing)}"}).encode()


def streamed(server: Services, path: str, user: str) -> Services | None:
    """Return the bucket's server if a path is that of a stream of maps (see Page); None for any other path."""
    for page in PAGES:
        if page.make is None and page.change is None and (match := _match(server, page.path, path, user)):
            return match.server
    return None


def page(server: Services, path: str, user: str) -> Made | None:
    """Return a page for a user; None if there is no such page."""
    for each in PAGES:
        if each.make is not None and (match := _match(server, each.path, path, user)):
            content = each.make(match.server, user, match.groups)
            return content if content is None or isinstance(content, Made) else Made(json.dumps(content).encode())
    return None


def change(server: Services, method: str, path: str, body: bytes, user: str) -> Awaitable[Made] | None:
    """Return the change that a request demands, to be awaited; None if no page changes anything by this request."""
    for page in PAGES:
        if page.change is not None and method in page.methods and (match := _match(server, page.path, path, user)):
            return page.change(match.server, match.groups, body)
    return None


def refusal(server: Services, method: str, path: str, user: str) -> bytes | None:
    """Return the JSON with the reason why a request is not supported; None if the request is not in REFUSED."""
    for each in REFUSED:
        if method in each.methods and _match(server, each.path, path, user):
            return json.dumps({"errors": {"_": each.why}}).encode()
    return None


class _Match(NamedTuple):
    """The match of a page's path.

    Attributes:
        server: the server of the bucket in the path; that of the first bucket if there is none.
        groups: the matches of the path's other groups.
    """

    server: Services
    groups: tuple[str, ...]


def _match(server: Services, pattern: str, path: str, user: str | None) -> _Match | None:
    """Return the match of a path with a page's pattern; None if there is none.

    As in SELECT_BUCKET, a bucket in which the user has no right does not exist for that user; without a user (None) all
    buckets exist.
    """
    match = re.fullmatch(pattern.format("([^/]+)"), path)
    if match is None:
        return None
    if "{}" not in pattern:
        return _Match(next(iter(server.buckets.values())), match.groups())
    name, *others = match.groups()
    bucket = server.buckets.get(name)
    # Both cases get the same answer: a user without a right in a bucket must not learn whether it exists.
    if bucket is None or (user is not None and not server.users.may_enter(user, name)):
        return None
    return _Match(bucket, tuple(others))


def _metrics(server: Services, user: str) -> Made:
    """Return the metrics of the buckets that the user may monitor, and those of the node if the user may monitor all
    buckets.
    """
    if server.config.no_metrics:
        return Made(b'{"error": "this node was started with --no-metrics"}', 404)
    from headwater.node.rest import metrics  # noqa: PLC0415 - 30 ms that no start waits for; node/run.py loads it

    users = server.users
    bucket_names = {name for name in server.buckets if users.rights(user, name) & MONITOR}
    content = metrics.page(server, bucket_names, of_node=bool(users.rights(user, None) & MONITOR))
    return Made(content, content_type=metrics.CONTENT_TYPE)


def _readiness(server: Services) -> Made:
    """Return the page about the node's readiness; its status is 503 while the node is not ready.

    A node is not ready while vbuckets are fenced, and while traffic is disabled. Nor is it ready with neither vbuckets
    nor a map: then its cluster is not founded yet, or the node has returned without its disk, and an operator who waits
    for it before stopping the next node would count on a copy that is missing. A worker without vbuckets is ready: the
    other workers serve all vbuckets.

    The page also reports a full disk, with which reads and deletions continue, and kernels that are not compiled yet,
    without which requests are served more slowly. Neither prevents readiness.
    """
    buckets = [bucket.bucket for bucket in server.buckets.values()]
    state = {
        "fenced_vbuckets": sum(len(bucket.fenced) for bucket in buckets),
        "traffic_disabled": any(bucket.traffic_disabled for bucket in buckets),
        "empty": not any(
            bucket.bucket.vbuckets or _is_member(bucket) or bucket.is_spare for bucket in server.buckets.values()
        ),
    }
    ready = not any(state.values())
    compiled, kernels = kernel_modules.counts()
    figures = {
        "disk_full": any(bucket.store.staging.lacks_room for bucket in buckets),
        "kernels_waiting": kernels - compiled,
    }
    body = json.dumps({"ready": ready, **state, **figures}).encode()
    return Made(body, 200 if ready else 503)


def _is_member(server: Services) -> bool:
    cluster_map = server.membership.map
    return cluster_map is not None and cluster_map.here is not None


def _cluster(server: Services, user: str) -> dict[str, Any]:
    """Return the nodes of the cluster, and the names of the buckets in which the user has any right."""
    buckets = {name: bucket for name, bucket in server.buckets.items() if server.users.may_enter(user, name)}
    names = [{"bucketName": name, "uuid": bucket.bucket.uuid} for name, bucket in buckets.items()]
    return {"name": "default", "nodes": _nodes(_config(server)), "bucketNames": names}


def _buckets(server: Services, user: str) -> list[dict[str, Any]]:
    """Return the buckets in which the user has any right."""
    return [_bucket(bucket) for name, bucket in server.buckets.items() if server.users.may_enter(user, name)]


def _scopes(server: Services, user: str) -> dict[str, Any]:
    """Return the part of the manifest that the user may see."""
    users, bucket = server.users, server.bucket
    places, manifest = users.places(user, bucket.name), bucket.collections.manifest
    is_seen = places is None or users.rights(user, bucket.name) > LOGIN
    return manifest.as_json() if places is None or is_seen else places.visible(manifest).as_json()


def _users(server: Services) -> list[dict[str, Any]]:
    users = server.users
    return [
        {"id": name, "domain": "local", "roles": [_role(grant) for grant in users.grants(name)]} for name in users.names
    ]


def _role(grant: Grant) -> dict[str, str]:
    """Return a role, and its place, under the name of Couchbase's nearest role."""
    role = {"role": _ROLES[grant.role]}
    if grant.role == "administer":
        return role
    place = {"bucket_name": grant.bucket or "*", "scope_name": grant.scope, "collection_name": grant.collection}
    return {**role, **{name: text for name, text in place.items() if text is not None}}


def _roles() -> list[dict[str, str]]:
    return [
        {"role": name, "name": role, "desc": f"May {in_words(ROLES[role] & ~LOGIN)}."} for role, name in _ROLES.items()
    ]


def _user(server: Services, name: str) -> dict[str, Any] | None:
    return next((user for user in _users(server) if user["id"] == name), None)


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
    quota = server.catalog.quota_mib(server.bucket.name) << 20
    retention = server.bucket.store.declarations.history
    history = {
        "historyRetentionSeconds": retention.seconds,
        "historyRetentionBytes": retention.bytes,
        "historyRetentionCollectionDefault": server.bucket.store.declarations.collections_have_history,
    }
    bucket = {"replicaNumber": replicas, "quota": {"ram": quota, "rawRAM": quota}, "nodes": _nodes(config)}
    return {**config, **_SETTINGS, **history, **bucket}


def _nodes(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the nodes of a map, as Couchbase describes them; `nodesExt` also has the nodes without vbuckets."""
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
