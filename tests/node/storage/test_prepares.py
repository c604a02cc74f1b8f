"""The prepares of a store: staged, ended, and found again after everything that a log may go through."""

from __future__ import annotations

import errno

import pytest

from headwater.errors import DiskFull, StorageError
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from headwater.wire.dcp import Abort, Prepare
from headwater.wire.numbers import HELD_MAX
from tests.node.storage.model import commit, compact, open_store

VB = 1
K, OTHER = b"\0k", b"\x08k"  # as they begin with the id of a collection


def prepare(key: bytes = K, seqno: int = 0, cas: int = 1 << 16) -> Prepare:
    return Prepare(by_seqno=seqno, rev_seqno=1, durability_level=1, key=key, value=b"v", cas=cas)


def opened() -> Store:
    store = open_store(FaultyDisk())
    store.prepares.announce()
    return store


def waiting(store: Store) -> dict[bytes, int]:
    return {each.key: each.by_seqno for each in store.prepares.waiting(VB)}


def test_a_prepare_takes_the_next_seqno_or_its_own_and_is_found_by_its_key() -> None:
    store = opened()
    assert store.prepares.stage(VB, prepare()) == 1
    assert store.prepares.stage(VB, prepare(OTHER, seqno=7)) == 7
    assert waiting(store) == {K: 1, OTHER: 7} and store.index.high_seqno(VB) == 7
    found = store.prepares.find(VB, OTHER)
    assert found is not None and (found.key, found.by_seqno, found.vbucket, found.value) == (OTHER, 7, VB, b"v")
    assert store.prepares.find(VB, b"\0other") is None and store.document(VB, b"k") is None


def test_it_is_over_with_its_abort_or_with_the_mark_behind_its_document() -> None:
    store = opened()
    store.prepares.stage(VB, prepare())
    store.prepares.stage(VB, prepare(OTHER))
    assert store.prepares.stage_abort(VB, Abort(key=K, prepared_seqno=1, abort_seqno=0), 50) == 3
    assert waiting(store) == {OTHER: 2} and store.prepares.find(VB, K) is None
    store.staging.mutation(VB, b"k", b"v", cas=1 << 16, rev_seqno=1, collection=8)
    store.prepares.stage_over(VB, OTHER, 50)
    assert waiting(store) == {} and store.index.high_seqno(VB) == 4
    assert [each.seqno for each in [store.document(VB, b"k", 8)] if each is not None] == [4]


def test_a_second_prepare_of_a_key_takes_the_place_of_the_first() -> None:
    store = opened()
    for _ in range(2):
        store.prepares.stage(VB, prepare())
    assert waiting(store) == {K: 2}


def test_what_waits_is_told_by_the_log_after_a_compaction_and_after_it_was_opened_again() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.prepares.announce()
    for number in range(40):  # more than a look expects
        store.prepares.stage(VB, prepare(b"\0%d" % number))
    store.prepares.stage_abort(VB, Abort(key=b"\x007", prepared_seqno=8, abort_seqno=0), 50)
    expected = {b"\0%d" % number: number + 1 for number in range(40) if number != 7}
    compact(store)
    assert waiting(store) == expected
    store.close()
    assert waiting(open_store(disk)) == expected


def test_a_rollback_between_a_prepare_and_its_end_lets_it_wait_again() -> None:
    store = opened()
    store.prepares.stage(VB, prepare())
    store.prepares.stage_abort(VB, Abort(key=K, prepared_seqno=1, abort_seqno=0), 50)
    commit(store)
    assert store.rollback(VB, 1) == 1 and waiting(store) == {K: 1}


def test_numbers_that_leave_no_next_one_and_seqnos_that_were_given_are_refused() -> None:
    store = opened()
    store.prepares.stage(VB, prepare(seqno=5))
    with pytest.raises(StorageError, match="seqno 5 is not above the high seqno 5"):
        store.prepares.stage(VB, prepare(OTHER, seqno=5))
    with pytest.raises(StorageError, match="too high"):
        store.prepares.stage(VB, prepare(OTHER, cas=HELD_MAX + 1))
    with pytest.raises(StorageError, match="seqno 4 is not above the high seqno 5"):
        store.prepares.stage_abort(VB, Abort(key=K, prepared_seqno=5, abort_seqno=4), 50)
    assert waiting(store) == {K: 5}


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageError)])
def test_that_prepares_come_is_written_down_once_or_refused(number: int, kind: type[StorageError]) -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    disk.fail(1, number, forever=True)  # also with a piece of the reserve
    with pytest.raises(kind):
        store.prepares.announce()
    assert not store.log.manifest.content.prepares
    disk.heal()
    store.prepares.announce()
    generation = store.log.manifest.content.generation
    store.prepares.announce()
    assert (store.log.manifest.content.prepares, store.log.manifest.content.generation) == (True, generation)
