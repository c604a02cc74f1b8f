"""Write bulk data past the page cache, for bytes that will hardly be read soon.

A write through the cache must first find a page, and on many virtual machines fetch it from the host. For a replica
that is being filled, this took two to ten times as long as the write itself, for pages that nobody reads. O_DIRECT
bypasses the cache; it needs whole blocks in aligned memory, so there is a reusable buffer. If a file system does not
support it, the caller writes through the cache.

A memory map of the file still contains the written bytes: the operating system drops the cached pages, and if it can't
drop one, the next sync fails.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "DirectWriter"]

BLOCK_BYTES: Final = 4096
BUFFER_BYTES: Final = 1 << 20
_O_DIRECT: Final = getattr(os, "O_DIRECT", 0)  # not everywhere


class DirectWriter:
    """Writes to one file past the page cache. The caller owns the descriptor; no other code may write to it meanwhile.

    Attributes:
        works: True as long as the file system has not refused direct writes.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.works: bool = bool(_O_DIRECT)
        self._buffer: NDArray[np.uint8] | None = None

    def write(self, data: memoryview, offset: int) -> int:
        """Write whole blocks of `data` at `offset`, a multiple of BLOCK_BYTES, as many as one call can.

        Returns:
            The number of bytes written; 0 if the caller must write through the cache.

        Raises:
            OSError: the write failed.
        """
        # Incomplete blocks at the ends of a batch also have bytes of its neighbours, so they are written through the
        # cache.
        if not self.works or len(data) < BLOCK_BYTES or offset % BLOCK_BYTES:
            return 0
        if self._buffer is None:
            self._buffer = np.frombuffer(mmap.mmap(-1, BUFFER_BYTES), np.uint8)
        piece = self._buffer[: min(BUFFER_BYTES, len(data)) // BLOCK_BYTES * BLOCK_BYTES]
        piece[:] = np.frombuffer(data[: len(piece)], np.uint8)
        try:
            return self._write(piece.data, offset)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            self.works = False  # this file system has no direct writes, or another block size
            return 0

    def _write(self, piece: memoryview, offset: int) -> int:
        # For one call only: with the flag left on, the next ordinary write of this descriptor would be refused.
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
        try:
            return os.pwrite(self._descriptor, piece, offset)
        finally:
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags)
