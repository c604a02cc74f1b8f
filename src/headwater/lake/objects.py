"""A table on an object store, by url, through fsspec: s3://BUCKET/PATH (s3a:// is the same), gs://BUCKET/PATH and
abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.

An object appears whole or not at all. A commit is the store's own conditional put: If-None-Match on S3 and Azure,
generation 0 on Google's. A store that takes a second put all the same would lose commits without a word, so each
process that commits asks it once, with an object made for that.

What Arrow writes becomes a local file first, and an object when it is whole. Indexes are fetched into a local file
without a name, and mapped. Addresses and credentials are those of the store's own library: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY. What
the store refuses for them, or because there is no such bucket, is no outage: it ends a mirror.
"""

from __future__ import annotations

import io
import mmap
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
from typing import IO, Any
from urllib.parse import urlsplit

from headwater.errors import ConnectionLost, OptionError, TableError
from headwater.lake.store import BESIDE, Before, Listed, TableStore

LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "abfss": "adlfs"}
"""Scheme of a url -> the package that fsspec needs for it; each of them puts under a condition (`mode="create"`)."""

READ_BYTES = 4 << 20
_REFUSED = "PreconditionFailed"
"""How S3 says that the object is there; s3fs makes an OSError of it, of no kind of its own."""

_UNDECIDED = "ConditionalRequestConflict"
"""How S3 says that another put of the object is under way: which of the two is first is not decided."""

PROBES = 3
UNDECIDED_MAX, UNDECIDED_SECONDS = 20, 0.1
_LASTING = re.compile("(No|Partial|Default)Credentials|CERTIFICATE_VERIFY_FAILED|(Client)?AuthenticationError")
"""Errors of the stores' libraries that another try meets again; what is forbidden comes as a PermissionError."""

_OWN = ("AWS_", "GOOGLE_", "GCSFS_", "AZURE_", "FSSPEC_")
_ADVICE = "look at the credentials, the bucket's name and the certificates in this process's environment"
_PROBE = f"_delta_log/{BESIDE}probe-"


