"""A table on an object store, by url, through fsspec: s3://BUCKET/PATH (s3a:// is the same), gs://BUCKET/PATH and
abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.

An object appears whole or not at all. A commit is the store's own conditional put: If-None-Match on S3 and Azure,
generation 0 on Google's. A store that accepted a second put of the same name would lose commits silently, so each
process tests the store once before its first commit, with an object of its own.

Arrow's output becomes a local file first, and an object once it is whole. Indexes are fetched into a local file without
a name, and mapped. Addresses and credentials are those of the store's own library: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY.
Refused credentials and a missing bucket are not outages: they end a mirror.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from importlib import import_module
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Any, ClassVar
from urllib.parse import urlsplit

from headwater.errors import ConnectionLost, OptionError, TableError
from headwater.lake.store import DRAFT_PREFIX, Before, Listed, TableStore, mapped_file

LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Scheme of a url -> the package that fsspec needs for it; each of them has a conditional put (`mode="create"`)."""

READ_BYTES = 4 << 20
_REFUSED = "PreconditionFailed"
"""S3's error code when the object exists; s3fs raises it as a plain OSError."""

_UNDECIDED = "ConditionalRequestConflict"
"""S3's error code when another put of the object is under way, so that the winner is not decided yet."""

PROBES = 3
UNDECIDED_MAX, UNDECIDED_SECONDS = 20, 0.1
_LASTING = re.compile("(No|Partial|Default)Credentials|CERTIFICATE_VERIFY_FAILED|(Client)?AuthenticationError")
"""Errors of the stores' libraries that another try would meet again; forbidden requests come as PermissionError."""

_OWN = ("AWS_", "GOOGLE_", "GCSFS_", "AZURE_", "FSSPEC_")
_ADVICE = "look at the credentials, the bucket's name and the certificates in this process's environment"
_PROBE = f"_delta_log/{DRAFT_PREFIX}probe-"


