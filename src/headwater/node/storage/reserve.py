"""Room in reserve for a full disk.

On a full disk a log that only grows could not be made smaller: deletions must be written, a compaction writes before it
removes, and a start after a crash writes new branches. So a file of zeros occupies a part of the disk while there is
room, and releases it piece by piece when there is none. Documents are refused once a piece is released, and accepted
only when the file has its full size again.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Final

from headwater.node.storage.disk import Disk, File

__all__ = ["NAME", "Reserve"]

NAME: Final = "RESERVE"


class Reserve:
    """The file of the reserve in a store's folder. Methods may be called from any thread.

    Attributes:
        size: its intended size in bytes. held: its present size in bytes.
    """

    def __init__(self, disk: Disk, folder: Path, size: int) -> None:
        self.size = size
        self.held: int = 0
        self._path = folder / NAME
        self._disk = disk
        self._file: File | None = None
        self._lent = False
        self._lock = threading.Lock()

    def start(self) -> None:
        """Open the file that the last process left."""
        if NAME in self._disk.names(self._path.parent):
            self._file = self._disk.open(self._path)
            # A copy of the folder may have it as a hole (rsync -S, tar -S): of such room the disk knows nothing.
            self.held = min(self._file.size(), self._file.allocated())

    def fill(self) -> bool:
        """Extend the file to its intended size as far as the disk has room, or shrink it; return True if it has that
        size.

        Does nothing while the reserve is lent.
        """
        with self._lock:
            missing = self.size - self.held
            if missing < 0:
                self._give(-missing)
            # What there is room for is taken in halves: part of a reserve still lets a deletion through.
            while missing > 0 and not self._lent and not self._take(self.held + missing):
                missing //= 2
            return self.held >= self.size

    def _take(self, size: int) -> bool:
        try:
            if self._file is None:
                self._file = self._disk.create(self._path, 0)
            self._file.reserve(0, size)
        except OSError:
            if self._file is not None:
                with contextlib.suppress(OSError):  # a part of it may be there
                    # posix_fallocate may have taken blocks before it failed; `held` must stay what the file really has.
                    self._file.truncate(self.held)
            return False
        self.held = size
        return True

    def give(self, count: int) -> bool:
        """Release up to `count` bytes to the disk; return True if there were any."""
        with self._lock:
            return self._give(count)

    def _give(self, count: int) -> bool:
        left = max(0, self.held - count)
        if self._file is None or left == self.held:
            return False
        try:
            self._file.truncate(left)
        except OSError:
            return False
        self.held = left
        return True

    def lend(self, keep: int) -> None:
        """Release all but `keep` bytes, and do not fill the file until `take_back`: a compaction, or the drop of a
        bucket, needs the room for a while.
        """
        with self._lock:
            self._lent = True
            self._give(self.held - keep)

    def take_back(self) -> None:
        """Allow `fill` again, because the room is no longer needed."""
        with self._lock:
            self._lent = False

    def close(self) -> None:
        """Close the descriptor; may be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None
