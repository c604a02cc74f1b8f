"""From keys to rows: for each data file, the sorted hashes of its keys, in a file beside it that is mapped, not read.

    _index/<data file>.idx    40 bytes of header, then n high words, n low words, n row numbers (20 bytes a row)

The hash has 128 bits and a seed of the table's own (kernels/siphash.py), so equal hashes are equal keys. An index is
only a shortcut: it is written without waiting for the disk and carries a checksum, and one that is lost, cut, stale or
of another table is built again from the data file's keys. Nothing is ever decided by it that the files do not say.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headwater.lake.store import TableStore

FOLDER, SUFFIX = "_index", ".idx"
SEED_BYTES = 16
_MAGIC = b"HWIDX1\0\0"
_HEADER = struct.Struct("<8sQQQQ")
"""Magic, rows in the index, rows in the data file, whose index it is, checksum of what follows."""

_ROW_BYTES = 20
_COMPRESS, _FINISH = 1, 3
KEPT_OPEN = 512
"""Indexes that a process keeps mapped; more are mapped again when they are asked."""

Words = NDArray[np.uint64]
Rows = NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class Hashes:
    """The hashes of a run of keys, high and low words."""

    high: Words
    low: Words

    def __len__(self) -> int:
        return len(self.high)

    def take(self, places: NDArray[Any]) -> Hashes:
        """Return those at these places (or where a mask is true)."""
        return Hashes(self.high[places], self.low[places])


NO_HASHES = Hashes(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def joined(parts: list[Hashes]) -> Hashes:
    """Return hashes one behind the other."""
    if not parts:
        return NO_HASHES
    return Hashes(np.concatenate([part.high for part in parts]), np.concatenate([part.low for part in parts]))


def hashes_of(keys: Any, vbuckets: NDArray[Any], seed: bytes) -> Hashes:
    """Return the hash of each key; (vbucket, key) is a row's identity.

    Args:
        keys: an Arrow array, binary or text, without nulls.
        vbuckets: of the same rows.
        seed: the table's, 16 bytes.
    """
    from headwater.kernels import siphash  # a run with nothing to do hashes nothing, and starts without the compiler

    rows, keys = len(keys), _plain(keys)
    _, offsets, data = keys.buffers()
    starts = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + rows + 1] if rows else np.zeros(1, np.int32)
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    high, low = np.empty(rows, np.uint64), np.empty(rows, np.uint64)
    words = np.frombuffer(seed, np.uint64).copy()
    kind = np.ascontiguousarray(vbuckets, np.int32).view()
    address = np.uintp(content.ctypes.data)
    # Arrow's memory may be written to or not; for the compiler these are two types, and two kernels.
    content.flags.writeable = kind.flags.writeable = False
    siphash.hash_keys(starts.copy(), content, address, kind, words, high, low, _COMPRESS, _FINISH)
    return Hashes(high, low)


def _plain(keys: Any) -> Any:
    """Return keys with offsets of 32 bits: where somebody else wrote large ones, views or a dictionary, Arrow reads
    them as that again."""
    return keys if pa.types.is_binary(keys.type) or pa.types.is_string(keys.type) else keys.cast(pa.binary())


def order_of(hashes: Hashes) -> NDArray[np.int64]:
    """Return the order that sorts hashes, equal ones by place."""
    # Five times as fast as the stable sort, which only equal ones need: a key that came twice.
    order = np.argsort(hashes.high)
    high = hashes.high[order]
    same = high[1:] == high[:-1]
    if not same.any():
        return order
    order = np.argsort(hashes.high, kind="stable")
    if (hashes.low[order[1:]][same] != hashes.low[order[:-1]][same]).any():
        return np.lexsort((hashes.low, hashes.high))  # two keys that share a high word: once in an age
    return order


def lasts_of(sorted_hashes: Hashes) -> NDArray[np.bool_]:
    """Return which of sorted hashes is the last of its equals."""
    high, low = sorted_hashes.high, sorted_hashes.low
    if not len(high):
        return np.zeros(0, np.bool_)
    return np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Sorted hashes and the row of each, mapped from a file or fresh."""

    hashes: Hashes
    rows: Rows

    def find(self, wanted: Hashes) -> Rows:
        """Return the rows of those sorted hashes that are here; a key that is in the file twice counts twice."""
        high = self.hashes.high
        if not len(high) or not len(wanted):
            return np.zeros(0, np.uint32)
        first = np.searchsorted(high, wanted.high)
        found: list[Rows] = []
        places, asked = first, np.arange(len(wanted))
        while len(places):
            inside = places < len(high)
            places, asked = places[inside], asked[inside]
            same = high[places] == wanted.high[asked]
            places, asked = places[same], asked[same]
            hit = self.hashes.low[places] == wanted.low[asked]
            found.append(self.rows[places[hit]])
            places = places + 1  # equal high words stand together
        return np.concatenate(found)


