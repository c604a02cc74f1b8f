"""Folders and object stores as places of archives."""

from __future__ import annotations

import builtins
import os
from pathlib import Path
from typing import Any

import pytest

from headwater.backup.place import BackupPlace, Folder, HashingFile, place_of
from headwater.errors import BackupError, OptionError


@pytest.fixture(params=["folder", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BackupPlace:
    return place_of(str(tmp_path / "a") if request.param == "folder" else f"memory://{tmp_path.name}/a")


def test_files_are_written_read_named_measured_and_removed(place: BackupPlace) -> None:
    assert (place.names("x"), place.size("x/1")) == ([], None)
    place.write("x/1", b"one")
    place.write("x/1", b"other")
    with place.output("x/y/2") as out:
        out.write(b"two")
    assert (place.read("x/1"), place.read("x/y/2")) == (b"other", b"two")
    assert (place.names("x"), place.names("x/y"), place.size("x/1")) == (["1", "y"], ["2"], 5)
    place.remove("x/1")
    place.remove("x/1")
    assert place.names("x") == ["y"]
    place.remove("x")
    assert place.names("x") == []
    with pytest.raises(FileNotFoundError):
        place.read("x/y/2")


def test_only_a_folder_with_nothing_in_it_is_removed_as_an_empty_one(place: BackupPlace) -> None:
    place.write("x/1", b"one")
    place.remove_empty("x")
    assert place.read("x/1") == b"one"
    place.remove("x/1")
    place.remove_empty("x")
    place.remove_empty("x")
    assert place.names("") == []


def test_a_file_that_was_not_finished_gets_no_name(place: BackupPlace) -> None:
    def fails() -> None:
        with place.output("x/1") as out:
            out.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert place.names("x") == []


def test_what_goes_through_is_measured_and_hashed(tmp_path: Path) -> None:
    with (tmp_path / "f").open("wb") as out:
        hashed = HashingFile(out)
        hashed.write(b"ab")
        hashed.write(memoryview(b"c"))
        assert (hashed.tell(), hashed.writable()) == (3, True)
    assert hashed.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_what_is_in_a_folder_is_its_owners_alone(tmp_path: Path) -> None:
    """As the store is that it was read from, whatever the process gives others."""
    before = os.umask(0)
    try:
        place = Folder(tmp_path / "new" / "archive")
        with place.lock():
            place.write("backups/a/manifest.json", b"{}")
            with place.output("backups/a/1.parquet") as out:
                out.write(b"rows")
    finally:
        os.umask(before)
    for each in (tmp_path / "new", *(tmp_path / "new").rglob("*")):
        assert each.stat().st_mode & 0o777 == (0o700 if each.is_dir() else 0o600), each


def test_the_folder_of_backups_may_be_a_link_of_its_owners_to_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, place = tmp_path / "disk", Folder(tmp_path / "archive")
    (disk / "x").mkdir(parents=True)
    (tmp_path / "archive").mkdir()
    (tmp_path / "archive" / "backups").symlink_to(disk)
    place.write("backups/x/manifest.json", b"{}")
    place.remove("backups/x/manifest.json")
    assert place.names("backups/x") == []
    link = os.lstat(tmp_path / "archive" / "backups")
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result((*link[:4], 4711, *link[5:])))
    with pytest.raises(BackupError, match="behind a link"):
        place.remove("backups/x")
    monkeypatch.undo()
    place.remove("backups/x")
    assert list(disk.iterdir()) == []


def test_nothing_is_removed_behind_a_link(tmp_path: Path) -> None:
    victim, place = tmp_path / "victim", Folder(tmp_path / "archive")
    (victim / "inner").mkdir(parents=True)
    (victim / "manifest.json").write_text("mine")
    place.write("backups/x/y", b"")
    (tmp_path / "archive" / "backups" / "link").symlink_to(victim)
    for path in ("backups/link/manifest.json", "backups/link/inner"):
        with pytest.raises(BackupError, match="behind a link"):
            place.remove(path)
    place.remove("backups/link")
    assert place.names("backups") == ["x"] and (victim / "manifest.json").read_text() == "mine"


def test_a_scheme_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="a folder, or a URL that fsspec can open here"):
        place_of("nosuch://x/y")
    assert isinstance(place_of(f"file://{tmp_path}"), Folder)


def test_without_fsspec_a_url_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "fsspec":
            raise ModuleNotFoundError("No module named 'fsspec'", name="fsspec")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match="possible without fsspec: pip install fsspec"):
        place_of("memory://bucket/path")
