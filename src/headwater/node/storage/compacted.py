"""Writing the segments that replace others: records of the vbuckets first, then the rows that stayed.

They are read back like any other segment. Batches are cut by size, not by vbucket; numbers start at 0 in each file.
Nothing is visible before the manifest names the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.compact import copy_rows
from headwater.kernels.history import count_frames
from headwater.node.storage import batch as batches
from headwater.node.storage.disk import Disk
from headwater.node.storage.log import Log
from headwater.node.storage.records import FRAME_BYTES_MAX, VBucketRecord, record_frame
from headwater.node.storage.segment import HEADER_BYTES, Segment, SegmentHeader

__all__ = ["CompactedWriter"]

BATCH_BYTES: Final = 4 << 20


class CompactedWriter:
    """Files of a compaction under way. `segments`: they, in order; the place of a row names one by its number here."""

    def __init__(self, disk: Disk, log: Log, random: Callable[[int], bytes]) -> None:
        self.segments: list[Segment] = []
        self._disk = disk
        self._log = log
        self._random = random
        self._buffer: NDArray[np.uint8] = np.empty(max(BATCH_BYTES, FRAME_BYTES_MAX), np.uint8)
        self._used = 0

    def records(self, records: Mapping[int, VBucketRecord]) -> None:
        """Write what the vbuckets are."""
        for vb, record in sorted(records.items()):
            frame = record_frame(vb, record)
            if self._used + len(frame) > BATCH_BYTES:
                self._flush()
            self._room_for(len(frame))
            self._buffer[self._used : self._used + len(frame)] = np.frombuffer(frame, np.uint8)
            self._used += len(frame)

    def rows(
        self, locs: NDArray[np.uint64], rows: NDArray[np.uint32], places: NDArray[np.uint64], table: NDArray[Any]
    ) -> None:
        """Copy the frames of `rows`; places[i] becomes number of the new segment << 40 | offset."""
        done = 0
        while done < len(rows):
            count = self._copy(locs, rows, done, places, table, BATCH_BYTES)
            done += count
            if done < len(rows):
                if not count and not self._used:  # a frame that is larger than what is left, or than a batch should be
                    _, size = copy_rows(locs, rows[: done + 1], done, table, self._buffer, np.uint64(0), places)
                    self._room_for(int(size))
                    done += self._copy(locs, rows[: done + 1], done, places, table, int(size))
                self._flush()

    def finish(self) -> int:
        """Sync and seal all files; returns their bytes."""
        self._flush()
        for segment in self.segments:
            segment.writable().sync()
            segment.seal()
        return sum(segment.end for segment in self.segments)

    def discard(self) -> None:
        """Remove the files again, as far as the disk lets us (the next start removes what is left)."""
        for segment in self.segments:
            segment.close()
            with contextlib.suppress(OSError):
                self._disk.remove(segment.path)

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
        limit = min(limit, segment.size - segment.end - batches.HEADER_BYTES)
        place = (len(self.segments) - 1) << 40 | (segment.end + batches.HEADER_BYTES + self._used)
        out = self._buffer[self._used : limit]
        count, size = copy_rows(locs, rows, first, table, out, np.uint64(place), places)
        self._used += int(size)
        return int(count)

    def _room_for(self, count: int) -> None:
        """See to it that the batch that is gathering may grow by `count` bytes in the segment it will be written to."""
        needed = batches.HEADER_BYTES + self._used + count
        if self.segments and self.segments[-1].end + needed <= self.segments[-1].size:
            return
        self._flush()
        salt = int.from_bytes(self._random(8), "big")
        header = SegmentHeader(self._log.manifest.content.store, self._log.manifest.take_number(), salt, 0)
        size = max(self._log.segment_bytes, HEADER_BYTES + batches.HEADER_BYTES + count)
        self.segments.append(Segment.create(self._disk, self._log.folder, header, size, HEADER_BYTES))

    def _flush(self) -> None:
        if not self._used:
            return
        segment, body = self.segments[-1], self._buffer[: self._used]
        frames = int(count_frames(body, self._used))
        header = batches.header_of(segment.next_number, frames, body.data, segment.header.salt, segment.end)
        segment.writable().write([header, body.data], segment.end)
        segment.end += len(header) + self._used
        segment.batches += 1
        self._used = 0
