"""Replay: the frames of segments become rows of the index, and records of vbuckets, in the order of the log."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from headwater.errors import CorruptStore
from headwater.kernels import history, index
from headwater.node.storage.columns import Index
from headwater.node.storage.records import ControlOpcode, VBucketRecord, control_of
from headwater.node.storage.segment import Segment
from headwater.node.storage.slots import Slots
from headwater.wire.header import HEADER

__all__ = ["Bodies", "OpenedSegment", "Replay", "current", "restore"]

Bodies = NDArray[np.int64]

_REASONS = {
    history.BAD_LENGTH: "a frame is longer than its batch",
    history.BAD_VBUCKET: "a frame is of vbucket {0}, which the store does not have",
    history.BAD_SEQNO: "the seqno of a frame of vbucket {0} is not above the one before it",
    history.BAD_KIND: "a frame has an opcode or extras that this version never writes",
}


@dataclass(slots=True)
class OpenedSegment:
    """A segment that was read: where the frames of its batches are, where a cut is due (0: nowhere) and how many bytes
    it removes."""

    segment: Segment
    bodies: Bodies
    torn_end: int = 0
    torn_bytes: int = 0


class Replay:
    """Puts the frames of segments into an index, in order.

    Attributes:
        records: the newest record of each vbucket.
        clean: the last frame so far says that the store was closed in order.
    """

    def __init__(self, into: Index, slots: Slots) -> None:
        self.records: dict[int, VBucketRecord] = {}
        self.clean: bool = False
        self._index = into
        self._slots = slots

    def segment(self, opened: OpenedSegment) -> None:
        """Index one segment. Raises CorruptStore when a frame makes no sense."""
        segment, bodies = opened.segment, opened.bodies
        self._slots.register(segment)
        self.clean = self.clean and not len(bodies)
        batch, offset = 0, int(bodies[0, 0]) if len(bodies) else 0
        while batch < len(bodies):
            code, batch, offset, more = history.replay(
                self._index.table, self._slots.table, segment.slot, bodies, batch, offset
            )
            if code == history.GROW:
                self._index.grow(int(more), factor=2.0)
            elif code == history.CONTROL:
                self._control(segment, int(offset), int(more))
                offset = int(offset) + int(more)
                self.clean = self.clean and offset == segment.end
            elif code != history.DONE:
                raise CorruptStore(segment.path, int(offset), _REASONS[int(code)].format(int(more)))

    def finish(self) -> None:
        """Mark all that was read as durable, and give back what growing left over."""
        table = self._index.table
        for vb in range(len(table)):
            if self._index.rows(vb):
                self._index.fit(vb)
        for durable, frozen, now in (
            (index.DURABLE_ROWS, index.FROZEN_ROWS, index.ROWS),
            (index.DURABLE_HIGH, index.FROZEN_HIGH, index.HIGH),
        ):
            table[:, durable] = table[:, now]
            table[:, frozen] = table[:, now]

    def _control(self, segment: Segment, offset: int, length: int) -> None:
        frame = bytes(segment.memory[offset : offset + length])
        vb: int = HEADER.unpack_from(frame)[5]
        try:
            control, content = control_of(frame)
        except ValueError as error:
            raise CorruptStore(segment.path, offset, str(error)) from None
        if vb >= len(self._index.table):
            raise CorruptStore(segment.path, offset, f"a record is of vbucket {vb}, which the store does not have")
        self.clean = control is ControlOpcode.CLEAN
        if isinstance(content, VBucketRecord):
            self.records[vb] = content
            restore(self._index, vb, content)
        elif isinstance(content, tuple):
            self._rollback(vb, *content)
        elif control is ControlOpcode.DROP:
            self._index.forget(vb)
            self.records.pop(vb, None)

    def _rollback(self, vb: int, seqno: int, high: int) -> None:
        if seqno == 0:
            self._index.reset(vb)
        else:
            keep = self._index.rows_up_to(vb, seqno)
            history.undo_rows(self._index.table, vb, self._slots.table, keep)
        self._index.table[vb, index.HIGH] = high
        if vb in self.records:
            self.records[vb] = current(self._index, vb, self.records[vb])


def current(into: Index, vbucket: int, record: VBucketRecord) -> VBucketRecord:
    """The record with the numbers that are the store's own, as they are now."""
    row = into.table[vbucket]
    return replace(
        record,
        purge_seqno=int(row[index.PURGE]),
        rollback_floor=int(row[index.FLOOR]),
        high_seqno=int(row[index.HIGH]),
        deleted_rev=int(row[index.DELETED_REV]),
    )


def restore(into: Index, vbucket: int, record: VBucketRecord) -> None:
    """Put what a record says about a vbucket into the table."""
    row = into.table[vbucket]
    row[index.STATE] = record.state
    row[index.PURGE] = record.purge_seqno
    row[index.FLOOR] = record.rollback_floor
    row[index.CAS] = max(int(row[index.CAS]), record.max_cas)
    row[index.HIGH] = max(int(row[index.HIGH]), record.high_seqno)
    row[index.DELETED_REV] = max(int(row[index.DELETED_REV]), record.deleted_rev)
