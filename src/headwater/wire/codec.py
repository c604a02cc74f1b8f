"""The wire form of one field: numbers, byte strings, rows of them.

A codec converts one value to bytes and back. `size` is the number of bytes of every value, or None if values differ in
size; only a section whose codecs all have a size can be recognised by its length. Both directions raise ValueError, to
which `headwater.wire.layout` adds the message and field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is an exception
from typing import Annotated, Any, ClassVar, Protocol

__all__ = ["NUMBERS", "Codec", "Counted", "Number", "Prefixed", "Rest", "RowsCodec", "Tail"]
__all__ += ["i64", "u8", "u16", "u24", "u32", "u56", "u64"]


class Codec(Protocol):
    """The wire form of one field; `str(codec)` is its name on the reference pages."""

    @property
    def size(self) -> int | None:
        """The number of bytes of every value; None if values differ in size."""

    def write(self, value: Any) -> bytes:
        """Return the value's bytes; ValueError if the wire form can't express it."""

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        """Return the value at offset `at`, and the offset after it; ValueError if there is no complete value."""


_CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


@dataclass(frozen=True, slots=True)
class Number:
    """A big-endian number of `width` bytes, unsigned by default."""

    width: int
    signed: bool = False
    struct: Struct | None = field(init=False, repr=False, compare=False)
    """The struct for such a number, if there is one."""

    def __post_init__(self) -> None:
        code = _CODES.get(self.width)
        packer = Struct(">" + (code.lower() if self.signed else code)) if code else None
        object.__setattr__(self, "struct", packer)

    @property
    def size(self) -> int:
        """The bytes that the field takes in every message."""
        return self.width

    @property
    def lowest(self) -> int:
        """The smallest value that fits."""
        return -(1 << 8 * self.width - 1) if self.signed else 0

    @property
    def highest(self) -> int:
        """The largest value that fits."""
        return self.lowest + (1 << 8 * self.width) - 1

    def write(self, value: int) -> bytes:
        """Return the number's bytes."""
        if self.struct is not None:
            try:  # `suppress` takes longer than to pack
                return self.struct.pack(value)
            except StructError:
                pass
        if not self.lowest <= value <= self.highest:
            raise ValueError(f"{value} does not fit a {self} ({self.lowest} to {self.highest})")
        return value.to_bytes(self.width, signed=self.signed)

    def read(self, data: bytes, at: int) -> tuple[int, int]:
        """Return the number at `at`."""
        if self.struct is not None and len(data) - at >= self.width:
            return self.struct.unpack_from(data, at)[0], at + self.width
        return int.from_bytes(_take(data, at, self.width), signed=self.signed), at + self.width

    def __str__(self) -> str:
        return f"{'i' if self.signed else 'u'}{8 * self.width}"


u8 = Annotated[int, Number(1)]
u16 = Annotated[int, Number(2)]
u24 = Annotated[int, Number(3)]
u32 = Annotated[int, Number(4)]
u56 = Annotated[int, Number(7)]
u64 = Annotated[int, Number(8)]
i64 = Annotated[int, Number(8, signed=True)]

