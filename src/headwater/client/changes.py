"""Iterators over a drain: changes one at a time, or by the batch.

Both come from the same rows. `ChangeFeed` turns a handout into events in the order of the wire, and moves the positions
on with each event the caller takes; `ChangeBatch` is the rows as they are, with the positions after them.

A drain of collections has more of both: each change knows its collection (`scope`, `collection`, `collection_id`; four
columns of a batch), and collections and scopes that come and go are events, in their place among the changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import repeat
from typing import Any, TypeAlias, cast

import pyarrow as pa

from headwater.client.befores import Lack, Operation, Replaced, befores_of, with_befores, without_befores
from headwater.client.collection_columns import with_names
from headwater.client.collections import DEFAULT_COLLECTION, CollectionName, CollectionNames
from headwater.client.drainer import Handout
from headwater.client.foothold import Foothold
from headwater.client.kv import Valued
from headwater.client.losses import ReadAgain
from headwater.client.progress import Positions
from headwater.invariants import invariant
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.events import (
    CollectionsChanged,
    CollectionsTold,
    Ended,
    Marked,
    StreamEvent,
    Vanished,
)
from headwater.protocol.dcp.position import FailoverLog, Position, place
from headwater.wire.dcp import SnapshotFlag
from headwater.wire.manifest import EventKind
from headwater.wire.opcodes import Opcode

_DISK, _DISK_WITH_HISTORY = int(SnapshotFlag.DISK), int(SnapshotFlag.DISK | SnapshotFlag.HISTORY)


class _InCollection:
    """The part of a change that depends on its collection: `within`."""

    __slots__ = ()
    within: CollectionName

    @property
    def collection_id(self) -> int:
        """The id of its collection, 0 for the default one."""
        return self.within.collection_id

    @property
    def scope(self) -> str | None:
        """The name of the collection's scope; None where only the collection's id is known (CollectionName)."""
        return self.within.scope

    @property
    def collection(self) -> str | None:
        """The name of its collection within the scope; None where only the id is known (CollectionName)."""
        return self.within.collection


@dataclass(frozen=True, slots=True)
class _ChangeFields(_InCollection):
    """The fields that every change has, all of them columns of a batch."""

    vbucket: int
    seqno: int
    rev_seqno: int
    cas: int
    datatype: int
    key: bytes
    value: bytes
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class Mutation(_ChangeFields, Valued):
    """A document was stored.

    Attributes:
        vbucket, seqno: the place of the change.
        rev_seqno: how many times the key has changed.
        cas: the document's CAS.
        datatype: bits 1 JSON, 2 snappy, 4 xattrs in front of the value.
        snapshot_start, snapshot_end: the snapshot it came in, as the producer announced it.
        flags: the application's own four bytes.
        expiry: Unix seconds, 0 for never.
        within: its collection: the default one, unless the drain reads others.
        before: the version that it replaced; None if there was none; Lack.NOT_KEPT if that is not known any more.
    """

    flags: int
    expiry: int
    within: CollectionName = DEFAULT_COLLECTION
    before: Replaced = Lack.NOT_REQUESTED

    @property
    def operation(self) -> Operation | None:
        """The effect on its document, created or updated; None if that is not known (`before`)."""
        if isinstance(self.before, Lack):
            return None
        return "create" if self.before is None else "update"


@dataclass(frozen=True, slots=True)
class Deletion(_ChangeFields):
    """A document was deleted; the fields are those of a mutation, `delete_time` is Unix seconds, 0 if unknown."""

    delete_time: int
    within: CollectionName = DEFAULT_COLLECTION
    before: Replaced = Lack.NOT_REQUESTED

    @property
    def operation(self) -> Operation:
        """The effect on its document."""
        return "delete"


@dataclass(frozen=True, slots=True)
class Expiration(_ChangeFields):
    """A document expired; the fields are those of a deletion."""

    delete_time: int
    within: CollectionName = DEFAULT_COLLECTION
    before: Replaced = Lack.NOT_REQUESTED

    @property
    def operation(self) -> Operation:
        """The effect on its document."""
        return "expire"


@dataclass(frozen=True, slots=True)
class SnapshotMarker:
    """The changes that follow for this vbucket belong to one snapshot: consistent only when all of it was received.

    `flags` are SnapshotFlag bits: 1 memory, 2 disk, 4 checkpoint, 16 history, 32 a key may come more than once.
    """

    vbucket: int
    start_seqno: int
    end_seqno: int
    flags: int

    @property
    def is_deduplicated(self) -> bool:
        """True if the snapshot was read from disk and has only the last version of each document.

        With `history` it means that the node keeps no versions of these collections, or no longer those of these
        seqnos.
        """
        return self.flags & _DISK_WITH_HISTORY == _DISK


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """The end of a vbucket's stream; `reason` is an EndReason: 0 means that the requested end was reached."""

    vbucket: int
    reason: int


