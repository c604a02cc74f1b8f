"""The store: the promise the node builds on.

    store = Store.open(path)
    store.stage_mutation(vb, key, value, cas=..., rev_seqno=...)      indexed at once, not yet on disk
    batch = store.freeze(); store.write(batch); store.settle(batch)   durable: `write` on any thread, the rest here
    with store.view(vb, after_seqno, end_seqno) as view: view.fill(...)

All methods but `write` belong to one thread (the node's event loop). What is staged can be read back at once and says
that it is not durable; views show durable changes only. One batch is in flight at a time, the next gathers meanwhile.

The parts: reading.py (documents, numbers, views), staging.py and committing.py (changes), compaction.py; here opening,
closing and what takes changes back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headwater.errors import StorageError
from headwater.failpoints import failpoint
from headwater.kernels import history, index
from headwater.node.storage import recovery
from headwater.node.storage.arena import ARENA_BYTES
from headwater.node.storage.committing import Committing
from headwater.node.storage.compaction import HISTORY_ROWS, Compaction, settled_segments
from headwater.node.storage.disk import Disk, Lock, RealDisk
from headwater.node.storage.log import SEGMENT_BYTES, Log
from headwater.node.storage.manifest import ManifestFile
from headwater.node.storage.records import VBucketRecord, clean_frame, drop_frame, rollback_frame
from headwater.node.storage.replay import Opened, Replay, current
from headwater.node.storage.scrub import Damage, scrub
from headwater.node.storage.staging import ArenaFull

__all__ = ["ArenaFull", "Store"]


class Store(Committing):
    """A folder with a log, and its index in memory.

    Attributes:
        path: the folder.
        table: uint64[vbuckets, FIELDS], see kernels/index.py.
        segments: uint64[slots, 2], (address, length) of what a LOC points into.
        recovered: the newest record of each vbucket, as the last process left it.
        clean: the last process closed the store in order (or there was none).
    """

    def __init__(  # noqa: PLR0917 - called in one place
        self,
        path: Path,
        disk: Disk,
        lock: Lock,
        vbuckets: int,
        arena_bytes: int,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        super().__init__(path, vbuckets, arena_bytes, clock, random)
        self.recovered: dict[int, VBucketRecord] = {}
        self.clean = True
        self._disk = disk
        self._lock = lock
        self._random = random
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        vbuckets: int = 1024,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[int], bytes] = os.urandom,
        segment_bytes: int = SEGMENT_BYTES,
        arena_bytes: int = ARENA_BYTES,
    ) -> Store:
        """Open the store in a folder, which is made where there is none.

        Args:
            vbuckets: how many; fixed when the store is made.
            clock: seconds that never go back; only used to try again once a full disk has room.
            random: n random bytes.
            segment_bytes: at which size a log file is followed by the next.
            arena_bytes: the largest batch; 31 MiB at least if values may have 20 MiB.

        Raises:
            StoreLocked: another process has it open.
            CorruptStore: a file is damaged; nothing was changed.
            OptionError: the store was made with another number of vbuckets.
            StorageError: the folder can't be used.
        """
        folder, disk = Path(path), disk or RealDisk()
        try:
            disk.make_directory(folder)
            lock = disk.lock(folder / "LOCK")
        except OSError as error:
            raise StorageError(f"{folder}: {error.strerror or error}; choose a folder that can be written") from error
        try:
            store = cls(folder, disk, lock, vbuckets, arena_bytes, clock, random)
            store._load(segment_bytes)
        except OSError as error:
            lock.release()
            raise StorageError(f"{folder}: {error.strerror or error} while opening the store") from error
        except BaseException:
            lock.release()
            raise
        return store

    def _load(self, segment_bytes: int) -> None:
        manifest = recovery.load_manifest(self._disk, self.path, len(self.table), self._random)
        self._log = Log(
            self._disk,
            self.path,
            manifest,
            self._random,
            segment_bytes=segment_bytes,
            arena_bytes=len(self._arena.data),
        )
        opened = recovery.open_segments(self._disk, self.path, manifest.content, self._log.segment_bytes)
        self._log.segments = [one.segment for one in opened]
        try:
            self._replay(opened, manifest)
            recovery.remove_strangers(self._disk, self.path, manifest.content)
            self._log.start()
        except BaseException:
            self._log.close(clean=False)
            raise
        self._room = self._log.room

    def _replay(self, opened: list[Opened], manifest: ManifestFile) -> None:
        replay = Replay(self._index, self._slots)
        for one in opened:
            replay.segment(one)
        replay.finish()
        recovery.check_clean(opened, manifest.content, replay.clean)
        failpoint("recover.indexed")
        if opened:
            recovery.cut(opened[-1])
        self.clean = replay.clean or not any(one.segment.batches for one in opened)
        self.recovered = dict(replay.records)
        self._records, self._durable_records = dict(replay.records), dict(replay.records)

    def scrub(self, slice_bytes: int) -> Iterator[int | Damage]:
        """Verify the log as it is now; see scrub.py. To be advanced on any one thread."""
        return scrub([(segment, segment.end) for segment in self._log.segments], slice_bytes)

    def take_out(self, damage: Damage) -> set[int] | None:
        """Serve nothing of a damaged range any more; the vbuckets with changes in it, None if it is known already."""
        if self._compaction is not None:
            self._compaction.stale = True  # before the rows change, so that it can't copy them and forget the damage
        return self.lost.add(damage)

    def rollback(self, vb: int, seqno: int) -> int:
        """Take back everything above `seqno`; the versions before are the newest again.

        Below the rollback floor the versions before no longer exist, and in a damaged vbucket not all can be read: then
        everything is dropped, and the vbucket is empty. Staged; durable with the next batch. Returns the seqno really
        returned to: `seqno`, or 0.
        """
        if seqno >= self.high_seqno(vb):
            return seqno
        if seqno < self.rollback_floor(vb) or vb in self.lost.vbuckets:
            seqno = 0
        keep = self._index.rows_up_to(vb, seqno) if seqno else 0
        high = self._high_after(vb, keep, seqno)
        self._stage_control(rollback_frame(vb, seqno, high))
        self._arena.destroyed.add(vb)
        if self._compaction is not None:
            self._compaction.cut(vb, keep)
        if seqno == 0:
            self._index.reset(vb)
        else:
            if self._slots.readers:
                self._index.fork(vb)
            history.undo_rows(self.table, vb, self.segments, keep)
            self._lower(vb, keep, high)
        if vb in self._records:
            self._records[vb] = self._arena.records[vb] = current(self._index, vb, self._records[vb])
        failpoint("rollback.staged")
        return seqno

    def _high_after(self, vb: int, keep: int, seqno: int) -> int:
        """The high seqno after a rollback: that of the last change left. Where compaction purged changes the floor
        counts as one: it was given out."""
        last = int(self._index.columns[vb].seq[keep - 1]) if keep else 0
        return max(last, min(seqno, self.rollback_floor(vb)))

    def _lower(self, vb: int, rows: int, high: int) -> None:
        row = self.table[vb]
        row[index.HIGH] = high
        for field, bound in (
            (index.DURABLE_ROWS, rows),
            (index.FROZEN_ROWS, rows),
            (index.DURABLE_HIGH, high),
            (index.FROZEN_HIGH, high),
        ):
            row[field] = min(int(row[field]), bound)

    def drop(self, vb: int) -> None:
        """Forget a vbucket, documents and all. Staged; durable with the next batch."""
        self._stage_control(drop_frame(vb))
        self._arena.destroyed.add(vb)
        self._arena.records[vb] = None
        if self._compaction is not None:
            self._compaction.cut(vb, 0)
        self._index.reset(vb)
        self.table[vb, index.STATE] = 0
        self._records.pop(vb, None)
        failpoint("drop.staged")

    @property
    def disk(self) -> Disk:
        """Where the store is; what belongs to it but is no part of the log is kept there, too."""
        return self._disk

    def seal(self) -> None:
        """End the log's segment, so that compaction can have it. Blocking; like `write`, and never beside it."""
        self._log.seal()

    def compact(
        self,
        *,
        purge_before: int = 0,
        purge_limit: Callable[[int], int] | None = None,
        history_rows: Callable[[int], int] = lambda vb: HISTORY_ROWS,
    ) -> Compaction | None:
        """Begin to compact all sealed segments; the steps are in compaction.py. None when there are none, or one runs.

        Args:
            purge_before: tombstones deleted before this Unix second go; 0: none.
            purge_limit: for a vbucket, the seqno above which no tombstone may go: where the slowest stream is that
                must still hear of it. The newest change of a vbucket never goes.
            history_rows: for a vbucket, how many of its newest changes can still be taken back: the versions they
                superseded stay, and so do tombstones among them.
        """
        if self._compaction is not None or not settled_segments(self):
            return None
        self._compaction = Compaction(self, purge_before, purge_limit, history_rows)
        return self._compaction

    @property
    def log_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.end for segment in self._log.segments)

    def close(self, clean: bool = True) -> None:
        """Close the store; twice is once.

        Args:
            clean: commit what is staged and write down that the store was closed in order. Not after an error.

        Raises:
            DiskFull, StorageError: that could not be written; the store is closed all the same.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._compaction is not None:
                self._compaction.cancel()
            if clean:
                self._stage_control(clean_frame())
                batch = self.freeze()
                if batch is not None:
                    self.write(batch)
        except BaseException:
            clean = False
            raise
        finally:
            self._shut(clean)

    def _shut(self, clean: bool) -> None:
        try:
            self._log.close(clean)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error} while closing the store") from error
        finally:
            self._lock.release()
