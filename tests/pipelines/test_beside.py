"""Files of ours beside a checkpoint: replaced whole, found again, and elsewhere only with Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


class Cut(str):
    """A text whose writer dies when it has opened the file."""

    __slots__ = ()

    def encode(self, *how: str) -> bytes:
        raise KeyboardInterrupt


@pytest.mark.spark
def test_a_write_that_dies_leaves_the_text_of_before_on_a_file_system_that_spark_reaches(
    spark: Any, tmp_path: Path
) -> None:
    """HDFS shows a file while it is written, as the disk here does: a copy would have forgotten what it carried."""
    file = FileBeside(f"file:{tmp_path}", "note.json", spark)
    file._folder = None
    file.write("one")
    file.write("zwölf")
    with pytest.raises(KeyboardInterrupt):
        file.write(Cut("three"))
    assert file.read() == "zwölf"
    file.write("three")
    names = {path.name for path in tmp_path.iterdir() if not path.name.endswith(".crc")}
    assert (file.read(), names) == ("three", {"note.json"})


@pytest.mark.spark
def test_a_file_system_whose_renames_replace_nothing_is_written_to_as_it_can_be(spark: Any, tmp_path: Path) -> None:
    """Hadoop's FileContext does not know each scheme that the rest of Hadoop does, such as Databricks' own."""
    file = FileBeside(f"file:{tmp_path}", "note.json", spark)
    file._folder = None
    settings, name = spark._jsc.hadoopConfiguration(), "fs.AbstractFileSystem.file.impl"
    known = settings.get(name)
    settings.unset(name)
    try:
        file.write("one")
        file.write("two")
    finally:
        settings.set(name, known)
    assert file.read() == "two"
