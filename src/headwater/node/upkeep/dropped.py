"""The documents of dropped collections that still lie in the log: nobody is shown them, compaction may leave them out.

They count as dead, like versions that were overwritten, once a drop is SETTLED_SECONDS old: until then replicas may
lack it, and one of them may become the owner, which takes it back. They are looked for when the collections of a
vbucket have changed and after each compaction, a vbucket in a turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headwater.kernels import index

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket

SETTLED_SECONDS = 60.0


class DroppedDocuments:
    """Of one bucket.

    Attributes:
        bytes: what they take in the log.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.bytes: int = 0
        self._bucket = bucket
        self._drops: dict[int, int] = {}
        self._known: int | None = None
        self._count_at: float | None = None
        self._counting: asyncio.Task[None] | None = None

    def look(self, now: float) -> None:
        """To be called every few seconds: counts them in a task of its own when there is news, and that has settled."""
        known = sum(vbucket.collections.uid for vbucket in self._bucket.vbuckets.values())
        if known != self._known:
            self._known, self._count_at = known, now + SETTLED_SECONDS if known else None
        elif self._count_at is not None and now >= self._count_at and not self._is_counting:
            self._count_at = None
            self._counting = asyncio.get_running_loop().create_task(self.count())

    def compacted(self) -> None:
        """Forget what was found: a run has left it out, and what there still is is looked for again."""
        self.bytes, self._known = 0, None
        self._drops.clear()

    def stop(self) -> None:
        """Count no more."""
        if self._counting is not None:
            self._counting.cancel()

    async def count(self) -> None:
        """Look at every change of the vbuckets that know of a drop."""
        store, total, drops = self._bucket.store, 0, dict[int, int]()
        for vb, vbucket in tuple(self._bucket.vbuckets.items()):
            dropped = vbucket.collections.dropped()
            if len(dropped):
                size_of_all = sum(size for _, _, size, _ in store.collections(vb, dropped[:, 0].tolist()))
                if size_of_all:
                    total, drops[vb] = total + size_of_all, int(dropped[:, 1].max())
                await asyncio.sleep(0)
        self.bytes, self._drops = total, drops

    def rows_since(self, vbucket: int) -> int | None:
        """The number of changes that came after the newest drop that was counted; None where nothing of one is left."""
        if (seqno := self._drops.get(vbucket)) is None:
            return None
        of = self._bucket.store.index
        return max(0, of.table.item(vbucket, index.DURABLE_ROWS) - of.rows_up_to(vbucket, seqno))

    @property
    def _is_counting(self) -> bool:
        return self._counting is not None and not self._counting.done()
