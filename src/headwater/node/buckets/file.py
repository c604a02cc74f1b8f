"""The list of a node's buckets besides the first, in the folder of its store.

One file, BUCKETS: `headwater-buckets 1 <XXH3-64 of the rest>` and JSON:

    {"next": 3, "buckets": [{"name": "orders", "number": 2, "uuid": "...", "vbuckets": 64, "quota_mib": 0,
                             "state": "served"}]}

`number` names the folder, `buckets/2`, and is never used again. `state` is `making`, `served` or `dropping`; `making`
and `dropping` are written before the folder changes, and the next start removes the files of such a bucket. A new list
is written and synced to another file, which then replaces the old one by rename. The node's first bucket is not in the
list: its store is the node's folder itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from headwater.errors import CorruptStore, StorageError
from headwater.node.storage.disk import Disk
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file
from headwater.wire.json_text import read_json

__all__ = ["DROPPING", "FOLDERS", "MAKING", "NAME", "SERVED", "BucketEntry", "BucketList", "BucketsFile"]

NAME: Final = "BUCKETS"
FOLDERS: Final = "buckets"
MAKING, SERVED, DROPPING = "making", "served", "dropping"
_NEXT_NAME: Final = "BUCKETS.new"
_FAILPOINTS: Final = ("buckets.before_rename", "buckets.after_rename")
_TITLE: Final = "headwater-buckets"
_FORMAT: Final = "1"


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """One bucket in the list.

    Attributes:
        name: its name.
        number: the number of its folder.
        uuid: the uuid in its folder.
        vbuckets: the number of its vbuckets.
        quota_mib: the limit of the size of its files in MiB; 0 for none.
        state: MAKING, SERVED or DROPPING.
    """

    name: str
    number: int
    uuid: str
    vbuckets: int
    quota_mib: int = 0
    state: str = SERVED

    def folder(self, data: Path) -> Path:
        """Return the folder of the bucket's store, inside the folder of the node."""
        return data / FOLDERS / str(self.number)


@dataclass(frozen=True, slots=True)
class BucketList:
    """The list of a node's buckets.

    Attributes:
        next: the number of the next bucket.
        entries: the listed buckets.
    """

    next: int = 1
    entries: tuple[BucketEntry, ...] = ()

    def with_entry(self, entry: BucketEntry) -> BucketList:
        """Return the list with an entry; it replaces the listed entry with the same number, if there is one."""
        if entry.number in {each.number for each in self.entries}:
            same_place = (entry if each.number == entry.number else each for each in self.entries)
            return replace(self, entries=tuple(same_place))
        return BucketList(max(self.next, entry.number + 1), (*self.entries, entry))

    def without(self, number: int) -> BucketList:
        """Return the list without an entry; its number is not used again."""
        return replace(self, entries=tuple(entry for entry in self.entries if entry.number != number))

    def in_state(self, state: str) -> Iterable[BucketEntry]:
        """Return the entries that are in a state."""
        return tuple(entry for entry in self.entries if entry.state == state)


class BucketsFile:
    """The file in the folder of a node's store."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.path: Path = folder / NAME
        self.whole: Final = WholeFile(disk, self.path, folder / _NEXT_NAME, _FAILPOINTS)
        self._disk = disk
        self._folder = folder

    def load(self) -> BucketList:
        """Return the list; empty if there is no file.

        Raises:
            CorruptStore: the file was changed since it was written, or is missing while folders of buckets exist.
            StorageError: the file has another format, or can't be read.
        """
        try:
            names = self._disk.names(self._folder)
            if NAME not in names:
                # With an empty list, a new bucket could get a number whose folder still has another bucket's documents.
                if FOLDERS in names and self._disk.names(self._folder / FOLDERS):
                    raise CorruptStore(self.path, 0, f"the list is missing, though {FOLDERS}/ has folders")
                return BucketList()
            data = self._disk.read(self.path)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        body = decode_text_file(data, self.path, _TITLE, [_FORMAT], "list of buckets")
        try:
            content = read_json(body)
            return BucketList(int(content["next"]), tuple(BucketEntry(**each) for each in content["buckets"]))
        except (ValueError, TypeError, KeyError) as error:
            raise CorruptStore(self.path, 0, f"not a list of buckets: {error}") from None

    def save(self, buckets: BucketList) -> None:
        """Replace the list on disk; durable on return. Blocks while the disk works.

        Raises:
            DiskFull, StorageError: the old list is still on disk.
            UnsureFile: either list may be on disk.
        """
        content = {"next": buckets.next, "buckets": [asdict(entry) for entry in buckets.entries]}
        self.whole.replace(encode_text_file(_TITLE, _FORMAT, json.dumps(content).encode()))
