"""Rows keep their ids: a task looks up the id of each row that it replaces, and a table begins to keep ids.

One rule: a row of a new version of the table has the id of the row of the same key in the version before. If there was
none, the row has a new id. So a key that was deleted and stored again has another id, unless both came in one batch,
and no version was without it. A vbucket that is replaced whole, after a rollback, is looked up as well: a key that is
in the table before and after keeps its id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from headwater.lake import row_ids, vectors
from headwater.lake.files import live_mask
from headwater.lake.iceberg import entry as iceberg
from headwater.lake.index import Hashes, Indexes, KeyIndex, order_of
from headwater.lake.log import Action, DataFile, TableLog, TableState
from headwater.lake.row_ids import NO_ID
from headwater.lake.store import TableStore

Ids = NDArray[np.int64]
MASK_SHARE = 64
"""If one row in so many of a file, or more, is found at once, the file's vector becomes a mask of one byte a row: a
look into it is faster. Small batches into a large table do without."""


class Lookup:
    """Finds the rows that a task's changes replace, and their ids, some batches at a time: the ids stand in the files
    that the task writes, so they must be known before.

    Args:
        store: the table's place.
        state: the version of the table in which rows are looked up.
        indexes: of the same table.
        vbuckets: those whose keys may be in the table.
    """

    def __init__(self, store: TableStore, state: TableState, indexes: Indexes, vbuckets: frozenset[int]) -> None:
        self._store, self._state, self._indexes = store, state, indexes
        self._vbuckets = np.fromiter(vbuckets, np.int32)
        self._vectors: dict[str, BitMap] = {}
        self._masks: dict[str, NDArray[np.bool_]] = {}
        self._hits: dict[str, list[NDArray[np.uint32]]] = {}

    def ids_of(self, hashes: Hashes, vbuckets: NDArray[Any]) -> Ids:
        """Return the id of the row that each change replaces; `NO_ID` where it replaces none."""
        ids = np.full(len(hashes), NO_ID, np.int64)
        is_sought = np.isin(vbuckets, self._vbuckets)
        if not is_sought.any():
            return ids
        places = np.flatnonzero(is_sought)
        places = places[order_of(hashes.take(places))]
        sought_hashes = hashes.take(places)
        lowest, highest = int(vbuckets[places].min()), int(vbuckets[places].max())
        for file in self._state.files.values():
            if file.may_hold(lowest, highest):
                self._take(file, self._indexes.of(file.path), sought_hashes, places, ids)
        return ids

    def dead(self) -> Iterator[tuple[str, NDArray[np.uint32]]]:
        """Yield (path as the log writes it, rows) for all rows that were replaced, those that were dead before among
        them."""
        for path, hits in self._hits.items():
            yield path, np.concatenate(hits)

    def _take(self, file: DataFile, index: KeyIndex, hashes: Hashes, places: NDArray[np.int64], ids: Ids) -> None:
        at, numbers = index.matches(hashes)
        if not len(at):
            return
        rows = index.rows[at]
        self._hits.setdefault(file.add["path"], []).append(rows)
        # An index knows dead rows as well, perhaps of a key that was deleted since and is stored again.
        alive = self._alive(file, rows)
        at, numbers, rows = at[alive], numbers[alive], rows[alive]
        row_ids_ = np.full(len(at), NO_ID, np.int64) if index.ids is None else index.ids[at]
        if file.first_row is not None:
            row_ids_ = np.where(row_ids_ == NO_ID, file.first_row + rows.astype(np.int64), row_ids_)
        ids[places[numbers]] = row_ids_

    def _alive(self, file: DataFile, rows: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return a mask of those rows of a file that the table has."""
        if file.vector is None:
            return np.ones(len(rows), np.bool_)
        if file.path not in self._vectors:
            self._vectors[file.path] = vectors.read(self._store, file.vector)
        dead_rows = self._vectors[file.path]
        if file.rows is None or len(rows) * MASK_SHARE < file.rows:
            return ~np.isin(rows, vectors.positions_of(vectors.rows_of(rows) & dead_rows))
        if file.path not in self._masks:
            self._masks[file.path] = live_mask(file.rows, dead_rows)
        return self._masks[file.path][rows]


def lookup(store: TableStore, state: TableState, indexes: Indexes, vbuckets: frozenset[int]) -> Lookup | None:
    """Return the lookup of a table whose rows keep their ids; None for another table. Arguments as of `Lookup`."""
    columns = state.id_columns
    indexes.keep_ids(columns.row if columns else None)
    return Lookup(store, state, indexes, vbuckets) if columns else None


def begin(log: TableLog) -> None:
    """Let the rows of a table keep their ids from now on. Each row that it has gets an id, in one commit.

    Args:
        log: refreshed now.

    Raises:
        HeadwaterError, OSError: it is as it was.
    """
    while log.refresh().id_columns is None:
        # Iceberg's rows have ids already; none of them is given to another row. A version that is published is not
        # published again, so they are these until the next commit.
        iceberg.publish(log)
        if log.commit(_beginning(log, iceberg.next_row(log)), "SET TBLPROPERTIES"):
            iceberg.publish(log)


def _beginning(log: TableLog, following: int) -> list[Action]:
    state = log.state
    features = [*(state.protocol.get("writerFeatures") or ())]
    if row_ids.FEATURE not in features:
        features.append(row_ids.FEATURE)
    properties = dict(state.properties)
    actions: list[Action] = [
        {"protocol": state.protocol | {"writerFeatures": features}},
        {"metaData": state.metadata | {"configuration": properties | row_ids.new_properties(properties)}},
        row_ids.mark(max(following, state.next_row)),
    ]
    without = (file for file in state.files.values() if file.first_row is None)
    return [*actions, *({"add": _add_with_count(log.store, file)} for file in without)]


def _add_with_count(store: TableStore, file: DataFile) -> Action:
    """Return the action of a file that is in the table, with the number of its rows, that other writers may leave
    out."""
    add = file.add | {"dataChange": False}
    if file.rows is not None:
        return add
    with store.parquet(file.path) as parquet_file:
        stats = {"numRecords": parquet_file.metadata.num_rows, "tightBounds": file.vector is None}
    return add | {"stats": json.dumps(stats, separators=(",", ":"))}
