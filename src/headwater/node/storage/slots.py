"""The table of the memory that a LOC can point into (slots), and the time at which a slot may be used again.

`table: uint64[SLOTS_MAX, 2]` has (address, length) of each slot; kernels read it while they run. Slots 0 and 1 are the
staging arenas. A segment that compaction has replaced keeps its slot and its memory while a view that may read it is
open. Each view has the time of its opening, and each segment the times at which it got its slot and was retired; only
views opened between these two times can refer to the segment. So an old view keeps only segments that existed when it
was opened.
"""

from __future__ import annotations

import contextlib
from threading import Thread
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StorageError
from headwater.invariants import node_invariant
from headwater.kernels.index import FIRST_SEGMENT
from headwater.node.storage.segment import UNREGISTERED, Segment
from headwater.wire.header import frame_bytes

__all__ = ["LOST_SLOT", "SLOTS_MAX", "Slots"]

SLOTS_MAX: Final = 1 << 16
LOST_SLOT: Final = SLOTS_MAX - 1
"""The slot into which rows of damaged batches point (quarantine.py)."""


BESIDE_BYTES_MIN: Final = 8 << 20


class Slots:
    """The slots of segments, and the readers for which they are kept."""

    def __init__(self) -> None:
        self.table: NDArray[np.uint64] = np.zeros((SLOTS_MAX, 2), np.uint64)
        self._fresh = FIRST_SEGMENT  # slots from here on were never used
        self._free: list[int] = []
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._time = 0
        self._readers: dict[int, int] = {}  # ticket -> when it was opened
        self._retired: list[tuple[int, Segment]] = []

    def place(self, slot: int, memory: NDArray[np.uint8], length: int) -> None:
        """Set the memory of a slot."""
        self.table[slot] = (memory.ctypes.data, length)
        self._memory[slot] = memory

    def register(self, segment: Segment) -> None:
        """Assign a slot to a segment, unless it has one."""
        if segment.slot == UNREGISTERED:
            segment.slot = self._free.pop() if self._free else self._fresh
            if segment.slot == LOST_SLOT:
                segment.slot = UNREGISTERED
                raise StorageError(f"{segment.path}: {LOST_SLOT} segments are open; compact the store")
            is_taken = segment.slot in self._memory or segment.slot < FIRST_SEGMENT
            node_invariant(not is_taken, "slot {} is given to a second file, {}", segment.slot, segment.path)
            self._fresh = max(self._fresh, segment.slot + 1)
            segment.born = self._time
        self.place(segment.slot, segment.memory, len(segment.memory))

    def frame(self, place: int) -> memoryview:
        """Return the frame at a LOC as a view of the segment's memory: release it before the segment can be retired."""
        slot, offset = place >> 40, place & ((1 << 40) - 1)
        data = self._memory[slot].data
        return data[offset : offset + frame_bytes(data, offset)]

    def enter(self) -> int:
        """Register a reader, and return its ticket. Segments that are retired from now on stay readable for it."""
        # Each reader and each retirement gets a time of its own.
        self._time += 1
        self._readers[self._time] = self._time
        return self._time

    def leave(self, ticket: int) -> None:
        """Unregister a reader (may be called again)."""
        # By ticket, not by count: closing a view twice must not free the segments of another view.
        if self._readers.pop(ticket, None) is not None:
            self._release()

    def retire(self, segments: list[Segment]) -> None:
        """Keep new readers from these segments; they are freed once the present readers have left."""
        self._time += 1
        self._retired += [(self._time, segment) for segment in segments]
        self._release()

    def is_held_by(self, ticket: int) -> bool:
        """Return True if a retired segment is kept for this reader."""
        return any(segment.born < ticket < when for when, segment in self._retired)

    @property
    def oldest_retired(self) -> int | None:
        """The time (by the counter of this object) at which the oldest retired segment that is still kept was retired;
        None if none is kept.
        """
        return self._retired[0][0] if self._retired else None

    @property
    def retired_bytes(self) -> int:
        """The total size in bytes of the retired segments that are still kept."""
        return sum(segment.end for _, segment in self._retired)

    @property
    def readers(self) -> int:
        """The number of readers that have not left."""
        return len(self._readers)

    def _release(self) -> None:
        if not self._retired:
            return
        unneeded = [segment for when, segment in self._retired if not self._is_needed(when, segment)]
        self._retired = [(when, segment) for when, segment in self._retired if segment not in unneeded]
        for segment in unneeded:
            if segment.slot != UNREGISTERED:
                node_invariant(segment.slot >= FIRST_SEGMENT, "slot {}, of staging, is given back", segment.slot)
                self.table[segment.slot] = 0
                del self._memory[segment.slot]
                self._free.append(segment.slot)
                segment.slot = UNREGISTERED
                segment.close()
        if unneeded:
            del segment
            _forget_beside(unneeded)

    def _is_needed(self, when: int, segment: Segment) -> bool:
        for ticket in self._readers:  # the oldest first
            # Readers that came after the segment was retired have columns without it.
            if ticket >= when:
                return False
            # A reader from before the segment was born has columns that point into older files only.
            if ticket > segment.born:
                return True
        return False


def _forget_beside(segments: list[Segment]) -> None:
    """Free segments whose files were removed while a view read them; use a thread if they are large.

    Dropping the last reference to such a file frees its memory and its disk blocks. This takes 0.3 s per GB, and more
    if the disk discards the blocks, so it must not run in the event loop's thread.
    """
    if sum(len(segment.memory) for segment in segments) >= BESIDE_BYTES_MIN:
        with contextlib.suppress(RuntimeError, MemoryError):  # without a thread, this function's return frees them
            Thread(target=segments.clear, name="headwater-forgets", daemon=True).start()