NUMBERS = {bits: Number(bits // 8) for bits in (8, 16, 24, 32, 56, 64)}


@dataclass(frozen=True, slots=True)
class Rest:
    """All remaining bytes of the section."""

    size: ClassVar[None] = None

    def write(self, value: bytes) -> bytes:
        """Return the bytes unchanged."""
        return bytes(value)

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Return the remaining bytes, and the offset after them."""
        return data[at:], len(data)

    def __str__(self) -> str:
        return "bytes"


@dataclass(frozen=True, slots=True)
class Prefixed:
    """A byte string after its length in two bytes."""

    size: ClassVar[None] = None

    def write(self, value: bytes) -> bytes:
        """Return the length and the bytes."""
        return NUMBERS[16].write(len(value)) + value

    def read(self, data: bytes, at: int) -> tuple[bytes, int]:
        """Return the bytes at `at`, after a check of their length against the data."""
        length, at = NUMBERS[16].read(data, at)
        return _take(data, at, length), at + length

    def __str__(self) -> str:
        return "u16 length, bytes"


class _Around:
    """The fast path for rows of numbers around one byte string: two structs a row. StructError asks for the
    slow path.
    """

    def __init__(self, before: str, after: str) -> None:
        self._text_index = len(before)
        self._head = Struct(f">{before}H")
        self._tail = Struct(f">{after}")

    def write(self, rows: Iterable[Any]) -> bytes:
        """Return the rows one after the other."""
        at, head, tail, pieces = self._text_index, self._head.pack, self._tail.pack, list[bytes]()
        for row in rows:
            text = row[at]
            pieces += head(*row[:at], len(text)), text, tail(*row[at + 1 :])
        return b"".join(pieces)

    def read(self, data: bytes, at: int) -> list[Any]:
        """Return all rows from `at` on."""
        head, tail, rows = self._head, self._tail, []
        while at < len(data):
            *before, length = head.unpack_from(data, at)
            text = at + head.size
            at = text + length
            after = tail.unpack_from(data, at)  # an error as well where the text before it is not all there
            rows.append((*before, data[text:at], *after))
            at += tail.size
        return rows


@dataclass(frozen=True, slots=True)
class RowsCodec:
    """Rows up to the end of the section: a list of tuples, or of plain values if there is one column."""

    columns: tuple[tuple[str, Codec], ...]
    rows_min: int = 0
    struct: Struct | None = field(init=False, repr=False, compare=False)
    """A struct for a whole row, if possible."""
    around: _Around | None = field(init=False, repr=False, compare=False)
    """A reader and writer of a row in three parts, if possible."""
    size: ClassVar[None] = None

    def __post_init__(self) -> None:
        codes = "".join(_row_code(codec) for _, codec in self.columns)
        before, text, after = codes.partition("s")
        is_known = not set(codes) & {"?"} and "s" not in after
        object.__setattr__(self, "struct", Struct(f">{codes}") if is_known and not text else None)
        object.__setattr__(self, "around", _Around(before, after) if is_known and text else None)

    def write(self, value: Any) -> bytes:
        """Return the rows one after the other."""
        self._enough(len(value))
        rows = [(item,) for item in value] if len(self.columns) == 1 else value
        try:
            if self.struct is not None:
                return b"".join([self.struct.pack(*row) for row in rows])
            if self.around is not None:
                return self.around.write(rows)
        except StructError:
            pass  # the row that does not fit is told below
        return b"".join(self.write_row(row) for row in value)

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """Return all rows; an incomplete last row is an error."""
        rows = self._read_at_once(data, at)
        if rows is None:
            rows = []
            while at < len(data):
                row, at = self.read_row(data, at)
                rows.append(row)
        elif len(self.columns) == 1:
            rows = [each for (each,) in rows]
        self._enough(len(rows))
        return rows, len(data)

    def _read_at_once(self, data: bytes, at: int) -> list[Any] | None:
        try:
            if self.struct is not None:
                return list(self.struct.iter_unpack(memoryview(data)[at:]))
            if self.around is not None:
                return self.around.read(data, at)
        except StructError:
            pass  # the row that is cut short is told row by row
        return None

    def _enough(self, rows: int) -> None:
        if rows < self.rows_min:
            raise ValueError(f"{rows} rows, at least {self.rows_min} expected")

    def write_row(self, row: Any) -> bytes:
        """Return one row's bytes."""
        cells = (row,) if len(self.columns) == 1 else row
        return b"".join(codec.write(cell) for (_, codec), cell in zip(self.columns, cells, strict=True))

    def read_row(self, data: bytes, at: int) -> tuple[Any, int]:
        """Return the row at `at`."""
        cells = []
        for _, codec in self.columns:
            cell, at = codec.read(data, at)
            cells.append(cell)
        return (cells[0] if len(cells) == 1 else tuple(cells)), at

    def __str__(self) -> str:
        return "n x (" + ", ".join(f"{codec} {name}" for name, codec in self.columns) + ")"


@dataclass(frozen=True, slots=True)
class Counted:
    """Rows after their number in two bytes."""

    rows: RowsCodec
    size: ClassVar[None] = None

    def write(self, value: Any) -> bytes:
        """Return the number of rows, and the rows."""
        return NUMBERS[16].write(len(value)) + self.rows.write(value)

    def read(self, data: bytes, at: int) -> tuple[list[Any], int]:
        """Return the rows; their number, at most 65535, comes first. A missing row is an error."""
        count, at = NUMBERS[16].read(data, at)
        rows = []
        # The count is believed row by row only: each row must be there before the next is read.
        for _ in range(count):
            row, at = self.rows.read_row(data, at)
            rows.append(row)
        return rows, at

    def __str__(self) -> str:
        return f"u16 n, {self.rows}"


@dataclass(frozen=True, slots=True)
class Tail:
    """A field that may be missing at the end of its section; its value is then None."""

    codec: Codec
    size: ClassVar[None] = None

    def write(self, value: Any) -> bytes:
        """Return the value's bytes; empty for None."""
        return b"" if value is None else self.codec.write(value)

    def read(self, data: bytes, at: int) -> tuple[Any, int]:
        """Return the value, or None at the end."""
        return (None, at) if at == len(data) else self.codec.read(data, at)

    def __str__(self) -> str:
        return f"{self.codec}; may be missing"


def _row_code(codec: Codec) -> str:
    """Return a column's struct code; "s" for a byte string after its length, "?" for a column without a code."""
    if isinstance(codec, Prefixed):
        return "s"
    return codec.struct.format[1:] if isinstance(codec, Number) and codec.struct else "?"


def _take(data: bytes, at: int, count: int) -> bytes:
    if len(data) - at < count:
        raise ValueError(f"{count} bytes expected at offset {at} of {len(data)}")
    return data[at : at + count]
