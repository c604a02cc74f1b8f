"""From keys to rows: for each data file an index file beside it, the sorted hashes of its keys, mapped into memory.

    _index/<data file>.idx    40 bytes of header, then n high words, n low words, n row numbers (20 bytes a row)

In a table whose rows keep their ids (lake/row_ids.py), n ids stand before the row numbers, unless all rows of the file
have the id of their place: 28 bytes a row or 20, under another magic. An index from before is good if its file has no
column of ids.

The hash has 128 bits and a seed of the table's own (kernels/siphash.py), so equal hashes mean equal keys. An index only
saves work: it is written without waiting for the disk and carries a checksum. An index that is lost, cut, stale or of
another table is built again from the keys of the data file, so the data files alone decide.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from headwater.invariants import invariant
from headwater.lake import row_ids
from headwater.lake.row_ids import NO_ID
from headwater.lake.store import TableStore

FOLDER, SUFFIX = "_index", ".idx"
SEED_BYTES = 16
_MAGIC, _MAGIC_WITH_IDS = b"HWIDX1\0\0", b"HWIDX2\0\0"
_HEADER = struct.Struct("<8sQQQQ")
"""Magic, rows in the index, rows in the data file, owner (table, data file and seed), checksum of the rest."""

_ROW_BYTES, _ID_BYTES = 20, 8
_COMPRESS, _FINISH = 1, 3
Words = NDArray[np.uint64]
Rows = NDArray[np.uint32]
Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Hashes:
    """Hashes of several keys: their high and their low words."""

    high: Words
    low: Words

    def __len__(self) -> int:
        return len(self.high)

    def take(self, places: NDArray[Any]) -> Hashes:
        """Return the hashes at these positions, or where a mask is True."""
        return Hashes(self.high[places], self.low[places])


NO_HASHES = Hashes(np.zeros(0, np.uint64), np.zeros(0, np.uint64))


def joined(parts: list[Hashes]) -> Hashes:
    """Return several parts as one, in their order."""
    if not parts:
        return NO_HASHES
    return Hashes(np.concatenate([part.high for part in parts]), np.concatenate([part.low for part in parts]))


def hashes_of(keys: Any, vbuckets: NDArray[Any], seed: bytes) -> Hashes:
    """Return the hash of each row's identity, (vbucket, key).

    Args:
        keys: an Arrow array, binary or text, without nulls.
        vbuckets: vbuckets of the same rows.
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
    """Return keys with 32-bit offsets. Other writers' files may have large ones, views or a dictionary, which Arrow
    keeps when it reads them."""
    return keys if pa.types.is_binary(keys.type) or pa.types.is_string(keys.type) else keys.cast(pa.binary())


def order_of(hashes: Hashes) -> NDArray[np.int64]:
    """Return the order that sorts hashes; equal hashes keep their order."""
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
    """Return a mask of sorted hashes: True for the last one of each group of equal hashes."""
    high, low = sorted_hashes.high, sorted_hashes.low
    if not len(high):
        return np.zeros(0, np.bool_)
    return np.append((high[1:] != high[:-1]) | (low[1:] != low[:-1]), True)


