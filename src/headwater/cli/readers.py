"""Files into documents for `load`: JSON lines, CSV and Parquet, each a generator of `InputDocument`.

Nothing is guessed: CSV is text unless types are given or inferred on request, and a value that JSON cannot hold is kept
by a rule or refused with its place.

| in the file                              | in the document                                                 |
|------------------------------------------|-----------------------------------------------------------------|
| a line of JSON                           | byte for byte as it stands                                      |
| a change as `tail --json` prints it      | the document that it stored, or its deletion                    |
| a row as `export` writes it without key  | the document that it was, with flags, expiry and collection     |
| a row of CSV or Parquet                  | a JSON object with its columns as members, in their order       |
| a field of CSV                           | text; with `types` or `infer` a number, true, false, null       |
| a date or a time                         | ISO 8601 text, with nine digits where microseconds do not do    |
| bytes                                    | base64                                                          |
| a missing value, NaN                     | null                                                            |
| an infinite number                       | refused                                                         |

Files and pipes are streamed: memory holds one batch of rows, whatever their size. Compressed ones (.gz, .bz2, .zst,
.lz4) are read through.
"""

from __future__ import annotations

import base64
import csv as text_csv
import datetime
import decimal
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headwater.cli.csv_rows import DIGITS_MAX, rows_of, typed, types_of
from headwater.cli.failures import InputError
from headwater.cli.layout import missing, of_cells
from headwater.wire.header import KEY_BYTES_MAX, VALUE_BYTES_MAX
from headwater.wire.manifest import DEFAULT

if TYPE_CHECKING:
    import pyarrow as pa

HEAD_BYTES = 1 << 20
"""The first bytes of a CSV file, read for its header and, where types are inferred, for the types."""
LINE_BYTES_MAX = 16 * VALUE_BYTES_MAX
"""The longest line: a document of zero bytes, each of them six letters, written twice (as JSON and as text), and more.
"""

BATCH_ROWS = 64
"""Rows of Parquet that are decoded at once. Their size is not known before: a value may stand in a file once, or
compressed to nothing, and be the value of each of its rows.
"""

SLICE_BYTES = 32 << 20
"""Rows that take more bytes than this become Python's objects one by one."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
TYPES = ("text", "int", "float", "bool")


OF_NO_DOCUMENT = frozenset(
    {
        *("collection_created", "collection_modified", "collection_dropped", "scope_created", "scope_dropped"),
        *("unknown_system_event", "deletions_purged", "snapshot_deduplicated"),
    }
)
"""Events of `tail --json` about no document."""

DELETIONS = frozenset({"deletion", "expiration", "delete"})
"""Events after which a document is not there."""


class InputDocument(NamedTuple):
    """One document to store, or to delete.

    value: None deletes.
    position: its position in the file, in the unit of `InputFile.total`.
    flags, expiry: as in `client.Write`.
    collection: "scope.name", for a change that names one; None for the default one.
    """

    key: bytes
    value: bytes | None
    position: int
    flags: int = 0
    expiry: int = 0
    collection: str | None = None


class InputFile(NamedTuple):
    """A file to read: its documents, and the position of the last of them (0: unknown)."""

    documents: Iterator[InputDocument]
    total: int


class Reading(NamedTuple):
    """The form of a file of documents that is to be read.

    file_format: jsonl, csv, tsv, parquet or changes; None to go by the file's name.
    encoding: the encoding of text files.
    types: the type of each CSV column, by name; one of `TYPES`.
    infer: other columns get the type that all of the file's first megabyte has; the key stays text.
    skip_bad: is called with the error of a row that can't be a document, and the row is left out; None ends the
        reading.
    """

    file_format: str | None = None
    encoding: str = "utf-8"
    types: Mapping[str, str] = {}
    infer: bool = False
    skip_bad: Callable[[InputError], None] | None = None

    @contextmanager
    def row(self) -> Iterator[None]:
        """Read one row; leave a bad one out if the options say so."""
        try:
            yield
        except InputError as error:
            if self.skip_bad is None:
                raise
            self.skip_bad(error)


class _Counted(io.RawIOBase):
    """A file from which Arrow takes the available bytes; it counts them, because a pipe has no position."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self.taken = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self.taken += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def open_source(path: Path, key_field: str, reading: Reading) -> InputFile:
    """Open `path`; a pipe and /dev/stdin are files, too. Without `key_field` it is read in the form of `export`.

    Raises: InputError if the name shows no format, and while reading for a row without a key or a broken line.
    """
    file_format = reading.file_format or format_of(path)
    return (_OPENERS if key_field else _OPENERS_OF_EXPORTS)[file_format](path, key_field, reading)


