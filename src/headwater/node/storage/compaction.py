"""Compaction: rewrite sealed segments, without the versions that no reader can request, while writes and streams
continue.

    job = store.compact(...)         choose the segments                                            loop thread
    job.survey()                     find the rows that stay                                                any thread
    job.announce(); commit           purge seqnos and rollback floors rise, durably, first          loop thread
    job.copy()                       the rows that stay, by vbucket in seqno order; the manifest    any thread
    for _ in job.swap(): ...         one vbucket's columns after the other                          loop thread
    job.remove()                     the old files                                                  any thread
    job.forget()                     the memory and blocks that they still held                     any thread

If the disk has room for all rows that stay, all sealed segments are rewritten; otherwise a stretch of neighbouring
segments: the one that frees the most among those that fit. With plenty of room the bytes that stay are not counted,
because reading the length of each row takes as long as a checksum of the log. The new segments replace the old ones in
the log, so a replay gives the same state. Rollbacks and drops in a stretch also concern rows before it, so they are
repeated in the new segments. Purge seqnos and floors rise before rows are removed: a number that is too high only makes
a consumer start again without need, but one that is too low would hide a deletion.

A rollback or drop may happen during a compaction. On disk its record comes after the compacted segments, and it returns
to no seqno below the announced floor, except to 0. In memory `cut` records the number of remaining old rows.

After a crash either the old or the new manifest is complete with its segments; the next start removes the files of the
other one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from headwater.errors import DiskFull, StorageError
from headwater.failpoints import failpoint
from headwater.invariants import node_invariant
from headwater.kernels import compact as kernels
from headwater.kernels import index
from headwater.kernels.history import fill_slots
from headwater.node.process.threads import pool_or_inline
from headwater.node.storage import recovery
from headwater.node.storage.columns import Columns, Index
from headwater.node.storage.committing import Committing
from headwater.node.storage.compacted import CompactedWriter
from headwater.node.storage.log import Log, full_error
from headwater.node.storage.records import drop_frame, record_frame, rollback_frame
from headwater.node.storage.retention import Drops, HistoryLimits, HistoryRows, begin
from headwater.node.storage.segment import Segment
from headwater.node.storage.slots import SLOTS_MAX, Slots
from headwater.node.storage.staging import Staging

__all__ = [
    "GAIN_PARTS", "HISTORY_ROWS", "NONE_DROPPED", "Compaction", "Dropped", "best_stretch", "histories", "no_drop",
]  # fmt: skip

Dropped: TypeAlias = "NDArray[np.uint64]"
"""Dropped collections: rows of (id, seqno of the drop), sorted by id."""
NONE_DROPPED: Final[Dropped] = np.zeros((0, 2), np.uint64)

# The number of newest changes that a rollback can undo exactly, without refilling the vbucket. A failover usually
# undoes the few changes that a replica had not received.
HISTORY_ROWS: Final = 128
ROOMY_PARTS: Final = 2
"""If the disk has so many times the upper bound of the bytes to write, their exact number is not computed."""
SLACK_BYTES: Final = 4 << 10  # headers, and what is less than a block
ROUNDING: Final = 1024  # one of so many bytes more, for headers of batches
TAKEN_BACK_BYTES: Final = len(rollback_frame(0, 0, 0))


GAIN_PARTS: Final = 64
"""A stretch is worth rewriting if it frees more than one of so many parts of the bytes written."""


def best_stretch(live: NDArray[np.int64], dead: NDArray[np.int64], room: int) -> tuple[int, int] | None:
    """Return the stretch of segments (first, end) that frees the most, among those whose live bytes fit into `room`;
    None if no stretch is worth the work.

    A small part of the bytes to write (GAIN_PARTS) counts as a loss, so that segments without garbage are left out.

    Args:
        live: the bytes of each segment that stay.
        dead: the bytes of each segment that rewriting it frees.
        room: the most bytes to write.
    """
    # Sums up to each segment: the value of any stretch is then one subtraction.
    lives, worth = (np.concatenate(([0], np.cumsum(each))) for each in (live, dead - live // GAIN_PARTS))
    best, most = None, 0
    for first in range(len(live)):
        end = int(lives.searchsorted(lives[first] + room, "right"))
        if end > first + 1:
            at = first + 1 + int(worth[first + 1 : end].argmax())
            if worth[at] - worth[first] > most:
                best, most = (first, at), int(worth[at] - worth[first])
    return best


@dataclass(slots=True)
class _Share:
    """One vbucket's part of a compaction.

    Attributes:
        columns: its columns at the start.
        rows: the number of its rows in sealed segments.
        history: the row from which on superseded versions are kept.
        limit: the seqno above which no tombstone is purged.
        live: the size of all newest versions at the start, in bytes.
        numbers: the sorted choices (kernels/choices.py) that have changes, whose newest changes are kept.
        dropped: the collections whose documents are removed.
        first, end: the range of rows to compact.
        keep: the rows that stay.
        places: the offset of each of these rows in the new segments.
        floor: the rollback floor after the compaction.
        purge: the purge seqno after the compaction.
    """

    columns: Columns
    rows: int
    history: int
    limit: int
    live: int
    numbers: NDArray[np.uint64]
    dropped: Dropped
    first: int = 0
    end: int = 0
    keep: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    places: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    floor: int = 0
    purge: int = 0


def no_drop(vbucket: int) -> Drops:
    """Return no drops: the value of `drops` for a bucket without dropped collections."""
    return ()


def histories(
    of: Index, least: Callable[[int], int], drops: Callable[[int], Drops] = no_drop
) -> dict[int, HistoryRows]:
    """Return the present rows of all vbuckets, for `retention.begin`. Call it in the loop's thread.

    Args:
        of: the index.
        least: `history_rows` of `Store.compact`.
        drops: `drops` of `Store.compact`.
    """
    rows_of = {}
    for vb in np.flatnonzero(of.table[:, index.DURABLE_ROWS]).tolist():
        rows, floor_rows = of.table.item(vb, index.DURABLE_ROWS), of.rows_up_to(vb, of.rollback_floor(vb))
        dropped = np.array(drops(vb), np.int64).reshape(-1, 2)
        rows_of[vb] = HistoryRows(of.columns[vb], rows, min(floor_rows, rows), min(least(vb), rows), dropped)
    return rows_of


def _forget(segments: list[Segment]) -> None:
    """Drop the references to segments without readers, which frees the memory of removed files. This takes 0.2 s per
    GB, so it must not run in the loop's thread.
    """
    segments.clear()


class Compaction:
    """One compaction, which `Store.compact` begins; see the module for its steps.

    Attributes:
        bytes_needed: an upper bound of the bytes that it will write; set by `survey`.
        is_whole: True if all sealed segments are rewritten; set by `survey`.
        stale: True if the survey no longer describes the rows, or the compaction was cancelled.
        history_bytes: the size of the superseded versions that retention keeps; set by `survey`.
    """

    def __init__(
        self,
        into: Index,
        slots: Slots,
        log: Log,
        staging: Staging,
        committing: Committing,
        *,
        purge_before: int,
        purge_limit: Callable[[int], int] | None,
        numbers: Callable[[int], NDArray[np.uint64]],
        history_rows: Callable[[int], int],
        part: slice,
        spare: Collection[int],
        dropped: Callable[[int], Dropped] | None,
        history: HistoryLimits | None,
        drops: Callable[[int], Drops],
        ended: Callable[[], None],
    ) -> None:
        self._index = into
        self._slots = slots
        self._log = log
        self._staging = staging
        self._committing = committing
        self._times_indexed = committing.times_indexed
        self._ended = ended
        self._sealed = committing.settled_segments()
        self._wanted = range(len(self._sealed))[part]
        self._spare = frozenset(spare)
        self._purge_before = purge_before
        self._purge_limit = purge_limit
        self._dropped = dropped
        # From here on no segment that this compaction reads can be freed.
        self._ticket = slots.enter()
        self._shares = self._choose(purge_limit, numbers, history_rows)
        self._limits = history
        self._histories = {} if history is None else histories(into, history_rows, drops)
        self._old: list[Segment] = []
        self._taken_back: NDArray[np.uint8] = np.zeros(len(into.table), np.uint8)
        self._writer: CompactedWriter | None = None
        self._published = False
        self._is_over = False
        self._busy = threading.Lock()  # held while another thread works on this
        self._publishing = threading.Lock()  # held while the new files come into the log
        self._announced = False
        self._left: dict[int, int] = {}
        self.stale: bool = False
        self.is_whole: bool = False
        self.bytes_needed: int = 0
        self.history_bytes: int = 0

    def _choose(
        self,
        purge_limit: Callable[[int], int] | None,
        numbers: Callable[[int], NDArray[np.uint64]],
        history_rows: Callable[[int], int],
    ) -> dict[int, _Share]:
        table, selected = self._index.table, np.zeros(SLOTS_MAX, np.uint8)
        for segment in self._sealed:
            self._slots.register(segment)
            selected[segment.slot] = 1
        counts = np.zeros(len(table), np.int64)
        kernels.prefix_rows(table, selected, counts)
        shares = {}
        for vb in np.flatnonzero(counts).tolist():
            rows = int(table[vb, index.DURABLE_ROWS])
            limit = min(int(table[vb, index.DURABLE_HIGH]), int(table[vb, index.HIGH]))
            if purge_limit is not None:
                limit = min(limit, purge_limit(vb))
            history, live = max(0, rows - history_rows(vb)), int(table[vb, index.LIVE_BYTES])
            columns = self._index.columns[vb]
            dropped = NONE_DROPPED if self._dropped is None else self._dropped(vb)
            shares[vb] = _Share(columns, int(counts[vb]), history, max(0, limit), live, numbers(vb), dropped)
        return shares

    def survey(self) -> bool:
        """Find the rows that stay, and the segments to rewrite; return True if the compaction is worth the work. Any
        thread may call this.

        After False or an error, call `cancel`.

        Raises:
            DiskFull: the disk has no room for the remaining rows of any stretch.
            CorruptStore: the old files are damaged.
            StorageError: the compaction was overtaken or cancelled meanwhile.
        """
        with self._busy:
            self._begin_histories()
            self._take(self._wanted)
            room = max(0, self._log.free_bytes - self._beside_rows)
            # The cheap bound first: the exact number needs each row, and takes as long as a checksum of the whole log.
            self.bytes_needed = self._bytes_at_most()
            if self._spare or self.bytes_needed > room // ROOMY_PARTS:
                self.bytes_needed = self._bytes_exactly()
            if self._spare or self.bytes_needed > room:
                stretch = self._best(room)
                if stretch is None:
                    return False
                self._take(stretch)
                self.bytes_needed = self._bytes_exactly()
                if self.bytes_needed > room:
                    raise DiskFull(self._log.folder, self.bytes_needed, room)
            self._log.promised = self.bytes_needed = self.bytes_needed + self._beside_rows
            self.is_whole = len(self._old) == len(self._sealed)
            # Copied rows get new checksums, so a damaged byte would never be noticed again.
            self._verify()
            return True

    def _begin_histories(self) -> None:
        """Lower the first row of kept versions of each vbucket as far as retention demands."""
        if self._limits is None:
            return
        starts = begin(self._histories, self._slots.table, self._limits)
        self.history_bytes = sum(start.bytes for start in starts.values())
        for vb, share in self._shares.items():
            share.history = min(share.history, starts[vb].row)
        self._limits = None  # a second survey has the same rows

    def _best(self, room: int) -> range | None:
        """Return the stretch to rewrite; None if no stretch is worth the work. Raises DiskFull if one is, but none
        fits.
        """
        totals = np.zeros(SLOTS_MAX, np.int64)
        for share in self._shares.values():
            kernels.add_bytes(share.columns.loc, share.keep, self._slots.table, totals)
        live = totals[[segment.slot for segment in self._old]]
        dead = np.array([segment.end for segment in self._old]) - live - SLACK_BYTES
        live += live // ROUNDING
        spared = np.array([segment.header.id in self._spare for segment in self._old])
        enough = best_stretch(live, np.where(spared, -(1 << 62) // len(live), dead), 1 << 62)
        if enough is None:
            return None
        stretch = best_stretch(np.where(spared, room + 1, live), dead, room)
        if stretch is None:
            least = int(live[(dead > live // GAIN_PARTS) & ~spared].min(initial=1 << 62))
            raise DiskFull(self._log.folder, least, room)
        return self._wanted[slice(*stretch)]

    def _take(self, selection: range) -> None:
        """Select the sealed segments to rewrite, and find their rows that stay."""
        self._old = self._sealed[selection.start : selection.stop]
        before, upto = np.zeros(SLOTS_MAX, np.uint8), np.zeros(SLOTS_MAX, np.uint8)
        before[[segment.slot for segment in self._sealed[: selection.start]]] = 1
        upto[[segment.slot for segment in self._sealed[: selection.stop]]] = 1
        for share in self._shares.values():
            self._check_wanted()
            share.first = kernels.rows_before(share.columns.loc, share.rows, before)
            share.end = kernels.rows_before(share.columns.loc, share.rows, upto)
            self._survey(share)

    def _bytes_exactly(self) -> int:
        """Return the bytes of the rows that stay, with the headers of their batches. Takes time: reads the length of
        each row.
        """
        table, shares = self._slots.table, self._shares.values()
        rows = sum(int(kernels.bytes_of(share.columns.loc, share.keep, table)) for share in shares)
        return rows + rows // ROUNDING

    def _bytes_at_most(self) -> int:
        """Return an upper bound of `_bytes_exactly`. Reads only the superseded rows that stay."""
        rows = 0
        for share in self._shares.values():
            columns = share.columns
            rows += share.live
            rows += int(kernels.superseded_bytes(columns.loc, columns.next, share.keep, self._slots.table))
        return rows + rows // ROUNDING

    def _survey(self, share: _Share) -> None:
        keep = np.empty(share.end - share.first, np.uint32)
        columns = share.columns
        # A rollback may undo a drop among the newest changes, and must bring back its documents.
        settled = columns.seq[share.history - 1] if share.history else 0
        count, floor, purge = kernels.survivors(
            (columns.seq, columns.loc, columns.prev, columns.next),
            share.first,
            share.end,
            share.history,
            self._slots.table,
            self._purge_before,
            np.uint64(share.limit),
            share.numbers,
            np.empty(len(share.numbers), np.int64),
            keep,
            share.dropped[share.dropped[:, 1] <= settled],
        )
        share.keep, share.floor, share.purge = keep[: int(count)].copy(), int(floor), int(purge)

    @property
    def _beside_rows(self) -> int:
        """The bytes to write besides the rows: the records of all vbuckets, and their repeated rollbacks."""
        records = sum(len(record_frame(vb, record)) for vb, record in tuple(self._committing.records.items()))
        return records + len(self._taken_back) * TAKEN_BACK_BYTES + SLACK_BYTES

    def _verify(self) -> None:
        """Verify the checksums of the old segments, and find the vbuckets that have rollbacks or drops in them.

        Raises:
            CorruptStore: a checksum is wrong.
        """
        self._taken_back[:] = 0
        is_first = self._old[0] is self._sealed[0]  # no rows before these segments could be undone
        for segment in self._old:
            self._check_wanted()
            bodies = recovery.verify(segment).bodies
            if not is_first:
                kernels.taken_back(self._slots.table, segment.slot, bodies, self._taken_back)

    def spare_tombstones(self) -> bool:
        """Return True if a stream that began during `survey` still has to send tombstones that the compaction would
        remove. Then call `survey` again, which keeps them.

        Call this in the loop's thread, right before `announce`. A stream that begins later is checked against the purge
        seqno that `announce` raises.
        """
        spared = False
        for vb, share in self._shares.items():
            limit = share.limit if self._purge_limit is None else self._purge_limit(vb)
            # A stream that began below such a tombstone was accepted by the old purge seqno (failover 2, step 2), and
            # must get it.
            if share.purge > limit:
                share.limit, spared = limit, True
        return spared

    def announce(self) -> None:
        """Raise the purge seqnos and rollback floors, and stage records with them; commit these before `copy`. Do
        nothing if the compaction is stale.

        Raises:
            DiskFull, ArenaFull: there is no room for the records; `cancel`, or announce again later.
        """
        # The numbers of the survey are of rows that are gone: a record with them would bring back a vbucket that was
        # dropped since, without a state, and the next start could not read it. `copy` refuses.
        if self.stale:
            return
        # From this moment a rollback can't reach below the floor, so it no longer makes this compaction stale (`cut`).
        self._announced = True
        for vb, share in self._shares.items():
            row = self._index.table[vb]
            purge, limit = share.purge, share.limit
            node_invariant(purge <= limit, "vbucket {}: purged to {}, readers lack all from {}", vb, purge, limit)
            is_known = share.floor <= int(row[index.FLOOR]) and share.purge <= int(row[index.PURGE])
            if is_known and not self._staging.lags_behind(vb):
                continue
            # Raised and committed before any row is dropped: a crash in between only makes some rollbacks go further
            # than needed. In the other order, a consumer could continue without tombstones that it never got.
            row[index.FLOOR] = max(int(row[index.FLOOR]), share.floor)
            row[index.PURGE] = max(int(row[index.PURGE]), share.purge)
            self._staging.record_again(vb)

    def copy(self) -> None:
        """Write the rows that stay to new segments, and replace the old segments in the manifest. Any thread may call
        this; the records of `announce` must be durable.

        Raises:
            DiskFull, StorageError, CorruptStore: nothing has changed; `cancel`.
        """
        failpoint("compact.planned")
        with self._busy, self._log.making_room(self.bytes_needed):
            writer = CompactedWriter(self._log)
            try:
                self._copy(writer)
            except OSError as error:
                raise full_error(self._log.folder, self.bytes_needed, error) from error
            finally:
                writer.close()

    def _copy(self, writer: CompactedWriter) -> None:
        self._writer = writer
        # Records as they are on disk: a staged record may still be lost, and must not be in a file that stays.
        writer.records(self._again_taken_back(), dict(self._committing.records))
        for share in self._shares.values():
            self._check_wanted()
            share.places = np.empty(len(share.keep), np.uint64)
            kept_rows, rows = len(share.keep), share.end - share.first
            node_invariant(kept_rows <= rows, "compaction keeps {} rows of {}", kept_rows, rows)
            writer.rows(share.columns.loc, share.keep, share.places, self._slots.table)
        writer.write_out()
        # Verified again, because bytes that were damaged between the first check and the copy would now have a valid
        # checksum.
        for segment in self._old:
            self._check_wanted()
            recovery.verify(segment)
        failpoint("compact.copied")
        # Sync and seal come before the manifest names the files; the order is what keeps a crash harmless.
        writer.finish()
        with self._publishing:
            self._check_wanted()
            # The new files are whole and synced (`finish`) before the manifest names them; the old ones are removed
            # later. A crash in between leaves files that no manifest names, but never a manifest that names an
            # incomplete file.
            self._log.replace(self._old, writer.segments)
            self._published = True

    def _again_taken_back(self) -> list[bytes]:
        """Return frames that repeat the rollbacks and drops in the old segments, for rows before these segments.

        Without these frames, rows that such a rollback has removed would be back after a restart. A frame returns to
        the seqno of the last remaining row in the index, which later rollbacks may have lowered further; a replay meets
        these too.
        """
        frames = []
        for vb in np.flatnonzero(self._taken_back).tolist():
            share = self._shares.get(vb)
            if self._taken_back[vb] >= kernels.DROPPED:
                frames.append(drop_frame(vb))
            else:
                seqno = int(share.columns.seq[share.first - 1]) if share is not None and share.first else 0
                frames.append(rollback_frame(vb, seqno, seqno))
        return frames

    def _check_wanted(self) -> None:
        if self.stale:
            raise StorageError(f"{self._log.folder}: compaction was overtaken or cancelled; start it again")

    def overtake(self) -> None:
        """Mark the survey as outdated, before the rows change. Call this in the loop's thread.

        If the new files are just entering the log (a write and a sync of the manifest), this waits until they have. So
        a new index of the log is built either with these files, or without them; in the second case they never enter
        the log.
        """
        with self._publishing:
            self.stale = True

    def cut(self, vbucket: int, rows: int) -> None:
        """Note that a rollback or drop left the vbucket `rows` of its rows."""
        if vbucket in self._shares:
            self.stale = self.stale or not self._announced  # before `announce` the floor does not limit the rollback
            # The minimum counts: after a first rollback, new rows were written, which are in none of the old files.
            self._left[vbucket] = min(rows, self._left.get(vbucket, rows))

    def swap(self) -> Iterator[int]:
        """Replace the columns of one vbucket at each step, and yield the vbucket. Call this in the loop's thread; other
        work may run between the steps.

        Raises:
            StorageError: `copy` has not succeeded.
        """
        if self._writer is None or not self._published:
            raise StorageError(f"{self._log.folder}: compaction has nothing to swap")
        if self._is_over:
            return
        for segment in self._writer.segments:
            self._slots.register(segment)
        slots = np.array([segment.slot for segment in self._writer.segments], np.int64)
        # If the whole log was indexed again, with the new files (`overtake`), since these entered the log, all rows
        # point to the new files already. This happens when a rollback or a drop is lost.
        while self._shares and self._committing.times_indexed == self._times_indexed:
            vb, share = self._shares.popitem()
            self._exchange(vb, share, slots)
            yield vb
        self._end()

    def finish_swap(self) -> None:
        """If the new files are in the manifest, replace all columns at once, so that rows point to the new files. Call
        this in the loop's thread.
        """
        if self._published:
            with self._busy:  # the copying thread releases this in a moment
                for _ in self.swap():
                    pass

    def _end(self) -> None:
        if self._is_over:  # `finish_swap` has ended the compaction, because damage was found meanwhile
            return
        self._is_over = True
        self._shares.clear()
        self._sealed.clear()  # so that `_old` has the last reference to each removed file; see `forget`
        self._slots.leave(self._ticket)
        self._slots.retire(self._old)
        self._ended()

    def _exchange(self, vb: int, share: _Share, slots: NDArray[np.int64]) -> None:
        into, row = self._index, self._index.table[vb]
        # Rows that a rollback has removed meanwhile are in the new files, but not in the index. In a replay, the
        # rollback's frame after the new files removes them.
        end = min(share.end, self._left.get(vb, share.end))
        first = min(share.first, end)
        kept_rows = int(np.searchsorted(share.keep, end))
        removed_rows, old = end - first - kept_rows, into.columns[vb]
        durable, places = int(row[index.DURABLE_ROWS]), len(share.places)
        node_invariant(end <= durable, "vbucket {}: {} rows compacted, {} are durable", vb, end, durable)
        node_invariant(removed_rows >= 0, "vbucket {}: {} rows stay of {}", vb, kept_rows, end - first)
        node_invariant(kept_rows <= places, "vbucket {}: {} rows stay, {} were written", vb, kept_rows, places)
        if end == first:
            return
        rows = int(row[index.ROWS]) - removed_rows
        new = into.sized(rows, int(row[index.KEYS]))
        kernels.rebuild(
            into.table,
            vb,
            self._slots.table,
            (old.seq, old.loc, old.hash, old.prev, old.next),
            (new.seq, new.loc, new.hash, new.prev, new.next),
            first,
            end,
            share.keep[:kept_rows],
            share.places[:kept_rows],
            slots,
            np.empty(end - first, np.uint32),
        )
        node_invariant(rows <= new.capacity, "vbucket {}: {} rows, room for {}", vb, rows, new.capacity)
        # After `rebuild`: the hash table has the rows' new numbers.
        fill_slots(new.slots, new.hash, new.next, rows)
        into.adopt(vb, new)
        for count in (index.ROWS, index.DURABLE_ROWS, index.FROZEN_ROWS):
            row[count] = int(row[count]) - removed_rows

    @property
    def written(self) -> list[int]:
        """The ids of the new segments; empty before `copy`."""
        return [segment.header.id for segment in self._writer.segments] if self._writer is not None else []

    def remove(self) -> None:
        """Remove the old files; their memory and disk space stay while views read them. Any thread may call this."""
        failpoint("compact.before_unlink")
        for segment in self._old:
            with contextlib.suppress(OSError):  # the next start removes it
                self._log.remove(segment)

    def forget(self) -> None:
        """Free the memory and the disk space of the removed files, which takes 0.2 s per GB. Any thread may call this;
        the compaction is over, so the store may be written, read and compacted meanwhile.
        """
        with pool_or_inline(2, "headwater-compaction") as pool:
            if self._writer is not None:
                pool.submit(self._writer.touch)
            while self._old:
                pool.submit(_forget, [self._old.pop()])

    def cancel(self) -> None:
        """Cancel the compaction, and remove the new files; if `copy` has succeeded already, do the swap instead.

        Call this in the loop's thread. It waits until a `survey` or `copy` in another thread has stopped.
        """
        # After `copy` the manifest names the new files, so the compaction can't be undone.
        self.stale = self.stale or not self._published
        with self._busy:
            self._log.promised = 0
            if self._published:
                for _ in self.swap():
                    pass
                return
            self._slots.leave(self._ticket)
            self._ended()
            self._discard()

    def _discard(self) -> None:
        if self._writer is not None:
            try:
                self._log.manifest.settle()
            except OSError:
                return  # the manifest on disk may name the new files: they must stay
            self._writer.discard()
