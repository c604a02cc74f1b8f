"""Small text files: a line with title, format and checksum, then the body.

    headwater-store 1 0123456789abcdef          XXH3-64 of the body, in hex
    {"clean": null, ...}                        the body; the line break at its end is not part of it

Such a file is written whole and replaces the old one by a rename, so it is never partly there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import xxhash

from headwater.errors import CorruptStore, DiskFull, StorageError, UnsureFile
from headwater.failpoints import failpoint
from headwater.node.storage.disk import Disk, is_full

__all__ = ["WholeFile", "decode_text_file", "encode_text_file", "write_synced"]


def encode_text_file(title: str, version: str, body: bytes) -> bytes:
    """Return the bytes of a file; `title` and `version` name the format, one word each."""
    return f"{title} {version} {xxhash.xxh3_64_hexdigest(body)}\n".encode() + body + b"\n"


def write_synced(disk: Disk, path: Path, data: bytes) -> None:
    """Write a new file, which will then be renamed; its bytes are on disk on return. Raises OSError if that fails."""
    file = disk.create(path, 0)
    try:
        file.write([data], 0)
        file.sync()
    # The sync comes before the rename, or a power cut could leave the new name on a file without its bytes.
    finally:
        file.close()


class WholeFile:
    """A file that is replaced as a whole, or keeps its old content: a refused change must not be in force after a
    restart.

    The sync of the folder may fail after the rename. Then the old file is put back. If the disk refuses that too,
    either file may be there after a crash, and the file is `unsure` until `settle` or another change succeeds.

    Args:
        disk: the disk.
        path: the path of the file.
        fresh: the path under which a new file is written before the rename.
        failpoints: the failpoint before the rename, and the one before the sync of the folder.
    """

    def __init__(self, disk: Disk, path: Path, fresh: Path, failpoints: tuple[str, str]) -> None:
        self.path = path
        self._disk, self._fresh, self._failpoints = disk, fresh, failpoints
        self._lock = threading.Lock()
        self._doubtful: bytes | None = None  # while unsure: the old content; `_refused` has the digests of refused ones
        self._refused = set[int]()

    @property
    def unsure(self) -> bool:
        """True if a refused change may be on disk."""
        return bool(self._refused)

    def replace(self, data: bytes, check: Callable[[Path], None] | None = None) -> None:
        """Replace the file; the new content is durable on return. Blocks while the disk works.

        Args:
            data: the new content.
            check: reads the new file before the rename, and raises an error to refuse it.

        Raises:
            DiskFull, StorageError: the old file is still there.
            UnsureFile: either file may be there after a restart.
        """
        with self._lock:
            try:
                self._replace(data, self._before(), check)
            except OSError as error:
                why = error.strerror or str(error)
                if self.unsure:
                    raise UnsureFile(self.path, why) from error
                if is_full(error):
                    raise DiskFull(self.path, len(data)) from error
                raise StorageError(f"{self.path}: {why}; nothing was changed") from error
            self._refused.clear()

    def settle(self) -> bool:
        """If a refused file may be on disk, put the old one back; return True if the old file is certainly on disk."""
        with self._lock:
            if self._refused:
                with suppress(OSError):
                    self._put(self._before())
                    self._refused.clear()
            return not self._refused

    def _replace(self, data: bytes, before: bytes | None, check: Callable[[Path], None] | None) -> None:
        write_synced(self._disk, self._fresh, data)
        if check is not None:
            check(self._fresh)
        try:
            failpoint(self._failpoints[0])
            self._disk.rename(self._fresh, self.path)
            failpoint(self._failpoints[1])
            self._disk.sync_directory(self.path.parent)
        # The rename may have succeeded before the folder's sync failed. The caller refuses the change, so it must not
        # be in force after a restart.
        except OSError:
            self._put_back(before, xxhash.xxh3_64_intdigest(data))
            raise

    def _put_back(self, before: bytes | None, refused: int) -> None:
        with suppress(OSError):
            # The rename did not take place, and no earlier refusal is in doubt, so the old file is there.
            if self._content() == before and not self._refused:
                return
        self._doubtful = before
        # Noted before the attempt to put the old file back, which may fail half-way and leave either on disk.
        self._refused.add(refused)
        with suppress(OSError):
            self._put(before)
            self._refused.clear()

    def _before(self) -> bytes | None:
        """Return the newest content that was not refused."""
        content = self._content()
        # Content with an unknown digest was written later by another process (`headwater user`), and is the newest.
        if self._refused and content is not None and xxhash.xxh3_64_intdigest(content) in self._refused:
            return self._doubtful
        return content

    def _put(self, data: bytes | None) -> None:
        if data is not None:
            write_synced(self._disk, self._fresh, data)
            self._disk.rename(self._fresh, self.path)
        elif self._content() is not None:
            self._disk.remove(self.path)
        self._disk.sync_directory(self.path.parent)

    def _content(self) -> bytes | None:
        return self._disk.read(self.path) if self.path.name in self._disk.names(self.path.parent) else None


def decode_text_file(data: bytes, path: Path, title: str, versions: Sequence[str], what: str) -> bytes:
    """Return the body of a small text file.

    Args:
        data: the bytes of the file.
        path: its path, for errors.
        title: the title that it must have.
        versions: the formats that it may have, oldest first.
        what: the noun for the file, for errors.

    Raises:
        CorruptStore: the file has another title, or was changed since it was written.
        StorageError: the file has another format.
    """
    line, _, body = data.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != title or len(words) != 3:
        raise CorruptStore(path, 0, f"not a {what}")
    # The format is checked before the checksum, because a newer format may have another kind of checksum.
    if words[1] not in versions:
        raise StorageError(
            f"{path}: format {words[1]}; this headwater reads up to format {versions[-1]}, use a newer one"
        )
    body = body.removesuffix(b"\n")
    if xxhash.xxh3_64_hexdigest(body) != words[2]:
        raise CorruptStore(path, len(line) + 1, f"the checksum of the {what} is wrong")
    return body
