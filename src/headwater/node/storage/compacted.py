"""Write the segments that replace others: rollbacks and drops, records of the vbuckets, then the rows that stay.

The new segments are read like any others. Batches are split by size, not by vbucket; their numbers start at 0 in each
file. The files take effect only when the manifest names them.

The caller's thread copies the next batch from all over the log, while another thread computes the checksum of the last
one and writes it, past the page cache if possible; at the end the files are read into memory, in bulk. Only the
caller's thread counts segments and places, and it does not use the disk while a batch is being written.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headwater.invariants import node_invariant
from headwater.kernels.compact import copy_rows
from headwater.kernels.history import count_frames
from headwater.node.process.threads import pool_or_inline
from headwater.node.storage import batch as batches
from headwater.node.storage.log import Log
from headwater.node.storage.records import VBucketRecord, record_frame
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, Segment
from headwater.wire.header import FRAME_BYTES_MAX

__all__ = ["CompactedWriter"]

BATCH_BYTES: Final = 4 << 20
PAGE_BYTES: Final = mmap.PAGESIZE
POPULATE_BYTES: Final = 8 << 20
BUFFERS: Final = 3
"""The number of buffers: one is being filled, one is being written, one waits. Only a frame that is larger than a batch
needs more memory."""


class CompactedWriter:
    """Writes the files of a compaction.

    Attributes:
        segments: the new segments, in the order of the log; a row's place contains an index into this list.
    """

    def __init__(self, log: Log) -> None:
        self.segments: list[Segment] = []
        self._log = log
        size = max(BATCH_BYTES, FRAME_BYTES_MAX)  # pages that are never used take no memory
        self._buffers: deque[NDArray[np.uint8]] = deque(np.empty(size, np.uint8) for _ in range(BUFFERS))
        self._used = 0
        self._thread = pool_or_inline(1, "headwater-compaction")
        self._under_way: deque[Future[None]] = deque()

    @property
    def _buffer(self) -> NDArray[np.uint8]:
        """The buffer that is being filled."""
        return self._buffers[0]

    def records(self, first: Sequence[bytes], records: Mapping[int, VBucketRecord]) -> None:
        """Write the control frames `first`, then the vbuckets' records."""
        for frame in (*first, *(record_frame(vb, record) for vb, record in sorted(records.items()))):
            if self._used + len(frame) > BATCH_BYTES:
                self._flush()
            self._room_for(len(frame))
            self._buffer[self._used : self._used + len(frame)] = np.frombuffer(frame, np.uint8)
            self._used += len(frame)

    def rows(
        self, locs: NDArray[np.uint64], rows: NDArray[np.uint32], places: NDArray[np.uint64], table: NDArray[Any]
    ) -> None:
        """Copy the frames of `rows`; set places[i] to (index of the new segment << 40 | offset).

        Args:
            locs: the column LOC of the vbucket.
            rows: the rows to copy.
            places: the output.
            table: the segments' addresses.
        """
        copied = 0
        while copied < len(rows):
            count = self._copy(locs, rows, copied, places, table, BATCH_BYTES)
            copied += count
            if copied < len(rows):
                if not count and not self._used:  # the next frame is larger than the rest of the segment, or a batch
                    _, size = copy_rows(locs, rows[: copied + 1], copied, table, self._buffer, np.uint64(0), places)
                    self._room_for(int(size))
                    copied += self._copy(locs, rows[: copied + 1], copied, places, table, int(size))
                self._flush()
        node_invariant(copied == len(rows), "compaction wrote {} rows of {}", copied, len(rows))

    def write_out(self) -> None:
        """Write the buffered frames; on return no write is in progress."""
        self._flush()
        self._wait(0)

    def finish(self) -> int:
        """Sync and seal all files, and read them into memory for later readers; return their size in bytes."""
        self.write_out()
        under_way = len(self._under_way)
        node_invariant(under_way == 0, "{} batches are not written, and their files are sealed", under_way)
        self.close()
        for segment in self.segments:
            # One sync per file is enough, not one per batch: these files do not count before the manifest names them.
            segment.writable().sync()
            for begin in range(0, segment.end, POPULATE_BYTES):  # a long call may keep others from changing maps
                segment.writable().populate(segment.memory[begin:], min(POPULATE_BYTES, segment.end - begin))
            segment.seal()
        return sum(segment.end for segment in self.segments)

    def touch(self) -> None:
        """Read each page once, so that later readers need not wait: the host of a virtual machine may still have to
        fetch pages that were loaded from disk.
        """
        for segment in self.segments:
            segment.memory[::PAGE_BYTES].max(initial=0)

    def close(self) -> None:
        """Stop writing: wait for the batch that is being written, and drop later ones; may be called again."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def discard(self) -> None:
        """Remove the new files. If the disk refuses, the next start removes them."""
        self.close()
        for segment in self.segments:
            segment.close()
            with contextlib.suppress(OSError):
                self._log.remove(segment)

    def _copy(  # noqa: PLR0917 - called twice, above
        self,
        locs: NDArray[np.uint64],
        rows: NDArray[np.uint32],
        first: int,
        places: NDArray[np.uint64],
        table: NDArray[Any],
        limit: int,
    ) -> int:
        self._room_for(1)
        segment = self.segments[-1]
        # Cut at the end of the segment: a batch never spans two files.
        limit = min(limit, segment.size - segment.end - batches.BATCH_HEADER_BYTES)
        place = (len(self.segments) - 1) << 40 | (segment.end + batches.BATCH_HEADER_BYTES + self._used)
        out = self._buffer[self._used : limit]
        count, size = copy_rows(locs, rows, first, table, out, np.uint64(place), places)
        self._used += int(size)
        return int(count)

    def _room_for(self, count: int) -> None:
        """Begin a new segment if the present one has no room for the buffered batch with `count` more bytes."""
        needed = batches.BATCH_HEADER_BYTES + self._used + count
        if self.segments and self.segments[-1].end + needed <= self.segments[-1].size:
            return
        self.write_out()
        size = max(self._log.segment_bytes_now, SEGMENT_HEADER_BYTES + batches.BATCH_HEADER_BYTES + count)
        # Only the header's room is reserved: `making_room` has promised the rest, and documents may need what is not
        # written.
        self.segments.append(self._log.create(0, size, SEGMENT_HEADER_BYTES))

    def _flush(self) -> None:
        """Pass the buffered batch to the other thread, and continue in a free buffer."""
        if not self._used:
            return
        segment, body = self.segments[-1], self._buffer[: self._used]
        end = segment.end + batches.BATCH_HEADER_BYTES + self._used
        node_invariant(end <= segment.size, "{}: a batch to byte {} of {}", segment.path, end, segment.size)
        self._under_way.append(self._thread.submit(_write, segment, segment.next_number, segment.end, body))
        # Counted before it is written: if the write fails, the whole compaction is cancelled.
        segment.end += batches.BATCH_HEADER_BYTES + self._used
        segment.batches += 1
        self._used = 0
        self._buffers.rotate(-1)
        # The buffer that comes next may still be on its way to the disk.
        self._wait(BUFFERS - 1)

    def _wait(self, most: int) -> None:
        """Wait until at most `most` batches are being written; raise the error of a failed one."""
        while len(self._under_way) > most:
            self._under_way.popleft().result()


def _write(segment: Segment, number: int, offset: int, body: NDArray[np.uint8]) -> None:
    header = batches.header_of(number, int(count_frames(body, len(body))), body.data, segment.header.salt, offset)
    segment.writable().write([header, body.data], offset, is_unread=True)
