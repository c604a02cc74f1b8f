"""Each declared request at its limits: the lengths, keys, values and header fields at which a node must refuse it.

A request is varied in one place at a time, from a form that its declaration allows: only that place is wrong, and all
checks before it pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from random import Random
from struct import pack

import cramjam

from headwater.wire import admin, bootstrap, dcp, documents, meta, tap, upr
from headwater.wire.datatype import Datatype
from headwater.wire.dialect import messages
from headwater.wire.header import BODY_BYTES_MAX, HEADER, KEY_BYTES_MAX, VALUE_BYTES_MAX, Frame
from headwater.wire.layout import Message, Request
from headwater.wire.opcodes import RETIRED, Opcode
from headwater.wire.sections import Fixed

MODULES = (bootstrap, documents, meta, admin, dcp, upr, tap)
U32_MAX = 0xFFFF_FFFF
REQUEST, FLEXIBLE, RESPONSE = 0x80, 0x08, 0x81
XATTR_PAIRS_MAX = 1000
SYSTEM_ATTRIBUTES_BYTES_MAX = 1 << 20
WITH_DOCUMENTS = frozenset(
    {
        *(Opcode.SET, Opcode.SETQ, Opcode.ADD, Opcode.REPLACE, Opcode.APPEND, Opcode.PREPEND, Opcode.SET_WITH_META),
        *(Opcode.ADD_WITH_META, Opcode.DEL_WITH_META, Opcode.RETURN_META, Opcode.DCP_MUTATION, Opcode.TAP_MUTATION),
    }
)
"""Opcodes whose value the node parses or validates: `large` yields large values of every kind for them."""


def opcodes() -> list[int]:
    """Return every opcode that has or had a meaning, and one that never had."""
    return sorted({*map(int, Opcode), *RETIRED, 0xFF})


def forms(opcode: int) -> list[type[Message]]:
    """Return the declared requests of an opcode, quiet forms included."""
    declared = chain.from_iterable(messages(module) for module in MODULES)
    return [
        each
        for each in declared
        if issubclass(each, Request) and opcode in each.layout.opcodes and each.layout.magic == REQUEST
    ]


def extras_lengths(opcode: int) -> list[int]:
    """Return the declared lengths of extras of an opcode's requests."""
    sections = [form.layout.extras for form in forms(opcode)]
    found = {length for section in sections if isinstance(section, Fixed) for length in section.shapes}
    return sorted(found) or [0]


def small(opcode: int, random: Random) -> Iterator[bytes]:
    """Yield frames of an opcode that differ from a well-formed one in one place."""
    lengths = extras_lengths(opcode)
    usual = bytes(lengths[-1])

    def frame(**fields: object) -> bytes:
        sections = {"magic": REQUEST, "opcode": opcode, "key": b"k", "extras": usual, "value": b"v", "opaque": 7}
        return Frame(**sections | fields).encode()  # type: ignore[arg-type]

    for length in sorted(
        {0, 255, *lengths, *(length + 1 for length in lengths), *(max(0, length - 1) for length in lengths)}
    ):
        for extras in (bytes(length), b"\xff" * length, random.randbytes(length)):
            yield frame(extras=extras)
            yield frame(extras=extras, key=b"", value=b"")
    for size in (0, KEY_BYTES_MAX, KEY_BYTES_MAX + 1, 0xFFFF):
        yield frame(key=b"x" * size)
    for size in (0, 2, 16, 60_000):
        yield frame(value=random.randbytes(size), key=b"")
    yield frame(value=b"[" * 60_000)
    yield frame(value=b'{"a":' * 10_000)
    for datatype in (1, 2, 3, 4, 5, 6, 7, 8, 0x80, 0xFF):
        yield frame(datatype=datatype)
        yield frame(datatype=datatype, value=pack(">I", 0xFFFF_FFFF) + bytes(8))
    for vbucket in (1, 1023, 1024, 0xFFFF):
        yield frame(vbucket=vbucket)
    for cas in (1, 1 << 63, (1 << 64) - 1):
        yield frame(cas=cas)
    for framing in (b"\x00", b"\x10\x00", b"\x13\x01\x02\x03", b"\xff\xff\xff", random.randbytes(200)):
        yield frame(magic=FLEXIBLE, framing=framing)
    yield Frame(RESPONSE, opcode, b"k", usual, b"v").encode()


def cut(opcode: int) -> Iterator[bytes]:
    """Yield headers that announce bytes that do not follow, or lie about their sections. Each needs a connection of its
    own.
    """
    for key, extras, body in (
        (0, 0, 100),
        (0xFFFF, 0, 10),
        (0, 255, 10),
        (1, 8, BODY_BYTES_MAX + 1),
        (1, 8, U32_MAX),
    ):
        yield HEADER.pack(REQUEST, opcode, key, extras, 0, 0, body, 0, 0) + bytes(50)


def large(opcode: int, random: Random, size: int = VALUE_BYTES_MAX) -> Iterator[bytes]:
    """Yield frames with the largest value of a document, one byte more, and the largest body of a frame."""
    extras = bytes(extras_lengths(opcode)[-1])
    for length in (size, size + 1, BODY_BYTES_MAX - len(extras) - 1):
        yield Frame(REQUEST, opcode, b"k", extras, bytes(length)).encode()
    if opcode in WITH_DOCUMENTS:
        for datatype, value in values(random, size):
            yield Frame(REQUEST, opcode, b"k", extras, value, datatype=datatype).encode()


def values(random: Random, size: int = VALUE_BYTES_MAX) -> list[tuple[int, bytes]]:
    """Return datatypes and values of about `size` bytes, of every kind that is slow to validate."""
    flat = (b'[[],{},1e9,"\\u00e4",' * (size // 19))[: size - 4] + b"0]"
    text = b'{"a": 1.23456}'
    pairs = b"".join(pack(">I", 11 + len(text)) + b"_%08d\0%b\0" % (n, text) for n in range(XATTR_PAIRS_MAX))
    attributes = pack(">I", len(pairs)) + pairs
    zeros = bytes(size - len(attributes))
    return [
        (0, random.randbytes(size)),
        (0, flat),
        (0, b'"' + b"\\u00e4" * (size // 6 - 1) + b'"'),
        (0, b"[" * size),
        (0, b'{"a":' * (size // 5)),
        (0, b" " * (size - 1) + b"1"),
        (Datatype.SNAPPY, compressed(flat)),
        (Datatype.SNAPPY, compressed(bytes(size))),
        (Datatype.XATTR, attributes + flat[: size - len(attributes)]),
        (Datatype.XATTR | Datatype.SNAPPY, compressed(attributes + zeros)),
        (Datatype.XATTR, pack(">I", size - 4) + bytes(size - 4)),
    ]


def compressed(value: bytes) -> bytes:
    """Return a value in snappy's raw form."""
    return bytes(cramjam.snappy.compress_raw(value))
