"""Staging: changes enter the arena and the index at once; committing.py brings them to the disk.

There is always an arena that gathers. How far it may be filled follows from the room that is set aside on the disk, so
a change that was staged will not fail for lack of space.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.errors import DiskFull, StorageError
from headwater.kernels import history, index, ingest
from headwater.node.storage.arena import Arena, Batch
from headwater.node.storage.log import Log
from headwater.node.storage.reading import Reading
from headwater.node.storage.records import (
    VBucketRecord,
    deletion_frame,
    mutation_frame,
    record_frame,
)
from headwater.node.storage.replay import current, restore

if TYPE_CHECKING:
    from headwater.node.storage.compaction import Compaction

__all__ = ["ArenaFull", "Staged", "Staging"]

CONTROL_RESERVE_BYTES: Final = 64 << 10  # of a batch's room are kept for control frames
RETRY_SECONDS: Final = 1.0
COMING_MIN: Final = 4096  # announced changes of a vbucket that are always believed


class ArenaFull(StorageError):  # noqa: N818 - a state, like DiskFull
    """The staging arena has no room for this change before the batch in flight is done: settle it, then try again."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(needed_bytes)
        self.needed_bytes = needed_bytes

    def __str__(self) -> str:
        return f"{self.needed_bytes} bytes do not fit into the batch that is gathering; try again after the next commit"


class Staged(NamedTuple):
    """How far Staging.stage_frames came.

    Attributes:
        code: history.DONE; ingest.ARENA_FULL: commit, then go on; else the frame at `offset` is not for it.
        offset: of the first frame that is not staged.
        frames: how many are.
        vb: the vbucket of that frame.
    """

    code: int
    offset: int
    frames: int
    vb: int


