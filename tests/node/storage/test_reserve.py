"""Room that is kept for the day on which the disk is full."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import DiskFull
from headwater.node.storage.compaction import SLACK_BYTES
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.reserve import NAME, Reserve
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, compact, open_store

FOLDER = Path("/store")


def started(disk: FaultyDisk, size: int = 1000) -> Reserve:
    made = Reserve(disk, FOLDER, size)
    made.start()
    return made


def test_it_takes_what_there_is_and_the_rest_later() -> None:
    disk = FaultyDisk(capacity=700)
    reserve = started(disk)
    assert not reserve.fill() and 500 <= reserve.held <= 700 and disk.free(FOLDER) < 500
    disk.capacity = 5000
    assert reserve.fill() and reserve.held == 1000 and disk.free(FOLDER) == 4000


def test_what_it_gives_is_free_and_missing_until_it_is_filled_again() -> None:
    disk = FaultyDisk(capacity=1000)
    reserve = started(disk)
    assert reserve.fill() and disk.free(FOLDER) == 0
    assert reserve.give(300) and (reserve.held, disk.free(FOLDER)) == (700, 300)
    assert reserve.give(9000) and not reserve.give(1)
    assert (reserve.held, disk.free(FOLDER)) == (0, 1000)
    assert reserve.fill()


def test_what_is_a_hole_in_a_copy_of_the_folder_is_set_aside_again() -> None:
    disk = FaultyDisk(capacity=1000)
    disk.create(FOLDER / NAME, 1000).close()  # of its bytes none are on the disk
    reserve = started(disk)
    assert (reserve.held, disk.free(FOLDER)) == (0, 1000)
    assert reserve.fill() and (reserve.held, disk.free(FOLDER)) == (1000, 0)


def test_while_it_is_lent_it_takes_nothing() -> None:
    disk = FaultyDisk(capacity=1000)
    reserve = started(disk)
    reserve.fill()
    reserve.lend(keep=250)
    assert disk.free(FOLDER) == 750 and not reserve.fill() and disk.free(FOLDER) == 750
    reserve.take_back()
    assert reserve.fill() and disk.free(FOLDER) == 0


def test_the_next_process_finds_it() -> None:
    disk = FaultyDisk()
    reserve = started(disk)
    reserve.fill()
    reserve.give(400)
    reserve.close()
    reserve.close()
    assert started(disk).held == 600 and NAME in disk.names(FOLDER)


def test_a_disk_that_fills_up_takes_deletions_records_a_crash_and_a_compaction_and_then_documents() -> None:
    disk = FaultyDisk(capacity=120_000)
    store = open_store(disk)
    number = 0
    with pytest.raises(DiskFull):
        while True:
            store.staging.mutation(0, b"%d" % number, b"x" * 2000, cas=1, rev_seqno=1)
            commit(store)
            number += 1
    assert store.full and store.staging.may_delete
    disk.capacity = 120_000 - disk.free(FOLDER) + SLACK_BYTES  # somebody else takes what is left, but for a block
    for each in (each for each in range(number) if each % 4):
        store.staging.deletion(0, b"%d" % each, cas=2, rev_seqno=2, delete_time=1)
        commit(store)
    store.staging.record(1, VBucketRecord(4))
    commit(store)
    disk.locks.clear()
    store = open_store(disk)
    assert store.recovered[1].state == 4
    for each in range(number):
        found = store.document(0, b"%d" % each)
        assert found is not None and found.deleted is bool(each % 4)
    for _ in range(9):  # each gives room to the next
        compact(store)
    assert not store.full
    store.staging.mutation(0, b"again", b"x" * 2000, cas=1, rev_seqno=1)
    commit(store)
