"""Deletion vectors: the dead rows of a data file, in the forms of Delta's protocol.

A vector's body is a little-endian magic number, the count of 32-bit bitmaps, and for each its upper half and a portable
roaring bitmap; row numbers here stay below 2^32, so there is one bitmap. A small body stands in the log itself, as Z85
text. Larger bodies lie together in one file for each commit: a version byte, then for each vector its size (big
endian), body and CRC-32. Source: Delta's PROTOCOL.md, "Deletion Vector Format".
"""

from __future__ import annotations

import struct
import uuid
import zlib
from array import array
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from headwater.errors import CorruptStore
from headwater.invariants import invariant
from headwater.lake.layout import within
from headwater.lake.store import TableStore

MAGIC = 1681511377
INLINE_BYTES_MAX = 400
"""The largest body in the log. Every reader reads the whole log, but a vector's file only with its data file."""

_HEAD = struct.Struct("<iqi")
_SIZE, _CRC = struct.Struct(">i"), struct.Struct(">I")
_VERSION = b"\x01"
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUES = {letter: value for value, letter in enumerate(_Z85)}

Descriptor = dict[str, Any]
"""The description of a vector in the log's `add` action."""


def rows_of(positions: NDArray[Any]) -> BitMap:
    """Return a bitmap of row numbers."""
    # From an array of Python's own it is made at once, from numpy's number by number: 3 ms and 33 for half a million.
    return BitMap(array("I", np.sort(positions.astype(np.uint32)).tobytes()))


def positions_of(rows: BitMap) -> NDArray[np.uint32]:
    """Return the row numbers of a bitmap, ascending."""
    return np.frombuffer(rows.to_array(), np.uint32)


def encode(rows: BitMap) -> bytes:
    """Return the body of a vector."""
    # `run_optimize` changes the bitmap itself, and the caller goes on using it.
    packed = rows.copy()
    packed.run_optimize()
    return _HEAD.pack(MAGIC, 1, 0) + bytes(packed.serialize())


def decode(body: bytes) -> BitMap:
    """Return the rows of a body.

    Raises:
        ValueError: not a vector, or one with row numbers of 2^32 and more.
    """
    if len(body) < 12 or int.from_bytes(body[:4], "little") != MAGIC:
        raise ValueError("no deletion vector: its magic number is missing")
    count = int.from_bytes(body[4:12], "little")
    # Writers may store a vector without a bitmap for one without rows.
    if count == 0:
        return BitMap()
    _, _, upper = _HEAD.unpack_from(body)
    if count != 1 or upper != 0:
        raise ValueError(f"a deletion vector of {count} bitmaps, the first of upper half {upper}: rows beyond 2^32")
    return BitMap.deserialize(body[_HEAD.size :])


