"""A segment: one file of the log. A header of 64 bytes, then batches (batch.py) to its end.

    offset  0          8           24  32    40           48    56
            HWSEG 0 0 1  store id   id  salt  first batch  size  checksum (XXH3-64 of bytes 0 to 55)

The store id and the id reveal a file that was swapped, or comes from another store; the manifest has the salt as well.
A file is created in its full size, as a hole that takes no space, so that it needs only one memory map. The part for
the next batch is reserved on disk before changes are staged for it. Sealing cuts the file at its last batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from headwater.errors import CorruptStore
from headwater.invariants import node_invariant
from headwater.kernels.builds import debugging
from headwater.kernels.guard import register
from headwater.node.storage.disk import Disk, File

__all__ = ["MAGIC", "SEGMENT_HEADER_BYTES", "Segment", "SegmentHeader", "name_of"]

MAGIC: Final = b"HWSEG\x00\x00\x01"
_LAYOUT = Struct(">8s16sQQQQ")
_CHECKSUM = Struct(">Q")
SEGMENT_HEADER_BYTES: Final = _LAYOUT.size + _CHECKSUM.size
UNREGISTERED: Final = -1
ROUNDING_BYTES, ROUNDING_PARTS = 64 << 10, 64


def name_of(number: int) -> str:
    """Return the file name of a segment."""
    return f"{number:010d}.log"


@dataclass(slots=True, frozen=True)
class SegmentHeader:
    """A segment's identity.

    Attributes:
        store: the store's id, 16 bytes.
        id: the segment's id.
        salt: a random number that is part of the seed of its checksums.
        first_batch: the number of its first batch.
        size: the size of the file until it is sealed; 0 in a file of an older version.
    """

    store: bytes
    id: int
    salt: int
    first_batch: int
    size: int = 0

    def encode(self) -> bytes:
        """Return the first 64 bytes of the file."""
        fields = _LAYOUT.pack(MAGIC, self.store, self.id, self.salt, self.first_batch, self.size)
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decode(cls, data: bytes, path: Path) -> SegmentHeader:
        """Return the header in the first 64 bytes of the file at `path`. Raises CorruptStore if these are no valid
        header.
        """
        if len(data) < SEGMENT_HEADER_BYTES:
            raise CorruptStore(path, len(data), f"the file ends inside its header of {SEGMENT_HEADER_BYTES} bytes")
        magic, store, number, salt, first_batch, size = _LAYOUT.unpack_from(data)
        if magic != MAGIC:
            raise CorruptStore(path, 0, f"not a segment of format 1 (begins with {magic.hex(' ')})")
        # The salt seeds the checksum of every batch behind, so it must be right before any batch is read.
        if _CHECKSUM.unpack_from(data, _LAYOUT.size)[0] != xxhash.xxh3_64_intdigest(data[: _LAYOUT.size]):
            raise CorruptStore(path, 0, "the checksum of the segment header is wrong")
        return cls(store, number, salt, first_batch, size)


class Segment:
    """A segment in use, open for writing or sealed.

    Attributes:
        path: the path of its file.
        header: the identity of the segment.
        file: the open file; None once it is sealed or closed.
        memory: the whole file, mapped.
        end: the end of its last durable batch.
        reserved: the offset up to which space on disk is reserved.
        slot: its slot in the store's `segments` table; UNREGISTERED until one of its batches is visible.
        born: the time at which it got its slot, by the counter of slots.py; readers that began earlier don't refer to
            it.
        batches: the number of its batches.
    """

    def __init__(self, path: Path, header: SegmentHeader, file: File) -> None:
        self.path = path
        self.header = header
        self.file: File | None = file
        self.memory: NDArray[np.uint8] = self._readable_memory(file.map())
        self.end = SEGMENT_HEADER_BYTES
        self.reserved: int = SEGMENT_HEADER_BYTES
        self.slot = UNREGISTERED
        self.born = 0
        self.batches = 0

    @staticmethod
    def _readable_memory(memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Register memory as readable for kernels, which the debug build checks; return the memory."""
        if debugging():
            register(memory)
        return memory

    @classmethod
    def create(cls, disk: Disk, folder: Path, header: SegmentHeader, size: int, reserve: int) -> Segment:
        """Create the file with `size` bytes, of which `reserve` are reserved on disk; its name is durable on return.

        Raises:
            OSError: that failed; the file was removed again.
        """
        path = folder / name_of(header.id)
        file = disk.create(path, size)
        try:
            file.reserve(0, reserve)
            file.write([header.encode()], 0)
            # The file and its name are on the disk before a manifest names it: otherwise a power cut would leave a
            # manifest with a missing segment, which no start accepts.
            file.sync()
            disk.sync_directory(folder)
            segment = cls(path, header, file)
        except BaseException:
            file.close()
            disk.remove(path)
            raise
        segment.reserved = reserve
        return segment

    @property
    def size(self) -> int:
        """The number of bytes that the file can hold."""
        return len(self.memory)

    @property
    def next_number(self) -> int:
        """The number of the next batch."""
        return self.header.first_batch + self.batches

    def find_room(self) -> None:
        """Set `reserved` to the space that an earlier process has reserved in an open segment, which is available even
        on a full disk.
        """
        allocated = self.writable().allocated()  # from the beginning on, and some blocks of the file system's own
        # The file system's own blocks count in what it reports; room that is not there must not be promised.
        allocated -= ROUNDING_BYTES + allocated // ROUNDING_PARTS
        self.reserved = max(self.end, min(self.size, allocated))

    def writable(self) -> File:
        """Return the open file. Raises ValueError for a sealed segment."""
        if self.file is None:
            raise ValueError(f"{self.path} is sealed")
        return self.file

    def seal(self) -> None:
        """Stop writing, and cut the file at its last batch. Raises OSError if the cut fails; the segment is sealed
        anyway.
        """
        size = self.size
        node_invariant(self.end <= size, "{}: sealed at byte {} of {}", self.path, self.end, size)
        try:
            # What lies behind the last durable batch is the rest of a failed write, or a hole; the manifest's length
            # excludes it even where this fails.
            self.writable().truncate(self.end)
            self.memory = self._readable_memory(self.memory[: self.end])
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptor; the memory stays readable while it is referenced."""
        if self.file is not None:
            self.file.close()
            self.file = None