def format_of(path: Path) -> str:
    """Return the format that a file's name shows; raises InputError."""
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    file_format = _FORMATS.get(suffixes[-1]) if suffixes else None
    if file_format is None:
        raise InputError(path, "name", f"ends in none of {' '.join(_FORMATS)}; say --format jsonl, csv, tsv or parquet")
    return file_format


def _bytes_of(path: Path) -> int:
    """Return the file's size, the last position in it; 0 for a pipe."""
    return path.stat().st_size if path.is_file() else 0


def _stream(raw: _Counted, path: Path, encoding: str) -> Any:
    """Return the file's content as UTF-8: decompressed, transcoded, without its byte order mark."""
    import pyarrow as pa

    compression = cast(Any, COMPRESSIONS.get(path.suffix.lower()))
    stream: Any = pa.input_stream(cast(Any, raw), compression=compression)
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        stream = pa.transcoding_input_stream(stream, encoding, "utf-8")
    return stream


class _InspectedStream(io.RawIOBase):
    """A stream whose beginning was inspected; the byte order mark is left out."""

    def __init__(self, stream: Any, size: int = HEAD_BYTES) -> None:
        head = b""
        while len(head) < size and (chunk := stream.read(size - len(head))):
            head += chunk
        self.head = self._unread_head = head.removeprefix(BYTE_ORDER_MARK)
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._unread_head:
            return bytes(self._stream.read(size if size >= 0 else None))
        part, self._unread_head = (
            (self._unread_head, b"") if size < 0 else (self._unread_head[:size], self._unread_head[size:])
        )
        return part

    def readinto(self, buffer: Any) -> int:
        part = self.read(len(buffer))
        buffer[: len(part)] = part
        return len(part)


Rows = Iterator[tuple[str, Any, int]]
"""The rows of a file: the place of each row as an error names it, the row, and the position in the file."""


def _documents(
    rows: Rows, reading: Reading, document: Callable[[str, Any, int], InputDocument | None]
) -> Iterator[InputDocument]:
    """Yield the documents that `document` makes of the rows, one at a time; None is a row about no document."""
    for place, row, position in rows:
        result = None
        with reading.row():
            result = document(place, row, position)
        if result:
            yield result


# ---------------------------------------------------------------------- JSON lines


def _text_rows(path: Path, reading: Reading) -> Rows:
    with _Counted(path) as raw:
        for number, line in _numbered(path, raw, reading):
            if text := line.strip():
                yield f"line {number}", text, raw.taken


def _open_lines(path: Path, key_field: str, reading: Reading) -> InputFile:
    def document(place: str, text: bytes, position: int) -> InputDocument:
        key = _key(path, place, _object(path, place, text), key_field)
        return _document(path, place, key, text, position)

    return InputFile(_documents(_text_rows(path, reading), reading, document), _bytes_of(path))


def _open_changes(path: Path, _: str, reading: Reading) -> InputFile:
    def document(place: str, text: bytes, position: int) -> InputDocument | None:
        return _change(path, place, _object(path, place, text), position)

    return InputFile(_documents(_text_rows(path, reading), reading, document), _bytes_of(path))


