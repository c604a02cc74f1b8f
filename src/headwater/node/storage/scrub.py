"""Read the log again while it is in use, to find batches whose bytes have changed since they were written.

Opening a store verifies every byte, so damage found here is newer. One pass reads each durable batch once, in pieces of
about `slice_bytes`, so that other work in the thread waits for one piece at most. The pass reads the same memory map
from which clients are served. Damage on the disk under a page that the system has in memory is found once the page has
left memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headwater.node.storage import batch as batches
from headwater.node.storage.segment import SEGMENT_HEADER_BYTES, Segment

__all__ = ["Damage", "scrub"]


@dataclass(slots=True, frozen=True)
class Damage:
    """A damaged range of a segment.

    Attributes:
        segment: the segment.
        offset: the start of the range in the file.
        end: the end of the range.
        why: what is wrong, for people.
    """

    segment: Segment
    offset: int
    end: int
    why: str

    def __str__(self) -> str:
        """Return one line, in the form of CorruptStore."""
        return f"{self.segment.path}: byte {self.offset}: {self.why}"


def scrub(segments: Sequence[tuple[Segment, int]], slice_bytes: int) -> Iterator[int | Damage]:
    """Verify segments, each up to its given end. Any thread may call this.

    Args:
        segments: pairs of a segment and the end of its durable batches.
        slice_bytes: about the number of bytes to read between two yields.

    Yields:
        The number of bytes read since the last yield; and each Damage when it is found.
    """
    for segment, end in segments:
        read = 0
        for batch in _segment(segment, end, slice_bytes):
            if isinstance(batch, Damage):
                yield batch
                continue
            read += batch
            if read >= slice_bytes:
                yield read
                read = 0
        if read:
            yield read


def _segment(segment: Segment, end: int, slice_bytes: int) -> Iterator[int | Damage]:
    data, header = segment.memory.data, segment.header
    # No row points into the header, so all rows are still served; but the next start will refuse the file.
    if bytes(data[:SEGMENT_HEADER_BYTES]) != header.encode():
        yield Damage(segment, 0, SEGMENT_HEADER_BYTES, "the segment header is not the one it was opened with")
    offset, number = SEGMENT_HEADER_BYTES, header.first_batch
    while offset < end:
        try:
            batch = batches.read_header(data, offset, end, header.salt)
            if batch.number != number:
                raise batches.Torn(offset, f"batch {batch.number} is here, {number} is expected")
        except batches.Torn as torn:
            # Only the damaged header says where the next batch begins, so search for a valid one.
            later = batches.find_later(data, offset, end, header.salt, number)
            after = end if later is None else later.offset
            yield Damage(segment, offset, after, torn.why)
            offset, number = after, number if later is None else later.number
            continue
        yield from _body(segment, batch, slice_bytes)
        offset, number = batch.end, number + 1


def _body(segment: Segment, header: batches.BatchHeader, slice_bytes: int) -> Iterator[int | Damage]:
    data, digest = segment.memory.data, batches.body_digest(header, segment.header.salt)
    yield batches.BATCH_HEADER_BYTES
    for at in range(header.start, header.end, slice_bytes):
        piece = data[at : min(at + slice_bytes, header.end)]
        digest.update(piece)
        yield len(piece)
    if digest.intdigest() != header.checksum:
        why = f"the checksum of batch {header.number} ({header.body_bytes} bytes) is wrong"
        yield Damage(segment, header.offset, header.end, why)
