"""One commit on disk: a header, then DCP frames one after the other.

    offset  0      4             6  8       16          24      32              40               48
            magic  header bytes  0  number  body bytes  frames  body checksum   header checksum  body ...

Integers are big-endian. Checksums are XXH3-64 with the seed `salt + offset` (mod 2^64): the salt is a random number of
the segment, the offset is that of this header. So a batch is valid only at its own offset: bytes of a batch inside a
value, or from another file, are never mistaken for a batch. The header checksum covers bytes 0 to 39.

A batch is written only after the previous one was synced. So at the start, a bad batch with no valid batch after it is
an incomplete write (`Torn`); a bad batch before a valid one is damage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

import xxhash

from headwater.invariants import node_invariant
from headwater.node.storage.disk import Buffer

__all__ = [
    "BATCH_HEADER_BYTES",
    "MAGIC",
    "BatchHeader",
    "Torn",
    "body_digest",
    "find_later",
    "header_of",
    "read_header",
]
__all__ += ["walk"]

MAGIC: Final = b"HWB1"
_LAYOUT = Struct(">4sHHQQQQ")
_CHECKSUM = Struct(">Q")
BATCH_HEADER_BYTES: Final = _LAYOUT.size + _CHECKSUM.size
_U64 = (1 << 64) - 1


@dataclass(slots=True, frozen=True)
class BatchHeader:
    """The header of a valid batch.

    Attributes:
        offset: the offset of the header in the file.
        number: the batch's number.
        body_bytes: the number of bytes after the header.
        frames: the number of frames in these bytes.
        checksum: the checksum of these bytes.
    """

    offset: int
    number: int
    body_bytes: int
    frames: int
    checksum: int

    @property
    def start(self) -> int:
        """The offset of the first frame."""
        return self.offset + BATCH_HEADER_BYTES

    @property
    def end(self) -> int:
        """The offset at which the next batch begins."""
        return self.offset + BATCH_HEADER_BYTES + self.body_bytes


class Torn(Exception):  # noqa: N818 - a finding, which the caller judges
    """There is no valid batch at `offset`; `why` is the reason."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(offset, why)
        self.offset: Final = offset
        self.why: Final = why


def _seed(salt: int, offset: int) -> int:
    return (salt + offset) & _U64


def header_of(number: int, frames: int, body: Buffer, salt: int, offset: int) -> bytes:
    """Return the 48 bytes of the header for `body` if the batch is written at `offset`."""
    node_invariant(0 < frames <= len(body), "batch {} has {} frames in {} bytes", number, frames, len(body))
    seed = _seed(salt, offset)
    checksum = xxhash.xxh3_64_intdigest(body, seed)
    fields = _LAYOUT.pack(MAGIC, BATCH_HEADER_BYTES, 0, number, len(body), frames, checksum)
    return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields, seed))


def read_header(data: memoryview, offset: int, end: int, salt: int) -> BatchHeader:
    """Return the valid header at `offset`, whose body ends at or before `end`.

    Raises:
        Torn: the header is incomplete or invalid, or its body does not fit.
    """
    if offset + BATCH_HEADER_BYTES > end:
        raise Torn(offset, f"{end - offset} bytes are left, a batch header has {BATCH_HEADER_BYTES}")
    magic, header_bytes, _, number, body_bytes, frames, checksum = _LAYOUT.unpack_from(data, offset)
    (own,) = _CHECKSUM.unpack_from(data, offset + _LAYOUT.size)
    if magic != MAGIC or header_bytes != BATCH_HEADER_BYTES:
        raise Torn(offset, f"no batch begins here (bytes {bytes(data[offset : offset + 8]).hex(' ')})")
    if xxhash.xxh3_64_intdigest(data[offset : offset + _LAYOUT.size], _seed(salt, offset)) != own:
        raise Torn(offset, "the checksum of a batch header is wrong")
    # A length beyond the file is wrong, even with a valid checksum.
    if body_bytes > end - offset - BATCH_HEADER_BYTES:
        raise Torn(offset, f"a batch of {body_bytes} bytes begins here, {end - offset - BATCH_HEADER_BYTES} are left")
    return BatchHeader(offset, number, body_bytes, frames, checksum)


def body_digest(header: BatchHeader, salt: int) -> xxhash.xxh3_64:
    """Return an empty digest with the seed of a batch. Updated with the whole body, it must equal the header's
    checksum.
    """
    return xxhash.xxh3_64(seed=_seed(salt, header.offset))


def _check_body(data: memoryview, header: BatchHeader, salt: int) -> None:
    if xxhash.xxh3_64_intdigest(data[header.start : header.end], _seed(salt, header.offset)) != header.checksum:
        raise Torn(header.offset, f"the checksum of batch {header.number} ({header.body_bytes} bytes) is wrong")


def walk(data: memoryview, offset: int, end: int, salt: int, number: int) -> Iterator[BatchHeader]:
    """Yield the valid batches from `offset` on; their numbers must be `number` and up, and the last must end at `end`.

    Raises:
        Torn: at the first offset without a valid batch of the right number.
    """
    while offset < end:
        header = read_header(data, offset, end, salt)
        # A gap in the numbers means that batches between two valid ones are missing.
        if header.number != number:
            raise Torn(offset, f"batch {header.number} is here, {number} is expected")
        _check_body(data, header, salt)
        yield header
        offset, number = header.end, number + 1


def find_later(
    data: memoryview, offset: int, end: int, salt: int, number: int, *, written: int | None = None
) -> BatchHeader | None:
    """Return the first valid batch after the bad one at `offset` whose number is at least `number`; None if there is
    none.

    Such a batch proves that the bad one was complete once.

    Args:
        end: where the last batch may end. written: where the data ends, for a file with a hole behind it; None for
            `end`. A batch begins before that, but file systems may keep zeros at its end as a hole.
    """
    # A search for the magic rather than a walk by lengths: the bad header's own length can't be trusted.
    raw = bytes(data[offset : end if written is None else written])
    at = raw.find(MAGIC, 1)
    while at >= 0:
        try:
            header = read_header(data, offset + at, end, salt)
            _check_body(data, header, salt)
            # Only a later number proves that the bad batch was written whole before it.
            if header.number >= number:
                return header
        except Torn:
            pass  # four bytes that look like the beginning of a batch
        at = raw.find(MAGIC, at + 1)
    return None
