"""Files of ours beside a checkpoint: replaced whole, found again, and elsewhere only with Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.errors import OptionError
from headwater.pipelines.beside import FileBeside


def test_a_file_is_what_was_written_last_and_nothing_else_is_left(tmp_path: Path) -> None:
    file = FileBeside(tmp_path / "made", "note.json")
    assert file.read() is None and not file.has_offsets()
    file.write("one")
    file.write("zwölf")
    assert file.read() == "zwölf" and [path.name for path in (tmp_path / "made").iterdir()] == ["note.json"]
    (tmp_path / "made" / "offsets").mkdir()
    assert file.has_offsets()


def test_a_url_of_this_machine_is_a_folder_and_another_needs_spark(tmp_path: Path) -> None:
    FileBeside(f"file://{tmp_path}", "note.json").write("here")
    assert FileBeside(tmp_path, "note.json").read() == "here"
    with pytest.raises(OptionError, match="a folder of this machine"):
        FileBeside("s3a://bucket/checkpoint", "note.json").read()
