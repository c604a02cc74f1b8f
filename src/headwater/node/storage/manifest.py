"""The manifest: the list of a store's segments, in the order of replay.

A text file of two lines: `headwater-store 2 <XXH3-64 of the second line, 16 hex digits>`, and a JSON object:

    {"clean": null, "generation": 7, "member": false, "next_segment": 5,
     "segments": [{"bytes": 4096, "id": 3, "salt": "..."}, ...], "store": "32 hex digits", "vbuckets": 1024}

* `bytes`: the length at which a segment was sealed. Bytes after it, from a failed write, do not count, and bytes before
  it must not be missing. It is null for the last segment, which is open.
* `clean`: the length of the open segment when the store was closed; null while the store is in use.
* `member`: true if a cluster map that contains this node is kept next to the log. Format 1 does not have this word; it
  is read as false, and written as format 2.
* `collections`: true if the log may have frames with marks, which programs for format 2 would misread. The file then
  has format 3; otherwise the word is missing.
* `prepares`: true if the log may have prepares of durable writes (format 4).
* `flags`: true if the log may have system events of version 2 (format 5).
* `users`: true if there is a list of users next to the log.
* `history`: the retention of superseded versions, [seconds, bytes], if there is one.
* `plain_collections`: true if new collections have no history by default.

Programs that do not know the last three words drop them. A new manifest replaces the old one by rename; both file and
folder are synced.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from headwater.errors import CorruptStore
from headwater.failpoints import failpoint
from headwater.invariants import node_invariant
from headwater.node.storage.disk import Disk
from headwater.node.storage.retention import Retention
from headwater.node.storage.text_file import decode_text_file, encode_text_file, write_synced

__all__ = ["NAME", "Entry", "Manifest", "ManifestFile"]

NAME: Final = "MANIFEST"
NEXT_NAME: Final = "MANIFEST.new"
_TITLE: Final = "headwater-store"
_FORMATS: Final = ("1", "2", "3", "4", "5")
_WITHOUT_MARKS, _WITHOUT_PREPARES, _WITH_PREPARES, _WITH_FLAGS = "2", "3", "4", "5"


@dataclass(slots=True, frozen=True)
class Entry:
    """A segment in the manifest: its id, its salt, and the length in bytes at which it was sealed; None if it
    is open.
    """

    id: int
    salt: int
    bytes: int | None


@dataclass(slots=True, frozen=True)
class Manifest:
    """The content of the manifest (see the module)."""

    store: bytes
    vbuckets: int
    segments: tuple[Entry, ...] = ()
    generation: int = 1
    next_segment: int = 1
    clean: int | None = None
    member: bool = False
    collections: bool = False
    prepares: bool = False
    users: bool = False
    history: Retention = Retention()  # noqa: RUF009 - a constant
    flags: bool = False
    plain_collections: bool = False

    def encode(self) -> bytes:
        """Return the file's bytes."""
        content = {
            "store": self.store.hex(),
            "vbuckets": self.vbuckets,
            "segments": [
                {"id": entry.id, "salt": f"{entry.salt:016x}", "bytes": entry.bytes} for entry in self.segments
            ],
            "generation": self.generation,
            "next_segment": self.next_segment,
            "clean": self.clean,
            "member": self.member,
            **({"collections": True} if self.collections else {}),
            **({"prepares": True} if self.prepares else {}),
            **({"flags": True} if self.flags else {}),
            **({"plain_collections": True} if self.plain_collections else {}),
            **({"users": True} if self.users else {}),
            **({"history": [self.history.seconds, self.history.bytes]} if self.history else {}),
        }
        version = _format_of(collections=self.collections, prepares=self.prepares, flags=self.flags)
        return encode_text_file(_TITLE, version, json.dumps(content, sort_keys=True).encode())

    @classmethod
    def decode(cls, data: bytes, path: Path) -> Manifest:
        """Return the manifest in the bytes of the file at `path`.

        Raises:
            CorruptStore: the bytes are no manifest, or were changed since they were written.
            StorageError: the manifest has a format that this program does not know.
        """
        content = json.loads(decode_text_file(data, path, _TITLE, _FORMATS, "manifest"))
        collections, prepares = content.get("collections", False), content.get("prepares", False)
        flags = content.get("flags", False) is True
        needed = _format_of(collections=collections, prepares=prepares, flags=flags)
        # If the format in the title is too old for the facts, an older program would misread the log.
        if max(data.split(b" ", 2)[1].decode(), _WITHOUT_MARKS) != needed:
            raise CorruptStore(path, 0, "the manifest is not of the format that it names")
        entries = tuple(Entry(entry["id"], int(entry["salt"], 16), entry["bytes"]) for entry in content["segments"])
        return cls(
            bytes.fromhex(content["store"]),
            content["vbuckets"],
            entries,
            content["generation"],
            content["next_segment"],
            content["clean"],
            content.get("member", False),
            collections,
            prepares,
            content.get("users", False) is True,
            Retention(*map(int, content.get("history", ()))),
            flags,
            content.get("plain_collections", False) is True,
        )


