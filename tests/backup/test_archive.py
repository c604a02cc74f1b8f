"""The index of an archive, and the names of backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.backup.archive import Archive, ArchiveIndex, folder, fresh_id
from headwater.backup.manifest import BEGUN, INDEX, MANIFEST, sealed
from headwater.backup.place import Folder
from headwater.backup.prune import carry_out
from headwater.errors import BackupError
from headwater.testing import Node
from tests.backup.support import backed_up


def test_a_name_sorts_behind_all_that_are_taken() -> None:
    first = fresh_id("full", [])
    second = fresh_id("increment", [first])
    later = "99991231T235959Z-full"
    third = fresh_id("increment", [later])
    assert first < second < later < third < fresh_id("full", [later, third])


def test_a_folder_without_a_manifest_is_no_backup(tmp_path: Path) -> None:
    Folder(tmp_path).write(folder("x", BEGUN), sealed({"format": 1}))
    found = Archive(Folder(tmp_path))
    assert (found.backups, found.unfinished, found.problems, found.newest) == ({}, ["x"], [], None)


OUTSIDE = [
    "../../victim",
    "..",
    ".",
    "",
    "/victim",
    "a/b",
    "20260101T000000Z-full/..",
    "20260101T000000Z-other",
    7,
    None,
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_names_backups_of_its_own_and_no_other_place(name: object, tmp_path: Path) -> None:
    """Its SHA-256 is no secret: who can write to a shared archive would have the next `prune` remove what he names."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "document").write_text("mine")
    told = {"format": 1, "archive": "a", "backups": {}, "removing": [name]}
    place = Folder(tmp_path / "archive" / "of" / "mine")
    place.write(INDEX, sealed(told))
    with pytest.raises(BackupError, match=r"archive\.json: it is no index of an archive"):
        Archive(place)
    with pytest.raises(BackupError):
        carry_out(place, 1, None)
    assert (victim / "document").read_text() == "mine"
    if isinstance(name, str):
        place.write(INDEX, sealed({**told, "removing": [], "backups": {name: "0" * 64}}))
        with pytest.raises(BackupError, match=r"archive\.json: it is no index of an archive"):
            Archive(place)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"content": ' + b"[" * 100_000,
        b'{"content": []}',
        sealed({"format": 1}),
        b"\xff",
        b"",
    ],
    ids=["brackets", "cut brackets", "list", "nothing", "no text", "empty"],
)
def test_an_index_that_is_none_is_told_in_one_line(data: bytes, tmp_path: Path) -> None:
    place = Folder(tmp_path)
    place.write(INDEX, data)
    with pytest.raises(BackupError) as told:
        Archive(place)
    assert "\n" not in str(told.value) and len(str(told.value)) < 300


@pytest.mark.parametrize("name", ["..", "a/b", "", "/etc/passwd"])
def test_no_path_leads_out_of_an_archive(name: str) -> None:
    for parts in ((name,), ("20260101T000000Z-full", name)):
        with pytest.raises(BackupError, match="no name in an archive"):
            folder(*parts)


def test_a_backup_without_its_parent_has_no_chain(bucket: Node, tmp_path: Path) -> None:
    first, second = backed_up(bucket, tmp_path), backed_up(bucket, tmp_path)
    (tmp_path / folder(first.id, MANIFEST)).write_bytes(b"{}")
    found = Archive(Folder(tmp_path))
    with pytest.raises(BackupError, match=f"backup {first.id}, which {second.id} goes on from, is not there"):
        found.chain(second.id)
    with pytest.raises(BackupError, match=r"manifest\.json: the file is damaged"):
        found.require_sound()


def test_an_index_is_read_as_it_was_written_and_its_loss_is_noticed(bucket: Node, tmp_path: Path) -> None:
    backed_up(bucket, tmp_path)
    index = ArchiveIndex.read(Folder(tmp_path))
    assert index is not None
    assert Folder(tmp_path).read(INDEX) == index.to_bytes()
    Folder(tmp_path).remove(INDEX)
    assert Archive(Folder(tmp_path)).problems == ["archive.json: the file is missing"]
