"""A disk in memory that fails on request: full, broken, short, and forgetful when the power goes.

    disk = FaultyDisk(capacity=1 << 20)
    disk.fail(7, errno.EIO)              the 7th change from now on fails
    after = disk.crash(random)           the disk a restarted process finds

A crash may lose everything that was not synced: of every write any 512-byte pieces may have reached the disk, of the
changes to the folder's names any number, in order. A sync that failed loses the data that it should have saved, and a
later sync that succeeds does not bring them back (as on Linux).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StoreLocked
from headwater.node.storage.disk import Buffer

__all__ = ["Content", "FaultyDisk"]

SECTOR = 512
GROWTH_BYTES_MAX = 8 << 20


@dataclass(slots=True)
class Content:
    """A file: as programs see it, as the disk has it, and the changes in between.

    Attributes:
        memory: its first `size` bytes are what programs see.
        durable: the synced content.
        pending: the changes since the last sync: (offset, bytes) or a new size.
        reserved: bytes that take room on the disk.
    """

    memory: NDArray[np.uint8]
    size: int
    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes] | int] = field(default_factory=list)
    reserved: int = 0

    @classmethod
    def of(cls, content: bytes) -> Content:
        """Return a file with this content, synced."""
        memory = np.frombuffer(content, np.uint8).copy()
        return cls(memory, len(content), bytearray(content), reserved=len(content.rstrip(b"\0")))

    def resize(self, size: int) -> None:
        """Change the size, without a sync."""
        self._grow(size)
        self.pending.append(size)

    def write(self, data: bytes, offset: int) -> None:
        """Write bytes, without a sync."""
        if offset + len(data) > self.size:
            self._grow(offset + len(data))
        self.memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)
        self.pending.append((offset, data))

    def settle(self) -> None:
        """Sync the file."""
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def after_cut(self, random: Random, lose: float) -> bytes:
        """Return a file after a power cut: synced data, and of the rest each piece with probability 1 - `lose`."""
        content = bytearray(self.durable)
        for change in self.pending:
            for piece in _pieces(change):
                if random.random() >= lose:
                    _apply(content, piece)
        return bytes(content)

    def _grow(self, size: int) -> None:
        if size > len(self.memory):
            grown = np.zeros(max(size, min(2 * size, size + GROWTH_BYTES_MAX)), np.uint8)
            grown[: self.size] = self.memory[: self.size]
            self.memory = grown
        self.memory[min(size, self.size) : max(size, self.size)] = 0
        self.size = size


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
    else:
        offset, data = change
        content.extend(bytes(max(0, offset + len(data) - len(content))))
        content[offset : offset + len(data)] = data


class _File:
    def __init__(self, disk: FaultyDisk, inode: Content) -> None:
        self._disk = disk
        self._inode = inode

    def write(self, buffers: Sequence[Buffer], offset: int, *, is_unread: bool = False) -> None:
        data, inode = b"".join(bytes(buffer) for buffer in buffers), self._inode
        error = self._disk.turn()
        if error:
            # A write that fails has written a part, as a real one may.
            data = data[: len(data) // 2]
        self._disk.take(inode, offset + len(data))
        inode.write(data, offset)
        if error:
            raise error

    def sync(self) -> None:
        error = self._disk.turn()
        if error:
            # As on Linux: the pages count as clean after a failed sync, and no later one writes them.
            self._inode.pending.clear()
            raise error
        self._inode.settle()

    def reserve(self, offset: int, count: int) -> None:
        self._disk.step()
        self._disk.take(self._inode, offset + count)
        if offset + count > self._inode.size:
            self._inode.resize(offset + count)

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._inode.resize(size)
        self._inode.reserved = min(self._inode.reserved, size)

    def size(self) -> int:
        return self._inode.size

    def allocated(self) -> int:
        return self._inode.reserved

    def data_end(self, offset: int) -> int:
        nonzero = np.flatnonzero(self._inode.memory[offset : self._inode.size])
        return offset + (int(nonzero[-1]) + 1 if len(nonzero) else 0)

    def map(self) -> NDArray[np.uint8]:
        view = self._inode.memory[: self._inode.size]
        view.flags.writeable = False
        return view

    def populate(self, mapped: NDArray[np.uint8], count: int) -> None:
        """Do nothing: the memory exists already."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class _Lock:
    def __init__(self, disk: FaultyDisk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def release(self) -> None:
        self._disk.locks.discard(self._path)


class FaultyDisk:
    """A disk (node/storage/disk.py) in memory.

    Attributes:
        capacity: bytes for all files, None for no limit; may be changed at any time.
        calls: number of changes so far (each write, sync, reservation, new size, and change or sync of names).
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.calls: int = 0
        self.locks: set[Path] = set()
        self._failures: dict[int, int] = {}
        self._broken: int | None = None
        self._names: dict[Path, Content] = {}
        self._durable_names: dict[Path, Content] = {}
        self._renames: list[dict[Path, Content]] = []  # what the names were after each change since the last sync

    # ------------------------------------------------------------------ faults

    def fail(self, nth: int, number: int = errno.EIO, forever: bool = False) -> None:
        """Plan failures: the n-th change from now fails with this errno, and all later ones if `forever`."""
        if forever:
            self._broken = self.calls + nth
            self._failures = {-1: number}
        else:
            self._failures[self.calls + nth] = number

    def heal(self) -> None:
        """Stop failing."""
        self._failures.clear()
        self._broken = None

    def turn(self) -> OSError | None:
        """Count a change; return the error that is planned for it, or None."""
        self.calls += 1
        number = self._failures.get(self.calls)
        if self._broken is not None and self.calls >= self._broken:
            number = self._failures[-1]
        return OSError(number, os.strerror(number)) if number else None

    def step(self) -> None:
        """Count a change, and raise the error that is planned for it, if any."""
        if error := self.turn():
            raise error

    def take(self, inode: Content, end: int) -> None:
        """Reserve room for a file up to the offset `end`; OSError (ENOSPC) if there is none."""
        used = sum(each.reserved for each in self._names.values())
        new_bytes = max(0, end - inode.reserved)
        if new_bytes and self.capacity is not None and used + new_bytes > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        inode.reserved = max(inode.reserved, end)

    def crash(self, random: Random, lose: float = 0.5) -> FaultyDisk:
        """Return the disk after a power cut: synced data, and of the rest each piece with probability 1 - `lose`."""
        after = FaultyDisk(self.capacity)
        states = [self._durable_names, *self._renames]
        # Any number of changes of names may have reached the disk, but only in order: so one of the states after each.
        files = states[random.randrange(len(states)) if 0 < lose < 1 else (0 if lose else -1)]
        for path, inode in files.items():
            after.put(path, inode.after_cut(random, lose))
        return after

    def put(self, path: Path, content: bytes) -> None:
        """Place a file on the disk, synced."""
        self._names[path] = self._durable_names[path] = Content.of(content)

    def files(self) -> dict[Path, bytes]:
        """Return all files as programs see them."""
        return {path: inode.memory[: inode.size].tobytes() for path, inode in self._names.items()}

    # ------------------------------------------------------------------ the disk

    def make_directory(self, path: Path) -> None:
        """Do nothing: folders need not be created here."""

    def names(self, path: Path) -> list[str]:
        """Return the names in a directory."""
        return sorted(each.name for each in self._names if each.parent == path)

    def lock(self, path: Path) -> _Lock:
        """Take the lock at `path`, or raise StoreLocked."""
        if path in self.locks:
            raise StoreLocked(path.parent)
        self.locks.add(path)
        return _Lock(self, path)

    def create(self, path: Path, size: int) -> _File:
        """Create a file of `size` zero bytes."""
        self.step()
        inode = Content(np.zeros(size, np.uint8), size, pending=[size])
        self._rename({**self._names, path: inode})
        return _File(self, inode)

    def open(self, path: Path) -> _File:
        """Open an existing file."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return _File(self, self._names[path])

    def read(self, path: Path) -> bytes:
        """Return a file's content."""
        inode = self._names[path]
        return inode.memory[: inode.size].tobytes()

    def rename(self, source: Path, target: Path) -> None:
        """Rename `source` to `target`, replacing a file there."""
        self.step()
        names = dict(self._names)
        names[target] = names.pop(source)
        self._rename(names)

    def remove(self, path: Path) -> None:
        """Delete a name."""
        self.step()
        self._rename({name: inode for name, inode in self._names.items() if name != path})

    def remove_directory(self, path: Path) -> None:
        """Count a change; a directory vanishes with its last file."""
        self.step()

    def sync_directory(self, path: Path) -> None:
        """Make the names durable."""
        self.step()
        self._durable_names = self._names
        self._renames.clear()

    def free(self, path: Path) -> int:
        """Return the number of free bytes."""
        used = sum(each.reserved for each in self._names.values())
        return 1 << 62 if self.capacity is None else max(0, self.capacity - used)

    def _rename(self, names: dict[Path, Content]) -> None:
        self._names = names
        self._renames.append(names)


def _pieces(change: tuple[int, bytes] | int) -> list[tuple[int, bytes] | int]:
    """Return the pieces of a change that may reach the disk separately: the sectors of a write."""
    if isinstance(change, int):
        return [change]
    offset, data = change
    cuts = [0, *range(SECTOR - offset % SECTOR, len(data), SECTOR), len(data)]
    return [(offset + begin, data[begin:end]) for begin, end in pairwise(cuts) if begin < end]
