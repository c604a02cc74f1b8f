"""JSON documents as VARIANT: any document in one column, whose fields a query takes out by path.

A VARIANT is two byte strings, `metadata` (the names of all fields) and `value`, in the binary encoding that Spark and
Parquet share. This module writes, byte for byte, what Spark's `parse_json` makes of the same text, with two exceptions:
the order of names in an object, where UTF-8's and UTF-16's differ, and half surrogate pairs (lake/json_values.py). In
Delta's Parquet files it is a struct of the two (PROTOCOL.md, "Variant Data Type", which demands no logical type: Arrow
for Python can't write Parquet's VARIANT annotation, and Delta's readers use the table's schema).

Whole numbers have the smallest of 1, 2, 4 and 8 bytes that holds them, fractions without an exponent are decimals of
up to 38 digits, all other numbers doubles. Source: Parquet's VariantEncoding.md, and Spark's VariantBuilder for what
that leaves open.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from numpy.typing import NDArray

from headwater.lake.json_values import DIGITS_MAX, TOO_DEEP, decoder, may_have_halves, no_json, written
from headwater.lake.shape import VARIANT, TableForm, TableShape, arrow_type, delta_field, fields
from headwater.lake.unfold import texts_among

COLUMN = "document"
BYTES_MAX = 16 << 20
"""The longest value, and the longest metadata, that every reader must take."""

DEPTH_MAX = 300
TOO_LONG = f"JSON that is longer than the {BYTES_MAX >> 20} MiB of a VARIANT"
_MEANS = "the document as VARIANT; null where it is no JSON"

_VERSION, _OBJECT, _ARRAY = 1, 2, 3
_NULL, _TRUE, _FALSE, _LONG_TEXT, _DOUBLE = b"\x00", b"\x04", b"\x08", b"\x40", b"\x1c"
_SHORT_TEXT = [bytes((length << 2 | 1,)) for length in range(64)]
_WHOLE = [(1 << 7, b"\x0c", 1), (1 << 15, b"\x10", 2), (1 << 31, b"\x14", 4), (1 << 63, b"\x18", 8)]
"""(limit, header, bytes): integers below the limit are written with this header in so many bytes."""

_DECIMALS = [(9, b"\x20", 4), (18, b"\x24", 8), (38, b"\x28", 16)]
"""(most digits, header, bytes) of decimals, likewise; the same limit holds for digits after the point."""

_COUNT_SHORT = 0xFF


def is_variant(columns: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if a table has its documents as VARIANT."""
    return any(column["type"] == VARIANT for column in columns)


class VariantShape(TableShape):
    """A converter from JSON documents to rows of a table, each document whole in one column."""

    def taken(self, batch: pa.RecordBatch) -> NDArray[Any] | None:
        """Return a mask of the changes whose keys are text; this table can have no others."""
        good = texts_among(batch.column("key"))
        if good is not None:
            self.conflicts.add("key: string in the table, bytes that are not UTF-8 in the bucket; left out")
        return good

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the table's rows."""
        read = [encoded(value) for value in batch.column("value").to_pylist()]
        self.misfits: list[str | None] = [variant if isinstance(variant, str) else None for variant in read]
        pairs = [(b"", b"") if isinstance(variant, str) else variant for variant in read]
        kind: Any = arrow_type(VARIANT)
        halves = [pa.array([pair[half] for pair in pairs], pa.binary()) for half in (0, 1)]
        is_misfit = pa.array([reason is not None for reason in self.misfits], pa.bool_())
        self._documents = pa.StructArray.from_arrays(halves, fields=list(kind), mask=is_misfit)
        return super().rows(batch)

    def values(self, column: str, batch: pa.RecordBatch) -> Any:
        """Return the values of a column."""
        return self._documents if column == COLUMN else super().values(column, batch)


AS_VARIANT: Final = TableForm(
    "variant",
    [*fields("string"), delta_field(COLUMN, VARIANT, _MEANS)],
    VariantShape,
    is_variant,
    present="its documents are VARIANT",
    absent="it has no column of VARIANT",
)


def encoded(value: bytes | None) -> tuple[bytes, bytes] | str:
    """Return JSON text as (metadata, value) of a VARIANT; if that is impossible, the reason as text."""
    try:
        document = _parse(value)
        if may_have_halves(value):
            document = written(document)
        names: dict[str, int] = {}
        body = _encoded_value(document, names, 0)
        metadata = _metadata(names)
    except RecursionError:
        return TOO_DEEP
    except ValueError as error:
        return no_json(value, error)
    return TOO_LONG if max(len(body), len(metadata)) > BYTES_MAX else (metadata, body)


