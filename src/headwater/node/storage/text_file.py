"""Small files of text: a line with title, format and checksum, then the body.

    headwater-store 1 0123456789abcdef          XXH3-64 of the body, in hex
    {"clean": null, ...}                        the body; the line break at its end is not part of it

Such a file is written whole and takes the place of the one before by a rename, so it is never there in part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import xxhash

from headwater.errors import CorruptStore, StorageError
from headwater.node.storage.disk import Disk

__all__ = ["NotPutBackError", "decode_text_file", "encode_text_file", "put_back", "write_synced"]


def encode_text_file(title: str, version: str, body: bytes) -> bytes:
    """Return the bytes of a file; `title` and `version`, of the format, are one word each."""
    return f"{title} {version} {xxhash.xxh3_64_hexdigest(body)}\n".encode() + body + b"\n"


def write_synced(disk: Disk, path: Path, data: bytes) -> None:
    """Write a new file, to be renamed into its place; its bytes are on the disk on return. Raises OSError."""
    file = disk.create(path, 0)
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()


class NotPutBackError(OSError):
    """Neither is a new file durable in its place nor could the one before be put back: a crash may leave either."""


@contextmanager
def put_back(disk: Disk, path: Path, fresh: Path) -> Iterator[None]:
    """Put the file of before back, or none if there was none, when a block fails that gives `path` another one.

    A folder may refuse to be synced behind the rename: whoever hears that nothing was changed must not find the change
    after a restart.

    Args:
        fresh: the name under which a file is written before it takes its place.

    Raises:
        NotPutBackError: the disk did not take the file of before either. OSError: as the block did.
    """
    before = _content(disk, path)
    try:
        yield
    except OSError as error:
        try:
            if _content(disk, path) != before:
                _put(disk, path, fresh, before)
        except OSError:
            raise NotPutBackError(error.errno, error.strerror, str(path)) from error
        raise


def _put(disk: Disk, path: Path, fresh: Path, data: bytes | None) -> None:
    if data is None:
        disk.remove(path)
    else:
        write_synced(disk, fresh, data)
        disk.rename(fresh, path)
    disk.sync_directory(path.parent)


def _content(disk: Disk, path: Path) -> bytes | None:
    return disk.read(path) if path.name in disk.names(path.parent) else None


def decode_text_file(data: bytes, path: Path, title: str, versions: Sequence[str], what: str) -> bytes:
    """Return the body of the file at `path`, which is to be `what` in one of the formats that we read.

    Raises:
        CorruptStore: it is none, or not what was written.
        StorageError: another format.
    """
    line, _, body = data.partition(b"\n")
    words = line.decode("ascii", "replace").split(" ")
    if words[0] != title or len(words) != 3:
        raise CorruptStore(path, 0, f"not a {what}")
    if words[1] not in versions:
        raise StorageError(
            f"{path}: format {words[1]}; this headwater reads up to format {versions[-1]}, use a newer one"
        )
    body = body.removesuffix(b"\n")
    if xxhash.xxh3_64_hexdigest(body) != words[2]:
        raise CorruptStore(path, len(line) + 1, f"the checksum of the {what} is wrong")
    return body