@dataclass(frozen=True, slots=True)
class KeyIndex:
    """Sorted hashes and the row of each, mapped from a file or built in memory.

    Attributes:
        ids: of the same rows, `NO_ID` for the id of the row's place; None if all have that, or none is kept.
    """

    hashes: Hashes
    rows: Rows
    ids: Ids | None = None

    def find(self, hashes: Hashes) -> Rows:
        """Return the rows of sorted hashes that the index has; a key that is in the file twice has two rows."""
        return self.rows[self.matches(hashes)[0]]

    def matches(self, hashes: Hashes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (place in the index, number among `hashes`) of the sorted hashes that the index has."""
        high = self.hashes.high
        none = np.zeros(0, np.int64)
        if not len(high) or not len(hashes):
            return none, none
        hits: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        places, numbers = np.searchsorted(high, hashes.high), np.arange(len(hashes))
        while len(places):
            inside = places < len(high)
            places, numbers = places[inside], numbers[inside]
            same = high[places] == hashes.high[numbers]
            places, numbers = places[same], numbers[same]
            is_equal = self.hashes.low[places] == hashes.low[numbers]
            hits.append((places[is_equal], numbers[is_equal]))
            places = places + 1  # equal high words stand together
        return np.concatenate([at for at, _ in hits]), np.concatenate([number for _, number in hits])


def index_of_sorted(hashes: Hashes, rows: NDArray[Any], ids: Ids | None = None) -> KeyIndex:
    """Return the index of hashes that are sorted already."""
    row_ids_ = ids if ids is not None and (ids != NO_ID).any() else None
    return KeyIndex(hashes, np.ascontiguousarray(rows, np.uint32), row_ids_)


def index_of(hashes: Hashes, rows: NDArray[Any], ids: Ids | None = None) -> KeyIndex:
    """Return the index of unsorted hashes."""
    order = order_of(hashes)
    return index_of_sorted(hashes.take(order), rows[order], None if ids is None else ids[order])


class Indexes:
    """The indexes of one table as one process has them: mapped once, checked once, rebuilt when they can't be used.

    Args:
        store: the table's place.
        table: the table's id; indexes that came with a copied folder have another one and are not used.
        seed: seed of the hash.
        keep: number of indexes that stay mapped, others are mapped again when they are needed; None for as many as the
            store allows. A batch reads all indexes of a table in the same order, so if the table has more files than
            `keep`, each batch maps and reads all of them again.
    """

    def __init__(self, store: TableStore, table: str, seed: bytes, keep: int | None = None) -> None:
        self.store: TableStore = store
        self.seed: bytes = seed
        self._table, self._keep = table, store.MAPPED_MAX if keep is None else keep
        self._open: OrderedDict[str, KeyIndex] = OrderedDict()
        self._ids: str | None = None
        self.rebuilt: int = 0

    def keep_ids(self, column: str | None) -> None:
        """Keep the ids of rows as well, that this column of the data files has; None for none."""
        if column != self._ids:
            self._ids = column
            self._open.clear()  # what was known of a file may lack its ids

    def of(self, path: str) -> KeyIndex:
        """Return the index of a data file."""
        index = self._open.get(path)
        if index is None:
            index = self._mapped(path) or self._rebuilt(path)
            self._remember(path, index)
        self._open.move_to_end(path)
        return index

    def write(self, path: str, index: KeyIndex, rows: int) -> None:
        """Write the index of a data file with `rows` rows, and keep it."""
        count, high = len(index.rows), index.hashes.high
        invariant(count == len(high) <= rows, "{}: an index of {} rows, {} hashes, of {}", path, count, len(high), rows)
        invariant((high[1:] >= high[:-1]).all(), "{}: an index that is not sorted", path)
        columns = (index.hashes.high, index.hashes.low, *(() if index.ids is None else (index.ids,)), index.rows)
        parts = [np.ascontiguousarray(part).data for part in columns]
        checksum = xxhash.xxh3_64()
        for part in parts:
            checksum.update(part)
        magic = _MAGIC if self._ids is None else _MAGIC_WITH_IDS
        header = _HEADER.pack(magic, len(index.rows), rows, self._owner(path, magic), checksum.intdigest())
        with self.store.output(place_of(path), durable=False) as out:
            out.writelines([header, *parts])
        # What is mapped takes no memory of its own; thousands that this process has written would.
        self._remember(path, (self.store.maps_files and self._mapped(path)) or index)

    def forget_others(self, paths: Collection[str]) -> None:
        """Unmap all indexes but those of these data files: a removed file takes room on the disk while it is mapped."""
        for path in self._open.keys() - set(paths):
            del self._open[path]

    def is_good(self, path: str) -> bool:
        """Return True if the file beside a data file is its index and whole."""
        return self._mapped(path) is not None

    def _remember(self, path: str, index: KeyIndex) -> None:
        self._open[path] = index
        while len(self._open) > self._keep:
            self._open.popitem(last=False)

    def _owner(self, path: str, magic: bytes) -> int:
        """Return the number that ties an index to this table, data file and seed, and with ids to their column."""
        # The ids of another column are of a time before the table dropped the feature: they are given out anew.
        column = f"\0{self._ids}" if magic == _MAGIC_WITH_IDS else ""
        return xxhash.xxh3_64_intdigest(f"{self._table}\0{path}{column}".encode() + self.seed)

    def _mapped(self, path: str) -> KeyIndex | None:
        content = self.store.mapped(place_of(path))
        if content is None or len(content) < _HEADER.size:
            return None
        magic, count, _, owner, checksum = _HEADER.unpack_from(content)
        body = content[_HEADER.size :]
        if magic not in (_MAGIC, _MAGIC_WITH_IDS) or owner != self._owner(path, magic):
            return None
        has_ids = magic == _MAGIC_WITH_IDS and len(body) == count * (_ROW_BYTES + _ID_BYTES)
        if not has_ids and len(body) != count * _ROW_BYTES:
            return None
        if xxhash.xxh3_64_intdigest(body) != checksum or (magic == _MAGIC and self._lacks_ids(path)):
            return None
        high, low = np.frombuffer(body, np.uint64, count), np.frombuffer(body, np.uint64, count, 8 * count)
        ids = np.frombuffer(body, np.int64, count, 16 * count) if has_ids else None
        rows = np.frombuffer(body, np.uint32, count, len(body) - 4 * count)
        return KeyIndex(Hashes(high, low), rows, ids)

    def _lacks_ids(self, path: str) -> bool:
        """Return True if a data file has ids that an index without them does not know."""
        if self._ids is None:
            return False
        with self.store.parquet(path) as parquet_file:
            return self._ids in parquet_file.schema_arrow.names

    def _rebuilt(self, path: str) -> KeyIndex:
        """Build the index of a data file from its keys: the index is lost, or another writer wrote the data file."""
        index, rows = built(self.store, path, self.seed, self._ids)
        self.rebuilt += 1
        with suppress(OSError):  # the store may not take writes at present; this process keeps the index in memory
            self.write(path, index, rows)
        return index


def built(store: TableStore, path: str, seed: bytes, ids: str | None = None) -> tuple[KeyIndex, int]:
    """Return the index of a data file, built from its keys, and the number of its rows; `ids` is the column of ids."""
    parts: list[Hashes] = []
    id_arrays: list[Ids] = []
    rows = 0
    with store.parquet(path) as parquet_file:
        id_columns = [ids] if ids is not None and ids in parquet_file.schema_arrow.names else []
        for batch in parquet_file.iter_batches(columns=["key", "vbucket", *id_columns]):
            id_arrays += [row_ids.array(batch.column(name)) for name in id_columns]
            keys = _plain(batch.column("key"))
            # Another writer's row may lack its key or vbucket. No document has an empty key or vbucket -1, so no change
            # of ours finds such a row by mistake.
            if keys.null_count:
                keys = keys.fill_null(b"" if pa.types.is_binary(keys.type) else "")
            parts.append(hashes_of(keys, batch.column("vbucket").fill_null(-1).to_numpy(), seed))
            rows += batch.num_rows
    return index_of(joined(parts), np.arange(rows), np.concatenate(id_arrays) if id_arrays else None), rows


def place_of(path: str) -> str:
    """Return the path of a data file's index."""
    name = path.rpartition("/")[2]
    return f"{FOLDER}/{name}{SUFFIX}"
