from pathlib import Path

import pytest

from headwater.errors import DiskFull, OptionError
from headwater.lake import store as module
from headwater.lake.store import TableStore, folder_of


def test_relative_paths_and_file_urls_are_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of("lake/a") == folder_of("./lake/a") == str(tmp_path / "lake" / "a")
    assert folder_of("file:///x/a%20b") == folder_of("file:/x/a b") == "/x/a b"


@pytest.mark.parametrize("place", ["s3a://bucket/a", "hdfs:///lake", "", "file://host/x"])
def test_a_place_that_is_no_folder_is_refused_by_name(place: str) -> None:
    with pytest.raises(OptionError, match="is not a folder of a mounted file system"):
        folder_of(place)


def test_of_all_who_create_a_file_one_succeeds(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    assert [store.create("log/1", text) for text in (b"one", b"two")] == [True, False]
    assert store.read("log/1") == b"one"
    assert [listed.path for listed in store.list("log")] == ["log/1"]


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    store = TableStore(tmp_path)
    with pytest.raises(RuntimeError), store.output("x") as out:
        out.write(b"half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    store.write("x", b"whole")
    store.write("x", b"anew")
    assert (store.read("x"), store.exists("x"), store.exists("y")) == (b"anew", True, False)
    store.remove("x")
    store.remove("x")
    assert not store.exists("x")


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(DiskFull, match="no room left"):
        TableStore(tmp_path).create("x", b"1")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_and_none_list_as_nothing(tmp_path: Path) -> None:
    assert TableStore(tmp_path).list() == TableStore(tmp_path / "none").list("deeper") == []
