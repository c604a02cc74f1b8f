"""vbuckets: their states, and the vbucket of a key.

A bucket is split into a fixed number of vbuckets, each with its own history. The states have the numbers of all real
implementations; the UPR text swaps replica and pending (erratum U9), but no implementation does.
"""

from __future__ import annotations

import re
from enum import IntEnum
from zlib import crc32

from headwater.errors import OptionError

__all__ = ["VBUCKETS_MAX", "VBUCKETS_NEW", "VBUCKET_MAX", "VBUCKET_NUMBERS", "State", "vbucket_of", "vbucket_set"]

VBUCKETS_MAX = 1024
"""The most vbuckets that a bucket has anywhere (interop.md 4, rule 10)."""
VBUCKETS_NEW = 128
"""The vbuckets of a new bucket unless told otherwise, as in Couchbase 8.0."""
VBUCKET_NUMBERS = 1 << 16
"""The vbuckets that the header can name; buckets have far fewer."""
VBUCKET_MAX = VBUCKET_NUMBERS - 1

_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?")


class State(IntEnum):
    """A vbucket's state on a node. Source: specification, wire.md 6."""

    ACTIVE = 1
    REPLICA = 2
    PENDING = 3
    DEAD = 4


def vbucket_of(key: bytes, count: int) -> int:
    """Return the vbucket of a key, 0 to count - 1.

    Args:
        key: the logical key, without the collection id.
        count: number of vbuckets of the bucket, 1 to 32768 (1024, 128 or 64 in practice).

    Source: specification, kv.md 1.4 (nodeLocator "vbucket", hash "CRC").
    """
    return ((crc32(key) >> 16) & 0x7FFF) % count


def vbucket_set(text: str, count: int = VBUCKETS_MAX) -> tuple[int, ...]:
    """Return the vbuckets in a list such as "0-511,700", ascending, each once.

    Args:
        text: numbers and ranges with both ends included, separated by commas; blanks around a part do not matter.
        count: number of vbuckets.

    Raises:
        OptionError: a part that is neither a vbucket nor a range of them, or one outside 0 to count - 1.
    """
    numbers: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last >= count:
            raise OptionError("vbuckets", text, f"a vbucket list: {last} is out of range, there are 0 to {count - 1}")
        if first > last:
            raise OptionError(
                "vbuckets", text, f"a vbucket list such as 0-511,700, of 0 to {count - 1}: {part!r} is none"
            )
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))
