"""Committing: write staged changes to disk, one batch at a time.

    stage_...  ->  freeze  ->  write (any thread)  ->  settle     the batch is durable
                                                   \\->  abandon    lost: everything not durable is undone

Views see whole batches only. While a batch is in flight, the next one fills the other arena, and depends on the first:
if the first is lost, so is the second.
"""

from __future__ import annotations

from typing import Final

from headwater.errors import StorageError
from headwater.invariants import node_invariant
from headwater.kernels import history, index
from headwater.node.storage import recovery
from headwater.node.storage.arena import Batch
from headwater.node.storage.columns import Index
from headwater.node.storage.log import Log
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.replay import Replay, restore
from headwater.node.storage.segment import Segment
from headwater.node.storage.slots import Slots
from headwater.node.storage.staging import Staging

__all__ = ["Committing"]


class Committing:
    """Makes staged changes durable, or undoes them.

    Attributes:
        records: the newest record on disk of each vbucket.
        written_bytes: the bytes of all batches written since the start.
        times_indexed: how many times the whole log was indexed again.
    """

    def __init__(self, into: Index, slots: Slots, log: Log, staging: Staging) -> None:
        self.records: Final = dict(staging.records)
        self._index = into
        self._slots = slots
        self._log = log
        self._staging = staging
        self.written_bytes: int = 0
        self.times_indexed: int = 0
        self._in_flight: Batch | None = None

    def freeze(self) -> Batch | None:
        """Close the open batch, return it, and begin the next one; return None if nothing was staged.

        Raises:
            StorageError: a batch is in flight.
        """
        if self._in_flight is not None:
            raise StorageError(f"{self._log.folder}: a batch is in flight, settle or abandon it first")
        if self._staging.arena.used == 0:
            return None
        batch = self._in_flight = Batch(self._staging.arena)
        table = self._index.table
        # Before the counts are frozen: a fault of ours must end the node before it becomes durable.
        self._index.check()
        # `settle` makes durable what was frozen and no more: rows staged meanwhile are in the other arena.
        table[:, index.FROZEN_ROWS] = table[:, index.ROWS]
        table[:, index.FROZEN_HIGH] = table[:, index.HIGH]
        self._staging.hand_over(batch.bytes_on_disk)
        return batch

    def write(self, batch: Batch) -> None:
        """Write the batch and sync it. Blocking; may be called from any thread, for one batch at a time.

        Raises:
            DiskFull, StorageError: the batch is not on disk; `abandon` it.
        """
        self._log.write(batch)

    def settle(self, batch: Batch) -> None:
        """Make the changes of a batch, which is on disk, durable and visible."""
        self._end(batch)
        if batch.segment is None:
            raise StorageError(f"{self._log.folder}: the batch was not written")
        end, used = batch.segment.end, batch.arena.used
        rule = "a batch of {} bytes at byte {} is settled in a segment that ends at {}"
        node_invariant(batch.body + used == end, rule, used, batch.body, end)
        self.written_bytes += batch.bytes_on_disk
        self._slots.register(batch.segment)
        # The arena is cleared below and gathers again: until then every row that points into it must point into the
        # file.
        history.make_durable(self._index.table, batch.arena.slot, batch.segment.slot, batch.body)
        for vb, record in batch.arena.records.items():
            if record is None:
                self.records.pop(vb, None)
            else:
                # `records` has what is on the disk; a lost batch returns to it.
                self.records[vb] = record
        batch.arena.clear()

    def abandon(self, batch: Batch) -> list[int]:
        """Undo a batch that could not be written, and all changes staged since.

        Returns:
            The vbuckets whose record, rollback or drop was lost; the index has their state on disk again.
        """
        # From here on no batch is in flight, so the room of the batch is available again.
        self._end(batch)
        vbuckets, destroyed = self._staging.touched()
        # A rollback or drop took rows out of the index that are still in the log: only reading the log brings them
        # back.
        if destroyed:
            self.index_anew()
        else:
            history.undo_staged(self._index.table, self._slots.table)
            for vb in vbuckets:
                restore(self._index, vb, self.records.get(vb, VBucketRecord(0)))
        self._staging.forget(self.records)
        rows, durable = self._index.table[:, index.ROWS], self._index.table[:, index.DURABLE_ROWS]
        node_invariant((rows == durable).all(), "a batch was lost, and rows of it are still in the index")
        return sorted(vbuckets)

    def _end(self, batch: Batch) -> None:
        if batch is not self._in_flight:
            raise StorageError(f"{self._log.folder}: this batch is not the one in flight")
        self._in_flight = None
        self._staging.take_back()

    def settled_segments(self) -> list[Segment]:
        """Return the sealed segments whose rows are all in the index, oldest first.

        The segment of a batch that is written but not settled is left out, even if it is sealed by now, because its
        rows do not point into it yet. The order of the two reads matters: the commit thread records the place of the
        batch before it begins the next segment.
        """
        sealed, batch = self._log.segments[:-1], self._in_flight
        written = None if batch is None else batch.segment
        return sealed[: sealed.index(written)] if written in sealed else sealed

    def index_anew(self) -> None:
        """Index the whole log again, because a rollback or drop has removed rows from the index, and was then lost."""
        self.times_indexed += 1
        # A vbucket whose record was never durable has none in the log, and must not keep its state.
        self._index.table[:, index.STATE] = 0
        for vb in range(len(self._index.table)):
            self._index.reset(vb)
        Replay(self._index, self._slots).run([recovery.reread(segment) for segment in self._log.segments])