def _change(path: Path, place: str, row: dict[str, Any], position: int) -> InputDocument | None:
    """Return the effect of a line of `tail --json` or `tap --json` on a document; None for a line about none."""
    event = row.get("event")
    if event in OF_NO_DOCUMENT:
        return None
    try:
        collection = _collection(row)
        key = base64.b64decode(row["key_base64"], validate=True) if "key_base64" in row else row["key"].encode()
        if event in DELETIONS:
            return _document(path, place, key, None, position)._replace(collection=collection)
        if event != "mutation":
            problem = f"tells the event {event!r}, expected mutation, deletion or expiration{_OR_ROWS}"
            raise InputError(path, place, problem)
        document = _document(path, place, key, _stored_value(row), position)
        flags, expiry = int(row.get("flags", 0)), int(row.get("expiry", 0))
        return document._replace(flags=flags, expiry=expiry, collection=collection)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        problem = f"is no change as `headwater tail --json` prints it ({type(error).__name__}: {error}){_OR_ROWS}"
        raise InputError(path, place, problem) from None


def _collection(row: dict[str, Any]) -> str | None:
    """Return the collection that a change names; None for the default one."""
    scope, name = row.get("scope", DEFAULT), row.get("collection", DEFAULT)
    if not isinstance(scope, str) or not isinstance(name, str):
        raise ValueError("its collection has no name")
    return None if (scope, name) == (DEFAULT, DEFAULT) else f"{scope}.{name}"


