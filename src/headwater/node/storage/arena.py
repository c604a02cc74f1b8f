"""The memory of staged changes: two arenas, one of which fills while the other is written to disk.

A kernel writes frames directly into the filling arena, and indexes them at once; they are not copied until they are
written to disk. An arena's address never changes, so a LOC into it stays valid until its batch is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from headwater.invariants import node_invariant
from headwater.kernels.builds import debugging
from headwater.kernels.guard import register
from headwater.node.storage.batch import BATCH_HEADER_BYTES
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.segment import Segment

__all__ = ["ARENA_BYTES", "Batch", "StagingArena"]

ARENA_BYTES: Final = 64 << 20  # virtual memory; only pages that batches have used are in real memory
UNREAD_BYTES_MIN: Final = 1 << 20
UNREAD_SHARE_MIN: Final = 0.9


class StagingArena:
    """A buffer for staged frames.

    Attributes:
        slot: its slot in the `segments` table (0 or 1).
        data: the bytes.
        used: the number of bytes filled with frames.
        unread_bytes: the number of filled bytes that will hardly be read soon.
        records: the newest record among the frames, by vbucket; None in place of the record after a drop.
        destroyed: the vbuckets with a rollback or drop among the frames; only the log still has the removed rows.
    """

    def __init__(self, slot: int, capacity: int) -> None:
        self.slot = slot
        self.data: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(capacity, np.uint8)
        self.used: int = 0
        self.unread_bytes: int = 0
        self.records: dict[int, VBucketRecord | None] = {}
        self.destroyed: set[int] = set()
        if debugging():
            register(self.data)

    def append(self, frame: bytes) -> int:
        """Copy a frame to the arena, which must have room; return the frame's offset."""
        at = self.used
        room = len(self.data) - at
        node_invariant(len(frame) <= room, "a frame of {} bytes, the arena has room for {}", len(frame), room)
        self.data[at : at + len(frame)] = np.frombuffer(frame, np.uint8)
        self.used = at + len(frame)
        return at

    def clear(self) -> None:
        """Drop the frames."""
        self.used = self.unread_bytes = 0
        self.records = {}
        self.destroyed = set()


@dataclass(slots=True)
class Batch:
    """A frozen arena that will be written to disk.

    Attributes:
        arena: the arena.
        segment: the segment to which it was written; None before.
        body: the offset of its frames in that segment; 0 before.
    """

    arena: StagingArena
    segment: Segment | None = None
    body: int = 0

    @property
    def bytes_on_disk(self) -> int:
        """The size of the batch on disk in bytes."""
        return BATCH_HEADER_BYTES + self.arena.used

    @property
    def is_unread(self) -> bool:
        """True if the batch is large, and will hardly be read soon."""
        return self.arena.used >= UNREAD_BYTES_MIN and self.arena.unread_bytes >= self.arena.used * UNREAD_SHARE_MIN

    @property
    def frames(self) -> memoryview:
        """The bytes to write."""
        return self.arena.data.data[: self.arena.used]
