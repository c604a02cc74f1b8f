"""The memory of the index: each vbucket's columns and hash table, and the table of their addresses.

kernels/index.py describes every field; this module allocates, grows, copies and frees the arrays. Columns never change
in length: a vbucket that grows gets new ones, and readers of the old ones (views, compaction) keep a state that no
longer changes.

Memory for each key, without old versions: 28 bytes for a row, 4 for a slot, with up to 25 % of the rows and 25 to 62 %
of the slots free; together 33 to 46 bytes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StorageError
from headwater.invariants import node_invariant
from headwater.kernels import index
from headwater.kernels.builds import debugging
from headwater.kernels.guard import register
from headwater.kernels.history import fill_slots, out_of_order

__all__ = ["Columns", "Index"]

ROW_BYTES: Final = 28
ROWS_FIRST: Final = 16
SLOTS_FIRST: Final = 32
GROWTH: Final = 1.25
_NIL: Final = 0xFFFFFFFF
_COUNTS: Final = (index.ROWS, index.FROZEN_ROWS, index.DURABLE_ROWS, index.CAPACITY)
_KEYS_AND_SEQNOS: Final = (index.KEYS, index.HIGH, index.FROZEN_HIGH, index.DURABLE_HIGH)


def _array(count: int, kind: type[Any]) -> NDArray[Any]:
    array = np.empty(count, kind)
    if debugging() and count:
        register(array)
    return array


class Columns:
    """One vbucket's arrays: five columns in one block of memory, and the hash table."""

    __slots__ = ("block", "capacity", "hash", "loc", "next", "prev", "seq", "slots")

    def __init__(self, capacity: int, slots: int) -> None:
        self.capacity: int = capacity
        self.block: Final = _array(capacity * ROW_BYTES, np.uint8)
        ends = np.cumsum([0, 8, 8, 4, 4, 4]) * capacity
        self.seq: NDArray[np.uint64] = self.block[ends[0] : ends[1]].view(np.uint64)
        self.loc: NDArray[np.uint64] = self.block[ends[1] : ends[2]].view(np.uint64)
        self.hash: NDArray[np.uint32] = self.block[ends[2] : ends[3]].view(np.uint32)
        self.prev: NDArray[np.uint32] = self.block[ends[3] : ends[4]].view(np.uint32)
        self.next: NDArray[np.uint32] = self.block[ends[4] : ends[5]].view(np.uint32)
        self.slots: NDArray[np.uint32] = _array(slots, np.uint32)
        self.slots.fill(_NIL)

    @property
    def nbytes(self) -> int:
        """The memory of the arrays in bytes."""
        return int(self.block.nbytes + self.slots.nbytes)

    def copy(self, rows: int, capacity: int, slots: int) -> Columns:
        """Return a copy of the first `rows` rows, in new arrays of the given sizes."""
        most = min(capacity, self.capacity)
        node_invariant(rows <= most, "{} rows are to be copied, there is room for {}", rows, most)
        copy = Columns(capacity, slots)
        for name in ("seq", "loc", "hash", "prev", "next"):
            getattr(copy, name)[:rows] = getattr(self, name)[:rows]
        if slots == len(self.slots):
            copy.slots[:] = self.slots
        else:
            fill_slots(copy.slots, copy.hash, copy.next, rows)
        return copy


def _keys_max(slots: int) -> int:
    return slots - slots // 4 if slots > 1 else 0


def _slots_for(keys: int) -> int:
    slots = SLOTS_FIRST
    while _keys_max(slots) < keys:
        slots *= 2
    return slots


