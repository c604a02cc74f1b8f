"""The batch record, byte by byte."""

from __future__ import annotations

import pytest
import xxhash

from headwater.node.storage.batch import BATCH_HEADER_BYTES, Torn, find_later, header_of, read_header, walk
from headwater.node.storage.records import drop_frame

SALT = 0x0123456789ABCDEF
BODY = drop_frame(7)
# the worked example of docs/storage.md: batch 3, which drops vbucket 7, at byte 64 of a segment
EXAMPLE = bytes.fromhex(
    "48574231 0030 0000 0000000000000003 0000000000000018 0000000000000001 4f52739ddb223f7e 180acbdd85787f3c"
    "80 f2 0000 00 00 0007 00000000 00000000 0000000000000000".replace(" ", "")
)


def written(number: int = 3, offset: int = 64, body: bytes = BODY) -> bytes:
    return header_of(number, 1, body, SALT, offset) + body


def at_64(data: bytes) -> memoryview:
    return memoryview(bytes(64) + data)


def test_the_example_of_the_documentation() -> None:
    assert written() == EXAMPLE
    (found,) = walk(at_64(EXAMPLE), 64, 64 + len(EXAMPLE), SALT, 3)
    assert (found.number, found.body_bytes, found.frames, found.start, found.end) == (3, 24, 1, 112, 136)


def test_checksums_are_xxh3_64_seeded_by_salt_and_place() -> None:
    seed = SALT + 64
    assert int.from_bytes(EXAMPLE[32:40], "big") == xxhash.xxh3_64_intdigest(EXAMPLE[48:], seed)
    assert int.from_bytes(EXAMPLE[40:48], "big") == xxhash.xxh3_64_intdigest(EXAMPLE[:40], seed)


def test_a_batch_is_valid_at_its_own_place_and_in_its_own_segment_only() -> None:
    for salt, offset in ((SALT, 65), (SALT, 63), (SALT + 1, 64)):
        with pytest.raises(Torn):
            list(walk(memoryview(bytes(offset) + EXAMPLE), offset, offset + len(EXAMPLE), salt, 3))


def test_every_flipped_bit_is_found() -> None:
    for bit in range(8 * len(EXAMPLE)):
        wrong = bytearray(EXAMPLE)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Torn):
            list(walk(at_64(bytes(wrong)), 64, 64 + len(wrong), SALT, 3))


def test_every_cut_is_found() -> None:
    for length in range(1, len(EXAMPLE)):
        with pytest.raises(Torn) as caught:
            list(walk(at_64(EXAMPLE[:length]), 64, 64 + length, SALT, 3))
        assert caught.value.offset == 64


def test_a_length_beyond_the_end_is_refused_before_anything_is_read() -> None:
    with pytest.raises(Torn, match="24 bytes begins here, 23 are left"):
        read_header(at_64(EXAMPLE), 64, 64 + BATCH_HEADER_BYTES + 23, SALT)


def test_numbers_must_follow_each_other() -> None:
    with pytest.raises(Torn, match="batch 3 is here, 4 is expected"):
        list(walk(at_64(EXAMPLE), 64, 64 + len(EXAMPLE), SALT, 4))


def test_a_later_batch_is_found_at_any_distance_and_only_a_later_one() -> None:
    gap = b"HWB1 looks like a batch" * 3
    data = at_64(bytes(100) + gap + written(9, 64 + 100 + len(gap)))
    later = find_later(data, 64, len(data), SALT, 4)
    assert later is not None
    assert (later.number, later.offset) == (9, 64 + 100 + len(gap))
    assert find_later(data, 64, len(data), SALT, 10) is None
    assert find_later(data, 64, len(data) - 1, SALT, 4) is None
