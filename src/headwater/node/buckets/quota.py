"""A disk that is full when the bucket's quota is used up, however much room the real disk has.

On a full disk the store refuses documents, but accepts deletions and compacts, and accepts documents again once there
is room. So a quota is implemented as a small disk. It counts the bytes of the bucket's files, including the room
reserved for the next batches. Text files of some hundred bytes are always written, because they record the drops that
make room.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.node.storage.disk import Buffer, Disk, File, FolderLock

__all__ = ["QUOTA_MIB_MIN", "QuotaDisk"]

QUOTA_MIB_MIN = 64
_SMALL_BYTES = 64 << 10
_NO_LIMIT = 1 << 62


class QuotaDisk:
    """The disk of one bucket's folder. All methods may be called from any thread, like those of the underlying disk.

    Args:
        disk: the underlying disk.
        quota_mib: the limit, in MiB, of the total size of files opened and created through this disk; 0 for no limit.

    Attributes:
        limit: the limit in bytes.
    """

    def __init__(self, disk: Disk, quota_mib: int) -> None:
        self.limit: int = _limit(quota_mib)
        self._disk = disk
        self._taken: dict[Path, int] = {}
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """The total size of the files in bytes."""
        with self._lock:
            return sum(self._taken.values())

    def set_quota(self, quota_mib: int) -> None:
        """Set the limit in MiB, 0 for none. If the files are larger already, the disk counts as full at once."""
        self.limit = _limit(quota_mib)

    def check(self, path: Path, more: int) -> None:
        """Raise OSError, as a full disk would, if `more` bytes do not fit."""
        if more > _SMALL_BYTES and self.used + more > self.limit:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(path))

    def note(self, path: Path, size_bytes: int) -> None:
        """Record the size of a file in bytes."""
        with self._lock:
            self._taken[path] = size_bytes

    # --- Disk ---------------------------------------------------------------------------------------------------------

    def make_directory(self, path: Path) -> None:
        """Create a directory and its missing parents."""
        self._disk.make_directory(path)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        self._disk.remove_directory(path)

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        return self._disk.names(path)

    def lock(self, path: Path) -> FolderLock:
        """Take the lock file at `path`, or raise StoreLocked."""
        return self._disk.lock(path)

    def create(self, path: Path, size: int) -> File:
        """Create a new file of `size` zero bytes, which are not allocated on the disk yet."""
        return _CountedFile(self, path, self._disk.create(path, size))

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""
        return _CountedFile(self, path, self._disk.open(path))

    def read(self, path: Path) -> bytes:
        """Return the content of a small file."""
        return self._disk.read(path)

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing it atomically."""
        self._disk.rename(source, target)
        with self._lock:
            self._taken[target] = self._taken.pop(source, 0)

    def remove(self, path: Path) -> None:
        """Delete a file (its memory maps stay valid)."""
        self._disk.remove(path)
        with self._lock:
            self._taken.pop(path, None)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        self._disk.sync_directory(path)

    def free(self, path: Path) -> int:
        """Return the free bytes of the quota, or of the disk if these are fewer."""
        return max(0, min(self._disk.free(path), self.limit - self.used))


def _limit(quota_mib: int) -> int:
    return quota_mib << 20 if quota_mib else _NO_LIMIT


class _CountedFile:
    """A file that reports its size to the quota."""

    def __init__(self, disk: QuotaDisk, path: Path, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file
        self._count()

    def _count(self) -> None:
        # The allocated bytes count, not the file's length, because files may have large holes.
        self._disk.note(self._path, self._file.allocated())

    def write(self, buffers: Sequence[Buffer], offset: int, *, is_unread: bool = False) -> None:
        end = offset + sum(memoryview(buffer).nbytes for buffer in buffers)
        more = end - self._file.allocated()
        if more > 0:
            self._disk.check(self._path, more)
        self._file.write(buffers, offset, is_unread=is_unread)
        if more > 0:
            self._count()

    def sync(self) -> None:
        self._file.sync()

    def reserve(self, offset: int, count: int) -> None:
        more = min(count, offset + count - self._file.allocated())
        if more > 0:
            self._disk.check(self._path, more)
        self._file.reserve(offset, count)
        self._count()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        self._count()

    def size(self) -> int:
        return self._file.size()

    def allocated(self) -> int:
        return self._file.allocated()

    def data_end(self, offset: int) -> int:
        return self._file.data_end(offset)

    def map(self) -> NDArray[np.uint8]:
        return self._file.map()

    def populate(self, mapped: NDArray[Any], count: int) -> None:
        self._file.populate(mapped, count)

    def close(self) -> None:
        self._file.close()
