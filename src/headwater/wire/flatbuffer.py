"""Reads a table of FlatBuffers, the content of system events of version 2. Source: FlatBuffers, "Internals"; dcp 2.16.

    root:   u32 position of the table
    table:  i32 distance back to its vtable; then the fields, at the places given by the vtable
    vtable: u16 size of the vtable; u16 size of the table; for each field, by number, u16 its place in the table, 0 if
            it is absent

All numbers are little-endian, sizes in bytes. A text is a u32 offset from its own position to a u32 length and the
bytes. Every position is checked before it is read; an invalid one raises ValueError.
"""

from __future__ import annotations

import struct

__all__ = ["FlatTable"]

_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_NUMBERS = {1: struct.Struct("<B"), 4: _U32, 8: struct.Struct("<Q")}


class FlatTable:
    """The root table of a buffer; fields are addressed by their numbers in the schema.

    Raises:
        ValueError: the bytes are not a table.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = self._read(_U32, 0)
        vtable = self._at - self._read(_I32, self._at)
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
        return self._read(_NUMBERS[size], self._at + place) if place else default

    def text(self, field: int) -> bytes | None:
        """Return a text's bytes; None if the field is absent."""
        place = self._fields[field] if field < len(self._fields) else 0
        if not place:
            return None
        at = self._at + place
        at += self._read(_U32, at)
        end = at + 4 + self._read(_U32, at)
        if end > len(self._data):
            raise ValueError(f"a text up to {end} in a buffer of {len(self._data)}")
        return self._data[at + 4 : end]
