"""Damage that was found while the store is in use: unreadable rows are marked, so that they are never returned.

Rows of the index that point into a damaged batch are set to `LOST`, the place of an empty tombstone that matches no key
and is harmless for kernels. So damaged bytes, whose lengths may be wrong, are never read again. If a key is not found,
the hashes of lost rows, which the index still has, show whether the key may be lost. The marks last until the process
ends; the next start refuses the store.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import CorruptStore
from headwater.kernels import index
from headwater.kernels.builds import debugging
from headwater.kernels.guard import register
from headwater.node.storage.records import deletion_frame
from headwater.node.storage.segment import UNREGISTERED
from headwater.node.storage.slots import LOST_SLOT

if TYPE_CHECKING:
    from headwater.node.storage.columns import Index
    from headwater.node.storage.scrub import Damage
    from headwater.node.storage.slots import Slots

__all__ = ["Quarantine"]

LOST: Final = np.uint64(LOST_SLOT << 40)
_NEWEST: Final = 0xFFFF_FFFF


class Quarantine:
    """The damage found in a store since it was opened.

    Attributes:
        damage: all damage, by file and offset.
        vbuckets: the vbuckets with damaged rows, each with its first damage; usually empty.
    """

    def __init__(self, into: Index, slots: Slots) -> None:
        self.damage: dict[tuple[str, int], Damage] = {}
        self.vbuckets: dict[int, Damage] = {}
        self._index = into
        self._slots = slots

    def add(self, damage: Damage) -> set[int] | None:
        """Stop serving a damaged range; return the vbuckets with rows in it, None if the range was known already."""
        place = (str(damage.segment.path), damage.offset)
        if place in self.damage:
            return None
        self.damage[place] = damage
        return self.mark(damage)

    def mark(self, damage: Damage) -> set[int]:
        """Set the rows that point into a damaged range to `LOST`; return their vbuckets."""
        # No row points into a file without a slot; `Store.take_out` marks again once the rows of a compaction do.
        if damage.segment.slot == UNREGISTERED:
            return set()
        self._place_tombstone()
        low, high = (np.uint64(damage.segment.slot << 40 | at) for at in (damage.offset, damage.end))
        hit = set()
        for vb in np.flatnonzero(self._index.table[:, index.ROWS]).tolist():
            locs = self._index.columns[vb].loc[: self._index.rows(vb)]
            inside = (locs >= low) & (locs < high)
            if inside.any():
                locs[inside] = LOST
                hit.add(vb)
        # Errors name the first damage of a vbucket.
        self.vbuckets = dict.fromkeys(hit, damage) | self.vbuckets
        return hit

    def count(self, paths: Container[str]) -> int:
        """Return the number of damaged ranges in the files `paths`.

        Other files may have damage, too: a scrub that began before a compaction reads files that no longer belong to
        the log.
        """
        return sum(path in paths for path, _ in self.damage)

    def check_key(self, vbucket: int, key: bytes) -> None:
        """Raise CorruptStore if a key that was not found may be among the lost keys."""
        hashed = int(index.hash_of(self._index.table, vbucket, np.frombuffer(key, np.uint8)))
        rows, columns = self._rows(vbucket), self._index.columns[vbucket]
        # Only lost newest versions matter. A lost row with the same hash may be of another key, but the keys can't be
        # compared any more.
        if ((columns.hash[rows] == hashed) & (columns.next[rows] == _NEWEST)).any():
            raise self.error(vbucket)

    def check_keys(self, vbucket: int) -> None:
        """Raise CorruptStore if the newest version of any key is lost; call this before all documents are deleted."""
        if vbucket in self.vbuckets and (self._index.columns[vbucket].next[self._rows(vbucket)] == _NEWEST).any():
            raise self.error(vbucket)

    def check_range(self, vbucket: int, first: int, rows: int) -> None:
        """Raise CorruptStore if one of the rows from `first` up to, but not including, `rows` is lost."""
        lost_rows = self._rows(vbucket)
        # A view without the lost row would show a snapshot that seems whole, and the consumer would never get the
        # change.
        if ((lost_rows >= first) & (lost_rows < rows)).any():
            raise self.error(vbucket)

    def check_places(self) -> None:
        """Raise CorruptStore if any row is lost. Call this before rows are searched by file, because a lost row does
        not say in which file it was.
        """
        for vb in self.vbuckets:
            if len(self._rows(vb)):
                raise self.error(vb)

    def after(self, vbucket: int, seqno: int) -> bool:
        """Return True if a change of the vbucket after `seqno` is lost."""
        return vbucket in self.vbuckets and bool((self._rows(vbucket) >= self._index.rows_up_to(vbucket, seqno)).any())

    def lost(self, vbucket: int) -> NDArray[np.uint64]:
        """Return the seqnos of the vbucket's lost changes, ascending."""
        columns = self._index.columns[vbucket]
        return columns.seq[self._rows(vbucket) if vbucket in self.vbuckets else []]

    def error(self, vbucket: int) -> CorruptStore:
        """Return the error for a reader of this vbucket; it names the vbucket's first damage."""
        first = self.vbuckets[vbucket]
        return CorruptStore(first.segment.path, first.offset, f"{first.why}; a part of vbucket {vbucket} can't be read")

    def _rows(self, vb: int) -> NDArray[np.int64]:
        """Return the lost rows; searched each time, because a rollback or drop may have removed some."""
        return np.flatnonzero(self._index.columns[vb].loc[: self._index.rows(vb)] == LOST)

    def _place_tombstone(self) -> None:
        frame = deletion_frame(0, b"", b"", seqno=0, cas=0, rev_seqno=0, delete_time=0)
        memory = np.frombuffer(bytearray(frame), np.uint8)
        if debugging():
            register(memory)
        self._slots.place(LOST_SLOT, memory, len(memory))