@dataclass(frozen=True, slots=True)
class CollectionCreated(_InCollection):
    """A collection was created: its changes follow.

    Attributes:
        vbucket, seqno: the place of the event; every vbucket has one of its own.
        manifest_uid: the uid of the manifest that this event completes, or of the manifest before it while more events
            of the same change follow.
        within: the collection. max_ttl: the longest that its documents live, in seconds; None for no such limit.
        history: True if readers of every version get the old versions of its documents; None if the node does not
            report it.
        snapshot_start, snapshot_end: the snapshot it came in.
    """

    vbucket: int
    seqno: int
    manifest_uid: int
    within: CollectionName
    snapshot_start: int
    snapshot_end: int
    max_ttl: int | None = None
    history: bool | None = None


@dataclass(frozen=True, slots=True)
class CollectionDropped(_InCollection):
    """A collection was dropped: all of its documents below `seqno` are gone without deletions.

    The fields are those of CollectionCreated. A collection that is created again under the same name has another id.
    """

    vbucket: int
    seqno: int
    manifest_uid: int
    within: CollectionName
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class CollectionModified(_InCollection):
    """A collection got other settings; its documents stay. Servers from 7.2 on report it.

    The fields are those of CollectionCreated, with the values that hold from this seqno on.
    """

    vbucket: int
    seqno: int
    manifest_uid: int
    within: CollectionName
    snapshot_start: int
    snapshot_end: int
    max_ttl: int | None = None
    history: bool | None = None


@dataclass(frozen=True, slots=True)
class UnknownSystemEvent:
    """An event of the bucket's collections that this program does not understand.

    Attributes:
        vbucket, seqno: its place. event, version: its number and its version. key, value: the bytes that came with it.
        snapshot_start, snapshot_end: the snapshot it came in.
    """

    vbucket: int
    seqno: int
    event: int
    version: int
    key: bytes
    value: bytes
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class ScopeCreated:
    """A scope was created; the fields are those of CollectionCreated."""

    vbucket: int
    seqno: int
    manifest_uid: int
    scope_id: int
    scope: str | None
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class ScopeDropped:
    """A scope was dropped, after all of its collections."""

    vbucket: int
    seqno: int
    manifest_uid: int
    scope_id: int
    scope: str | None
    snapshot_start: int
    snapshot_end: int


@dataclass(frozen=True, slots=True)
class DeletionsPurged:
    """Deletions of a vbucket were purged before we read them, so the vbucket is read again from the beginning.

    A document that the reader holds of the vbucket, and that does not come again, was deleted
    (`on_data_loss="read_again"`).

    Attributes:
        seqno: our last seqno. purge_seqno: the seqno up to which deletions are gone.
    """

    vbucket: int
    seqno: int
    purge_seqno: int


Change: TypeAlias = Mutation | Deletion | Expiration
CollectionEvent: TypeAlias = (
    CollectionCreated | CollectionDropped | CollectionModified | ScopeCreated | ScopeDropped | UnknownSystemEvent
)
Event: TypeAlias = Change | SnapshotMarker | StreamEnd | CollectionEvent | DeletionsPurged


@dataclass(frozen=True, repr=False)
class ChangeBatch:
    """Rows, and the positions after them.

    Attributes:
        records: one row per change, in the order of the wire; columns as in headwater.kernels.columns.SCHEMA, and, if
            collections were chosen, those of headwater.client.collection_columns; with `before`, those of
            headwater.client.befores. The batch keeps its memory as long as it is referred to. It may be empty: then
            only the positions have moved on, or one of the lists below has an entry.
        ended: the streams that ended; their last rows are in this batch or in an earlier one.
        collection_events: events of collections and scopes in order, each with the index of the row that follows it
            (the number of rows, if none follows).
        data_losses: events of vbuckets that are read again from the beginning, with row indexes as above.
        deduplicated: of a drain with `history`, the markers of snapshots that have only the last version of each
            document (`SnapshotMarker.is_deduplicated`), with row indexes as above.
    """

    records: pa.RecordBatch
    ended: tuple[StreamEnd, ...]
    _positions: Positions
    collection_events: tuple[tuple[int, CollectionEvent], ...] = ()
    data_losses: tuple[tuple[int, DeletionsPurged], ...] = ()
    deduplicated: tuple[tuple[int, SnapshotMarker], ...] = ()

    def __repr__(self) -> str:
        return f"<ChangeBatch of {len(self)} rows, {self.records.nbytes} bytes>"

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Return `records` as Arrow's PyCapsules: pyarrow and Polars take a batch as it is."""
        records: Any = self.records  # the stubs of pyarrow say nothing of it
        return cast("tuple[object, object]", records.__arrow_c_array__(requested_schema))

    @cached_property
    def positions(self) -> dict[int, Position]:
        """The position of every vbucket after this batch; save it together with the results of its rows."""
        return self._positions.by_vbucket()

    @property
    def failover_logs(self) -> Mapping[int, FailoverLog]:
        """The failover log of each vbucket's newest stream, by vbucket; the same object until a stream is opened."""
        return self._positions.logs

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.records.num_rows)


