"""The client for applications: `connect` to a bucket, then documents by key, or changes by the stream.

    with client.connect("couchbase://127.0.0.1/default") as bucket:
        bucket.set("greeting", "hello")
        for event in bucket.changes(until="now"):
            ...

`headwater.client.aio` is the same for asyncio. A file each for: routing, one connection (link, pipeline), the nodes
(cluster), documents (kv, bulk), and drains (plan, progress, worker, drainer, changes, feeds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.client.blocking import Client, CollectionClient, Documents, connect
from headwater.client.collections import CollectionName
from headwater.client.durability import Durability
from headwater.client.kv import Document, DocumentMeta, Observed
from headwater.client.options import DrainOptions
from headwater.client.writes import Write, WriteWithMeta
from headwater.errors import (
    AuthError,
    AuthStale,
    BucketMadeAnew,
    BucketNotFound,
    Busy,
    CasInvalid,
    CertificateRefused,
    CollectionMadeAnew,
    ConnectionLost,
    DataLoss,
    DurabilityImpossible,
    DurabilityInvalidLevel,
    HeadwaterError,
    InternalError,
    InvalidArguments,
    KeyExists,
    KeyNotFound,
    LocalProtocolError,
    Locked,
    NoAccess,
    NoBucket,
    NotANumber,
    NothingCame,
    NotInitialized,
    NotLocked,
    NotMyVbucket,
    NotPersisted,
    NotStored,
    NotSupported,
    OpaqueNoMatch,
    OptionError,
    OutOfMemory,
    OutOfRange,
    PeerSilent,
    ProtocolError,
    RemoteProtocolError,
    RollbackRequired,
    StatusError,
    StreamIdInvalid,
    StreamNotFound,
    SyncWriteAmbiguous,
    SyncWriteInProgress,
    SyncWriteReCommitInProgress,
    TemporaryFailure,
    TlsError,
    TooBig,
    TransportError,
    UnknownCollection,
    UnknownCommand,
    UnknownScope,
    XattrInvalid,
)
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position, load_positions, safe_point, save_positions
from headwater.tls.settings import TlsSettings
from headwater.wire.durability import DurabilityLevel
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.client.befores import Before, Lack
    from headwater.client.changes import (
        Change,
        ChangeBatch,
        CollectionCreated,
        CollectionDropped,
        CollectionEvent,
        CollectionModified,
        Deletion,
        DeletionsPurged,
        Event,
        Expiration,
        Mutation,
        ScopeCreated,
        ScopeDropped,
        SnapshotMarker,
        StreamEnd,
        UnknownSystemEvent,
    )
    from headwater.client.feeds import Batches, Changes

_CHANGES = (
    *("Change", "ChangeBatch", "Deletion", "Event", "Expiration", "Mutation", "SnapshotMarker", "StreamEnd"),
    *(
        "CollectionCreated",
        "CollectionDropped",
        "CollectionEvent",
        "CollectionModified",
        "ScopeCreated",
        "ScopeDropped",
    ),
    "DeletionsPurged",
    "UnknownSystemEvent",
)
_BEFORES = ("Before", "Lack")
_FEEDS = ("Batches", "Changes")

__all__ = [
    "AuthError",
    "AuthStale",
    "Batches",
    "Before",
    "BucketMadeAnew",
    "BucketNotFound",
    "Busy",
    "CasInvalid",
    "CertificateRefused",
    "Change",
    "ChangeBatch",
    "Changes",
    "Client",
    "CollectionClient",
    "CollectionCreated",
    "CollectionDropped",
    "CollectionEvent",
    "CollectionMadeAnew",
    "CollectionModified",
    "CollectionName",
    "ConnectionLost",
    "Coverage",
    "DataLoss",
    "Deletion",
    "DeletionsPurged",
    "Document",
    "DocumentMeta",
    "Documents",
    "DrainOptions",
    "Durability",
    "DurabilityImpossible",
    "DurabilityInvalidLevel",
    "DurabilityLevel",
    "Event",
    "Expiration",
    "HeadwaterError",
    "InternalError",
    "InvalidArguments",
    "KeyExists",
    "KeyNotFound",
    "Lack",
    "LocalProtocolError",
    "Locked",
    "Mutation",
    "NoAccess",
    "NoBucket",
    "NotANumber",
    "NotInitialized",
    "NotLocked",
    "NotMyVbucket",
    "NotPersisted",
    "NotStored",
    "NotSupported",
    "NothingCame",
    "Observed",
    "OpaqueNoMatch",
    "OptionError",
    "OutOfMemory",
    "OutOfRange",
    "PeerSilent",
    "Position",
    "ProtocolError",
    "RemoteProtocolError",
    "RollbackRequired",
    "ScopeCreated",
    "ScopeDropped",
    "SnapshotMarker",
    "State",
    "StatusError",
    "StreamEnd",
    "StreamIdInvalid",
    "StreamNotFound",
    "SyncWriteAmbiguous",
    "SyncWriteInProgress",
    "SyncWriteReCommitInProgress",
    "TemporaryFailure",
    "TlsError",
    "TlsSettings",
    "TooBig",
    "TransportError",
    "UnknownCollection",
    "UnknownCommand",
    "UnknownScope",
    "UnknownSystemEvent",
    "Write",
    "WriteWithMeta",
    "XattrInvalid",
    "connect",
    "load_positions",
    "safe_point",
    "save_positions",
]


def __getattr__(name: str) -> Any:
    """Import a public name that needs Arrow and the kernels at its first use."""
    if name in _CHANGES:
        from headwater.client import changes  # noqa: PLC0415

        return getattr(changes, name)
    if name in _BEFORES:
        from headwater.client import befores  # noqa: PLC0415

        return getattr(befores, name)
    if name in _FEEDS:
        from headwater.client import feeds  # noqa: PLC0415

        return getattr(feeds, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
