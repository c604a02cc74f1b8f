"""Documents, numbers, expiry."""

from __future__ import annotations

from headwater.kernels import index
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, open_store


def test_a_key_that_was_never_stored_is_none_in_its_vbucket_only() -> None:
    store = open_store(FaultyDisk())
    store.stage_mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    assert store.document(1, b"k") is None
    assert store.document(0, b"other") is None
    assert store.document(0, b"") is None


def test_a_deleted_key_is_a_tombstone_with_its_time() -> None:
    store = open_store(FaultyDisk())
    store.stage_mutation(0, b"k", b"v", cas=1, rev_seqno=1)
    store.stage_deletion(0, b"k", b"kept", cas=2, rev_seqno=2, delete_time=9, datatype=4)
    found = store.document(0, b"k")
    assert found is not None
    assert (found.deleted, found.value, found.delete_time, found.rev_seqno) == (True, b"kept", 9, 2)
    assert (store.items(0), store.high_seqno(0)) == (0, 2)


def test_documents_whose_time_has_come_are_found_and_others_are_not() -> None:
    store = open_store(FaultyDisk())
    for number, expiry in enumerate((0, 50, 70, 60, 0)):
        store.stage_mutation(0, b"%d" % number, b"", cas=1, rev_seqno=1, expiry=expiry)
    store.stage_mutation(0, b"1", b"", cas=1, rev_seqno=1, expiry=90)
    commit(store)
    assert store.expired(0, 49) == []
    assert int(store.table[0, index.EXPIRY]) == 50
    assert store.expired(0, 55) == []
    assert int(store.table[0, index.EXPIRY]) == 60
    assert store.expired(0, 70) == [b"2", b"3"]
    assert store.expired(0, 70, limit=1) == [b"2"]
    assert store.expired(1, 70) == []


def test_a_rollback_brings_an_expiry_back() -> None:
    store = open_store(FaultyDisk())
    store.stage_mutation(0, b"k", b"", cas=1, rev_seqno=1, expiry=50)
    store.stage_mutation(0, b"k", b"", cas=1, rev_seqno=1, expiry=0)
    assert store.expired(0, 60) == []
    store.rollback(0, 1)
    assert store.expired(0, 60) == [b"k"]
