"""Staging: add frames to the arena and to the index; committing.py writes them to the disk.

There is always an arena to fill. The space that is reserved on disk limits it, so that a staged change does not fail
later for lack of space.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import DiskFull, StorageError
from headwater.invariants import node_invariant
from headwater.kernels import index
from headwater.node.storage.arena import StagingArena
from headwater.node.storage.batch import BATCH_HEADER_BYTES
from headwater.node.storage.columns import Index
from headwater.node.storage.log import Log
from headwater.node.storage.records import (
    EventParts,
    VBucketRecord,
    deletion_frame,
    drop_frame,
    event_frame,
    mutation_head,
    record_frame,
    rollback_frame,
    since_bits,
)
from headwater.node.storage.replay import current, restore
from headwater.node.storage.slots import Slots
from headwater.wire.numbers import HELD_MAX, SEQNO_MAX

__all__ = ["ArenaFull", "Staging"]

CONTROL_RESERVE_BYTES: Final = 64 << 10  # of a batch's room are kept for control frames
RETRY_SECONDS: Final = 1.0
LACKING_SECONDS: Final = 30.0
"""For so long after a large document was refused, the disk counts as lacking room for it (`lacks_room`)."""
RECORD_BYTES: Final = 4 << 10  # more than the record of one vbucket takes, with a full failover log
COMING_MIN: Final = 4096  # announced changes of a vbucket that are always believed


class ArenaFull(StorageError):  # noqa: N818 - a state, like DiskFull
    """The staging arena has no room for a change while a batch is in flight: settle that batch, then try again.

    Attributes:
        needed_bytes: the bytes that the change needs.
    """

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes

    def __str__(self) -> str:
        return f"{self.needed_bytes} bytes do not fit into the batch that is gathering; try again after the next commit"


class Staging:
    """The two arenas, their reserved space on disk, and the staged records of the vbuckets.

    Attributes:
        arena: the arena that is being filled.
        records: the newest record of each vbucket, durable or not.
    """

    def __init__(  # noqa: PLR0917 - called in one place
        self,
        into: Index,
        slots: Slots,
        log: Log,
        arena_bytes: int,
        records: dict[int, VBucketRecord],
        clock: Callable[[], float],
    ) -> None:
        self.records: dict[int, VBucketRecord] = dict(records)
        self._index = into
        self._slots = slots
        self._log = log
        self._clock = clock
        self._arena_bytes = arena_bytes
        self._arenas = (StagingArena(0, arena_bytes), StagingArena(1, arena_bytes))
        self.arena: StagingArena = self._arenas[0]
        self._handed_over: StagingArena | None = None  # the arena of the batch in flight
        self._room = log.room
        self._control_reserve = min(CONTROL_RESERVE_BYTES, arena_bytes // 8)
        self._retry_at = self._lacking_until = 0.0
        self._lacking = 0
        for arena in self._arenas:
            slots.place(arena.slot, arena.data, len(arena.data))

    # ------------------------------------------------------------------ room

    @property
    def full(self) -> bool:
        """True if the disk has no room for another batch: changes are refused, reads continue.

        While the disk is full, this property tries again to reserve room, at most once a second. It is False while a
        batch is in flight.
        """
        # While a batch is in flight, its thread makes room for the next one; until then the answer is not known.
        if self._handed_over is not None or not self._log.is_full:
            return False
        self._try_again()
        return self._cramped

    def _try_again(self) -> None:
        # Once a second: each try calls the file system, and there are thousands of requests per second.
        if self._clock() >= self._retry_at:
            self._retry_at = self._clock() + RETRY_SECONDS
            self._log.wanted = self._lacking
            self._log.make_room()
            self._room = self._log.room

    @property
    def lacks_room(self) -> bool:
        """True if the disk is full, or has recently had no room for a large document although smaller ones fit. It
        tries again as `full` does.
        """
        if self.full:
            return True
        if self._lacking and self._handed_over is None:
            self._try_again()
            if self._room >= self._lacking or self._clock() > self._lacking_until:
                self._lacking = 0
        return self._lacking > 0

    @property
    def may_delete(self) -> bool:
        """True if there is room for deletions and vbucket states. A full disk has reserved room for them, because they
        lead to a smaller log.
        """
        return not self.full or self._log.may_delete

    @property
    def _cramped(self) -> bool:
        return self._handed_over is None and self._log.is_full

    @property
    def _limit(self) -> int:
        """The number of bytes up to which documents may fill the arena."""
        room = self._room if self._room < self._arena_bytes else self._arena_bytes  # no `min`: each request needs this
        return room - self._control_reserve if room > self._control_reserve else 0

    def room(self) -> tuple[NDArray[np.uint8], int]:
        """Return the part of the arena that may hold frames, and the number of bytes filled.

        A kernel writes frames after the filled bytes, and indexes them (slot `slot`); its caller then calls `use`. The
        result is valid until the next freeze.
        """
        used, limit = self.filled()
        return self.arena.data[:limit], used

    def filled(self) -> tuple[int, int]:
        """Return the number of bytes of the arena that are filled with frames, and the number that may be filled."""
        used, limit = self.arena.used, self._limit
        return used, limit if limit > used else used

    @property
    def slot(self) -> int:
        """The slot in a LOC for a change in the arena that is being filled: 0 or 1 (kernels/index.py)."""
        return self.arena.slot

    def use(self, used: int, *, is_unread: bool = False) -> None:
        """Count the arena's first `used` bytes as frames. `is_unread` is a hint that the new frames will hardly be read
        soon.
        """
        before, size = self.arena.used, len(self.arena.data)
        node_invariant(before <= used <= size, "an arena of {} bytes goes from {} used to {}", size, before, used)
        self.arena.unread_bytes += (used - self.arena.used) * is_unread
        self.arena.used = used

    def grow(self, vbucket: int, coming: int = 1) -> None:
        """Make room in a vbucket's index, after a kernel has found none.

        Args:
            vbucket: the vbucket's number.
            coming: the number of changes that another node has announced. The room that this gets is limited by the
                present number of rows.
        """
        # A marker may announce 2^64 changes; memory must grow with the changes that have come.
        rows = max(1, min(coming, COMING_MIN + 3 * self._index.rows(vbucket)))
        self._index.grow(vbucket, rows, rows)

    # ------------------------------------------------------------------ documents

    def next_seqno(self, vbucket: int, seqno: int | None, *held: int) -> int:
        """Return the seqno for a change: `seqno`, or the next one for None.

        Args:
            vbucket: the vbucket's number.
            seqno: the change's own seqno, or None.
            held: the change's CAS and revision.

        Raises:
            StorageError: `seqno` is not above the high seqno, or one of the numbers is so high that it has no
                successor.
        """
        high = self._index.table.item(vbucket, index.HIGH)
        # A number without a successor would stop the vbucket for good: every later change needs a higher one.
        if max(high + 1 if seqno is None else seqno, 0) > SEQNO_MAX or max(held, default=0) > HELD_MAX:
            raise StorageError(f"vbucket {vbucket}: a seqno, CAS or revision is too high to have a next one")
        # "by_seqno <= last seqno: ERANGE" (dcp 9): a seqno belongs to one change for ever.
        if seqno is not None and seqno <= high:
            raise StorageError(f"vbucket {vbucket}: seqno {seqno} is not above the high seqno {high}")
        return high + 1 if seqno is None else seqno

    def document(self, vbucket: int, frame: bytes, value: bytes = b"") -> None:
        """Stage and index one change. `value` is the change's value if `frame` does not contain it.

        Raises:
            DiskFull: there is no room on the disk.
            ArenaFull: there is no room in this batch.
        """
        # The room for head and value is checked before either is appended, because half a frame in the arena can't be
        # removed.
        self._check_room(len(frame) + len(value), self._control_reserve)
        rows, high = self._index.rows(vbucket), self._index.high_seqno(vbucket)
        offset = self.arena.append(frame)
        if value:
            self.arena.append(value)
        # The kernel returns False if a column or the hash table is full. Growing gives the vbucket new columns, and
        # readers keep the old ones.
        while not index.index_frame(self._index.table, vbucket, self._slots.table, self.arena.slot, offset):
            self._index.grow(vbucket)
        now, seqno = self._index.rows(vbucket), self._index.high_seqno(vbucket)
        node_invariant(now == rows + 1, "vbucket {}: {} rows after a change, {} before", vbucket, now, rows)
        node_invariant(seqno >= high, "vbucket {}: a change of seqno {} behind seqno {}", vbucket, seqno, high)

    def mutation(
        self,
        vbucket: int,
        key: bytes,
        value: bytes,
        *,
        seqno: int | None = None,
        cas: int,
        rev_seqno: int,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
        hops: int = 0,
        collection: int = 0,
    ) -> int:
        """Stage a document of a collection; return its seqno (`seqno`, or the next one).

        Raises:
            DiskFull: there is no room on the disk.
            ArenaFull: there is no room in this batch.
            StorageError: `seqno` is not above the high seqno.
        """
        seqno = self.next_seqno(vbucket, seqno, cas, rev_seqno)
        head = mutation_head(
            vbucket,
            key,
            len(value),
            seqno=seqno,
            cas=cas,
            rev_seqno=rev_seqno,
            flags=flags,
            expiry=expiry,
            datatype=datatype,
            hops=hops,
            collection=collection,
        )
        self.document(vbucket, head, value)
        return seqno

    def deletion(
        self,
        vbucket: int,
        key: bytes,
        value: bytes = b"",
        *,
        seqno: int | None = None,
        cas: int,
        rev_seqno: int,
        delete_time: int,
        now: int = 0,
        datatype: int = 0,
        expired: bool = False,
        hops: int = 0,
        collection: int = 0,
    ) -> int:
        """Stage a tombstone; return its seqno. Raises as `mutation`.

        Args:
            delete_time: the Unix second of the deletion.
            now: the present Unix second. If this is at least an hour after `delete_time`, the tombstone's age counts
                from here.
            expired: True if the document has expired.
        """
        seqno = self.next_seqno(vbucket, seqno, cas, rev_seqno)
        frame = deletion_frame(
            vbucket,
            key,
            value,
            seqno=seqno,
            cas=cas,
            rev_seqno=rev_seqno,
            delete_time=delete_time,
            datatype=datatype,
            expired=expired,
            hops=hops | since_bits(delete_time, now),
            collection=collection,
        )
        self.document(vbucket, frame)
        return seqno

    def event(self, vbucket: int, event: EventParts, *, seqno: int | None = None, cas: int) -> int:
        """Stage a system event; return its seqno (`seqno`, or the next one). Raises as `mutation`."""
        seqno = self.next_seqno(vbucket, seqno, cas)
        self.document(vbucket, event_frame(vbucket, event, seqno=seqno, cas=cas))
        return seqno

    # ------------------------------------------------------------------ control

    def record(self, vbucket: int, record: VBucketRecord) -> None:
        """Stage a vbucket's record. The numbers in it that the store sets (see VBucketRecord) are set here.

        Raises:
            DiskFull, ArenaFull: there is no room for it.
        """
        record = current(self._index, vbucket, record)
        _check_record(vbucket, record)
        # The store's own numbers are set now, because a compaction may have raised the purge seqno since the caller
        # created the record.
        frame = record_frame(vbucket, record)
        node_invariant(len(frame) <= RECORD_BYTES, "vbucket {}: a record of {} bytes", vbucket, len(frame))
        self.control(frame)
        # Only after `control`, which raises if there is no room: the table and the log must not disagree.
        restore(self._index, vbucket, record)
        self.records[vbucket] = self.arena.records[vbucket] = record

    def record_again(self, vbucket: int) -> None:
        """Stage a vbucket's record again, because numbers in it that the store sets have changed.

        The state in the index table stays: if the vbucket refuses writes so that a takeover can end (failover 4), it
        continues to refuse them.
        """
        state = self._index.table[vbucket, index.STATE]
        self.record(vbucket, self.records.get(vbucket, VBucketRecord(0)))
        self._index.table[vbucket, index.STATE] = state

    def lags_behind(self, vbucket: int) -> bool:
        """Return True if a tombstone has a higher revision than the vbucket's staged record says. Then `record_again`
        must be called before this tombstone is purged.
        """
        record = self.records.get(vbucket)
        return record is not None and record.deleted_rev < int(self._index.table[vbucket, index.DELETED_REV])

    def rollback(self, vbucket: int, seqno: int, high: int) -> None:
        """Stage the rollback of a vbucket to `seqno`, with `high` as its new high seqno; the caller then changes the
        index.
        """
        # Staged before the index changes: if there is no room, nothing has happened yet.
        self.control(rollback_frame(vbucket, seqno, high))
        # If this batch is lost, only reading the log again brings back the rows that leave the index now
        # (`Committing.abandon`).
        self.arena.destroyed.add(vbucket)

    def renumbered(self, vbucket: int) -> None:
        """Update a vbucket's staged record, if there is one, after a frame has changed numbers in it that the store
        sets.
        """
        if vbucket in self.records:
            self.records[vbucket] = self.arena.records[vbucket] = current(self._index, vbucket, self.records[vbucket])

    def drop(self, vbucket: int) -> None:
        """Stage the drop of a vbucket; the caller then changes the index."""
        self.control(drop_frame(vbucket))
        self.arena.destroyed.add(vbucket)
        self.arena.records[vbucket] = None
        self.records.pop(vbucket, None)

    def check_document_room(self, count: int) -> None:
        """Raise DiskFull or ArenaFull unless `count` bytes of changes can be staged now, in one batch."""
        self._check_room(count, self._control_reserve)

    def check_record_room(self) -> None:
        """Raise DiskFull or ArenaFull unless the record of a vbucket can be staged now."""
        self._check_room(RECORD_BYTES, 0)

    def check_rollback_room(self) -> None:
        """Raise DiskFull or ArenaFull unless a rollback and the record behind it can be staged, in one batch."""
        self._check_room(len(rollback_frame(0, 0, 0)) + RECORD_BYTES, 0)

    def check_drop_room(self, *, anew: bool = False) -> None:
        """Raise DiskFull or ArenaFull unless the drop of a vbucket can be staged; if `anew` is True, in one batch with
        the record of the vbucket that takes its place.
        """
        self._check_room(len(drop_frame(0)) + RECORD_BYTES * anew, 0)

    def control(self, frame: bytes) -> None:
        """Stage a control frame, which may also use the room that documents must leave.

        Raises:
            DiskFull, ArenaFull: there is no room for it.
        """
        self._check_room(len(frame), 0)
        self.arena.append(frame)

    def _check_room(self, needed: int, reserve: int) -> None:
        """Raise DiskFull or ArenaFull unless `needed` bytes can be staged, with `reserve` bytes left after them;
        `reserve` is 0 for control frames.
        """
        if self._has_room(needed + reserve):
            return
        # `full` may make room, but at most once a second.
        if reserve and self.full:
            raise DiskFull(self._log.folder, needed, self._log.disk_free_bytes)
        if not self._has_room(needed + reserve):  # `full` may have made room
            self._ask_for(needed + reserve, control=not reserve)
        if not self._has_room(needed + reserve):
            if reserve:
                self._lacking, self._lacking_until = needed + reserve, self._clock() + LACKING_SECONDS
            raise DiskFull(self._log.folder, needed, self._log.disk_free_bytes)

    def _has_room(self, count: int) -> bool:
        return self.arena.used + count <= min(len(self.arena.data), self._room)

    def _ask_for(self, count: int, *, control: bool) -> None:
        """Make the log try to reserve room for `count` more bytes in this batch.

        Raises:
            ArenaFull: the arena is too small, or a batch is in flight, so the log can't do this now.
        """
        total = self.arena.used + count + BATCH_HEADER_BYTES
        if self.arena.used + count > len(self.arena.data):
            raise ArenaFull(count)
        if not control:
            self._log.wanted = total
        # The log's room belongs to the commit thread while it writes.
        if self._handed_over is not None:
            raise ArenaFull(count)
        self._log.make_room(control=total if control else 0)
        self._room = self._log.room

    @property
    def is_blank(self) -> bool:
        """True if no change is staged or in flight. Then a change that does not fit will not fit after a commit
        either.
        """
        return self._handed_over is None and not self.arena.used

    def more_room(self) -> bool:
        """Make the log reserve twice the room, for a change that does not fit into an empty arena; return True if there
        is more room.
        """
        before = self._room
        if self.is_blank and before < len(self.arena.data):
            self._log.wanted = 2 * before + BATCH_HEADER_BYTES
            self._log.make_room()
            self._room = self._log.room
        return self._room > before

    # ------------------------------------------------------------------ for committing

    def hand_over(self, bytes_on_disk: int) -> None:
        """Mark the arena as in flight, with its size on disk, and continue in the other one."""
        if 2 * bytes_on_disk > self._room:
            self._log.crowded()
        node_invariant(self._handed_over is None, "two batches are on their way to the disk")
        self._handed_over = self.arena
        # The next batch does not have the room that the batch in flight takes, until the log knows its new end.
        self._room -= bytes_on_disk
        # The arena in flight keeps its slot: rows of the index point into it until they are durable.
        self.arena = self._arenas[1 - self.arena.slot]
        node_invariant(self.arena.used == 0, "the arena that gathers holds {} bytes of a batch", self.arena.used)
        node_invariant(not self.arena.records, "the arena that gathers holds {} records", len(self.arena.records))

    def take_back(self) -> None:
        """Note that no batch is in flight, and read the log's room again."""
        self._handed_over = None
        self._room = self._log.room

    def touched(self) -> tuple[set[int], bool]:
        """Return the vbuckets with a record, rollback or drop that is not durable, and True if there is any rollback or
        drop among these.
        """
        vbuckets = {vb for arena in self._arenas for vb in (*arena.records, *arena.destroyed)}
        return vbuckets, any(arena.destroyed for arena in self._arenas)

    def records_on_the_way(self, vbucket: int) -> list[VBucketRecord | None]:
        """Return the records of a vbucket that are staged and not durable; None for a drop."""
        return [arena.records[vbucket] for arena in self._arenas if vbucket in arena.records]

    def forget(self, durable: dict[int, VBucketRecord]) -> None:
        """Drop all staged changes, because they are lost; `durable` has the vbuckets' records on disk."""
        self.records = dict(durable)
        for arena in self._arenas:
            arena.clear()


def _check_record(vbucket: int, record: VBucketRecord) -> None:
    """Check (with invariants) the numbers of a record, which the vbucket will use after a restart."""
    start, end, high = record.snapshot_start, record.snapshot_end, record.high_seqno
    node_invariant(start <= end, "vbucket {}: a record of a snapshot from {} to {}", vbucket, start, end)
    last = 0
    for first, until in record.consistent:
        node_invariant(
            last <= first <= until, "vbucket {}: states from {} to {} behind {}", vbucket, first, until, last
        )
        last = until
    node_invariant(last <= high, "vbucket {}: a state at seqno {} above the high seqno {}", vbucket, last, high)
