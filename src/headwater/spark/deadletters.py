"""Rows that a node refused permanently, stored as Parquet with the reason.

Each task writes one file, whose name has its query and batch, so that a repeated task replaces its own file, and
removes it if nothing was refused this time. A file appears whole or not at all: it is written under a name that Spark
ignores and that only this attempt uses (a task taken for lost may go on writing during its repetition), then renamed.
On a disk it is synced, since nobody sends its rows again once the batch is done.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq

from headwater.errors import OptionError, StatusError
from headwater.folders import make_folder, sync_folder
from headwater.spark.rows import Row

_KINDS: dict[str, Any] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "deleted": pa.bool_(),
    "event": pa.string(),
    "expiry": pa.int64(),
    "flags": pa.int64(),
    "cas": pa.int64(),
    "rev_seqno": pa.int64(),
    "scope": pa.string(),
    "collection": pa.string(),
    "datatype": pa.int32(),
    "status": pa.int32(),
    "reason": pa.string(),
}
SCHEMA = pa.schema(list(_KINDS.items()))


def located(place: str) -> str:
    """Return a place in a form for all processes: a path becomes absolute, a URL stays."""
    return place if "://" in place else str(Path(place).absolute())


def filesystem(place: str) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the file system of a place, and its path there."""
    if "://" in place:
        file_system: tuple[pyarrow.fs.FileSystem, str] = pyarrow.fs.FileSystem.from_uri(place)
        return file_system
    return pyarrow.fs.LocalFileSystem(), place


def prepare_folder(place: str) -> str:
    """Create the folder for files that may never come, so that a failure shows at the start. Raises OSError."""
    _create_folder(*filesystem(place))
    return place


def _create_folder(files: pyarrow.fs.FileSystem, base: str) -> None:
    if isinstance(files, pyarrow.fs.LocalFileSystem):
        make_folder(Path(base))
    else:
        files.create_dir(base, recursive=True)


def reveal(files: pyarrow.fs.FileSystem, written: str, path: str) -> None:
    """Give a written file its name, and with it replace what had that name; on return a disk has both."""
    is_local = isinstance(files, pyarrow.fs.LocalFileSystem)
    if is_local:
        with Path(written).open("rb") as file:
            os.fsync(file.fileno())
    files.move(written, path)
    if is_local:
        sync_folder(Path(path).parent)


class DeadLetters:
    """The file of refused rows of one task.

    Args:
        place: the directory, a path or URL.
        name: name of the file, without ending; the same for a repeated task.
    """

    def __init__(self, place: str, name: str) -> None:
        self._files, base = filesystem(place)
        self._base, self._path = base, f"{base}/{name}.parquet"
        self._open = f"{base}/_{name}-{uuid4().hex}.parquet"
        self._writer: Any = None

    def add(self, refusals: list[tuple[Row, StatusError | OptionError]]) -> None:
        """Store rows with the reasons of their refusal."""
        if not refusals:
            return
        if self._writer is None:
            _create_folder(self._files, self._base)
            self._writer = pq.ParquetWriter(self._open, SCHEMA, filesystem=self._files)
        records = [_record(row, error) for row, error in refusals]
        self._writer.write_table(pa.Table.from_pylist(records, SCHEMA))

    def close(self) -> None:
        """Make the file visible; if it has no rows, remove the file of an earlier attempt."""
        if self._writer is not None:
            self._writer.close()
            reveal(self._files, self._open, self._path)
        else:
            remove(self._files, self._path)


def remove(files: pyarrow.fs.FileSystem, path: str) -> None:
    """Remove a file if it is there; on return it is gone from a disk."""
    if files.get_file_info(path).type != pyarrow.fs.FileType.NotFound:
        files.delete_file(path)
        if isinstance(files, pyarrow.fs.LocalFileSystem):
            sync_folder(Path(path).parent)


def task_name(job: str, batch: int | None = None) -> str:
    """Return the name of the dead letters of the running Spark task.

    Args:
        job: used in the name if the task belongs to no streaming query.
        batch: number of the micro-batch; None to take the one that Spark gives the task.
    """
    from pyspark import TaskContext  # noqa: PLC0415 -- not for reading

    context = TaskContext.get()
    if context is None:
        return f"refused-{job}"
    query, number = map(context.getLocalProperty, ("sql.streaming.queryId", "streaming.sql.batchId"))
    number = number if batch is None else str(batch)
    name = f"{query}-{int(number):08d}" if query and number else job
    return f"refused-{name}-{context.partitionId():05d}"


def _record(row: Row, error: StatusError | OptionError) -> dict[str, Any]:
    expiry = row.expiry
    return {name: getattr(row, name, None) for name in _KINDS} | {
        "key": _bytes(row.key),
        "value": _bytes(row.value),
        "expiry": int(expiry.timestamp()) if hasattr(expiry, "timestamp") else expiry,
        "status": error.status if isinstance(error, StatusError) else None,
        "reason": str(error),
    }


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data
