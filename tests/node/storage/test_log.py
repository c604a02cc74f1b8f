"""Appending, rolling, running out of room."""

from __future__ import annotations

import errno

import pytest

from headwater.errors import DiskFull, StorageError
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.segment import name_of
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import FOLDER, commit, compact, open_store


def test_the_log_goes_on_in_a_new_segment_before_a_batch_would_not_fit() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    for number in range(40):
        store.staging.mutation(0, b"k", b"%d" % number * 500, cas=1, rev_seqno=1)
        commit(store)
        assert store.log.room >= 8192
    segments = store.log.segments
    assert len(segments) > 3
    for segment in segments[:-1]:
        assert len(disk.files()[segment.path]) == segment.end
    numbers = [segment.header.first_batch for segment in segments]
    assert numbers == sorted(numbers)
    assert sum(segment.batches for segment in segments) == 40


def test_after_a_failed_write_the_segment_ends_where_it_was_good() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.staging.mutation(0, b"k", b"good", cas=1, rev_seqno=1)
    commit(store)
    end = store.log.current.end
    store.staging.mutation(0, b"k", b"lost", cas=1, rev_seqno=1)
    batch = store.freeze()
    assert batch is not None
    disk.fail(2)  # the write succeeds, the sync does not
    with pytest.raises(StorageError, match="Input/output error; the batch was not written"):
        store.write(batch)
    assert b"lost" in disk.files()[FOLDER / name_of(1)]
    store.abandon(batch, RuntimeError())
    store.staging.mutation(0, b"k", b"next", cas=1, rev_seqno=1)
    commit(store)
    assert (store.log.segments[0].end, store.log.current.header.id) == (end, 2)
    disk.locks.clear()
    store = open_store(disk)
    found = store.document(0, b"k")
    assert found is not None
    assert (found.value, found.seqno) == (b"next", 2)


def test_a_disk_without_room_is_told_apart_from_a_broken_one() -> None:
    for number, kind in ((errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageError)):
        disk = FaultyDisk()
        store = open_store(disk)
        store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
        batch = store.freeze()
        assert batch is not None
        disk.fail(1, number)
        with pytest.raises(StorageError) as caught:
            store.write(batch)
        assert type(caught.value) is kind


def test_an_empty_segment_is_not_sealed() -> None:
    store = open_store(FaultyDisk())
    store.log.seal()
    assert len(store.log.segments) == 1
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
    commit(store)
    store.log.seal()
    store.log.seal()
    assert len(store.log.segments) == 2


MIB = 1 << 20


