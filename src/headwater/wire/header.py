"""The frame: 24 bytes of header, then framing extras, extras, key and value.

    offset  0      1       2-3         4           5         6-7               8-11         12-15   16-23
            magic  opcode  key length  extras len  datatype  vbucket / status  body length  opaque  CAS

All integers are unsigned and big-endian. With the flexible magics (0x08, 0x18) byte 2 is the length of the framing
extras and byte 3 that of the key. The body is everything after the header; the value is the rest of the body after the
other sections. Source: specification, wire.md 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import NamedTuple

from headwater.errors import BadFrame, LocalProtocolError

__all__ = [
    "BODY_BYTES_MAX",
    "FLEXIBLE",
    "FRAME_BYTES_MAX",
    "HEADER",
    "HEADER_BYTES",
    "KEY_BYTES_MAX",
    "RESPONSES",
    "VALUE_BYTES_MAX",
    "Frame",
    "Lengths",
    "Magic",
    "cas_of",
    "frame_bytes",
    "lengths",
    "opaque_of",
    "plain_response",
    "put_body_bytes",
    "put_opaque",
    "response",
    "vbucket_of",
]


class Magic(IntEnum):
    """The first byte: the direction of a frame, and the form of its header."""

    CLIENT_REQUEST = 0x80
    CLIENT_RESPONSE = 0x81
    SERVER_REQUEST = 0x82
    SERVER_RESPONSE = 0x83
    FLEXIBLE_REQUEST = 0x08
    FLEXIBLE_RESPONSE = 0x18


RESPONSES = frozenset({Magic.CLIENT_RESPONSE, Magic.SERVER_RESPONSE, Magic.FLEXIBLE_RESPONSE})
FLEXIBLE = frozenset({Magic.FLEXIBLE_REQUEST, Magic.FLEXIBLE_RESPONSE})
_MAGICS = frozenset(int(magic) for magic in Magic)
_CLIENT_RESPONSE = int(Magic.CLIENT_RESPONSE)  # an enum takes several times as long to pack

HEADER = Struct(">BBHBBHIIQ")
HEADER_BYTES = HEADER.size
# Where the header's numbers lie, but for the magic, which is the first byte.
OPCODE_AT, KEY_LENGTH_AT, EXTRAS_LENGTH_AT, DATATYPE_AT, VBUCKET_AT, BODY_LENGTH_AT, OPAQUE_AT, CAS_AT = (
    struct.calcsize(HEADER.format[: 1 + count]) for count in range(1, 9)
)

_BODY_LENGTH = _OPAQUE = Struct(">I")
_VBUCKET = Struct(">H")

BODY_BYTES_MAX = 30 * 1024 * 1024
VALUE_BYTES_MAX = 20 * 1024 * 1024
KEY_BYTES_MAX = 250
FRAME_BYTES_MAX = HEADER_BYTES + BODY_BYTES_MAX

_U8, _U16, _U32, _U64 = 0xFF, 0xFFFF, 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF


class Lengths(NamedTuple):
    """The lengths of a frame's sections in bytes, from its header."""

    framing: int
    extras: int
    key: int
    body: int

    @property
    def frame(self) -> int:
        """The number of bytes of the whole frame, header included."""
        return HEADER_BYTES + self.body


def lengths(data: bytes | bytearray | memoryview, offset: int = 0) -> Lengths:
    """Read and check the lengths of the frame whose header starts at `offset`; 24 bytes must be there.

    Raises:
        BadFrame: unknown magic, sections longer than the body, or a body over 30 MiB. The following bytes can't be cut
            into frames any more (wire.md 1.3): close the connection without an answer.
    """
    magic, opcode, key, extras, _, _, body, _, _ = HEADER.unpack_from(data, offset)
    if magic not in _MAGICS:
        raise BadFrame(f"a frame starts with byte 0x{magic:02x}, which is no magic")
    framing = 0
    if magic in FLEXIBLE:
        framing, key = key >> 8, key & 0xFF
    # "The stream is unrecoverable" (wire 1.3): no later frame boundary can be trusted.
    if framing + extras + key > body:
        raise BadFrame(
            f"opcode 0x{opcode:02x}: {framing} bytes of framing, {extras} of extras and {key} of key "
            f"do not fit into a body of {body}"
        )
    if body > BODY_BYTES_MAX:
        raise BadFrame(f"opcode 0x{opcode:02x}: a body of {body} bytes; {BODY_BYTES_MAX} are allowed")
    return Lengths(framing, extras, key, body)


