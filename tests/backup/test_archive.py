"""The index of an archive, and the names of backups."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.backup.archive import Archive, ArchiveIndex, folder, fresh_id
from headwater.backup.manifest import BEGUN, INDEX, MANIFEST, sealed
from headwater.backup.place import Folder
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
