"""Documents of dropped collections that are still in the log: no reader gets them, and a compaction may remove them.

They count as dead, like superseded versions, once the drop is SETTLED_SECONDS old: until then a replica without the
drop may become the owner, which undoes the drop. The documents are counted after the collections of a vbucket have
changed and after each compaction, one vbucket in each turn of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from headwater.kernels import index
from headwater.node.reporting.log_lines import event

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.storage.retention import Drops

SETTLED_SECONDS = 60.0

log: Final = logging.getLogger(__name__)


class DroppedDocuments:
    """The dropped documents of one bucket.

    Attributes:
        bytes: the bytes of these documents in the log, as last counted.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bytes: int = 0
        self._bucket = bucket
        self._drops: dict[int, Drops] = {}
        self._known: int | None = None
        self._count_at: float | None = None
        self._counting: asyncio.Task[None] | None = None

    def look(self, now: float) -> None:
        """Begin to count the documents, in a task, if the last change of collections is old enough. Call this every few
        seconds; `now` is in seconds of the loop's clock.
        """
        uid_sum = sum(vbucket.collections.uid for vbucket in self._bucket.vbuckets.values())
        # The sum of the manifests' uids changes with each drop in any vbucket; the time counts from the last change.
        if uid_sum != self._known:
            self._known, self._count_at = uid_sum, now + SETTLED_SECONDS if uid_sum else None
        elif self._count_at is not None and now >= self._count_at and not self._is_counting:
            self._count_at = None
            self._counting = asyncio.get_running_loop().create_task(self._count(now))

    def compacted(self) -> None:
        """Reset the counts after a compaction, which removed documents; the remaining ones are counted again."""
        self.bytes, self._known = 0, None
        self._drops.clear()

    def stop(self) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.cancel()

    async def _count(self, now: float) -> None:
        try:
            await self.count()
        except Exception:  # a fault of ours: told in full, and no reason to keep the documents for good
            log.exception("the documents of dropped collections could not be counted", extra=event("node.failed"))
            self._count_at = now + SETTLED_SECONDS

    async def count(self) -> None:
        """Count the dropped documents of all vbuckets that have a drop in their log."""
        store, total = self._bucket.store, 0
        drops: dict[int, Drops] = {}
        for vb, vbucket in tuple(self._bucket.vbuckets.items()):
            dropped = vbucket.collections.dropped()
            if len(dropped):
                sizes = [size for _, _, size, _ in store.collections(vb, dropped[:, 0].tolist())]
                # Only drops with documents, each with its own seqno: a drop without documents must not end the history.
                counted = [each for each in zip(dropped[:, 1].tolist(), sizes, strict=True) if each[1]]
                if counted:
                    total, drops[vb] = total + sum(sizes), tuple(sorted(counted, reverse=True))
                await asyncio.sleep(0)
        # Both are set at the end, so that a compaction never sees incomplete counts.
        self.bytes, self._drops = total, drops

    def rows_since(self, vbucket: int) -> int | None:
        """Return the number of changes after the newest counted drop; None if no dropped document is left."""
        if not (drops := self.of(vbucket)):
            return None
        seqno, of = drops[0][0], self._bucket.store.index
        return max(0, of.table.item(vbucket, index.DURABLE_ROWS) - of.rows_up_to(vbucket, seqno))

    def of(self, vbucket: int) -> Drops:
        """Return the counted drops, newest first: the seqno of each and the bytes of its documents."""
        return self._drops.get(vbucket, ())

    @property
    def _is_counting(self) -> bool:
        return self._counting is not None and not self._counting.done()