def frame_bytes(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the length of the frame whose header starts at `offset`, without the checks of `lengths`."""
    body: int = _BODY_LENGTH.unpack_from(data, offset + BODY_LENGTH_AT)[0]
    return HEADER_BYTES + body


def cas_of(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the CAS of the frame whose header starts at `offset`."""
    cas: int = HEADER.unpack_from(data, offset)[-1]
    return cas


def vbucket_of(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the vbucket of the request at an offset."""
    vbucket: int = _VBUCKET.unpack_from(data, offset + VBUCKET_AT)[0]
    return vbucket


def opaque_of(data: bytes | bytearray | memoryview, offset: int = 0) -> int:
    """Return the opaque of the frame whose header starts at `offset`."""
    opaque: int = HEADER.unpack_from(data, offset)[-2]
    return opaque


def put_opaque(frame: bytearray | memoryview, opaque: int, offset: int = 0) -> None:
    """Write another opaque into the header of the frame that starts at `offset`."""
    _OPAQUE.pack_into(frame, offset + OPAQUE_AT, opaque)


def put_body_bytes(frame: bytearray | memoryview, count: int) -> None:
    """Write the length of the body into the header of a frame that is assembled in parts."""
    _BODY_LENGTH.pack_into(frame, BODY_LENGTH_AT, count)


@dataclass(slots=True, frozen=True)
class Frame:
    """One frame, split into its sections. In a response, `vbucket` holds the status (see `status`).

    TAP has an engine-private section between extras and key; a Frame does not separate it: its bytes are the first ones
    after the extras (`headwater.wire.tap` splits them).
    """

    magic: int
    opcode: int
    key: bytes = b""
    extras: bytes = b""
    value: bytes = b""
    datatype: int = 0
    vbucket: int = 0
    opaque: int = 0
    cas: int = 0
    framing: bytes = b""

    @property
    def status(self) -> int:
        """The status of a response: the two bytes that `vbucket` holds."""
        return self.vbucket

    @property
    def is_response(self) -> bool:
        """True if the frame is a response."""
        return self.magic in RESPONSES

    def __len__(self) -> int:
        """The number of bytes on the wire, header included."""
        return HEADER_BYTES + len(self.framing) + len(self.extras) + len(self.key) + len(self.value)

    def encode(self) -> bytes:
        """Return the frame's bytes.

        Raises:
            LocalProtocolError: a number or section is larger than its place in the header.
        """
        return b"".join((*self._front(), self.value))

    def head(self) -> bytes:
        """Return the frame's bytes up to its value, so that a sender need not copy a large value.

        Raises:
            LocalProtocolError: as for `encode`.
        """
        return b"".join(self._front())

    def _front(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Return header, framing extras, extras and key."""
        body = len(self) - HEADER_BYTES
        flexible = self.magic in FLEXIBLE
        # The struct checks the other fields itself as it packs.
        if flexible or self.framing or self.magic not in _MAGICS or body > BODY_BYTES_MAX:
            self._check()
        key_field = len(self.framing) << 8 | len(self.key) if flexible else len(self.key)
        numbers = (self.magic, self.opcode, key_field, len(self.extras), self.datatype, self.vbucket, body)
        try:
            header = HEADER.pack(*numbers, self.opaque, self.cas)
        except struct.error:
            self._check()  # tells which number does not fit
            raise
        return header, self.framing, self.extras, self.key

    def _check(self) -> None:
        """Check that every number fits its field of the header; LocalProtocolError if one does not."""
        flexible = self.magic in FLEXIBLE
        if self.magic not in _MAGICS:
            raise LocalProtocolError(f"magic 0x{self.magic:02x} is none of the six")
        for name, value, highest in (
            ("opcode", self.opcode, _U8),
            ("datatype", self.datatype, _U8),
            ("vbucket or status", self.vbucket, _U16),
            ("opaque", self.opaque, _U32),
            ("cas", self.cas, _U64),
            ("framing length", len(self.framing), _U8 if flexible else 0),
            ("extras length", len(self.extras), _U8),
            ("key length", len(self.key), _U8 if flexible else _U16),
            ("body length", len(self) - HEADER_BYTES, BODY_BYTES_MAX),
        ):
            if not 0 <= value <= highest:
                raise LocalProtocolError(f"opcode 0x{self.opcode:02x}: {name} is {value}, allowed are 0 to {highest}")

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Frame:
        """Read exactly one frame; its sections are copies.

        Raises:
            BadFrame: the bytes are not one whole frame.
        """
        if len(data) < HEADER_BYTES:
            raise BadFrame(f"a frame has {HEADER_BYTES} bytes of header, here are {len(data)} bytes in all")
        sizes = lengths(data)
        if len(data) != sizes.frame:
            raise BadFrame(f"opcode 0x{data[1]:02x}: {sizes.frame} bytes declared, {len(data)} bytes given")
        return cls.cut(data, sizes)

    @classmethod
    def cut(cls, data: bytes | bytearray | memoryview, sizes: Lengths) -> Frame:
        """Return the frame in exactly its bytes; `sizes` is the result of `lengths`."""
        magic, opcode, _, _, datatype, vbucket, _, opaque, cas = HEADER.unpack_from(data)
        extras_at = HEADER_BYTES + sizes.framing
        key_at = extras_at + sizes.extras
        value_at = key_at + sizes.key
        end = HEADER_BYTES + sizes.body
        return cls(
            magic,
            opcode,
            bytes(data[key_at:value_at]) if sizes.key else b"",
            bytes(data[extras_at:key_at]) if sizes.extras else b"",
            bytes(data[value_at:end]) if value_at < end else b"",
            datatype,
            vbucket,
            opaque,
            cas,
            bytes(data[HEADER_BYTES:extras_at]) if sizes.framing else b"",
        )


def response(
    request: Frame,
    status: int = 0,
    *,
    extras: bytes = b"",
    key: bytes = b"",
    value: bytes = b"",
    datatype: int = 0,
    cas: int = 0,
) -> Frame:
    """Return the answer to `request`: the same opcode, the same opaque, no framing extras."""
    magic = Magic.SERVER_RESPONSE if request.magic == Magic.SERVER_REQUEST else Magic.CLIENT_RESPONSE
    return Frame(magic, request.opcode, key, extras, value, datatype, status, request.opaque, cas)


def plain_response(opcode: int, opaque: int, value: bytes = b"") -> bytes:
    """Return the bytes of a successful response to a request with this opcode and opaque, with `value` alone."""
    return HEADER.pack(_CLIENT_RESPONSE, opcode, 0, 0, 0, 0, len(value), opaque, 0) + value
