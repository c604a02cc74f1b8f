"""When to compact: more than half of the log is dead, and that is worth the work.

The copying runs in a thread (nogil), everything that changes the index on the event loop; see Store.compact.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket

LOOK_SECONDS = 5.0


class Compactor:
    """Looks every few seconds; `purge` runs at once."""

    def __init__(self, bucket: Bucket, loop: asyncio.AbstractEventLoop, *, purge_age_seconds: int) -> None:
        self._bucket = bucket
        self._loop = loop
        self._purge_age = purge_age_seconds

    def start(self) -> None:
        """Begin to look."""

    async def stop(self) -> None:
        """Look no more."""

    async def purge(self, vb: int, *, before_seconds: int, before_seqno: int, everything: bool) -> None:
        """Drop tombstones of a vbucket now."""
