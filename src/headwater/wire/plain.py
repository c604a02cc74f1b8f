"""Plain messages: requests of nothing but numbers, without framing, key, value, datatype or CAS.

Of the messages that come by the thousand (a drain begins with a stream request for each vbucket) nearly all are plain.
They are a header and extras of one form, so one `struct`, made from the declaration with the class: it writes them
without a message being made, and the short way of the class (compiled.py) reads them by it from where they lie.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Any

from headwater.wire.header import HEADER
from headwater.wire.sections import Shape

__all__ = ["Plain"]


class Plain:
    """Writes the plain messages of one class, and tells how to read them.

    Args:
        form: the extras; numbers only.

    Attributes:
        form: as given.
        size_bytes: of one.
        unpack: gives, of a buffer and an offset, the bytes before the vbucket, the vbucket, the size of the body,
            opaque, CAS, and the numbers of the form.
        begin: what those bytes before the vbucket are.
    """

    __slots__ = ("_extras_bytes", "_head", "_pack", "begin", "form", "size_bytes", "unpack")

    def __init__(self, magic: int, opcode: int, form: Shape) -> None:
        own = form.struct.format.removeprefix(">")
        whole = Struct(HEADER.format + own)
        self.form: Shape = form
        self.size_bytes: int = whole.size
        self.unpack: Callable[[bytes | bytearray | memoryview, int], tuple[Any, ...]] = Struct(
            ">6sHIIQ" + own
        ).unpack_from
        self._pack = whole.pack
        self._extras_bytes = form.struct.size
        # Plain numbers: an enum's take several times as long to pack.
        self._head = (int(magic), int(opcode), 0, self._extras_bytes, 0)
        self.begin: bytes = HEADER.pack(*self._head, 0, 0, 0, 0)[:6]

    def encode(self, vbucket: int, opaque: int, numbers: tuple[int, ...]) -> bytes | None:
        """The bytes of a plain message; `numbers` are its own fields, in order. None if one does not fit."""
        try:
            return self._pack(*self._head, vbucket, self._extras_bytes, opaque, 0, *numbers)
        except struct.error:
            return None
