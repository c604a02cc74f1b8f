"""HELLO features that a client may request. Source: specification, wire.md 7 and kv.md 1.1.

Every HELLO first switches all features off, then grants the requested ones; the answer lacks features that the server
does not know or grant. A HELLO that requests a feature without its prerequisites (`missing_prerequisites`) is answered
with EINVAL.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

__all__ = ["OWN_FEATURES", "PREREQUISITES", "Feature", "missing_prerequisites"]

OWN_FEATURES = 0xF001
"""Features from this number on are headwater's own; other servers leave them out of their answers."""


class Feature(IntEnum):
    """Every feature code; 0x01, 0x09 and 0x16 are retired and ignored, TLS and TCP_DELAY are never granted.

    Features from 0xF001 on exist in headwater only.
    """

    DATATYPE = 0x01
    TLS = 0x02
    TCP_NODELAY = 0x03
    MUTATION_SEQNO = 0x04
    TCP_DELAY = 0x05
    XATTR = 0x06
    XERROR = 0x07
    SELECT_BUCKET = 0x08
    RETIRED_09 = 0x09
    SNAPPY = 0x0A
    JSON = 0x0B
    DUPLEX = 0x0C
    CLUSTERMAP_CHANGE_NOTIFICATION = 0x0D
    UNORDERED_EXECUTION = 0x0E
    TRACING = 0x0F
    ALT_REQUEST_SUPPORT = 0x10
    SYNC_REPLICATION = 0x11
    COLLECTIONS = 0x12
    SNAPPY_EVERYWHERE = 0x13
    PRESERVE_TTL = 0x14
    VATTR = 0x15
    RETIRED_16 = 0x16
    SUBDOC_CREATE_AS_DELETED = 0x17
    SUBDOC_DOCUMENT_MACRO_SUPPORT = 0x18
    SUBDOC_REPLACE_BODY_WITH_XATTR = 0x19
    REPORT_UNIT_USAGE = 0x1A
    NON_BLOCKING_THROTTLING_MODE = 0x1B
    SUBDOC_REPLICA_READ = 0x1C
    GET_CLUSTER_CONFIG_WITH_KNOWN_VERSION = 0x1D
    DEDUPE_NOT_MY_VBUCKET_CLUSTERMAP = 0x1E
    CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF = 0x1F
    SUBDOC_ALLOWS_ACCESS_ON_MULTIPLE_XATTR_KEYS = 0x20
    SUBDOC_BINARY_XATTR = 0x21
    RANGE_SCAN_INCLUDE_XATTR = 0x22
    SUBDOC_ALLOW_REPLICA_READ_ON_DELETED_DOCS = 0x23
    GET_RANDOM_KEY_INCLUDE_XATTR = 0x24
    MUTATE_WITH_META = 0x25
    DCP_SKIP_DELETES_IN_INITIAL_BACKFILL = 0x26
    COMPLETE_SEQNOS = 0xF001
    """Our own: the persisted seqno of OBSERVE_SEQNO is one at which the copy is complete."""


PREREQUISITES: dict[int, frozenset[Feature]] = {
    Feature.CLUSTERMAP_CHANGE_NOTIFICATION: frozenset({Feature.DUPLEX}),
    Feature.CLUSTERMAP_CHANGE_NOTIFICATION_BRIEF: frozenset({Feature.DUPLEX}),
    Feature.VATTR: frozenset({Feature.XATTR}),
    Feature.SUBDOC_DOCUMENT_MACRO_SUPPORT: frozenset({Feature.XATTR}),
    Feature.RANGE_SCAN_INCLUDE_XATTR: frozenset({Feature.XATTR}),
    Feature.GET_RANDOM_KEY_INCLUDE_XATTR: frozenset({Feature.XATTR, Feature.JSON, Feature.SNAPPY_EVERYWHERE}),
}


def missing_prerequisites(requested: Iterable[int]) -> dict[int, frozenset[Feature]]:
    """Return the features that can't be granted, each with the features that the request lacks for it."""
    codes = set(requested)
    return {code: PREREQUISITES[code] - codes for code in codes if PREREQUISITES.get(code, frozenset()) - codes}
