"""Rollback mitigation: changes wait until enough copies have them on disk (`min_persisted`).

A gate stands between the decoder and the caller. It holds changes by vbucket and in order, and releases them as the
copies report the seqnos on their disks (persistence.py asks them). A lost connection does not take back released
changes:

* A change waits for the end of its snapshot. A snapshot that was cut off in the middle has lost versions that its later
  part replaced, so a reader of half a snapshot has to go back to its beginning. A reader of a whole one, which enough
  copies have, never has to. A snapshot of old data, whose end is on all disks, is let through as it comes.
* Held changes belong to one stream and so to one branch. When a stream is over without having reached its end, all its
  held changes are dropped, and the stream is requested again from the last released change: nothing is lost, nothing
  comes twice, and changes that a failover took back meanwhile never come at all.
* Held bytes are not acknowledged: the producer stops when its window is full. That bounds the memory.

No socket, no clock. Source: dcp 7, 9; kv 2 (OBSERVE_SEQNO); failover 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headwater.client.foothold import Foothold
from headwater.client.routing import Address, ClusterMap
from headwater.errors import NotPersisted
from headwater.invariants import invariant
from headwater.protocol.dcp.events import (
    Advanced,
    CollectionsChanged,
    CollectionsTold,
    Marked,
    StreamEvent,
)
from headwater.protocol.dcp.persistence import MinPersisted, copies_needed, persisted_by
from headwater.protocol.dcp.position import ENDLESS, FailoverLog, Position, place

ROW_BYTES = 56
"""The size of a change without its key and value: about its size on the wire (dcp 7)."""


@dataclass(frozen=True, slots=True)
class StreamCut(StreamEvent):
    """A stream was cut off before its end: the changes that the gate holds of it are dropped, and come again."""


@dataclass(frozen=True, slots=True)
class WithheldChanges:
    """Changes of one snapshot, or one event, of one vbucket.

    Attributes:
        needs: the seqno that enough copies must have on disk before these changes are released.
        last: the last seqno of the changes.
        snapshot: start and end seqno of their snapshot.
        size: bytes that stay unacknowledged meanwhile.
        source: the batch whose rows from `first` up to `end` are the changes.
    """

    needs: int
    last: int = 0
    snapshot: tuple[int, int] = (0, 0)
    size: int = 0
    source: pa.RecordBatch | None = None
    first: int = 0
    end: int = 0
    event: StreamEvent | None = None


@dataclass(slots=True)
class _Vbucket:
    place: Foothold
    position: Position
    log: FailoverLog = ()
    queue: deque[WithheldChanges] = field(default_factory=deque)
    size: int = 0
    persisted: int = 0
    seqnos: dict[Address, int] = field(default_factory=dict)
    waits_since: float = 0.0

    @property
    def is_ready(self) -> bool:
        return bool(self.queue) and self.queue[0].needs <= self.persisted


@dataclass(slots=True)
class ReleasedChanges:
    """The changes that the gate has released: rows, the events among them as (row, event), and the positions
    afterwards.
    """

    records: pa.RecordBatch | None
    events: list[tuple[int, StreamEvent]]
    resting: Mapping[int, Position]
    logs: Mapping[int, FailoverLog]


class Gate:
    """The gate: changes wait in it for the copies of their vbucket.

    Args:
        start: where each vbucket begins.
        min_persisted: number of copies that must have a change.
        batch_bytes: about the most that is released at once.
    """

    def __init__(self, start: Mapping[int, Position], min_persisted: MinPersisted, batch_bytes: int) -> None:
        self._min_persisted, self._batch_bytes = min_persisted, batch_bytes
        self._vbuckets = {vb: _Vbucket(Foothold(position), position) for vb, position in start.items()}
        self._last_positions: dict[int, Position] = dict(start)
        self._logs: dict[int, FailoverLog] = {}
        self._holding: set[int] = set()
        self._ready: set[int] = set()
        self._troubles: dict[Address, str] = {}

    # ------------------------------------------------------------------ what comes

    def opened(self, vbucket: int, log: FailoverLog) -> None:
        """Begin a stream that was accepted: its changes belong to the newest branch of this log."""
        state = self._vbuckets[vbucket]
        # What was heard of the branch before says nothing of this one.
        state.log, state.persisted, state.seqnos = log, 0, {}
        self._logs = self._logs | {vbucket: log}
        self._settle(vbucket, state)

    def cut(self, vbucket: int) -> Position:
        """Drop the held rows of a stream that is over; return the position to request it again from."""
        state = self._vbuckets[vbucket]
        state.queue.clear()
        state.size = 0
        self._holding.discard(vbucket)
        self._ready.discard(vbucket)
        return state.position

    def take(self, records: pa.RecordBatch, events: Iterable[tuple[int, StreamEvent]], now: float) -> None:
        """Hold changes and the events among them.

        Args:
            events: (row, event), each event before the row with that index.
        """
        for vbucket, withheld in _sorted_out(records, list(events)):
            if isinstance(withheld.event, StreamCut):
                self.cut(vbucket)
                continue
            state = self._vbuckets[vbucket]
            if not state.queue:
                state.waits_since = now
            state.queue.append(withheld)
            state.size += withheld.size
            self._holding.add(vbucket)
            if state.is_ready:
                self._ready.add(vbucket)

    # ------------------------------------------------------------------ what the copies say

    def queries(self, address: Address, cluster_map: ClusterMap) -> dict[int, int]:
        """Return the vbuckets that wait for the copy on a node, each with the vb uuid to ask for."""
        return {
            vb: state.log[0][0]
            for vb in sorted(self._holding - self._ready)
            if (state := self._vbuckets[vb]).log and address in cluster_map.copies(vb)
        }

    def hear(self, address: Address, answers: Mapping[int, tuple[int, int]], cluster_map: ClusterMap) -> None:
        """Note a node's answer: by vbucket the vb uuid of the query, and the seqno of that branch on its disk."""
        self._troubles.pop(address, None)
        for vbucket, (vb_uuid, seqno) in answers.items():
            state = self._vbuckets[vbucket]
            if state.log and state.log[0][0] == vb_uuid:  # or it was asked before the stream was made anew
                state.seqnos[address] = seqno
                copies = cluster_map.copies(vbucket)
                count = copies_needed(self._min_persisted, len(copies), 1 + cluster_map.replica_count)
                state.persisted = persisted_by(count, copies, state.seqnos)
                if state.is_ready:
                    self._ready.add(vbucket)

    def missed(self, address: Address, trouble: Exception) -> None:
        """Note that a node did not answer; the message of a later error repeats the trouble."""
        self._troubles[address] = str(trouble)

    # ------------------------------------------------------------------ what goes

    @property
    def is_ready(self) -> bool:
        """True if changes or events can be released."""
        return bool(self._ready)

    @property
    def holding(self) -> bool:
        """True if the gate holds any changes or events, ready or not."""
        return bool(self._holding)

    def held_bytes(self, vbuckets: Iterable[int]) -> int:
        """Return how many bytes of these vbuckets the gate holds."""
        return sum(self._vbuckets[vb].size for vb in self._holding.intersection(vbuckets))

    def release(self, now: float) -> ReleasedChanges:
        """Return the rows and events that enough copies have on disk, about `batch_bytes` at most."""
        rows, events, size = _Rows(), list[tuple[int, StreamEvent]](), 0
        # The handout before refers to the old mapping.
        self._last_positions = dict(self._last_positions)
        for vbucket in sorted(self._ready):
            state = self._vbuckets[vbucket]
            for withheld in self._let_go(state, self._batch_bytes - size):
                size += withheld.size
                if withheld.event is not None:
                    events.append((rows.count, withheld.event))
                else:
                    rows.add(withheld)
            state.waits_since = now
            self._settle(vbucket, state)
            if not state.is_ready:
                self._ready.discard(vbucket)
            if not state.queue:
                self._holding.discard(vbucket)
            if size >= self._batch_bytes:
                break
        return ReleasedChanges(rows.batch(), events, self._last_positions, self._logs)

    @staticmethod
    def _let_go(state: _Vbucket, room: int) -> Iterator[WithheldChanges]:
        while state.is_ready and room > 0:
            withheld = state.queue.popleft()
            state.size -= withheld.size
            needs, persisted = withheld.needs, state.persisted
            invariant(needs <= persisted, "seqno {} goes, seqno {} is on enough disks", needs, persisted)
            invariant(state.size >= 0 and (state.queue or not state.size), "{} bytes wait for nothing", state.size)
            room -= withheld.size
            if withheld.event is not None:
                state.place.apply_event(withheld.event)
            else:
                state.place.move(withheld.last, *withheld.snapshot)
            yield withheld

    def _settle(self, vbucket: int, state: _Vbucket) -> None:
        foothold, coverage = state.place, state.position.coverage
        # Without a log the stream was never accepted, and the start stands as the caller gave it.
        if state.log:
            state.position = place(vbucket, foothold.last, foothold.held_start, foothold.held_end, state.log, coverage)
            if self._last_positions.get(vbucket) != state.position:
                self._last_positions[vbucket] = state.position

    # ------------------------------------------------------------------ what does not

    def deadline(self, patience_seconds: float | None) -> float | None:
        """Return the time at which the oldest waiting change will have waited for `patience_seconds`; None for
        never.
        """
        if patience_seconds is None:
            return None
        since = (self._vbuckets[vb].waits_since for vb in self._holding - self._ready)
        return min(since, default=float("inf")) + patience_seconds if self._holding - self._ready else None

    def too_long(self, now: float, patience_seconds: float | None, cluster_map: ClusterMap) -> NotPersisted | None:
        """Return the error for changes that have waited for `patience_seconds`; None if there are none."""
        deadline = self.deadline(patience_seconds)
        if deadline is None or now < deadline:
            return None
        vbucket = min(self._holding - self._ready, key=lambda vb: self._vbuckets[vb].waits_since)
        state, copies = self._vbuckets[vbucket], cluster_map.copies(vbucket)
        needs = state.queue[0].needs
        having = sum(state.seqnos.get(copy, 0) >= needs for copy in copies)
        count = copies_needed(self._min_persisted, len(copies), 1 + cluster_map.replica_count)
        text = "; ".join(_copy_text(copy, state, self._troubles) for copy in copies)
        return NotPersisted(vbucket, needs, (having, count), now - state.waits_since, text or "the map names no copies")


