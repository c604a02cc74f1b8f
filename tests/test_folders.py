"""Folders are made with their names on the disk: each folder above a new one is synced, and no other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headwater import folders
from headwater.folders import make_folder, sync_folder


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the folders that were synced."""
    seen: list[Path] = []
    monkeypatch.setattr(folders, "sync_folder", seen.append)
    return seen


def test_each_folder_above_a_new_one_is_synced(tmp_path: Path, synced: list[Path]) -> None:
    make_folder(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_folder(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3


def test_a_relative_folder_is_made_below_the_working_directory(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_folder(Path("a/b"))
    assert synced == [Path(), Path("a")] and (tmp_path / "a" / "b").is_dir()


def test_the_last_has_the_mode_and_those_above_it_theirs(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        make_folder(tmp_path / "a" / "b", 0o700)
        make_folder(tmp_path / "c" / "d", 0o700, above=0o700)
    finally:
        os.umask(before)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("a", "a/b", "c", "c/d")}
    assert modes == {"a": 0o755, "a/b": 0o700, "c": 0o700, "c/d": 0o700}


def test_a_file_in_its_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(FileExistsError):
        make_folder(tmp_path / "a")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "a" / "b")


def test_a_folder_above_that_may_not_be_read_is_left_unsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(folder: Path) -> None:
        raise PermissionError(folder)

    monkeypatch.setattr(folders, "sync_folder", refuses)
    make_folder(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def test_what_is_synced_is_a_folder(tmp_path: Path) -> None:
    sync_folder(tmp_path)
    (tmp_path / "a").touch()
    with pytest.raises(NotADirectoryError):
        sync_folder(tmp_path / "a")
