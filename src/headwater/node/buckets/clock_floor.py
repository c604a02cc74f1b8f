"""The time up to which a bucket has promised to give no more change a CAS: on disk before it is promised.

A reader that has all changes up to a seqno wants to say up to which time it has everything. The CAS of a vbucket's
changes only rises, but the next one need not be later than the present time: the clock may be put back, here or at the
node that takes the vbucket over. So readers ask all nodes to promise a time (HOLD_CLOCK), and each raises the highest
CAS of all its vbuckets, copies included, to it. After that every CAS is above it, whatever the clock says.

One file of two lines: `headwater-clock 1 <XXH3-64 of the other>`, and a CAS in decimal: a bound above all promises,
some seconds ahead, so that the file is written only now and then. A start promises all of the bound.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StorageError
from headwater.kernels import index
from headwater.node.storage.disk import Disk
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file
from headwater.wire.numbers import HELD_MAX

__all__ = ["AHEAD_NANOSECONDS", "NAME", "NEXT_NAME", "ClockFloor"]

NAME: Final = "CLOCK"
NEXT_NAME: Final = "CLOCK.new"
AHEAD_NANOSECONDS: Final = 5_000_000_000
"""The bound on disk is so far above a promise that needs a new one; after a restart a CAS may be ahead by as much."""
_FAILPOINTS: Final = ("clock.before_rename", "clock.after_rename")
_TITLE: Final = "headwater-clock"
_FORMAT: Final = "1"


class ClockFloor:
    """The promise of one bucket on this node.

    Args:
        disk, folder: of the store.
        table: uint64[vbuckets, FIELDS] of the index, whose highest CAS is raised.

    Attributes:
        held: no change gets a CAS at or below this one; 0 for no promise.

    Raises:
        CorruptStore: the file was changed since it was written.
        StorageError: the file has another format, or can't be read.
    """

    def __init__(self, disk: Disk, folder: Path, table: NDArray[np.uint64]) -> None:
        self._path = folder / NAME
        self._file = WholeFile(disk, self._path, folder / NEXT_NAME, _FAILPOINTS)
        self._table = table
        self._saving, self._is_stopped = asyncio.Lock(), False
        self.held: int = 0
        self._bound = self._load(disk, folder)
        self._raise(self._bound)

    def _load(self, disk: Disk, folder: Path) -> int:
        try:
            if NAME not in disk.names(folder):
                return 0
            data = disk.read(self._path)
        except OSError as error:
            raise StorageError(f"{self._path}: {error.strerror or error}") from error
        return int(decode_text_file(data, self._path, _TITLE, [_FORMAT], "bound of the clock"))

    async def promise(self, cas: int) -> None:
        """Promise that no change gets a CAS at or below `cas` any more, now and after restarts.

        Raises:
            DiskFull, StorageError: it could not be written, or the bucket is not served any more; the earlier promise
                holds.
        """
        async with self._saving:
            # On disk first: a promise that a restart forgets is none, and the clock may have been put back by then.
            if cas > self._bound:
                if self._is_stopped:
                    raise StorageError("the bucket is being dropped, or the node stops")
                bound = min(cas + AHEAD_NANOSECONDS, HELD_MAX - 1)
                await asyncio.get_running_loop().run_in_executor(None, self._save, bound)
                self._bound = bound
        self._raise(min(cas, self._bound))

    async def stop(self) -> None:
        """Write no more bounds, because the bucket is dropped, or the node stops; on return none is being written."""
        self._is_stopped = True
        async with self._saving:
            pass

    def unbound(self, vbucket: int) -> bool:
        """Return True if a vbucket's next CAS is not above its highest one: a peer has sent the highest of all."""
        return bool(self._table[vbucket, index.CAS] >= HELD_MAX)

    def _save(self, bound: int) -> None:
        self._file.replace(encode_text_file(_TITLE, _FORMAT, str(bound).encode()))

    def _raise(self, cas: int) -> None:
        if cas > self.held:
            self.held = cas
            highest = self._table[:, index.CAS]
            # The kernels give out the highest CAS plus one where the clock is not above it; no drop of a vbucket, and
            # no batch that is lost, takes this number back (storage/columns.py).
            np.maximum(highest, np.uint64(cas), out=highest)