def made_of_sorted(hashes: Hashes, rows: NDArray[Any]) -> KeyIndex:
    """Return the index of hashes that are sorted."""
    return KeyIndex(hashes, np.ascontiguousarray(rows, np.uint32))


def made(hashes: Hashes, rows: NDArray[Any]) -> KeyIndex:
    """Return the index of unsorted hashes."""
    order = order_of(hashes)
    return KeyIndex(hashes.take(order), np.ascontiguousarray(rows[order], np.uint32))


class Indexes:
    """The indexes of one table, as one process sees them: mapped once, checked once, rebuilt when they are no good.

    Args:
        store: the table's place.
        table: the table's id, so that a copied folder's indexes are not taken for its own.
        seed: of the hash.
        keep: how many stay mapped.
    """

    def __init__(self, store: TableStore, table: str, seed: bytes, keep: int = KEPT_OPEN) -> None:
        self.store: TableStore = store
        self.seed: bytes = seed
        self._table, self._keep = table, keep
        self._open: OrderedDict[str, KeyIndex] = OrderedDict()
        self.rebuilt: int = 0

    def of(self, path: str) -> KeyIndex:
        """Return the index of a data file."""
        known = self._open.get(path)
        if known is None:
            known = self._mapped(path) or self._rebuilt(path)
            self._remember(path, known)
        self._open.move_to_end(path)
        return known

    def write(self, path: str, index: KeyIndex, rows: int) -> None:
        """Write the index of a data file of so many rows, and keep it."""
        parts = [np.ascontiguousarray(part).data for part in (index.hashes.high, index.hashes.low, index.rows)]
        checksum = xxhash.xxh3_64()
        for part in parts:
            checksum.update(part)
        header = _HEADER.pack(_MAGIC, len(index.rows), rows, self._owner(path), checksum.intdigest())
        with self.store.output(place_of(path), durable=False) as out:
            out.writelines([header, *parts])
        self._remember(path, index)

    def is_good(self, path: str) -> bool:
        """Whether the file beside a data file is its index, whole."""
        return self._mapped(path) is not None

    def _remember(self, path: str, index: KeyIndex) -> None:
        self._open[path] = index
        while len(self._open) > self._keep:
            self._open.popitem(last=False)

    def _owner(self, path: str) -> int:
        """Whose index a file is: of this table, of this data file, under this seed."""
        return xxhash.xxh3_64_intdigest(f"{self._table}\0{path}".encode() + self.seed)

    def _mapped(self, path: str) -> KeyIndex | None:
        content = self.store.mapped(place_of(path))
        if content is None or len(content) < _HEADER.size:
            return None
        magic, count, _, owner, checksum = _HEADER.unpack_from(content)
        body = memoryview(content)[_HEADER.size :]
        if magic != _MAGIC or owner != self._owner(path) or len(body) != count * _ROW_BYTES:
            return None
        if xxhash.xxh3_64_intdigest(body) != checksum:
            return None
        high, low = np.frombuffer(body, np.uint64, count), np.frombuffer(body, np.uint64, count, 8 * count)
        return KeyIndex(Hashes(high, low), np.frombuffer(body, np.uint32, count, 16 * count))

    def _rebuilt(self, path: str) -> KeyIndex:
        """Read the keys of a data file: one whose index is lost, or that somebody else wrote."""
        index, rows = built(self.store, path, self.seed)
        self.rebuilt += 1
        with suppress(OSError):  # a store that can't be written to at present: this process has it in memory
            self.write(path, index, rows)
        return index


def built(store: TableStore, path: str, seed: bytes) -> tuple[KeyIndex, int]:
    """Return the index of a data file as its keys say, and how many rows the file has."""
    parts: list[Hashes] = []
    rows = 0
    with store.parquet(path) as opened:
        for batch in opened.iter_batches(columns=["key", "vbucket"]):
            keys = _plain(batch.column("key"))
            if keys.null_count:
                keys = keys.fill_null(b"" if pa.types.is_binary(keys.type) else "")
            parts.append(hashes_of(keys, batch.column("vbucket").fill_null(-1).to_numpy(), seed))
            rows += batch.num_rows
    return made(joined(parts), np.arange(rows)), rows


def place_of(path: str) -> str:
    """Return where the index of a data file lies."""
    name = path.rpartition("/")[2]
    return f"{FOLDER}/{name}{SUFFIX}"
