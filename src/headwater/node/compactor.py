"""When to compact, and the order of its steps: those that take long in a thread, those that change the index on the
loop.

Compaction begins by itself when more than a given part of the log is dead and that is worth the work, and on
COMPACT_DB. No tombstone goes that a stream has yet to send: its reader's position is the limit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.node.storage.compaction import HISTORY_ROWS

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.storage.compaction import Compaction

LOOK_SECONDS = 5.0
DEAD_BYTES_MIN = 64 << 20
SEQNO_MAX = (1 << 64) - 1
SECONDS_MAX = (1 << 62) - 1

log = logging.getLogger("headwater.node")


def is_worthwhile(log_bytes: int, live_bytes: int, dead_bytes_before: int, dead_percent: int = 50) -> bool:
    """Whether more than `dead_percent` is dead, more than DEAD_BYTES_MIN of it, and so much more than the last run had
    to leave."""
    dead = log_bytes - live_bytes
    enough = dead > DEAD_BYTES_MIN and 100 * dead > dead_percent * log_bytes
    return enough and dead > dead_bytes_before + DEAD_BYTES_MIN


class Compactor:
    """Compacts one bucket's store, one run at a time."""

    def __init__(
        self, bucket: Bucket, loop: asyncio.AbstractEventLoop, *, purge_age_seconds: int, dead_percent: int = 50
    ) -> None:
        self.runs = 0
        self._bucket = bucket
        self._loop = loop
        self._purge_age = purge_age_seconds
        self._dead_percent = dead_percent
        self._one = asyncio.Lock()
        self._dead_left = 0
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    async def stop(self) -> None:
        """Look no more; wait for a run that is under way."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:  # it may not have come to the lock yet
            await self._task
        async with self._one:
            await self._forgotten()

    async def purge(self, vb: int, *, before_seconds: int, before_seqno: int, everything: bool) -> None:
        """Drop tombstones of one vbucket now: those before a time and up to a seqno (0: no bound), or of any age.

        The purge seqno rises to the highest one gone. Raises StorageError when the disk has no room.
        """
        before = SECONDS_MAX if everything or not before_seconds else min(before_seconds, SECONDS_MAX)
        highest = before_seqno or SEQNO_MAX
        await self.run(
            before,
            purge_limit=lambda each: min(highest, self._needed(each)) if each == vb else 0,
            history_rows=lambda each: 0 if each == vb else HISTORY_ROWS,
        )

    async def run(
        self,
        purge_before: int,
        purge_limit: Callable[[int], int],
        history_rows: Callable[[int], int] = lambda vb: HISTORY_ROWS,
    ) -> None:
        """One whole run over everything written so far; the arguments are those of Store.compact."""
        async with self._one:
            await self._forgotten()  # no more than two generations of files take room
            store, committer = self._bucket.store, self._bucket.committer
            # All that was written before this run is part of it. Until nothing is staged, under steady writes, would be
            # for ever.
            await committer.wait(committer.gate())
            await committer.run_alone(store.seal)
            job = store.compact(purge_before=purge_before, purge_limit=purge_limit, history_rows=history_rows)
            if job is None:
                return
            try:
                await asyncio.to_thread(job.survey)
                while job.spare_tombstones():
                    await asyncio.to_thread(job.survey)
                job.announce()
                if not await committer.wait(committer.wrote()):
                    raise StorageError("the records of a compaction could not be written")
                await asyncio.to_thread(job.copy)
            except BaseException:
                job.cancel()
                raise
            await self._exchange(job)

    async def _exchange(self, job: Compaction) -> None:
        for _ in job.swap():
            await asyncio.sleep(0)  # others have their turn between two vbuckets
        await asyncio.to_thread(job.remove)
        self._forgetting = self._loop.create_task(asyncio.to_thread(job.forget))
        store = self._bucket.store
        self._dead_left = store.log_bytes - store.live_bytes
        self.runs += 1

    async def _forgotten(self) -> None:
        """Wait until the files of the run before are really gone."""
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])  # who gives up waiting does not end it; its failure is not ours

    def _needed(self, vb: int) -> int:
        """The highest seqno whose tombstone no stream of the vbucket has yet to send."""
        found = self._bucket.vbuckets.get(vb)
        return min((reader.position for reader in found.readers), default=SEQNO_MAX) if found else SEQNO_MAX

    def _look(self) -> None:
        store = self._bucket.store
        worth = is_worthwhile(store.log_bytes, store.live_bytes, self._dead_left, self._dead_percent)
        if self._task is None and worth:
            self._task = self._loop.create_task(self._automatic())
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    async def _automatic(self) -> None:
        try:
            await self.run(max(0, self._bucket.now() - self._purge_age), self._needed)
        except StorageError as error:
            log.error("compaction gave up, the log stays as it is: %s", error)
        finally:
            self._task = None
