"""The point up to which the log was synced: a note in a separate file, written after each batch.

A log that has lost its end looks like a log whose last write was interrupted before it was acknowledged. The note
distinguishes the two. It is written after the sync of its batch has returned, and is not synced itself, because that
would take as long as syncing the batch. After kill -9 it names the last acknowledged batch, after a power cut perhaps
an earlier one. So it never claims too much: if a batch that it names is missing, the batch was lost later.

    two notes of 64 bytes, at 0 and 512, written in turn, so that one of them is whole whatever happens

    offset  0           8         24       32   40            48        56
            HWSYNC 0 1  store id  segment  end  next number   sequence  checksum (XXH3-64 of bytes 0 to 55)
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from struct import Struct
from typing import Final

import xxhash

from headwater.errors import CorruptStore
from headwater.invariants import node_invariant
from headwater.node.storage.disk import Disk, File, is_full
from headwater.node.storage.text_file import write_synced

__all__ = ["NAME", "NEXT_NAME", "Note", "SyncedFile"]

NAME: Final = "SYNCED"
NEXT_NAME: Final = "SYNCED.new"
MAGIC: Final = b"HWSYNC\x00\x01"
_LAYOUT: Final = Struct(">8s16sQQQQ")
_CHECKSUM: Final = Struct(">Q")
NOTE_BYTES: Final = _LAYOUT.size + _CHECKSUM.size
APART_BYTES: Final = 512  # a sector is written whole or not at all


@dataclass(slots=True, frozen=True)
class Note:
    """A note that the batches of a segment are on disk, up to some byte.

    Attributes:
        store: the store's id.
        segment: the segment's id.
        end: the end of the last batch on disk, in bytes from the start of the file.
        next_number: the number of the next batch.
        sequence: increases with each note.
    """

    store: bytes
    segment: int = 0
    end: int = 0
    next_number: int = 0
    sequence: int = 0

    def encode(self) -> bytes:
        """Return the note's 64 bytes."""
        fields = _LAYOUT.pack(MAGIC, self.store, self.segment, self.end, self.next_number, self.sequence)
        return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))

    @classmethod
    def decode(cls, data: bytes) -> Note | None:
        """Return the note in 64 bytes; None if they are not a valid note."""
        if len(data) < NOTE_BYTES:
            return None
        magic, *fields = _LAYOUT.unpack_from(data)
        right = _CHECKSUM.unpack_from(data, _LAYOUT.size)[0] == xxhash.xxh3_64_intdigest(data[: _LAYOUT.size])
        return cls(*fields) if magic == MAGIC and right else None


class SyncedFile:
    """The file with the notes in a store's folder. Call `load` first, `start` after all other checks, then `write`
    after each batch.
    """

    def __init__(self, disk: Disk, folder: Path, store: bytes) -> None:
        self.path: Path = folder / NAME
        self._disk = disk
        self._folder = folder
        self._last = Note(store)
        self._file: File | None = None

    def load(self) -> Note | None:
        """Return the newest note of the last process; None if there is no file, as in folders of older versions.

        Raises:
            CorruptStore: the file was changed since it was written, or is another store's.
        """
        if NAME not in self._disk.names(self._folder):
            return None
        data = self._disk.read(self.path)
        notes = [note for at in (0, APART_BYTES) if (note := Note.decode(data[at : at + NOTE_BYTES])) is not None]
        if not notes:
            raise CorruptStore(self.path, 0, "neither of the two notes in it is what was written")
        # Either note may be torn by a power cut; the one with the higher sequence was written last and is whole.
        newest = max(notes, key=lambda note: note.sequence)
        # A file copied from another folder could name batches that this log never had, and every start would be
        # refused.
        if newest.store != self._last.store:
            raise CorruptStore(self.path, 0, f"this is of store {newest.store.hex()}, another one")
        self._last = newest
        return newest

    def start(self) -> None:
        """Prepare for writing; create the file if it is missing.

        On a full disk the file is not created, and there are no notes until the next start. Raises OSError if the disk
        fails for another reason.
        """
        try:
            if NAME not in self._disk.names(self._folder):
                self._make()
            self._file = self._disk.open(self.path)
        except OSError as error:
            # A node must be able to start on a full disk; without a note, the next start uses the rules for older
            # folders.
            if not is_full(error):
                raise

    def _make(self) -> None:
        fresh = self._folder / NEXT_NAME
        write_synced(self._disk, fresh, self._last.encode().ljust(APART_BYTES, b"\0") + self._last.encode())
        self._disk.rename(fresh, self.path)
        self._disk.sync_directory(self._folder)

    def catch_up(self, segment: int, end: int, next_number: int) -> None:
        """Write a note about the synced end of the log at a start, unless the last process has written it."""
        if (segment, end) != (self._last.segment, self._last.end):
            self.write(segment, end, next_number)

    def write(self, segment: int, end: int, next_number: int) -> None:
        """Write a note that the batches up to `end` are on disk. If the write fails, the previous note stays valid,
        without an error.
        """
        last = self._last
        # Batches are synced one after the other, so notes only move forward. After a note that moved back, a start
        # could cut acknowledged batches as an interrupted write.
        is_later = segment != last.segment or (end > last.end and next_number > last.next_number)
        node_invariant(is_later, "segment {} is synced to byte {}, it was to {}", segment, end, last.end)
        note = replace(self._last, segment=segment, end=end, next_number=next_number, sequence=self._last.sequence + 1)
        if self._file is not None:
            with contextlib.suppress(OSError):
                # The two places take turns, so that a write which is torn by a power cut leaves the other note whole.
                self._file.write([note.encode()], note.sequence % 2 * APART_BYTES)
                # Only after a successful write: after a failed one, the next note goes to the same place, and the older
                # note stays whole.
                self._last = note

    def close(self) -> None:
        """Close the descriptor; may be called again."""
        if self._file is not None:
            self._file.close()
            self._file = None
