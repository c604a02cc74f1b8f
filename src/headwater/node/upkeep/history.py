"""The superseded versions that a bucket's retention keeps: the present limits for a compaction, and the bytes that it
would keep.

The beginning of the history moves with time and with each write, and finding it takes reading the rows of all
histories. So the bytes are measured in a thread, only when a compaction may be worthwhile, and for at most a hundredth
of the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.node.storage.retention import FOREVER, Drops, HistoryLimits, Retention

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

__all__ = ["KeptHistory"]

PAUSE_SECONDS: Final = 60.0
PAUSE_TIMES: Final = 100
"""Between two measurements pass at least PAUSE_SECONDS, and PAUSE_TIMES the duration of the last one."""
NANOSECONDS: Final = 1_000_000_000


class KeptHistory:
    """The history of one bucket.

    Args:
        bucket: the bucket.
        drops: the argument `drops` of `Store.compact`.
        least: the argument `history_rows` of `Store.compact`.
    """

    def __init__(self, bucket: Bucket, drops: Callable[[int], Drops], least: Callable[[int], int]) -> None:
        self._bucket = bucket
        self._drops = drops
        self._least = least
        self._bytes = 0
        self._measured = Retention()
        self._due_at = 0.0

    @property
    def retention(self) -> Retention:
        """The bucket's setting."""
        return self._bucket.store.declarations.history

    @property
    def bytes(self) -> int:
        """The bytes of superseded versions that retention keeps, as last measured or noted."""
        return self._bytes if self._keeps else 0

    @property
    def _keeps(self) -> bool:
        """True if retention keeps versions: the setting demands it, and at least one collection has a history."""
        return bool(self.retention) and self._bucket.collections.has_history

    def note(self, size: int) -> None:
        """Note the bytes of superseded versions that a compaction has kept."""
        self._bytes = size

    def limits(self) -> HistoryLimits | None:
        """Return the present limits of retention; None if it keeps no versions.

        The setting's limit in bytes is for all vbuckets of the bucket; the vbuckets on this node have their share of
        it.
        """
        retention, bucket = self.retention, self._bucket
        if not self._keeps:
            return None
        since = bucket.clock.time_ns() - retention.seconds * NANOSECONDS
        here = retention.bytes * len(bucket.vbuckets) // bucket.vbucket_count
        # At least 1, because 0 would mean no limit by age.
        return HistoryLimits(max(1, since) if retention.seconds else 0, here if retention.bytes else FOREVER)

    def is_due(self, now: float) -> bool:
        """Return True if the bytes may be measured again: enough time has passed, or the setting has changed."""
        return now >= self._due_at or self.retention != self._measured

    async def measure(self) -> None:
        """Measure the bytes that retention keeps, in a thread; do nothing if it keeps no versions."""
        limits, loop = self.limits(), asyncio.get_running_loop()
        if limits is None:
            return
        self._measured, begun = self.retention, loop.time()
        with self._bucket.store.history(limits, self._least, self._drops) as measured:
            self._bytes = await asyncio.to_thread(measured)
        ended = loop.time()
        self._due_at = ended + max(PAUSE_SECONDS, PAUSE_TIMES * (ended - begun))
