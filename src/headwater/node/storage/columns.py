"""The memory of the index: each vbucket's columns and hash table, and the table of their addresses.

kernels/index.py describes every field; this module allocates, grows, copies and frees the arrays. Columns never change
their length: a vbucket that grows gets new columns, and readers of the old ones (views, compaction) keep a state that
no longer changes.

The memory per key, without old versions, is 33 to 46 bytes: 28 bytes for a row and 4 for a slot, with up to 25 % of the
rows and 25 to 62 % of the slots free.
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
    """One vbucket's arrays: five columns in one block of memory, and the hash table; see kernels/index.py.

    Args:
        capacity: the number of rows that the columns can hold.
        slots: the number of slots of the hash table, a power of 2.
    """

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
    """The columns of all vbuckets.

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
        """Set a vbucket's columns; the caller sets the counters."""
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
        return self.table.item(vbucket, index.ROWS)  # `item` returns an int

    def grow(self, vbucket: int, rows: int = 1, keys: int = 1, factor: float = GROWTH) -> None:
        """Make room for at least `rows` more rows and `keys` more keys.

        Raises:
            StorageError: an index can't hold so many rows.
        """
        had, columns = self.rows(vbucket), self.columns[vbucket]
        need = had + rows
        if need > index.ROWS_MAX:
            raise StorageError(
                f"vbucket {vbucket}: {need} changes are more than an index holds; compact, or use more vbuckets"
            )
        capacity = columns.capacity
        if need > capacity:
            # A quarter more each time, not twice as much: with 1,024 vbuckets, empty rows take much memory.
            capacity = max(need, min(int(capacity * factor) + ROWS_FIRST, index.ROWS_MAX))
        key_count = int(self.table[vbucket, index.KEYS]) + keys
        slots = len(columns.slots)
        if key_count > _keys_max(slots):
            slots = _slots_for(key_count)
        if capacity != columns.capacity or slots != len(columns.slots):
            self.adopt(vbucket, columns.copy(had, capacity, slots))
        room = self.columns[vbucket].capacity
        node_invariant(need <= room, "vbucket {}: room for {} rows, {} are needed", vbucket, room, need)

    def make_room(self, vbucket: int, rows: int) -> None:
        """Give an empty vbucket columns for `rows` rows, with as much free room as in `sized`, and no room for keys."""
        self.adopt(vbucket, Columns(min(rows + rows // 8 + ROWS_FIRST // 2, index.ROWS_MAX), 1))

    def make_room_for_keys(self, vbucket: int, keys: int) -> None:
        """Make room for `keys` more keys in columns that no view or compaction reads yet."""
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
        """Free the memory that a vbucket does not need; room for an eighth more rows stays."""
        rows, keys, columns = self.rows(vbucket), int(self.table[vbucket, index.KEYS]), self.columns[vbucket]
        fitted = self.sized(rows, keys)
        capacity, slots = min(fitted.capacity, columns.capacity), min(len(fitted.slots), len(columns.slots))
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
        """Remove a dropped vbucket. Only its highest CAS stays, for a later vbucket with the same number."""
        self.reset(vbucket)
        # CAS stays: a client that kept a CAS of the dropped vbucket must not find it on another document.
        self.table[vbucket, index.STATE] = self.table[vbucket, index.DELETED_REV] = 0

    def rows_up_to(self, vbucket: int, seqno: int) -> int:
        """Return the number of rows with a seqno at or below `seqno`."""
        if seqno >= self.table.item(vbucket, index.HIGH):
            return self.rows(vbucket)  # the usual case of a stream that has all changes so far
        if seqno == 0:
            return 0  # the usual case of a new stream
        return int(self.columns[vbucket].seq[: self.rows(vbucket)].searchsorted(np.uint64(seqno), "right"))

    def check(self) -> None:
        """Check (with invariants) each vbucket's counters: durable rows are frozen, and frozen rows are staged."""
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
        """Return the memory of the index in bytes, including the table."""
        return int(self.table.nbytes) + sum(columns.nbytes for columns in self.columns if columns is not self._none)

    # ------------------------------------------------------------------ a vbucket's numbers

    def high_seqno(self, vbucket: int) -> int:
        """Return the seqno of the newest change, durable or not."""
        return self.table.item(vbucket, index.HIGH)  # `item` returns an int

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
        """Return True if the index has the change with this seqno, durable or not; False if it never came, or a
        compaction has removed it.
        """
        rows = self.rows_up_to(vbucket, seqno)
        return rows > 0 and self.columns[vbucket].seq.item(rows - 1) == seqno

    def high_after(self, vbucket: int, keep: int, seqno: int) -> int:
        """Return the high seqno after a rollback to `seqno` that keeps `keep` rows: the seqno of the last remaining
        change.

        If a compaction has removed changes, the last change at or below `seqno` may be one of these. So the result is
        at least the rollback floor, or `seqno` if that is lower.
        """
        last = self.columns[vbucket].seq.item(keep - 1) if keep else 0
        # A used seqno must not be assigned again under the same vb uuid, even if compaction has removed its row.
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
        """Make the next run of the pager search one vbucket (None: all) for expired documents. A rollback may have
        restored dropped collections, whose documents the last run has ignored.
        """
        table = self.table if vbucket is None else self.table[vbucket : vbucket + 1]
        # 1 is the earliest expiry that counts, so the next run searches.
        table[table[:, index.MIXED] != 0, index.EXPIRY] = 1