class ObjectStore(TableStore):
    """The files of a table, as objects below one prefix of a bucket.

    Args:
        place: url of the prefix.

    Raises:
        OptionError: a scheme whose put-if-absent is not known to hold, such as hdfs:.
        TableError: the store's library is not installed.
    """

    def __init__(self, place: str) -> None:
        url = urlsplit(place)
        if url.scheme not in LIBRARIES or not url.netloc:
            raise OptionError("to", place, "a folder, or a url of s3:, gs: or abfss:; HDFS and others can be mounted")
        self.root: str = place.rstrip("/")
        self._connection, self._top = _connected(self.root)
        self._files = self._connection.files

    def __repr__(self) -> str:
        return f"ObjectStore({self.root})"

    def full(self, path: str) -> str:
        """Return the url of a file of the table; a path that is a url already is returned unchanged."""
        return path if "://" in path else f"{self.root}/{path}"

    def read(self, path: str) -> bytes:
        """Return an object's bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._own_errors():
            return bytes(self._files.cat_file(self._key(path)))

    def opened(self, path: str) -> Any:
        """Return an object as a file that is read in parts."""
        with self._own_errors():
            return _ObjectFile(
                self._files.open(self._key(path), "rb", block_size=READ_BYTES), self.root, self._own_errors
            )

    MAPPED_MAX: ClassVar[int] = 512
    maps_files: ClassVar[bool] = False

    def mapped(self, path: str) -> memoryview | None:
        """Return an object's bytes, mapped from a local file without a name; None if it is missing or empty."""
        try:
            content = self.read(path)
        except FileNotFoundError:
            return None
        if not content:
            return None
        with tempfile.NamedTemporaryFile() as local:
            local.write(content)
            local.flush()
            return mapped_file(local.name)

    @cached_property
    def _drafts(self) -> str:
        """The folder of drafts: created with the first, removed with the store or when any kind of process ends."""
        folder = tempfile.mkdtemp(prefix="headwater-draft-")
        Finalize(self, shutil.rmtree, (folder, True), exitpriority=0)
        return folder

    def draft(self, path: str) -> str:
        """Return the path of a local file to write to."""
        return str(Path(self._drafts, path.replace("/", "_")))

    def publish(self, path: str) -> int:
        """Upload the draft as the object; return its size."""
        draft = Path(self.draft(path))
        with self._own_errors():
            self._files.put_file(str(draft), self._key(path))
        size = draft.stat().st_size
        draft.unlink()
        return size

    def exists(self, path: str) -> bool:
        """Return True if there is such an object."""
        with self._own_errors():
            return bool(self._files.exists(self._key(path)))

    @contextmanager
    def output(self, path: str, *, durable: bool = True, before: Before | None = None) -> Iterator[IO[bytes]]:
        """Yield a file in memory. It becomes an object when the block ends without an error and `before` is unchanged
        before and after the put; otherwise the object is removed again."""
        out = io.BytesIO()
        yield out
        self._check_before(before)
        with self._own_errors():
            self._files.pipe_file(self._key(path), out.getvalue())
        self._check_before(before, put=path)

    def create(self, path: str, content: bytes, before: Before | None = None) -> bool:
        """Put an object in place unless there is one; return False if there was. That object may be our own: the
        store's library repeats a put whose answer was lost.

        Args:
            path: in the table.
            content: its bytes.
            before: an object that must be there unchanged.

        Raises:
            TableError: the store accepts a second put of the same name, or there is no such bucket.
        """
        if not self._connection.is_tested:
            self._test_conditions()
        if before is None:
            return self._put_new(path, content)
        self._check_before(before)
        put = self._put_new(path, content)
        self._check_before(before, put=path if put else None)
        return put

    def _check_before(self, before: Before | None, put: str | None = None) -> None:
        """Check that the `before` object is there unchanged; if not, remove the object that was `put`.

        No put can be conditional on another object: the removal of the whole log, for example, is noticed only after
        the put, before anybody can have continued our commit. If the store does not answer, our object stays: somebody
        may have continued from it by then, and removing it would leave a gap.
        """
        if before is None:
            return
        earlier, check = before
        # Outside of the `try`: a store that does not answer must not remove our object, for somebody may have continued
        # it.
        still = self._content(earlier)
        try:
            check(still)
        except BaseException:
            if put is not None:
                self.remove(put)
            raise

    def _content(self, path: str) -> bytes | None:
        try:
            return self.read(path)
        except FileNotFoundError:
            return None

    def settle(self, folder: str = "") -> None:
        """Do nothing: an object has its name as soon as it is put."""

    def remove(self, path: str, before: Before | None = None) -> None:
        """Remove an object and its draft; a missing one is no error.

        Args:
            before: an object that must be there unchanged; None for no check.
        """
        self._check_before(before)
        Path(self.draft(path)).unlink(missing_ok=True)
        with self._own_errors(), suppress(FileNotFoundError):
            self._files.rm_file(self._key(path))

    def list(self, folder: str = "") -> list[Listed]:
        """Return the objects directly below a folder of the table, by name."""
        with self._own_errors(), suppress(FileNotFoundError):
            entries = self._files.ls(self._key(folder) if folder else self._top, detail=True)
            files = [entry for entry in entries if entry["type"] == "file" and entry["size"] is not None]
            paths = [(file["name"].rpartition("/")[2], file) for file in files]
            result = [
                Listed(f"{folder}/{name}" if folder else name, int(entry["size"]), _modified(entry))
                for name, entry in paths
                if name
            ]
            return sorted(result, key=lambda each: each.path)
        return []

    def folders(self, folder: str = "") -> tuple[str, ...]:
        """Return the names of the folders below a folder."""
        with self._own_errors(), suppress(FileNotFoundError):
            entries = self._files.ls(self._key(folder) if folder else self._top, detail=True)
            below = (entry["name"].rstrip("/") for entry in entries if entry["type"] == "directory")
            return tuple(sorted(path.rpartition("/")[2] for path in below))
        return ()

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes, None if there is none."""
        with self._own_errors(), suppress(FileNotFoundError):
            return int(self._files.info(self._key(path))["size"])
        return None

    def remove_all(self, path: str) -> None:
        """Remove an object and all objects below a prefix; missing ones are no error."""
        with self._own_errors(), suppress(FileNotFoundError):
            self._files.rm(self._key(path), recursive=True)

    def has_bucket(self) -> bool:
        """Return True if the bucket exists."""
        with self._own_errors():
            return bool(self._files.exists(self._top.partition("/")[0]))

    def _key(self, path: str) -> str:
        """Return the object's name as the library takes it."""
        return str(self._files._strip_protocol(path)) if "://" in path else f"{self._top}/{path}"

    def _put_new(self, path: str, content: bytes) -> bool:
        for undecided in range(UNDECIDED_MAX + 1):
            try:
                with self._own_errors():
                    self._files.pipe_file(self._key(path), content, mode="create")
            except FileNotFoundError as error:
                raise TableError(self.root, f"there is no such bucket: {error}") from error
            except OSError as error:
                problem = repr(error.__cause__ or error)
                # Another put of the same name is under way, so this one has neither won nor lost: it goes out again
                # until the store has decided.
                if _UNDECIDED in problem and undecided < UNDECIDED_MAX:
                    time.sleep(UNDECIDED_SECONDS)
                    continue
                # Only these answers mean that the name is taken. Whatever else is raised says nothing about the object.
                if isinstance(error, FileExistsError) or _REFUSED in problem:
                    return False
                raise
            return True
        raise AssertionError("the last round returns or raises")

    def _test_conditions(self) -> None:
        # Of a put whose answer was lost the library's second try is refused: that says nothing of the store.
        if not any(self._keeps_conditions() for _ in range(PROBES)):
            raise TableError(self.root, "the store refuses every put to objects that are not there yet (If-None-Match)")
        self._connection.is_tested = True

    def _keeps_conditions(self) -> bool:
        """Return True if the store accepted a put to a new name and refused a second put to it.

        Raises:
            TableError: it accepts the second put.
        """
        probe = f"{_PROBE}{uuid.uuid4().hex}"
        try:
            if not self._put_new(probe, b"1"):
                return False
            if self._put_new(probe, b"2"):
                problem = "the store does not keep a put to objects that are not there yet (If-None-Match)"
                raise TableError(self.root, f"{problem}; two writers would overwrite each other's commits")
        finally:
            self.remove(probe)
        return True

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Convert the errors of the store's library to ours, with the table's place."""
        try:
            yield
        except PermissionError as error:
            raise TableError(self.root, f"the store refuses: {error}; {_ADVICE}") from error
        # Callers tell a missing object from one that is there by these classes, so they pass unchanged.
        except OSError:
            raise
        except Exception as error:  # its errors have no class in common
            problem = f"{type(error).__name__}: {error}"
            if _LASTING.search(problem):
                raise TableError(self.root, f"{problem}; {_ADVICE}") from error
            raise ConnectionLost(self.root, problem) from error


class _ObjectFile:
    """An object as a file that Arrow reads.

    Readers take every OSError for damage of the file. Errors of the store, such as an outage, are therefore raised as
    our own class, which readers let through.
    """

    def __init__(self, file: Any, place: str, guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._file, self._place, self._guard = file, place, guard

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        return bool(self._file.closed)

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, or all that are left."""
        try:
            with self._guard():
                return bytes(self._file.read(size))
        except OSError as error:
            raise ConnectionLost(self._place, str(error)) from error

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position; return it."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass
class _Shared:
    """A process's connection to one bucket: creating it costs a tenth of a second and more."""

    files: Any
    is_tested: bool = False
    """True once the store passed the test of its conditional put; see `create`."""


