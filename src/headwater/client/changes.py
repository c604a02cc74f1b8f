"""Iterators over a drain: changes one at a time, or by the batch.

Both come from the same rows. `ChangeFeed` turns a handout into events in the order of the wire, and moves the positions
on with each event the caller takes; `ChangeBatch` is the rows as they are, with the positions after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, cast

import pyarrow as pa

from headwater.client.drainer import Handout
from headwater.client.progress import Positions
from headwater.protocol.dcp.events import Advanced, Boundary, Ended, Marked, StreamEvent
from headwater.protocol.dcp.position import ENDLESS, FailoverLog, Position, place
from headwater.wire.opcodes import Opcode


@dataclass(frozen=True, slots=True)
class Mutation:
    """A document was stored.

    Attributes:
        vbucket, seqno: the place of the change.
        rev_seqno: how many times the key has changed.
        cas: the document's CAS.
        datatype: bits 1 JSON, 2 snappy, 4 xattrs in front of the value.
        snapshot_start, snapshot_end: the snapshot it came in, as the producer announced it.
        flags: the application's own four bytes.
        expiry: Unix seconds, 0 for never.
    """

    vbucket: int
    seqno: int
    rev_seqno: int
    cas: int
    datatype: int
    key: bytes
    value: bytes
    snapshot_start: int
    snapshot_end: int
    flags: int
    expiry: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """A document was deleted; the fields are those of a mutation, `delete_time` is Unix seconds, 0 if unknown."""

    vbucket: int
    seqno: int
    rev_seqno: int
    cas: int
    datatype: int
    key: bytes
    value: bytes
    snapshot_start: int
    snapshot_end: int
    delete_time: int


@dataclass(frozen=True, slots=True)
class Expiration:
    """A document ran out; the fields are those of a deletion."""

    vbucket: int
    seqno: int
    rev_seqno: int
    cas: int
    datatype: int
    key: bytes
    value: bytes
    snapshot_start: int
    snapshot_end: int
    delete_time: int


@dataclass(frozen=True, slots=True)
class SnapshotMarker:
    """The changes that follow for this vbucket belong to one snapshot: consistent only when all of it was received.

    `flags` are SnapshotFlag bits: 1 memory, 2 disk, 4 checkpoint.
    """

    vbucket: int
    start_seqno: int
    end_seqno: int
    flags: int


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """Nothing more comes for this vbucket; `reason` is an EndReason: 0 the end asked for was reached."""

    vbucket: int
    reason: int


Change: TypeAlias = Mutation | Deletion | Expiration
Event: TypeAlias = Change | SnapshotMarker | StreamEnd


@dataclass(frozen=True)
class ChangeBatch:
    """Rows, and where they lead.

    Attributes:
        records: one row per change, in the order of the wire; columns as in headwater.kernels.columns.SCHEMA. The
            batch keeps its memory as long as it is referred to.
        ended: the streams that ended in it; their rows are in it or were before.
    """

    records: pa.RecordBatch
    ended: tuple[StreamEnd, ...]
    _positions: Positions

    @cached_property
    def positions(self) -> dict[int, Position]:
        """Where every vbucket of the drain stands after this batch; save this with what was made of the rows."""
        return self._positions.by_vbucket()

    @property
    def failover_logs(self) -> Mapping[int, FailoverLog]:
        """The failover log of each vbucket's newest stream, by vbucket; the same object until a stream is opened."""
        return self._positions.logs

    def __len__(self) -> int:
        """Rows in the batch."""
        return int(self.records.num_rows)


def batch_of(handout: Handout) -> ChangeBatch:
    """Return a handout as a batch."""
    over = [event for _, event in handout.events if isinstance(event, Ended)]
    ended = tuple(StreamEnd(event.vbucket, event.reason) for event in over if event.reason is not None)
    return ChangeBatch(handout.records, ended, handout.positions)


