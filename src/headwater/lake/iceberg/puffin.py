"""Puffin files of deletion vectors: one for each publication that has new vectors.

    "PFA1"  blob ...  "PFA1"  payload (JSON)  its length (4 bytes, little endian)  flags (4 bytes)  "PFA1"

A blob of the type deletion-vector-v1 is the length of what follows without the checksum (4 bytes, big endian), the
body, and its CRC-32 (big endian). The body is byte for byte that of Delta's vectors (lake/vectors.py), so it is copied
and not made anew. Where a blob lies stands in the manifest, so that a reader reads no footer. Source: Iceberg's
puffin-spec.md.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MAGIC: Final = b"PFA1"
BLOB_TYPE: Final = "deletion-vector-v1"
ROW_POSITION: Final = 2147483645
"""The number of the column with a row's position, of which a vector is said to be."""

DELTA_VECTOR: Final = "delta-vector"
"""A blob's property: which vector of the Delta log it was copied from."""

_SIZE, _CRC, _LENGTH = struct.Struct(">i"), struct.Struct(">I"), struct.Struct("<i")
_TAIL = _LENGTH.size + 4 + len(MAGIC)
_LZ4 = 1


@dataclass(frozen=True, slots=True)
class Blob:
    """A deletion vector in a Puffin file.

    Attributes:
        data_file: location of the data file whose rows are dead.
        cardinality: number of its dead rows.
        source: identity of the vector in the Delta log; empty if somebody else wrote the blob.
        offset, length: place in the file, in bytes.
    """

    data_file: str
    cardinality: int
    source: str
    offset: int
    length: int


def encode(vectors: Sequence[tuple[str, int, str, bytes]]) -> tuple[bytes, list[Blob]]:
    """Return a file, and its blobs in the same order.

    Args:
        vectors: data file, cardinality, identity in the Delta log, and body of each.
    """
    content, blobs = bytearray(MAGIC), []
    for data_file, cardinality, source, body in vectors:
        packed = _SIZE.pack(len(body)) + body + _CRC.pack(zlib.crc32(body))
        blobs.append(Blob(data_file, cardinality, source, len(content), len(packed)))
        content += packed
    payload = json.dumps({"blobs": [_blob_fields(blob) for blob in blobs]}, ensure_ascii=False).encode()
    content += MAGIC + payload + _LENGTH.pack(len(payload)) + bytes(4) + MAGIC
    return bytes(content), blobs


def _blob_fields(blob: Blob) -> dict[str, Any]:
    properties = {
        "referenced-data-file": blob.data_file,
        "cardinality": str(blob.cardinality),
        DELTA_VECTOR: blob.source,
    }
    # The snapshot is not known when the file is written: "snapshot-id and sequence-number must be set to -1".
    return {
        "type": BLOB_TYPE,
        "fields": [ROW_POSITION],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": blob.offset,
        "length": blob.length,
        "properties": properties,
    }


def blobs_of(content: bytes) -> list[Blob]:
    """Return the deletion vectors that a file's footer lists.

    Raises:
        ValueError: not a Puffin file, or one whose footer is damaged or compressed.
    """
    if len(content) < 2 * len(MAGIC) + _TAIL or content[:4] != MAGIC or content[-4:] != MAGIC:
        raise ValueError(f"no Puffin file: {len(content)} bytes, its magic number is missing at an end")
    (length,) = _LENGTH.unpack_from(content, len(content) - _TAIL)
    # The length comes from the file, so it is checked before anything is read at the place that it gives.
    begin = len(content) - _TAIL - length
    if length < 0 or begin < 2 * len(MAGIC) or content[begin - len(MAGIC) : begin] != MAGIC:
        raise ValueError(f"a footer of {length} bytes does not begin in its file of {len(content)}")
    if content[-len(MAGIC) - 4] & _LZ4:
        raise ValueError("the footer is compressed, which this reader does not read")
    try:
        blobs = json.loads(content[begin : begin + length])["blobs"]
        return [_blob(blob, begin) for blob in blobs if blob["type"] == BLOB_TYPE]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the footer lacks {error}") from None


def _blob(fields: dict[str, Any], end: int) -> Blob:
    offset, length = int(fields["offset"]), int(fields["length"])
    if offset < len(MAGIC) or length < 0 or offset + length > end - len(MAGIC):
        raise ValueError(f"a blob of {length} bytes at {offset} is not before the footer at {end - len(MAGIC)}")
    properties = fields["properties"]
    return Blob(
        properties["referenced-data-file"],
        int(properties["cardinality"]),
        properties.get(DELTA_VECTOR, ""),
        offset,
        length,
    )


def body_of(content: bytes, offset: int, length: int) -> bytes:
    """Return the body of a vector, checked.

    Raises:
        ValueError: its length or checksum is not its own.
    """
    packed = content[offset : offset + length]
    if len(packed) != length or length < _SIZE.size + _CRC.size:
        raise ValueError(f"a vector of {length} bytes at {offset} ends beyond its file of {len(content)}")
    body = packed[_SIZE.size : -_CRC.size]
    if _SIZE.unpack_from(packed)[0] != len(body) or _CRC.unpack(packed[-_CRC.size :])[0] != zlib.crc32(body):
        raise ValueError("a deletion vector's size or checksum is not its own")
    return body
