"""A quota is a small disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from headwater.errors import DiskFull
from headwater.node.buckets.quota import QuotaDisk
from headwater.node.storage.disk import RealDisk
from headwater.node.storage.store import Store

MIB = 1 << 20


def test_room_is_what_the_files_leave_of_it(tmp_path: Path) -> None:
    disk = QuotaDisk(RealDisk(), 4)
    assert disk.free(tmp_path) == 4 * MIB
    file = disk.create(tmp_path / "a", 0)
    file.reserve(0, 3 * MIB)
    assert disk.used == 3 * MIB and disk.free(tmp_path) == MIB
    with pytest.raises(OSError, match=r".") as refused:
        file.reserve(3 * MIB, 2 * MIB)
    assert refused.value.errno == errno.EDQUOT and disk.used == 3 * MIB
    file.reserve(MIB, 2 * MIB)  # which it has
    file.truncate(MIB)
    assert disk.used == MIB
    disk.rename(tmp_path / "a", tmp_path / "b")
    assert disk.used == MIB
    disk.remove(tmp_path / "b")
    assert disk.used == 0
    file.close()


def test_another_quota_counts_at_once_and_none_is_the_disk_itself(tmp_path: Path) -> None:
    disk = QuotaDisk(RealDisk(), 0)
    assert disk.free(tmp_path) > 1 << 20
    file = disk.create(tmp_path / "a", 0)
    file.reserve(0, 3 * MIB)
    disk.set_quota(2)
    assert disk.used == 3 * MIB and disk.free(tmp_path) == 0
    with pytest.raises(OSError, match=r"."):
        file.reserve(3 * MIB, MIB)
    disk.set_quota(5)
    file.reserve(3 * MIB, MIB)
    assert disk.free(tmp_path) == MIB
    file.close()


def test_a_write_that_takes_more_than_there_is_fails_and_a_short_one_never_does(tmp_path: Path) -> None:
    disk = QuotaDisk(RealDisk(), 1)
    file = disk.create(tmp_path / "a", 0)
    file.write([bytes(MIB)], 0)
    with pytest.raises(OSError, match=r".") as refused:
        file.write([bytes(MIB)], MIB)
    assert refused.value.errno == errno.EDQUOT
    file.write([b"some words"], MIB)
    file.write([bytes(MIB)], 0)  # over what is there
    file.close()


def test_what_was_there_when_it_was_opened_counts(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(256)) * 8192)
    disk = QuotaDisk(RealDisk(), 4)
    file = disk.open(tmp_path / "a")
    assert disk.used == file.allocated() >= 2 * MIB
    file.close()


def test_a_store_on_it_is_full_within_its_quota_and_may_delete(tmp_path: Path) -> None:
    disk = QuotaDisk(RealDisk(), 64)
    store = Store.open(tmp_path / "s", vbuckets=1, disk=disk, segment_bytes=48 * MIB, arena_bytes=24 * MIB)
    count = 0
    with pytest.raises(DiskFull):
        while count < 100:
            store.staging.mutation(0, b"k%d" % count, bytes(MIB), cas=count + 1, rev_seqno=1)
            batch = store.freeze()
            store.write(batch)
            store.settle(batch)
            count += 1
    assert 20 < count < 64 and store.staging.may_delete and disk.used <= 64 * MIB
    store.close()
