"""Compaction: sealed segments are written anew without what nobody can ask for, while writes and streams go on.

    job = store.compact(...)         choose the segments                                            loop thread
    job.survey()                     which rows stay                                                any thread
    job.announce(); commit           purge seqnos and rollback floors rise, durably, first          loop thread
    job.copy()                       the rows that stay, by vbucket in seqno order; the manifest    any thread
    for _ in job.swap(): ...         one vbucket's columns after the other                          loop thread
    job.remove()                     the old files                                                  any thread
    job.forget()                     the memory and blocks that they still held                     any thread

The chosen segments are the oldest ones, so what replaces them goes to the front of the log, and replaying the log still
gives the same state. Its numbers rise before anything is dropped: a purge seqno or floor that is higher than it need be
only makes a consumer start over that might not have to; one that is too low would hide a deletion.

A rollback or drop that comes in between is no obstacle. On disk its record stands behind what is compacted, and it goes
back to no seqno below the floor that was announced, save to nothing at all. In memory `cut` remembers how many of the
old rows were left.

A crash leaves either manifest with all of its segments; files of the other are removed at the next start.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from headwater.errors import StorageError
from headwater.failpoints import failpoint
from headwater.kernels import compact as kernels
from headwater.kernels import index
from headwater.kernels.history import fill_slots
from headwater.node.storage import recovery
from headwater.node.storage.columns import Columns
from headwater.node.storage.compacted import CompactedWriter
from headwater.node.storage.log import full_error
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.segment import Segment
from headwater.node.storage.slots import SLOTS_MAX

if TYPE_CHECKING:
    from headwater.node.storage.store import Store

__all__ = ["HISTORY_ROWS", "Compaction", "settled_segments"]

HISTORY_ROWS: Final = 128


@dataclass(slots=True)
class _Share:
    """One vbucket's part: its columns when it began, how many rows of it are compacted, and which of them stay."""

    columns: Columns
    prefix: int
    history: int
    limit: int
    keep: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    places: NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))
    floor: int = 0
    purge: int = 0


def settled_segments(store: Store) -> list[Segment]:
    """The sealed segments whose every row the index knows to be there, oldest first.

    Not so the one that a batch was just written to: its rows count once it is settled, and the log may have gone on to
    the next segment by then. The order of the two reads matters: the commit thread tells where the batch is before it
    leaves that segment.
    """
    sealed, batch = store._log.segments[:-1], store._in_flight
    written = None if batch is None else batch.segment
    return sealed[: sealed.index(written)] if written in sealed else sealed


def _forget(segments: list[Segment]) -> None:
    """Let go of what nobody mentions any more. A removed file's memory goes with that: 0.2 s/GB, not to be spent on the
    loop's thread."""
    segments.clear()


