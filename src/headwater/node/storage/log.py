"""Writing the log: one batch at a time, each synced before the next.

Everything here runs on whatever thread calls `write`, never two at once; `ready` and `room` are read by the event loop
between two writes. What can fail:

* The disk is full. Room for the next batch is set aside (posix_fallocate) before it is promised: `room` tells how
  much, and whoever stages changes keeps below it. After each batch the next piece is set aside; when that fails `room`
  shrinks.
* A write or sync fails. Nobody knows what of the batch is on disk then, and asking again proves nothing (the kernel
  drops pages it could not write). The batch is lost; its segment is sealed where it was last known to be good, and the
  next batch goes to a new one. The manifest carries the sealed length, so whatever the failed write left behind never
  counts.
* The manifest can't be replaced. As long as it is unsure which one is on disk nothing is written (ManifestFile.settle).
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from headwater.errors import DiskFull, StorageError
from headwater.failpoints import failpoint
from headwater.kernels.history import count_frames
from headwater.node.storage import batch as batches
from headwater.node.storage.arena import Batch
from headwater.node.storage.disk import Disk
from headwater.node.storage.manifest import Entry, Manifest, ManifestFile
from headwater.node.storage.segment import HEADER_BYTES, Segment, SegmentHeader

__all__ = ["SEGMENT_BYTES", "Log", "full_error"]

SEGMENT_BYTES: Final = 256 << 20


def full_error(path: Path, needed: int, error: OSError) -> Exception:
    """The same error as ours: DiskFull when it says that there is no room, StorageError else."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return DiskFull(path, needed)
    return StorageError(f"{path}: {error.strerror or error}; the batch was not written")


