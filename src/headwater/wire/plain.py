"""Plain messages: requests of nothing but numbers, without framing, key, value, datatype or CAS.

Of the messages that come by the thousand (a drain begins with a stream request for each vbucket) nearly all are plain.
They are a header and extras of one form, so one `struct`, made from the declaration with the class: it reads them from
where they lie, and writes them without a message being made.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Any

from headwater.wire.header import HEADER
from headwater.wire.sections import Shape

__all__ = ["Plain"]


class Plain:
    """Writes the plain messages of one class, and reads them.

    Args:
        form: the extras; numbers only.

    Attributes:
        size_bytes: of one.
    """

    __slots__ = ("_begin", "_extras_bytes", "_names", "_pack", "_unpack", "size_bytes")

    def __init__(self, magic: int, opcode: int, form: Shape) -> None:
        whole = Struct(HEADER.format + form.struct.format.removeprefix(">"))
        self.size_bytes = whole.size
        self._pack, self._unpack = whole.pack, whole.unpack_from
        self._names = form.names
        self._extras_bytes = form.struct.size
        # Plain numbers: an enum's take several times as long to pack and compare.
        self._begin = (int(magic), int(opcode), 0, self._extras_bytes, 0)

    def encode(self, vbucket: int, opaque: int, numbers: tuple[int, ...]) -> bytes | None:
        """The bytes of a plain message; `numbers` are its own fields, in order. None if one does not fit."""
        try:
            return self._pack(*self._begin, vbucket, self._extras_bytes, opaque, 0, *numbers)
        except struct.error:
            return None

    def read(self, data: bytes | bytearray | memoryview, offset: int) -> dict[str, Any] | None:
        """Vbucket, opaque and own fields of the plain message that begins at `offset`; None if there is none, or not
        all of it."""
        if len(data) - offset < self.size_bytes:
            return None
        found = self._unpack(data, offset)
        if found[:5] != self._begin or found[6] != self._extras_bytes or found[8]:
            return None
        values = dict(zip(self._names, found[9:], strict=True))
        values["vbucket"], values["opaque"] = found[5], found[7]
        return values
