"""Reads and writes a table of FlatBuffers, the content of system events of version 2. Source: FlatBuffers,
"Internals"; dcp 2.16.

    root:   u32 position of the table
    table:  i32 distance back to its vtable; then the fields, at the places given by the vtable
    vtable: u16 size of the vtable; u16 size of the table; for each field, by number, u16 its place in the table, 0 if
            it is absent

All numbers are little-endian, sizes in bytes. A text is a u32 offset from its own position to a u32 length and the
bytes. Every position is checked before it is read; an invalid one raises ValueError. Written buffers have one form: the
root, the vtable, the table with its fields in the order of their numbers and each at a multiple of its size, the texts.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["FlatNumber", "FlatTable", "flat_table"]

_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_NUMBERS = {1: struct.Struct("<B"), 4: _U32, 8: struct.Struct("<Q")}


class FlatTable:
    """The root table of a buffer; fields are addressed by their numbers in the schema.

    Raises:
        ValueError: the bytes are not a table.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._table_offset = self._read(_U32, 0)
        vtable = self._table_offset - self._read(_I32, self._table_offset)
        size = self._read(_U16, vtable)
        if size < 4 or size % 2 or vtable + size > len(data):
            raise ValueError(f"a vtable of {size} bytes at {vtable} in {len(data)}")
        self._fields = [self._read(_U16, vtable + at) for at in range(4, size, 2)]

    def _read(self, number: struct.Struct, at: int) -> int:
        if not 0 <= at <= len(self._data) - number.size:
            raise ValueError(f"{number.size} bytes at {at} in a buffer of {len(self._data)}")
        value: int = number.unpack_from(self._data, at)[0]
        return value

    def number(self, field: int, size: int, default: int = 0) -> int:
        """Return an unsigned number of 1, 4 or 8 bytes; `default` if the field is absent."""
        place = self._fields[field] if field < len(self._fields) else 0
        return self._read(_NUMBERS[size], self._table_offset + place) if place else default

    def text(self, field: int) -> bytes | None:
        """Return a text's bytes; None if the field is absent."""
        place = self._fields[field] if field < len(self._fields) else 0
        if not place:
            return None
        at = self._table_offset + place
        at += self._read(_U32, at)
        end = at + 4 + self._read(_U32, at)
        if end > len(self._data):
            raise ValueError(f"a text up to {end} in a buffer of {len(self._data)}")
        return self._data[at + 4 : end]


class FlatNumber(NamedTuple):
    """A number of a table that is written: its value, unsigned, and its size of 1, 4 or 8 bytes."""

    value: int
    size: int


def flat_table(fields: Mapping[int, FlatNumber | bytes]) -> bytes:
    """Return a buffer with one table; `fields` are its numbers and texts by their numbers in the schema.

    A number of 0 is left out, as readers take it for the default of each field here.
    """
    fields_ = {
        number: field for number, field in sorted(fields.items()) if not isinstance(field, FlatNumber) or field.value
    }
    places, size = _places(fields_)
    count = max(fields_, default=-1) + 1
    vtable_bytes = 4 + 2 * count
    vtable_at = _U32.size
    table_at = _aligned(vtable_at + vtable_bytes, 8)
    buffer = bytearray(table_at + _aligned(size, 4))
    _U32.pack_into(buffer, 0, table_at)
    struct.pack_into(f"<{2 + count}H", buffer, vtable_at, vtable_bytes, size, *(places.get(n, 0) for n in range(count)))
    _I32.pack_into(buffer, table_at, table_at - vtable_at)
    for number, field in fields_.items():
        at = table_at + places[number]
        if isinstance(field, FlatNumber):
            _NUMBERS[field.size].pack_into(buffer, at, field.value)
        else:
            _U32.pack_into(buffer, at, len(buffer) - at)
            buffer += _U32.pack(len(field)) + field + bytes(_aligned(len(field) + 1, 4) - len(field))
    return bytes(buffer)


def _places(fields: Mapping[int, FlatNumber | bytes]) -> tuple[dict[int, int], int]:
    """Return where each field is in the table, and the table's bytes."""
    places, end = dict[int, int](), _I32.size
    for number, field in fields.items():
        size = field.size if isinstance(field, FlatNumber) else _U32.size
        places[number] = _aligned(end, size)
        end = places[number] + size
    return places, end


def _aligned(at: int, size: int) -> int:
    return -(-at // size) * size