def _format_of(*, collections: bool, prepares: bool, flags: bool) -> str:
    """Return the oldest format that can describe a log with these facts."""
    if flags:
        return _WITH_FLAGS
    if prepares:
        return _WITH_PREPARES
    return _WITHOUT_PREPARES if collections else _WITHOUT_MARKS


class ManifestFile:
    """The manifest on disk. The log (for a new segment) and compactions change it, from their threads; a lock
    serializes the changes.

    Attributes:
        content: the manifest in force.
        unsure: True after a write that failed half-way: either version may be on disk. `settle` must succeed before the
            log is written.
    """

    def __init__(self, disk: Disk, folder: Path, content: Manifest) -> None:
        self.content: Manifest = content
        self.unsure: bool = False
        self._disk = disk
        self._folder = folder
        self._lock = threading.Lock()

    def change(self, edit: Callable[[Manifest], Manifest], point: str = "segment") -> None:
        """Write a new manifest, which is durable and in force on return.

        Args:
            edit: returns the new content from the present one.
            point: the name of the failpoint, for tests.

        Raises:
            OSError: the old manifest is still in force, but see `unsure`.
        """
        with self._lock:
            content = edit(self.content)
            self._write(replace(content, generation=self.content.generation + 1), point)

    def settle(self) -> None:
        """After a failed change, write the manifest in force again, so that it is certainly the one on disk; otherwise
        do nothing. Raises OSError.
        """
        with self._lock:
            if self.unsure:
                self._write(replace(self.content, generation=self.content.generation + 1), "segment")

    def take_number(self) -> int:
        """Return a segment id that was never used. It is recorded with the next change."""
        with self._lock:
            number = self.content.next_segment
            # A number is never used twice in one process, even if its file was removed: a reader may still use the old
            # file's memory.
            self.content = replace(self.content, next_segment=number + 1)
            return number

    def _write(self, content: Manifest, point: str) -> None:
        _check_change(self.content, content)
        fresh = self._folder / NEXT_NAME
        write_synced(self._disk, fresh, content.encode())
        failpoint("segment.before_manifest" if point == "segment" else "compact.before_rename")
        # Set before the rename and cleared after the folder's sync: after an error in between, either manifest may be
        # on disk, and a batch in a segment that only one of them names could be lost.
        self.unsure = True
        self._disk.rename(fresh, self._folder / NAME)
        failpoint("segment.after_manifest" if point == "segment" else "compact.after_rename")
        # The rename is in the folder's blocks: without this sync a power cut brings the old manifest back, while the
        # new segment has acknowledged batches.
        self._disk.sync_directory(self._folder)
        self.content, self.unsure = content, False


def _check_change(before: Manifest, after: Manifest) -> None:
    """Check (with invariants) that a manifest may replace another one: same store, valid segments, no fact
    forgotten.
    """
    same = (before.store, before.vbuckets) == (after.store, after.vbuckets)
    node_invariant(same, "the manifest of store {} is to name another", before.store.hex())
    numbers = [entry.id for entry in after.segments]
    node_invariant(len({*numbers}) == len(numbers), "the manifest is to name a segment twice: {}", numbers)
    newest = max(numbers, default=0)
    node_invariant(newest < after.next_segment, "segment {} is named, {} is the next", newest, after.next_segment)
    is_open = [entry.id for entry in after.segments[:-1] if entry.bytes is None]
    node_invariant(not is_open, "segments {} are open, and not the last", is_open)
    facts = ("member", "collections", "prepares", "users")
    # A forgotten `member` would start a second owner, a forgotten `users` an open node.
    forgotten = [fact for fact in facts if getattr(before, fact) and not getattr(after, fact)]
    node_invariant(not forgotten, "the manifest is to forget {}, which it keeps for good", forgotten)
    newer = after.generation > before.generation
    node_invariant(newer, "manifest {} is to follow manifest {}", after.generation, before.generation)
