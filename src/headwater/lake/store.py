"""The files of a table in a folder of a file system, written so that a commit survives a power cut and happens once.

A table on an object store is kept by another class with the same promises (`lake/objects.py`).

A table consists of files that are written whole and never changed. Two promises carry everything else: once `write`
returns, the file is on disk under its name, whole; and if several processes `create` the same name, exactly one
succeeds and nobody ever reads a part of the file. Both sync a temporary file first, and then rename or link it.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import DiskFull, OptionError
from headwater.folders import USUAL_MODE, make_folder, sync_folder

DRAFT_PREFIX = ".headwater-"
"""The prefix of temporary files; the leading dot hides them from all readers of tables."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file: its path in the table, its size, and when it was written (Unix seconds)."""

    path: str
    size: int
    modified: float

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return self.path.rpartition("/")[2]


Before = tuple[str, Callable[[bytes | None], None]]
"""A file beside the file that is created, and a function that is called with its bytes (None if there is no such file)
directly before the new file gets its name; it raises an error if the name must not be given."""


def folder_of(place: str | Path) -> str:
    """Return the absolute folder that a place names: a path, relative or not, or a file: url.

    Raises:
        OptionError: an empty place, or a url of another scheme.
    """
    text = str(place)
    url = urlsplit(text)
    if url.scheme == "file" and url.netloc in ("", "localhost") and url.path:
        return str(Path(unquote(url.path)).absolute())
    if not text or "://" in text or url.scheme == "file":
        raise OptionError("to", text, "a folder of a mounted file system, as a path or file:///path")
    return str(Path(text).absolute())


