"""Damage found while the store is in use: the unreadable rows are marked, so that no reader gets them.

Rows of the index that point into a damaged batch point at `LOST` from then on: an empty tombstone that no key matches
and no kernel stumbles over. So damaged bytes are never looked at again, whatever lengths they claim. A key that is not
found may be a lost one: its hash, which the index keeps beside the place, shows that. The marks live as long as the
process; the next start refuses the store.
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
    """The damage that was found in a store since it was opened.

    Attributes:
        damage: all of it, by file and offset.
        vbuckets: the vbuckets with damaged rows, each with its first damage; most stores never have any.
    """

    def __init__(self, into: Index, slots: Slots) -> None:
        self.damage: dict[tuple[str, int], Damage] = {}
        self.vbuckets: dict[int, Damage] = {}
        self._index = into
        self._slots = slots

    def add(self, damage: Damage) -> set[int] | None:
        """Take a damaged range out of service; return the vbuckets with rows in it, None if it is known already."""
        place = (str(damage.segment.path), damage.offset)
        if place in self.damage:
            return None
        self.damage[place] = damage
        return self.mark(damage)

    def mark(self, damage: Damage) -> set[int]:
        """Let the rows that point into a damaged range point to nothing; return their vbuckets."""
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
        # The first damage of a vbucket stays the one that errors name.
        self.vbuckets = dict.fromkeys(hit, damage) | self.vbuckets
        return hit

    def count(self, paths: Container[str]) -> int:
        """Return the number of damaged places in these files.

        A pass that began before a compaction may find some in files that are no part of the log any more.
        """
        return sum(path in paths for path, _ in self.damage)

    def check_key(self, vbucket: int, key: bytes) -> None:
        """Raise CorruptStore if a key that was not found may be among the lost ones."""
        hashed = int(index.hash_of(self._index.table, vbucket, np.frombuffer(key, np.uint8)))
        rows, columns = self._rows(vbucket), self._index.columns[vbucket]
        # Only a lost newest version matters: a superseded one has its successor here. Another key with this hash is
        # refused too, for its bytes can't be compared any more.
        if ((columns.hash[rows] == hashed) & (columns.next[rows] == _NEWEST)).any():
            raise self.error(vbucket)

    def check_keys(self, vbucket: int) -> None:
        """All documents are about to be deleted. Raises CorruptStore if the key of one may be among what was lost."""
        if vbucket in self.vbuckets and (self._index.columns[vbucket].next[self._rows(vbucket)] == _NEWEST).any():
            raise self.error(vbucket)

    def check_range(self, vbucket: int, first: int, rows: int) -> None:
        """Raise CorruptStore if one of the rows that are about to be shown is lost."""
        lost = self._rows(vbucket)
        # A view that left a lost row out would show a snapshot as whole; the consumer would never ask for the change
        # again.
        if ((lost >= first) & (lost < rows)).any():
            raise self.error(vbucket)

    def check_places(self) -> None:
        """Rows are about to be found by the files that they lie in. Raises CorruptStore while some were lost: these lie
        in none, in front of and behind rows that do."""
        for vb in self.vbuckets:
            if len(self._rows(vb)):
                raise self.error(vb)

    def after(self, vbucket: int, seqno: int) -> bool:
        """Return True if a change of the vbucket behind `seqno` was lost."""
        return vbucket in self.vbuckets and bool((self._rows(vbucket) >= self._index.rows_up_to(vbucket, seqno)).any())

    def lost(self, vbucket: int) -> NDArray[np.uint64]:
        """Return the seqnos of the vbucket's lost changes, ascending."""
        columns = self._index.columns[vbucket]
        return columns.seq[self._rows(vbucket) if vbucket in self.vbuckets else []]

    def error(self, vbucket: int) -> CorruptStore:
        """Return the error for a reader of this vbucket."""
        first = self.vbuckets[vbucket]
        return CorruptStore(first.segment.path, first.offset, f"{first.why}; a part of vbucket {vbucket} can't be read")

    def _rows(self, vb: int) -> NDArray[np.int64]:
        """Return the lost rows, looked up each time: a rollback or drop may have removed them."""
        return np.flatnonzero(self._index.columns[vb].loc[: self._index.rows(vb)] == LOST)

    def _place_tombstone(self) -> None:
        frame = deletion_frame(0, b"", b"", seqno=0, cas=0, rev_seqno=0, delete_time=0)
        memory = np.frombuffer(bytearray(frame), np.uint8)
        if debugging():
            register(memory)
        self._slots.place(LOST_SLOT, memory, len(memory))