def _stored_value(row: dict[str, Any]) -> bytes:
    """Return the value of a change: base64, text, or JSON that is written in one way only; empty if there is none."""
    if "base64" in row:
        return base64.b64decode(row["base64"], validate=True)
    if "text" in row:
        return bytes(row["text"], "utf-8")
    if "value" not in row:
        return b""
    return json.dumps(row["value"], ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _numbered(path: Path, raw: _Counted, reading: Reading) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        stream = _InspectedStream(_stream(raw, path, reading.encoding), len(BYTE_ORDER_MARK))
        for number, line in enumerate(_split(stream), 1):
            yield number, line
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        hint = "; another encoding is named with --encoding" if isinstance(error, UnicodeError) else ""
        raise InputError(path, f"line {number + 1}", f"can't be read: {error}{hint}") from None


def _split(raw: Any) -> Iterator[bytes]:
    """Yield lines with their ends; a native file has no line iterator of its own."""
    chunks: list[bytes] = []
    while chunk := raw.read(1 << 20):
        chunks.append(chunk)
        if b"\n" not in chunk and b"\r" not in chunk and sum(map(len, chunks)) <= LINE_BYTES_MAX:
            continue
        *whole_lines, last = b"".join(chunks).splitlines(keepends=True)
        # A chunk that ends with its line leaves that line as the rest: the next chunk may begin with the \n of a \r\n.
        yield from whole_lines
        if len(last) > LINE_BYTES_MAX:
            raise ValueError(f"a line is longer than {LINE_BYTES_MAX >> 20} MiB")
        chunks = [last]
    yield from filter(None, [b"".join(chunks)])


def _object(path: Path, place: str, text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text, parse_constant=_no_number, parse_int=_whole_number)
    except RecursionError:
        raise InputError(path, place, "is nested too deeply to be read") from None
    except UnicodeDecodeError as error:
        raise InputError(path, place, f"is not JSON: {error}; another encoding is named with --encoding") from None
    except ValueError as error:
        raise InputError(path, place, f"is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        lines = "; jq -c '.[]' makes lines of an array" if text.startswith(b"[") else ""
        raise InputError(path, place, f"holds a {type(parsed).__name__}, expected an object a line{lines}")
    return parsed


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number there")


def _whole_number(digits: str) -> int | decimal.Decimal:
    """Return a whole number; Python makes no int of more than 4,300 digits, and a line with one is stored
    unchanged.
    """
    return int(digits) if len(digits) <= DIGITS_MAX else decimal.Decimal(digits)


# ---------------------------------------------------------------------- CSV


def _csv_rows(
    path: Path, reading: Reading, delimiter: str, columns: Callable[[list[str], bytes], Any], *, strict: bool
) -> Rows:
    """Yield the rows after the first line, each as `columns`, made from that line and the file's beginning, converts
    it.
    """
    with _Counted(path) as raw, _told_as_csv(path):
        stream = _InspectedStream(_stream(raw, path, reading.encoding))
        table = rows_of(stream, delimiter, strict=strict)
        columns_ = columns(next(table, []), stream.head)
        for number, row in enumerate(table, 1):
            yield f"row {number}", (columns_, row), raw.taken


def _open_csv(path: Path, key_field: str, reading: Reading, delimiter: str = ",") -> InputFile:
    def columns(_: list[str], head: bytes) -> dict[str, str]:
        return _types(path, head, key_field, reading, delimiter)

    def document(place: str, row: tuple[dict[str, str], list[str]], position: int) -> InputDocument:
        return _of_members(path, place, _members(path, place, *row), key_field, position)

    rows = _csv_rows(path, reading, delimiter, columns, strict=False)
    return InputFile(_documents(rows, reading, document), _bytes_of(path))


def _members(path: Path, place: str, types: Mapping[str, str], row: list[str]) -> dict[str, Any]:
    """Return a row's fields by name. Only a column with a given type has missing values, the empty ones: "NA" may be a
    real text.
    """
    _check_length(path, place, row, len(types))
    members: dict[str, Any] = dict(zip(types, row, strict=True))
    for name, kind in types.items():
        if kind == "text":
            continue
        try:
            members[name] = typed(kind, members[name])
        except (ValueError, KeyError):
            value_text = repr(members[name][:40])
            problem = (
                f"field {name!r} holds {value_text}, which is no {kind}; --types {name}=text keeps it as it stands"
            )
            raise InputError(path, place, problem) from None
    return members


def _check_length(path: Path, place: str, row: list[Any], names: int) -> None:
    if len(row) != names:
        raise InputError(path, place, f"has {len(row)} fields, the first line names {names}")


@contextmanager
def _told_as_csv(path: Path) -> Iterator[None]:
    """Add the file's name, and the option that may help, to the error for a file that is no CSV, or can't be
    decompressed.
    """
    try:
        yield
    except (text_csv.Error, ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        hint = "; another encoding is named with --encoding" if isinstance(error, UnicodeError) else ""
        raise InputError(path, "contents", f"is not CSV as expected: {error}{hint}") from None


def _types(path: Path, head: bytes, key_field: str, reading: Reading, delimiter: str) -> dict[str, str]:
    """Return each column's type: the given one, an inferred one, or text."""
    cut = head[: head.rfind(b"\n") + 1] or head
    try:
        types = types_of(cut.decode(errors="replace"), delimiter, reading.types, key_field, infer=reading.infer)
    except ValueError as error:
        raise InputError(path, "contents", str(error)) from None
    if not types:
        raise InputError(path, "contents", "is empty; its first line names the columns")
    return types


# ---------------------------------------------------------------------- Parquet


def _open_parquet(path: Path, key_field: str, reading: Reading) -> InputFile:
    def document(place: str, row: tuple[list[str], list[Any]], position: int) -> InputDocument:
        return _of_members(path, place, dict(zip(*row, strict=True)), key_field, position)

    file = _parquet_file(path)
    return InputFile(_documents(_parquet_rows(path, file), reading, document), file.metadata.num_rows)


def _parquet_rows(path: Path, file: Any) -> Rows:
    number = 0
    for batch in _batches(path, file):
        for row in _columns(path, batch):
            number += 1
            yield f"row {number}", (batch.schema.names, list(row)), number


def _parquet_file(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, ValueError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise InputError(path, "contents", f"is not Parquet, or no file but a pipe: {error}") from None


def _batches(path: Path, file: Any) -> Iterator[Any]:
    """Yield the rows of a file, few at a time."""
    import pyarrow as pa

    try:
        for batch in file.iter_batches(BATCH_ROWS):
            step = batch.num_rows if sum(map(_weight, batch.columns)) <= SLICE_BYTES else 1
            for first in range(0, batch.num_rows, step):
                yield batch.slice(first, step)
    except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno:
            raise
        raise InputError(path, "contents", f"can't be read as Parquet: {error or type(error).__name__}") from None


def _weight(column: Any) -> int:
    """Return the most bytes that a column's values may take, each counted for itself: a dictionary has them once."""
    import pyarrow as pa
    from pyarrow import compute

    if not isinstance(column, pa.DictionaryArray):
        return int(column.nbytes)
    values: Any = column.dictionary
    texts = pa.types.is_string(values.type) or pa.types.is_binary(values.type)
    longest = compute.max(compute.binary_length(values)).as_py() if texts else values.nbytes // max(len(values), 1)
    return len(column) * int(longest or 0)


def _columns(path: Path, batch: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch as Python values; nanoseconds, which Python lacks, as text."""
    import pyarrow as pa

    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            columns.append(_values(column))
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise InputError(path, f"column {name!r}", f"holds what has no form in JSON: {error}") from None
    return zip(*columns, strict=True)


# ---------------------------------------------------------------------- what export wrote


_OR_ROWS = "; --key FIELD names the field whose value becomes the key of a row"


def _open_exported_csv(path: Path, _: str, reading: Reading, delimiter: str = ",") -> InputFile:
    def columns(names: list[str], _: bytes) -> list[str]:
        _check_layout(path, names)
        return names

    rows = _csv_rows(path, reading, delimiter, columns, strict=True)
    return InputFile(_documents(rows, reading, partial(_exported, path)), _bytes_of(path))


def _exported(path: Path, place: str, row: tuple[list[str], list[Any]], position: int) -> InputDocument:
    names, cells = row
    _check_length(path, place, cells, len(names))
    try:
        fields = dict(zip(names, cells, strict=True))
        key, value, flags, expiry, collection = of_cells(fields)
    except ValueError as error:
        raise InputError(path, place, str(error)) from None
    is_deletion = fields.get("event") in DELETIONS  # of `tail --format csv`
    document = _document(path, place, key, None if is_deletion else value, position)
    return document._replace(flags=flags, expiry=expiry, collection=collection)


def _check_layout(path: Path, names: list[str]) -> None:
    if lacking := missing(names):
        message = f"has no column {lacking[0]!r}, which `headwater export` writes{_OR_ROWS}"
        raise InputError(path, "contents", message)


def _open_exported_parquet(path: Path, _: str, reading: Reading) -> InputFile:
    file = _parquet_file(path)
    _check_layout(path, file.schema_arrow.names)
    rows = _parquet_rows(path, file)
    return InputFile(_documents(rows, reading, partial(_exported, path)), file.metadata.num_rows)


# ---------------------------------------------------------------------- values


def _values(column: Any) -> list[Any]:
    import pyarrow as pa

    if not (pa.types.is_temporal(column.type) and getattr(column.type, "unit", "") == "ns"):
        return cast("list[Any]", column.to_pylist())
    microseconds = _microseconds(column.type)
    try:
        return cast("list[Any]", column.cast(microseconds).to_pylist())
    except pa.ArrowInvalid:
        floor, exact = column.cast(microseconds, safe=False).to_pylist(), column.cast(pa.int64()).to_pylist()
        return [_nanoseconds(at, value) for at, value in zip(floor, exact, strict=True)]


def _microseconds(kind: Any) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return pa.time64("us") if pa.types.is_time(kind) else pa.duration("us")


def _nanoseconds(at: Any, value: int | None) -> str | None:
    """Return ISO 8601 with nine digits if six are not enough; a duration in decimal seconds."""
    if value is None or at is None:
        return None
    if isinstance(at, datetime.timedelta):
        return f"{decimal.Decimal(value).scaleb(-9):f}"
    if value % 1000 == 0:
        return str(at.isoformat())
    text = at.isoformat(timespec="microseconds")
    end = text.index(".") + 7
    return f"{text[:end]}{value % 1000:03d}{text[end:]}"


def _of_members(path: Path, place: str, members: dict[str, Any], key_field: str, position: int) -> InputDocument:
    key = _key(path, place, members, key_field)
    return _document(path, place, key, _json(path, place, members), position)


def _key(path: Path, place: str, row: dict[str, Any], field: str) -> bytes:
    value = row[field] if field in row else _member(path, place, row, field)
    # A fraction and a truth value are written in many ways: two rows of one key would be two documents, or one of two.
    if value is None or value in ("", b"") or isinstance(value, dict | list | bool | float):
        raise InputError(path, place, f"field {field!r} holds {value!r}, which cannot be a key")
    return value if isinstance(value, bytes) else str(value).encode()


def _member(path: Path, place: str, row: dict[str, Any], field: str) -> Any:
    """Return the value at `field`, a path such as order.id; its first names may have dots of their own."""
    head, dot, names = field.partition(".")
    while dot:
        if isinstance(row.get(head), dict):
            return row[head][names] if names in row[head] else _member(path, place, row[head], names)
        next_name, dot, names = names.partition(".")
        head = f"{head}.{next_name}"
    raise InputError(path, place, f"has no field {field!r} to be the key; it has {', '.join(row) or 'no fields'}")


def _document(path: Path, place: str, key: bytes, value: bytes | None, position: int) -> InputDocument:
    if not key:
        raise InputError(path, place, f"the key is empty; 1 to {KEY_BYTES_MAX} bytes are allowed")
    if len(key) > KEY_BYTES_MAX:
        raise InputError(path, place, f"the key has {len(key)} bytes, at most {KEY_BYTES_MAX} are allowed")
    if value is not None and len(value) > VALUE_BYTES_MAX:
        raise InputError(path, place, f"the document has {len(value)} bytes, at most {VALUE_BYTES_MAX} are allowed")
    return InputDocument(key, value, position)


def _json(path: Path, place: str, row: dict[str, Any]) -> bytes:
    try:
        text = _dumped(row)
    except ValueError:
        # Most rows hold nothing of the kind: only those that do are looked through.
        text = _dumped({field: _finite(path, place, field, value) for field, value in row.items()})
    return text.encode()


def _dumped(row: dict[str, Any]) -> str:
    return json.dumps(row, default=_as_text, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _finite(path: Path, place: str, field: str, value: Any) -> Any:
    """Return the value with null in place of NaN, by which tables write a missing value.

    Raises: InputError for an infinite number.
    """
    if isinstance(value, dict):
        return {name: _finite(path, place, field, member) for name, member in value.items()}
    if isinstance(value, list):
        return [_finite(path, place, field, member) for member in value]
    if isinstance(value, float) and math.isinf(value):
        raise InputError(path, place, f"field {field!r} holds {value!r}, which JSON has no number for")
    return None if isinstance(value, float) and math.isnan(value) else value


def _as_text(value: object) -> str:
    """Return a value that JSON cannot represent as text: bytes become base64 or text."""
    if isinstance(value, datetime.date | datetime.time | datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
_FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_OPENERS: dict[str, Callable[[Path, str, Reading], InputFile]] = {
    "jsonl": _open_lines,
    "csv": _open_csv,
    "tsv": partial(_open_csv, delimiter="\t"),
    "parquet": _open_parquet,
    "changes": _open_changes,
}
_OPENERS_OF_EXPORTS = _OPENERS | {
    "jsonl": _open_changes,
    "csv": _open_exported_csv,
    "tsv": partial(_open_exported_csv, delimiter="\t"),
    "parquet": _open_exported_parquet,
}
