"""Files and folders of a disk that keeps synced data over a power cut, and a random part of the rest.

    disk = Tree()
    disk.create("/a"); disk.write("/a", b"v", 0)
    disk.sync("/a"); disk.sync_folder("/")      the file, and that its name is in the folder: two things
    left = disk.after_cut(random, lose=0.5)     another Tree

POSIX promises no more than this, and file systems differ in what they do beyond it, so this one does nothing beyond:

- of a file that was not synced any 512-byte pieces of each write may have reached the disk, whatever their order;
- a folder's names are those of its last sync, or of any moment since then, each folder for itself: a file that is
  synced may have no name yet, and one whose name is there may have nothing in it;
- a name is in one folder: nothing moves from one folder to another (EXDEV).

Once it is `frozen` every change fails (EIO), as does every read: the power is gone, the program does not know it yet.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from stat import S_IFDIR, S_IFREG

from headwater.testing.faults import Content

__all__ = ["Folder", "Leaf", "Tree"]

FOLDER, FILE = S_IFDIR | 0o755, S_IFREG | 0o644


@dataclass(eq=False, slots=True)
class Leaf:
    """A file.

    Attributes:
        number: its inode's number. links: the number of its names.
    """

    number: int
    content: Content
    mode: int = FILE
    links: int = 1


@dataclass(eq=False, slots=True)
class Folder:
    """A folder.

    Attributes:
        names: as programs see them. durable: as synced. since: the names after each change since the last sync.
    """

    number: int
    mode: int = FOLDER
    names: dict[str, Folder | Leaf] = field(default_factory=dict)
    durable: dict[str, Folder | Leaf] = field(default_factory=dict)
    since: list[dict[str, Folder | Leaf]] = field(default_factory=list)

    def change(self, names: dict[str, Folder | Leaf]) -> None:
        """Replace the names, without a sync."""
        self.names = names
        self.since.append(names)

    def settle(self) -> None:
        """Sync the names."""
        self.durable = self.names
        self.since.clear()


def _error(number: int, path: str = "") -> OSError:
    return OSError(number, os.strerror(number), path)


class Tree:
    """A disk.

    Attributes:
        is_frozen: True if the power is gone.
        changes: the number of changes: writes, syncs, new sizes, and changes of names.
        cut_at: the number of the change at which the power goes; None for never.
        lies: True if it reports syncs of files that it does not do.
    """

    def __init__(self) -> None:
        self.is_frozen = False
        self.changes = 0
        self.cut_at: int | None = None
        self.lies = False
        self._numbers = count(2)
        self._root = Folder(1)

    # --- what programs do ---------------------------------------------------------------------------------------------

    def find(self, path: str) -> Folder | Leaf:
        """Return the file or folder at a path. Raises OSError ENOENT, ENOTDIR, or EIO once it is frozen."""
        if self.is_frozen:
            raise _error(errno.EIO, path)
        entry: Folder | Leaf = self._root
        for name in filter(None, path.split("/")):
            if not isinstance(entry, Folder):
                raise _error(errno.ENOTDIR, path)
            if name not in entry.names:
                raise _error(errno.ENOENT, path)
            entry = entry.names[name]
        return entry

    def file(self, path: str) -> Leaf:
        """Return the file at a path. Raises OSError, EISDIR for a folder."""
        entry = self.find(path)
        if isinstance(entry, Folder):
            raise _error(errno.EISDIR, path)
        return entry

    def folder(self, path: str) -> Folder:
        """Return the folder at a path. Raises OSError, ENOTDIR for a file."""
        entry = self.find(path)
        if not isinstance(entry, Folder):
            raise _error(errno.ENOTDIR, path)
        return entry

    def create(self, path: str, mode: int = FILE) -> Leaf:
        """Create an empty file. Raises OSError, EEXIST."""
        created = Leaf(next(self._numbers), Content.of(b""), S_IFREG | (mode & 0o7777))
        self._add(path, created)
        return created

    def make_folder(self, path: str, mode: int = FOLDER) -> Folder:
        """Create a folder. Raises OSError, EEXIST."""
        created = Folder(next(self._numbers), S_IFDIR | (mode & 0o7777))
        self._add(path, created)
        return created

    def link(self, path: str, to: Leaf) -> None:
        """Give a file an additional name. Raises OSError, EEXIST."""
        self._add(path, to)
        to.links += 1

    def write(self, leaf: Leaf, data: bytes, offset: int) -> None:
        """Write into a file."""
        self._step()
        leaf.content.write(data, offset)
        leaf.content.reserved = max(leaf.content.reserved, offset + len(data))

    def resize(self, leaf: Leaf, size: int) -> None:
        """Set the size of a file."""
        self._step()
        leaf.content.resize(size)
        leaf.content.reserved = min(leaf.content.reserved, size)

    def reserve(self, leaf: Leaf, end: int) -> None:
        """Reserve room for a file up to `end`, and extend its size to that."""
        self._step()
        if end > leaf.content.size:
            leaf.content.resize(end)
        leaf.content.reserved = max(leaf.content.reserved, end)

    def sync(self, leaf: Leaf) -> None:
        """Sync a file's content; its name is synced with its folder."""
        self._step()
        if not self.lies:
            leaf.content.settle()

    def sync_folder(self, folder: Folder) -> None:
        """Sync the names in a folder; the files' content is synced with each file."""
        self._step()
        folder.settle()

    def rename(self, source: str, target: str) -> None:
        """Rename a file or folder within its folder, replacing one with that name. Raises OSError, EXDEV."""
        folder, name = self._place(source)
        other, new = self._place(target)
        if folder is not other:
            raise _error(errno.EXDEV, target)
        moved, there = self.find(source), folder.names.get(new)
        if isinstance(there, Folder) and there.names:
            raise _error(errno.ENOTEMPTY, target)
        self._step()
        folder.change({**{each: kept for each, kept in folder.names.items() if each != name}, new: moved})
        if isinstance(there, Leaf) and there is not moved:
            there.links -= 1

    def remove(self, path: str) -> None:
        """Remove a name. Raises OSError, ENOTEMPTY for a folder that has names."""
        gone, (folder, name) = self.find(path), self._place(path)
        if isinstance(gone, Folder) and gone.names:
            raise _error(errno.ENOTEMPTY, path)
        self._step()
        folder.change({each: kept for each, kept in folder.names.items() if each != name})
        if isinstance(gone, Leaf):
            gone.links -= 1

    # --- power --------------------------------------------------------------------------------------------------------

    def after_cut(self, random: Random, lose: float) -> Tree:
        """Return the disk after a power cut: synced data, and of the rest each piece with probability 1 - `lose`."""
        left = Tree()
        left._root = _Remains(random, lose, left._numbers).folder(self._root, 1)
        return left

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield all files by their paths, with their content."""
        for path, leaf in self._leaves():
            yield path, leaf.content.memory[: leaf.content.size].tobytes()

    def used(self) -> int:
        """Return the bytes of room that files with a name take."""
        return sum(leaf.content.reserved for leaf in dict(self._leaves()).values())

    def _leaves(self) -> Iterator[tuple[str, Leaf]]:
        waiting: list[tuple[str, Folder]] = [("", self._root)]
        while waiting:
            at, folder = waiting.pop()
            for name, entry in sorted(folder.names.items()):
                if isinstance(entry, Folder):
                    waiting.append((f"{at}/{name}", entry))
                else:
                    yield f"{at}/{name}", entry

    def _add(self, path: str, created: Folder | Leaf) -> None:
        folder, name = self._place(path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        self._step()
        folder.change({**folder.names, name: created})

    def _place(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        return self.folder(above), name

    def _step(self) -> None:
        self.changes += 1
        if self.cut_at is not None and self.changes >= self.cut_at:
            self.is_frozen = True
        if self.is_frozen:
            raise _error(errno.EIO)


class _Remains:
    """The files after a power cut, each computed once: a file may have several names."""

    def __init__(self, random: Random, lose: float, numbers: Iterator[int]) -> None:
        self._random, self._lose, self._numbers = random, lose, numbers
        self._leaves: dict[Leaf, Leaf] = {}

    def folder(self, before: Folder, number: int) -> Folder:
        states = [before.durable, *before.since]
        names = states[self._random.randrange(len(states)) if 0 < self._lose < 1 else (0 if self._lose else -1)]
        kept = {name: self._kept(entry) for name, entry in names.items()}
        return Folder(number, before.mode, kept, kept)

    def _kept(self, entry: Folder | Leaf) -> Folder | Leaf:
        if isinstance(entry, Folder):
            return self.folder(entry, next(self._numbers))
        if entry not in self._leaves:
            content = Content.of(entry.content.after_cut(self._random, self._lose))
            self._leaves[entry] = Leaf(next(self._numbers), content, entry.mode, 0)
        left = self._leaves[entry]
        left.links += 1
        return left
