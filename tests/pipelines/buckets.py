"""Buckets, compared with all that a copy keeps."""

from __future__ import annotations

from typing import Any

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
