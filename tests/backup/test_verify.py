"""Damage of every kind is found: a bit, a byte more or less, a file that is gone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from headwater import testing
from headwater.backup.archive import Archive
from headwater.backup.manifest import BACKUPS, INDEX, MANIFEST
from headwater.backup.place import Folder
from headwater.backup.verify import verify
from headwater.errors import BackupError
from tests.backup.support import backed_up, fill


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A full backup and an increment."""
    place = tmp_path_factory.mktemp("archive")
    with testing.node(vbuckets=4) as bucket:
        fill(bucket, "a")
        backed_up(bucket, place)
        fill(bucket, "b")
        backed_up(bucket, place)
    return place


@pytest.fixture
def copy(archive: Path, tmp_path: Path) -> Path:
    shutil.copytree(archive, tmp_path / "copy")
    return tmp_path / "copy"


def problems(place: Path) -> list[str]:
    """Return what verify says, be it that the archive can't be read at all."""
    try:
        return verify(Archive(Folder(place))).problems
    except BackupError as error:
        return [str(error)]


def files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file() and not path.name.startswith("."))


def test_an_archive_without_damage_has_no_problems(archive: Path) -> None:
    found = verify(Archive(Folder(archive)))
    assert (found.problems, found.unfinished, found.backups) == ([], [], 2)
    assert found.bytes == sum(path.stat().st_size for path in files(archive) if path.suffix == ".parquet")
    assert len(files(archive)) == 3 + found.files


def test_every_bit_of_the_small_files_counts(copy: Path) -> None:
    chance = random.Random(7)
    for path in [copy / INDEX, *copy.rglob(MANIFEST)]:
        whole = path.read_bytes()
        for at in {0, len(whole) - 1, *chance.sample(range(len(whole)), 60)}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :])
            assert problems(copy), f"{path.name}: byte {at}"
        path.write_bytes(whole)
    assert problems(copy) == []


def test_every_bit_of_the_data_counts(copy: Path) -> None:
    chance = random.Random(8)
    for path in copy.rglob("*.parquet"):
        whole = path.read_bytes()
        for at in {0, len(whole) - 1, *chance.sample(range(len(whole)), 20)}:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << chance.randrange(8))]) + whole[at + 1 :])
            assert [problem for problem in problems(copy) if "damaged" in problem and path.name in problem], at
        path.write_bytes(whole)


def test_every_file_that_is_gone_or_shorter_is_missed(copy: Path) -> None:
    for path in files(copy):
        whole = path.read_bytes()
        path.unlink()
        assert any("missing" in problem for problem in problems(copy)), path
        path.write_bytes(whole[:-1])
        assert problems(copy), path
        path.write_bytes(whole)
    assert problems(copy) == []


def test_a_backup_that_is_gone_with_its_folder_is_missed(copy: Path) -> None:
    for name in sorted(path.name for path in (copy / BACKUPS).iterdir()):
        shutil.move(copy / BACKUPS / name, copy.with_name("aside"))
        assert any(f"{name}/{MANIFEST}: the file is missing" in problem for problem in problems(copy))
        shutil.move(copy.with_name("aside"), copy / BACKUPS / name)


def test_a_manifest_of_another_archive_is_noticed(copy: Path, tmp_path: Path) -> None:
    with testing.node(vbuckets=4) as bucket:
        other = backed_up(bucket, tmp_path / "other")
    name = min(path.name for path in (copy / BACKUPS).iterdir())
    shutil.copy(tmp_path / "other" / BACKUPS / other.id / MANIFEST, copy / BACKUPS / name / MANIFEST)
    assert any("another manifest than the index names" in problem for problem in problems(copy))
