"""A table on an object store, by url, through fsspec: s3://BUCKET/PATH (s3a:// is the same) and gs://BUCKET/PATH.

An object appears whole or not at all. A commit is the store's own conditional put: If-None-Match on S3, generation 0 on
Google's. A store that takes a second put all the same would lose commits without a word, so each process that commits
asks it once, with an object made for that.

What Arrow writes becomes a local file first, and an object when it is whole. Indexes are fetched into a local file
without a name, and mapped. Addresses and credentials are those of the store's own library: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and AWS_REGION, or GOOGLE_APPLICATION_CREDENTIALS.
"""

from __future__ import annotations

import io
import mmap
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from headwater.errors import OptionError, TableError, TransportError
from headwater.lake.store import BESIDE, Listed, TableStore

SCHEMES = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs"}
"""Scheme of a url to that of fsspec."""

_LIBRARIES = {"s3": "s3fs", "gs": "gcsfs"}
READ_BYTES = 4 << 20
_REFUSED = "PreconditionFailed"
"""How S3 says that the object is there; s3fs makes an OSError of it, of no kind of its own."""

_PROBE = f"_delta_log/{BESIDE}probe-"


class ObjectStore(TableStore):
    """A prefix of a bucket.

    Args:
        place: its url.

    Raises:
        OptionError: a scheme without a put-if-absent that is known to hold, such as hdfs: or abfss:.
        TableError: the library of the store is not installed.
    """

    def __init__(self, place: str) -> None:
        url = urlsplit(place)
        if url.scheme not in SCHEMES or not url.netloc:
            allowed = "a folder, s3://BUCKET/PATH or gs://BUCKET/PATH; other file systems can be mounted"
            raise OptionError("to", place, allowed)
        self.root = place.rstrip("/")
        self._scheme = SCHEMES[url.scheme]
        self._files = _connected(self._scheme, self.root)
        self._drafts = tempfile.mkdtemp(prefix="headwater-draft-")
        weakref.finalize(self, shutil.rmtree, self._drafts, ignore_errors=True)
        self._asked = False

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
            return self._files.open(self._key(path), "rb", block_size=READ_BYTES)

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
    def output(self, path: str, *, durable: bool = True) -> Iterator[IO[bytes]]:
        """A file in memory; it becomes an object when the block ends well."""
        out = io.BytesIO()
        yield out
        with self._told():
            self._files.pipe_file(self._key(path), out.getvalue())

    def create(self, path: str, content: bytes) -> bool:
        """Put an object in place unless one is there; return whether it was us.

        Raises:
            TableError: the store puts a second object over a first all the same.
        """
        if not self._asked:
            self._ask()
        return self._put_new(path, content)

    def settle(self) -> None:
        """Do nothing: an object that was put has its name."""

    def remove(self, path: str) -> None:
        """Remove an object, or its draft; none is as good."""
        Path(self.draft(path)).unlink(missing_ok=True)
        with self._told(), suppress(FileNotFoundError):
            self._files.rm_file(self._key(path))

    def list(self, folder: str = "") -> list[Listed]:
        """Return the objects directly below a folder of the table, by name."""
        with self._told(), suppress(FileNotFoundError):
            seen = self._files.ls(self._key(folder) if folder else self._key("").rstrip("/"), detail=True)
            found = [each for each in seen if each["type"] == "file" and each["size"] is not None]
            paths = [(each["name"].rpartition("/")[2], each) for each in found]
            listed = [
                Listed(f"{folder}/{name}" if folder else name, int(each["size"]), _modified(each))
                for name, each in paths
                if name
            ]
            return sorted(listed, key=lambda each: each.path)
        return []

    def _key(self, path: str) -> str:
        """The object's name as fsspec has it, which takes s3a: for s3: and gcs: for gs:."""
        url = urlsplit(self.full(path))
        return f"{url.netloc}{url.path}"

    def _put_new(self, path: str, content: bytes) -> bool:
        try:
            with self._told():
                self._files.pipe_file(self._key(path), content, mode="create")
        except OSError as error:
            if isinstance(error, FileExistsError) or _REFUSED in repr(error.__cause__ or error):
                return False
            raise
        return True

    def _ask(self) -> None:
        probe = f"{_PROBE}{uuid.uuid4().hex}"
        try:
            if not self._put_new(probe, b"1") or self._put_new(probe, b"2"):
                told = "the store does not keep a put to objects that are not there yet (If-None-Match)"
                raise TableError(self.root, f"{told}; two writers would overwrite each other's commits")
        finally:
            self.remove(probe)
        self._asked = True

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Give errors of the store's library, which are of many kinds, a kind and the table's name."""
        try:
            yield
        except OSError:
            raise
        except Exception as error:
            raise TransportError(f"{self.root}: {type(error).__name__}: {error}") from error


def _connected(scheme: str, place: str) -> Any:
    try:
        import fsspec

        # Whatever is remembered of listings may be older than another writer's commit.
        return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)
    except ImportError:
        library = _LIBRARIES[scheme]
        raise TableError(place, f"{scheme}: needs {library}: pip install 'headwater[{scheme}]'") from None


def _modified(listed: dict[str, Any]) -> float:
    """When an object was put, Unix seconds; stores name it differently. Infinite where it is not told: never old."""
    for name in ("LastModified", "mtime", "updated"):
        if (told := listed.get(name)) is not None:
            return (datetime.fromisoformat(told) if isinstance(told, str) else told).timestamp()
    return float("inf")
