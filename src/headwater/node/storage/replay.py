"""Replay: add the frames of segments to the index, as rows and vbucket records, in the order of the log."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import CorruptStore
from headwater.invariants import node_invariant
from headwater.kernels import history, index
from headwater.node.storage.columns import Index
from headwater.node.storage.records import ControlOpcode, VBucketRecord, control_of
from headwater.node.storage.segment import Segment
from headwater.node.storage.slots import Slots
from headwater.wire.header import HEADER

__all__ = ["Bodies", "OpenedSegment", "Replay", "current", "restore"]

Bodies = NDArray[np.int64]

ROWS_BESIDE_MIN: Final = 500_000
THREADS_MAX: Final = 4

_REASONS = {
    history.BAD_LENGTH: "a frame is longer than its batch",
    history.BAD_VBUCKET: "a frame is of vbucket {0}, which the store does not have",
    history.BAD_SEQNO: "the seqno of a frame of vbucket {0} is not above the one before it",
    history.BAD_KIND: "a frame has an opcode or extras that this version never writes",
}


@dataclass(slots=True)
class OpenedSegment:
    """A segment that was read and verified.

    Attributes:
        segment: the segment.
        bodies: the start and end of the frames of each batch, int64[batches, 2].
        torn_end: the offset of an interrupted write, which must be cut; 0 for none.
        torn_bytes: the number of bytes that the cut removes.
    """

    segment: Segment
    bodies: Bodies
    torn_end: int = 0
    torn_bytes: int = 0


class Replay:
    """Adds the frames of segments to an index, in order.

    Changes of different vbuckets are independent, so several threads read a large log, each for a range of vbuckets.

    Args:
        into: the index, which must have no rows.
        slots: the slots of the segments.
        threads: the largest number of threads; None for one per processor if the log is long, otherwise one.

    Attributes:
        records: the newest record of each vbucket.
        clean: True if the last frame is CLEAN: the store was closed cleanly.
    """

    def __init__(self, into: Index, slots: Slots, threads: int | None = None) -> None:
        self.records: dict[int, VBucketRecord] = {}
        self.clean: bool = False
        self._index = into
        self._slots = slots
        self._threads = threads

    def run(self, opened: Sequence[OpenedSegment]) -> None:
        """Index the segments.

        Raises:
            CorruptStore: a frame is invalid; the error names the first such frame in the log.
        """
        counts = np.zeros(len(self._index.table), np.int64)
        for each in opened:
            self._slots.register(each.segment)
            history.count_rows(self._slots.table, each.segment.slot, each.bodies, counts)
        # Columns get their final size once; growing them row by row would copy a large log several times.
        for vb in counts.nonzero()[0].tolist():
            self._index.make_room(vb, int(counts[vb]))
        bounds = _bounds(counts, self._threads or _threads_for(int(counts.sum())))
        stretches = [_Stretch(self._index, self._slots, opened, first, end) for first, end in pairwise(bounds)]
        _run_all(stretches)
        self.clean = any(stretch.clean for stretch in stretches)  # the stretch of vbucket 0 handles the CLEAN frame
        for stretch in stretches:
            self.records |= stretch.records
        self._finish()

    def _finish(self) -> None:
        """Mark all rows as durable."""
        table = self._index.table
        for durable, frozen, now in (
            (index.DURABLE_ROWS, index.FROZEN_ROWS, index.ROWS),
            (index.DURABLE_HIGH, index.FROZEN_HIGH, index.HIGH),
        ):
            # A whole last batch counts, even if its sync has not returned: its clients got no answer, so both outcomes
            # are right. It is made durable before it is served (recovery.make_durable).
            table[:, durable] = table[:, now]
            table[:, frozen] = table[:, now]


class _Stretch:
    """The replay of the vbuckets from `first` up to, but not including, `end`.

    Rows are added in the order of the log. They get their links by key later, vbucket by vbucket, so that a vbucket's
    hash table fits into the processor's cache: after the last frame, or before a rollback, which needs the links.
    """

    def __init__(self, into: Index, slots: Slots, opened: Sequence[OpenedSegment], first: int, end: int) -> None:
        self.records: dict[int, VBucketRecord] = {}
        self.clean: bool = False
        self.failure: tuple[int, int, CorruptStore] | None = None  # number of the segment, offset
        self._index, self._slots, self._opened = into, slots, opened
        self._first, self._end = first, end
        self._linked: dict[int, int] = {}  # rows by vbucket

    def run(self) -> None:
        """Index all segments; after the first invalid frame, record it in `failure` and stop."""
        for number, opened in enumerate(self._opened):
            try:
                self._segment(opened)
            except CorruptStore as error:
                self.failure = number, error.offset, error
                return
        for vb in range(self._first, self._end):
            if self._index.rows(vb):
                self._link(vb)
                self._index.fit(vb)

    def _segment(self, opened: OpenedSegment) -> None:
        segment, bodies = opened.segment, opened.bodies
        table, segments, stretch = self._index.table, self._slots.table, (self._first, self._end)
        # CLEAN counts as the very last frame only: a batch behind it means that the store was in use again.
        self.clean = self.clean and not len(bodies)
        batch, offset = 0, int(bodies[0, 0]) if len(bodies) else 0
        while batch < len(bodies):
            code, batch, offset, more = history.replay(table, segments, segment.slot, bodies, batch, offset, *stretch)
            if code == history.GROW:
                self._index.grow(int(more), factor=2.0)
            elif code == history.CONTROL:
                self._control(segment, int(offset), int(more))
                offset = int(offset) + int(more)
                self.clean = self.clean and offset == segment.end
            elif code != history.DONE:
                raise CorruptStore(segment.path, int(offset), _REASONS[int(code)].format(int(more)))

    def _control(self, segment: Segment, offset: int, length: int) -> None:
        frame = bytes(segment.memory[offset : offset + length])
        vb: int = HEADER.unpack_from(frame)[5]
        try:
            control, content = control_of(frame)
        except ValueError as error:
            raise CorruptStore(segment.path, offset, str(error)) from None
        self.clean = control is ControlOpcode.CLEAN
        if isinstance(content, VBucketRecord):
            self.records[vb] = content
            restore(self._index, vb, content)
        elif isinstance(content, tuple):
            self._rollback(vb, *content)
        elif control is ControlOpcode.DROP:
            self._index.forget(vb)
            self._linked.pop(vb, None)
            self.records.pop(vb, None)

    def _rollback(self, vb: int, seqno: int, high: int) -> None:
        if seqno == 0:
            self._index.reset(vb)
        else:
            # The links say which row each row has superseded; the rollback needs them to make older versions the newest
            # again.
            self._link(vb)
            keep = self._index.rows_up_to(vb, seqno)
            history.undo_rows(self._index.table, vb, self._slots.table, keep)
        self._linked[vb] = self._index.rows(vb)
        # The frame's own number, and not the last row's: seqnos that were passed or purged have no row.
        self._index.table[vb, index.HIGH] = high
        if vb in self.records:
            self.records[vb] = current(self._index, vb, self.records[vb])

    def _link(self, vb: int) -> None:
        rows, linked = self._index.rows(vb), self._linked.get(vb, 0)
        if linked < rows:
            self._index.make_room_for_keys(vb, rows - linked)
            linked = int(history.link(self._index.table, vb, self._slots.table, linked))
            node_invariant(linked == rows, "vbucket {}: {} rows of {} have a place by key", vb, linked, rows)
            self._linked[vb] = linked


def _run_all(stretches: Sequence[_Stretch]) -> None:
    """Run all stretches at the same time. If some have failed, raise the failure that is first in the log."""
    if len(stretches) == 1:
        stretches[0].run()
    else:
        with ThreadPoolExecutor(len(stretches), "headwater-replay") as threads:
            list(threads.map(_Stretch.run, stretches))
    failures = [stretch.failure for stretch in stretches if stretch.failure]
    if failures:
        # The order of threads varies; the message must name the same place at every start.
        raise min(failures, key=lambda failure: failure[:2])[2]


def _threads_for(rows: int) -> int:
    """Return the number of threads to use: one for a short log, because each thread must skip the frames of the
    others.
    """
    return min(os.cpu_count() or 1, THREADS_MAX) if rows >= ROWS_BESIDE_MIN else 1


def _bounds(counts: NDArray[np.int64], parts: int) -> list[int]:
    """Return the first vbucket of each stretch, and the end of the last one, so that all have about equally
    many rows.
    """
    sums = counts.cumsum()
    inner = np.searchsorted(sums, [int(sums[-1]) * part // parts for part in range(1, parts)])
    return [0, *inner.tolist(), len(counts)]


def current(into: Index, vbucket: int, record: VBucketRecord) -> VBucketRecord:
    """Return the record with the present values of the numbers that the store sets."""
    row = into.table[vbucket]
    return replace(
        record,
        purge_seqno=int(row[index.PURGE]),
        rollback_floor=int(row[index.FLOOR]),
        high_seqno=int(row[index.HIGH]),
        deleted_rev=int(row[index.DELETED_REV]),
    )


def restore(into: Index, vbucket: int, record: VBucketRecord) -> None:
    """Set the numbers of a vbucket in the table from its record."""
    row = into.table[vbucket]
    row[index.STATE] = record.state
    row[index.PURGE] = record.purge_seqno
    row[index.FLOOR] = record.rollback_floor
    # A CAS that was given out and whose document is purged must not be given again, though no row has it (wire 10).
    row[index.CAS] = max(int(row[index.CAS]), record.max_cas)
    # Never lower: there may be rows that are newer than the record.
    row[index.HIGH] = max(int(row[index.HIGH]), record.high_seqno)
    row[index.DELETED_REV] = max(int(row[index.DELETED_REV]), record.deleted_rev)
