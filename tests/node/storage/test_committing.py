"""Batches: durable one after the other, or lost with all that lies behind them."""

from __future__ import annotations

import pytest

from headwater.errors import StorageError
from headwater.kernels import index
from headwater.node.storage.records import VBucketRecord
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, frames, open_store


def test_changes_that_gather_during_a_write_wait_for_the_next_batch() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"first", b"", cas=1, rev_seqno=1)
    batch = store.freeze()
    assert batch is not None
    store.staging.mutation(0, b"second", b"", cas=1, rev_seqno=1)
    with pytest.raises(StorageError, match="in flight"):
        store.freeze()
    store.write(batch)
    store.settle(batch)
    assert (store.index.durable_seqno(0), store.index.high_seqno(0)) == (1, 2)
    with store.view(0) as view:
        assert [one.key for one in frames(view)] == [b"first"]
    commit(store)
    assert store.index.durable_seqno(0) == 2
    assert store.freeze() is None


def test_a_batch_that_is_lost_takes_everything_behind_it_along() -> None:
    store = open_store(FaultyDisk())
    store.staging.record(0, VBucketRecord(1))
    store.staging.mutation(0, b"k", b"old", cas=1, rev_seqno=1)
    commit(store)
    store.staging.mutation(0, b"k", b"new", cas=7, rev_seqno=2)
    store.staging.record(1, VBucketRecord(2))
    batch = store.freeze()
    assert batch is not None
    store.staging.deletion(0, b"k", cas=8, rev_seqno=3, delete_time=1)
    store.staging.record(0, VBucketRecord(4))
    assert store.abandon(batch, RuntimeError()) == [0, 1]
    found = store.document(0, b"k")
    assert found is not None
    assert (found.value, found.durable) == (b"old", True)
    assert [int(state) for state in store.table[:, index.STATE]] == [1, 0]
    assert store.index.high_seqno(0) == 1
    assert int(store.table[0, index.CAS]) == 8  # never given again


def test_a_rollback_and_a_drop_that_are_lost_are_as_if_never_asked_for() -> None:
    store = open_store(FaultyDisk())
    for vb in (0, 1):
        store.staging.record(vb, VBucketRecord(1))
        for number in range(5):
            store.staging.mutation(vb, b"k", b"%d" % number, cas=1, rev_seqno=1)
    commit(store)
    store.rollback(0, 2)
    store.drop(1)
    store.staging.mutation(0, b"k", b"other", cas=1, rev_seqno=1)
    batch = store.freeze()
    assert batch is not None
    assert store.abandon(batch, RuntimeError()) == [0, 1]
    for vb in (0, 1):
        found = store.document(vb, b"k")
        assert found is not None
        assert (found.value, found.seqno, store.index.high_seqno(vb)) == (b"4", 5, 5)
    assert [int(state) for state in store.table[:, index.STATE]] == [1, 1]


def test_bytes_that_are_no_frames_are_never_written() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    arena, used = store.staging.room()
    arena[used : used + 30] = 255
    store.staging.use(used + 30)
    batch = store.freeze()
    assert batch is not None
    with pytest.raises(StorageError, match="not whole frames"):
        store.write(batch)
    store.abandon(batch, RuntimeError())
    commit(store)
