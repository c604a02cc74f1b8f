"""Where an archive lies: a folder, or whatever fsspec can open, such as s3://bucket/path.

Files are written whole and never touched again, but for the index, which is put in place of the one before. In a folder
a file is synced before it gets its name; an object store shows an object when all of it has come.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from headwater.errors import BackupError, OptionError
from headwater.lake.store import TableStore, folder_of

LOCK = ".lock"
PLUGINS = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs"}
"""Scheme -> the package that fsspec needs for it."""
ARROWS_OWN = ("s3", "gs", "gcs", "abfs", "abfss")
"""Schemes that pyarrow opens by itself, with options behind a question mark: s3://bucket/path?region=eu-west-1."""


class BackupPlace(Protocol):
    """The part of a place that an archive needs; paths are relative, with slashes."""

    name: str

    def read(self, path: str) -> bytes:
        """Return a file's bytes; FileNotFoundError if there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Put a file in place, whole, over one that is there."""

    def output(self, path: str) -> Any:
        """A context with a file to write to; it gets its name when the block ends well."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders directly in a folder, sorted; none if it does not exist."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes, None if there is none."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; none is as good."""

    def lock(self) -> Any:
        """A context in which nobody else changes the archive, as far as the place can tell."""


class Folder:
    """A folder of a file system; made when something is written to it."""

    def __init__(self, place: str | Path) -> None:
        self.name = folder_of(place)
        self._store = TableStore(self.name)
        self.read, self.write, self.output = self._store.read, self._store.write, self._store.output

    def names(self, folder: str) -> list[str]:
        """Return the names directly in a folder; those of files that were never finished are among them."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(each.name for each in Path(self.name, folder).iterdir() if each.name != LOCK)
        return []

    def size(self, path: str) -> int | None:
        """Return a file's size."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return Path(self.name, path).stat().st_size
        return None

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        full = Path(self.name, path)
        if full.is_dir():
            shutil.rmtree(full)
        else:
            full.unlink(missing_ok=True)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the archive; the system lets go of it when this process ends, however it does.

        Raises:
            BackupError: another process holds it.
        """
        Path(self.name).mkdir(parents=True, exist_ok=True)
        held = os.open(Path(self.name, LOCK), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(self.name, "another process is changing this archive; wait for it to end") from None
            yield
        finally:
            os.close(held)


class Objects:
    """A place that fsspec opens. Nobody can be kept out: that only one process at a time changes it is up to whoever
    starts them; `create` looks again before it makes its backup part of the archive."""

    def __init__(self, url: str) -> None:
        self.name = url
        try:
            self._fs, self._root = _opened(url)
        except (ImportError, ValueError) as error:
            raise OptionError("place", url, _advice(url, error)) from None

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def read(self, path: str) -> bytes:
        """Return an object's bytes."""
        return bytes(self._fs.cat_file(self._full(path)))

    def write(self, path: str, content: bytes) -> None:
        """Put an object in place."""
        self._fs.pipe_file(self._full(path), content)
        self._fs.invalidate_cache()

    @contextmanager
    def output(self, path: str) -> Iterator[IO[bytes]]:
        """A file of this machine to write to; it is sent when the block ends well."""
        with tempfile.NamedTemporaryFile(prefix="headwater-") as out:
            yield out
            out.flush()
            self._fs.put_file(out.name, self._full(path))
        self._fs.invalidate_cache()

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a prefix."""
        root = self._full(folder)
        with suppress(FileNotFoundError):
            found = (str(each).rstrip("/").rpartition("/")[2] for each in self._fs.ls(root, detail=False, refresh=True))
            return sorted({name for name in found if name and name != root.rpartition("/")[2]})
        return []

    def size(self, path: str) -> int | None:
        """Return an object's size."""
        with suppress(FileNotFoundError):
            return int(self._fs.info(self._full(path))["size"])
        return None

    def remove(self, path: str) -> None:
        """Remove an object, or all below a prefix."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)
        self._fs.invalidate_cache()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Object stores have no lock that a killed process would let go of."""
        yield


def place_of(text: str) -> BackupPlace:
    """Return the place that a path, a file: URL or another URL names.

    Raises:
        OptionError: fsspec does not know the scheme, or a package for it is missing.
    """
    scheme = urlsplit(text).scheme
    if "://" not in text or scheme == "file":
        return Folder(text)
    return Objects(text)


def _opened(url: str) -> tuple[Any, str]:
    """Return fsspec's file system and the path in it. Where the package for a scheme is missing, Arrow may do."""
    import fsspec  # noqa: PLC0415 -- folders do without it

    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except ImportError:
        if urlsplit(url).scheme not in ARROWS_OWN:
            raise
        from fsspec.implementations.arrow import ArrowFSWrapper  # noqa: PLC0415
        from pyarrow.fs import FileSystem  # noqa: PLC0415

        found, root = FileSystem.from_uri(url)
        filesystem = ArrowFSWrapper(found)
    return filesystem, root.rstrip("/")


def _advice(url: str, error: Exception) -> str:
    missing = error.name if isinstance(error, ModuleNotFoundError) and error.name == "fsspec" else None
    package = missing or PLUGINS.get(urlsplit(url).scheme)
    wanted = f"; install {package}" if package and isinstance(error, ImportError) else ""
    return f"a folder, or a URL that fsspec can open here ({error}){wanted}"


class Hashed(io.RawIOBase):
    """Writes to a file and keeps the size and the SHA-256 of what went there."""

    def __init__(self, out: IO[bytes]) -> None:
        super().__init__()
        self._out, self._hash, self.size = out, hashlib.sha256(), 0

    @property
    def sha256(self) -> str:
        """Of all that was written, in hex."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self.size

    def write(self, data: Any) -> int:
        """Write bytes."""
        view = memoryview(data).cast("B")
        self._out.write(view)
        self._hash.update(view)
        self.size += len(view)
        return len(view)