class Index:
    """All vbuckets' columns.

    Attributes:
        table: uint64[vbuckets, FIELDS], see kernels/index.py; its address never changes.
        columns: the arrays of each vbucket.
    """

    def __init__(self, vbuckets: int, seeds: tuple[int, int]) -> None:
        self.table: NDArray[np.uint64] = np.zeros((vbuckets, index.FIELDS), np.uint64)
        self.table[:, index.SEED0] = seeds[0]
        self.table[:, index.SEED1] = seeds[1]
        self._none = Columns(0, 1)
        self.columns: list[Columns] = [self._none] * vbuckets
        for vb in range(vbuckets):
            self.adopt(vb, self._none)

    def adopt(self, vbucket: int, columns: Columns) -> None:
        """Set a vbucket's columns (the caller sets the counters)."""
        self.columns[vbucket] = columns
        row = self.table[vbucket]
        row[index.CAPACITY] = columns.capacity
        row[index.MASK] = len(columns.slots) - 1
        row[index.KEYS_MAX] = _keys_max(len(columns.slots))
        base, capacity = columns.block.ctypes.data, columns.capacity
        row[index.SEQ] = base
        row[index.LOC] = base + 8 * capacity
        row[index.HASH] = base + 16 * capacity
        row[index.PREV] = base + 20 * capacity
        row[index.NEXT] = base + 24 * capacity
        row[index.TABLE] = columns.slots.ctypes.data

    def rows(self, vbucket: int) -> int:
        """Return the number of rows in use."""
        return self.table.item(vbucket, index.ROWS)  # an int at once

    def grow(self, vbucket: int, rows: int = 1, keys: int = 1, factor: float = GROWTH) -> None:
        """Make room for at least `rows` more rows and `keys` more keys."""
        had, columns = self.rows(vbucket), self.columns[vbucket]
        need = had + rows
        if need > index.ROWS_MAX:
            raise StorageError(
                f"vbucket {vbucket}: {need} changes are more than an index holds; compact, or use more vbuckets"
            )
        capacity = columns.capacity
        if need > capacity:
            # A quarter more each time, since a bucket of 1,024 vbuckets pays for every row that stays empty.
            capacity = max(need, min(int(capacity * factor) + ROWS_FIRST, index.ROWS_MAX))
        wanted = int(self.table[vbucket, index.KEYS]) + keys
        slots = len(columns.slots)
        if wanted > _keys_max(slots):
            slots = _slots_for(wanted)
        if capacity != columns.capacity or slots != len(columns.slots):
            self.adopt(vbucket, columns.copy(had, capacity, slots))
        room = self.columns[vbucket].capacity
        node_invariant(need <= room, "vbucket {}: room for {} rows, {} are needed", vbucket, room, need)

    def make_room(self, vbucket: int, rows: int) -> None:
        """Give a vbucket without rows columns for `rows` rows, in the sizes of `sized`, and no room for keys."""
        self.adopt(vbucket, Columns(min(rows + rows // 8 + ROWS_FIRST // 2, index.ROWS_MAX), 1))

    def make_room_for_keys(self, vbucket: int, keys: int) -> None:
        """Make room for `keys` more keys in columns that have no other readers yet."""
        columns, slots = self.columns[vbucket], _slots_for(int(self.table[vbucket, index.KEYS]) + keys)
        if slots > len(columns.slots):
            columns.slots = _array(slots, np.uint32)
            columns.slots.fill(_NIL)
            fill_slots(columns.slots, columns.hash, columns.next, self.rows(vbucket))
            self.adopt(vbucket, columns)

    def sized(self, rows: int, keys: int) -> Columns:
        """Return new columns for `rows` rows and `keys` keys, with some free room."""
        return Columns(rows + rows // 8 + ROWS_FIRST // 2, _slots_for(keys + keys // 16)) if rows else self._none

    def fit(self, vbucket: int) -> None:
        """Free the memory that the vbucket does not need; room for an eighth more rows is kept."""
        rows, keys, columns = self.rows(vbucket), int(self.table[vbucket, index.KEYS]), self.columns[vbucket]
        wanted = self.sized(rows, keys)
        capacity, slots = min(wanted.capacity, columns.capacity), min(len(wanted.slots), len(columns.slots))
        if rows == 0:
            self.adopt(vbucket, self._none)
        elif (capacity, slots) != (columns.capacity, len(columns.slots)):
            self.adopt(vbucket, columns.copy(rows, capacity, slots))

    def fork(self, vbucket: int) -> None:
        """Replace the vbucket's columns by a copy, so that readers of the present ones see no change."""
        columns = self.columns[vbucket]
        self.adopt(vbucket, columns.copy(self.rows(vbucket), columns.capacity, len(columns.slots)))

    def reset(self, vbucket: int) -> None:
        """Remove all rows of a vbucket; its state, its highest CAS and its highest deleted revision stay."""
        for field in (
            index.ROWS,
            index.DURABLE_ROWS,
            index.FROZEN_ROWS,
            index.KEYS,
            index.HIGH,
            index.DURABLE_HIGH,
            index.FROZEN_HIGH,
            index.EXPIRY,
            index.ITEMS,
            index.LIVE_BYTES,
            index.PURGE,
            index.FLOOR,
            index.MIXED,
        ):
            self.table[vbucket, field] = 0
        self.adopt(vbucket, self._none)

    def forget(self, vbucket: int) -> None:
        """Remove a dropped vbucket; of its numbers only the highest CAS stays, for a later vbucket with its number."""
        self.reset(vbucket)
        # CAS stays: a client that kept a CAS of the dropped vbucket must not find it on another document.
        self.table[vbucket, index.STATE] = self.table[vbucket, index.DELETED_REV] = 0

    def rows_up_to(self, vbucket: int, seqno: int) -> int:
        """Return the number of rows with a seqno at or below `seqno`."""
        if seqno >= self.table.item(vbucket, index.HIGH):
            return self.rows(vbucket)  # what a stream that follows its vbucket asks for
        if seqno == 0:
            return 0  # and one that begins
        return int(self.columns[vbucket].seq[: self.rows(vbucket)].searchsorted(np.uint64(seqno), "right"))

    def check(self) -> None:
        """Check each vbucket's counters: durable rows are among the frozen ones, frozen rows among the staged ones."""
        if (vb := int(out_of_order(self.table))) < 0:
            return
        row = self.table[vb]
        rows, frozen, durable, room = (int(row[field]) for field in _COUNTS)
        node_invariant(durable <= frozen, "vbucket {}: {} rows are durable, {} were frozen", vb, durable, frozen)
        node_invariant(frozen <= rows, "vbucket {}: {} rows are frozen, {} were staged", vb, frozen, rows)
        node_invariant(rows <= room, "vbucket {}: {} rows, room for {}", vb, rows, room)
        keys, high, frozen, durable = (int(row[field]) for field in _KEYS_AND_SEQNOS)
        node_invariant(keys <= rows, "vbucket {}: {} keys, {} rows", vb, keys, rows)
        node_invariant(durable <= frozen, "vbucket {}: seqno {} is durable, {} was frozen", vb, durable, frozen)
        node_invariant(frozen <= high, "vbucket {}: seqno {} is frozen, {} is the high one", vb, frozen, high)

    def nbytes(self) -> int:
        """Return the memory in bytes, the table of addresses included."""
        return int(self.table.nbytes) + sum(columns.nbytes for columns in self.columns if columns is not self._none)

    # ------------------------------------------------------------------ a vbucket's numbers

    def high_seqno(self, vbucket: int) -> int:
        """Return the seqno of the newest change, durable or not."""
        return self.table.item(vbucket, index.HIGH)  # an int at once

    def durable_seqno(self, vbucket: int) -> int:
        """Return the seqno of the newest change on disk."""
        return self.table.item(vbucket, index.DURABLE_HIGH)

    def purge_seqno(self, vbucket: int) -> int:
        """Return the purge seqno: tombstones up to this seqno may be missing."""
        return self.table.item(vbucket, index.PURGE)

    def rollback_floor(self, vbucket: int) -> int:
        """Return the rollback floor: states below this seqno can't be rebuilt."""
        return self.table.item(vbucket, index.FLOOR)

    def items(self, vbucket: int) -> int:
        """Return the number of live documents."""
        return self.table.item(vbucket, index.ITEMS)

    def bytes_of(self, vbucket: int) -> int:
        """Return the size in bytes of the newest versions of all keys of a vbucket, tombstones included."""
        return self.table.item(vbucket, index.LIVE_BYTES)

    @property
    def live_bytes(self) -> int:
        """The size in bytes of the newest versions of all keys, tombstones included: the part of the log that
        compaction can't free.
        """
        return int(self.table[:, index.LIVE_BYTES].sum())

    def exact(self, vbucket: int, end_seqno: int) -> bool:
        """Return True if a view that ends at `end_seqno` contains the whole state at that seqno."""
        return end_seqno >= self.rollback_floor(vbucket)

    def is_mixed(self, vbucket: int) -> bool:
        """Return True if the vbucket may have changes other than documents of the default collection."""
        return self.table.item(vbucket, index.MIXED) != 0

    def has_change(self, vbucket: int, seqno: int) -> bool:
        """Return True if the index has the change with a seqno, durable or not; False if a compaction has
        removed it.
        """
        rows = self.rows_up_to(vbucket, seqno)
        return rows > 0 and self.columns[vbucket].seq.item(rows - 1) == seqno

    def high_after(self, vbucket: int, keep: int, seqno: int) -> int:
        """Return the high seqno after a rollback to `seqno` that keeps `keep` rows: the seqno of the last remaining
        change.

        If a compaction has purged changes, the result is at least the rollback floor, because that seqno was used.
        """
        last = self.columns[vbucket].seq.item(keep - 1) if keep else 0
        # A seqno that was used must not be given again under the same vb uuid, even where compaction has dropped its
        # row.
        return max(last, min(seqno, self.rollback_floor(vbucket)))

    def lower(self, vbucket: int, rows: int, high: int) -> None:
        """Lower the row counts and high seqnos after a rollback that left `rows` rows up to seqno `high`."""
        row = self.table[vbucket]
        had, was = int(row[index.ROWS]), int(row[index.HIGH])
        node_invariant(rows == had, "vbucket {}: a rollback left {} rows, {} were to stay", vbucket, had, rows)
        node_invariant(high <= was, "vbucket {}: a rollback raises the high seqno from {} to {}", vbucket, was, high)
        row[index.HIGH] = high
        row[[index.DURABLE_ROWS, index.FROZEN_ROWS]] = np.minimum(row[[index.DURABLE_ROWS, index.FROZEN_ROWS]], rows)
        row[[index.DURABLE_HIGH, index.FROZEN_HIGH]] = np.minimum(row[[index.DURABLE_HIGH, index.FROZEN_HIGH]], high)

    def look_for_expired(self, vbucket: int | None = None) -> None:
        """Make the next run of the pager search for expired documents again: a rollback may have restored dropped
        collections, whose documents the last run did not count.
        """
        table = self.table if vbucket is None else self.table[vbucket : vbucket + 1]
        # 1 is the earliest time that counts, so the next pager looks.
        table[table[:, index.MIXED] != 0, index.EXPIRY] = 1
