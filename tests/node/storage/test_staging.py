"""Staging, committing and losing a batch."""

from __future__ import annotations

import pytest

from headwater.errors import DiskFull, StorageError
from headwater.kernels import index
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.staging import LACKING_SECONDS, ArenaFull
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, open_store


def test_what_is_staged_is_there_at_once_and_durable_with_its_batch() -> None:
    store = open_store(FaultyDisk())
    assert store.staging.mutation(0, b"k", b"v", cas=5, rev_seqno=1, flags=2, expiry=3, datatype=1) == 1
    found = store.document(0, b"k")
    assert found is not None
    assert (found.value, found.flags, found.expiry, found.datatype, found.durable) == (b"v", 2, 3, 1, False)
    assert (store.index.high_seqno(0), store.index.durable_seqno(0), store.index.items(0)) == (1, 0, 1)
    with store.view(0) as view:
        assert view.nothing
    commit(store)
    found = store.document(0, b"k")
    assert found is not None
    assert found.durable
    assert store.index.durable_seqno(0) == 1


def test_a_full_arena_asks_for_a_commit() -> None:
    store = open_store(FaultyDisk())
    with pytest.raises(ArenaFull, match="try again after the next commit"):
        for _ in range(20):
            store.staging.mutation(0, b"k", b"x" * 900, cas=1, rev_seqno=1)
    commit(store)
    store.staging.mutation(0, b"k", b"x" * 900, cas=1, rev_seqno=1)


@pytest.mark.parametrize(("more_room", "seconds"), [(40 << 20, 2), (0, LACKING_SECONDS + 2)])
def test_a_disk_without_room_for_a_large_document_says_so_until_it_has_or_nobody_asks_any_more(
    more_room: int, seconds: float
) -> None:
    disk, now = FaultyDisk(capacity=6 << 20), [100.0]
    store = Store.open("/store", vbuckets=2, disk=disk, clock=lambda: now[0])
    with pytest.raises(DiskFull):
        store.staging.mutation(0, b"large", bytes(20 << 20), cas=1, rev_seqno=1)
    now[0] += 2
    assert store.staging.lacks_room and not store.full
    store.staging.mutation(0, b"small", bytes(100), cas=1, rev_seqno=1)
    commit(store)
    disk.capacity = (6 << 20) + more_room
    now[0] += seconds
    assert not store.staging.lacks_room


def test_a_full_disk_refuses_documents_but_still_takes_a_state() -> None:
    disk = FaultyDisk(capacity=20_000)
    store = open_store(disk)
    with pytest.raises(DiskFull, match="writing resumes by itself"):
        for _ in range(100):
            store.staging.mutation(0, b"k", b"x" * 2000, cas=1, rev_seqno=1)
            commit(store)
    assert store.full
    store.staging.record(0, VBucketRecord(4))
    commit(store)
    assert store.recovered == {}
    assert int(store.table[0, index.STATE]) == 4


def test_a_seqno_must_be_above_the_high_seqno() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"", seqno=9, cas=1, rev_seqno=1)
    with pytest.raises(StorageError, match="seqno 9 is not above the high seqno 9"):
        store.staging.mutation(0, b"k", b"", seqno=9, cas=1, rev_seqno=1)