_ways: dict[tuple[object, ...], _Shared] = {}


def _connected(place: str) -> tuple[_Shared, str]:
    """Return the connection to a place's bucket, and the place as the library takes it."""
    url = urlsplit(place)
    library = LIBRARIES[url.scheme]
    # Other settings in the environment need another connection, and so does a forked process.
    settings = tuple(sorted(item for item in os.environ.items() if item[0].startswith(_OWN)))
    who = (os.getpid(), library, url.netloc, settings)
    try:
        import_module(library)  # fsspec names some schemes only once this is there
        from fsspec.core import url_to_fs

        # No cached listings: they may be older than another writer's commit.
        if who not in _ways:
            _ways[who] = _Shared(url_to_fs(place, use_listings_cache=False, skip_instance_cache=True)[0])
    except ImportError:
        raise TableError(place, f"its store needs {library}: pip install '{library}'") from None
    except ValueError as error:  # adlfs looks for an account at once
        raise TableError(place, f"{error}; {_ADVICE}") from error
    return _ways[who], str(_ways[who].files._strip_protocol(place)).rstrip("/")


def _modified(details: dict[str, Any]) -> float:
    """Return the Unix time at which an object was put, under a store's name for it; infinity (never old) if unknown."""
    for name in ("LastModified", "mtime", "updated", "last_modified"):
        if (value := details.get(name)) is not None:
            return (datetime.fromisoformat(value) if isinstance(value, str) else value).timestamp()
    return float("inf")
