"""Room in reserve for a full disk.

On a full disk the log could not be made smaller without new room: deletions must be written, a compaction writes before
it removes files, and a start after a crash writes new branches. So a file of zeros occupies a part of the disk while
there is room, and releases this part, piece by piece, when the disk is full. Documents are refused once a piece is
released, and accepted again only when the file has its full size.
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
        size: its intended size in bytes.
        held: its present size in bytes.
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
            # In a copy of the folder the file may be a hole (rsync -S, tar -S), which reserves no room.
            self.held = min(self._file.size(), self._file.allocated())

    def fill(self) -> bool:
        """Extend the file towards its intended size, as far as the disk has room, or shrink it to that size; return
        True if it has at least that size.

        While the reserve is lent, the file is not extended.
        """
        with self._lock:
            missing = self.size - self.held
            if missing < 0:
                self._give(-missing)
            # If the disk has too little room, half as much is tried: a part of the reserve is enough for deletions.
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
                with contextlib.suppress(OSError):
                    # posix_fallocate may have allocated some blocks before it failed; `held` must remain the real size.
                    self._file.truncate(self.held)
            return False
        self.held = size
        return True

    def give(self, count: int) -> bool:
        """Release up to `count` bytes to the disk; return False if there was nothing to release."""
        with self._lock:
            return self._give(count)

    def _give(self, count: int) -> bool:
        remaining = max(0, self.held - count)
        if self._file is None or remaining == self.held:
            return False
        try:
            self._file.truncate(remaining)
        except OSError:
            return False
        self.held = remaining
        return True

    def lend(self, keep: int) -> None:
        """Release all but `keep` bytes, and do not extend the file until `take_back`, because a compaction, or the drop
        of a bucket, needs the room for a while.
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
