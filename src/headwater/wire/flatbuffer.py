"""Reads a table of FlatBuffers, the content of system events of version 2. Source: FlatBuffers, "Internals"; dcp 2.16.

    root:   u32, where the table is
    table:  i32, how far before it its vtable is; then its fields, where the vtable says
    vtable: u16, its own bytes; u16, those of the table; then for each field, by number, u16 its place, 0 for none

Everything is little-endian. A text is a u32 offset from its own position to a u32 length and the bytes. Every position
is checked before it is read: an invalid one is a ValueError.
"""

from __future__ import annotations

import struct

__all__ = ["FlatTable"]

_U16, _U32, _I32 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<i")
_NUMBERS = {1: struct.Struct("<B"), 4: _U32, 8: struct.Struct("<Q")}


class FlatTable:
    """The root table of a buffer; its fields are known by their numbers in the schema.

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
        """Return an unsigned number of 1, 4 or 8 bytes; the default if the sender left it out."""
        place = self._fields[field] if field < len(self._fields) else 0
        return self._read(_NUMBERS[size], self._at + place) if place else default

    def text(self, field: int) -> bytes | None:
        """Return a text's bytes; None if there is no text."""
        place = self._fields[field] if field < len(self._fields) else 0
        if not place:
            return None
        at = self._at + place
        at += self._read(_U32, at)
        end = at + 4 + self._read(_U32, at)
        if end > len(self._data):
            raise ValueError(f"a text up to {end} in a buffer of {len(self._data)}")
        return self._data[at + 4 : end]
