"""Buckets, compared with all that a copy keeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from headwater.client.routing import Address
from headwater.cluster.collections import CollectionPath, Lacking, change, make, removals
from headwater.cluster.members import Members
from headwater.testing.node import Node


def state(bucket: Node) -> dict[bytes, Any]:
    """Of each key the newest change, without its place in this bucket's history."""
    found: dict[bytes, Any] = {}
    with bucket.client() as client, client.changes(until="now", markers=False) as changes:
        for change in changes:
            if hasattr(change, "key"):
                value = getattr(change, "value", None)
                kind = type(change).__name__
                expiry = getattr(change, "expiry", 0)
                found[change.key] = (kind, value, change.cas, change.rev_seqno, expiry)
    return found


def state_by_collection(bucket: Node, *, of: str = "all") -> dict[tuple[str, bytes], Any]:
    """Of each key of each collection the newest change, by the collection's name and key; as `state` otherwise."""
    found: dict[tuple[str, bytes], Any] = {}
    with bucket.client() as client, client.changes(until="now", markers=False, collections=of) as changes:
        for change in changes:
            if hasattr(change, "key"):
                told = change.value if hasattr(change, "expiry") else None
                expiry = getattr(change, "expiry", 0)
                kind = type(change).__name__
                found[change.within.path, change.key] = (kind, told, change.cas, change.rev_seqno, expiry)
    return found


def create(bucket: Node, *names: str, drop: Sequence[str] = ()) -> None:
    """Drop collections of a bucket, then make some."""

    async def work() -> None:
        async with Members() as members:
            at = [Address(bucket.host, bucket.port)]
            if drop:
                await change(members, at, removals([CollectionPath.parse(name) for name in drop]))
            await make(members, at, [Lacking(CollectionPath.parse(name)) for name in names])

    asyncio.run(work())
