"""The file system, passed as an argument: the interface that the store needs, and its implementation.

No other module in storage/ uses a file directly. testing/faults.py has another implementation, for tests: it fills up,
fails, writes short and loses bytes that were not synced.

A segment is written by `write` and read through `map`; written bytes appear in the map at once (through the page cache
on a real disk). OSErrors are not handled here, but by the log.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StoreLocked
from headwater.folders import make_folder, sync_folder
from headwater.node.storage.direct import BLOCK_BYTES, DirectWriter

__all__ = ["Buffer", "Disk", "File", "FolderLock", "RealDisk", "is_full"]

Buffer: TypeAlias = "bytes | memoryview"

FOLDER_MODE, FILE_MODE = 0o700, 0o600  # documents are for the node alone

_POPULATE_READ = 22  # MADV_POPULATE_READ (Linux 5.14): map all pages of a range in one call
_PAGE = mmap.PAGESIZE

# What is written at once is what the page cache tries to keep in one piece of memory. Large pieces are rare memory: on
# virtual machines that give free memory back to their host, they must be fetched from there first. In pieces of 64 KiB
# a write of many MiB took a third to a half of the processor time.
_PIECE_BYTES = 64 << 10


def is_full(error: OSError) -> bool:
    """Return True if an error means that the disk has no room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class File(Protocol):
    """An open file of fixed capacity."""

    def write(self, buffers: Sequence[Buffer], offset: int, *, is_unread: bool = False) -> None:
        """Write all buffers, one after the other, from `offset` on. Raises OSError if not all bytes were written.

        `is_unread` is a hint that the bytes are many, and will hardly be read soon.
        """

    def sync(self) -> None:
        """Make everything written, and the file's size, durable."""

    def reserve(self, offset: int, count: int) -> None:
        """Allocate a range, so that a later write to it can't fail for lack of space. Raises OSError (ENOSPC) if the
        disk is full.
        """

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to `size` bytes."""

    def size(self) -> int:
        """Return the number of bytes in the file."""

    def allocated(self) -> int:
        """Return the bytes of the disk that the file occupies, written or reserved (a hole occupies none)."""

    def data_end(self, offset: int) -> int:
        """Return an offset, at or after `offset`, from which on the file is a hole of zeros."""

    def map(self) -> NDArray[np.uint8]:
        """Map the whole file, in its present size, as read-only memory. The map stays valid while the array is
        referenced.
        """

    def populate(self, mapped: NDArray[np.uint8], count: int) -> None:
        """Hint: the first `count` bytes of the map will all be read now."""

    def close(self) -> None:
        """Close the descriptor (maps stay valid)."""


class FolderLock(Protocol):
    """A lock of a directory."""

    def release(self) -> None:
        """Release the lock for other processes."""


class Disk(Protocol):
    """A file system: the operations that the store needs."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its missing parents."""

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""

    def lock(self, path: Path) -> FolderLock:
        """Take the lock file at `path`, or raise StoreLocked."""

    def create(self, path: Path, size: int) -> File:
        """Create a new file of `size` zero bytes, which are not allocated on the disk yet."""

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""

    def read(self, path: Path) -> bytes:
        """Return the content of a small file."""

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing it atomically."""

    def remove(self, path: Path) -> None:
        """Delete a file (its memory maps stay valid)."""

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""

    def free(self, path: Path) -> int:
        """Return the free bytes of a directory's file system that this process may use."""


def _first(buffers: list[memoryview], count: int) -> list[memoryview]:
    """Return the first `count` bytes of the buffers."""
    parts: list[memoryview] = []
    for buffer in buffers:
        parts.append(buffer[:count])
        count -= len(parts[-1])
        if not count:
            break
    return parts


