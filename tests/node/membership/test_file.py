"""The map on disk."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from headwater.errors import CorruptStore, DiskFull, StorageError
from headwater.node.membership.file import NAME, NEXT_NAME, MapFile
from headwater.node.storage.disk import RealDisk
from headwater.testing.faults import FaultyDisk

FOLDER = Path("/node")


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk()
    made.make_directory(FOLDER)
    return made


def test_what_is_saved_is_loaded_in_these_bytes(tmp_path: Path) -> None:
    file = MapFile(RealDisk(), tmp_path)
    assert file.load() is None
    file.save(b'{"rev":1,\n"a":2}', [3, 5])
    data = (tmp_path / NAME).read_bytes()
    assert data == b'headwater-cluster-map 1 1265574a278fa86c\n[3, 5]\n{"rev":1, "a":2}\n'
    assert file.load() == (b'{"rev":1, "a":2}', [3, 5])
    file.save(b"{}", [])
    assert file.load() == (b"{}", []) and [path.name for path in tmp_path.iterdir()] == [NAME]


def test_a_power_cut_leaves_one_or_the_other(disk: FaultyDisk) -> None:
    file = MapFile(disk, FOLDER)
    file.save(b"old", [])
    steps = disk.calls
    file.save(b"new", [1])
    for step in range(1, disk.calls - steps + 1):
        again = FaultyDisk()
        again.make_directory(FOLDER)
        MapFile(again, FOLDER).save(b"old", [])
        again.fail(step, errno.EIO, forever=True)
        with pytest.raises(StorageError):
            MapFile(again, FOLDER).save(b"new", [1])
        again.heal()
        assert MapFile(again.crash(Random(step)), FOLDER).load() in ((b"old", []), (b"new", [1]))


def test_a_full_disk_keeps_the_old_one(disk: FaultyDisk) -> None:
    file = MapFile(disk, FOLDER)
    file.save(b"old", [])
    disk.fail(2, errno.ENOSPC)
    with pytest.raises(DiskFull, match=NAME):
        file.save(b"new", [])
    assert file.load() == (b"old", [])


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    file = MapFile(RealDisk(), tmp_path)
    file.save(b'{"rev":1}', [])
    whole = (tmp_path / NAME).read_bytes()
    for at in range(len(whole) - 1):
        (tmp_path / NAME).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(StorageError, match=NAME):
            file.load()
    for end in range(len(whole) - 1):
        (tmp_path / NAME).write_bytes(whole[:end])
        with pytest.raises(CorruptStore, match=NAME):
            file.load()


def test_a_later_format_is_told(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"headwater-cluster-map 2 0000\n[]\n{}\n")
    with pytest.raises(StorageError, match="format 2"):
        MapFile(RealDisk(), tmp_path).load()


def test_what_a_crash_left_beside_it_is_not_read(tmp_path: Path) -> None:
    (tmp_path / NEXT_NAME).write_bytes(b"half")
    file = MapFile(RealDisk(), tmp_path)
    assert file.load() is None
    file.save(b"{}", [])
    assert file.load() == (b"{}", [])


def test_a_map_that_was_refused_since_the_folder_could_not_be_synced_is_not_there_at_the_next_start(
    disk: FaultyDisk,
) -> None:
    file = MapFile(disk, FOLDER)
    for before in (None, (b"old", [2])):
        disk.fail(5, errno.EIO)
        with pytest.raises(StorageError, match=NAME):
            file.save(b"refused", [1])
        assert file.load() == before
        assert MapFile(disk.crash(Random(1)), FOLDER).load() == before
        file.save(b"old", [2])