class ObjectStore(TableStore):
    """A prefix of a bucket.

    Args:
        place: its url.

    Raises:
        OptionError: a scheme without a put-if-absent that is known to hold, such as hdfs:.
        TableError: the library of the store is not installed.
    """

    def __init__(self, place: str) -> None:
        url = urlsplit(place)
        if url.scheme not in LIBRARIES or not url.netloc:
            raise OptionError("to", place, "a folder, or a url of s3:, gs: or abfss:; HDFS and others can be mounted")
        self.root = place.rstrip("/")
        self._shared, self._top = _connected(self.root)
        self._files = self._shared.files

    def __repr__(self) -> str:
        return f"ObjectStore({self.root})"

    def full(self, path: str) -> str:
        """Return the url of a file of the table; one that is whole stays as it is."""
        return path if "://" in path else f"{self.root}/{path}"

    def read(self, path: str) -> bytes:
        """Return an object's bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        with self._told():
            return bytes(self._files.cat_file(self._key(path)))

    def opened(self, path: str) -> Any:
        """Return an object as a file that is read piece by piece."""
        with self._told():
            return _Opened(self._files.open(self._key(path), "rb", block_size=READ_BYTES), self.root, self._told)

    def mapped(self, path: str) -> mmap.mmap | None:
        """Return an object's bytes in a local file without a name; None if there is none, or it is empty."""
        try:
            content = self.read(path)
        except FileNotFoundError:
            return None
        if not content:
            return None
        with tempfile.TemporaryFile() as local:
            local.write(content)
            local.flush()
            return mmap.mmap(local.fileno(), 0, access=mmap.ACCESS_READ)

    @cached_property
    def _drafts(self) -> str:
        """The folder of drafts: made with the first, gone with the store or its process, one of multiprocessing too."""
        made = tempfile.mkdtemp(prefix="headwater-draft-")
        Finalize(self, shutil.rmtree, (made, True), exitpriority=0)
        return made

    def draft(self, path: str) -> str:
        """Return a local file to write to."""
        return str(Path(self._drafts, path.replace("/", "_")))

    def publish(self, path: str) -> int:
        """Make an object of its draft; return its size."""
        draft = Path(self.draft(path))
        with self._told():
            self._files.put_file(str(draft), self._key(path))
        size = draft.stat().st_size
        draft.unlink()
        return size

    def exists(self, path: str) -> bool:
        """Whether there is such an object."""
        with self._told():
            return bool(self._files.exists(self._key(path)))

    @contextmanager
    def output(self, path: str, *, durable: bool = True, before: Before | None = None) -> Iterator[IO[bytes]]:
        """A file in memory; it becomes an object when the block ends well, and `before` is as it was before and after:
        else it is removed again."""
        out = io.BytesIO()
        yield out
        self._check_before(before)
        with self._told():
            self._files.pipe_file(self._key(path), out.getvalue())
        self._check_before(before, put=path)

    def create(self, path: str, content: bytes, before: Before | None = None) -> bool:
        """Put an object in place unless one is there; return False where the name was taken, perhaps by ourselves: the
        store's library repeats a put whose answer was lost.

        Args:
            path: in the table.
            content: its bytes.
            before: an object that must be there as it was.

        Raises:
            TableError: the store puts a second object over a first all the same, or there is no such bucket.
        """
        if not self._shared.asked:
            self._ask()
        if before is None:
            return self._put_new(path, content)
        self._check_before(before)
        put = self._put_new(path, content)
        self._check_before(before, put=path if put else None)
        return put

    def _check_before(self, before: Before | None, put: str | None = None) -> None:
        """See to it that an object is there as it was; what was `put` is removed where it is not.

        No put is conditional on another object: one that was removed meanwhile, with the whole log, is noticed now,
        before anybody can have gone on from ours. Where the store does not answer ours stays: somebody may have gone
        on from it by the time that it gives up, and a commit that is taken back then leaves a gap.
        """
        if before is None:
            return
        other, check = before
        still = self._content(other)
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

    def settle(self) -> None:
        """Do nothing: an object that was put has its name."""

    def remove(self, path: str, before: Before | None = None) -> None:
        """Remove an object, or its draft; none is as good. `before` is an object that must be there."""
        self._check_before(before)
        Path(self.draft(path)).unlink(missing_ok=True)
        with self._told(), suppress(FileNotFoundError):
            self._files.rm_file(self._key(path))

    def list(self, folder: str = "") -> list[Listed]:
        """Return the objects directly below a folder of the table, by name."""
        with self._told(), suppress(FileNotFoundError):
            seen = self._files.ls(self._key(folder) if folder else self._top, detail=True)
            found = [each for each in seen if each["type"] == "file" and each["size"] is not None]
            paths = [(each["name"].rpartition("/")[2], each) for each in found]
            listed = [
                Listed(f"{folder}/{name}" if folder else name, int(each["size"]), _modified(each))
                for name, each in paths
                if name
            ]
            return sorted(listed, key=lambda each: each.path)
        return []

    def folders(self, folder: str = "") -> tuple[str, ...]:
        """Return the names under which there are objects below a folder."""
        with self._told(), suppress(FileNotFoundError):
            seen = self._files.ls(self._key(folder) if folder else self._top, detail=True)
            below = (each["name"].rstrip("/") for each in seen if each["type"] == "directory")
            return tuple(sorted(path.rpartition("/")[2] for path in below))
        return ()

    def size(self, path: str) -> int | None:
        """Return an object's size in bytes, None if there is none."""
        with self._told(), suppress(FileNotFoundError):
            return int(self._files.info(self._key(path))["size"])
        return None

    def remove_all(self, path: str) -> None:
        """Remove an object, and all below a prefix; none is as good."""
        with self._told(), suppress(FileNotFoundError):
            self._files.rm(self._key(path), recursive=True)

    def has_bucket(self) -> bool:
        """Whether there is such a bucket."""
        with self._told():
            return bool(self._files.exists(self._top.partition("/")[0]))

    def _key(self, path: str) -> str:
        """The object's name as the library has it."""
        return str(self._files._strip_protocol(path)) if "://" in path else f"{self._top}/{path}"

    def _put_new(self, path: str, content: bytes) -> bool:
        for undecided in range(UNDECIDED_MAX + 1):
            try:
                with self._told():
                    self._files.pipe_file(self._key(path), content, mode="create")
            except FileNotFoundError as error:
                raise TableError(self.root, f"there is no such bucket: {error}") from error
            except OSError as error:
                told = repr(error.__cause__ or error)
                if _UNDECIDED in told and undecided < UNDECIDED_MAX:
                    time.sleep(UNDECIDED_SECONDS)
                    continue
                if isinstance(error, FileExistsError) or _REFUSED in told:
                    return False
                raise
            return True
        raise AssertionError("the last round returns or raises")

    def _ask(self) -> None:
        # Of a put whose answer was lost the library's second try is refused: that says nothing of the store.
        if not any(self._keeps_conditions() for _ in range(PROBES)):
            raise TableError(self.root, "the store refuses every put to objects that are not there yet (If-None-Match)")
        self._shared.asked = True

    def _keeps_conditions(self) -> bool:
        """Whether the store takes a put to an object that is not there, and no second one.

        Raises:
            TableError: it takes a second one.
        """
        probe = f"{_PROBE}{uuid.uuid4().hex}"
        try:
            if not self._put_new(probe, b"1"):
                return False
            if self._put_new(probe, b"2"):
                told = "the store does not keep a put to objects that are not there yet (If-None-Match)"
                raise TableError(self.root, f"{told}; two writers would overwrite each other's commits")
        finally:
            self.remove(probe)
        return True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Give errors of the store's library, which are of many kinds, a kind and the table's name."""
        try:
            yield
        except PermissionError as error:
            raise TableError(self.root, f"the store refuses: {error}; {_ADVICE}") from error
        except OSError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if _LASTING.search(told):
                raise TableError(self.root, f"{told}; {_ADVICE}") from error
            raise ConnectionLost(self.root, told) from error


class _Opened:
    """An object for Arrow to read.

    Readers take every OSError for damage of the file. What the store says, such as that it is away, is raised as an
    error of ours, which they let through.
    """

    def __init__(self, file: Any, place: str, guard: Callable[[], AbstractContextManager[None]]) -> None:
        self._file, self._place, self._guard = file, place, guard

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return bool(self._file.closed)

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes, or all that are left."""
        try:
            with self._guard():
                return bytes(self._file.read(size))
        except OSError as error:
            raise ConnectionLost(self._place, str(error)) from error

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; return where that is."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close it."""
        self._file.close()