def batch_of(handout: Handout) -> ChangeBatch:
    """Return the rows and events that a drain hands out at once, in the form that callers get."""
    ends = tuple(
        StreamEnd(event.stream.vbucket, event.reason)
        for _, event in handout.events
        if isinstance(event, Ended) and event.reason is not None
    )
    losses = tuple((row, _loss(event)) for row, event in handout.events if isinstance(event, ReadAgain))
    markers = ((row, _marker(event)) for row, event in handout.events if isinstance(event, Marked))
    thinned = tuple((row, marker) for row, marker in markers if marker.is_deduplicated)
    records = without_befores(handout.records)
    if handout.streamed is None:
        return ChangeBatch(with_befores(records, handout.records), ends, handout.positions, (), losses, thinned)
    names = handout.streamed.names
    events = ((row, collection_event(event, names)) for row, event in handout.events)
    happened = tuple((row, event) for row, event in events if event is not None)
    rows = with_befores(with_names(records, names), handout.records)
    return ChangeBatch(rows, ends, handout.positions, happened, losses, thinned)


def _marker(event: Marked) -> SnapshotMarker:
    return SnapshotMarker(event.vbucket, event.start_seqno, event.end_seqno, event.flags)


def _loss(event: ReadAgain) -> DeletionsPurged:
    return DeletionsPurged(event.vbucket, event.seqno, event.purge_seqno)


def collection_event(event: StreamEvent, names: CollectionNames) -> CollectionEvent | None:
    """Return the event of a collection or scope; None for events of other kinds."""
    if isinstance(event, Vanished):  # it lies behind all that came of the stream, wherever that was
        start = event.stream.request_position
        snapshot = (0, 0) if start is None else (start.seqno, start.snapshot_end)
        return CollectionDropped(
            event.vbucket, snapshot[0], event.manifest_uid, names.of(event.collection_id), *snapshot
        )
    if isinstance(event, CollectionsTold):
        return _news_event(event, names)
    if not isinstance(event, CollectionsChanged):
        return None
    message = event.message
    place, kind = (event.vbucket, message.by_seqno, message.manifest_uid), EventKind(message.event)
    if kind in (EventKind.CREATE_SCOPE, EventKind.DROP_SCOPE):
        kind_of_event = ScopeCreated if kind is EventKind.CREATE_SCOPE else ScopeDropped
        return kind_of_event(*place, message.scope_id, names.scope(message.scope_id), *event.snapshot)
    collection_names = names.of(message.collection_id or 0)
    if kind is EventKind.DROP_COLLECTION:
        return CollectionDropped(*place, collection_names, *event.snapshot)
    return CollectionCreated(*place, collection_names, *event.snapshot, message.max_ttl or None, event.history)


def _news_event(event: CollectionsTold, names: CollectionNames) -> CollectionEvent:
    news, vbucket = event.news, event.vbucket
    if news.collection_id is None or news.manifest_uid is None:
        content = (news.event, news.version, news.key, news.value)
        return UnknownSystemEvent(vbucket, news.by_seqno, *content, *event.snapshot)
    place = (vbucket, news.by_seqno, news.manifest_uid, names.of(news.collection_id), *event.snapshot)
    return CollectionModified(*place, news.max_ttl, news.history)