class _Place:
    """Where one vbucket stands, event by event: what kernels/tracker.py keeps for rows."""

    __slots__ = ("held_end", "held_start", "last", "snapshot")

    def __init__(self, position: Position) -> None:
        self.last = position.seqno
        self.held_start, self.held_end = position.snapshot_start, position.snapshot_end
        if self.held_start == self.last:
            self.held_end = self.last
        self.snapshot: tuple[int, int] | None = None

    def enter(self, start: int, end: int) -> None:
        """A snapshot begins; one that was cut short widens the range (kernels/tracker.py, enter_snapshot)."""
        self.snapshot = start, end
        if self.held_start < self.last < self.held_end:
            self.held_start, self.held_end = min(self.held_start, start), max(self.held_end, end)
        else:
            self.held_start, self.held_end = min(self.last, start), max(self.last, end)

    def move(self, change: Change) -> None:
        """A change was taken. Where markers are no events, it is what tells of the snapshot it came in."""
        if (change.snapshot_start, change.snapshot_end) != self.snapshot:
            self.enter(change.snapshot_start, change.snapshot_end)
        elif self.held_end < change.seqno:
            self.held_end = change.snapshot_end  # the first one behind a boundary
        self.last = change.seqno

    def complete(self) -> None:
        """UPR: note that what is held is a consistent state; where the next one lies is unknown."""
        self.held_start = self.held_end = self.last
        self.snapshot = self.last, ENDLESS


class ChangeFeed:
    """Turns handouts into events, and knows where the caller stands after each."""

    def __init__(self, start: Mapping[int, Position]) -> None:
        self._places = {vbucket: _Place(position) for vbucket, position in start.items()}
        self._logs: dict[int, FailoverLog] = {vb: position.failover_log for vb, position in start.items()}
        self._start = start

    def positions(self) -> dict[int, Position]:
        """The positions after the last event that was taken, by vbucket."""
        return {vb: self._position(vb, stands) for vb, stands in sorted(self._places.items())}

    def _position(self, vbucket: int, stands: _Place) -> Position:
        log, start = self._logs[vbucket], self._start[vbucket]
        if stands.last == start.seqno and log is start.failover_log:
            return start  # nothing came yet, not even the answer: what the caller gave us
        return place(vbucket, stands.last, stands.held_start, stands.held_end, log)

    def take(self, handout: Handout) -> Iterator[Event]:
        """Yield the events of a handout in the order of the wire."""
        self._logs.update(handout.positions.logs)
        rows = _rows(handout.records)
        done = 0
        for row, occurrence in handout.events:
            for _ in range(row - done):
                yield self._moved(next(rows))
            done = row
            event = self._occurred(occurrence)
            if event is not None:
                yield event
        for change in rows:
            yield self._moved(change)

    def _moved(self, change: Change) -> Change:
        self._places[change.vbucket].move(change)
        return change

    def _occurred(self, occurrence: StreamEvent) -> Event | None:
        match occurrence:
            case Marked(vbucket=vbucket, start_seqno=start, end_seqno=end, flags=flags):
                if end != ENDLESS:  # that of UPR, which is a boundary, has been heard of
                    self._places[vbucket].enter(start, end)
                return SnapshotMarker(vbucket, start, end, flags)
            case Boundary(vbucket=vbucket):
                self._places[vbucket].complete()
            case Advanced(vbucket=vbucket, seqno=seqno):
                self._places[vbucket].last = seqno
            case Ended(vbucket=vbucket, reason=int(reason)):
                return StreamEnd(vbucket, reason)
        return None


_Shared: TypeAlias = tuple[int, int, int, int, int, bytes, bytes, int, int]
_SHARED = ("vbucket", "seqno", "rev_seqno", "cas", "datatype", "key", "value", "snapshot_start", "snapshot_end")


def _rows(records: pa.RecordBatch) -> Iterator[Change]:
    """Yield the rows of a batch as objects."""
    numbers = ("opcode", "flags", "expiry")
    opcodes, flags, expiries = (cast("list[int]", records.column(name).to_pylist()) for name in numbers)
    columns = (records.column(name).to_pylist() for name in _SHARED)
    shared = cast("Iterator[_Shared]", zip(*columns, strict=True))
    for opcode, fields, flag, expiry in zip(opcodes, shared, flags, expiries, strict=True):
        if opcode == Opcode.DCP_MUTATION:
            yield Mutation(*fields, flag, expiry)
        elif opcode == Opcode.DCP_DELETION:
            yield Deletion(*fields, expiry)
        else:
            yield Expiration(*fields, expiry)