def z85(data: bytes) -> str:
    """Return bytes as text, five letters for four bytes; the last four bytes are filled up with zeros."""
    padded = data + bytes(-len(data) % 4)
    words = np.frombuffer(padded, ">u4").astype(np.uint64)
    digits = [(words // 85**place % 85).tolist() for place in (4, 3, 2, 1, 0)]
    return "".join(_Z85[digit] for letters in zip(*digits, strict=True) for digit in letters)


def unz85(text: str) -> bytes:
    """Return the bytes that `z85` encoded, filled up with zeros to a multiple of four.

    Raises:
        ValueError: a letter that is not one of the 85, or a length that is not a multiple of five.
    """
    if len(text) % 5 or not _Z85_VALUES.keys() >= set(text):
        raise ValueError("not Z85 text")
    out = bytearray()
    for at in range(0, len(text), 5):
        word = 0
        for letter in text[at : at + 5]:
            word = word * 85 + _Z85_VALUES[letter]
        if word >> 32:
            raise ValueError("not Z85 text: a word beyond 32 bits")
        out += word.to_bytes(4, "big")
    return bytes(out)


def write(store: TableStore, vectors: Mapping[str, BitMap], folder: str = "") -> dict[str, Descriptor]:
    """Write the vectors of one commit, durably; return a descriptor for each.

    Args:
        store: the table's place.
        vectors: dead rows by data file.
        folder: the table's folder for files of vectors; empty for its own.
    """
    descriptors: dict[str, Descriptor] = {}
    large: dict[str, bytes] = {}
    for path, rows in vectors.items():
        body = encode(rows)
        invariant(len(rows), "{} gets a vector without a dead row", path)
        descriptors[path] = {
            "storageType": "i",
            "pathOrInlineDv": "",
            "sizeInBytes": len(body),
            "cardinality": len(rows),
        }
        if len(body) <= INLINE_BYTES_MAX:
            descriptors[path]["pathOrInlineDv"] = z85(body)
        else:
            large[path] = body
    if large:
        name = uuid.uuid4()
        content = bytearray(_VERSION)
        for path, body in large.items():
            descriptors[path] |= {
                "storageType": "u",
                "pathOrInlineDv": folder + z85(name.bytes),
                "offset": len(content),
            }
            content += _SIZE.pack(len(body)) + body + _CRC.pack(zlib.crc32(body))
        # Durable, with its name, before the commit that refers to it.
        store.write(_file_name(folder, name), bytes(content))
    return descriptors


def file_of(descriptor: Descriptor) -> str | None:
    """Return the file that a vector lies in, relative to the table, or absolute if it begins with a scheme or slash;
    None if it stands in the log."""
    if descriptor["storageType"] == "i":
        return None
    text = str(descriptor["pathOrInlineDv"])
    if descriptor["storageType"] == "p":
        return unquote(text)  # a url
    # Twenty letters are the 16 bytes of the file's name; what stands before them is the folder (PROTOCOL.md, "Deletion
    # Vector Descriptor Schema").
    prefix, name = text[:-20], uuid.UUID(bytes=unz85(text[-20:]))
    return _file_name(prefix, name)


def _file_name(folder: str, name: uuid.UUID) -> str:
    return within(folder, f"deletion_vector_{name}.bin")


def read(store: TableStore, descriptor: Descriptor) -> BitMap:
    """Return the rows of a vector that the log describes.

    Raises:
        CorruptStore: the vector differs from the log's description in size, checksum, magic or count.
    """
    file = file_of(descriptor) or "the log"
    try:
        rows = decode(body(store, descriptor))
    except (ValueError, struct.error, IndexError) as error:
        raise CorruptStore(store.full(file), int(descriptor.get("offset") or 0), str(error)) from None
    # A vector that lost rows on its way would bring dead rows back without any other sign.
    if len(rows) != descriptor["cardinality"]:
        problem = f"a deletion vector of {len(rows)} rows, the log says {descriptor['cardinality']}"
        raise CorruptStore(store.full(file), int(descriptor.get("offset") or 0), problem)
    return rows


def body(store: TableStore, descriptor: Descriptor) -> bytes:
    """Return the body of a vector that the log describes.

    Raises:
        CorruptStore: the vector differs from the log's description in size, checksum or magic number.
    """
    path = file_of(descriptor)
    try:
        content = _inline(descriptor) if path is None else _from_file(store.read(path), descriptor)
        if len(content) != descriptor["sizeInBytes"] or int.from_bytes(content[:4], "little") != MAGIC:
            raise ValueError(f"no deletion vector of {descriptor['sizeInBytes']} bytes")
    except (ValueError, struct.error, IndexError) as error:
        raise CorruptStore(store.full(path or "the log"), int(descriptor.get("offset") or 0), str(error)) from None
    return content


def _inline(descriptor: Descriptor) -> bytes:
    return unz85(descriptor["pathOrInlineDv"])[: descriptor["sizeInBytes"]]


def _from_file(content: bytes, descriptor: Descriptor) -> bytes:
    # A vector without an offset is the first of its file, behind the version byte.
    offset = int(descriptor.get("offset") or 1)
    size = int(descriptor["sizeInBytes"])
    end = offset + _SIZE.size + size
    # Lengths first: the two below are read at places that the log names.
    if end + _CRC.size > len(content):
        raise ValueError(f"a deletion vector of {size} bytes ends beyond its file of {len(content)}")
    (recorded_size,) = _SIZE.unpack_from(content, offset)
    body = content[offset + _SIZE.size : end]
    (checksum,) = _CRC.unpack_from(content, end)
    if recorded_size != size or zlib.crc32(body) != checksum:
        raise ValueError("a deletion vector's size or checksum is not its own")
    return body