def _copy_text(copy: Address, state: _Vbucket, troubles: Mapping[Address, str]) -> str:
    if copy in troubles:
        return troubles[copy]
    return f"{copy} has {state.seqnos[copy]}" if copy in state.seqnos else f"{copy} was not heard yet"


class _Rows:
    """A collector of released rows; neighbouring rows are copied together."""

    def __init__(self) -> None:
        self.count = 0
        self._parts: list[tuple[pa.RecordBatch, int, int]] = []

    def add(self, withheld: WithheldChanges) -> None:
        self.count += withheld.end - withheld.first
        if self._parts and self._parts[-1][0] is withheld.source and self._parts[-1][2] == withheld.first:
            source, first, _ = self._parts.pop()
            self._parts.append((source, first, withheld.end))
        elif withheld.source is not None:
            self._parts.append((withheld.source, withheld.first, withheld.end))

    def batch(self) -> pa.RecordBatch | None:
        slices = [source.slice(first, end - first) for source, first, end in self._parts]
        if len(slices) > 1:
            return pa.Table.from_batches(slices).combine_chunks().to_batches()[0]
        return slices[0] if slices else None


def _sorted_out(
    records: pa.RecordBatch, events: list[tuple[int, StreamEvent]]
) -> Iterator[tuple[int, WithheldChanges]]:
    """Yield the changes and events of a handout by vbucket, each vbucket's in the order in which they came."""
    order = np.argsort(records.column("vbucket").to_numpy(), kind="stable")
    sorted_records = records.take(pa.array(order, pa.int64()))  # a copy: the memory of the arena is used again
    vbuckets = sorted_records.column("vbucket").to_numpy()
    parts: list[tuple[int, int, int, WithheldChanges]] = []  # (vbucket, row, whether it is a change, what it is)
    for row, event in events:
        first, end = np.searchsorted(vbuckets, (event.vbucket, event.vbucket + 1))
        at = int(first + np.searchsorted(order[first:end], row))
        parts.append((event.vbucket, at, 0, WithheldChanges(_needed_for(event), event=event)))
    if len(order):
        parts += [
            (int(vbuckets[withheld.first]), withheld.first, 1, withheld)
            for withheld in _runs(sorted_records, {at for _, at, _, _ in parts})
        ]
    parts.sort(key=lambda each: each[:3])
    return ((vbucket, withheld) for vbucket, _, _, withheld in parts)


