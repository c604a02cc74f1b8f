"""The change log of a mirror, in a folder beside its table: each change is appended as a row and never rewritten.

Each row has the `batch` it came in. A row with event `rollback` says that a failover took back what the vbucket had
above its seqno: a row counts unless a later batch has, for its vbucket, a `rollback` row with a lower seqno (the same
batch's rollback comes before its changes).

Each change is logged once. The log is committed before the table, so after a crash between the two commits it is one
batch ahead (pipelines/changelog.py); after a failover a vbucket may be read again from an older point that is certainly
held. In both cases changes that the log already has are left out. A change is identified by its vbucket and seqno among
the rows that count; the vb uuid would not do, for nodes forget old branches of their failover log.

A log may have three more columns (lake/versions.py), with what each change replaced. They are null in rows from before
the log had them, in rollback rows, and in the rows of a base.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.lake.files import DataWriter, NewFile
from headwater.lake.layout import OF_DELTA, TableLayout
from headwater.lake.log import TableState
from headwater.lake.shape import CHANGES, arrow_schema, delta_field, delta_type
from headwater.lake.store import TableStore
from headwater.lake.versions import BEFORES

ROLLBACK = "rollback"
_NONE = np.zeros(0, np.int64)


def fields(*, befores: bool = False) -> list[dict[str, Any]]:
    """Return the columns of a change log; with `befores` those of what a change replaced as well."""
    kinds = CHANGES | ({name: delta_type(kind) for name, kind in BEFORES.items()} if befores else {})
    return [delta_field(name, kind) for name, kind in kinds.items()]


def has_befores(state: TableState) -> bool:
    """Return True if a change log has the columns of what a change replaced."""
    return BEFORES.keys() <= {column["name"] for column in state.fields}


class ChangeWriter:
    """Writes one task's part of a batch to the change log.

    Args:
        store: the log's place.
        number: of the batch.
        seqnos: seqnos that are in the log already, by vbucket.
        floors: for vbuckets that were rolled back, the seqno they returned to; the log has the changes up to it.
        layout: of the log's table.
        befores: True for a log with the columns of what a change replaced.
    """

    def __init__(
        self,
        store: TableStore,
        number: int,
        seqnos: Mapping[int, NDArray[np.int64]],
        floors: Mapping[int, int],
        layout: TableLayout = OF_DELTA,
        *,
        befores: bool = False,
    ) -> None:
        self._out = DataWriter(store, arrow_schema(fields(befores=befores)), layout.label("changes"))
        self._number, self._logged_seqnos, self._floors = number, seqnos, floors

    def take(self, batch: pa.RecordBatch, *, always: bool = False) -> None:
        """Append those changes that the log does not have yet; with `always`, append all of them (rollback rows)."""
        # A rollback row carries the seqno that its vbucket returned to: the floors would take it for a change that the
        # log already has, and readers would count what the failover took back.
        if not always and not (is_new := self._new_rows(batch)).all():
            batch = batch.filter(pa.array(is_new))
        if batch.num_rows:
            arrays = [self._column(column, batch) for column in self._out.schema]
            self._out.add(pa.RecordBatch.from_arrays(arrays, schema=self._out.schema))

    def _column(self, column: pa.Field[Any], batch: pa.RecordBatch) -> Any:
        if column.name == "batch":
            return pa.array(np.full(batch.num_rows, self._number, np.int64))
        if column.name in BEFORES and column.name not in batch.schema.names:
            return pa.nulls(batch.num_rows, column.type)
        return batch.column(column.name)

    def close(self) -> list[NewFile]:
        """Return the files that were written."""
        return self._out.close()

    def discard(self) -> None:
        """Remove the files that were written."""
        self._out.discard()

    def _new_rows(self, batch: pa.RecordBatch) -> NDArray[np.bool_]:
        is_new = np.ones(batch.num_rows, np.bool_)
        if not self._logged_seqnos and not self._floors:
            return is_new
        vbuckets, seqnos = batch.column("vbucket").to_numpy(), batch.column("seqno").to_numpy()
        for vb, logged in self._logged_seqnos.items():
            is_new &= ~((vbuckets == vb) & np.isin(seqnos, logged))
        for vb, floor in self._floors.items():
            is_new &= ~((vbuckets == vb) & (seqnos <= floor))
        return is_new


def known(store: TableStore, state: TableState, above: Mapping[int, int]) -> dict[int, NDArray[np.int64]]:
    """Return the seqnos, by vbucket, of the rows that the log already has and that still count.

    Args:
        store: the log's place.
        state: its newest version.
        above: vbucket to the seqno above which seqnos are returned.
    """
    if not above:
        return {}
    parts = [_columns(store, file.path) for file in state.files.values() if file.may_hold(min(above), max(above))]
    if not parts:
        return {}
    vbuckets, seqnos, batches, back = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {
        vb: _counting(seqnos[is_of_vbucket], batches[is_of_vbucket], back[is_of_vbucket], lowest)
        for vb, lowest in above.items()
        if (is_of_vbucket := vbuckets == vb).any()
    }


def _columns(store: TableStore, path: str) -> tuple[Any, Any, Any, Any]:
    with store.parquet(path) as parquet_file:
        read = parquet_file.read(columns=["vbucket", "seqno", "batch", "event"])
    vbuckets, seqnos, batches = (read.column(name).to_numpy() for name in ("vbucket", "seqno", "batch"))
    back = np.array([event == ROLLBACK for event in read.column("event").to_pylist()], np.bool_)
    return vbuckets, seqnos, batches, back


def _counting(
    seqnos: NDArray[np.int64], batches: NDArray[np.int64], back: NDArray[np.bool_], lowest: int
) -> NDArray[np.int64]:
    counts = ~back & (seqnos > lowest)
    for seqno, batch in zip(seqnos[back], batches[back], strict=True):
        # A rollback takes back what earlier batches logged above its seqno. Changes of its own batch come after it and
        # are of the new history.
        counts &= ~((batches < batch) & (seqnos > seqno))
    return seqnos[counts] if counts.any() else _NONE