class Log:
    """The open end of the store.

    Attributes:
        segments: all of them, in the order in which they are replayed; the last one is being written.
        failed: a write failed: the last segment must be sealed before anything else is written.
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
        self.failed = False
        self._lock = threading.Lock()  # of `segments`: rolling and compaction change it from their threads
        self._disk = disk
        self._random = random
        self._arena_bytes = arena_bytes
        self.segment_bytes = max(segment_bytes, HEADER_BYTES + 2 * self.reserve_bytes)

    @property
    def current(self) -> Segment:
        """The segment that is being written."""
        return self.segments[-1]

    @property
    def reserve_bytes(self) -> int:
        """Set aside after each batch: the next one, whatever it is."""
        return self._arena_bytes + batches.HEADER_BYTES

    @property
    def room(self) -> int:
        """Bytes of frames that the next batch may have, surely."""
        if self.failed or not self.segments:
            return 0
        return max(0, self.current.reserved - self.current.end - batches.HEADER_BYTES)

    def start(self) -> None:
        """Make room for the first batch; a store that has no segment yet gets its first."""
        if not self.segments:
            self._roll()
        else:
            self.make_room()

    def write(self, batch: Batch) -> None:
        """Append and sync.

        Raises:
            DiskFull, StorageError: nothing of the batch counts; the log goes on with a new segment.
        """
        frames = count_frames(batch.arena.data, batch.arena.used)
        if frames < 0:
            raise StorageError(f"{self.folder}: the staged bytes are not whole frames; a kernel wrote nonsense")
        try:
            self.manifest.settle()
            if self.manifest.content.clean is not None:
                self.manifest.change(lambda manifest: replace(manifest, clean=None))
            if self.failed:
                self._roll()
            self._append(batch, int(frames))
        except OSError as error:
            self.failed = True
            raise full_error(self.folder, batch.arena.used, error) from error
        except BaseException:
            self.failed = True
            raise
        self.make_room()

    def _append(self, batch: Batch, frames: int) -> None:
        failpoint("log.append")
        segment, body = self.current, batch.frames
        if segment.end + batches.HEADER_BYTES + len(body) > segment.size:
            raise StorageError(f"{segment.path}: a batch of {len(body)} bytes was staged, {self.room} were promised")
        header = batches.header_of(segment.next_number, frames, body, segment.header.salt, segment.end)
        segment.writable().write([header, body], segment.end, unread=batch.is_unread)
        failpoint("log.before_sync")
        segment.writable().sync()
        failpoint("log.after_sync")
        batch.segment, batch.body = segment, segment.end + len(header)
        begun, segment.end = segment.end, segment.end + len(header) + len(body)
        if not batch.is_unread:  # streams read this soon: map its pages here, not fault by fault on the loop's thread
            page = begun - begun % mmap.PAGESIZE
            segment.writable().populate(segment.memory[page:], segment.end - page)
        segment.reserved = max(segment.reserved, segment.end)
        segment.batches += 1

    def make_room(self) -> None:
        """Set space aside for the next batch, in this segment or a new one; leaves `room` small when there is none."""
        with contextlib.suppress(OSError):  # the batch before is safe; `room` tells what the next one can have
            self.manifest.settle()
            if self.failed or self.current.size - self.current.end < self.reserve_bytes:
                self._roll()
            elif self.current.reserved - self.current.end < self.reserve_bytes:
                self._reserve(self.current)

    def _reserve(self, segment: Segment) -> None:
        """Twice what is needed, so that this is rare; what is needed, when the disk has no more."""
        missing = OSError(errno.ENOSPC, "no room")
        for ahead in (2 * self.reserve_bytes, self.reserve_bytes):
            upto = min(segment.size, segment.end + ahead)
            try:
                segment.writable().reserve(segment.end, upto - segment.end)
            except OSError as error:
                missing = error
                continue
            segment.reserved = upto
            return
        raise missing

    def _roll(self) -> None:
        """Seal the segment at its last durable batch and go on in a new one."""
        salt = int.from_bytes(self._random(8), "big")
        first = self.current.next_number if self.segments else 0
        header = SegmentHeader(self.manifest.content.store, self.manifest.take_number(), salt, first)
        ahead = HEADER_BYTES + self.reserve_bytes
        fresh = Segment.create(self._disk, self.folder, header, self.segment_bytes, ahead)
        failpoint("segment.created")
        try:
            self.manifest.change(self._rolled(Entry(header.id, salt, None)))
        except BaseException:
            fresh.close()
            if not self.manifest.unsure:
                self._disk.remove(fresh.path)
            raise
        with self._lock:
            old, self.segments = self.segments[-1:], [*self.segments, fresh]
        self.failed = False
        for segment in old:
            with contextlib.suppress(OSError):  # only gives back space that was set aside
                segment.seal()

    def _rolled(self, added: Entry) -> Callable[[Manifest], Manifest]:
        sealed_at = self.current.end if self.segments else 0

        def edit(manifest: Manifest) -> Manifest:
            sealed = tuple(replace(entry, bytes=sealed_at) for entry in manifest.segments[-1:])
            return replace(manifest, segments=(*manifest.segments[:-1], *sealed, added), clean=None)

        return edit

    def seal(self) -> None:
        """End the segment here, whatever its size (an empty one stays). Like `write`: any thread, never beside one.

        Raises:
            DiskFull, StorageError: it goes on.
        """
        try:
            self.manifest.settle()
            if self.current.batches:
                self._roll()
        except OSError as error:
            raise full_error(self.folder, self.reserve_bytes, error) from error

    def replace(self, old: list[Segment], new: list[Segment]) -> None:
        """Put `new` in the place of `old`, the first segments of the log: durably, or OSError. Any thread."""
        entries = tuple(Entry(one.header.id, one.header.salt, one.end) for one in new)
        gone = [one.header.id for one in old]

        def edit(manifest: Manifest) -> Manifest:
            if [entry.id for entry in manifest.segments[: len(gone)]] != gone:
                raise StorageError(f"{self.folder}: the log no longer begins with the segments that were compacted")
            return replace(manifest, segments=(*entries, *manifest.segments[len(gone) :]))

        self.manifest.change(edit, "compact")
        with self._lock:
            self.segments = [*new, *self.segments[len(old) :]]

    def close(self, clean: bool) -> None:
        """Give the descriptors back; `clean`: the last frame says so, write down where it ends."""
        try:
            if clean and not self.failed:
                self.manifest.settle()
                self.manifest.change(lambda manifest: replace(manifest, clean=self.current.end))
        finally:
            for segment in self.segments:
                segment.close()
