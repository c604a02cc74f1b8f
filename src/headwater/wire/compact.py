"""The short way to a message's bytes and back: header and extras by one struct, made from the declaration.

Most messages are a header, extras of one fixed form, a key and a value as they are. For those the table behind the
class (declare.py) is turned into one `struct` when the class is made, and encoding is one call. Of those that come by
the thousand (a drain begins with a stream request for each vbucket) nearly all are *plain*: requests of nothing but
numbers, without framing, key, value, datatype or CAS. They are read in one call, too, from where they lie.

Whatever can not go that way, a number too large, say, or a key where none belongs, gets None here and its complaint
on the long way: what is legal is told in one place only.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from struct import Struct
from typing import TYPE_CHECKING, Any

from headwater.wire.header import BODY_BYTES_MAX, HEADER, RESPONSES
from headwater.wire.sections import Fixed

if TYPE_CHECKING:
    from headwater.wire.declare import Layout

__all__ = ["Compact", "compact_of"]


class Compact:
    """Encodes the messages of one class, and reads the plain ones; made by `compact_of`.

    Attributes:
        is_plain: whether a message of this class can be plain.
        size_bytes: of one that is.
    """

    __slots__ = ("_begin", "_extras_bytes", "_layout", "_names", "_pack", "_third", "_unpack", "is_plain", "size_bytes")

    def __init__(self, layout: Layout, codes: str, names: tuple[str, ...]) -> None:
        whole = Struct(HEADER.format + codes)
        self.is_plain = layout.magic not in RESPONSES and not layout.key.refuses(b"") and not layout.value.refuses(b"")
        self.size_bytes = whole.size
        self._layout = layout
        self._pack, self._unpack = whole.pack, whole.unpack_from
        self._names = names
        self._extras_bytes = whole.size - HEADER.size
        self._third = "status" if layout.magic in RESPONSES else "vbucket"
        # Plain numbers: an enum's take several times as long to pack and compare.
        self._begin = (int(layout.magic), int(layout.opcode), 0, self._extras_bytes, 0)

    def encode(self, values: Mapping[str, Any]) -> bytes | None:
        """The bytes of a message with these fields; None if it has to go the long way."""
        layout, key, value = self._layout, values["key"], values["value"]
        body = self._extras_bytes + len(key) + len(value)
        if layout.key.refuses(key) or layout.value.refuses(value) or body > BODY_BYTES_MAX:
            return None
        try:
            head = self._pack(
                layout.magic,
                layout.opcode,
                len(key),
                self._extras_bytes,
                values["datatype"],
                values[self._third],
                body,
                values["opaque"],
                values["cas"],
                *[values[name] for name in self._names],
            )
        except struct.error:
            return None
        return b"".join((head, key, value)) if key or value else head

    def encode_plain(self, vbucket: int, opaque: int, numbers: tuple[int, ...]) -> bytes | None:
        """The bytes of a plain message; `numbers` are its own fields, in order."""
        try:
            return self._pack(*self._begin, vbucket, self._extras_bytes, opaque, 0, *numbers) if self.is_plain else None
        except struct.error:
            return None

    def read_plain(self, data: bytes | bytearray | memoryview, offset: int) -> dict[str, Any] | None:
        """Vbucket, opaque and own fields of the plain message that begins at `offset`; None if there is none, or not
        all of it."""
        if len(data) - offset < self.size_bytes or not self.is_plain:
            return None
        found = self._unpack(data, offset)
        if found[:5] != self._begin or found[6] != self._extras_bytes or found[8]:
            return None
        values = dict(zip(self._names, found[9:], strict=True))
        values["vbucket"], values["opaque"] = found[5], found[7]
        return values


def compact_of(layout: Layout) -> Compact | None:
    """The short way of a message; None if its form depends on what it holds."""
    extras = layout.extras
    if layout.engine or layout.body is not None or layout.opcode < 0 or not isinstance(extras, Fixed):
        return None
    shapes = list(extras.shapes.values())
    if len(shapes) != 1 or not shapes[0].packs:
        return None
    return Compact(layout, shapes[0].struct.format.removeprefix(">"), shapes[0].names)
