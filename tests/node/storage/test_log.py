"""Appending, rolling, running out of room."""

from __future__ import annotations

import errno

import pytest

from headwater.errors import DiskFull, StorageError
from headwater.node.storage.segment import name_of
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import FOLDER, commit, open_store


def test_the_log_goes_on_in_a_new_segment_before_a_batch_would_not_fit() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    for number in range(40):
        store.stage_mutation(0, b"k", b"%d" % number * 500, cas=1, rev_seqno=1)
        commit(store)
        assert store._log.room >= 8192
    segments = store._log.segments
    assert len(segments) > 3
    for segment in segments[:-1]:
        assert len(disk.files()[segment.path]) == segment.end
    numbers = [segment.header.first_batch for segment in segments]
    assert numbers == sorted(numbers)
    assert sum(segment.batches for segment in segments) == 40


def test_after_a_failed_write_the_segment_ends_where_it_was_good() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.stage_mutation(0, b"k", b"good", cas=1, rev_seqno=1)
    commit(store)
    end = store._log.current.end
    store.stage_mutation(0, b"k", b"lost", cas=1, rev_seqno=1)
    batch = store.freeze()
    assert batch is not None
    disk.fail(2)  # the write succeeds, the sync does not
    with pytest.raises(StorageError, match="Input/output error; the batch was not written"):
        store.write(batch)
    assert b"lost" in disk.files()[FOLDER / name_of(1)]
    store.abandon(batch, RuntimeError())
    store.stage_mutation(0, b"k", b"next", cas=1, rev_seqno=1)
    commit(store)
    assert (store._log.segments[0].end, store._log.current.header.id) == (end, 2)
    disk.locks.clear()
    store = open_store(disk)
    found = store.document(0, b"k")
    assert found is not None
    assert (found.value, found.seqno) == (b"next", 2)


def test_a_disk_without_room_is_told_apart_from_a_broken_one() -> None:
    for number, kind in ((errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, StorageError)):
        disk = FaultyDisk()
        store = open_store(disk)
        store.stage_mutation(0, b"k", b"", cas=1, rev_seqno=1)
        batch = store.freeze()
        assert batch is not None
        disk.fail(1, number)
        with pytest.raises(StorageError) as caught:
            store.write(batch)
        assert type(caught.value) is kind


def test_an_empty_segment_is_not_sealed() -> None:
    store = open_store(FaultyDisk())
    store.seal()
    assert len(store._log.segments) == 1
    store.stage_mutation(0, b"k", b"", cas=1, rev_seqno=1)
    commit(store)
    store.seal()
    store.seal()
    assert len(store._log.segments) == 2
