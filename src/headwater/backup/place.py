"""The place of an archive: a folder, a prefix of an object store such as s3://bucket/path, or another url of fsspec.

Files are written whole and never changed, except for the index, which is replaced. In a folder a file is synced before
it gets its name, and only its owner may read it, as with a node's own files; an object store shows an object once all
of it has arrived.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, Protocol
from urllib.parse import urlsplit

from headwater.backup.manifest import BACKUPS
from headwater.errors import BackupError, OptionError
from headwater.folders import make_folder
from headwater.lake.objects import LIBRARIES, ObjectStore
from headwater.lake.store import TableStore, folder_of

LOCK = ".lock"
PLUGINS = {**LIBRARIES, "az": "adlfs"}
"""Scheme -> the package that fsspec needs for it."""


class BackupPlace(Protocol):
    """The operations of a place that an archive needs; paths are relative, with slashes.

    Attributes:
        has_lock: True if `lock` keeps other processes from changing the archive.
    """

    name: str
    has_lock: bool

    def read(self, path: str) -> bytes:
        """Return a file's bytes; FileNotFoundError if there is none."""

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, over an existing one."""

    def output(self, path: str) -> Any:
        """Open a file to write to; it gets its name when the block ends without an error."""

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders directly in a folder, sorted; empty if it does not exist."""

    def size(self, path: str) -> int | None:
        """Return a file's size in bytes; None if there is no such file."""

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all its files; a missing one is no error."""

    def remove_empty(self, folder: str) -> None:
        """Remove a folder if it exists and has nothing in it."""

    def lock(self) -> Any:
        """Lock the archive for the length of the block, as far as the place can."""


class Folder:
    """A folder of a file system; created when something is written to it."""

    has_lock = True

    def __init__(self, place: str | Path) -> None:
        self.name: str = folder_of(place)
        self._store = TableStore(self.name, is_private=True)

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        return self._store.read(path)

    def write(self, path: str, content: bytes) -> None:
        """Write a whole file, over an existing one."""
        self._store.write(path, content)

    def output(self, path: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file to write to; it gets its name when the block ends without an error."""
        return self._store.output(path)

    def names(self, folder: str) -> list[str]:
        """Return the names directly in a folder, those of unfinished files included."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return sorted(path.name for path in Path(self.name, folder).iterdir() if path.name != LOCK)
        return []

    def size(self, path: str) -> int | None:
        """Return a file's size."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return Path(self.name, path).stat().st_size
        return None

    def remove(self, path: str) -> None:
        """Remove a file or a folder.

        Nothing behind a link is removed, since another user may have put the link there. Only the folder of all backups
        may be a link, to another disk, if this user or root made it.

        Raises:
            BackupError: the path lies behind another link.
        """
        full = Path(self.name, path)
        inside = [parent for parent in full.parents if parent.is_relative_to(self.name) and parent != Path(self.name)]
        links = [each for each in inside if each.is_symlink()]
        if any(link != Path(self.name, BACKUPS) or link.lstat().st_uid not in (0, os.geteuid()) for link in links):
            raise BackupError(self.name, f"{path} lies behind a link; nothing is removed there")
        if full.is_dir() and not full.is_symlink():
            shutil.rmtree(full)
        else:
            full.unlink(missing_ok=True)

    def remove_empty(self, folder: str) -> None:
        """Remove a folder if it is empty."""
        with suppress(OSError):
            Path(self.name, folder).rmdir()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the archive; the system releases the lock when this process ends, in whatever way.

        Raises:
            BackupError: another process holds it.
        """
        make_folder(Path(self.name), 0o700, above=0o700)
        # The file stays for ever: if it were removed, a second process could lock the new one while the first still
        # holds the old.
        descriptor = os.open(Path(self.name, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BackupError(self.name, "another process is changing this archive; wait for it to end") from None
            yield
        finally:
            os.close(descriptor)


class ObjectPlace:
    """A prefix of a bucket in S3, Google's or Azure's store, or in one with the same interface.

    There is no lock: two runs that work on one backup notice each other by the run's id in its folder (create.py).

    Args:
        url: s3://BUCKET/PREFIX and similar; addresses and credentials come from the environment (lake/objects.py).

    Raises:
        OptionError: the store's library is not installed, or the url has a query.
    """

    has_lock = False

    def __init__(self, url: str) -> None:
        if urlsplit(url).query:
            form = "without options behind a question mark: AWS_ENDPOINT_URL, AWS_REGION and the like say them"
            raise OptionError("place", url, form)
        try:
            import_module(LIBRARIES[urlsplit(url).scheme])
        except ImportError as error:
            raise OptionError("place", url, _advice(url, error)) from None
        self._store = ObjectStore(url)
        self.name: str = self._store.root

    def read(self, path: str) -> bytes:
        """Return an object's bytes."""
        return self._store.read(path)

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes; None if there is none."""
        return self._store.size(path)

    def write(self, path: str, content: bytes) -> None:
        """Put an object in place, in one request."""
        with self._bucket(), self._store.output(path) as out:
            out.write(content)

    @contextmanager
    def output(self, path: str) -> Iterator[IO[bytes]]:
        """Yield a local file to write to; it is uploaded when the block ends without an error."""
        draft = Path(self._store.draft(path))
        try:
            with draft.open("wb") as out:
                yield out
            with self._bucket():
                self._store.publish(path)
        finally:
            draft.unlink(missing_ok=True)

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a prefix."""
        files = (file.path.rpartition("/")[2] for file in self._store.list(folder))
        names = sorted({*files, *self._store.folders(folder)})
        if not names and not self._store.has_bucket():
            self._no_bucket()
        return names

    def remove(self, path: str) -> None:
        """Remove an object, or all objects below a prefix."""
        self._store.remove_all(path)

    def remove_empty(self, folder: str) -> None:
        """Do nothing: a prefix without objects is not there."""

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock nothing: object stores have no lock that a killed process would release."""
        yield

    @contextmanager
    def _bucket(self) -> Iterator[None]:
        """Raise the error of a missing bucket if the store reports a missing object."""
        try:
            yield
        except FileNotFoundError:
            self._no_bucket()

    def _no_bucket(self) -> NoReturn:
        raise BackupError(self.name, "there is no such bucket; make it first, in the store's own way")


class FsspecPlace:
    """A place that another library of fsspec opens; it has no lock either."""

    has_lock = False

    def __init__(self, url: str) -> None:
        self.name = url
        try:
            self._fs, self._root = _opened_system(url)
        except (ImportError, ValueError) as error:
            raise OptionError("place", url, _advice(url, error)) from None

    def _full_path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def read(self, path: str) -> bytes:
        """Return a file's bytes."""
        return bytes(self._fs.cat_file(self._full_path(path)))

    def write(self, path: str, content: bytes) -> None:
        """Write a file."""
        self._fs.pipe_file(self._full_path(path), content)
        self._fs.invalidate_cache()

    @contextmanager
    def output(self, path: str) -> Iterator[IO[bytes]]:
        """Yield a local file to write to; it is uploaded when the block ends without an error."""
        with tempfile.NamedTemporaryFile(prefix="headwater-") as out:
            yield out
            out.flush()
            self._fs.put_file(out.name, self._full_path(path))
        self._fs.invalidate_cache()

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder."""
        root = self._full_path(folder)
        with suppress(FileNotFoundError):
            names = (str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(root, detail=False, refresh=True))
            return sorted({name for name in names if name and name != root.rpartition("/")[2]})
        return []

    def size(self, path: str) -> int | None:
        """Return a file's size."""
        with suppress(FileNotFoundError):
            return int(self._fs.info(self._full_path(path))["size"])
        return None

    def remove(self, path: str) -> None:
        """Remove a file or a folder."""
        with suppress(FileNotFoundError):
            self._fs.rm(self._full_path(path), recursive=True)
        self._fs.invalidate_cache()

    def remove_empty(self, folder: str) -> None:
        """Remove a folder if it is empty, in a place that has folders."""
        if not self.names(folder):  # `rmdir` of some libraries removes what is in it
            self.remove(folder)

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock nothing: no lock is known for such a place."""
        yield


def place_of(text: str) -> BackupPlace:
    """Return the place that a path, a file: url or another url names.

    Raises:
        OptionError: fsspec does not know the scheme, or a package for it is missing.
    """
    scheme = urlsplit(text).scheme
    if "://" not in text or scheme == "file":
        return Folder(text)
    return ObjectPlace(text) if scheme in LIBRARIES else FsspecPlace(text)


def _opened_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system and the path in it."""
    import fsspec  # noqa: PLC0415 -- folders do without it

    filesystem, root = fsspec.core.url_to_fs(url)
    return filesystem, root.rstrip("/")


def _advice(url: str, error: Exception) -> str:
    module = error.name if isinstance(error, ModuleNotFoundError) and error.name == "fsspec" else None
    package = PLUGINS.get(urlsplit(url).scheme) or module
    if package and isinstance(error, ImportError):
        return f"possible without {package}: pip install {package}"
    return f"a folder, or a URL that fsspec can open here ({error})"


class HashingFile(io.RawIOBase):
    """A file to write to that computes the size and the SHA-256 of its content."""

    def __init__(self, out: IO[bytes]) -> None:
        super().__init__()
        self._out, self._hash = out, hashlib.sha256()
        self.size: int = 0

    @property
    def sha256(self) -> str:
        """The SHA-256 of all that was written, in hex."""
        return self._hash.hexdigest()

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.size

    def write(self, data: Any) -> int:
        """Write bytes."""
        view = memoryview(data).cast("B")
        self._out.write(view)
        self._hash.update(view)
        self.size += len(view)
        return len(view)
