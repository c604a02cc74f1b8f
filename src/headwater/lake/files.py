"""Data files: a task's rows as Parquet, on disk before the log names them, with the statistics that the log carries.

A task's rows are gathered into row groups of some MiB; a new file begins after some hundred MiB. Names are random, so a
failed attempt leaves files that no log names; vacuum removes them by age.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.invariants import invariant
from headwater.lake.store import TableStore
from headwater.lake.vectors import positions_of

GROUP_BYTES = 16 << 20
"""The size of a row group: no more than the memory that a client reuses for decoding."""

FILE_BYTES = 384 << 20
PAGE_BYTES = 1 << 20
COMPRESSION: Literal["snappy"] = "snappy"
DICTIONARIES = ("vbucket", "vb_uuid", "flags", "datatype", "expiry", "event", "batch")
"""Columns with few different values. For keys and values, trying a dictionary costs a third of the writing time."""

STATISTICS = ("vbucket", "seqno")
"""The columns whose statistics the log has for each file; more would only make the log longer."""


@dataclass
class NewFile:
    """A data file that is written, but not in the table yet.

    Attributes:
        path: path in the table.
        rows: number of its rows. size: its size in bytes.
        lowest, highest: bounds of each column in `STATISTICS`.
    """

    path: str
    rows: int = 0
    size: int = 0
    lowest: dict[str, int] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)

    def to_add(self, *, data_change: bool = True, is_whole: bool = True) -> dict[str, Any]:
        """Return the log's `add` action for the file.

        Args:
            data_change: False for a fold, which changes no row of the table.
            is_whole: True if the file has no deletion vector, so that its bounds are tight.
        """
        stats = {
            "numRecords": self.rows,
            "minValues": self.lowest,
            "maxValues": self.highest,
            "nullCount": dict.fromkeys(self.lowest, 0),
            "tightBounds": is_whole,
        }
        return {
            "path": self.path,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": int(time.time() * 1000),
            "dataChange": data_change,
            "stats": json.dumps(stats, separators=(",", ":")),
        }


def spread(batch: pa.RecordBatch, name: str) -> tuple[int, int]:
    """Return the lowest and highest value of an integer column that has rows."""
    ends: Any = pc.min_max(batch.column(name)).as_py()
    return int(ends["min"]), int(ends["max"])


class DataWriter:
    """Writes batches of one schema to as many files as they fill.

    Args:
        store: the table's place.
        schema: schema of all batches.
        label: beginning of the files' paths in the table.
        statistics: columns whose bounds go into the log.
    """

    def __init__(
        self,
        store: TableStore,
        schema: pa.Schema,
        label: str = "part",
        statistics: Sequence[str] = STATISTICS,
        *,
        file_bytes: int = FILE_BYTES,
        group_bytes: int = GROUP_BYTES,
    ) -> None:
        self.store: TableStore = store
        self.schema: pa.Schema = schema
        self.label: Final = label
        self.files: list[NewFile] = []
        self._statistics, self._file_bytes, self._group_bytes = statistics, file_bytes, group_bytes
        self._out: pq.ParquetWriter | None = None
        self._waiting_rows: list[pa.RecordBatch] = []
        self._held_bytes = self._file_held = 0

    def add(self, batch: pa.RecordBatch) -> tuple[int, int]:
        """Add a batch that has rows; return (number of its file, position of its first row in that file).

        A batch whose columns differ from the batch before it begins a new file.
        """
        if not self.files or self._file_held >= self._file_bytes or not batch.schema.equals(self.schema):
            self._finish_file()
            self.schema = batch.schema
            self.files.append(NewFile(f"{self.label}-{uuid.uuid4()}.parquet"))
        invariant(batch.num_rows, "a batch without a row goes to {}", self.files[-1].path)
        file = self.files[-1]
        first = file.rows
        for name in self._statistics:
            low, high = spread(batch, name)
            file.lowest[name] = min(low, file.lowest.get(name, low))
            file.highest[name] = max(high, file.highest.get(name, high))
        file.rows += batch.num_rows
        self._waiting_rows.append(batch)
        self._held_bytes += batch.nbytes
        self._file_held += batch.nbytes
        if self._held_bytes >= self._group_bytes:
            self._write_group()
        return len(self.files) - 1, first

    def close(self) -> list[NewFile]:
        """Finish the last file; return all files, which are on disk by then."""
        self._finish_file()
        return self.files

    def discard(self) -> None:
        """Remove the files that were written, because the task failed."""
        # Closing a half-written file may fail in any way. The error that counts is the one for which the task discards
        # it.
        with suppress(Exception):
            if self._out is not None:
                self._out.close()
        for file in self.files:
            with suppress(OSError):
                self.store.remove(file.path)

    def _write_group(self) -> None:
        if self._out is None:
            dictionaries: Any = [name for name in DICTIONARIES if name in self.schema.names]
            self._out = pq.ParquetWriter(
                self.store.draft(self.files[-1].path),
                self.schema,
                compression=COMPRESSION,
                use_dictionary=dictionaries,
                write_statistics=list(self._statistics),
                data_page_size=PAGE_BYTES,
            )
        group = pa.Table.from_batches(self._waiting_rows, self.schema)
        self._out.write_table(group, row_group_size=max(group.num_rows, 1))
        self._waiting_rows, self._held_bytes = [], 0

    def _finish_file(self) -> None:
        # A file with a size is published already: `close` comes after `add` has finished the file before.
        if not self.files or not self.files[-1].rows or self.files[-1].size:
            return
        if self._waiting_rows:
            self._write_group()
        if self._out is not None:
            self._out.close()
        self._out, self._file_held = None, 0
        # The file is synced here, in the task: the driver commits many tasks' files and waits for the names alone.
        self.files[-1].size = self.store.publish(self.files[-1].path)


def live_mask(rows: int, dead_rows: Any) -> Any:
    """Return a numpy mask that is True for the live rows of a file, from its deletion vector (or None)."""
    mask = np.ones(rows, np.bool_)
    if dead_rows is not None and len(dead_rows):
        mask[positions_of(dead_rows)] = False
    return mask