class ChangeFeed:
    """A converter from handouts to events that keeps the caller's position after each event.

    Args:
        markers: True to yield snapshot markers as events too.
    """

    def __init__(self, start: Mapping[int, Position], *, markers: bool = True) -> None:
        self._markers = markers
        self._places = {vbucket: Foothold(position) for vbucket, position in start.items()}
        self._logs: dict[int, FailoverLog] = {vb: position.failover_log for vb, position in start.items()}
        self._coverage: Coverage | None = next((position.coverage for position in start.values()), None)
        self._names = CollectionNames()
        self._start = start
        # The vbucket and foothold that moved for an event on its way to the caller, and how the foothold was before.
        self._replaced_version: tuple[Any, ...] = ()

    def positions(self) -> dict[int, Position]:
        """Return the positions after the last event that was taken, by vbucket."""
        return {vb: self.position(vb) for vb in sorted(self._places)}

    def position(self, vbucket: int) -> Position:
        """Return the position of one vbucket after the last event that was taken."""
        foothold, log, start = self._places[vbucket], self._logs[vbucket], self._start[vbucket]
        if foothold.last == start.seqno and log is start.failover_log:
            return start  # nothing came yet, not even the answer: what the caller gave us
        return place(vbucket, foothold.last, foothold.held_start, foothold.held_end, log, self._coverage)

    def take(self, handout: Handout) -> Iterator[Event]:
        """Yield the events of a handout in the order of the wire."""
        self._logs.update(handout.positions.logs)
        if handout.streamed is None:
            rows = _rows(handout.records)
        else:
            self._names = handout.streamed.names
            rows = _rows(handout.records, self._names)
        row_reached = 0
        for row, occurrence in handout.events:
            invariant(row_reached <= row, "an event before row {} comes behind row {}", row, row_reached)
            for _ in range(row - row_reached):
                yield self._with_position_moved(next(rows))
            row_reached = row
            event = self._occurred(occurrence)
            if event is None:
                self.settle()  # it moves on without the caller
            else:
                yield event
        for change in rows:
            yield self._with_position_moved(change)

    def settle(self) -> None:
        """Make the effect of the last event on the positions final, because the caller has received the event."""
        self._replaced_version = ()

    def take_back(self) -> bool:
        """Undo the effect of the last event on the positions, because the event did not reach the caller.

        Returns: False if the event was settled already, and nothing was undone.
        """
        if not self._replaced_version:
            return False
        vbucket, foothold, foothold.last, foothold.held_start, foothold.held_end, foothold.snapshot = (
            self._replaced_version
        )
        self._places[vbucket], self._replaced_version = foothold, ()
        return True

    def _remember(self, vbucket: int, foothold: Foothold) -> None:
        self._replaced_version = (
            vbucket,
            foothold,
            foothold.last,
            foothold.held_start,
            foothold.held_end,
            foothold.snapshot,
        )

    def _with_position_moved(self, change: Change) -> Change:
        foothold, seqno = self._places[change.vbucket], change.seqno
        # Before anything moves: an interrupt behind this line must find what there is to take back.
        self._remember(change.vbucket, foothold)
        if (change.snapshot_start, change.snapshot_end) == foothold.snapshot and seqno <= foothold.held_end:
            foothold.last = seqno  # as `move` would, for nearly all
        else:
            foothold.move(seqno, change.snapshot_start, change.snapshot_end)
        return change

    def _occurred(self, occurrence: StreamEvent) -> Event | None:
        self._remember(occurrence.vbucket, self._places[occurrence.vbucket])
        self._places[occurrence.vbucket].apply_event(occurrence)
        match occurrence:
            case Marked():
                return _marker(occurrence) if self._markers else None
            case CollectionsChanged() | CollectionsTold():
                return collection_event(occurrence, self._names) if self._coverage else None
            case Vanished():
                return collection_event(occurrence, self._names)
            case Ended(vbucket=vbucket, reason=int(reason)):
                return StreamEnd(vbucket, reason)
            case ReadAgain(vbucket=vbucket):
                # The position goes back to 0 with the event. A restart at the old one would never bring the deletions
                # that are missing.
                self._places[vbucket] = Foothold(Position.beginning(vbucket))
                return _loss(occurrence)
        return None


_COLUMNS = tuple(field.name for field in fields(Mutation))[:-2]  # `within` and `before` are none


def _rows(records: pa.RecordBatch, names: CollectionNames | None = None) -> Iterator[Change]:
    """Yield the rows of a batch as objects.

    Args:
        names: the names of the collections, for batches with the column `collection_id`; None for others.
    """
    opcodes = cast("list[int]", records.column("opcode").to_pylist())
    columns = (records.column(name).to_pylist() for name in _COLUMNS)
    if names is None:
        collection_names: Iterator[CollectionName] = repeat(DEFAULT_COLLECTION, len(opcodes))
    else:
        collection_names = map(names.of, cast("list[int]", records.column("collection_id").to_pylist()))
    rows: Iterator[tuple[Any, ...]] = zip(*columns, collection_names, befores_of(records), strict=True)
    for opcode, row in zip(opcodes, rows, strict=True):
        if opcode == Opcode.DCP_MUTATION:
            yield Mutation(*row)
        elif opcode == Opcode.DCP_DELETION:
            yield Deletion(*row[:-4], *row[-3:])  # without flags
        else:
            yield Expiration(*row[:-4], *row[-3:])
