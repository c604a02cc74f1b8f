"""The folder of a bucket. It is created with a file that names the bucket, and only removed if this file still does.

BUCKET: `headwater-bucket 1 <XXH3-64 of the rest>` and JSON, {"name": "orders", "uuid": "..."}. This file is created
first and removed last, so that a folder which a person has moved or copied here is never mistaken for the bucket's own.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from headwater.errors import CorruptStore, StorageError
from headwater.failpoints import failpoint
from headwater.node.buckets.file import BucketEntry
from headwater.node.storage.disk import Disk
from headwater.node.storage.text_file import decode_text_file, encode_text_file, write_synced
from headwater.wire.json_text import read_json

__all__ = ["NAME", "check", "make", "remove"]

NAME: Final = "BUCKET"
_NEXT_NAME: Final = "BUCKET.new"
_TITLE: Final = "headwater-bucket"
_FORMAT: Final = "1"


def make(disk: Disk, folder: Path, entry: BucketEntry) -> None:
    """Create a bucket's folder, with only the file that names the bucket; durable on return. Raises OSError."""
    parent = folder.parent
    disk.make_directory(folder)
    disk.sync_directory(parent.parent)  # an earlier process may have created `parent` and ended before its sync
    disk.sync_directory(parent)
    body = json.dumps({"name": entry.name, "uuid": entry.uuid}).encode()
    write_synced(disk, folder / _NEXT_NAME, encode_text_file(_TITLE, _FORMAT, body))
    disk.rename(folder / _NEXT_NAME, folder / NAME)
    disk.sync_directory(folder)


def check(disk: Disk, folder: Path, entry: BucketEntry) -> None:
    """Check that a folder belongs to a bucket.

    Raises:
        CorruptStore: the folder is missing, or belongs to another bucket.
        StorageError: the folder can't be read.
    """
    try:
        uuid = _uuid(disk, folder)
    except FileNotFoundError:
        raise CorruptStore(folder, 0, f'the folder of bucket "{entry.name}" is missing') from None
    except OSError as error:
        raise StorageError(f"{folder}: {error.strerror or error}") from error
    if uuid != entry.uuid:
        raise CorruptStore(folder / NAME, 0, f'this is not the folder of bucket "{entry.name}"')


def remove(disk: Disk, folder: Path, entry: BucketEntry) -> None:
    """Remove a bucket's folder with all files in it; do nothing if the folder is missing. May be repeated after a
    crash.

    Raises:
        StorageError: the folder belongs to another bucket, and nothing was removed.
        OSError: a part of the folder remains.
    """
    try:
        names = disk.names(folder)
    except FileNotFoundError:
        return
    uuid = _uuid(disk, folder)
    # A folder without the file BUCKET is the bucket's own if it is empty or has only BUCKET.new: its creation was
    # interrupted.
    if uuid != entry.uuid and not (uuid is None and set(names) <= {_NEXT_NAME}):
        raise StorageError(f'{folder}: not the folder of bucket "{entry.name}": nothing was removed; look at it')
    for name in names:
        if name != NAME:
            disk.remove(folder / name)
            failpoint("buckets.removing")
    # All other files are removed, durably, before the file that names the bucket.
    disk.sync_directory(folder)
    with suppress(FileNotFoundError):
        disk.remove(folder / NAME)
    failpoint("buckets.emptied")
    disk.remove_directory(folder)
    disk.sync_directory(folder.parent)


def _uuid(disk: Disk, folder: Path) -> str | None:
    """Return the uuid of the bucket to which a folder belongs; None if the folder does not name a bucket.

    Raises:
        FileNotFoundError: the folder is missing.
        CorruptStore: the file that names the bucket is damaged.
    """
    if NAME not in disk.names(folder):
        return None
    try:
        content = read_json(
            decode_text_file(disk.read(folder / NAME), folder / NAME, _TITLE, [_FORMAT], "bucket's name")
        )
        return str(content["uuid"])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptStore(folder / NAME, 0, f"not a bucket's name: {error}") from None
