"""Documents as rows with all of their own fields: the form that `export` writes without `--key`, and `load`
reads back.

    vbucket, seqno, cas, rev_seqno   its place in the history; not read back
    scope, collection                its collection
    key                              in Parquet its bytes; in CSV text, with escapes where it is no UTF-8
    key_base64                       CSV: the bytes of a key that has no text in the file's encoding, else empty
    flags, expiry                    the application's own 32 bits; Unix seconds, 0 for never
    value                            in Parquet its bytes; in CSV text
    value_base64                     CSV: the bytes of a value that has no text, `value` being empty then

The names are those of `tail --json`, which is the layout of JSON lines.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from headwater.wire.event_columns import BATCH
from headwater.wire.manifest import DEFAULT

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["COLUMNS", "NEEDED", "PLACE", "ExportedDocument", "cells", "missing", "of_cells", "schema", "stored_in"]

PLACE = ("vbucket", "seqno", "cas", "rev_seqno")
COLUMNS = (*PLACE, "scope", "collection", "key", "key_base64", "flags", "expiry", "value", "value_base64")
NEEDED = frozenset({"key", "value"})
"""Columns without which a file is not in this layout. Any other missing column counts as a column without values."""


class ExportedDocument(NamedTuple):
    """A document of a bucket; `datatype` bit 1: its value is JSON."""

    vbucket: int
    seqno: int
    cas: int
    rev_seqno: int
    datatype: int
    flags: int
    expiry: int
    scope: str
    collection: str
    key: bytes
    value: bytes


def stored_in(batch: pa.RecordBatch) -> Iterator[ExportedDocument]:
    """Yield the rows of a batch that has a column for each field."""
    columns: list[list[Any]] = [batch.column(name).to_pylist() for name in ExportedDocument._fields]
    return map(ExportedDocument._make, zip(*columns, strict=True))


def schema() -> pa.Schema:
    """Return the layout's columns in Parquet."""
    import pyarrow as pa

    kinds = BATCH | {"scope": "string", "collection": "string"}
    names = (name for name in COLUMNS if name in kinds)
    return pa.schema([pa.field(name, getattr(pa, kinds[name])(), nullable=False) for name in names])


def cells(document: ExportedDocument, encoding: str) -> list[str]:
    """Return a document's fields in CSV, in the order of `COLUMNS`."""
    place = [str(each) for each in document[:4]]
    key, value = _text(document.key, encoding), _text(document.value, encoding)
    return [
        *place,
        document.scope,
        document.collection,
        ascii(document.key)[2:-1] if key is None else key,
        base64.b64encode(document.key).decode() if key is None else "",
        str(document.flags),
        str(document.expiry),
        value or "",
        base64.b64encode(document.value).decode() if value is None else "",
    ]


def _text(data: bytes, encoding: str) -> str | None:
    """Return bytes as text; None if a file of this encoding would not give the same bytes back."""
    try:
        text = data.decode()
        return text if encoding == "utf-8" or text.encode(encoding).decode(encoding) == text else None
    except UnicodeError:
        return None


def of_cells(row: Mapping[str, Any]) -> tuple[bytes, bytes, int, int, str | None]:
    """Return key, value, flags, expiry and collection ("scope.name", None for the default one) of a row.

    Raises:
        ValueError: a field is invalid; the message has the reason.
    """
    path = (row.get("scope") or DEFAULT, row.get("collection") or DEFAULT)
    if not all(isinstance(each, str) for each in path):
        raise ValueError("its collection has no name")
    return (
        _bytes(row, "key"),
        _bytes(row, "value"),
        _number(row, "flags"),
        _number(row, "expiry"),
        None if path == (DEFAULT, DEFAULT) else ".".join(path),
    )


def _bytes(row: Mapping[str, Any], name: str) -> bytes:
    if coded := row.get(f"{name}_base64"):
        try:
            return base64.b64decode(coded, validate=True)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name}_base64 is no base64: {error}") from None
    value = row[name]
    return value if isinstance(value, bytes) else str("" if value is None else value).encode()


def _number(row: Mapping[str, Any], name: str) -> int:
    field = row.get(name)
    if field in (None, ""):
        return 0
    if not str(field).isdecimal() or int(field) >= 1 << 32:
        raise ValueError(f"{name} is {field!r}, expected 0 to {(1 << 32) - 1}")
    return int(field)


def missing(names: Iterable[str]) -> list[str]:
    """Return the columns without which a file is not in this layout, and that are not among `names`."""
    return sorted(NEEDED - set(names))
