"""The extended attributes in front of a document's body, when datatype bit XATTR is set.

    u32 N                           bytes of the pairs
    u32 L, key, 00, value, 00       a pair; L counts what follows it
    body                            the rest

Keys starting with "_" are system attributes, which a deletion keeps in the tombstone. All others are user attributes.
Source: specification, wire.md 9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from headwater.errors import LocalProtocolError, RemoteProtocolError

__all__ = ["PAIRS_MAX", "SYSTEM_BYTES_MAX", "XATTR_KEY_BYTES_MAX", "join", "join_system", "only_system", "split"]

Value = TypeVar("Value", bytes, memoryview)

XATTR_KEY_BYTES_MAX = 15
SYSTEM_BYTES_MAX = 1024 * 1024
PAIRS_MAX = 1000
"""The most attributes that a server accepts; each costs microseconds, and a value has room for more than a million."""


def split(value: Value, pairs_max: int | None = None) -> tuple[dict[str, bytes], Value]:
    """Return the attributes (values are JSON text) and the body of an uncompressed value; the body is of the same kind
    as `value`, a copy or a view.

    Raises:
        RemoteProtocolError: the section can't be read, or has more than `pairs_max` pairs; a server answers
            XATTR_EINVAL.
    """
    end = 4 + _length(value, 0, len(value))
    pairs: dict[str, bytes] = {}
    at = 4
    while at < end:
        pair_end = at + 4 + _length(value, at, end)
        key, text = _pair(bytes(value[at + 4 : pair_end]))
        # Counted before the pair is kept, so a value of a million pairs costs no more than the limit.
        if len(pairs) == pairs_max:
            raise RemoteProtocolError(f"more than {pairs_max} extended attributes")
        # "Keys are unique" (wire 9): readers that take the first and readers that take the last would disagree.
        if key in pairs:
            raise RemoteProtocolError(f"extended attribute {key!r} comes twice")
        pairs[key], at = text, pair_end
    return pairs, value[end:]


def _length(value: bytes | memoryview, at: int, end: int) -> int:
    """Read a length and check it against the data."""
    if end - at < 4:
        raise RemoteProtocolError(f"extended attributes: 4 bytes of length at offset {at}, {end - at} are there")
    length = int.from_bytes(value[at : at + 4])
    if length > end - at - 4:
        raise RemoteProtocolError(f"extended attributes: {length} bytes at offset {at}, {end - at - 4} are there")
    return length


def _pair(data: bytes) -> tuple[str, bytes]:
    key, zero, value = data.partition(b"\0")
    if not zero or value[-1:] != b"\0" or b"\0" in value[:-1]:
        raise RemoteProtocolError(f"extended attribute of {len(data)} bytes: key and value must each end with a 0")
    if not 1 <= len(key) <= XATTR_KEY_BYTES_MAX:
        raise RemoteProtocolError(f"extended attribute key of {len(key)} bytes, expected 1 to {XATTR_KEY_BYTES_MAX}")
    try:
        return key.decode(), value[:-1]
    except UnicodeDecodeError:
        raise RemoteProtocolError(f"extended attribute key {key.hex()} is not UTF-8") from None


def join(pairs: Mapping[str, bytes], body: bytes = b"") -> bytes:
    """Return a value: the attributes in their order, then the body."""
    section = b"".join(_joined(key, text) for key, text in pairs.items())
    return len(section).to_bytes(4) + section + body


def _joined(key: str, text: bytes) -> bytes:
    name = key.encode()
    if not 1 <= len(name) <= XATTR_KEY_BYTES_MAX or b"\0" in name or b"\0" in text:
        raise LocalProtocolError(
            f"extended attribute {key!r}: 1 to {XATTR_KEY_BYTES_MAX} bytes, and no 0 in key or value"
        )
    return (len(name) + len(text) + 2).to_bytes(4) + name + b"\0" + text + b"\0"


def only_system(value: Value) -> bytes:
    """Return the section of a value's system attributes, which its tombstone keeps; empty if it has none."""
    return join_system(split(value)[0])


def join_system(pairs: Mapping[str, bytes]) -> bytes:
    """Return the section of the system attributes among `pairs`, empty if there are none; avoids a second `split`."""
    system_pairs = {key: text for key, text in pairs.items() if key.startswith("_")}
    return join(system_pairs) if system_pairs else b""
