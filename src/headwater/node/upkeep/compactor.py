"""The times of compactions, and the order of their steps: long steps run in a thread, steps that change the index on
the event loop.

A compaction begins by itself if more than a given part of the log is dead and the work is worthwhile; COMPACT_DB also
begins one. Documents of dropped collections are dead, too (dropped.py). A tombstone that a stream still has to send is
kept: the positions of readers are the limit. Versions that retention keeps (history.py) count as live. Their size is
measured before a compaction begins by itself; on a full disk no such versions are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headwater.errors import DiskFull, StorageError
from headwater.node.reporting.log_lines import event
from headwater.node.storage.compaction import GAIN_PARTS, HISTORY_ROWS, NONE_DROPPED, Dropped
from headwater.node.upkeep.dropped import DroppedDocuments
from headwater.node.upkeep.history import KeptHistory
from headwater.node.upkeep.holds import Holds
from headwater.protocol.dcp.position import WIRE_SEQNO_MAX

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.storage.compaction import Compaction

LOOK_SECONDS = 5.0
URGENT_SECONDS = 1.0  # while the disk is full
GAVE_UP_SECONDS = 30.0
READERS_SECONDS = 0.25
AGAIN_MAX = 2
SHORT_PARTS = 8
DEAD_BYTES_MIN = 64 << 20
SECONDS_MAX = (1 << 62) - 1

log: Final = logging.getLogger(__name__)


def is_worthwhile(log_bytes: int, live_bytes: int, dead_bytes_before: int, dead_percent: int = 50) -> bool:
    """Return True if more than `dead_percent` of the log is dead, and the dead bytes exceed those that the last run had
    to leave by more than DEAD_BYTES_MIN.
    """
    dead = log_bytes - live_bytes
    enough = dead > DEAD_BYTES_MIN and 100 * dead > dead_percent * log_bytes
    return enough and dead > dead_bytes_before + DEAD_BYTES_MIN


class Compactor:
    """Compacts one bucket's store, one run at a time.

    Args:
        bucket: the bucket.
        loop: the event loop.
        purge_age_seconds: the age at which runs that begin by themselves purge tombstones.
        dead_percent: the part of the log, in percent, that must be dead before a run begins by itself.
        hold_seconds: the time for which readers may keep replaced files.

    Attributes:
        runs: the number of compactions.
        seconds: the total time of the runs.
        freed_bytes: the bytes by which the runs made the log smaller.
        holds: the readers that keep replaced files.
        dropped: the documents of dropped collections.
        history: the superseded versions that retention keeps.
    """

    def __init__(
        self,
        bucket: Bucket,
        loop: asyncio.AbstractEventLoop,
        *,
        purge_age_seconds: int,
        dead_percent: int = 50,
        hold_seconds: float = 300.0,
    ) -> None:
        self.runs: int = 0
        self.freed_bytes: int = 0
        self.seconds: float = 0.0
        self._bucket = bucket
        self._loop = loop
        self._purge_age = purge_age_seconds
        self._dead_percent = dead_percent
        self._run_lock = asyncio.Lock()
        self.holds: Final = Holds(bucket, hold_seconds)
        self.dropped: Final = DroppedDocuments(bucket)
        self.history: Final = KeptHistory(bucket, self.dropped.of, self._history_rows)
        self._dead_left = 0
        self._again_at, self._again_dead = 0.0, 0
        self._gave_up_with_history = False
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._forgetting: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def is_running(self) -> bool:
        """True if a run is under way."""
        return self._run_lock.locked()

    def start(self) -> None:
        """Begin to check regularly whether a compaction is due."""
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    async def stop(self) -> None:
        """Stop checking, and wait until a present run has ended, after its present stretch."""
        self._stopping = True
        self.dropped.stop()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:  # the task may not have taken the lock yet
            await self._task
        async with self._run_lock:
            await self._wait_until_forgotten()

    async def purge(self, vbucket: int, *, before_seconds: int, before_seqno: int, everything: bool) -> None:
        """Purge tombstones of one vbucket now. The purge seqno rises to the seqno of the highest purged tombstone.

        Tombstones that retention keeps, or that a stream still has to send, are not purged.

        Args:
            vbucket: the vbucket's number.
            before_seconds: purge tombstones from before this Unix second; 0 for no such bound.
            before_seqno: purge tombstones up to this seqno; 0 for no such bound.
            everything: True to purge tombstones of any age.

        Raises:
            StorageError: the disk has no room.
        """
        before = SECONDS_MAX if everything or not before_seconds else min(before_seconds, SECONDS_MAX)
        highest = before_seqno or WIRE_SEQNO_MAX
        history_rows = 0 if self._bucket.store.staging.lacks_room else HISTORY_ROWS
        await self.run(
            before,
            purge_limit=lambda each: min(highest, self._needed(each)) if each == vbucket else 0,
            history_rows=lambda each: 0 if each == vbucket else history_rows,
        )

    async def run(
        self,
        purge_before: int,
        purge_limit: Callable[[int], int],
        history_rows: Callable[[int], int] = lambda vb: HISTORY_ROWS,
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Compact everything written so far in one run.

        If the disk has no room for all rows that are kept, one stretch of the log is compacted after another, beginning
        with the one that frees the most: this makes room for the next.

        Args:
            purge_before, purge_limit, history_rows: as for `Store.compact`.
            enough: called after each stretch; the run ends if it returns True.

        Raises:
            DiskFull: no worthwhile stretch fits on the disk.
        """
        async with self._run_lock:
            begun, before = self._loop.time(), self._bucket.store.log.bytes
            try:
                await self._all_stretches(purge_before, purge_limit, history_rows, enough)
            finally:
                seconds, freed = self._loop.time() - begun, max(0, before - self._bucket.store.log.bytes)
                self.seconds += seconds
                self.freed_bytes += freed
                fields = event("compaction.done", seconds=round(seconds, 3), freed_bytes=freed)
                log.info("a run of compaction took %.1f s and gave back %d MiB", seconds, freed >> 20, extra=fields)

    async def _all_stretches(
        self,
        purge_before: int,
        purge_limit: Callable[[int], int],
        history_rows: Callable[[int], int],
        enough: Callable[[], bool],
    ) -> None:
        await self._wait_until_forgotten()  # so that at most two generations of files take room
        store, committer = self._bucket.store, self._bucket.committer
        # Wait for what was staged before this run. Under steady writes, a wait until nothing is staged would never end.
        await committer.wait(committer.gate())
        with contextlib.suppress(DiskFull):  # the sealed segments can be compacted anyway
            await committer.run_alone(store.log.seal)
        new_segments: set[int] = set()
        again = AGAIN_MAX
        while True:
            job = store.compact(
                purge_before=purge_before,
                purge_limit=purge_limit,
                history_rows=history_rows,
                spare=new_segments,
                dropped=self._dropped,
                history=None if store.staging.lacks_room else self.history.limits(),
                drops=self.dropped.of,
            )
            try:
                if job is None or not await self._work(job):
                    return
            except DiskFull:
                again -= 1  # other programs may have used some room since the survey
                if not await self._readers_let_go() and (again < 0 or self._stopping):
                    raise
                continue
            await self._exchange(job)
            if job.is_whole or enough() or self._stopping:
                return
            # The next stretch must not contain segments that this run has written; otherwise the run would never end.
            new_segments.update(job.written)
            await self._wait_until_forgotten()

    async def _readers_let_go(self) -> bool:
        """Wait until a reader has freed some replaced files, because it has finished or its time is over; return True
        if there is more room now.
        """
        store = self._bucket.store
        held = store.slots.retired_bytes
        while held and store.slots.retired_bytes == held and not self._stopping:
            self.holds.look(self._loop.time(), needed=True)
            await asyncio.sleep(READERS_SECONDS)
        return held > 0 and not self._stopping

    async def _work(self, job: Compaction) -> bool:
        """Do all steps up to the new files; return False if the compaction is not worth the work. After False or an
        error the job is cancelled.
        """
        committer = self._bucket.committer
        try:
            worth = await asyncio.to_thread(job.survey)
            while worth and job.spare_tombstones():
                worth = await asyncio.to_thread(job.survey)
            if worth:
                # Purge seqnos and rollback floors rise, durably, before rows are removed: numbers that are too high for
                # a while only make a consumer start again, but numbers that are too low would hide a deletion.
                job.announce()
                if not await committer.wait(committer.wrote()):
                    raise StorageError("the records of a compaction could not be written")
                await asyncio.to_thread(job.copy)
        except BaseException:
            job.cancel()
            raise
        if not worth:
            job.cancel()
        return worth

    async def _exchange(self, job: Compaction) -> None:
        try:
            for _ in job.swap():
                await asyncio.sleep(0)  # other work has its turn between two vbuckets
        except BaseException:
            job.cancel()  # completes the swap: otherwise the store could begin no other compaction
            raise
        # After the swap, because vbuckets have read the old files until now. After a crash, the next start removes the
        # files that the manifest does not name.
        await asyncio.to_thread(job.remove)
        self._forgetting = self._loop.create_task(asyncio.to_thread(job.forget))
        self.dropped.compacted()
        self.history.note(job.history_bytes)
        self._dead_left = self._dead_bytes - self.history.bytes
        self.runs += 1

    async def _wait_until_forgotten(self) -> None:
        """Wait until the files of the last run are deleted."""
        if self._forgetting is not None:
            await asyncio.wait([self._forgetting])  # does not cancel it, and does not raise its error

    def _dropped(self, vb: int) -> Dropped:
        """Return the dropped collections of a vbucket, whose documents are no longer shown."""
        vbucket = self._bucket.vbuckets.get(vb)
        return vbucket.collections.dropped() if vbucket else NONE_DROPPED

    def _needed(self, vb: int) -> int:
        """Return the seqno up to which no reader of the vbucket needs tombstones any more."""
        vbucket = self._bucket.vbuckets.get(vb)
        return (
            min((reader.position for reader in vbucket.readers), default=WIRE_SEQNO_MAX) if vbucket else WIRE_SEQNO_MAX
        )

    @property
    def _dead_bytes(self) -> int:
        return self._bucket.store.log.bytes - self._live_bytes

    @property
    def _live_bytes(self) -> int:
        return self._bucket.store.index.live_bytes - self.dropped.bytes

    def _is_worthwhile(self, kept_bytes: int = 0) -> bool:
        """Return True if enough of the log is dead; `kept_bytes` of superseded versions count as live."""
        live = self._live_bytes + kept_bytes
        return is_worthwhile(self._bucket.store.log.bytes, live, self._dead_left, self._dead_percent)

    @property
    def _may_be_worthwhile(self) -> bool:
        """True if enough of the log is dead when kept superseded versions count as dead, and these may be measured
        again.
        """
        return self._is_worthwhile() and (not self.history.retention or self.history.is_due(self._loop.time()))

    def _history_rows(self, vb: int) -> int:
        """Return the number of a vbucket's newest changes that a rollback may still undo after a run that begins by
        itself. These do not include a drop whose documents the run should remove.
        """
        since = self.dropped.rows_since(vb)
        return HISTORY_ROWS if since is None else min(HISTORY_ROWS, since)

    def _look(self) -> None:
        store = self._bucket.store
        self.holds.look(self._loop.time())
        self.dropped.look(self._loop.time())
        self._bucket.scans.forget_idle(self._loop.time())
        if self._task is None and (self._may_be_worthwhile or self._is_urgent()) and self._is_time():
            self._task = self._loop.create_task(self._automatic())
        urgent = store.staging.lacks_room or store.log.is_short
        self._timer = self._loop.call_later(URGENT_SECONDS if urgent else LOOK_SECONDS, self._look)

    def _is_urgent(self) -> bool:
        """Return True if there is something to free, and the disk is full, full for large documents, or nearly full."""
        store = self._bucket.store
        dead, live = self._dead_bytes, self._live_bytes
        urgent = store.staging.lacks_room and dead > live // GAIN_PARTS  # such a run keeps no superseded versions
        return urgent or (store.log.is_short and dead - self.history.bytes > live // SHORT_PARTS)

    def _is_time(self) -> bool:
        """Return True if a run may succeed.

        After a run that had no room, there must be more to free (for example once no versions are kept for rollbacks),
        or some time must have passed, because other programs may have freed room on the disk.
        """
        more = self._dead_bytes - self._again_dead
        if self._gave_up_with_history and self._bucket.store.staging.lacks_room:
            return True
        return self._loop.time() >= self._again_at or more > self._bucket.store.log.control_bytes

    async def _automatic(self) -> None:
        # On a full disk, room is worth more than versions for rollbacks and retention. A consumer that must roll back
        # begins again, and a reader of versions gets a snapshot without History.
        is_full = self._bucket.store.staging.lacks_room
        rows = (lambda vb: 0) if is_full else self._history_rows
        self._gave_up_with_history = False
        try:
            if self.history.retention and not is_full:
                await self.history.measure()
                if not (self._is_worthwhile(self.history.bytes) or self._is_urgent()):
                    return
            before = max(0, self._bucket.now() - self._purge_age)
            await self.run(before, self._needed, rows, lambda: not self._is_urgent())
        except StorageError as error:
            # Not tried again soon: the disk will hardly have more room then, and each try reads the whole log.
            self._again_at, self._again_dead = self._loop.time() + GAVE_UP_SECONDS, self._dead_bytes
            self._gave_up_with_history = not is_full
            log.error("compaction gave up, the log stays as it is: %s", error, extra=event("compaction.failed"))
        finally:
            self._task = None
