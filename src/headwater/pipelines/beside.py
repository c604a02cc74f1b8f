"""A small file in the folder of Spark's checkpoint, on a disk of this machine or on a file system that only Spark
reaches.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from headwater.errors import OptionError
from headwater.folders import make_folder, sync_folder
from headwater.pipelines.checkpoint import OFFSETS, local_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OBJECT_STORES: Final = frozenset({"s3", "s3a", "s3n", "gs"})
"""The schemes of stores in which a file appears when it is closed."""


class FileBeside:
    """A file in a checkpoint's folder, replaced whole.

    Args:
        checkpoint: the folder.
        name: the name of the file.
        spark: a session, for a checkpoint that is not on this machine.
    """

    def __init__(self, checkpoint: str | Path, name: str, spark: SparkSession | None = None) -> None:
        self._folder = local_folder(checkpoint)
        self.place: str = str(checkpoint).rstrip("/")
        self._name = name
        self._spark = spark

    def read(self) -> str | None:
        """Return the file's text; None if there is no file.

        Raises:
            OptionError: the checkpoint is not on this machine, and there is no session.
        """
        if self._folder is not None:
            path = self._folder / self._name
            return path.read_text("utf-8") if path.exists() else None
        path, files = self._spark_path(self._name)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def write(self, text: str) -> None:
        """Replace the file's text; on return it is on the disk."""
        if self._folder is None:
            self._write_by_spark(text)
            return
        make_folder(self._folder)
        new_file = self._folder / f".{self._name}.new"
        # On the disk before it gets its name, and the folder after that: a power cut leaves the old text or the new
        # one.
        with new_file.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(self._folder / self._name)
        sync_folder(self._folder)

    def _write_by_spark(self, text: str) -> None:
        # An object store shows the new text when the stream is closed, whole, and renames by copying. A file system as
        # HDFS empties a file that is created over: there the text is written under another name.
        path, files = self._spark_path(self._name)
        renames = self._replaces_by_rename(path)
        new_file = self._spark_path(f".{self._name}.new")[0] if renames else path
        stream = files.create(new_file, True)
        stream.write(bytearray(text.encode()))
        if renames:
            stream.hsync()
        stream.close()
        if renames:
            self._rename(new_file, path)

    def _replaces_by_rename(self, path: Any) -> bool:
        """Return True if the file system has a rename that replaces a file in one step: Hadoop's FileContext has it,
        which knows fewer schemes than the rest of Hadoop."""
        scheme = path.toUri().getScheme()
        implementation = self._spark._jsc.hadoopConfiguration().get(f"fs.AbstractFileSystem.{scheme}.impl")  # type: ignore[union-attr]
        return scheme not in _OBJECT_STORES and implementation is not None

    def _rename(self, new_file: Any, path: Any) -> None:
        """Give a file its name; that replaces the present one."""
        hadoop, session = self._jvm.org.apache.hadoop.fs, self._spark
        rename = hadoop.Options.Rename
        options = session._sc._gateway.new_array(rename, 1)  # type: ignore[union-attr]
        options[0] = rename.OVERWRITE
        context = hadoop.FileContext.getFileContext(path.toUri(), session._jsc.hadoopConfiguration())  # type: ignore[union-attr]
        context.rename(new_file, path, options)

    def has_offsets(self) -> bool:
        """Return True if a query has begun with this checkpoint."""
        if self._folder is not None:
            return (self._folder / OFFSETS).is_dir()
        path, files = self._spark_path(OFFSETS)
        return bool(files.exists(path))

    @property
    def _jvm(self) -> Any:
        if self._spark is None:
            raise OptionError("checkpoint", self.place, "a folder of this machine")
        return self._spark._jvm

    def _spark_path(self, name: str) -> tuple[Any, Any]:
        """Return a path in Spark's checkpoint, and its file system."""
        path = self._jvm.org.apache.hadoop.fs.Path(f"{self.place}/{name}")
        session: Any = self._spark
        return path, path.getFileSystem(session._jsc.hadoopConfiguration())
