"""A bucket: one store, its vbuckets, and the committer that makes the store durable.

The store holds the documents; the vbuckets hold state and failover log of each part of them; the committer writes
changes to disk in order. Key-value sessions, streams and statistics use them through the bucket.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

import numpy as np

from headwater.kernels import index, sweep
from headwater.node.buckets.clock_floor import ClockFloor
from headwater.node.buckets.collections import Collections
from headwater.node.buckets.locks import DocumentLock, Locks
from headwater.node.buckets.scans import RangeScans
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.durable_writes import DurableWrites
from headwater.node.storage.api import Storage
from headwater.node.storage.records import StoredDocument, stored_key
from headwater.node.storage.scrub import Damage
from headwater.node.storage.staging import RECORD_BYTES
from headwater.node.vbucket.vbucket import VBucket
from headwater.protocol.dcp.failover import VB_UUID_BITS
from headwater.wire import times
from headwater.wire.numbers import GIVEN_MAX
from headwater.wire.vbucket import State

KEYS_BYTES = 64 << 10


class Clock(Protocol):
    """The time, passed as an argument; the module `time` implements it."""

    def time_ns(self) -> int:
        """Return the Unix time in nanoseconds."""

    def monotonic(self) -> float:
        """Return the seconds of a clock that never goes back."""


StatGroup = Callable[[list[str]], Iterable[tuple[str, str]]]


class Bucket:
    """One bucket of a node.

    Attributes:
        store, committer, clock, name: the arguments.
        uuid: the uuid of the store, which is new for each created bucket.
        vbuckets: the vbuckets on this node, by number.
        uuids: uint64[vbuckets], the newest vb uuid of each, for kernels; call `refresh` first.
        stat_groups: maps the name of a STAT group to a function of its arguments; other parts of the node add their
            groups. The pairs of a long group are sent in slices, so the bucket may change between two pairs.
        fenced: the active vbuckets that are not served, because another node may own them.
        locks: the locked documents.
        clock_floor: the time up to which no change gets a CAS any more.
        collections: the collections that this node knows; each vbucket knows those in its own log.
        durable_writes: the writes that wait for replicas.
        scans: the open range scans.
        traffic_disabled: True while document commands are answered with ETMPFAIL.
        on_owned: called with an active vbucket whenever its record changes.
        on_changed: called with a vbucket whenever its record changes, and when it is created, dropped, fenced or
            unfenced.
        counters: totals since the start, by name.
        map_changes: the number of changes of vbucket records since the start.
    """

    def __init__(
        self,
        name: str,
        store: Storage,
        committer: Committer,
        *,
        clock: Clock = time,
        new_uuid: Callable[[], int] | None = None,
    ) -> None:
        self.name = name
        self.uuid: str = store.log.store_uuid
        self.store = store
        self.committer = committer
        self.clock = clock
        self.vbuckets: dict[int, VBucket] = {}
        self.uuids: Final = np.zeros(len(store.table), np.uint64)
        self.stat_groups: dict[str, StatGroup] = {}
        self.fenced: set[int] = set()
        self.traffic_disabled = False
        self.locks: Final = Locks(clock.time_ns())
        self.clock_floor: Final = ClockFloor(store.disk, store.path, store.table)
        self.collections: Final = Collections(self, store.disk, store.path)
        self.durable_writes: Final = DurableWrites(self)
        self.scans: Final = RangeScans(self)
        self.map_changes: int = 0
        self.counters: Final = {
            "cmd_get": 0,
            "get_hits": 0,
            "cmd_set": 0,
            "cmd_delete": 0,
            "cmd_flush": 0,
            "expired": 0,
        }
        self._new_uuid = new_uuid or (lambda: secrets.randbits(VB_UUID_BITS))
        self._changed: set[int] = set()
        self._lifted: dict[int, int] = {}  # by vbucket: the batch with the state that made its fence unnecessary
        self.on_owned: list[Callable[[int], None]] = []
        self.on_changed: list[Callable[[int], None]] = []
        self._state_waiters: dict[int, dict[Callable[[], None], None]] = {}
        self._durable_high = store.table[:, index.DURABLE_HIGH].copy()
        committer.on_durable.append(self._tell_readers)
        committer.on_failure.append(self._restore)
        self.durable_writes.heed(committer)

    @property
    def vbucket_count(self) -> int:
        """The number of vbuckets of the bucket on all nodes together."""
        return len(self.store.table)

    # --- vbuckets -----------------------------------------------------------------------------------------------------

    def recover(self, config: NodeConfig) -> None:
        """Load the vbuckets of the store; create those that the settings name if the store has none yet."""
        store = self.store
        for vb, record in store.recovered.items():
            wrote = self._wrote(vb)
            self.vbuckets[vb] = VBucket.recover(record, vb, store, wrote, clean=store.clean, new_uuid=self._new_uuid)
            self._changed.add(vb)
        self.collections.recover()
        for first in list(self.vbuckets.values())[:1]:
            # While a node runs, the log must not end with a CLEAN record: without a new one, the next stop was not
            # clean.
            store.staging.record(first.id, first.record())
            first.show_state()
        if not self.vbuckets and config.vbucket_state == "active":
            for vb in range(len(store.table)):
                self.create_vbucket(vb, State.ACTIVE)
        self.refresh()

    def create_vbucket(self, vbucket: int, state: State) -> VBucket:
        """Create a vbucket that is not on this node yet."""
        new_vbucket = VBucket.create(vbucket, self.store, self._wrote(vbucket), state=state, new_uuid=self._new_uuid)
        self.vbuckets[vbucket] = new_vbucket
        self.collections.look_at(vbucket)
        self._tell_of(vbucket)
        return new_vbucket

    def drop_vbucket(self, vbucket: int) -> int:
        """Drop a vbucket; return the number of the batch that makes this durable.

        Raises:
            ArenaFull, DiskFull: the drop has no room, and nothing happens.
        """
        # Else it would be gone in memory only: a vbucket of this number that is created next would have its rows.
        self.store.staging.check_drop_room()
        dropped = self.vbuckets.pop(vbucket)
        dropped.drop()
        self.collections.look_at(vbucket)
        if vbucket in self.fenced:
            self._lift_fence(vbucket)
        return dropped.gate

    def fence(self, vbuckets: Iterable[int]) -> None:
        """Stop serving these vbuckets for now, because another node may own them."""
        for vb in vbuckets:
            if vb not in self.fenced:
                self.fenced.add(vb)
                self._tell_of(vb)

    def unfence(self, vbucket: int) -> None:
        """Remove the fence of a vbucket; if it is active, it is served again."""
        if vbucket in self.fenced:
            self._lift_fence(vbucket)
            self._tell_of(vbucket)

    def _lift_fence(self, vbucket: int) -> None:
        self.fenced.discard(vbucket)
        # If the batch with the new state is lost, the vbucket is active again, and another node may still own it.
        if self.state(vbucket) is not State.ACTIVE:
            self._lifted[vbucket] = self.committer.gate()

    def may_hand_over(self, vbucket: int) -> bool:
        """Return True if a vbucket can be handed over: its durable writes are settled, or need not be settled
        before.
        """
        return self.durable_writes.settle_before(vbucket)

    def hand_over(self, vbucket: int) -> None:
        """Stop serving a vbucket, because another node takes it over.

        Raises:
            ArenaFull, DiskFull: the change could not be staged, and the vbucket is served as before.
        """
        self.vbuckets[vbucket].hand_over(self.now())

    def state(self, vbucket: int) -> State | None:
        """Return the state of a vbucket; None if it is not on this node."""
        vbucket_ = self.vbuckets.get(vbucket)
        return vbucket_.state if vbucket_ else None

    def is_active(self, vbucket: int) -> bool:
        """Return True if the vbucket is active here and not fenced."""
        return self.state(vbucket) == State.ACTIVE and vbucket not in self.fenced

    def is_backed_up(self, vbucket: int) -> bool:
        """Return True if a vbucket refuses writes because a takeover is about to end (failover 4)."""
        vbucket_ = self.vbuckets.get(vbucket)
        return vbucket_ is not None and vbucket_.is_backed_up

    def when_state_changes(self, vbucket: int, callback: Callable[[], None]) -> None:
        """Call `callback` once when the record of a vbucket next changes; a callback that is added twice is called
        once.
        """
        self._state_waiters.setdefault(vbucket, {})[callback] = None

    def waits_no_more(self, vbucket: int, callback: Callable[[], None]) -> None:
        """Remove a callback of `when_state_changes`."""
        waiters = self._state_waiters.get(vbucket, {})
        waiters.pop(callback, None)
        if not waiters:
            self._state_waiters.pop(vbucket, None)

    def refresh(self) -> None:
        """Update `uuids` for the vbuckets whose failover tables changed."""
        for vb in self._changed:
            vbucket = self.vbuckets.get(vb)
            self.uuids[vb] = vbucket.failover.newest.vb_uuid if vbucket else 0
        self._changed.clear()

    @property
    def needs_refresh(self) -> bool:
        """True if a failover table may have changed since the last `refresh`."""
        return bool(self._changed)

    # --- documents ----------------------------------------------------------------------------------------------------

    def live_keys(self, vbucket: int, first_row: int = 0, collection: int = 0) -> Iterator[bytes]:
        """Yield the keys of a collection's live documents in a vbucket, in the order of their newest versions, from row
        `first_row` on.
        """
        store, row, prefix = self.store, first_row, len(stored_key(collection, b"")[0])
        out = np.zeros(KEYS_BYTES, np.uint8)
        while row < int(store.table[vbucket, index.ROWS]):
            keys = sweep.live_keys(store.table, vbucket, store.segments, row, self.now(), out, collection)
            used, row = map(int, keys)
            records, at = bytes(out[:used]), 0
            while at < used:
                size = int.from_bytes(records[at : at + 2], "big")
                yield records[at + 2 + prefix : at + 2 + size]
                at += 2 + size

    def random_key(self, vbucket: int, collection: int = 0) -> bytes | None:
        """Return the key of a random live document of a collection: the first one after a random row, or otherwise the
        first in the vbucket; None if there is no live document.
        """
        rows = int(self.store.table[vbucket, index.ROWS])
        start = secrets.randbelow(rows) if rows else 0
        return next(self.live_keys(vbucket, start, collection), None) or next(
            self.live_keys(vbucket, 0, collection), None
        )

    def flush(self) -> bool:
        """Delete every document of every active vbucket; each deletion is a change.

        Returns:
            False if the staging arena was full before all documents were deleted: commit, then call again.

        Raises:
            CorruptStore: damage hides keys, whose documents would not be deleted in replicas.
        """
        self.check_sound()
        return all(map(self._flush, filter(self.is_active, self.vbuckets)))

    def check_sound(self) -> None:
        """Raise CorruptStore if damage may hide documents of active vbuckets."""
        for vb in filter(self.is_active, self.vbuckets):
            self.store.quarantine.check_keys(vb)

    def _flush(self, vb: int) -> bool:
        store, row = self.store, 0
        # Durable writes in flight are aborted first: a later commit would create its document again.
        self.durable_writes.abort_all(vb)
        while True:
            arena, used = store.staging.room()
            stop, row, used = map(
                int,
                sweep.delete_all(
                    store.table, vb, store.segments, row, store.staging.slot, used, len(arena), self.clock.time_ns()
                ),
            )
            store.staging.use(used)
            if stop == sweep.GROW:
                store.staging.grow(vb)
            else:
                return stop == sweep.DONE

    def has_room_for_record(self) -> bool:
        """Return True if the record of one vbucket, with a full failover log, can be staged before the next commit."""
        arena, used = self.store.staging.room()
        return len(arena) - used > RECORD_BYTES

    def take_out(self, damage: Damage) -> set[int] | None:
        """Stop serving a damaged range of the log, and end the streams of vbuckets with changes in it; return these
        vbuckets, or None if the damage was known already.
        """
        # Read before the damage is marked: durable writes may depend on what a replica has acknowledged of these
        # changes.
        acknowledged = {vb: vbucket.acknowledged_seqno for vb, vbucket in self.vbuckets.items()}
        hit = self.store.take_out(damage)
        for vb in hit or ():
            if vb in self.vbuckets:
                self.vbuckets[vb].damaged(acknowledged[vb])
        return hit

    def lock_of(self, vbucket: int, key: bytes, collection: int = 0) -> DocumentLock | None:
        """Return the lock of a document; None if it is not locked, or the lock has ended: its time is over, or the
        document has another CAS, has expired or is gone.
        """
        if not self.locks.held:
            return None
        lock = self.locks.get(vbucket, key, self.clock.monotonic(), collection)
        if lock is None:
            return None
        document = self.store.document(vbucket, key, collection)
        is_over = document is None or document.cas != lock.cas or times.is_expired(document.expiry, self.now())
        return None if is_over else lock

    def next_cas(self, vbucket: int) -> int:
        """Return the next CAS of the hybrid clock, as the kernels do (kernels/changes.py)."""
        last, seqno = int(self.store.table[vbucket, index.CAS]), self.store.index.high_seqno(vbucket) + 1
        return times.next_cas(last, self.clock.time_ns(), seqno)

    def next_revision(self, vbucket: int, old: StoredDocument | None) -> int:
        """Return the revision of the next version of a key, as the kernels do.

        "A brand-new key starts at 1 + the highest revision ever deleted in the vbucket" (kv.md 2). From GIVEN_MAX on
        the revision no longer rises; then the version with the higher CAS is newer.

        Args:
            vbucket: the vbucket's number.
            old: the newest version of the key; None for a new key.
        """
        last = int(self.store.table[vbucket, index.DELETED_REV]) if old is None else old.rev_seqno
        return last + 1 if last < GIVEN_MAX else last

    @property
    def prepares_waiting(self) -> int:
        """The number of prepares in this node's vbuckets, active or not, that are neither committed nor aborted."""
        return sum(len(vbucket.prepares.pending) for vbucket in self.vbuckets.values())

    def now(self) -> int:
        """Return the Unix time in seconds."""
        return self.clock.time_ns() // 1_000_000_000

    def count(self, gets: int, hits: int, sets: int, deletes: int) -> None:
        """Add the counts of one kernel call to the totals."""
        counters = self.counters
        if gets:
            counters["cmd_get"] += gets
            counters["get_hits"] += hits
        if sets:
            counters["cmd_set"] += sets
        if deletes:
            counters["cmd_delete"] += deletes

    # --- inside -------------------------------------------------------------------------------------------------------

    def _wrote(self, vb: int) -> Callable[[], int]:
        """Return the function that a vbucket calls after it staged a record, because its state or failover table may
        have changed. The function returns the number of the batch.
        """

        def wrote() -> int:
            self._changed.add(vb)
            self.map_changes += 1
            for owned in self.on_owned if self.is_active(vb) else ():
                owned(vb)
            self.collections.look_at(vb)
            self._tell_of(vb)
            self._wake(vb)
            return self.committer.wrote()

        return wrote

    def _wake(self, vb: int) -> None:
        """Call the functions that wait for a change of a vbucket's state."""
        for callback in self._state_waiters.pop(vb, ()):
            asyncio.get_running_loop().call_soon(callback)

    def _restore(self, _: BaseException, vbuckets: list[int]) -> None:
        """Restore these vbuckets, whose records were in a lost batch, to their state on disk."""
        for vb in vbuckets:
            vbucket, record = self.vbuckets.get(vb), self.store.staging.records.get(vb)
            if vbucket is not None:
                vbucket.restore(record)
            elif record is not None:
                # The vbucket's drop was in the lost batch, so the vbucket is back in its state on disk. Its history is
                # certain, so no new branch begins.
                self.vbuckets[vb] = VBucket.recover(
                    record, vb, self.store, self._wrote(vb), clean=True, new_uuid=self._new_uuid
                )
            if record is None:
                self.vbuckets.pop(vb, None)
            if self._lifted.pop(vb, 0) > self.committer.durable and self.state(vb) is State.ACTIVE:
                self.fenced.add(vb)  # before anybody is told of the vbucket
            self._changed.add(vb)
            self.map_changes += 1
            self._tell_of(vb)
            self._wake(vb)
        self.collections.batch_lost()

    def _tell_of(self, vb: int) -> None:
        if self.locks.held and self.state(vb) != State.ACTIVE:
            self.locks.leave(vb)
        for changed in self.on_changed:
            changed(vb)

    def _tell_readers(self) -> None:
        """Wake the streams of every vbucket with new changes on disk, after a commit."""
        column = self.store.table[:, index.DURABLE_HIGH]
        for vb in np.flatnonzero(column != self._durable_high).tolist():
            vbucket = self.vbuckets.get(vb)
            if vbucket is not None and vbucket.readers:
                vbucket.advanced()
        np.copyto(self._durable_high, column)