@dataclass
class _Shared:
    """A process's way to one bucket: making it costs a tenth of a second and more."""

    files: Any
    asked: bool = False
    """Whether it keeps to conditions; see `create`."""


_ways: dict[tuple[object, ...], _Shared] = {}


def _connected(place: str) -> tuple[_Shared, str]:
    """Return the way to a place's bucket, and the place as the library has it."""
    url = urlsplit(place)
    library = LIBRARIES[url.scheme]
    # What the libraries take from the environment makes another way of it, and so does a fork.
    told = tuple(sorted(each for each in os.environ.items() if each[0].startswith(_OWN)))
    who = (os.getpid(), library, url.netloc, told)
    try:
        import_module(library)  # fsspec names some schemes only once this is there
        from fsspec.core import url_to_fs

        # Whatever is remembered of listings may be older than another writer's commit.
        if who not in _ways:
            _ways[who] = _Shared(url_to_fs(place, use_listings_cache=False, skip_instance_cache=True)[0])
    except ImportError:
        raise TableError(place, f"its store needs {library}: pip install '{library}'") from None
    except ValueError as error:  # adlfs looks for an account at once
        raise TableError(place, f"{error}; {_ADVICE}") from error
    return _ways[who], str(_ways[who].files._strip_protocol(place)).rstrip("/")


def _modified(listed: dict[str, Any]) -> float:
    """When an object was put, Unix seconds; stores name it differently. Infinite where none is known: never old."""
    for name in ("LastModified", "mtime", "updated", "last_modified"):
        if (told := listed.get(name)) is not None:
            return (datetime.fromisoformat(told) if isinstance(told, str) else told).timestamp()
    return float("inf")
