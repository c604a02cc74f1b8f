"""The segment header, byte by byte, and a segment's life."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headwater.errors import CorruptStore
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHeader, name_of
from headwater.testing.faults import FaultyDisk

FOLDER, PATH = Path("/store"), Path("/store/0000000005.log")
HEADER = SegmentHeader(bytes(range(16)), 5, 0x0123456789ABCDEF, 3)
# the worked example of docs/storage.md: segment 5, whose first batch is number 3
EXAMPLE = bytes.fromhex(
    "4857534547000001 000102030405060708090a0b0c0d0e0f 0000000000000005 0123456789abcdef 0000000000000003"
    "0000000000000000 631ba58052964d8f".replace(" ", "")
)


def test_the_example_of_the_documentation() -> None:
    assert HEADER.encode() == EXAMPLE
    assert SegmentHeader.decode(EXAMPLE, PATH) == HEADER
    assert name_of(5) == "0000000005.log"


def test_every_flipped_bit_and_every_cut_is_refused_with_the_file() -> None:
    for bit in range(8 * SEGMENT_HEADER_BYTES):
        wrong = bytearray(EXAMPLE)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptStore, match=PATH.name):
            SegmentHeader.decode(bytes(wrong), PATH)
    for length in range(SEGMENT_HEADER_BYTES):
        with pytest.raises(CorruptStore, match="ends inside its header"):
            SegmentHeader.decode(EXAMPLE[:length], PATH)


def test_a_new_segment_is_on_disk_name_and_all_and_has_its_room() -> None:
    disk = FaultyDisk()
    segment = Segment.create(disk, FOLDER, HEADER, 4096, 1024)
    assert (segment.size, segment.end, segment.reserved, segment.next_number) == (4096, SEGMENT_HEADER_BYTES, 1024, 3)
    assert disk.files()[PATH][:SEGMENT_HEADER_BYTES] == EXAMPLE


def test_a_segment_that_can_not_be_made_leaves_no_file() -> None:
    for nth in range(1, 6):
        disk = FaultyDisk()
        disk.fail(nth, errno.ENOSPC)
        with pytest.raises(OSError, match="No space"):
            Segment.create(disk, FOLDER, HEADER, 4096, 1024)
        assert disk.files() == {}


def test_a_sealed_segment_is_as_long_as_its_batches_and_takes_no_more() -> None:
    disk = FaultyDisk()
    segment = Segment.create(disk, FOLDER, HEADER, 4096, 1024)
    segment.end = 100
    segment.seal()
    assert len(disk.files()[PATH]) == len(segment.memory) == 100
    with pytest.raises(ValueError, match="is sealed"):
        segment.writable()
