"""Files that show when one of their bytes has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headwater.backup.manifest import (
    FORMAT,
    BackupFile,
    BackupManifest,
    BackupPart,
    RolledBack,
    joined,
    sealed,
    unsealed,
)
from headwater.errors import BackupError
from headwater.protocol.dcp.position import Position

HERE = Position(1, 0xABC, 7, 7, 7, ((0xABC, 0),))
FILE = BackupFile("00000-00000.parquet", 7, 100, "ff" * 32)
PART = BackupPart({1: 0}, {1: HERE}, (FILE,), {"mutations": 7}, (RolledBack(1, 9, 5, 0),))
MADE = BackupManifest(
    "20260101T000000Z-increment+0001",
    "20260101T000000Z-full",
    "0" * 64,
    "default",
    4,
    "then",
    "now",
    PART,
)


def test_a_manifest_is_read_as_it_was_written() -> None:
    again = BackupManifest.from_bytes(MADE.to_bytes(), "m")
    assert again == MADE
    assert again.part.ends[1].failover_log == HERE.failover_log
    assert (again.kind, again.rows, again.size) == ("increment", 7, 100)


def test_bytes_that_say_the_same_otherwise_are_damage_too() -> None:
    data = sealed({"format": FORMAT})
    assert unsealed(data, "x") == {"format": FORMAT}
    for other in (data + b"\n", data.replace(b":", b": "), data[:-1], b"", b"[]"):
        with pytest.raises(BackupError, match=r"^x: the file is damaged"):
            unsealed(other, "x")


def test_a_format_that_is_not_known_is_refused_by_its_number() -> None:
    with pytest.raises(BackupError, match="it has format 3, this headwater knows 1 and 2"):
        unsealed(sealed({"format": 3}), "x")


def test_a_sealed_file_that_is_no_manifest_is_refused() -> None:
    with pytest.raises(BackupError, match="it is no manifest of a backup"):
        BackupManifest.from_bytes(sealed({"format": FORMAT}), "x")


@pytest.mark.parametrize(
    "path", ["../../../../etc/passwd", "/etc/passwd", "a/00000-00000.parquet", "..", "x.parquet", 7]
)
def test_a_manifest_names_files_of_its_own_folder_alone(path: object) -> None:
    """Of a place that others may write to: their SHA-256 fits as well."""
    part = BackupPart({1: 0}, {1: HERE}, (replace(FILE, path=path),), {})  # type: ignore[arg-type]
    data = replace(MADE, part=part).to_bytes()
    with pytest.raises(BackupError, match=r"it is no manifest of a backup .*is no name of a file"):
        BackupManifest.from_bytes(data, "x")


@pytest.mark.parametrize("change", [{"id": "../x"}, {"parent": ".."}, {"id": "b"}])
def test_a_manifest_has_the_names_of_backups(change: dict[str, str]) -> None:
    with pytest.raises(BackupError, match="is no name of a backup"):
        BackupManifest.from_bytes(replace(MADE, **change).to_bytes(), "x")  # type: ignore[arg-type]


def test_a_vbucket_that_was_read_twice_begins_with_the_first_and_ends_with_the_last() -> None:
    later = Position(1, 0xABC, 9, 9, 9)
    both = joined([PART, BackupPart({1: 7}, {1: later}, (), {"mutations": 2})])
    assert (both.starts, both.ends, both.files, both.changes) == ({1: 0}, {1: later}, (FILE,), {"mutations": 9})
    assert both.rolled_back == PART.rolled_back