class Staging(Reading):
    """The part of the store that takes changes."""

    def __init__(
        self,
        path: Path,
        vbuckets: int,
        arena_bytes: int,
        clock: Callable[[], float],
        random: Callable[[int], bytes],
    ) -> None:
        super().__init__(vbuckets, (int.from_bytes(random(8), "big"), int.from_bytes(random(8), "big")))
        self.path = path
        self._clock = clock
        self._log: Log
        self._arenas = (Arena(0, arena_bytes), Arena(1, arena_bytes))
        self._arena = self._arenas[0]
        self._in_flight: Batch | None = None
        self._records: dict[int, VBucketRecord] = {}  # as staged
        self._durable_records: dict[int, VBucketRecord] = {}
        self._compaction: Compaction | None = None
        self._room = 0
        self._control_reserve = min(CONTROL_RESERVE_BYTES, arena_bytes // 8)
        self._retry_at = 0.0
        for arena in self._arenas:
            self._slots.place(arena.slot, arena.data, len(arena.data))

    # ------------------------------------------------------------------ room

    @property
    def full(self) -> bool:
        """The disk has no room for another batch: changes are refused, reads go on.

        Tries again by itself, once a second at most and while nothing is in flight.
        """
        if not self._cramped:
            return False
        if self._in_flight is None and self._clock() >= self._retry_at:
            self._retry_at = self._clock() + RETRY_SECONDS
            self._log.make_room()
            self._room = self._log.room
        return self._cramped

    @property
    def _cramped(self) -> bool:
        return self._in_flight is None and self._room < len(self._arena.data)

    @property
    def _limit(self) -> int:
        """How far the arena may be filled by documents."""
        return max(0, min(len(self._arena.data), self._room) - self._control_reserve)

    def stage_arena(self) -> tuple[NDArray[np.uint8], int]:
        """The bytes that may be filled with frames, and how many of them are. Kernels write behind those, index what
        they wrote (slot `stage_slot`), then `stage_used`. Valid until the next freeze."""
        return self._arena.data[: max(self._limit, self._arena.used)], self._arena.used

    @property
    def stage_slot(self) -> int:
        """The slot of the arena that is filling (0 or 1), for LOCs."""
        return self._arena.slot

    def stage_used(self, used: int, *, unread: bool = False) -> None:
        """The arena's first `used` bytes are frames now. `unread`: nobody will read the new ones soon (a hint)."""
        self._arena.unread_bytes += (used - self._arena.used) * unread
        self._arena.used = used

    def grow(self, vb: int, coming: int = 1) -> None:
        """Make room in a vbucket's index: a kernel said that it has none. `coming`: how many changes are announced;
        what somebody else announces is believed as far as four times of what is here."""
        rows = max(1, min(coming, COMING_MIN + 3 * self._index.rows(vb)))
        self._index.grow(vb, rows, rows)

    # ------------------------------------------------------------------ staging

    def stage_mutation(
        self,
        vb: int,
        key: bytes,
        value: bytes,
        *,
        seqno: int | None = None,
        cas: int,
        rev_seqno: int,
        flags: int = 0,
        expiry: int = 0,
        datatype: int = 0,
    ) -> int:
        """Store a document; returns its seqno (the next one unless given).

        Raises:
            DiskFull: there is no room on the disk.
            ArenaFull: there is none in this batch.
            StorageError: `seqno` is not above the high seqno.
        """
        seqno = self._next(vb, seqno)
        frame = mutation_frame(
            vb,
            key,
            value,
            seqno=seqno,
            cas=cas,
            rev_seqno=rev_seqno,
            flags=flags,
            expiry=expiry,
            datatype=datatype,
        )
        self._stage_document(vb, frame)
        return seqno

    def stage_deletion(
        self,
        vb: int,
        key: bytes,
        value: bytes = b"",
        *,
        seqno: int | None = None,
        cas: int,
        rev_seqno: int,
        delete_time: int,
        datatype: int = 0,
        expired: bool = False,
    ) -> int:
        """Store a tombstone (`expired`: because the document's time had come); returns its seqno. Errors as above."""
        seqno = self._next(vb, seqno)
        frame = deletion_frame(
            vb,
            key,
            value,
            seqno=seqno,
            cas=cas,
            rev_seqno=rev_seqno,
            delete_time=delete_time,
            datatype=datatype,
            expired=expired,
        )
        self._stage_document(vb, frame)
        return seqno

    def stage_frames(self, data: NDArray[np.uint8], now: int, offset: int = 0) -> Staged:
        """Store the changes in a buffer of DCP frames, from `offset` on, each with its own seqno, CAS and revision.

        Args:
            data: MUTATION, DELETION and EXPIRATION frames of any opaque, for any vbuckets.
            now: Unix seconds: the delete time of deletions that carry none.

        Returns: how far it came and what stopped it (kernels/ingest.py); the frames before that are staged.
        """
        frames = 0
        while True:
            code, offset, used, count, vb = ingest.ingest(
                self.table, self.segments, data, offset, len(data), self._arena.slot, self._arena.used, self._limit, now
            )
            frames, self._arena.used = frames + int(count), int(used)
            if code != history.GROW:
                return Staged(int(code), int(offset), frames, int(vb))
            self._index.grow(int(vb))

    def record(self, vb: int) -> VBucketRecord | None:
        """What a vbucket is, as staged; after `abandon`, as it is on disk. None: it does not exist."""
        return self._records.get(vb)

    def pass_seqno(self, vb: int, seqno: int) -> None:
        """Count `seqno` as given although no change here has it. Not durable before the vbucket's next record is."""
        self._next(vb, seqno)
        self.table[vb, index.HIGH] = seqno

    def lacks_tombstones(self, vb: int, upto_seqno: int) -> None:
        """Tombstones up to here are missing from what is about to come; the purge seqno rises. Durable with the next
        record.

        What was missing above the high seqno never came, or was given up: that counts no more.
        """
        row = self.table[vb]
        row[index.PURGE] = max(min(int(row[index.PURGE]), int(row[index.HIGH])), upto_seqno)

    def stage_record(self, vb: int, record: VBucketRecord) -> None:
        """Store what a vbucket is. Its purge seqno, rollback floor and high seqno are filled in here."""
        record = current(self._index, vb, record)
        self._stage_control(record_frame(vb, record))
        restore(self._index, vb, record)
        self._records[vb] = record
        self._arena.records[vb] = record

    def restage_record(self, vb: int) -> None:
        """Store a vbucket's record again, because the store's own numbers in it have changed.

        Whether the vbucket takes writes at the moment is its owner's business, not the record's: one that refuses them
        for the end of a takeover (failover 4) goes on refusing.
        """
        state = self.table[vb, index.STATE]
        self.stage_record(vb, self._records.get(vb, VBucketRecord(0)))
        self.table[vb, index.STATE] = state

    def _next(self, vb: int, seqno: int | None) -> int:
        high = self.high_seqno(vb)
        if seqno is not None and seqno <= high:
            raise StorageError(f"vbucket {vb}: seqno {seqno} is not above the high seqno {high}")
        return high + 1 if seqno is None else seqno

    def _stage_document(self, vb: int, frame: bytes) -> None:
        self._check_room(len(frame), self._control_reserve)
        offset = self._arena.append(frame)
        while not index.index_frame(self.table, vb, self.segments, self._arena.slot, offset):
            self._index.grow(vb)

    def _stage_control(self, frame: bytes) -> None:
        """Control frames may use the reserve as well."""
        self._check_room(len(frame), 0)
        self._arena.append(frame)

    def _check_room(self, needed: int, reserve: int) -> None:
        if self._arena.used + needed + reserve <= min(len(self._arena.data), self._room):
            return
        if self.full:
            raise DiskFull(self.path, needed)
        if self._arena.used + needed + reserve > min(len(self._arena.data), self._room):  # asking may have made room
            raise ArenaFull(needed)