def _fraction(text: str) -> Decimal | float:
    """Return the number of a text with a point or an exponent."""
    if "e" not in text and "E" not in text and len(text) <= 3 + _DECIMALS[-1][0]:
        return Decimal(text)
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is beyond what a double holds")
    return number


def _digits(text: str) -> int | Decimal | float:
    """Return the number of a text without either; Python refuses more than 4,300 digits."""
    return int(text) if len(text) < DIGITS_MAX else _fraction(f"{text}e0")


_parse = decoder(_fraction, _digits)


def _encoded_value(value: Any, names: dict[str, int], depth: int) -> bytes:
    """Encode a value that `json.loads` returned; `names` gets an id for each new name."""
    kind = type(value)
    if kind is dict:
        return _object(value, names, depth + 1)
    if kind is list:
        return _array(value, names, depth + 1)
    return _LEAVES[kind](value)


def _text(value: str) -> bytes:
    data = value.encode()
    if len(data) < len(_SHORT_TEXT):
        return _SHORT_TEXT[len(data)] + data
    return _LONG_TEXT + len(data).to_bytes(4, "little") + data


def _encoded_integer(value: int) -> bytes:
    for limit, header, size in _WHOLE:
        if -limit <= value < limit:
            return header + value.to_bytes(size, "little", signed=True)
    text = str(value)
    fits = len(text.lstrip("-")) <= _DECIMALS[-1][0]
    return _decimal(Decimal(value)) if fits else _double(float(value))


def _double(value: float) -> bytes:
    return _DOUBLE + struct.pack("<d", value)


def _constant(value: bool | None) -> bytes:
    return _NULL if value is None else _TRUE if value else _FALSE


def _decimal(value: Decimal) -> bytes:
    negative, digits, exponent = value.as_tuple()
    scale = -int(exponent)
    for limit, header, size in _DECIMALS:
        if len(digits) <= limit and scale <= limit:
            unscaled = int("".join(map(str, digits)))
            signed = -unscaled if negative else unscaled
            return header + bytes((scale,)) + signed.to_bytes(size, "little", signed=True)
    return _double(float(value))


_LEAVES: dict[type, Callable[[Any], bytes]] = {str: _text, int: _encoded_integer, float: _double, Decimal: _decimal}
_LEAVES |= {bool: _constant, type(None): _constant}


def _object(value: Mapping[str, Any], names: dict[str, int], depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise RecursionError
    parts: list[bytes] = []
    members: list[tuple[str, int, int]] = []
    at = 0
    for name, item in value.items():
        members.append((name, names.setdefault(name, len(names)), at))
        part = _encoded_value(item, names, depth)
        parts.append(part)
        at += len(part)
    # The encoding demands the ids of an object's fields in the order of their names, so that readers can search; the
    # values stay in the order of the text.
    members.sort()
    id_size, offset_size = _size(max((number for _, number, _ in members), default=0)), _size(at)
    large = len(members) > _COUNT_SHORT
    header = (large << 6) | (id_size - 1) << 4 | (offset_size - 1) << 2 | _OBJECT
    ids = _packed([number for _, number, _ in members], id_size)
    offsets = _packed([*(place for _, _, place in members), at], offset_size)
    return b"".join((bytes((header,)), _count(len(members), large), ids, offsets, *parts))


def _array(value: Sequence[Any], names: dict[str, int], depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise RecursionError
    parts: list[bytes] = []
    offsets = [0]
    for item in value:  # no comprehension: it would be a frame more for each level
        parts.append(_encoded_value(item, names, depth))
        offsets.append(offsets[-1] + len(parts[-1]))
    offset_size = _size(offsets[-1])
    large = len(parts) > _COUNT_SHORT
    header = (large << 4) | (offset_size - 1) << 2 | _ARRAY
    return b"".join((bytes((header,)), _count(len(parts), large), _packed(offsets, offset_size), *parts))


def _metadata(names: Mapping[str, int]) -> bytes:
    texts = [name.encode() for name in names]
    offsets = [0]
    for text in texts:
        offsets.append(offsets[-1] + len(text))
    size = _size(max(offsets[-1], len(texts)))
    header = _VERSION | (size - 1) << 6
    return b"".join((bytes((header,)), len(texts).to_bytes(size, "little"), _packed(offsets, size), *texts))


def _count(count: int, large: int) -> bytes:
    return count.to_bytes(4 if large else 1, "little")


def _size(number_max: int) -> int:
    """Return the number of bytes that numbers up to `number_max` need."""
    return 1 if number_max < 1 << 8 else 2 if number_max < 1 << 16 else 3 if number_max < 1 << 24 else 4


def _packed(numbers: Sequence[int], size: int) -> bytes:
    return bytes(numbers) if size == 1 else b"".join([number.to_bytes(size, "little") for number in numbers])
