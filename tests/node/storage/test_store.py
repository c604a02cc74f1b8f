"""Documents, numbers, expiry; rollback, drop, closing."""

from __future__ import annotations

import errno

import pytest

from headwater.errors import StorageError
from headwater.kernels import index
from headwater.node.storage.records import VBucketRecord
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import History, check_documents, check_view, commit, frames, open_store


def test_a_key_that_was_never_stored_is_none_in_its_vbucket_only() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    assert store.document(1, b"k") is None
    assert store.document(0, b"other") is None
    assert store.document(0, b"") is None


def test_a_deleted_key_is_a_tombstone_with_its_time() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    store.staging.deletion(0, b"k", b"kept", cas=2, rev_seqno=2, delete_time=9, datatype=4)
    found = store.document(0, b"k")
    assert found is not None
    assert (found.deleted, found.value, found.delete_time, found.rev_seqno) == (True, b"kept", 9, 2)
    assert (store.index.items(0), store.index.high_seqno(0)) == (0, 2)


def test_a_key_has_the_seqno_of_its_newest_version_in_each_collection() -> None:
    store = open_store(FaultyDisk())
    for _ in range(2):
        store.staging.mutation(0, b"k", b"value", cas=1, rev_seqno=1)
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1, collection=9)
    assert [store.seqno_of(0, b"k", number) for number in (0, 9, 8)] == [2, 3, 0]
    assert store.document_bytes(0, b"k") > store.document_bytes(0, b"k", 9) > store.document_bytes(0, b"k", 8) == 0
    store.staging.deletion(0, b"k", cas=1, rev_seqno=2, delete_time=7)
    assert store.seqno_of(0, b"k") == 4


def test_documents_whose_time_has_come_are_found_and_others_are_not() -> None:
    store = open_store(FaultyDisk())
    for number, expiry in enumerate((0, 50, 70, 60, 0)):
        store.staging.mutation(0, b"%d" % number, b"", cas=1, rev_seqno=1, expiry=expiry)
    store.staging.mutation(0, b"1", b"", cas=1, rev_seqno=1, expiry=90)
    commit(store)
    assert store.expired(0, 49) == []
    assert int(store.table[0, index.EXPIRY]) == 50
    assert store.expired(0, 55) == []
    assert int(store.table[0, index.EXPIRY]) == 60
    assert store.expired(0, 70) == [(b"2", 0), (b"3", 0)]
    assert store.expired(0, 70, limit=1) == [(b"2", 0)]
    assert store.expired(1, 70) == []


def test_a_rollback_brings_an_expiry_back() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1, expiry=50)
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1, expiry=0)
    assert store.expired(0, 60) == []
    store.rollback(0, 1)
    assert store.expired(0, 60) == [(b"k", 0)]


def test_a_rollback_restores_the_versions_before_and_survives_the_process() -> None:
    disk = FaultyDisk()
    store, history = open_store(disk), History()
    for number in range(30):
        key = b"%d" % (number % 7)
        history.add(store.staging.mutation(0, key, b"%d" % number, cas=number, rev_seqno=1), key, b"%d" % number)
    commit(store)
    cas = int(store.table[0, index.CAS])
    assert store.rollback(0, 12) == 12
    history.keep(12, 12)
    check_documents(store, 0, history)
    assert int(store.table[0, index.CAS]) == cas
    assert store.staging.mutation(0, b"new", b"", cas=99, rev_seqno=1) == 13
    history.add(13, b"new", b"")
    commit(store)
    disk.locks.clear()
    store = open_store(disk)
    check_documents(store, 0, history)
    check_view(store, 0, history)


@pytest.mark.parametrize("floor", [0, 4])
def test_the_seqno_that_a_rollback_leads_to_is_known_before(floor: int) -> None:
    for seqno in range(9):
        store = open_store(FaultyDisk())
        for given in (1, 3, 4, 7):
            store.staging.mutation(0, b"%d" % given, b"", seqno=given, cas=given, rev_seqno=1)
        store.table[0, index.FLOOR] = floor
        known = store.lowered_to(0, seqno)
        store.rollback(0, seqno)
        assert store.index.high_seqno(0) == known, seqno


def test_a_rollback_to_the_high_seqno_or_above_changes_nothing() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
    assert (store.rollback(0, 1), store.rollback(0, 9)) == (1, 9)
    assert store.index.high_seqno(0) == 1


def test_a_rollback_while_a_batch_with_the_rows_is_in_flight() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    for number in range(4):
        store.staging.mutation(0, b"k", b"%d" % number, cas=1, rev_seqno=1)
    batch = store.freeze()
    assert batch is not None
    store.rollback(0, 2)
    store.staging.mutation(0, b"k", b"other", cas=1, rev_seqno=1)
    store.write(batch)
    store.settle(batch)
    assert store.index.durable_seqno(0) == 2
    with store.view(0) as view:
        assert [one.value for one in frames(view)] == [b"1"]
    commit(store)
    disk.locks.clear()
    found = open_store(disk).document(0, b"k")
    assert found is not None
    assert (found.value, found.seqno) == (b"other", 3)


def test_a_dropped_vbucket_is_gone_and_can_begin_again() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.staging.record(0, VBucketRecord(1, ((3, 0),)))
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
    commit(store)
    store.drop(0)
    assert (store.index.items(0), store.index.high_seqno(0), int(store.table[0, index.STATE])) == (0, 0, 0)
    commit(store)
    disk.locks.clear()
    store = open_store(disk)
    assert store.recovered == {}
    assert store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1) == 1


def test_closing_commits_what_is_staged() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
    store.close()
    store.close()
    store = open_store(disk)
    assert (store.clean, store.index.durable_seqno(0)) == (True, 1)


def test_closing_that_fails_says_so_and_lets_the_folder_go() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
    disk.fail(1, errno.EIO, forever=True)
    with pytest.raises(StorageError):
        store.close()
    disk.heal()
    assert not open_store(disk).recovered
