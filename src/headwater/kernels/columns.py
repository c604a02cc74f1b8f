"""Decodes frames to Arrow columns, in an arena whose memory is reused.

    arena, streams = Arena(), StreamTable()
    streams.open(vbucket, opaque, ...)                    # with each stream request
    decoded = arena.decode(memory[:received], streams)    # after each receive; rows gather over many calls
    for offset, row in decoded.controls: ...              # markers, ends, no-ops: each came before that row
    batch = arena.batch()                                 # a RecordBatch of 1 to 4 MiB, and the arena is empty again

Fresh memory costs more than decoding into it (each page faults), so the arena reuses the memory of a batch. The buffers
of a batch share one lease, which ends when the last of them is freed, with everything sliced or derived from them
without copying; only then the memory returns to the arena. So if a consumer keeps its batches, the arena allocates
fresh memory, and the batches never change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.kernels.batches import SCHEMA, SCHEMA_WITH_IDS, Block
from headwater.kernels.decode import (
    BEFORE_BYTES,
    CONSUMED,
    KEY_BYTES,
    PROGRESS_FIELDS,
    ROWS,
    STOP,
    VALUE_BYTES,
    ColumnMemory,
    decode,
)
from headwater.kernels.scan import BODY_MAX, HEADER, Stop
from headwater.kernels.tracker import StreamTable, TrackedState, TrackedStream

__all__ = ["SCHEMA", "SCHEMA_WITH_IDS", "Arena", "Decoded", "Stop", "StreamTable", "TrackedState", "TrackedStream"]

Bytes: TypeAlias = "bytes | bytearray | memoryview | NDArray[np.uint8]"

Decoder: TypeAlias = Callable[
    [NDArray[np.uint8], ColumnMemory, NDArray[np.int64], NDArray[np.uint64], NDArray[np.int64], bool, bool], None
]

MEBI: Final = 1 << 20
BATCH_BYTES: Final = 4 * MEBI
ROW_WIRE_BYTES: Final = 64  # a row is reserved for so many bytes of values; shorter changes fill the rows first
KEY_SHARE: Final = 4  # key bytes are reserved for a quarter of the value bytes
FREE_KEPT: Final = 4  # idle memories an arena keeps, or
FREE_BYTES: Final = 128 * MEBI  # as many as have so many bytes: a writer holds ten batches until it has a row group
ARRAY_MAX: Final = (1 << 31) - 1  # Arrow's binary offsets are 32-bit


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of one call of `Arena.decode`.

    Attributes:
        consumed: bytes of the buffer that were processed; always up to the beginning of a frame.
        rows: rows in the arena now, over all calls since the last batch.
        controls: int64[n, 2]: (offset in the buffer, row the frame came before); valid until the next call.
        flow_bytes: size of the processed frames in the flow-control window, for the next acknowledgement.
        dropped: number of frames of streams whose end was requested.
        needed: bytes of the frame at `consumed`, 24 while its header is incomplete.
        stop: reason of the stop; `stop.refused` is True if the frame at `consumed` breaks the rules.
    """

    consumed: int
    rows: int
    controls: NDArray[np.int64]
    flow_bytes: int
    dropped: int
    needed: int
    stop: Stop


class _Lease:
    """Held by every buffer of one batch; after the last buffer, the memory returns to the arena.

    The return runs in the thread that frees the last buffer; appending to a deque is atomic.
    """

    __slots__ = ("_free", "_memory")

    def __init__(self, memory: Block, free: deque[Block]) -> None:
        self._memory = memory
        self._free = free

    def __del__(self) -> None:
        if hasattr(self, "_free"):  # not where an interrupt cut its making short
            self._free.append(self._memory)


