"""Committing: what was staged goes to the disk a batch at a time.

    stage_...  ->  freeze  ->  write (any thread)  ->  settle     the batch is durable
                                                   \\->  abandon    it is not: everything that is not durable is undone

Only whole batches ever become visible to views. While one is in flight the next one gathers in the other arena, on top
of it; when the first is lost, both are.
"""

from __future__ import annotations

from headwater.errors import StorageError
from headwater.kernels import history, index
from headwater.node.storage import recovery
from headwater.node.storage.arena import Batch
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.replay import Replay, restore
from headwater.node.storage.staging import Staging

__all__ = ["Committing"]


class Committing(Staging):
    """The part of the store that makes changes durable, or takes them back."""

    def freeze(self) -> Batch | None:
        """Close the batch that is gathering, and begin the next; None when nothing was staged.

        Raises:
            StorageError: a batch is in flight.
        """
        if self._in_flight is not None:
            raise StorageError(f"{self.path}: a batch is in flight, settle or abandon it first")
        if self._arena.used == 0:
            return None
        batch = self._in_flight = Batch(self._arena)
        self.table[:, index.FROZEN_ROWS] = self.table[:, index.ROWS]
        self.table[:, index.FROZEN_HIGH] = self.table[:, index.HIGH]
        self._room -= batch.bytes_on_disk
        self._arena = self._arenas[1 - self._arena.slot]
        return batch

    def write(self, batch: Batch) -> None:
        """Write the batch and wait until it is on disk. Blocking; on any thread, one at a time.

        Raises:
            DiskFull, StorageError: it is not; `abandon` it.
        """
        self._log.write(batch)

    def settle(self, batch: Batch) -> None:
        """The batch is on disk: what it changed is durable and visible."""
        self._end(batch)
        if batch.segment is None:
            raise StorageError(f"{self.path}: the batch was not written")
        self._slots.register(batch.segment)
        history.make_durable(self.table, batch.arena.slot, batch.segment.slot, batch.body)
        for vb, record in batch.arena.records.items():
            if record is None:
                self._durable_records.pop(vb, None)
            else:
                self._durable_records[vb] = record
        batch.arena.clear()

    def abandon(self, batch: Batch, error: BaseException) -> list[int]:
        """The batch could not be written: undo it, and what was staged since.

        Returns: the vbuckets whose record, rollback or drop was lost; they are as they were on disk.
        """
        self._end(batch)
        self._disturb_compaction()
        lost = sorted({vb for arena in self._arenas for vb in (*arena.records, *arena.destroyed)})
        if any(arena.destroyed for arena in self._arenas):
            self._reload()
        else:
            history.undo_staged(self.table, self.segments)
            for vb in lost:
                restore(self._index, vb, self._durable_records.get(vb, VBucketRecord(0)))
        self._records = dict(self._durable_records)
        for arena in self._arenas:
            arena.clear()
        return lost

    def _disturb_compaction(self) -> None:
        """What compaction knows of the rows may no longer be so."""
        if self._compaction is not None:
            self._compaction.stale = True

    def _end(self, batch: Batch) -> None:
        if batch is not self._in_flight:
            raise StorageError(f"{self.path}: this batch is not the one in flight")
        self._in_flight = None
        self._room = self._log.room

    def _reload(self) -> None:
        """Index the log anew: rows are gone that a rollback or drop took, which did not reach the disk."""
        self.table[:, index.STATE] = 0
        for vb in range(len(self.table)):
            self._index.reset(vb)
        replay = Replay(self._index, self._slots)
        for segment in self._log.segments:
            replay.segment(recovery.reread(segment))
        replay.finish()