def grown(disk: FaultyDisk, mebibytes: int) -> Store:
    """A store whose batches may have 8 MiB, with so much in it."""
    store = open_store(disk, arena_bytes=8 * MIB, segment_bytes=64 * MIB)
    for number in range(2 * mebibytes):
        store.staging.mutation(0, b"%d" % number, bytes(MIB // 2), cas=1, rev_seqno=1)
        if number % 2 or store.full:
            commit(store)
    commit(store)
    return store


def test_an_empty_store_takes_little_of_the_disk_and_more_as_it_grows() -> None:
    disk = FaultyDisk(capacity=4096 * MIB)
    store = open_store(disk, arena_bytes=64 * MIB, segment_bytes=256 * MIB)
    assert disk.capacity is not None and disk.capacity - disk.free(FOLDER) < 5 * MIB // 2
    store.close()
    store = grown(disk, 20)
    assert store.log.reserve.held >= 20 * MIB and store.log.room >= 2 * MIB


@pytest.mark.parametrize("kibibytes", [2600, 2700, 3000, 4000, 6000])
@pytest.mark.parametrize("size", [0, 20, 50_000])
def test_a_small_store_on_a_full_disk_is_compacted_and_takes_documents_again(size: int, kibibytes: int) -> None:
    """Its reserve is smaller, and so is all that it may have to write anew."""
    store = open_store(FaultyDisk(capacity=kibibytes << 10), arena_bytes=8 * MIB, segment_bytes=64 * MIB)
    count = 0
    while not store.full:
        store.staging.mutation(0, b"%06d" % count, bytes(size), cas=1, rev_seqno=1)
        count += 1
        if count % (1 + 10_000 // max(size, 20)) == 0:
            commit(store)
    commit(store)
    deleted = 0
    while deleted < count and store.staging.may_delete:
        store.staging.deletion(0, b"%06d" % deleted, cas=1, rev_seqno=2, delete_time=1)
        deleted += 1
        if deleted % 50 == 0:
            commit(store)
    before = store.log.bytes
    compact(store)
    assert count > 5 and deleted > count // 8 and store.log.bytes < before
    store.staging.mutation(0, b"again", bytes(size), cas=1, rev_seqno=1)
    commit(store)


def test_a_small_store_on_a_full_disk_starts_and_is_compacted_however_often_it_crashes() -> None:
    """Each start adds a branch to the record of each vbucket, and so to what has to be written anew."""
    options = {"vbuckets": 1024, "arena_bytes": 8 * MIB, "segment_bytes": 64 * MIB}
    disk = FaultyDisk(capacity=2650 << 10)
    store = open_store(disk, **options)
    count = 0
    for start in range(26):
        record = VBucketRecord(1, tuple((number + 1, number) for number in range(min(start, 24), -1, -1)))
        for vb in range(1024):
            store.staging.record(vb, record)
        commit(store)
        while not start and not store.full:
            store.staging.mutation(count % 1024, b"%06d" % count, bytes(100), cas=1, rev_seqno=1)
            count += 1
            if count % 100 == 0:
                commit(store)
        commit(store)
        compact(store)
        assert store.staging.may_delete
        store.close(clean=False)
        store = open_store(disk, **options)


def test_a_batch_of_records_that_is_larger_than_the_room_for_documents_gets_its_room() -> None:
    """As at a start with many vbuckets after a crash: as documents had room, no more was asked for."""
    store = open_store(FaultyDisk(), vbuckets=1024, arena_bytes=8 * MIB)
    record = VBucketRecord(1, tuple((number, number) for number in range(20)))
    for vb in range(1024):
        store.staging.record(vb, record)
    commit(store)
    assert store.log.bytes > 300 << 10 and not store.full


def test_on_a_small_disk_no_segment_is_larger_than_what_the_reserve_can_take() -> None:
    store = grown(FaultyDisk(capacity=64 * MIB), 30)
    assert len(store.log.segments) > 6
    assert all(segment.end <= 5 * MIB for segment in store.log.segments)
    assert store.log.reserve.held >= max(segment.end for segment in store.log.segments)


def test_a_change_that_is_larger_than_the_room_that_was_set_aside_gets_its_room() -> None:
    store = open_store(FaultyDisk(capacity=64 * MIB), arena_bytes=8 * MIB)
    assert store.log.room < 2 * MIB
    store.staging.mutation(0, b"large", bytes(6 * MIB), cas=1, rev_seqno=1)
    commit(store)
    assert store.index.durable_seqno(0) == 1


def test_one_that_is_larger_than_the_disk_is_refused_with_numbers_and_smaller_ones_are_taken() -> None:
    store = open_store(FaultyDisk(capacity=6 * MIB), arena_bytes=8 * MIB)
    with pytest.raises(DiskFull, match=r"no room for 6291\d{3} more bytes, \d+ are free"):
        store.staging.mutation(0, b"large", bytes(6 * MIB), cas=1, rev_seqno=1)
    store.staging.mutation(0, b"small", b"", cas=1, rev_seqno=1)
    commit(store)
    assert store.index.durable_seqno(0) == 1 and not store.full


def test_what_was_set_aside_before_a_crash_is_known_after_it() -> None:
    disk = FaultyDisk(capacity=64 * MIB)
    store = grown(disk, 4)
    room = store.log.room
    assert room > MIB
    disk.capacity = sum(inode.reserved for inode in disk._names.values())
    disk.locks.clear()
    store = open_store(disk, arena_bytes=8 * MIB, segment_bytes=64 * MIB)
    assert store.log.room >= room * 3 // 4 and not store.full