@contextmanager
def reading_parquet(source: Any) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file, by its path or as a Python file object; close it at the end of the block.

    Arrow's threads may be the last to release what was read. If a Python file object is still open then, they need the
    interpreter to release it, and abort the process if it is ending at that moment.
    """
    parquet_file = pq.ParquetFile(source)
    try:
        yield parquet_file
    finally:
        parquet_file.close(force=True)


def mapped_file(path: str) -> memoryview | None:
    """Return a file's bytes as mapped memory; None if there is no such file, or it is empty.

    The file is closed: Python's own mmap keeps a descriptor for each mapping, and a process has a thousand of them.
    """
    try:
        if not Path(path).stat().st_size:
            return None
        with pa.memory_map(path) as map_:
            return memoryview(map_.read_buffer())
    except FileNotFoundError:
        return None


class TableStore:
    """A folder, created when something is first written to it.

    Args:
        place: a path or a file: url.
        is_private: True if files are readable by their owner only; otherwise the process's umask decides.
    """

    MAPPED_MAX: ClassVar[int] = 8192
    """The number of its files that a process keeps mapped at most. Linux allows a process 65,530 mappings."""
    maps_files: ClassVar[bool] = True
    """True if a mapping is of the file itself, and takes no memory or disk of its own."""

    def __init__(self, place: str | Path, *, is_private: bool = False) -> None:
        self.root: str = folder_of(place)
        self._is_private = is_private

    def __repr__(self) -> str:
        return f"TableStore({self.root})"

    def full(self, path: str) -> str:
        """Return the path of a file of the table; an absolute path is returned unchanged."""
        if path.startswith("file:"):
            return folder_of(path)
        return str(Path(self.root, path))

    def read(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: there is no such file.
        """
        return Path(self.full(path)).read_bytes()

    def opened(self, path: str) -> Any:
        """Return a file in the form that Arrow's readers take."""
        return self.full(path)

    @contextmanager
    def parquet(self, path: str) -> Iterator[pq.ParquetFile]:
        """Open a Parquet file of the table for the length of the block."""
        with reading_parquet(self.opened(path)) as parquet_file:
            yield parquet_file

    def mapped(self, path: str) -> memoryview | None:
        """Return a file's bytes as mapped memory; None if there is no such file, or it is empty."""
        return mapped_file(self.full(path))

    def draft(self, path: str) -> str:
        """Return the local path to write to, from which `publish` makes a file of the table."""
        full = self.full(path)
        make_folder(Path(full).parent)
        return full

    def publish(self, path: str) -> int:
        """Sync a file whose draft is written, and return its size; `settle` syncs its name."""
        descriptor = os.open(self.full(path), os.O_RDONLY)
        try:
            os.fsync(descriptor)
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def exists(self, path: str) -> bool:
        """Return True if there is such a file."""
        return Path(self.full(path)).exists()

    def write(self, path: str, content: bytes, *, durable: bool = True, before: Before | None = None) -> None:
        """Write a whole file, over an existing one. `durable=False` is for files that can be built anew."""
        with self.output(path, durable=durable, before=before) as out:
            out.write(content)

    @contextmanager
    def output(self, path: str, *, durable: bool = True, before: Before | None = None) -> Iterator[IO[bytes]]:
        """Yield a file to write to; it gets its name when the block ends without an error, or leaves no trace.

        Args:
            path: path in the table.
            durable: True if the file shall be on disk when the block ends.
            before: as for `create`: a file that must be there unchanged.

        Raises:
            FileNotFoundError: `before` is given and the folder does not exist.
        """
        target = Path(self.full(path))
        # With `before` the folder must be there: one that is made anew, below a mount that is away, would be another
        # table's.
        if before is None:
            make_folder(target.parent, mode := 0o700 if self._is_private else USUAL_MODE, above=mode)
        mode, half = 0o600 if self._is_private else 0o666, f"{DRAFT_PREFIX}{uuid.uuid4().hex}"
        # All of it happens in one folder, which is held: whatever is moved or mounted to its path meanwhile.
        with _folder_descriptor(target.parent) as folder:
            try:
                with _roomy(target):
                    with open(half, "xb", opener=lambda name, flags: os.open(name, flags, mode, dir_fd=folder)) as out:
                        yield out
                        if durable:
                            out.flush()
                            os.fsync(out.fileno())
                    # Directly before the name is given, and in the folder that is held: this is what keeps the file out
                    # of a log that has taken this one's place.
                    _check_before(folder, before)
                    os.rename(half, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                    if durable:
                        os.fsync(folder)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(half, dir_fd=folder)

    def create(self, path: str, content: bytes, before: Before | None = None) -> bool:
        """Put a file in place unless there is one; return False if there was. When it returns, the file is on disk.

        On a network file system the existing file may be our own, from a first try whose answer was lost.

        Args:
            path: path in the table.
            content: its bytes.
            before: a file that must be there unchanged; None also creates the folder if it is missing.

        Raises:
            FileNotFoundError: `before` is given and the folder does not exist.
        """
        target = Path(self.full(path))
        # With `before` the folder must be there: one that is made anew, below a mount that is away, would begin a
        # second log.
        if before is None:
            make_folder(target.parent)
        # All of it happens in one folder, which is held: whatever is moved or mounted to its path meanwhile.
        with _folder_descriptor(target.parent) as folder, _roomy(target):
            return _created(folder, target.name, content, before)

    def settle(self, folder: str = "") -> None:
        """Wait until the names of files that `publish` wrote are on disk: of those in a folder of the table, or in the
        table's own folder if `folder` is "".
        """
        full = Path(self.full(folder))
        if not folder or full.exists():  # none is made before there is a file for it
            sync_folder(full)

    def remove(self, path: str, before: Before | None = None) -> None:
        """Remove a file or its draft, if there is one. `before` as for `create`: a file beside it that must be there.

        Raises:
            FileNotFoundError: `before` is given and the folder does not exist.
        """
        target = Path(self.full(path))
        if before is None:
            target.unlink(missing_ok=True)
            return
        with _folder_descriptor(target.parent) as folder:
            _check_before(folder, before)
            with suppress(FileNotFoundError):
                os.unlink(target.name, dir_fd=folder)

    def list(self, folder: str = "") -> list[Listed]:
        """Return the files directly in a folder of the table, by name; an empty list if there is no such folder."""
        files = []
        with suppress(FileNotFoundError), os.scandir(self.full(folder)) as entries:
            for entry in entries:
                # Another process may remove a file while the folder is read; that file is not listed then.
                with suppress(FileNotFoundError):
                    if entry.is_file():
                        stat = entry.stat()
                        path = f"{folder}/{entry.name}" if folder else entry.name
                        files.append(Listed(path, stat.st_size, stat.st_mtime))
        return sorted(files, key=lambda file: file.path)

    def folders(self, folder: str = "") -> tuple[str, ...]:
        """Return the names of the folders directly below a folder; empty if there is no such folder."""
        with suppress(FileNotFoundError), os.scandir(self.full(folder)) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir()))
        return ()


@contextmanager
def _folder_descriptor(folder: Path) -> Iterator[int]:
    """Open a folder for the length of the block; yield its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _created(folder: int, name: str, content: bytes, before: Before | None) -> bool:
    half = f"{DRAFT_PREFIX}{uuid.uuid4().hex}"
    try:
        with open(half, "xb", opener=lambda path, flags: os.open(path, flags, 0o666, dir_fd=folder)) as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        _check_before(folder, before)
        # A link, unlike a rename, fails when the name is taken; the name shows the whole file or nothing.
        os.link(half, name, src_dir_fd=folder, dst_dir_fd=folder)
        # Until the folder is synced a power cut may take the name, and with it a commit whose batch was reported as
        # done.
        os.fsync(folder)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(half, dir_fd=folder)
    return True


def _check_before(folder: int, before: Before | None) -> None:
    if before is not None:
        path, check = before
        check(_content(folder, path.rpartition("/")[2]))


def _content(folder: int, name: str) -> bytes | None:
    try:
        with open(name, "rb", opener=lambda path, flags: os.open(path, flags, dir_fd=folder)) as file:
            return file.read()
    except FileNotFoundError:
        return None


@contextmanager
def _roomy(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFull(target) from error
        raise
