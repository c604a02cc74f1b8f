"""The short way to a message's bytes: header and extras packed by one struct, made from the declaration.

Most messages are a header, extras of one fixed form, a key and a value as they are. For those the table behind the
class (declare.py) is turned into one `struct` when the class is made, and encoding is one call. Whatever can not go
that way, a number too large, say, or a key where none belongs, gets None here and its complaint on the long way: what
is legal is told in one place only.
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
    """Encodes the messages of one class; made by `compact_of`."""

    __slots__ = ("_extras_bytes", "_layout", "_names", "_pack", "_third")

    def __init__(self, layout: Layout, codes: str, names: tuple[str, ...]) -> None:
        whole = Struct(HEADER.format + codes)
        self._layout = layout
        self._pack = whole.pack
        self._names = names
        self._extras_bytes = whole.size - HEADER.size
        self._third = "status" if layout.magic in RESPONSES else "vbucket"

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


def compact_of(layout: Layout) -> Compact | None:
    """The short way of a message; None if its form depends on what it holds."""
    extras = layout.extras
    if layout.engine or layout.body is not None or layout.opcode < 0 or not isinstance(extras, Fixed):
        return None
    shapes = list(extras.shapes.values())
    if len(shapes) != 1 or not shapes[0].packs:
        return None
    return Compact(layout, shapes[0].struct.format.removeprefix(">"), shapes[0].names)