class Arena:
    """Columns that fill up over many receives and are handed out as record batches.

    Args:
        value_bytes: capacity of the value column, and so about the size of a batch. 1 to 4 MiB keep it in cache.
        key_bytes, rows: capacities; by default in proportion.
        controls: number of control frames after which a call stops with CONTROLS_FULL.
        with_ids: True if keys may begin with the id of their collection, which becomes a column (`SCHEMA_WITH_IDS`).
        with_befores: True if a message Before, with the replaced version, comes in front of each change
            (`BEFORE_FIELDS`).
        decoder: the kernel, or another function that does the same, as the tests' decoder in numpy.

    An arena is not thread safe; its batches are.
    """

    def __init__(
        self,
        value_bytes: int = BATCH_BYTES,
        key_bytes: int | None = None,
        rows: int | None = None,
        controls: int = 4096,
        decoder: Decoder = decode,
        *,
        with_ids: bool = False,
        with_befores: bool = False,
    ) -> None:
        self._rows = max(1, value_bytes // ROW_WIRE_BYTES) if rows is None else rows
        self._key_bytes = max(0x10000, value_bytes // KEY_SHARE) if key_bytes is None else key_bytes
        self._value_bytes = value_bytes
        if not (self._rows > 0 and controls > 0 and 0 <= max(self._rows, self._key_bytes, value_bytes) <= ARRAY_MAX):
            raise ValueError(f"an arena holds 1 to {ARRAY_MAX} rows and bytes, and at least one control frame")
        self.with_ids: bool = with_ids
        self.with_befores: bool = with_befores
        self._decoder = decoder
        self._free = self._idle_memory()
        self._memory: Block | None = None  # taken when the first bytes come: by then the last batch may be gone
        self._controls = np.empty((controls, 2), np.int64)
        self._progress = np.zeros(PROGRESS_FIELDS, np.int64)

    @property
    def rows(self) -> int:
        """The rows gathered since the last batch."""
        return int(self._progress[ROWS])

    @property
    def bytes(self) -> int:
        """The key and value bytes gathered since the last batch, replaced values included."""
        return int(self._progress[KEY_BYTES]) + int(self._progress[VALUE_BYTES]) + int(self._progress[BEFORE_BYTES])

    def decode(self, received: Bytes, streams: StreamTable) -> Decoded:
        """Append the changes in `received`, and keep no reference to it.

        In an arena with ids every key begins with a collection id, unless `streams.with_ids` is False: then all
        documents belong to the default collection, 0.

        The caller must keep the bytes after `consumed`: an incomplete frame, or frames without room (take `batch()` on
        FULL, `grow()` on FRAME_TOO_LARGE, handle the controls on CONTROLS_FULL; then call again).
        """
        # Never to be written to: memory that may be would be another type, and another kernel to compile.
        view = np.frombuffer(received, np.uint8)
        view.flags.writeable = False
        if self._memory is None:
            self._memory = self._take()
        columns = self._memory.columns
        with_ids = self.with_ids and streams.with_ids
        if self.with_ids and not with_ids:
            # The memory still has the ids of an earlier batch.
            columns.arrays["collection_id"][self.rows :] = 0
        self._decoder(view, columns, self._controls, streams.rows, self._progress, streams.checked, with_ids)
        consumed, controls, flow, dropped_frames, bytes_needed, stop = self._progress[CONSUMED : STOP + 1].tolist()
        rows = self.rows
        # An empty arena that has no room for a frame will not have any after the next batch either.
        if stop == Stop.FULL and rows == 0:
            stop = Stop.FRAME_TOO_LARGE
        return Decoded(consumed, rows, self._controls[:controls], flow, dropped_frames, bytes_needed, Stop(stop))

    def grow(self, frame_bytes: int) -> None:
        """Enlarge the arena permanently, so that one frame of this size (`Decoded.needed`) fits; it must be empty.

        Raises:
            ValueError: the arena has rows, or the size exceeds that of any frame (30 MiB and its header; of two frames
                where each change comes with a message Before).
        """
        if self.rows:
            raise ValueError(f"an arena grows while it is empty; this one holds {self.rows} rows")
        bytes_max = (HEADER + BODY_MAX) * (1 + self.with_befores)
        if frame_bytes > bytes_max:
            raise ValueError(f"a frame has at most {bytes_max} bytes, not {frame_bytes}")
        self._key_bytes = max(self._key_bytes, 0x10000)
        self._value_bytes = max(self._value_bytes, frame_bytes)
        # Another queue: batches that are still held return their smaller memory to the old one.
        self._memory, self._free = None, self._idle_memory()

    def batch(self) -> pa.RecordBatch:
        """Return the gathered rows without copying; the arena is then empty and continues in other memory."""
        memory = self._take() if self._memory is None else self._memory
        batch = memory.batch(self.rows, _Lease(memory, self._free))
        self._memory = None
        self._progress[:] = 0
        return batch

    def _idle_memory(self) -> deque[Block]:
        """Return a queue for idle memory, of limited length: memory beyond it, left over from a burst, is freed."""
        each = self._rows * ROW_WIRE_BYTES + self._key_bytes + self._value_bytes * (1 + self.with_befores)
        return deque(maxlen=max(FREE_KEPT, FREE_BYTES // each))

    def _take(self) -> Block:
        """Return memory whose batch was freed, or fresh memory. Smaller memory from before `grow` returns to another
        queue.
        """
        if self._free:
            return self._free.pop()  # the one used last is the one still in cache
        sizes = self._rows, self._key_bytes, self._value_bytes
        return Block(*sizes, with_ids=self.with_ids, with_befores=self.with_befores)


def warm_up() -> None:
    """Build the kernels of this module."""
    for with_ids in (False, True):
        Arena(value_bytes=64, with_ids=with_ids).decode(b"", StreamTable(with_ids=True))
    Arena(value_bytes=64, with_befores=True).decode(b"", StreamTable())