def _runs(records: pa.RecordBatch, cuts: set[int]) -> Iterator[WithheldChanges]:
    """Yield the changes of a batch in runs: one run per snapshot, split at `cuts`.

    Args:
        cuts: the rows before which an event lies.
    """
    names = ("vbucket", "snapshot_start", "snapshot_end", "seqno")
    vbuckets, starts, ends, seqnos = (records.column(name).to_numpy() for name in names)
    changes = (vbuckets[1:] != vbuckets[:-1]) | (starts[1:] != starts[:-1]) | (ends[1:] != ends[:-1])
    edges = sorted({0, len(seqnos), *cuts, *(np.flatnonzero(changes) + 1).tolist()})
    sizes = np.concatenate(([0], np.cumsum(_wire_bytes(records))))[edges]
    at = np.array(edges[1:]) - 1
    numbers = (
        edges[:-1],
        edges[1:],
        seqnos[at].tolist(),
        starts[at].tolist(),
        ends[at].tolist(),
        np.diff(sizes).tolist(),
    )
    for first, end, last, snapshot_start, snapshot_end, size in zip(*numbers, strict=True):
        # A snapshot of UPR has no end: then each run of changes stands for itself.
        needs = last if snapshot_end == ENDLESS else snapshot_end
        yield WithheldChanges(needs, last, (snapshot_start, snapshot_end), size, records, first, end)


def _wire_bytes(records: pa.RecordBatch) -> NDArray[np.int64]:
    """Return about the size on the wire of each row, that of what it replaced included."""
    binary = [name for name in ("key", "value", "before_value") if name in records.schema.names]
    sizes = np.full(len(records), ROW_BYTES * (len(binary) - 1), np.int64)
    for name in binary:
        sizes += pc.binary_length(cast("pa.BinaryArray", records.column(name))).to_numpy()
    return sizes


def _needed_for(event: StreamEvent) -> int:
    if isinstance(event, Marked):
        return 0 if event.end_seqno == ENDLESS else event.end_seqno
    if isinstance(event, Advanced | CollectionsChanged | CollectionsTold):
        return max(event.seqno, event.snapshot[1])
    return 0
