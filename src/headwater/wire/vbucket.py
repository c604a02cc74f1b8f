"""vbuckets: their states, and which of them a key belongs to.

A bucket is cut into a fixed number of vbuckets, each a history of its own. The numbers of the states are those of
every real implementation; the UPR text swaps replica and pending (erratum U9), which nobody followed.
"""

from __future__ import annotations

from enum import IntEnum
from zlib import crc32

__all__ = ["State", "vbucket_of"]


class State(IntEnum):
    """What a node does with a vbucket it holds. Source: specification, wire.md 6."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


def vbucket_of(key: bytes, count: int) -> int:
    """Return the vbucket of a key, 0 to count - 1.

    Args:
        key: the logical key, that is without the collection id in front of it.
        count: how many vbuckets the bucket has, 1 to 32768 (1024, 128 or 64 in practice).

    Source: specification, kv.md 1.4 (nodeLocator "vbucket", hash "CRC").
    """
    return ((crc32(key) >> 16) & 0x7FFF) % count