class Compaction:
    """One run. Attributes: bytes_before, bytes_after (of the files, once copied)."""

    def __init__(
        self,
        store: Store,
        purge_before: int,
        purge_limit: Callable[[int], int] | None,
        history_rows: Callable[[int], int],
    ) -> None:
        self._store = store
        self._log = store._log
        self._slots = store._slots
        self._old = settled_segments(store)
        self._purge_before = purge_before
        self._purge_limit = purge_limit
        self._ticket = self._slots.enter()
        self._shares = self._choose(purge_limit, history_rows)
        self._records: dict[int, VBucketRecord] = {}
        self._writer: CompactedWriter | None = None
        self._published = False
        self._busy = threading.Lock()  # held while another thread works on this
        self._announced = False
        self._left: dict[int, int] = {}
        self.stale = False
        self.bytes_before = sum(segment.end for segment in self._old)
        self.bytes_after = 0

    def _choose(
        self, purge_limit: Callable[[int], int] | None, history_rows: Callable[[int], int]
    ) -> dict[int, _Share]:
        store, chosen = self._store, np.zeros(SLOTS_MAX, np.uint8)
        for segment in self._old:
            self._slots.register(segment)
            chosen[segment.slot] = 1
        prefixes = np.zeros(len(store.table), np.int64)
        kernels.prefix_rows(store.table, chosen, prefixes)
        shares = {}
        for vb in np.flatnonzero(prefixes).tolist():
            prefix, rows = int(prefixes[vb]), int(store.table[vb, index.DURABLE_ROWS])
            limit = min(store.durable_seqno(vb), store.high_seqno(vb)) - 1
            if purge_limit is not None:
                limit = min(limit, purge_limit(vb))
            history = min(prefix, max(0, rows - history_rows(vb)))
            shares[vb] = _Share(store._index.columns[vb], prefix, history, max(0, limit))
        return shares

    def survey(self) -> None:
        """Find the rows that stay. Any thread.

        Raises:
            CorruptStore: the old files are damaged. StorageError: it was cancelled meanwhile. Either way, `cancel`.
        """
        with self._busy:
            for segment in self._old:  # what is copied gets new checksums: those it has must be right
                self._check_wanted()
                recovery.verify(segment)
            for share in self._shares.values():
                self._check_wanted()
                self._survey(share)

    def _survey(self, share: _Share) -> None:
        keep = np.empty(share.prefix, np.uint32)
        columns = share.columns
        count, floor, purge = kernels.survivors(
            columns.seq,
            columns.loc,
            columns.next,
            share.prefix,
            share.history,
            self._slots.table,
            self._purge_before,
            np.uint64(share.limit),
            keep,
        )
        share.keep, share.floor, share.purge = keep[: int(count)].copy(), int(floor), int(purge)

    def spare_tombstones(self) -> bool:
        """Whether a stream that began during `survey` has yet to send tombstones that were to go: survey again then.

        They stay. Loop thread, right before `announce`. Who begins later is held against the purge seqno it raises.
        """
        spared = False
        for vb, share in self._shares.items():
            limit = share.limit if self._purge_limit is None else self._purge_limit(vb)
            if share.purge > limit:
                share.limit, spared = limit, True
        return spared

    def announce(self) -> None:
        """Raise purge seqnos and rollback floors, and stage the records that say so: commit them before `copy`.

        Raises:
            DiskFull, ArenaFull: there is no room for the records; cancel, or announce again later.
        """
        self._announced = True
        for vb, share in self._shares.items():
            row = self._store.table[vb]
            if share.floor <= int(row[index.FLOOR]) and share.purge <= int(row[index.PURGE]):
                continue
            row[index.FLOOR] = max(int(row[index.FLOOR]), share.floor)
            row[index.PURGE] = max(int(row[index.PURGE]), share.purge)
            self._store.restage_record(vb)

    def copy(self) -> None:
        """Write what stays to new segments and make them the store's. Any thread; announce must be durable.

        Raises:
            DiskFull, StorageError: nothing has changed; `cancel`.
        """
        failpoint("compact.planned")
        with self._busy:
            writer = CompactedWriter(self._store._disk, self._log, self._store._random)
            try:
                self._copy(writer)
            except OSError as error:
                raise full_error(self._store.path, 0, error) from error
            finally:
                writer.close()

    def _copy(self, writer: CompactedWriter) -> None:
        self._writer = writer
        writer.records(dict(self._store._durable_records))
        for share in self._shares.values():
            self._check_wanted()
            share.places = np.empty(len(share.keep), np.uint64)
            writer.rows(share.columns.loc, share.keep, share.places, self._slots.table)
        writer.write_out()
        failpoint("compact.copied")
        self.bytes_after = writer.finish()
        self._check_wanted()
        self._log.replace(self._old, writer.segments)
        self._published = True

    def _check_wanted(self) -> None:
        if self.stale:
            raise StorageError(f"{self._store.path}: compaction was overtaken or cancelled; start it again")

    def cut(self, vb: int, rows: int) -> None:
        """A rollback left the vbucket `rows` of its rows."""
        if vb in self._shares:
            self.stale = self.stale or not self._announced  # the floor did not yet guard what will go
            self._left[vb] = min(rows, self._left.get(vb, rows))

    def swap(self) -> Iterator[int]:
        """Exchange the columns, a vbucket at each step: yields it. Loop thread; other work may go on between steps."""
        if self._writer is None or not self._published:
            raise StorageError(f"{self._store.path}: compaction has nothing to swap")
        for segment in self._writer.segments:
            self._slots.register(segment)
        slots = np.array([segment.slot for segment in self._writer.segments], np.int64)
        if self.stale:
            self._store._reload()
            self._shares.clear()
        while self._shares:
            vb, share = self._shares.popitem()
            self._exchange(vb, share, slots)
            yield vb
        self._slots.leave(self._ticket)
        self._slots.retire(self._old)
        self._store._compaction = None

    def _exchange(self, vb: int, share: _Share, slots: NDArray[np.int64]) -> None:
        store, row = self._store, self._store.table[vb]
        prefix = min(share.prefix, self._left.get(vb, share.prefix))
        kept = int(np.searchsorted(share.keep, prefix))
        gone, old = prefix - kept, store._index.columns[vb]
        if prefix == 0:
            return
        rows = int(row[index.ROWS]) - gone
        new = store._index.sized(rows, int(row[index.KEYS]))
        kernels.rebuild(
            store.table,
            vb,
            store.segments,
            (old.seq, old.loc, old.hash, old.prev, old.next),
            (new.seq, new.loc, new.hash, new.prev, new.next),
            prefix,
            share.keep[:kept],
            share.places[:kept],
            slots,
        )
        fill_slots(new.slots, new.hash, new.next, rows)
        store._index.adopt(vb, new)
        for count in (index.ROWS, index.DURABLE_ROWS, index.FROZEN_ROWS):
            row[count] = int(row[count]) - gone

    def remove(self) -> None:
        """Remove the old files; views that still read them keep their bytes. Any thread."""
        failpoint("compact.before_unlink")
        for segment in self._old:
            with contextlib.suppress(OSError):  # the next start removes it
                self._store._disk.remove(segment.path)

    def forget(self) -> None:
        """Give back what the removed files still held: 0.2 s/GB. Any thread; compaction
        is over by then, the store may be written, read and compacted."""
        with ThreadPoolExecutor(2, "headwater-compaction") as beside:
            if self._writer is not None:
                beside.submit(self._writer.touch)
            while self._old:
                beside.submit(_forget, [self._old.pop()])

    def cancel(self) -> None:
        """Give up, and remove what was written; when `copy` had succeeded already, do the swap instead. Loop thread.

        Waits for a `survey` or `copy` that is under way in another thread to notice.
        """
        self.stale = self.stale or not self._published
        with self._busy:
            if self._published:
                for _ in self.swap():
                    pass
                return
            self._slots.leave(self._ticket)
            self._store._compaction = None
            self._discard()

    def _discard(self) -> None:
        if self._writer is not None:
            try:
                self._log.manifest.settle()
            except OSError:
                return  # the manifest on disk may name the new files: they must stay
            self._writer.discard()
