"""Tell what a power cut leaves of files and folders: what was synced, and of the rest any pieces."""

from __future__ import annotations

import errno
from random import Random

import pytest

from harness.power_cuts.tree import Tree


def files(disk: Tree) -> dict[str, bytes]:
    return dict(disk.files())


def cut(disk: Tree, lose: float = 1.0, seed: int = 1) -> dict[str, bytes]:
    return files(disk.after_cut(Random(seed), lose))


def made(disk: Tree, path: str, content: bytes = b"v", *, synced: bool = True) -> None:
    leaf = disk.create(path)
    disk.write(leaf, content, 0)
    if synced:
        disk.sync(leaf)


def test_a_file_that_is_synced_is_there_once_its_folder_is_synced_as_well() -> None:
    disk = Tree()
    made(disk, "/a")
    assert cut(disk) == {}
    disk.sync_folder(disk.folder("/"))
    assert cut(disk) == {"/a": b"v"}


def test_a_name_that_is_synced_before_its_file_has_nothing_in_it() -> None:
    disk = Tree()
    made(disk, "/a", synced=False)
    disk.sync_folder(disk.folder("/"))
    assert cut(disk) == {"/a": b""}
    assert cut(disk, lose=0.0) == {"/a": b"v"}


def test_a_folder_that_is_synced_is_gone_with_all_in_it_where_the_folder_above_was_not() -> None:
    disk = Tree()
    disk.make_folder("/lake")
    made(disk, "/lake/a")
    disk.sync_folder(disk.folder("/lake"))
    assert cut(disk) == {}
    disk.sync_folder(disk.folder("/"))
    assert cut(disk) == {"/lake/a": b"v"}


def test_a_write_that_is_not_synced_is_there_in_any_of_its_sectors() -> None:
    disk = Tree()
    made(disk, "/a", bytes(2048))
    disk.sync_folder(disk.folder("/"))
    disk.write(disk.file("/a"), b"\1" * 1024, 512)
    seen = {tuple(cut(disk, 0.5, seed)["/a"][::512]) for seed in range(40)}
    assert seen == {(0, first, second, 0) for first in (0, 1) for second in (0, 1)}


def test_of_names_that_changed_any_moment_since_the_last_sync_is_left() -> None:
    disk = Tree()
    made(disk, "/a")
    disk.sync_folder(disk.folder("/"))
    disk.rename("/a", "/b")
    disk.link("/c", disk.file("/b"))
    disk.remove("/b")
    seen = {tuple(cut(disk, 0.5, seed)) for seed in range(60)}
    assert seen == {("/a",), ("/b",), ("/b", "/c"), ("/c",)}


def test_a_file_of_two_names_is_one_file_after_a_cut() -> None:
    disk = Tree()
    made(disk, "/a")
    disk.link("/b", disk.file("/a"))
    left = disk.after_cut(Random(1), 0.0)
    assert left.file("/a") is left.file("/b") and left.file("/a").links == 2


def test_a_rename_takes_the_place_of_what_was_there_or_does_not_happen() -> None:
    disk = Tree()
    made(disk, "/a", b"new")
    made(disk, "/b", b"old")
    disk.sync_folder(disk.folder("/"))
    disk.rename("/a", "/b")
    seen = {tuple(cut(disk, 0.5, seed).items()) for seed in range(40)}
    assert seen == {(("/a", b"new"), ("/b", b"old")), (("/b", b"new"),)}


def test_a_file_that_was_removed_can_still_be_written_to_by_who_has_it_open() -> None:
    disk = Tree()
    made(disk, "/a")
    leaf = disk.file("/a")
    disk.remove("/a")
    disk.write(leaf, b"w", 0)
    assert leaf.links == 0 and files(disk) == {}


def test_once_the_power_is_gone_everything_fails() -> None:
    disk = Tree()
    made(disk, "/a")
    disk.cut_at = disk.changes + 2
    disk.write(disk.file("/a"), b"w", 0)
    with pytest.raises(OSError, match="Input/output error"):
        disk.sync(disk.file("/a"))
    with pytest.raises(OSError, match="Input/output error"):
        disk.find("/a")
    assert disk.is_frozen


@pytest.mark.parametrize(
    ("path", "number"),
    [("/none", errno.ENOENT), ("/a/b", errno.ENOTDIR), ("/d", errno.EISDIR)],
)
def test_a_path_that_leads_to_no_file_says_why(path: str, number: int) -> None:
    disk = Tree()
    made(disk, "/a")
    disk.make_folder("/d")
    with pytest.raises(OSError) as failed:
        disk.file(path)
    assert failed.value.errno == number


def test_a_name_is_taken_once_and_a_folder_with_names_stays() -> None:
    disk = Tree()
    disk.make_folder("/d")
    made(disk, "/d/a")
    for number, wrong in {
        errno.EEXIST: lambda: disk.create("/d/a"),
        errno.ENOTEMPTY: lambda: disk.remove("/d"),
        errno.EXDEV: lambda: disk.rename("/d/a", "/a"),
        errno.ENOTDIR: lambda: disk.folder("/d/a"),
    }.items():
        with pytest.raises(OSError) as failed:
            wrong()
        assert failed.value.errno == number


def test_a_disk_that_lies_has_synced_nothing() -> None:
    disk = Tree()
    disk.lies = True
    made(disk, "/a")
    disk.sync_folder(disk.folder("/"))
    assert cut(disk) == {"/a": b""}


def test_room_that_is_set_aside_counts_as_used() -> None:
    disk = Tree()
    made(disk, "/a")
    disk.reserve(disk.file("/a"), 5000)
    assert disk.used() == 5000 and disk.file("/a").content.size == 5000
    disk.resize(disk.file("/a"), 10)
    assert disk.used() == 10
