"""The manifest: which segments make up the store, in the order in which they are replayed.

A text file of two lines: `headwater-store 2 <XXH3-64 of the second line, 16 hex digits>`, and a JSON object:

    {"clean": null, "generation": 7, "member": false, "next_segment": 5,
     "segments": [{"bytes": 4096, "id": 3, "salt": "..."}, ...], "store": "32 hex digits", "vbuckets": 1024}

`bytes` is the length at which a segment was sealed: nothing behind it counts, whatever a failed write left there, and
nothing before it may be missing. The last segment is open: null. `clean` is the length of the open segment when the
store was closed, null while it is in use. `member`: a cluster map that names this node is kept beside the log (format 1
lacks this; it is read as false, and written as format 2). `collections`: frames with marks may be in the log, which
programs that know format 2 only would misread, so the file is of format 3 from then on; before that the word is
missing. `prepares`: prepares of durable writes may be among them, which is format 4. `users`: there is a list of users
beside the log; programs that do not know the word leave it out. `history`: how far back superseded versions are kept,
[seconds, bytes], if they are; programs that do not know the word leave it out, too. A new manifest replaces the old one
by rename, with both file and folder synced.
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
_FORMATS: Final = ("1", "2", "3", "4")
_WITHOUT_MARKS, _WITHOUT_PREPARES, _WITH_PREPARES = "2", "3", "4"


@dataclass(slots=True, frozen=True)
class Entry:
    """A segment: its id and salt, and the length it was sealed at (None: it is the open one)."""

    id: int
    salt: int
    bytes: int | None


@dataclass(slots=True, frozen=True)
class Manifest:
    """The content, see above."""

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

    def encode(self) -> bytes:
        """The file's bytes."""
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
            **({"users": True} if self.users else {}),
            **({"history": [self.history.seconds, self.history.bytes]} if self.history else {}),
        }
        version = _format_of(collections=self.collections, prepares=self.prepares)
        return encode_text_file(_TITLE, version, json.dumps(content, sort_keys=True).encode())

    @classmethod
    def decode(cls, data: bytes, path: Path) -> Manifest:
        """Read the file's bytes.

        Raises:
            CorruptStore: they are no manifest, or were changed since they were written.
            StorageError: another format.
        """
        content = json.loads(decode_text_file(data, path, _TITLE, _FORMATS, "manifest"))
        collections, prepares = content.get("collections", False), content.get("prepares", False)
        needed = _format_of(collections=collections, prepares=prepares)
        # A manifest whose format promises fewer marks than its facts would let an older program misread the log.
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
        )


def _format_of(*, collections: bool, prepares: bool) -> str:
    """The oldest format whose programs understand such a log."""
    if prepares:
        return _WITH_PREPARES
    return _WITHOUT_PREPARES if collections else _WITHOUT_MARKS


class ManifestFile:
    """The manifest on disk. The log (a new segment) and compaction both change it, from their threads: one at a time.

    `unsure`: a write failed half-way, so that either version may be the one on disk; `settle` it before trusting it.
    """

    def __init__(self, disk: Disk, folder: Path, content: Manifest) -> None:
        self.content: Manifest = content
        self.unsure: bool = False
        self._disk = disk
        self._folder = folder
        self._lock = threading.Lock()

    def change(self, edit: Callable[[Manifest], Manifest], point: str = "segment") -> None:
        """Write the result of `edit` as the new manifest; on return it is durable. OSError: the old one is still in
        force.
        """
        with self._lock:
            content = edit(self.content)
            self._write(replace(content, generation=self.content.generation + 1), point)

    def settle(self) -> None:
        """After a failed change, make sure that the manifest on disk is the one in force."""
        with self._lock:
            if self.unsure:
                self._write(replace(self.content, generation=self.content.generation + 1), "segment")

    def take_number(self) -> int:
        """Take a segment id that was never used (written down with the next change; orphaned files are removed)."""
        with self._lock:
            number = self.content.next_segment
            # A number is never given twice in one process, also where its file was removed again: a reader may still
            # hold the old one's memory.
            self.content = replace(self.content, next_segment=number + 1)
            return number

    def _write(self, content: Manifest, point: str) -> None:
        _check_change(self.content, content)
        fresh = self._folder / NEXT_NAME
        write_synced(self._disk, fresh, content.encode())
        failpoint("segment.before_manifest" if point == "segment" else "compact.before_rename")
        # Set before the rename and cleared after the folder's sync: an error in between leaves either manifest on the
        # disk, and a batch in a segment that only one of them names would be lost with the other.
        self.unsure = True
        self._disk.rename(fresh, self._folder / NAME)
        failpoint("segment.after_manifest" if point == "segment" else "compact.after_rename")
        # The rename is in the folder's blocks: without this sync a power cut brings the old manifest back, while the
        # new segment has acknowledged batches.
        self._disk.sync_directory(self._folder)
        self.content, self.unsure = content, False


def _check_change(before: Manifest, after: Manifest) -> None:
    """Check the manifest that is about to replace another: it is of the same store, and follows it by the rules."""
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
    gone = [fact for fact in facts if getattr(before, fact) and not getattr(after, fact)]
    node_invariant(not gone, "the manifest is to forget {}, which it keeps for good", gone)
    newer = after.generation > before.generation
    node_invariant(newer, "manifest {} is to follow manifest {}", after.generation, before.generation)
