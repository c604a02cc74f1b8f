"""Reading the store: documents, numbers and views."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from headwater.kernels import history, index, live
from headwater.node.storage.columns import Index
from headwater.node.storage.lost import Lost
from headwater.node.storage.records import Document
from headwater.node.storage.slots import Slots
from headwater.node.storage.views import View

__all__ = ["Reading"]


class Reading:
    """The part of the store that changes nothing.

    Attributes:
        lost: what was found damaged since the store was opened.
    """

    def __init__(self, vbuckets: int, seeds: tuple[int, int]) -> None:
        self._index = Index(vbuckets, seeds)
        self._slots = Slots()
        self.lost = Lost(self._index, self._slots)

    @property
    def table(self) -> NDArray[np.uint64]:
        """The index table, for kernels."""
        return self._index.table

    @property
    def segments(self) -> NDArray[np.uint64]:
        """The table of places, for kernels."""
        return self._slots.table

    def high_seqno(self, vb: int) -> int:
        """Seqno of the newest change, durable or not."""
        return self._index.table.item(vb, index.HIGH)  # an int at once

    def durable_seqno(self, vb: int) -> int:
        """Seqno of the newest change that is on disk."""
        return self._index.table.item(vb, index.DURABLE_HIGH)

    def purge_seqno(self, vb: int) -> int:
        """Tombstones up to here may be missing."""
        return self._index.table.item(vb, index.PURGE)

    def rollback_floor(self, vb: int) -> int:
        """States below this seqno can't be rebuilt."""
        return int(self.table[vb, index.FLOOR])

    def items(self, vb: int) -> int:
        """Live documents."""
        return int(self.table[vb, index.ITEMS])

    @property
    def live_bytes(self) -> int:
        """Bytes of the newest version of every key, tombstones included: what of the log is not waste."""
        return int(self.table[:, index.LIVE_BYTES].sum())

    def index_bytes(self) -> int:
        """Bytes of memory the index takes."""
        return self._index.nbytes()

    def exact(self, vb: int, end_seqno: int) -> bool:
        """Whether a view that ends at `end_seqno` shows what was there then, rather than a part of it."""
        return end_seqno >= self.rollback_floor(vb)

    def document(self, vb: int, key: bytes) -> Document | None:
        """The newest version of a key, a tombstone as well; None when it was never stored, or is purged.

        Raises:
            CorruptStore: it may have been in a batch that is damaged.
        """
        if not key:
            return None
        row = int(index.lookup(self.table, vb, self.segments, np.frombuffer(key, np.uint8)))
        if row < 0:
            if vb in self.lost.vbuckets:
                self.lost.check_key(vb, key)
            return None
        frame = self._slots.frame(int(self._index.columns[vb].loc[row]))
        return Document.decode(frame, durable=row < int(self.table[vb, index.DURABLE_ROWS]))

    def view(self, vb: int, after_seqno: int = 0, end_seqno: int = (1 << 64) - 1) -> View:
        """The durable changes after `after_seqno` and up to `end_seqno`, as of now. Close it when done.

        Raises:
            CorruptStore: some of them were in a batch that is damaged.
        """
        first = self._index.rows_up_to(vb, after_seqno)
        rows = min(self._index.rows_up_to(vb, end_seqno), self.table.item(vb, index.DURABLE_ROWS))
        if vb in self.lost.vbuckets:
            self.lost.check_range(vb, first, rows)
        return View(self._slots, vb, self._index.columns[vb], first, rows, after_seqno)

    def gather_live(  # noqa: PLR0917 - as the kernel has them
        self, vb: int, numbers: NDArray[np.uint64], out: NDArray[np.uint8], opaque: int, form: int, slow: int, room: int
    ) -> tuple[int, int]:
        """Marker and frames of what became durable, for a stream that follows; see kernels/live.py.

        Of a vbucket that was found damaged nothing goes out unseen: `view` tells what is lost.
        """
        if vb in self.lost.vbuckets:
            return 0, 0
        return live.gather_live(  # type: ignore[no-any-return]
            self._index.table, vb, self._slots.table, numbers, out, np.uint32(opaque), form, slow, room
        )

    def expired(self, vb: int, now: int, limit: int = 1000) -> list[bytes]:
        """Keys of up to `limit` live documents whose expiry is at or before Unix second `now`.

        Costs nothing while none can have expired; else a look at every live document of the vbucket.
        """
        earliest = int(self.table[vb, index.EXPIRY])
        if earliest == 0 or earliest > now:
            return []
        found = np.empty(limit, np.int64)
        count = int(history.find_expired(self.table, vb, self.segments, now, found))
        locs = self._index.columns[vb].loc
        return [Document.decode(self._slots.frame(int(locs[row])), durable=False).key for row in found[:count]]
