"""HELLO, SELECT_BUCKET, GET_ERROR_MAP: the first requests of a connection (kv.md 1)."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from headwater.node.kv.answering import is_held_back, settle
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.wire import bootstrap
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature, missing_prerequisites
from headwater.wire.layout import Done
from headwater.wire.status import Status, name_of

if TYPE_CHECKING:
    from headwater.node.kv.api import Services, Session

GRANTED = frozenset(
    {
        Feature.TCP_NODELAY,
        Feature.MUTATION_SEQNO,
        Feature.XATTR,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.SNAPPY,
        Feature.JSON,
        Feature.DUPLEX,
        Feature.CLUSTERMAP_CHANGE_NOTIFICATION,
        Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF,
        Feature.ALT_REQUEST_SUPPORT,
        Feature.PRESERVE_TTL,
        Feature.GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION,
        Feature.VATTR,
        Feature.SUBDOC_CREATE_AS_DELETED,
        Feature.SUBDOC_DOCUMENT_MACRO_SUPPORT,
        Feature.SUBDOC_REPLACE_BODY_WITH_XATTR,
        Feature.SUBDOC_ALLOWS_ACCESS_ON_MULTIPLE_XATTR_KEYS,
        Feature.COLLECTIONS,
        Feature.SYNC_REPLICATION,
        Feature.COMPLETE_SEQNOS,
    }
)
"""The features that this node supports; the answer to HELLO omits all others."""

AGENT_BYTES_MAX = 250
FEATURES_BYTES_MAX = 1024  # 512 features; there are some forty
NO_BUCKET_NAMES = (b"", b"@no bucket@")

_ERROR_MAP_VERSION = 2
_ATTRIBUTES: tuple[tuple[tuple[int, ...], tuple[str, ...]], ...] = (
    ((0x00,), ("success",)),
    ((0x01, 0x02, 0x0E, 0x0F), ("item-only",)),
    ((0x05,), ("item-only", "internal")),
    ((0x03, 0x06), ("item-only", "invalid-input")),
    ((0x04,), ("internal", "invalid-input")),
    ((0x07,), ("fetch-config", "invalid-input")),
    ((0x08, 0x0A, 0x0B, 0x25), ("conn-state-invalidated",)),
    ((0x09,), ("item-locked", "item-only", "retry-now")),
    ((0x0C,), ("temp", "retry-later", "rate-limit")),
    ((0x0D,), ("fetch-config", "retry-now")),
    ((0x1F, 0x20), ("conn-state-invalidated", "auth")),
    ((0x21,), ("special-handling",)),
    ((0x22,), ("invalid-input",)),
    ((0x23,), ("dcp", "special-handling")),
    ((0x24, 0x50, 0x80, 0x81, 0x83), ("support",)),
    ((0x82,), ("temp", "retry-later")),
    ((0x84,), ("internal", "conn-state-invalidated")),
    ((0x85, 0x86), ("temp", "retry-now")),
    ((0x87, 0x88, 0x8A, 0x8C, 0x8D, 0xA0, 0xA8), ("invalid-input",)),
    ((0xA1,), ("item-only", "invalid-input")),
    ((0xA2, 0xA4), ("item-only", "retry-later")),
    ((0xA3,), ("item-only",)),
    ((0x35, 0x36, 0x37, 0x38), ("item-only", "system-constraint", "no-retry")),
    ((0x51,), ("item-only", "retry-now")),
)
"""The attributes of each status, which tell a client how to handle it (kv.md 1.5)."""

_ONLY_IN_VERSION_2 = frozenset({"rate-limit", "system-constraint"})


@handles(bootstrap.Hello, value_bytes_max=FEATURES_BYTES_MAX)
def hello(session: Session, request: bootstrap.Hello) -> bootstrap.HelloResponse:
    """Answer HELLO: revoke all features, then grant the supported ones of those in the request (kv.md 1.1)."""
    if missing := missing_prerequisites(request.features):
        code, needed = next(iter(sorted(missing.items())))
        names = ", ".join(sorted(feature.name for feature in needed))
        raise CommandRefused(Status.EINVAL, f"feature {Feature(code).name} needs {names}")
    session.agent = request.key[:AGENT_BYTES_MAX].decode("utf-8", "replace")
    granted = [code for code in dict.fromkeys(request.features) if code in GRANTED]
    session.features = frozenset(granted)
    session.refresh_access()
    return bootstrap.HelloResponse(features=granted)


@handles(bootstrap.SelectBucket)
def select_bucket(session: Session, request: bootstrap.SelectBucket) -> Done | Awaitable[Done]:
    """Answer SELECT_BUCKET; an empty name selects no bucket. From then on the client counts as having no cluster map
    (kv.md 1.3).
    """
    if request.key in NO_BUCKET_NAMES:
        session.deselect()
        return Done()
    server, name = session.server, request.key.decode("utf-8", "replace")
    if not server.users.may_enter(session.user, name):  # "also used for unknown names to unprivileged users"
        raise CommandRefused(Status.EACCESS, "the user has no role in this bucket")
    bucket = server.buckets.get(name)
    if bucket is None:
        raise CommandRefused(Status.KEY_ENOENT, "there is no such bucket")
    # Answers may still wait for a batch of the former bucket, and the next bucket numbers its batches by itself.
    if bucket is not server and is_held_back(session):
        return _select_later(session, bucket)
    session.select(bucket)
    return Done()


async def _select_later(session: Session, bucket: Services) -> Done:
    await settle(session)
    if session.server.buckets.get(bucket.bucket.name) is not bucket:  # dropped meanwhile
        raise CommandRefused(Status.KEY_ENOENT, "there is no such bucket")
    session.select(bucket)
    return Done()


@handles(bootstrap.GetErrorMap)
def get_error_map(session: Session, request: bootstrap.GetErrorMap) -> bootstrap.GetErrorMapResponse:
    """Return the table of statuses and their meanings, in the highest version that both ends support (kv.md 1.5)."""
    if request.vbucket:
        raise CommandRefused(Status.EINVAL, "an error map is asked for with vbucket 0")
    version = min(request.version, _ERROR_MAP_VERSION)
    if version == 0:
        raise CommandRefused(Status.KEY_ENOENT)
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    return bootstrap.GetErrorMapResponse(value=json.dumps(error_map(version)).encode(), datatype=datatype)


def error_map(version: int) -> dict[str, object]:
    """Return the error map of a version (1 or 2) as a JSON object; codes are lower-case hex without leading zeros."""
    errors = {}
    for codes, attributes in _ATTRIBUTES:
        attributes_known = [attribute for attribute in attributes if version > 1 or attribute not in _ONLY_IN_VERSION_2]
        for code in codes:
            name = name_of(code)
            errors[f"{code:x}"] = {"name": name, "desc": name.replace("_", " ").lower(), "attrs": attributes_known}
    return {"version": version, "revision": 1, "errors": errors}
