"""A bucket's folder is removed only if it is the bucket's."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import CorruptStore, StorageError
from headwater.failpoints import InjectedFault, armed
from headwater.node.buckets import folder
from headwater.node.buckets.file import BucketEntry
from headwater.node.storage.disk import RealDisk

DISK = RealDisk()
ENTRY = BucketEntry("orders", 1, "ab" * 16, 2)
OTHER = BucketEntry("carts", 2, "cd" * 16, 2)


def made(place: Path) -> Path:
    folder.make(DISK, place, ENTRY)
    for name in ("MANIFEST", "00000001.log"):
        (place / name).write_bytes(b"x")
    return place


def test_a_folder_says_whose_it_is(tmp_path: Path) -> None:
    place = made(tmp_path / "buckets" / "1")
    folder.check(DISK, place, ENTRY)
    with pytest.raises(CorruptStore, match='not the folder of bucket "carts"'):
        folder.check(DISK, place, OTHER)
    with pytest.raises(CorruptStore, match='the folder of bucket "orders" is missing'):
        folder.check(DISK, tmp_path / "buckets" / "9", ENTRY)
    (place / "BUCKET").write_bytes(b"nonsense")
    with pytest.raises(CorruptStore, match="not a bucket's name"):
        folder.check(DISK, place, ENTRY)


def test_one_that_is_gone_is_gone(tmp_path: Path) -> None:
    place = made(tmp_path / "buckets" / "1")
    folder.remove(DISK, place, ENTRY)
    assert not place.exists()
    folder.remove(DISK, place, ENTRY)


@pytest.mark.parametrize("step", ["buckets.removing=raise@1", "buckets.removing=raise@2", "buckets.emptied=raise"])
def test_a_removal_that_was_cut_off_goes_on(tmp_path: Path, step: str) -> None:
    place = made(tmp_path / "buckets" / "1")
    with armed(step), pytest.raises(InjectedFault):
        folder.remove(DISK, place, ENTRY)
    assert place.exists()
    folder.remove(DISK, place, ENTRY)
    assert not place.exists()


def test_a_folder_that_was_only_begun_is_removed(tmp_path: Path) -> None:
    place = tmp_path / "buckets" / "1"
    place.mkdir(parents=True)
    (place / "BUCKET.new").write_bytes(b"half")
    folder.remove(DISK, place, ENTRY)
    assert not place.exists()


def test_of_a_folder_that_is_anothers_or_nobodys_nothing_is_removed(tmp_path: Path) -> None:
    place = made(tmp_path / "buckets" / "1")
    with pytest.raises(StorageError, match="nothing was removed"):
        folder.remove(DISK, place, OTHER)
    (place / "BUCKET").unlink()
    with pytest.raises(StorageError, match="nothing was removed"):
        folder.remove(DISK, place, ENTRY)
    assert sorted(path.name for path in place.iterdir()) == ["00000001.log", "MANIFEST"]
