"""The files of a part: where one ends and the next begins, and what is left of those that were not finished."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headwater.backup.files import PartFiles
from headwater.backup.manifest import digest
from headwater.backup.place import Folder

ROWS = pa.RecordBatch.from_pydict(
    {name: [b"x"] if name in ("key", "value") else ["mutation"] for name in ("vb_uuid", "event", "key", "value")}
)


def test_files_are_told_with_rows_bytes_and_hash(tmp_path: Path) -> None:
    with PartFiles(Folder(tmp_path), "b", 3, "r", file_bytes=1 << 20) as out:
        out.add(ROWS)
        out.add(ROWS)
        (file,) = out.close()
    written = (tmp_path / "backups" / "b" / "00003-00000-r.parquet").read_bytes()
    assert (file.path, file.rows, file.bytes, file.sha256) == (
        "00003-00000-r.parquet", 2, len(written), digest(written),
    )  # fmt: skip
    assert (out.rows, out.bytes, out.changes["mutations"]) == (2, len(written), 2)
    assert pq.read_table(pa.BufferReader(written)).num_rows == 2


def test_a_file_that_is_full_is_followed_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.backup.files.GROUP_BYTES", 1)
    with PartFiles(Folder(tmp_path), "b", 0, "r", file_bytes=1) as out:
        out.add(ROWS)
        out.add(ROWS)
        assert [file.path for file in out.close()] == ["00000-00000-r.parquet", "00000-00001-r.parquet"]


def test_a_part_without_changes_has_no_files(tmp_path: Path) -> None:
    with PartFiles(Folder(tmp_path), "b", 0, "r", file_bytes=1) as out:
        assert out.close() == []


def test_what_was_not_finished_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.backup.files.GROUP_BYTES", 1)

    def fails() -> None:
        with PartFiles(Folder(tmp_path), "b", 0, "r", file_bytes=1 << 20) as out:
            out.add(ROWS)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    assert Folder(tmp_path).names("backups/b") == []
