"""The list of buckets on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import CorruptStore, DiskFull, StorageError
from headwater.failpoints import armed
from headwater.node.buckets.file import DROPPING, MAKING, SERVED, BucketEntry, BucketList, BucketsFile
from headwater.node.storage.disk import RealDisk

ENTRY = BucketEntry("orders", 1, "ab" * 16, 64, 100)


def file(folder: Path) -> BucketsFile:
    return BucketsFile(RealDisk(), folder)


def test_the_bytes_of_a_list_are_these(tmp_path: Path) -> None:
    file(tmp_path).save(BucketList(2, (ENTRY,)))
    assert (tmp_path / "BUCKETS").read_bytes() == (
        b'headwater-buckets 1 b8a89fe22b7577c2\n{"next": 2, "buckets": [{"name": "orders", "number": 1, "uuid": '
        b'"abababababababababababababababab", "vbuckets": 64, "quota_mib": 100, "state": "served"}]}\n'
    )
    assert file(tmp_path).load() == BucketList(2, (ENTRY,))


def test_a_number_is_never_given_again(tmp_path: Path) -> None:
    made = BucketList().with_entry(ENTRY)
    assert made.next == 2 and made.without(1) == BucketList(2)
    assert made.with_entry(BucketEntry("carts", 2, "", 1)).without(2).next == 3


def test_an_entry_has_one_state(tmp_path: Path) -> None:
    found = BucketList().with_entry(BucketEntry("a", 1, "", 1, state=MAKING)).with_entry(BucketEntry("b", 2, "", 1))
    found = found.with_entry(BucketEntry("a", 1, "", 1, state=DROPPING))
    assert [each.name for each in found.in_state(DROPPING)] == ["a"] and not found.in_state(MAKING)
    assert [each.name for each in found.in_state(SERVED)] == ["b"]


def test_an_entry_that_changes_keeps_its_place(tmp_path: Path) -> None:
    found = BucketList().with_entry(BucketEntry("a", 1, "", 1)).with_entry(BucketEntry("b", 2, "", 1))
    found = found.with_entry(BucketEntry("a", 1, "", 1, quota_mib=100))
    assert [(entry.name, entry.quota_mib) for entry in found.entries] == [("a", 100), ("b", 0)] and found.next == 3


def test_no_list_is_an_empty_one_unless_there_are_folders(tmp_path: Path) -> None:
    assert file(tmp_path).load() == BucketList()
    (tmp_path / "buckets").mkdir()
    assert file(tmp_path).load() == BucketList()
    (tmp_path / "buckets" / "1").mkdir()
    with pytest.raises(CorruptStore, match="the list is missing"):
        file(tmp_path).load()


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "not a list of buckets"),
        (b"headwater-buckets 9 00\n{}\n", "format 9"),
        (b"headwater-buckets 1 0000000000000000\n{}\n", "checksum"),
    ],
)
def test_what_was_not_written_is_not_read(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "BUCKETS").write_bytes(data)
    with pytest.raises(StorageError, match=said):
        file(tmp_path).load()


def test_a_full_disk_leaves_the_list_as_it_was(tmp_path: Path) -> None:
    file(tmp_path).save(BucketList(2, (ENTRY,)))
    with armed("buckets.before_rename=enospc"), pytest.raises(DiskFull):
        file(tmp_path).save(BucketList(3))
    assert file(tmp_path).load() == BucketList(2, (ENTRY,))
