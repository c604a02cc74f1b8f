"""Write the log: one batch at a time, each synced before the next.

All methods run in the thread that calls `write`, one at a time; the event loop reads `room` between two writes.
Possible failures:

* The disk is full. Room for the next batch is reserved on disk (posix_fallocate) before it is promised: `room` is its
  size, and staging keeps below it. After each batch the next piece is reserved; when that fails, `room` shrinks. Then
  the reserve (reserve.py) releases a piece, for writes that make the log smaller or must not fail: deletions, records,
  a new segment, a manifest.
* A write or sync fails. Then it is unknown which bytes of the batch are on disk, and another sync proves nothing,
  because the kernel drops pages that it could not write. The batch is lost; its segment is sealed at its last durable
  batch, and the next batch goes to a new segment. The manifest has the sealed length, so bytes of the failed write
  never count.
* The manifest can't be replaced. While it is uncertain which manifest is on disk, nothing is written
  (ManifestFile.settle).

The sizes of the room for a batch, of the reserve and of a segment depend on the size of the disk and of the log. An
empty store takes little of a large disk; on a small disk, no segment is so large that there might be no room to rewrite
it.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from headwater.errors import DiskFull, StorageError
from headwater.failpoints import failpoint
from headwater.invariants import node_invariant
from headwater.kernels.history import count_frames
from headwater.node.storage import batch as batches
from headwater.node.storage.arena import Batch
from headwater.node.storage.disk import Disk, is_full
from headwater.node.storage.manifest import Entry, Manifest, ManifestFile
from headwater.node.storage.reserve import Reserve
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader
from headwater.node.storage.synced import SyncedFile

__all__ = ["SEGMENT_BYTES", "START_BYTES", "Log", "full_error"]

SEGMENT_BYTES: Final = 256 << 20
BATCH_FIRST: Final = 1 << 20
"""The room for the first batch, and the least room for later ones; with less, documents are refused."""
CONTROL_MIN, RESERVE_MIN, SEGMENT_MIN = 256 << 10, 2 << 20, 1 << 20
SMALL_LOG_BYTES, SMALL_BATCH = 512 << 10, 128 << 10
"""A log of at most SMALL_LOG_BYTES, such as that of an empty bucket, has SMALL_BATCH bytes of room for a batch, and the
smallest reserve, however large the disk is."""
SEGMENT_ROOM_MIN = CONTROL_LEAST = 4 << 10
SEGMENT_PARTS, BATCH_PARTS, CONTROL_PARTS = 16, 32, 64
"""A segment, the room for a batch, and a piece of the reserve take at most one of so many parts of the disk."""
DELETION_PIECES: Final = 2
START_BYTES: Final = SMALL_BATCH + RESERVE_MIN + CONTROL_MIN
"""The bytes of an empty store that can accept documents."""
T = TypeVar("T")


def full_error(path: Path, needed: int, error: OSError) -> Exception:
    """Return the headwater error for an OSError: DiskFull if the disk is full, otherwise StorageError."""
    # After DiskFull the node continues, and clients get ETMPFAIL; any other error loses the batch for good.
    if is_full(error):
        return DiskFull(path, needed)
    return StorageError(f"{path}: {error.strerror or error}; the batch was not written")


class Log:
    """The log of a store, and its open end.

    Attributes:
        folder: the folder of the store.
        manifest: the file with the manifest.
        segments: all segments, in the order of replay; the last one is being written.
        failed: True after a failed write, until the last segment is sealed.
        synced: the file with the synced end of the log.
        reserve: room that is kept for a full disk.
        batch_bytes_max: the size of the largest batch, with its header.
        segment_bytes: the size of a segment's file at most.
        promised: the bytes that the running compaction will write, and that documents must not take; 0 for none.
        wanted: the size of a batch that did not fit, for which the next `make_room` tries to make room; 0 for none.
    """

    def __init__(
        self,
        disk: Disk,
        folder: Path,
        manifest: ManifestFile,
        random: Callable[[int], bytes],
        *,
        segment_bytes: int,
        arena_bytes: int,
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.segments: list[Segment] = []
        self.failed: bool = False
        self.synced: Final = SyncedFile(disk, folder, manifest.content.store)
        self._lock = threading.Lock()  # for `segments`, which commits and compactions change from their threads
        self._segment_lock = threading.RLock()  # for the open segment: the loop's thread calls `make_room`, too
        self._disk = disk
        self._random = random
        self.batch_bytes_max: Final = arena_bytes + batches.BATCH_HEADER_BYTES
        # A segment must have room for the largest batch, because a batch never spans two files.
        self.segment_bytes: int = max(segment_bytes, SEGMENT_HEADER_BYTES + 2 * self.batch_bytes_max)
        self.reserve: Final = Reserve(disk, folder, 0)
        self.promised: int = 0
        self.wanted: int = 0
        self._is_small = True
        self._batch_bytes = self._batch_bytes_least = self.batch_bytes_min
        self._disk_bytes = 0

    @property
    def store_uuid(self) -> str:
        """The store's uuid: 32 hex digits."""
        return self.manifest.content.store.hex()

    @property
    def current(self) -> Segment:
        """The segment that is being written."""
        return self.segments[-1]

    @property
    def bytes(self) -> int:
        """The total size of all segments in bytes."""
        return sum(segment.end for segment in self.segments)

    @property
    def batch_bytes_min(self) -> int:
        """The least room for a batch, in bytes; with less, documents are refused."""
        return min(SMALL_BATCH if self._is_small else BATCH_FIRST, self.batch_bytes_max)

    @property
    def control_bytes(self) -> int:
        """The bytes reserved after each batch for vbucket records and deletions, even on a full disk."""
        share = 0 if self._is_small else self._disk_bytes // CONTROL_PARTS
        return min(self.batch_bytes_max // 4, max(CONTROL_MIN, share))

    @property
    def _control_bytes_min(self) -> int:
        """The room in bytes below which `make_room` reserves more for deletions."""
        return min(self.control_bytes, max(CONTROL_MIN // 2, self.control_bytes // 4))

    @property
    def segment_bytes_now(self) -> int:
        """The size in bytes at which a segment counts as full: on a small disk less than `segment_bytes`."""
        return min(self.segment_bytes, max(SEGMENT_MIN, self._disk_bytes // SEGMENT_PARTS))

    @property
    def _reserve_bytes(self) -> int:
        """The intended size of the reserve in bytes.

        The reserve has pieces for deletions, a piece for records, and enough room to rewrite any segment, which frees
        room again. It is not larger than about the size of the log.
        """
        least = min(RESERVE_MIN, 3 * self.batch_bytes_max // 2)
        most = max(least, self.segment_bytes_now + (DELETION_PIECES + 1) * self.control_bytes)
        if self.reserve.held >= most:
            return most  # the usual case, without adding up all segments
        return min(most, max(least, 1 << self.bytes.bit_length()))  # a power of 2: it does not grow with each batch

    @property
    def _piece_bytes(self) -> int:
        return min(self.control_bytes, self.reserve.size // 4)

    @property
    def may_delete(self) -> bool:
        """True if there is still room for deletions: reserved room, or one of the reserve's pieces for deletions."""
        return self.room >= self._control_bytes_min or self.reserve.held > self._reserve_least

    @property
    def _reserve_least(self) -> int:
        """The bytes of the reserve that deletions must not use, because the compaction that follows them needs
        these.
        """
        return self.reserve.size - DELETION_PIECES * self._piece_bytes

    def give_to_delete(self, count: int) -> bool:
        """Release up to `count` bytes of the reserve's pieces for deletions.

        Returns:
            False if no bytes of these pieces were left.
        """
        count = min(count, self.reserve.held - self._reserve_least)
        return count > 0 and self.reserve.give(count)

    @property
    def free_bytes(self) -> int:
        """The bytes that a compaction may write: the free bytes of the disk without room for two batches, and the
        reserve without one piece.
        """
        # While documents are accepted, the compaction leaves them room; otherwise writes would be refused.
        ahead = 0 if self.is_full else 2 * self._batch_bytes
        return max(0, self._disk.free(self.folder) - ahead) + max(0, self.reserve.held - self._piece_bytes)

    @property
    def disk_free_bytes(self) -> int:
        """The free bytes of the disk, as any program sees them."""
        return self._disk.free(self.folder)

    @property
    def room(self) -> int:
        """The bytes of frames for which the next batch certainly has room; 0 after a failed write."""
        # After a failed write it is unknown which bytes are on disk, so no room may be promised in that segment.
        if self.failed or not self.segments:
            return 0
        return max(0, self.current.reserved - self.current.end - batches.BATCH_HEADER_BYTES)

    @property
    def is_full(self) -> bool:
        """True if there is no room for documents."""
        if self.failed or not self.segments:
            return True
        segment = self.segments[-1]  # without `room`, because each request needs this property
        return segment.reserved - segment.end < self._batch_bytes_least

    @property
    def is_short(self) -> bool:
        """True if the disk will be full soon: it has room for less than two segments besides the reserve."""
        return self._disk.free(self.folder) < 2 * self.segment_bytes_now

    def crowded(self) -> None:
        """Note that a batch used most of its room: later batches get twice as much, if the disk is large enough.

        A small log keeps its small batches until a change does not fit.
        """
        if self._is_small:
            return
        # On a small disk larger batches would leave a compaction no room to write a segment anew.
        most = min(self.batch_bytes_max, max(self.batch_bytes_min, self._disk_bytes // BATCH_PARTS))
        self._batch_bytes = min(2 * self._batch_bytes, most)

    def start(self) -> None:
        """Make room for the first batch; create the first segment if the store has none."""
        # First of all, so that the first batch's end is recorded. On a full disk the store starts without this record.
        self.synced.start()
        self.reserve.start()
        self.look_at_disk()
        if self.segments:
            # The bytes that the start made durable are recorded, so that a later start finds out if they are gone.
            self.synced.catch_up(self.current.header.id, self.current.end, self.current.next_number)
            self.current.find_room()
            if self.bytes - self.current.end + self.current.reserved > SMALL_LOG_BYTES + 2 * SMALL_BATCH:
                self._outgrow()
        else:
            self._roll()
        self.make_room()

    def declare(self, edit: Callable[[Manifest], Manifest]) -> None:
        """Change the manifest, to record a fact that programs must know before they open the folder; durable on return.

        Args:
            edit: returns the changed manifest.

        Raises:
            DiskFull, StorageError: the manifest could not be written.
        """
        try:
            self._change(edit)
        except OSError as error:
            raise full_error(self.folder, 0, error) from error

    def write(self, batch: Batch) -> None:
        """Append a batch and sync it.

        Raises:
            DiskFull, StorageError: the batch is lost; the next write begins a new segment.
        """
        # The frames are checked before they get a checksum: with invalid frames in the log, every later start would
        # fail.
        frames = count_frames(batch.arena.data, batch.arena.used)
        if frames < 0:
            raise StorageError(f"{self.folder}: the staged bytes are not whole frames; a kernel wrote nonsense")
        try:
            with self._segment_lock:
                self._prepare()
                self._append(batch, int(frames))
        except OSError as error:
            # Nothing is written behind a failed write or sync, and the sync is not repeated: the kernel may have
            # dropped the pages that it could not write, and would report success.
            self.failed = True
            raise full_error(self.folder, batch.arena.used, error) from error
        except BaseException:
            self.failed = True
            raise
        # Outside of the try: the batch is on disk, and a lack of room for the next one must not lose it.
        self.make_room()

    def _prepare(self) -> None:
        """Make sure that the manifest allows a batch to be appended, and that the open segment has no failed write."""
        self.manifest.settle()
        # Before the first new byte: while the manifest has the end of a cleanly closed log, a start refuses a log with
        # another end (recovery.check_clean).
        if self.manifest.content.clean is not None:
            self._change(lambda manifest: replace(manifest, clean=None))
        # The manifest settles first: while it is uncertain which manifest is on disk, it may not name the new segment.
        if self.failed:
            self._roll()

    def _append(self, batch: Batch, frames: int) -> None:
        failpoint("log.append")
        segment, body = self.current, batch.frames
        node_invariant(batch.segment is None, "a batch of {} bytes is written twice", len(body))
        node_invariant(segment.end >= SEGMENT_HEADER_BYTES, "{}: ends at byte {}", segment.path, segment.end)
        if segment.end + batches.BATCH_HEADER_BYTES + len(body) > segment.size:
            raise StorageError(f"{segment.path}: a batch of {len(body)} bytes was staged, {self.room} were promised")
        # The offset is part of the checksum's seed, so the bytes of a batch inside of a stored value are never a valid
        # batch.
        header = batches.header_of(segment.next_number, frames, body, segment.header.salt, segment.end)
        segment.writable().write([header, body], segment.end, is_unread=batch.is_unread)
        failpoint("log.before_sync")
        # When this call returns, the batch is durable, and answers that wait for it may be sent.
        segment.writable().sync()
        failpoint("log.after_sync")
        # Before `make_room` begins the next segment: the loop's thread reads both fields without a lock
        # (Committing.settled_segments).
        batch.segment, batch.body = segment, segment.end + len(header)
        begun, segment.end = segment.end, segment.end + len(header) + len(body)
        if not batch.is_unread:  # streams read this soon: its pages are mapped here, not by faults in the loop's thread
            page = begun - begun % mmap.PAGESIZE
            segment.writable().populate(segment.memory[page:], segment.end - page)
        segment.reserved = max(segment.reserved, segment.end)
        segment.batches += 1
        # After the sync, and before any answer is sent: if a later start finds less of the log than this record says,
        # it knows that acknowledged writes are gone, and refuses; without the record it would cut the end as
        # interrupted.
        self.synced.write(segment.header.id, segment.end, segment.next_number)

    def make_room(self, control: int = 0) -> None:
        """Reserve room for the next batch, in this segment or a new one. If the disk has no room, `room` stays small,
        without an error.

        Args:
            control: the bytes of records and deletions that must fit, even if the reserve must be used.
        """
        with self._segment_lock, contextlib.suppress(OSError):
            self.manifest.settle()
            # Used once: a large change that never comes again must not make the room of every later batch large.
            wanted_bytes, self.wanted = min(self.wanted, self.batch_bytes_max), 0
            if self.failed:
                self._roll()
            elif self._is_used_up(max(self._batch_bytes, wanted_bytes, control)):
                with contextlib.suppress(OSError):  # then the log continues in the present segment
                    self._roll()
            has_room = self._for_documents(wanted_bytes)
            # Without room for documents, the limit is above the room that is reserved for deletions now.
            self._batch_bytes_least = self.batch_bytes_min if has_room else min(BATCH_FIRST, self.batch_bytes_max)
            # Records and deletions have room of their own; otherwise nobody could free a full disk.
            if control or not has_room:
                self._for_control(control)

    def _may_outgrow(self) -> bool:
        """Stop treating the log as small, and fill the larger reserve that this needs. If the disk has no room for the
        reserve, change nothing and return False.
        """
        self._is_small = False
        self.reserve.size = self._reserve_bytes
        # The larger reserve comes before the larger log, which could otherwise not be compacted on a full disk.
        if self.reserve.fill():
            self._outgrow()
            return True
        self._is_small = True
        self.reserve.size = self._reserve_bytes
        self.reserve.fill()
        return False

    def _outgrow(self) -> None:
        self._is_small = False
        self._batch_bytes = max(self._batch_bytes, self.batch_bytes_min)

    def _is_used_up(self, needed: int) -> bool:
        """Return True if the segment has no room for a batch of `needed` bytes, or is large enough for this disk."""
        segment, most = self.current, self.segment_bytes_now
        return segment.size - segment.end < needed or segment.end >= max(most // 2, most - self._batch_bytes)

    def look_at_disk(self) -> None:
        """Determine the size of the disk that this store may use. Call this at the start, with each segment, and after
        a change of quota.

        The size of the reserve depends on this size: computed from an old one, the reserve could take half of a quota
        of 100 MiB.
        """
        self._disk_bytes = self._disk.free(self.folder) + self.bytes + self.reserve.held

    def _for_documents(self, wanted_bytes: int) -> bool:
        """Reserve room for a batch of documents of at least `wanted_bytes`; return True if there is room. The missing
        part of the reserve, and the bytes of a running compaction, come first.
        """
        if self._is_small and self.bytes + wanted_bytes > SMALL_LOG_BYTES and not self._may_outgrow():
            if self.bytes > SMALL_LOG_BYTES:
                return False
            wanted_bytes = 0  # a large document is refused by itself
        self.reserve.size = self._reserve_bytes
        if not self.reserve.fill() or self._is_needed_for_compaction():
            return False
        needed = max(self._batch_bytes, wanted_bytes)
        if self.current.reserved - self.current.end >= needed:
            return True
        ahead = 2 * needed  # twice the needed room, so that this is rare
        # If the disk has less, half as much, and half again: so it accepts small documents for as long as possible.
        while not self._is_set_aside(ahead):
            if ahead == self.batch_bytes_min:
                return False
            ahead = max(ahead // 2, self.batch_bytes_min)
        return True

    def _is_needed_for_compaction(self) -> bool:
        """Return True if the running compaction needs the rest of the disk."""
        return self.promised > 0 and self._disk.free(self.folder) - 2 * self._batch_bytes < self.promised

    def _is_set_aside(self, ahead: int) -> bool:
        """Reserve `ahead` bytes for documents; return False if the disk does not have them. Raises OSError for any
        other failure.
        """
        missing = min(self.current.size, self.current.end + ahead) - self.current.reserved
        try:
            # Checked before the try: some file systems keep a part of the blocks when they have too few.
            if self._disk.free(self.folder) >= missing:
                self._set_aside(ahead)
                return True
        except OSError as error:
            if not is_full(error):
                raise
        return False

    def _set_aside(self, ahead: int) -> None:
        segment = self.current
        upto = min(segment.size, segment.end + ahead)
        if upto > segment.reserved:
            segment.writable().reserve(segment.end, upto - segment.end)
            segment.reserved = upto

    def _for_control(self, needed: int) -> None:
        """Reserve room for records and deletions; release a part of the reserve if the disk has no other room.

        Args:
            needed: the bytes of records that must fit; 0 for deletions only, which use only the reserve's pieces for
                them.

        Raises:
            OSError: `needed` bytes do not fit.
        """
        ahead = needed + CONTROL_LEAST if needed else self.control_bytes
        least = needed or CONTROL_LEAST
        if self.current.reserved - self.current.end >= (needed or self._control_bytes_min):
            return
        while needed or self.may_delete:
            try:
                self._with_reserve(partial(self._set_aside, ahead), ahead)
            except OSError as error:
                if not is_full(error) or ahead <= least:
                    raise
                ahead = max(ahead // 4, least)
            else:
                return

    def _with_reserve(self, work: Callable[[], T], needed: int) -> T:
        """Do work that needs room on disk, and return its result. If the disk is full, release a piece of the reserve
        and repeat the work once.
        """
        try:
            return work()
        # The second try raises its own error if the piece of the reserve was not enough.
        except OSError as error:
            if not is_full(error) or not self.reserve.give(needed):
                raise
        return work()

    def _change(self, edit: Callable[[Manifest], Manifest], point: str = "segment") -> None:
        self._with_reserve(lambda: self.manifest.change(edit, point), self.control_bytes // 4)

    def _roll(self) -> None:
        """Seal the segment at its last durable batch, and continue in a new one."""
        fresh = self._fresh()
        failpoint("segment.created")
        try:
            # The manifest names the new segment before it gets a batch, because the next start removes an unnamed file.
            self._change(self._rolled(Entry(fresh.header.id, fresh.header.salt, None)))
        except BaseException:
            fresh.close()
            # If the manifest on disk is uncertain, it may name the new file, which must stay then: a start refuses a
            # manifest whose segment is missing.
            if not self.manifest.unsure:
                self.remove(fresh)
            raise
        with self._lock:
            newest = max((segment.header.id for segment in self.segments[-1:]), default=0)
            node_invariant(fresh.header.id > newest, "segment {} follows segment {}", fresh.header.id, newest)
            old, self.segments = self.segments[-1:], [*self.segments, fresh]
        # Only now, after the manifest is durable: the failed segment is sealed at its last durable batch, and bytes of
        # its failed write never count.
        self.failed = False
        self.look_at_disk()
        for segment in old:
            with contextlib.suppress(OSError):  # this only frees reserved space
                segment.seal()

    def _fresh(self) -> Segment:
        """Return a new segment with as much reserved room as the present one has promised to staged changes; sealing
        the present one frees its room.
        """
        first, room = 0, SEGMENT_HEADER_BYTES + self.control_bytes
        if self.segments:
            first = self.current.next_number
            if not self.failed:
                promised = SEGMENT_HEADER_BYTES + self.current.reserved - self.current.end
                room = max(min(SEGMENT_ROOM_MIN, self.control_bytes), promised)
        return self._with_reserve(lambda: self.create(first, self.segment_bytes, room), room)

    def _rolled(self, added: Entry) -> Callable[[Manifest], Manifest]:
        # The end of the last batch whose sync returned; later bytes may have been written.
        sealed_at = self.current.end if self.segments else 0

        def edit(manifest: Manifest) -> Manifest:
            sealed = tuple(replace(entry, bytes=sealed_at) for entry in manifest.segments[-1:])
            return replace(manifest, segments=(*manifest.segments[:-1], *sealed, added), clean=None)

        return edit

    def create(self, first_batch: int, size: int, reserve: int) -> Segment:
        """Create the file of a segment that no manifest names yet. Any thread may call this.

        Args:
            first_batch: the number of its first batch.
            size: the size of the file at most, in bytes.
            reserve: how many of these bytes are reserved on disk.

        Raises:
            OSError: the file can't be created.
        """
        salt = int.from_bytes(self._random(8), "big")
        # A new salt for each file, so that old bytes in its disk blocks, of another segment, are never valid batches.
        header = SegmentHeader(self.manifest.content.store, self.manifest.take_number(), salt, first_batch, size)
        return Segment.create(self._disk, self.folder, header, size, reserve)

    def remove(self, segment: Segment) -> None:
        """Remove the file of a segment that no manifest names; its memory and disk space stay while it has readers. Any
        thread may call this.

        Raises:
            OSError: the file can't be removed; the next start will remove it.
        """
        self._disk.remove(segment.path)

    @contextlib.contextmanager
    def making_room(self, needed: int) -> Iterator[None]:
        """Return a context in which a compaction can write `needed` bytes: documents must not take them, and the
        reserve is released if the disk has too few others.
        """
        self.promised = needed
        try:
            # The reserve is used only if the disk has too little room, because documents are refused until it is full
            # again.
            if self._disk.free(self.folder) < needed + self._piece_bytes:
                self.reserve.lend(keep=self._piece_bytes)
            yield
        finally:
            self.reserve.take_back()
            self.promised = 0

    def seal(self) -> None:
        """Seal the open segment, whatever its size, and begin a new one; do nothing if it is empty. Any thread may call
        this, but not during a `write`.

        Raises:
            DiskFull, StorageError: the segment stays open.
        """
        try:
            with self._segment_lock:
                self.manifest.settle()
                if self.current.batches:
                    self._roll()
                    self.make_room()
        except OSError as error:
            raise full_error(self.folder, self.control_bytes, error) from error

    def replace(self, old: list[Segment], new: list[Segment]) -> None:
        """Replace `old`, neighbouring sealed segments, by `new`, durably. Any thread may call this.

        Raises:
            OSError: the manifest can't be written.
            StorageError: the log no longer has the old segments.
        """
        entries = tuple(Entry(segment.header.id, segment.header.salt, segment.end) for segment in new)
        old_ids = [segment.header.id for segment in old]

        def edit(manifest: Manifest) -> Manifest:
            first = next((at for at, entry in enumerate(manifest.segments) if entry.id == old_ids[0]), 0)
            end = first + len(old_ids)
            # Compared while the manifest is locked, because the commit thread may have changed the list since the
            # survey.
            if [entry.id for entry in manifest.segments[first:end]] != old_ids:
                raise StorageError(f"{self.folder}: the log no longer has the segments that were compacted")
            return replace(manifest, segments=(*manifest.segments[:first], *entries, *manifest.segments[end:]))

        node_invariant(self.segments[-1] not in old, "the open segment is to be compacted")
        unsealed = [each.header.id for each in new if each.file is not None]
        node_invariant(not unsealed, "segments {} are to replace others, and are not sealed", unsealed)
        # The manifest comes before `segments`, so that disk and memory both keep the old files after a failure.
        self._change(edit, "compact")
        with self._lock:
            first = self.segments.index(old[0])
            node_invariant(self.segments[first : first + len(old)] == old, "segments {} are no stretch", old_ids)
            self.segments = [*self.segments[:first], *new, *self.segments[first + len(old) :]]

    def close(self, clean: bool) -> None:
        """Close the descriptors. If `clean` is True, the CLEAN frame was written: first record the end of the log in
        the manifest.
        """
        try:
            # After a failed write the log does not end with CLEAN, and the next start must begin a new branch.
            if clean and not self.failed:
                self.manifest.settle()
                self._change(lambda manifest: replace(manifest, clean=self.current.end))
        finally:
            self.synced.close()
            self.reserve.close()
            for segment in self.segments:
                segment.close()
