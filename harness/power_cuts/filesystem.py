"""A disk that keeps synced data over power cuts, mounted until standard input ends (needs root, or fusermount3):

    python -m harness.power_cuts.filesystem FOLDER

It reads commands from standard input, one a line, and answers each with a line:

    look             frozen or on, and how many changes there were
    cut-at N         the Nth change from now on finds the power gone
    freeze           the power is gone now
    lie              say of files that they are synced, and sync none until it is mounted again
    restore SEED P   mount what is left, then answer: of what was not synced a piece is lost with probability P

The programs on it must be dead before `restore`. FUSE itself is spoken by mfusepy (of libfuse 3), for pyfuse3 has no
`fallocate`, in whose place the C library writes into each block that is to be reserved.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Final

import mfusepy

from harness.power_cuts.mounted import unmount
from harness.power_cuts.tree import Folder, Leaf, Tree

__all__ = ["main"]

BLOCK_BYTES: Final = 4096
DISK_BYTES: Final = 4 << 30


class Mount(mfusepy.Operations):  # type: ignore[misc]
    """The kernel's calls for a tree. Paths begin with a slash; `fh` is a number that `open` returned."""

    use_ns = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._open: dict[int, Leaf] = {}
        self._numbers = count(1)
        self._modified: dict[int, int] = {}
        self._begun = time.time_ns()

    def init(self, path: str) -> None:
        """Report that the disk is mounted."""
        print("mounted", flush=True)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        """Return the fields of `stat`."""
        entry = self._leaf(path, fh) if fh else self._tree.find(path)
        changed = self._modified.get(entry.number, self._begun)
        seen = {"st_mode": entry.mode, "st_ino": entry.number, "st_mtime": changed, "st_ctime": changed}
        seen |= {"st_atime": changed, "st_uid": os.getuid(), "st_gid": os.getgid(), "st_blksize": BLOCK_BYTES}
        if isinstance(entry, Folder):
            return seen | {"st_nlink": 2, "st_size": 0, "st_blocks": 0}
        content = entry.content
        return seen | {"st_nlink": entry.links, "st_size": content.size, "st_blocks": -(-content.reserved // 512)}

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, dict[str, int], int]]:
        """Yield the names in a folder. The C library would skip an entry without an inode."""
        folder = self._tree.folder(path)
        for name, entry in {".": folder, "..": folder, **folder.names}.items():
            yield name, {"st_ino": entry.number, "st_mode": entry.mode}, 0

    def mkdir(self, path: str, mode: int) -> int:
        """Make a folder."""
        self._touch(self._tree.make_folder(path, mode))
        return 0

    def rmdir(self, path: str) -> int:
        """Remove an empty folder."""
        self._tree.remove(path)
        return 0

    def unlink(self, path: str) -> int:
        """Remove a name."""
        self._tree.remove(path)
        return 0

    def rename(self, old: str, new: str) -> int:
        """Rename a file within its folder."""
        self._tree.rename(old, new)
        return 0

    def link(self, target: str, source: str) -> int:
        """Give the file `source` the additional name `target`."""
        self._tree.link(target, self._tree.file(source))
        return 0

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        """Create a file and open it."""
        return self._opened(self._touch(self._tree.create(path, mode)))

    def open(self, path: str, flags: int) -> int:
        """Open a file, and empty it if `flags` say so."""
        leaf = self._tree.file(path)
        if flags & os.O_TRUNC:
            self._tree.resize(leaf, 0)
        return self._opened(leaf)

    def release(self, path: str, fh: int) -> int:
        """Close a file."""
        self._open.pop(fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Return bytes of a file."""
        content = self._leaf(path, fh).content
        return content.memory[offset : min(offset + size, content.size)].tobytes()

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Write into a file."""
        self._tree.write(self._touch(self._leaf(path, fh)), data, offset)
        return len(data)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Set the size of a file."""
        self._tree.resize(self._touch(self._leaf(path, fh)), length)
        return 0

    def fallocate(self, path: str, mode: int, offset: int, size: int, fh: int) -> int:
        """Reserve room for a file; holes are not punched."""
        if mode:
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
        self._tree.reserve(self._leaf(path, fh), offset + size)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """Sync a file."""
        self._tree.sync(self._leaf(path, fh))
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        """Sync the names of a folder."""
        self._tree.sync_folder(self._tree.folder(path))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        """Set the mode of a file; that is on the disk at once."""
        entry = self._tree.find(path)
        entry.mode = entry.mode & ~0o7777 | mode & 0o7777
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Set the time of a file's last change."""
        self._modified[self._tree.find(path).number] = times[1] if times else time.time_ns()
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """Return the size and the free room of the disk."""
        left = max(0, DISK_BYTES - self._tree.used()) // BLOCK_BYTES
        blocks = {"f_blocks": DISK_BYTES // BLOCK_BYTES, "f_bfree": left, "f_bavail": left}
        return blocks | {"f_bsize": BLOCK_BYTES, "f_frsize": BLOCK_BYTES, "f_namemax": 255}

    def _opened(self, leaf: Leaf) -> int:
        self._open[number := next(self._numbers)] = leaf
        return number

    def _leaf(self, path: str | None, fh: int | None) -> Leaf:
        if self._tree.is_frozen:
            raise mfusepy.FuseOSError(errno.EIO)
        if fh in self._open:
            return self._open[fh]
        if path is None:  # mfusepy does not say which open file without a name gets another size
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
        return self._tree.file(path)

    def _touch(self, entry: Any) -> Any:
        self._modified[entry.number] = time.time_ns()
        return entry


class Power:
    """The commands from standard input, read in a thread of its own."""

    def __init__(self, place: Path) -> None:
        self.tree = Tree()
        self.restores: tuple[int, float] | None = None
        self._place = place

    def run(self) -> None:
        """Carry out commands until the input ends."""
        for line in sys.stdin:
            answer = self._obey(*line.split())
            if answer:
                print(answer, flush=True)
        unmount(self._place)

    def _obey(self, word: str, *given: str) -> str:
        tree = self.tree
        if word == "cut-at":
            tree.cut_at = tree.changes + int(given[0])
        elif word == "lie":
            tree.lies = True
        elif word == "freeze":
            tree.is_frozen = True
        elif word == "restore":
            tree.is_frozen = True
            self.restores = int(given[0]), float(given[1])
            unmount(self._place)
            return ""  # `Mount.init` answers
        return f"{'frozen' if tree.is_frozen else 'on'} {tree.changes}"


def main(place: Path) -> None:
    """Mount a disk, again after each power cut, until standard input ends."""
    power = Power(place)
    Thread(target=power.run, daemon=True).start()
    while True:
        options: dict[str, Any] = {"hard_remove": True, "use_ino": True, "attr_timeout": 0, "entry_timeout": 0}
        mfusepy.FUSE(Mount(power.tree), str(place), foreground=True, nothreads=True, fsname="power-cuts", **options)
        if power.restores is None:
            return
        seed, lose = power.restores
        power.restores = None
        power.tree = power.tree.after_cut(Random(seed), lose)  # noqa: S311 - must be repeatable


if __name__ == "__main__":
    main(Path(sys.argv[1]))
