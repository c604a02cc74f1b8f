"""A pass over the log finds each byte that is not what was written, says where, and reads everything once."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.node.storage.batch import BATCH_HEADER_BYTES
from headwater.node.storage.scrub import Damage
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES
from headwater.node.storage.store import Store

SLICE = 1 << 10
VALUE = b"v" * 3000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Three sealed batches of one document, and one in the open segment."""
    made = Store.open(tmp_path, vbuckets=2, segment_bytes=1 << 20, arena_bytes=1 << 16)
    for number in range(4):
        if number == 3:
            made.log.seal()
        made.staging.mutation(number % 2, b"k%d" % number, VALUE, cas=1, rev_seqno=1)
        commit(made)
    yield made
    made.close()


def commit(store: Store) -> None:
    batch = store.freeze()
    assert batch is not None
    store.write(batch)
    store.settle(batch)


def flip(store: Store, offset: int, segment: int = 0) -> Path:
    path = store.log.segments[segment].path
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))
        os.fsync(file.fileno())
    return path


def damage(store: Store) -> list[Damage]:
    return [found for found in store.scrub(SLICE) if isinstance(found, Damage)]


def starts(store: Store) -> list[int]:
    """Where the batches of the first segment begin."""
    size = (store.log.segments[0].end - SEGMENT_HEADER_BYTES) // 3
    return [SEGMENT_HEADER_BYTES + number * size for number in range(3)]


def test_a_sound_log_is_read_whole_in_slices(store: Store) -> None:
    read = list(store.scrub(SLICE))
    assert sum(size for size in read if isinstance(size, int)) == store.log.bytes - 2 * SEGMENT_HEADER_BYTES
    assert all(isinstance(size, int) and 0 < size < 2 * SLICE for size in read)


@pytest.mark.parametrize("place", [BATCH_HEADER_BYTES, BATCH_HEADER_BYTES + 60, BATCH_HEADER_BYTES + 2000])
def test_a_flipped_byte_in_a_body_is_damage_of_that_batch_alone(store: Store, place: int) -> None:
    first, second, third = starts(store)
    path = flip(store, second + place)
    (found,) = damage(store)
    assert (found.segment.path, found.offset, found.end) == (path, second, third)
    assert str(found) == f"{path}: byte {second}: the checksum of batch 1 ({third - second - 48} bytes) is wrong"
    assert first < second


@pytest.mark.parametrize("place", [0, 12, 20, 33, 45])
def test_a_flipped_byte_in_a_header_spoils_all_up_to_the_next_batch(store: Store, place: int) -> None:
    _, second, third = starts(store)
    flip(store, second + place)
    (found,) = damage(store)
    assert (found.offset, found.end) == (second, third)


def test_damage_of_the_last_batch_ends_with_the_segment(store: Store) -> None:
    third = starts(store)[2]
    flip(store, third + 20)
    (found,) = damage(store)
    assert (found.offset, found.end) == (third, store.log.segments[0].end)


def test_the_segment_header_and_the_open_segment_are_looked_at_too(store: Store) -> None:
    flip(store, 20)
    flip(store, SEGMENT_HEADER_BYTES + 100, segment=1)
    assert [(found.segment, found.offset) for found in damage(store)] == [
        (store.log.segments[0], 0),
        (store.log.segments[1], SEGMENT_HEADER_BYTES),
    ]
