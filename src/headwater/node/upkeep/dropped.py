"""Documents of dropped collections that are still in the log: no reader is shown them, and compaction may remove them.

They count as dead, like superseded versions, once a drop is SETTLED_SECONDS old: until then a replica may lack the
drop, become the owner, and so undo it. They are counted after the collections of a vbucket have changed and after each
compaction, one vbucket in each turn of the event loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.kernels import index

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

SETTLED_SECONDS = 60.0


class DroppedDocuments:
    """The dropped documents of one bucket.

    Attributes:
        bytes: the bytes that they take in the log.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bytes: int = 0
        self._bucket = bucket
        self._drops: dict[int, tuple[int, int]] = {}
        self._known: int | None = None
        self._count_at: float | None = None
        self._counting: asyncio.Task[None] | None = None

    def look(self, now: float) -> None:
        """Count the documents in a task if a drop has settled; to be called every few seconds."""
        known = sum(vbucket.collections.uid for vbucket in self._bucket.vbuckets.values())
        # The sum of the manifests' uids changes with each drop in any vbucket; the clock begins anew with the last of
        # them.
        if known != self._known:
            self._known, self._count_at = known, now + SETTLED_SECONDS if known else None
        elif self._count_at is not None and now >= self._count_at and not self._is_counting:
            self._count_at = None
            self._counting = asyncio.get_running_loop().create_task(self.count())

    def compacted(self) -> None:
        """Reset the counts after a compaction, which removed documents; the remaining ones are counted again."""
        self.bytes, self._known = 0, None
        self._drops.clear()

    def stop(self) -> None:
        """Stop counting."""
        if self._counting is not None:
            self._counting.cancel()

    async def count(self) -> None:
        """Count the dropped documents of all vbuckets that know of a drop."""
        store, total, drops = self._bucket.store, 0, dict[int, tuple[int, int]]()
        for vb, vbucket in tuple(self._bucket.vbuckets.items()):
            dropped = vbucket.collections.dropped()
            if len(dropped):
                size_of_all = sum(size for _, _, size, _ in store.collections(vb, dropped[:, 0].tolist()))
                if size_of_all:
                    total, drops[vb] = total + size_of_all, (int(dropped[:, 1].max()), size_of_all)
                await asyncio.sleep(0)
        # Both at the end: a compaction that looks meanwhile sees the counts of before as a whole.
        self.bytes, self._drops = total, drops

    def rows_since(self, vbucket: int) -> int | None:
        """Return the number of changes after the newest counted drop; None if no dropped document is left."""
        if (newest := self._drops.get(vbucket)) is None:
            return None
        seqno, of = newest[0], self._bucket.store.index
        return max(0, of.table.item(vbucket, index.DURABLE_ROWS) - of.rows_up_to(vbucket, seqno))

    def newest(self, vbucket: int) -> tuple[int, int]:
        """Return the seqno of the newest counted drop and the bytes of all dropped documents; 0 and 0 without any."""
        return self._drops.get(vbucket, (0, 0))

    @property
    def _is_counting(self) -> bool:
        return self._counting is not None and not self._counting.done()
