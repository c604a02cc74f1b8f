"""The Parquet files of a part of a backup: written once, hashed on the way."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.backup.archive import folder
from headwater.backup.manifest import BackupFile
from headwater.backup.place import BackupPlace, HashingFile
from headwater.failpoints import failpoint

FILE_BYTES, GROUP_BYTES = 128 << 20, 16 << 20
DICTIONARIES = ["vbucket", "vb_uuid", "event", "flags", "datatype", "collection_id", "scope", "collection"]
"""Columns with few different values."""


class PartFiles:
    """A writer of the Parquet files of a part: row groups of some MiB, a new file after some hundred MiB.

    Args:
        place: place of the archive.
        backup: the backup's id.
        number: number of the part, used in the files' names.
        run: id of the writing run, used in the files' names as well, so that two runs never write to the same file.
        file_bytes: approximate size of a file in bytes.
    """

    def __init__(self, place: BackupPlace, backup: str, number: int, run: str, file_bytes: int) -> None:
        self._place, self._backup, self._file_bytes = place, backup, file_bytes
        self._number, self._run = number, run
        self._waiting_rows: list[pa.RecordBatch] = []
        self._held_bytes = self._file_held = 0
        self.files: list[BackupFile] = []
        self.rows: int = 0
        self.bytes: int = 0
        self.changes: dict[str, int] = {"mutations": 0, "deletions": 0, "expirations": 0}
        self._open: Any = None
        self._stack = ExitStack()

    def __enter__(self) -> PartFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close a file that was not finished; it gets no name."""
        if self._open is not None:
            with suppress(Exception):  # it would write its end when it is collected
                self._open[2].close()
        self._stack.__exit__(kind, error, traceback)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        self._waiting_rows.append(batch)
        self._held_bytes += batch.nbytes
        self.rows += batch.num_rows
        counts: Any = pc.value_counts(batch.column("event"))
        for entry in counts.to_pylist():
            self.changes[f"{entry['values']}s"] += entry["counts"]
        if self._held_bytes >= GROUP_BYTES:
            self._write_group()

    def close(self) -> list[BackupFile]:
        """Finish the last file; return all files, which are on disk by then."""
        if self._waiting_rows:
            self._write_group()
        self._finish_file()
        return self.files

    def _write_group(self) -> None:
        if self._open is None:
            path = f"{self._number:05d}-{len(self.files):05d}-{self._run}.parquet"
            hashed = HashingFile(self._stack.enter_context(self._place.output(folder(self._backup, path))))
            schema = self._waiting_rows[0].schema
            out: Any = hashed
            words: Any = [name for name in DICTIONARIES if name in schema.names]
            writer = pq.ParquetWriter(out, schema, compression="zstd", use_dictionary=words)
            self._open = path, hashed, writer, [0]
        _, _, writer, rows = self._open
        table = pa.Table.from_batches(self._waiting_rows)
        writer.write_table(table, row_group_size=max(table.num_rows, 1))
        rows[0] += table.num_rows
        self._file_held += self._held_bytes
        self._waiting_rows, self._held_bytes = [], 0
        if self._file_held >= self._file_bytes:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._open is None:
            return
        path, hashed, writer, rows = self._open
        self._open, self._file_held = None, 0
        writer.close()
        # The file is synced and gets its name here; only then may a note name it.
        self._stack.close()
        self.files.append(BackupFile(path, rows[0], hashed.size, hashed.sha256))
        self.bytes += hashed.size
        failpoint("backup.file_written")