class _RealFile:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._direct = DirectWriter(descriptor)

    def write(self, buffers: Sequence[Buffer], offset: int, *, is_unread: bool = False) -> None:
        rest = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
        while rest:
            written = self._direct.write(rest[0], offset) if is_unread else 0
            if not written:
                step = BLOCK_BYTES if is_unread and self._direct.works else _PIECE_BYTES
                written = os.pwritev(self._descriptor, _first(rest, step - offset % step), offset)
            # Without this check, a write of 0 bytes without an error would lead to an endless loop.
            if written <= 0:
                raise OSError(errno.EIO, "the disk took no bytes")
            offset += written
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest and written:
                rest[0] = rest[0][written:]

    def sync(self) -> None:
        # fdatasync also syncs a changed size, but not the times, which would cost a second write.
        os.fdatasync(self._descriptor)

    def reserve(self, offset: int, count: int) -> None:
        # Without this, a write into a hole could fail for lack of space, after its room was promised.
        os.posix_fallocate(self._descriptor, offset, count)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def allocated(self) -> int:
        # The unit of st_blocks is 512 bytes whatever the file system's own blocks are.
        return os.fstat(self._descriptor).st_blocks * 512

    def data_end(self, offset: int) -> int:
        end = offset
        try:
            # From the last piece of data to the next: a torn write may have left a hole between two pieces.
            while True:
                end = os.lseek(self._descriptor, os.lseek(self._descriptor, end, os.SEEK_DATA), os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: no data behind `end`
                raise
        return end

    def map(self) -> NDArray[np.uint8]:
        size = self.size()
        if size == 0:
            return np.zeros(0, np.uint8)
        return np.frombuffer(mmap.mmap(self._descriptor, size, prot=mmap.PROT_READ), np.uint8)

    def populate(self, mapped: NDArray[np.uint8], count: int) -> None:
        if sys.platform == "linux" and count:
            length = (min(count, len(mapped)) + _PAGE - 1) // _PAGE * _PAGE
            _libc().madvise(ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(length), _POPULATE_READ)

    def close(self) -> None:
        os.close(self._descriptor)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None)


class _RealLock:
    def __init__(self, *descriptors: int) -> None:
        self._descriptors = descriptors

    def release(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)


class RealDisk:
    """The operating system's file system (POSIX)."""

    def make_directory(self, path: Path) -> None:
        """Create a directory and its missing parents; their names are durable on return."""
        make_folder(path, FOLDER_MODE)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        return sorted(entry.name for entry in path.iterdir())

    def lock(self, path: Path) -> FolderLock:
        """Lock the file at `path`, which then has this process's number, and its folder; or raise StoreLocked.

        The lock of the folder matters because somebody may remove the lock file; the folder can't be removed while it
        contains a store.
        """
        held: list[int] = []
        try:
            # If somebody removed the lock file, a second process would create and lock a new one.
            held.append(os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            with contextlib.suppress(OSError):  # some file systems lock no folders
                self._flock(held[0], path)
            held.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
            self._flock(held[1], path)
        except BaseException:
            _RealLock(*held).release()
            raise
        with contextlib.suppress(OSError):  # on a full disk: the lock counts, the number is a courtesy
            os.ftruncate(held[1], 0)
            os.pwrite(held[1], f"{os.getpid()}\n".encode(), 0)
        return _RealLock(*held)

    @staticmethod
    def _flock(descriptor: int, path: Path) -> None:
        try:
            # The system drops this lock with the process, so a kill leaves none behind; a file with a number would.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text("ascii", "replace").strip() if path.exists() else ""
            raise StoreLocked(path.parent, f"process {holder}" if holder else "") from None

    def create(self, path: Path, size: int) -> File:
        """Create a new file of `size` zero bytes, which are not allocated on the disk yet."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return _RealFile(descriptor)

    def open(self, path: Path) -> File:
        """Open an existing file for reading and writing."""
        return _RealFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    def read(self, path: Path) -> bytes:
        """Return the content of a small file."""
        return path.read_bytes()

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing it atomically."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Delete a file (its memory maps stay valid)."""
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        sync_folder(path)

    def free(self, path: Path) -> int:
        """Return the free bytes of a directory's file system that this process may use."""
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize
