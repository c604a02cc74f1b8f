"""Files into documents for `load`: JSON lines, CSV and Parquet, each a generator of `Document`.

A line of JSON is stored byte for byte as it stands. A row of CSV or Parquet becomes a JSON object with its columns as
members, in their order; times become ISO 8601 text, bytes become base64, missing values become null. Files are
streamed: memory holds one batch of rows, whatever the file's size. `.gz` files are read through.
"""

import base64
import datetime
import decimal
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from headwater.cli.failures import InputError

ROWS_PER_BATCH = 8192
KEY_BYTES_MAX = 250
"""The longest key the protocol family stores (wire.md 11)."""


class Document(NamedTuple):
    """One document to store. `position`: how far in the file we are, in the unit of `Source.total`."""

    key: bytes
    value: bytes
    position: int


class Source(NamedTuple):
    """A file about to be read: its documents, and what position the last of them will have (0: unknown)."""

    documents: Iterator[Document]
    total: int


def open_source(path: Path, key_field: str, form: str | None = None) -> Source:
    """Open `path` as `form` (jsonl, csv or parquet; None: by its name).

    Raises: InputError when the name tells nothing, and while reading for a row without a key or a broken line.
    """
    form = form or _form_of(path)
    return _OPENERS[form](path, key_field)


def _form_of(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    form = _FORMS.get(suffixes[-1]) if suffixes else None
    if form is None:
        raise InputError(path, "name", f"ends in none of {' '.join(_FORMS)}; say --format jsonl, csv or parquet")
    return form


def _open_lines(path: Path, key_field: str) -> Source:
    return Source(_lines(path, key_field), 0 if path.suffix == ".gz" else path.stat().st_size)


def _lines(path: Path, key_field: str) -> Iterator[Document]:
    import pyarrow as pa

    position = 0
    with pa.input_stream(str(path)) as raw:
        for number, line in enumerate(_split(raw), 1):
            position += len(line)
            text = line.strip()
            if text:
                yield Document(_key(path, f"line {number}", _object(path, number, text), key_field), text, position)


def _split(raw: Any) -> Iterator[bytes]:
    """Lines with their ends; a native file has no line iterator of its own."""
    rest = b""
    while chunk := raw.read(1 << 20):
        *whole, rest = (rest + chunk).splitlines(keepends=True)
        # A chunk that ends with its line leaves that line as the rest: the next chunk may begin with the \n of a \r\n.
        yield from whole
    if rest:
        yield rest


def _object(path: Path, number: int, text: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise InputError(path, f"line {number}", f"is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise InputError(path, f"line {number}", f"holds a {type(parsed).__name__}, expected an object")
    return parsed


def _open_csv(path: Path, key_field: str) -> Source:
    return Source(_csv(path, key_field), 0 if path.suffix == ".gz" else path.stat().st_size)


def _csv(path: Path, key_field: str) -> Iterator[Document]:
    import pyarrow as pa
    from pyarrow import csv

    with pa.input_stream(str(path)) as raw:
        try:
            batches: Iterable[Any] = csv.open_csv(cast(Any, raw))
            yield from _rows(path, key_field, batches, raw.tell)
        except pa.ArrowInvalid as error:
            raise InputError(path, "contents", f"is not CSV as expected: {error}") from None


def _open_parquet(path: Path, key_field: str) -> Source:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
    except pa.ArrowInvalid as error:
        raise InputError(path, "contents", f"is not Parquet: {error}") from None
    return Source(_rows(path, key_field, file.iter_batches(ROWS_PER_BATCH), None), file.metadata.num_rows)


def _rows(path: Path, key_field: str, batches: Iterable[Any], position: Callable[[], int] | None) -> Iterator[Document]:
    """Rows as JSON objects. `position` tells how far the file is read; None: rows are counted instead."""
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            key = _key(path, f"row {number}", row, key_field)
            value = json.dumps(row, default=_as_text, ensure_ascii=False, separators=(",", ":")).encode()
            yield Document(key, value, position() if position else number)


def _key(path: Path, place: str, row: dict[str, Any], field: str) -> bytes:
    if field not in row:
        raise InputError(path, place, f"has no field {field!r} to be the key; it has {', '.join(row) or 'no fields'}")
    value = row[field]
    if value is None or value == "" or isinstance(value, dict | list):
        raise InputError(path, place, f"field {field!r} holds {value!r}, which cannot be a key")
    key = (value if isinstance(value, str) else str(value)).encode()
    if len(key) > KEY_BYTES_MAX:
        raise InputError(path, place, f"the key has {len(key)} bytes, at most {KEY_BYTES_MAX} are allowed")
    return key


def _as_text(value: object) -> str:
    """What JSON has no form for."""
    if isinstance(value, datetime.date | datetime.time | datetime.datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    raise TypeError(f"a value of type {type(value).__name__} has no form in JSON")


_FORMS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
_OPENERS: dict[str, Callable[[Path, str], Source]] = {"jsonl": _open_lines, "csv": _open_csv, "parquet": _open_parquet}
