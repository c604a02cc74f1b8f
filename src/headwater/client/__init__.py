"""What applications call: `connect` to a bucket, then documents by key, or changes by the stream.

    with client.connect("couchbase://127.0.0.1/default") as bucket:
        bucket.set("greeting", "hello")
        for event in bucket.changes(until="now"):
            ...

`headwater.client.aio` is the same for asyncio. A file each for: routing, one connection (link, pipeline), the nodes
(cluster), documents (kv, bulk), and drains (plan, goals, worker, drainer, changes, feeds).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.client.blocking import Client, connect
from headwater.client.kv import Document
from headwater.client.options import DrainOptions
from headwater.protocol.position import Position

if TYPE_CHECKING:
    from headwater.client.changes import (
        Change,
        ChangeBatch,
        Deletion,
        Event,
        Expiration,
        Mutation,
        SnapshotMarker,
        StreamEnd,
    )
    from headwater.client.feeds import Batches, Changes

_CHANGES = ("Change", "ChangeBatch", "Deletion", "Event", "Expiration", "Mutation", "SnapshotMarker", "StreamEnd")
_FEEDS = ("Batches", "Changes")

__all__ = ["Batches", "Change", "ChangeBatch", "Changes", "Client", "Deletion", "Document", "DrainOptions", "Event"]
__all__ += ["Expiration", "Mutation", "Position", "SnapshotMarker", "StreamEnd", "connect"]


def __getattr__(name: str) -> Any:
    """Import what needs arrow and the kernels when it is first named, not before."""
    if name in _CHANGES:
        from headwater.client import changes  # noqa: PLC0415

        return getattr(changes, name)
    if name in _FEEDS:
        from headwater.client import feeds  # noqa: PLC0415

        return getattr(feeds, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
