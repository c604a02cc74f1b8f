"""The table of places a LOC can point into, and when a place may be given to something else.

`table: uint64[SLOTS_MAX, 2]` is (address, length) by slot; kernels read it while they run. Slots 0 and 1 are the
staging arenas. A segment that compaction replaced keeps its slot and its memory as long as a view is open that was
there before: each view notes when it was opened, a retired segment notes when it was retired.
"""

from __future__ import annotations

from threading import Thread
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StorageError
from headwater.kernels.index import FIRST_SEGMENT
from headwater.node.storage.segment import UNREGISTERED, Segment

__all__ = ["LOST_SLOT", "SLOTS_MAX", "Slots"]

SLOTS_MAX: Final = 1 << 16
LOST_SLOT: Final = SLOTS_MAX - 1
"""What rows of damaged batches point to (lost.py)."""


BESIDE_BYTES_MIN: Final = 8 << 20


class Slots:
    """Slots of segments, and the readers they are kept for."""

    def __init__(self) -> None:
        self.table: NDArray[np.uint64] = np.zeros((SLOTS_MAX, 2), np.uint64)
        self._fresh = FIRST_SEGMENT  # slots from here on were never used
        self._free: list[int] = []
        self._memory: dict[int, NDArray[np.uint8]] = {}
        self._time = 0
        self._readers: dict[int, int] = {}  # ticket -> when it was opened
        self._retired: list[tuple[int, Segment]] = []

    def place(self, slot: int, memory: NDArray[np.uint8], length: int) -> None:
        """Say what a slot is."""
        self.table[slot] = (memory.ctypes.data, length)
        self._memory[slot] = memory

    def register(self, segment: Segment) -> None:
        """Give a segment its slot, unless it has one."""
        if segment.slot == UNREGISTERED:
            segment.slot = self._free.pop() if self._free else self._fresh
            if segment.slot == LOST_SLOT:
                segment.slot = UNREGISTERED
                raise StorageError(f"{segment.path}: {LOST_SLOT} segments are open; compact the store")
            self._fresh = max(self._fresh, segment.slot + 1)
        self.place(segment.slot, segment.memory, len(segment.memory))

    def frame(self, place: int) -> bytes:
        """A copy of the frame a LOC stands for."""
        slot, offset = place >> 40, place & ((1 << 40) - 1)
        memory = self._memory[slot]
        length = 24 + int.from_bytes(memory[offset + 8 : offset + 12].tobytes(), "big")
        return memory[offset : offset + length].tobytes()

    def enter(self) -> int:
        """A reader begins; returns the ticket to leave with. What is retired from now on stays readable for it."""
        self._time += 1
        self._readers[self._time] = self._time
        return self._time

    def leave(self, ticket: int) -> None:
        """A reader is done (twice is once)."""
        if self._readers.pop(ticket, None) is not None:
            self._release()

    def retire(self, segments: list[Segment]) -> None:
        """No new reader comes to these; they go once the present ones have left."""
        self._time += 1
        self._retired += [(self._time, segment) for segment in segments]
        self._release()

    @property
    def readers(self) -> int:
        """Readers that have not left."""
        return len(self._readers)

    @property
    def retired(self) -> int:
        """Segments still kept for a reader."""
        return len(self._retired)

    def _release(self) -> None:
        if not self._retired:
            return
        oldest = min(self._readers.values(), default=self._time + 1)
        gone = [segment for when, segment in self._retired if when < oldest]
        self._retired = [(when, segment) for when, segment in self._retired if when >= oldest]
        for segment in gone:
            if segment.slot != UNREGISTERED:
                self.table[segment.slot] = 0
                del self._memory[segment.slot]
                self._free.append(segment.slot)
                segment.slot = UNREGISTERED
                segment.close()
        if gone:
            del segment
            _forget_beside(gone)


def _forget_beside(segments: list[Segment]) -> None:
    """Let go of segments that were removed from the disk while a view read them, in a thread if they are large.

    With the last mention of such a file go its memory and its blocks: 0.3 s/GB, and more where the disk is told of
    blocks that it may discard. It was the thread of the event loop that closed the view.
    """
    if sum(len(segment.memory) for segment in segments) >= BESIDE_BYTES_MIN:
        Thread(target=segments.clear, name="headwater-forgets", daemon=True).start()
