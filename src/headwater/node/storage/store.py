"""The store of a node's documents: its guarantees, and its parts.

    store = Store.open(path)
    store.staging.mutation(vb, key, value, cas=..., rev_seqno=...)    indexed at once, not yet on disk
    batch = store.freeze(); store.write(batch); store.settle(batch)   durable: `write` on any thread, the rest here
    with store.view(vb, after_seqno, end_seqno) as view: view.fill(...)

Call all methods except `write` from one thread (the node's event loop). Staged changes can be read at once, marked as
not durable; views contain durable changes only. One batch is in flight at a time, and the next one is filled meanwhile.

The store owns its parts and connects them: columns.py (the index), slots.py (the memory to which its rows point),
log.py (the files), staging.py and committing.py (changes before they are durable), prepares.py (durable writes), and
compaction.py during a compaction. This module opens and closes the store, reads documents, and undoes changes; api.py
is the interface for the node's other parts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from headwater.errors import DiskFull, StorageError
from headwater.failpoints import failpoint
from headwater.invariants import node_invariant
from headwater.kernels import history, index, live, sweep
from headwater.kernels.gather import BEFORES, NO_BEFORES, NOT_KEPT, SURE_BEFORES
from headwater.node.storage import recovery
from headwater.node.storage.arena import ARENA_BYTES, Batch
from headwater.node.storage.columns import Index
from headwater.node.storage.committing import Committing
from headwater.node.storage.compaction import HISTORY_ROWS, Compaction, Dropped, histories, no_drop
from headwater.node.storage.declarations import Declarations
from headwater.node.storage.disk import Disk, FolderLock, RealDisk, is_full
from headwater.node.storage.log import SEGMENT_BYTES, START_BYTES, Log
from headwater.node.storage.manifest import Manifest
from headwater.node.storage.messages import StoredEvent, events_of
from headwater.node.storage.newest import NewestSeqnos
from headwater.node.storage.prepares import StoredPrepares
from headwater.node.storage.quarantine import Quarantine
from headwater.node.storage.records import StoredDocument, VBucketRecord, clean_frame, key_in, stored_key
from headwater.node.storage.replay import OpenedSegment, Replay
from headwater.node.storage.retention import Drops, HistoryLimits, begin
from headwater.node.storage.scrub import Damage, scrub
from headwater.node.storage.slots import Slots
from headwater.node.storage.staging import ArenaFull, Staging
from headwater.node.storage.views import DEFAULT_ONLY, PlainSpan, Shown, View

__all__ = ["ArenaFull", "Store"]

_FOUR_NUMBERS = Struct("=4Q")  # as numpy has them


class Store:
    """A folder with a log, and its index in memory; see `open`.

    Attributes:
        path: the folder.
        disk: the disk that has this folder.
        index, slots, log, staging, committing, prepares, declarations: the parts (see the module).
        quarantine: the damaged ranges of the log, and the changes in them.
        table: uint64[vbuckets, FIELDS] of the index, for kernels; see kernels/index.py.
        segments: uint64[slots, 2], (address, length) of the memory that a LOC points into, for kernels.
        recovered: the newest record of each vbucket in the log when the store was opened.
        clean: True if the last process closed the store cleanly, or the store has never been used.
    """

    def __init__(  # noqa: PLR0917 - called in one place
        self,
        path: Path,
        disk: Disk,
        lock: FolderLock,
        vbuckets: int,
        segment_bytes: int,
        arena_bytes: int,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        self.path = path
        self.disk = disk
        self.recovered: dict[int, VBucketRecord] = {}
        self.clean: bool = True
        seeds = int.from_bytes(random(8), "big"), int.from_bytes(random(8), "big")
        manifest = recovery.load_manifest(disk, path, vbuckets, random)
        self.index: Index = Index(manifest.content.vbuckets, seeds)
        self.slots: Slots = Slots()
        self.table: NDArray[np.uint64] = self.index.table
        self.segments: NDArray[np.uint64] = self.slots.table
        self.quarantine: Quarantine = Quarantine(self.index, self.slots)
        self._numbers = np.zeros(4, np.uint64)
        self._numbers_bytes = self._numbers.data
        self.log: Log = Log(disk, path, manifest, random, segment_bytes=segment_bytes, arena_bytes=arena_bytes)
        self._newest = NewestSeqnos(self.index, self.slots)
        self._load(manifest.content)
        self.staging: Staging = Staging(self.index, self.slots, self.log, arena_bytes, self.recovered, clock)
        self.prepares: StoredPrepares = StoredPrepares(self.index, self.slots, self.log, self.staging)
        self.committing: Committing = Committing(self.index, self.slots, self.log, self.staging)
        self.declarations: Declarations = Declarations(self.log)
        self._compaction: Compaction | None = None
        self._lock = lock
        self._closed = False

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        vbuckets: int = 0,
        disk: Disk | None = None,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[int], bytes] = os.urandom,
        segment_bytes: int = SEGMENT_BYTES,
        arena_bytes: int = ARENA_BYTES,
    ) -> Store:
        """Open the store in a folder, which is created if it is missing.

        Args:
            path: the folder.
            vbuckets: the number of vbuckets, which is fixed when the store is created; 0 for the number of an existing
                store, or VBUCKETS_NEW for a new one.
            disk: the disk; None for the machine's.
            clock: returns seconds of a monotonic clock, for the retries on a full disk.
            random: returns n random bytes.
            segment_bytes: the size of a file of the log.
            arena_bytes: the size of the largest batch; at least 31 MiB for values of 20 MiB.

        Raises:
            StoreLocked: another process has the store open.
            CorruptStore: a file is damaged; nothing was changed.
            OptionError: the store was created with another number of vbuckets.
            DiskFull: the disk has no room for the files that a start needs.
            StorageError: the folder can't be used.
        """
        folder, disk = Path(path), disk or RealDisk()
        try:
            disk.make_directory(folder)
            # The lock comes before the first look at the manifest: two processes that both cut the torn end would write
            # into one log.
            lock = disk.lock(folder / "LOCK")
        except OSError as error:
            raise StorageError(f"{folder}: {error.strerror or error}; choose a folder that can be written") from error
        try:
            return cls(folder, disk, lock, vbuckets, segment_bytes, arena_bytes, clock, random)
        except OSError as error:
            lock.release()
            if is_full(error):
                raise DiskFull(folder, START_BYTES, disk.free(folder), starting=True) from error
            raise StorageError(f"{folder}: {error.strerror or error} while opening the store") from error
        # The lock is released, so that the same process can open the folder again.
        except BaseException:
            lock.release()
            raise

    def _load(self, manifest: Manifest) -> None:
        # The note of the synced end is read before the log, and the log is changed only after both agree: a refused
        # start leaves every file as it was.
        note = self.log.synced.load()
        opened = recovery.open_segments(self.disk, self.path, manifest)
        self.log.segments = [each.segment for each in opened]
        try:
            recovery.check_synced(opened, note)
            self._replay(opened, manifest)
            # Before the first roll, which seals the open segment at its end, and before any reader sees a batch of it.
            recovery.make_durable(self.disk, self.path, opened, note)
            recovery.remove_orphans(self.disk, self.path, manifest)
            self.log.start()
        except BaseException:
            self.log.close(clean=False)
            raise

    def _replay(self, opened: list[OpenedSegment], manifest: Manifest) -> None:
        replay = Replay(self.index, self.slots)
        replay.run(opened)
        recovery.check_clean(opened, manifest, replay.clean)
        failpoint("recover.indexed")
        # Only after a replay without fault, because a cut destroys the bytes that would show what happened.
        if opened:
            recovery.cut(opened[-1])
        # A store without a single batch was never used, so nothing of it can have been lost.
        self.clean = replay.clean or not any(each.segment.batches for each in opened)
        self.recovered = dict(replay.records)
        if manifest.collections:
            self._newest.follow()

    # ------------------------------------------------------------------ reading

    def document(self, vbucket: int, key: bytes, collection: int = 0) -> StoredDocument | None:
        """Return the newest version of a key, which may be a tombstone; None if it was never stored, or is purged.

        Raises:
            CorruptStore: the version may have been in a damaged batch.
        """
        if not key:
            return None
        row = self._row_of(vbucket, key, collection)
        # In a damaged vbucket the key may be missing because of the damage. After "not found", a client could overwrite
        # a document that another copy still has.
        if row < 0:
            if vbucket in self.quarantine.vbuckets:
                self.quarantine.check_key(vbucket, stored_key(collection, key)[0])
            return None
        frame = self.slots.frame(self.index.columns[vbucket].loc.item(row))  # a copy of 20 MiB would take milliseconds
        return StoredDocument.decode(frame, durable=row < self.table.item(vbucket, index.DURABLE_ROWS))

    def document_bytes(self, vbucket: int, key: bytes, collection: int = 0) -> int:
        """Return the size in bytes of the record that `document` reads; 0 if there is none."""
        row = self._row_of(vbucket, key, collection)
        return 0 if row < 0 else len(self.slots.frame(self.index.columns[vbucket].loc.item(row)))

    def seqno_of(self, vbucket: int, key: bytes, collection: int = 0) -> int:
        """Return the seqno of the newest version of a key, which may be a tombstone; 0 if there is none."""
        row = self._row_of(vbucket, key, collection)
        return 0 if row < 0 else self.index.columns[vbucket].seq.item(row)

    def _row_of(self, vbucket: int, key: bytes, collection: int) -> int:
        key, mark = stored_key(collection, key)
        return int(index.lookup(self.table, vbucket, self.segments, np.frombuffer(key, np.uint8), int(bool(mark))))

    def events(self, vbucket: int) -> list[StoredEvent]:
        """Return the newest system event of each collection and scope of a vbucket, durable or not, in seqno order.

        Takes time if the vbucket has system events: reads every row.
        """
        return list(events_of(self.index, self.slots, vbucket))

    def newest_seqno(self, vbucket: int, choice: Shown) -> int:
        """Return the seqno of the newest durable change in the choice `choice`; 0 if there is none."""
        return (
            self._newest.seqno(vbucket, choice) if self.index.is_mixed(vbucket) else self.index.durable_seqno(vbucket)
        )

    def collections(self, vbucket: int, ids: list[int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield (collection id, number of live documents, bytes of their frames, number of tombstones) of each
        collection in `ids`, which must be sorted. Takes time: reads every row.
        """
        counts = np.zeros((len(ids), 3), np.int64)
        sweep.count_collections(self.table, vbucket, self.segments, np.array(ids, np.uint64), counts)
        for number, (items, size, tombstones) in zip(ids, counts.tolist(), strict=True):
            yield number, items, size, tombstones

    def view(
        self,
        vbucket: int,
        after_seqno: int = 0,
        end_seqno: int = (1 << 64) - 1,
        choice: Shown = DEFAULT_ONLY,
        *,
        every_version: bool = False,
        plain: Sequence[PlainSpan] = (),
        befores: bool = False,
    ) -> View:
        """Return a view of the present durable changes after `after_seqno` and up to `end_seqno`. Close it when done.

        Args:
            vbucket: the vbucket's number.
            after_seqno: the seqno after which the view begins.
            end_seqno: the seqno at which the view ends.
            choice: the choice of changes, if the vbucket has other collections than the default one, or system events.
            every_version: True for all versions of a key that the log has (it has all above `VBucket.versions_after`);
                False for the newest version only.
            plain: spans of seqnos with collections whose newest version only is shown, even if `every_version` is True.
                The first span may begin before `after_seqno`, if older versions were already omitted there.
            befores: True if the view must say, for each change, which version it replaced. A view of the newest
                versions only says that the replaced version is not kept.

        Raises:
            CorruptStore: some of the changes were in a damaged batch.
        """
        first = self.index.rows_up_to(vbucket, after_seqno)
        # Durable rows only: after a crash, a consumer that was ahead of this node's disk would hold changes whose
        # seqnos belong to other changes.
        rows = min(self.index.rows_up_to(vbucket, end_seqno), self.table.item(vbucket, index.DURABLE_ROWS))
        if vbucket in self.quarantine.vbuckets:
            self.quarantine.check_range(vbucket, first, rows)
        columns = self.index.columns[vbucket]
        replaced = self._befores(vbucket, every_version) if befores else NO_BEFORES
        node_invariant(rows <= columns.capacity, "vbucket {}: a view of {} rows of {}", vbucket, rows, columns.capacity)
        if not self.index.is_mixed(vbucket):
            return View(
                self.slots, vbucket, columns, first, rows, after_seqno, every_version=every_version, befores=replaced
            )
        # `_newest` knows the last seqno at the durable end only; a view that ends earlier must look for its last row
        # itself.
        is_whole = rows == self.table.item(vbucket, index.DURABLE_ROWS)
        last = self._newest.seqno(vbucket, choice) if is_whole else None
        durable = self.index.durable_seqno(vbucket)
        node_invariant(last is None or last <= durable, "vbucket {}: seqno {} above {}", vbucket, last, durable)
        return View(
            self.slots, vbucket, columns, first, rows, after_seqno, choice, last, every_version, plain, replaced
        )

    def _befores(self, vbucket: int, every_version: bool) -> int:
        """Return how certain a view can be about the versions that changes replaced (kernels/gather.py).

        A view without every version does not have the replaced versions: NOT_KEPT. In a damaged vbucket, an earlier
        version may be missing because of the damage, so a key without one may still have had one: BEFORES. Otherwise:
        SURE_BEFORES.
        """
        if not every_version:
            return NOT_KEPT
        return BEFORES if vbucket in self.quarantine.vbuckets else SURE_BEFORES

    def gather_live(  # noqa: PLR0917 - as the kernel has them
        self,
        vbucket: int,
        numbers: tuple[int, int, int, int],
        out: NDArray[np.uint8],
        opaque: int,
        encoding: int,
        slow: int,
        room: int,
    ) -> tuple[int, int]:
        """Write a marker and the frames of newly durable changes to `out`, for a live stream; see kernels/live.py.

        Args:
            vbucket: the vbucket's number.
            numbers: the seqno after which to begin, the last seqno, start seqno and flags of the marker.
            out: the memory for the frames.
            opaque: the stream's opaque.
            encoding: the flags of `Encoding.bits`.
            slow: the datatype bits of frames that the kernel must not copy.
            room: the most bytes to write.

        Returns:
            The bytes written, and the number of changes. (0, 0) if the kernel can't send all changes, or the vbucket is
            damaged (`view` reports the damage).
        """
        if vbucket in self.quarantine.vbuckets:
            return 0, 0
        # The array exists already, because a thousand streams may begin at once.
        _FOUR_NUMBERS.pack_into(self._numbers_bytes, 0, *numbers)
        return live.gather_live(  # type: ignore[no-any-return]
            self.table, vbucket, self.segments, self._numbers, out, opaque, encoding, slow, room
        )

    def expired(
        self, vbucket: int, now: int, limit: int = 1000, alive: Shown = DEFAULT_ONLY
    ) -> list[tuple[bytes, int]]:
        """Return (key, collection) of up to `limit` live documents that have expired by Unix second `now`, in the
        collections `alive`.

        While no document can have expired, this takes no time; otherwise it reads every live document of the vbucket.
        """
        earliest = int(self.table[vbucket, index.EXPIRY])
        if earliest == 0 or earliest > now:
            return []
        rows = np.empty(limit, np.int64)
        count = int(history.find_expired(self.table, vbucket, self.segments, now, alive, rows))
        locs = self.index.columns[vbucket].loc
        return [key_in(self.slots.frame(int(locs[row]))) for row in rows[:count]]

    # ------------------------------------------------------------------ staging

    @property
    def full(self) -> bool:
        """True if the disk has no room for another batch: changes are refused, reads continue. As `Staging.full`, this
        tries again to get room.
        """
        return self.staging.full

    def more_room(self) -> bool:
        """Try to get more room in the arena, for a change that does not fit although the arena is empty; return True if
        there is more room.
        """
        return self.staging.more_room()

    def pass_seqno(self, vbucket: int, seqno: int) -> None:
        """Raise the high seqno to `seqno`, although no change here has it. Durable with the vbucket's next record."""
        high = self.index.high_seqno(vbucket)
        self.staging.next_seqno(vbucket, seqno)
        node_invariant(seqno > high, "vbucket {}: seqno {} is passed behind seqno {}", vbucket, seqno, high)
        self.table[vbucket, index.HIGH] = seqno

    def lacks_tombstones(self, vbucket: int, upto_seqno: int, deleted_rev: int = 0) -> None:
        """Set the purge seqno, because the next changes lack tombstones up to `upto_seqno`. Durable with the vbucket's
        next record.

        A purge seqno at or below the high seqno is never lowered. A former purge seqno above the high seqno no longer
        counts, because the changes there never arrived, or were undone.

        Args:
            vbucket: the vbucket's number.
            upto_seqno: the seqno up to which tombstones are missing; 0 for none.
            deleted_rev: the highest revision of the missing tombstones; 0 if unknown.
        """
        row = self.table[vbucket]
        row[index.DELETED_REV] = max(int(row[index.DELETED_REV]), deleted_rev)
        # The minimum comes first: if a producer announced a purge among changes that never came, a reader of this copy
        # must not roll back because of it.
        row[index.PURGE] = max(min(int(row[index.PURGE]), int(row[index.HIGH])), upto_seqno)

    def rollback(self, vbucket: int, seqno: int) -> int:
        """Undo all changes above `seqno`, so that previous versions are the newest again. Durable with the next batch.

        Below the rollback floor the previous versions no longer exist, and in a damaged vbucket some can't be read. In
        both cases all changes are removed, and the vbucket is empty.

        Returns:
            The seqno that was reached: `seqno`, or 0 if all changes were removed.

        Raises:
            ArenaFull, DiskFull: the record of the rollback has no room, and nothing happens.
        """
        if seqno >= self.index.high_seqno(vbucket):
            return seqno
        # Compaction has dropped versions below the floor. A state without them would seem whole but lack documents, so
        # all changes are removed.
        if seqno < self.index.rollback_floor(vbucket) or vbucket in self.quarantine.vbuckets:
            seqno = 0
        keep = self.index.rows_up_to(vbucket, seqno) if seqno else 0
        high = self.index.high_after(vbucket, keep, seqno)
        rows, was = self.index.rows(vbucket), self.index.high_seqno(vbucket)
        node_invariant(keep <= rows, "vbucket {}: a rollback keeps {} rows of {}", vbucket, keep, rows)
        node_invariant(high <= seqno < was, "vbucket {}: back from {} to {} leads to {}", vbucket, was, seqno, high)
        # The frame comes first: if there is no room for it, the index is unchanged.
        self.staging.rollback(vbucket, seqno, high)
        if self._compaction is not None:
            # A running compaction must not bring back rows that this rollback removes.
            self._compaction.cut(vbucket, keep)
        if seqno == 0:
            self.index.reset(vbucket)
        else:
            # Undoing rows writes into NEXT, which open views read. If there are views, the vbucket continues in a copy
            # of its columns.
            if self.slots.readers:
                self.index.fork(vbucket)
            history.undo_rows(self.table, vbucket, self.segments, keep)
            self.index.lower(vbucket, keep, high)
        high_after = self.index.high_seqno(vbucket)
        node_invariant(
            high_after == high, "vbucket {}: rolled back to seqno {}, {} was written down", vbucket, high_after, high
        )
        # The staged record has numbers from before the rollback; a lost batch must not restore those.
        self.staging.renumbered(vbucket)
        self._newest.cut(vbucket, seqno)
        self.index.look_for_expired(vbucket)
        failpoint("rollback.staged")
        return seqno

    def lowered_to(self, vbucket: int, seqno: int) -> int:
        """Return the high seqno that a rollback to `seqno` would leave; changes nothing."""
        if seqno >= self.index.high_seqno(vbucket):
            return self.index.high_seqno(vbucket)
        if seqno < self.index.rollback_floor(vbucket) or vbucket in self.quarantine.vbuckets:
            return 0
        return self.index.high_after(vbucket, self.index.rows_up_to(vbucket, seqno) if seqno else 0, seqno)

    def drop(self, vbucket: int) -> None:
        """Drop a vbucket with its documents. Durable with the next batch."""
        self.staging.drop(vbucket)
        if self._compaction is not None:
            self._compaction.cut(vbucket, 0)
        self.index.forget(vbucket)
        rows = self.index.rows(vbucket)
        node_invariant(rows == 0, "vbucket {} is dropped, and {} rows of it are left", vbucket, rows)
        self._newest.cut(vbucket, 0)
        failpoint("drop.staged")

    # ------------------------------------------------------------------ committing

    def freeze(self) -> Batch | None:
        """Close the open batch, return it, and begin the next one; return None if nothing was staged.

        Raises:
            StorageError: another batch is in flight.
        """
        return self.committing.freeze()

    def write(self, batch: Batch) -> None:
        """Write the batch and sync it. Blocking; may be called from any thread, for one batch at a time.

        Raises:
            DiskFull, StorageError: the batch is not on disk; `abandon` it.
        """
        self.committing.write(batch)

    def settle(self, batch: Batch) -> None:
        """Make the changes of a batch, which is on disk, durable and visible."""
        self.committing.settle(batch)
        if self.log.manifest.content.collections:
            self._newest.follow()

    def abandon(self, batch: Batch, error: BaseException) -> list[int]:
        """Undo a batch that could not be written, and all changes staged since.

        Args:
            batch: the batch.
            error: the error of `write`.

        Returns:
            The vbuckets whose record, rollback or drop was lost; the index has their state on disk again.
        """
        if self._compaction is not None:
            # Before the rows are undone: the compaction's survey may include some of them, and if it copied them they
            # would be back after a restart.
            self._compaction.overtake()
        vbuckets = self.committing.abandon(batch)
        self.index.look_for_expired()
        return vbuckets

    # ------------------------------------------------------------------ the log

    def scrub(self, slice_bytes: int) -> Iterator[int | Damage]:
        """Verify the present log, in slices of `slice_bytes`; see scrub.py. Any one thread may advance the iterator."""
        return scrub([(segment, segment.end) for segment in self.log.segments], slice_bytes)

    def take_out(self, damage: Damage) -> set[int] | None:
        """Stop serving a damaged range of the log; return the vbuckets with changes in it, None if the range was known
        already.
        """
        compaction = self._compaction
        if compaction is not None:
            compaction.overtake()  # before the rows change: the compaction must not copy them and lose the damage
        hit = self.quarantine.add(damage)
        if hit is not None and compaction is not None:
            # Rows now point into the compaction's new files, because the damage may be in one of these.
            compaction.finish_swap()
            hit |= self.quarantine.mark(damage)
        return hit

    @property
    def damaged_batches(self) -> int:
        """The number of damaged ranges found in the present files of the log, where the next start will find
        them too.
        """
        if not self.quarantine.damage:
            return 0
        return self.quarantine.count({str(segment.path) for segment in self.log.segments})

    def compact(
        self,
        *,
        purge_before: int = 0,
        purge_limit: Callable[[int], int] | None = None,
        history_rows: Callable[[int], int] = lambda vb: HISTORY_ROWS,
        part: slice = slice(None),
        spare: Collection[int] = (),
        dropped: Callable[[int], Dropped] | None = None,
        history: HistoryLimits | None = None,
        drops: Callable[[int], Drops] = no_drop,
    ) -> Compaction | None:
        """Begin to compact the sealed segments: all of them, or as many as the disk has room for. Return None if there
        are no sealed segments, or a compaction is running. The steps are in compaction.py.

        Args:
            part: the sealed segments that may be rewritten.
            spare: numbers of segments that are left alone because they have just been written.
            purge_before: tombstones created before this Unix second are purged; 0 to purge none.
            purge_limit: returns, for a vbucket, the seqno above which no tombstone is purged: the position of the
                slowest stream that must still send it. The newest change of a collection is never purged, because its
                seqno shows a reader of only that collection whether a purge concerns it.
            history_rows: returns, for a vbucket, the number of its newest changes that a rollback may undo. Versions
                that these superseded are kept, and so are tombstones among them.
            dropped: returns, for a vbucket, the collections whose documents are removed: (id, seqno of the drop), by
                id.
            history: the limits of the superseded versions that retention keeps, besides those that `history_rows`
                keeps; None to keep no others.
            drops: returns, for a vbucket, the seqno of each drop, newest first, and the bytes of the documents that the
                drop removes; these documents count as versions that the drop superseded.

        Raises:
            CorruptStore: because of damage, some rows no longer say in which file they are.
        """
        if self._compaction is not None or not self.committing.settled_segments()[part]:
            return None
        # Compaction finds the rows of a file by the order of the files in a column. A lost row is in no file, so the
        # rows after it could be assigned to a wrong file, and dropped.
        self.quarantine.check_places()
        self._compaction = Compaction(
            self.index,
            self.slots,
            self.log,
            self.staging,
            self.committing,
            purge_before=purge_before,
            purge_limit=purge_limit,
            numbers=self._newest.numbers,
            history_rows=history_rows,
            part=part,
            spare=spare,
            dropped=dropped,
            history=history,
            drops=drops,
            ended=self._compaction_ended,
        )
        return self._compaction

    @contextmanager
    def history(
        self, limits: HistoryLimits, least: Callable[[int], int], drops: Callable[[int], Drops] = no_drop
    ) -> Iterator[Callable[[], int]]:
        """Yield a function that returns the bytes of superseded versions that a compaction would keep. Any thread may
        call it.

        The arguments are `history`, `history_rows` and `drops` of `compact`. The files stay while the block runs.
        """
        ticket, rows = self.slots.enter(), histories(self.index, least, drops)
        try:
            yield lambda: sum(each.bytes for each in begin(rows, self.segments, limits).values())
        finally:
            self.slots.leave(ticket)

    def _compaction_ended(self) -> None:
        self._compaction = None

    def close(self, clean: bool = True) -> None:
        """Close the store; may be called again.

        Args:
            clean: True to commit the staged changes, and to record that the store was closed cleanly; must be False
                after an error.

        Raises:
            DiskFull, StorageError: the last batch or the record could not be written; the store is closed nevertheless.
        """
        if self._closed:
            return
        # Set first: a close that fails half-way must not be tried again on closed descriptors.
        self._closed = True
        try:
            if self._compaction is not None:
                # The compaction's thread writes into segments that are closed below; its new files must be in the
                # manifest, or removed.
                self._compaction.cancel()
            if clean:
                self.staging.control(clean_frame())
                batch = self.freeze()
                if batch is not None:
                    self.write(batch)
        except BaseException:
            # Without CLEAN on disk the next start begins a new branch, which is always safe.
            clean = False
            raise
        finally:
            self._shut(clean)

    def _shut(self, clean: bool) -> None:
        try:
            self.log.close(clean)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error} while closing the store") from error
        finally:
            # Last: the next owner of the lock finds all descriptors closed, and the final manifest.
            self._lock.release()
