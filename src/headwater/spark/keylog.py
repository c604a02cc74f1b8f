"""A folder in which tasks note the keys of the rows that they yield, so that a later task can undo them.

A failover takes changes back, and the nodes forget them: nobody but the reader knows which documents it has of them.
Each attempt of a task appends to a file of its own, before it yields. So the files have every row that may have been
delivered, and some that were not: an attempt that failed, or a batch that ran twice. That does no harm, because what is
undone is compared with what the vbucket has by then.

A file is a stream of Arrow batches. Its end may be torn, if the machine stopped while it was written; the rows of a
torn end were never yielded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa

from headwater.folders import sync_folder

_COLUMNS: Final[list[tuple[str, pa.DataType]]] = [
    ("vbucket", pa.int32()),
    ("generation", pa.int64()),
    ("seqno", pa.int64()),
    ("scope", pa.string()),
    ("collection", pa.string()),
    ("key", pa.binary()),
    ("deleted", pa.bool_()),
]
SCHEMA: Final = pa.schema(_COLUMNS)
FILES_MAX = 64
"""The number of files from which on they are folded into one."""
_SUFFIX = ".keys"

Identity = tuple[str | None, str | None, bytes]
"""A document: scope, collection and key; scope and collection are None for the default one."""


class Delivered(NamedTuple):
    """The last row that was delivered of a document."""

    generation: int
    seqno: int
    deleted: bool


class KeyLog:
    """The files of one query's folder.

    Args:
        folder: a path that the driver and all executors see; it is created by the first writer.
    """

    def __init__(self, folder: str) -> None:
        self.folder: Final = Path(folder)

    def writer(self) -> KeyWriter:
        """Return the writer of a file of its own, a context manager."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return KeyWriter(self.folder / f"{uuid4().hex}{_SUFFIX}")

    def last(self, generations: dict[int, int]) -> dict[int, dict[Identity, Delivered]]:
        """Return, for each vbucket, the last row of each document that was delivered before a generation.

        Args:
            generations: by vbucket, the generation whose rows do not count any more, nor those of later ones.
        """
        newest: dict[int, dict[Identity, Delivered]] = {vbucket: {} for vbucket in generations}
        for vbucket, identity, row in self._rows():
            if vbucket in newest and row.generation < generations[vbucket]:
                _keep_newest(newest[vbucket], identity, row)
        return newest

    def fold(self, files_max: int = FILES_MAX) -> None:
        """Replace the files by one if there are more than `files_max`.

        The last row of each generation stays, not the last of all: a batch that runs again must find what it found the
        first time, without its own rows.
        """
        paths = self._paths()
        if len(paths) <= files_max:
            return
        newest: dict[tuple[int, Identity, int], Delivered] = {}
        for vbucket, identity, row in self._rows(paths):
            _keep_newest(newest, (vbucket, identity, row.generation), row)
        with self.writer() as writer:
            writer.append(_table(newest))
        for path in paths:
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob(f"*{_SUFFIX}"))

    def _rows(self, paths: list[Path] | None = None) -> Iterator[tuple[int, Identity, Delivered]]:
        for path in self._paths() if paths is None else paths:
            for batch in _batches(path):
                columns = (batch.column(name).to_pylist() for name in SCHEMA.names)
                for vbucket, generation, seqno, scope, collection, key, deleted in zip(*columns, strict=True):
                    yield vbucket, (scope, collection, key), Delivered(generation, seqno, deleted)


class KeyWriter:
    """Appends rows to one file; what was appended is in the file when the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None
        self._stream: Any = None

    def append(self, records: pa.RecordBatch) -> None:
        """Append rows with the columns of `SCHEMA`."""
        if not records.num_rows:
            return
        if self._stream is None:  # a task without rows leaves no file
            self._file = self._path.open("wb")
            self._stream = pa.ipc.new_stream(self._file, SCHEMA)
        self._stream.write_batch(records)
        self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            sync_folder(self._path.parent)  # before folding removes what this file has


def _keep_newest(newest: dict[Any, Delivered], key: Any, row: Delivered) -> None:
    """Keep a row unless a later one is known. Of one seqno, one that deletes counts last: it undid the other."""
    if key not in newest or newest[key] < row:
        newest[key] = row


def _table(newest: dict[tuple[int, Identity, int], Delivered]) -> pa.RecordBatch:
    rows = [
        (vbucket, generation, row.seqno, *identity, row.deleted)
        for (vbucket, identity, generation), row in newest.items()
    ]
    columns = zip(*rows, strict=True) if rows else ([] for _ in SCHEMA)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    try:
        with path.open("rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream
    except (pa.ArrowInvalid, OSError) as error:
        # Arrow reports a torn end with either kind. An error of the system has a number, and says nothing of the end:
        # a rollback would leave out the keys of the file, and folding would remove them.
        if isinstance(error, OSError) and error.errno is not None:
            raise
