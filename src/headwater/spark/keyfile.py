"""A file of delivered keys: records with checksums, appended by one attempt of a task before it yields the rows.

    record   magic, kind (1 byte), length and CRC-32 (4 bytes each), content
    reach    first: a JSON object, what the attempt reads
    rows     rows as a stream of Arrow with one batch
    doubtful the same, of rows that not all attempts had which read there; in folded files alone
    end      last: the attempt has yielded all its rows

The checksums of a file begin with that of its first record, so bytes of a key can't pass for a record.

A file with an end has all its records whole, or it is damaged. One without is of an attempt that is at work, or that
failed. Its last record may be torn, as the machine stopped while it was written; the rows of a torn record were never
yielded. A record that is not whole with a whole one behind it is no torn end, but damage.

Files of before have no records: each is one stream of Arrow, whose end may be torn.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from uuid import uuid4

import pyarrow as pa

from headwater.errors import NotesError
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
MAGIC: Final = b"KEYS"
ARROW: Final = b"\xff\xff\xff\xff"
"""The first bytes of a stream of Arrow."""
_HEAD: Final = struct.Struct("<4sBII")
_REACH, _ROWS, _DOUBTFUL, _END = range(4)


class Reach(NamedTuple):
    """A part of a vbucket that an attempt reads: the seqnos above `above`, up to `end`, of one generation."""

    vbucket: int
    generation: int
    above: int
    end: int


@dataclass(frozen=True)
class KeyFile:
    """The content of a file.

    Attributes:
        reach: what its attempt reads.
        rows: batches, each with True if its rows are doubtful.
        ended: True if the attempt has yielded all its rows.
    """

    reach: tuple[Reach, ...]
    rows: list[tuple[pa.RecordBatch, bool]]
    ended: bool


class KeyWriter:
    """Appends rows to one file; what was appended is in the file when the call returns.

    Args:
        path: of a file that is not there yet.
        reach: what the attempt reads; with it the file is left also without rows.
    """

    def __init__(self, path: Path, reach: Sequence[Reach] = ()) -> None:
        self._path, self._reach = path, reach
        self._file: Any = None
        self._salt = 0

    def append(self, records: pa.RecordBatch, *, doubtful: bool = False) -> None:
        """Append rows with the columns of `SCHEMA`."""
        if records.num_rows:
            self._open()
            self._write(_DOUBTFUL if doubtful else _ROWS, _stream(records))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._reach:
            self._open()
        if self._file is None:
            return
        with self._file:
            if kind is None:
                self._write(_END, b"")
            os.fsync(self._file.fileno())
        sync_folder(self._path.parent)  # before folding removes what this file has

    def _open(self) -> None:
        if self._file is None:
            self._file = self._path.open("xb", buffering=0)
            content = json.dumps({"id": uuid4().hex, "reach": self._reach}).encode()
            self._write(_REACH, content)
            self._salt = _salt(content)

    def _write(self, kind: int, content: bytes) -> None:
        data = memoryview(_HEAD.pack(MAGIC, kind, len(content), _checksum(kind, content, self._salt)) + content)
        while data:
            data = data[self._file.write(data) :]


def read(path: Path) -> KeyFile:
    """Return what a file has.

    Raises:
        NotesError: it has other bytes than were written. OSError: the disk did not read it.
    """
    with path.open("rb") as file:
        data = file.read()
    if data and ARROW.startswith(data[: len(ARROW)]):
        return _read_stream(data)
    records = list(_records(path, data))
    reach = [content for kind, content in records if kind == _REACH]
    rows = [(_batch(content), kind == _DOUBTFUL) for kind, content in records if kind in {_ROWS, _DOUBTFUL}]
    parts = json.loads(reach[0])["reach"] if reach else ()
    return KeyFile(tuple(Reach(*part) for part in parts), rows, bool(records) and records[-1][0] == _END)


def _records(path: Path, data: bytes) -> Iterator[tuple[int, bytes]]:
    at, salt, kind = 0, 0, _REACH
    while at < len(data):
        record = _record(data, at, salt)
        if record is None or kind == _END:
            _check_torn(path, data, at, salt, ended=kind == _END)
            return
        kind, content = record
        yield record
        at += _HEAD.size + len(content)
        salt = salt or _salt(content)


def _record(data: bytes, at: int, salt: int) -> tuple[int, bytes] | None:
    """Return kind and content of the record that begins there; None if it is not whole."""
    if at + _HEAD.size > len(data):
        return None
    magic, kind, length, checksum = _HEAD.unpack_from(data, at)
    content = data[at + _HEAD.size : at + _HEAD.size + length]
    whole = magic == MAGIC and len(content) == length and _checksum(kind, content, salt) == checksum
    return (kind, content) if whole else None


def _check_torn(path: Path, data: bytes, at: int, salt: int, *, ended: bool) -> None:
    """Check that the record that begins there is the torn end of the file: nothing of the file comes behind it.

    Raises:
        NotesError: it is not.
    """
    begins = data[at : at + len(MAGIC)]
    if ended or not (MAGIC.startswith(begins) or salt):
        raise _damage(path, at)
    behind = at
    while (behind := data.find(MAGIC, behind + 1)) >= 0:
        # The first record, without which no other can be checked, has these bytes at its beginning only.
        if not salt or _record(data, behind, salt):
            raise _damage(path, at)


def _damage(path: Path, at: int) -> NotesError:
    problem = f"byte {at}: this is not what was written; put the file back from a copy, or refresh the table, with an"
    return NotesError(str(path), f"{problem} empty folder and a new checkpoint")


def _salt(content: bytes) -> int:
    return zlib.crc32(content) or 1


def _checksum(kind: int, content: bytes, salt: int) -> int:
    return zlib.crc32(content, zlib.crc32(bytes([kind]), salt))


def _stream(records: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_batch(records)
    return sink.getvalue().to_pybytes()


def _batch(content: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(content) as stream:
        return stream.read_next_batch()


def _read_stream(data: bytes) -> KeyFile:
    """Return what a file of before has. Nobody knows what its attempt read, so its rows are doubtful."""
    batches: list[pa.RecordBatch] = []
    try:
        with pa.ipc.open_stream(data) as stream:
            batches.extend(stream)
    except (pa.ArrowInvalid, OSError):
        pass  # the end is torn; Arrow reports it with either kind
    return KeyFile(tuple(_reach_of(batches)), [(batch, True) for batch in batches], ended=True)


def _reach_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Reach]:
    ends: dict[tuple[int, int], int] = {}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("vbucket", "generation", "seqno"))
        for vbucket, generation, seqno in zip(*columns, strict=True):
            ends[vbucket, generation] = max(ends.get((vbucket, generation), 0), seqno)
    for (vbucket, generation), end in ends.items():
        yield Reach(vbucket, generation, -1, end)
