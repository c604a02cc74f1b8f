"""A vbucket of this node: state, failover table, the snapshot that it receives, and its readers.

The documents and the seqnos are in the store; this object interprets them. Its own changes are staged as records in the
same log, between the documents before and after them. So recovery reads one log, and a vbucket can't disagree with its
documents.

    any -> another state    the streams that read it end with StateChanged; becoming active begins a new branch
    handover                active -> dead while another node takes over: its readers continue to read
    rollback                streams end with Rollback; branches above the point are forgotten
    drop                    streams end with StateChanged; all documents are gone

A replica has at most one inbound stream, from whichever connection its producer has (dcp 2.2).

Source: failover 1 (when entries are created), 3 (states and transitions) and 4 (takeover).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from headwater.errors import StorageError
from headwater.invariants import node_invariant
from headwater.kernels import index
from headwater.node.storage.records import EventParts, VBucketRecord, event_parts
from headwater.node.vbucket.collection_events import VBucketCollections
from headwater.node.vbucket.gap import Gap
from headwater.node.vbucket.history import ConsistentSeqnos
from headwater.node.vbucket.prepares import Key, VBucketPrepares
from headwater.protocol.dcp.failover import FailoverTable
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.wire.system_events import is_expressible
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.storage.api import Storage
    from headwater.wire.manifest import CollectionsManifest, ManifestEvent


class Reader(Protocol):
    """A reader of a vbucket's changes; the vbucket calls these methods when something happens to it."""

    @property
    def position(self) -> int:
        """The seqno up to which the reader has all changes; tombstones above it are not purged."""

    def advanced(self) -> None:
        """Note that more changes are durable."""

    def state_changed(self) -> None:
        """Note that the vbucket has another state, or was dropped."""

    def rolled_back(self) -> None:
        """Note that the vbucket undid a part of its history."""

    def damaged(self) -> None:
        """Note that a part of the vbucket can't be read any more."""

    @property
    def holds_removed_files(self) -> bool:
        """True if the store keeps files for the reader that a compaction has replaced."""

    def let_go(self) -> None:
        """Give up replaced files, because they have been kept for long enough."""


class Inbound(Protocol):
    """The stream by which a replica follows its producer."""

    @property
    def takes_over(self) -> bool:
        """True if the vbucket becomes active at the end of the stream."""

    def prepares_durable(self) -> None:
        """Note that prepares for which the producer waits may be on disk."""

    def vbucket_left(self, reason: str) -> None:
        """End the stream, because the vbucket became active, was dropped, or lost staged changes; `reason` is for the
        log.
        """


BACKED_UP = int(State.DEAD) + 1
"""A value in the index table in place of ACTIVE: the fast path leaves such a vbucket's requests to the plain path."""


class VBucket:
    """One vbucket; created by `create` or `recover`.

    Attributes:
        id: 0 to 1023.
        state: active, replica, pending or dead.
        failover: the failover table: the branches of the history, newest first.
        snapshot_start, snapshot_end: the snapshot that a producer sends at present; in an active vbucket, both are the
            high seqno at which it became active.
        deduplicated_seqno: the seqno up to which versions may be missing: the end of the last snapshot that came
            without History. While that snapshot is received, this may be above the high seqno.
        gate: the number of the batch that makes the latest record durable.
        consistent: the seqnos to which a replica can be rolled back.
        checkpoint: the id of the last checkpoint that a TAP producer sent whole (tap.md 5.1); 0 for none.
        gap: the changes of its producer that this vbucket refused, and still lacks.
        readers: the readers of its changes; streams add and remove themselves.
        inbound: the stream by which the vbucket follows a producer; None if there is none.
        handover: the handover of the vbucket to another node that is under way; None if there is none.
        collections: its collections, by the system events in its log.
        prepares: its waiting durable writes.
        is_backed_up: True if a handover takes so long that writes are refused for now (failover 4).
    """

    def __init__(
        self, vbucket: int, store: Storage, wrote: Callable[[], int], *, state: State, failover: FailoverTable
    ) -> None:
        self.id = vbucket
        self.state: State = state
        self.failover = failover
        self.snapshot_start: int = 0
        self.snapshot_end: int = 0
        self.deduplicated_seqno: int = 0
        self.gate: int = 0
        self.consistent: ConsistentSeqnos = ConsistentSeqnos()
        self.checkpoint: int = 0
        self.gap: Gap = Gap()
        self.readers: set[Reader] = set()
        self.inbound: Inbound | None = None
        self.handover: object | None = None
        self.is_backed_up: bool = False
        self.collections: VBucketCollections = VBucketCollections()
        self.prepares: VBucketPrepares = VBucketPrepares(vbucket, store, lambda: self.collections.alive)
        self._store = store
        self._wrote = wrote
        self._complete_seqno = 0
        self._acknowledged_seqno = 0

    @classmethod
    def create(
        cls, vbucket: int, store: Storage, wrote: Callable[[], int], *, state: State, new_uuid: Callable[[], int]
    ) -> VBucket:
        """Return a new vbucket: empty, with one branch from seqno 0."""
        vbucket_ = cls(vbucket, store, wrote, state=state, failover=FailoverTable(new_uuid=new_uuid))
        vbucket_._stage()
        return vbucket_

    @classmethod
    def recover(
        cls,
        record: VBucketRecord,
        vbucket: int,
        store: Storage,
        wrote: Callable[[], int],
        *,
        clean: bool,
        new_uuid: Callable[[], int],
    ) -> VBucket:
        """Return the vbucket that a record describes, after the store was opened.

        If the last stop was not clean, an active vbucket begins a new branch, because a reader may have seen changes
        that no longer exist. The branch begins at the high seqno if the last received snapshot was whole, otherwise at
        the start of that snapshot.
        """
        table = FailoverTable(record.failover, new_uuid=new_uuid)
        vbucket_ = cls(vbucket, store, wrote, state=State(record.state), failover=table)
        vbucket_._load(record)
        table.sanitize(vbucket_.high_seqno)
        # A replica keeps its table: what it lost comes again from its producer, under the same branch (failover 1,
        # "restart, vb replica: no").
        if vbucket_.state is State.ACTIVE and not clean:
            vbucket_.failover.create(vbucket_.complete_seqno)
        if table.entries != record.failover:
            vbucket_._stage()
        # Prepares that the log left open keep the vbucket on the plain path from the first request on.
        vbucket_.show_state()
        return vbucket_

    def restore(self, record: VBucketRecord | None) -> None:
        """Return to the state on disk, because the staged changes are lost.

        All streams from and to the vbucket end.

        Args:
            record: the newest record on disk; None if there is none: the vbucket becomes dead.
        """
        if record is None:
            # The record that created the vbucket was in the lost batch, so the vbucket never was.
            self.state = State.DEAD
        else:
            self.state = State(record.state)
            self.failover.replace(record.failover)
            self._load(record)
        # The inbound stream counts the lost changes as received and would go on behind them; the readers hold positions
        # in staged history.
        self.stop_following("a batch could not be written")
        self._tell(lambda reader: reader.state_changed())

    def _load(self, record: VBucketRecord) -> None:
        self.read_events()
        self.snapshot_start, self.snapshot_end = record.snapshot_start, record.snapshot_end
        lacked = record.deduplicated
        # Old records do not have this number; then all received changes count as received without History.
        self.deduplicated_seqno = record.snapshot_end if lacked is None else lacked
        self.consistent = ConsistentSeqnos(record.consistent)
        self.checkpoint = record.checkpoint
        self.gap = Gap(record.refused_changes, record.whole_seqno, record.refused)
        # Old records do not have the list; the start of the present snapshot is the next best value.
        begun = min(record.snapshot_start, self.high_seqno)
        self._complete_seqno = self.consistent.at_or_below(self.high_seqno) if record.consistent else begun

    def read_events(self) -> None:
        """Read the collections and the prepares from the log again; an event that is damaged in the log keeps its value
        in memory.
        """
        damaged = self.collections.events_at(self._store.quarantine.lost(self.id).tolist())
        events = [*damaged, *self._store.events(self.id)]
        self.collections = VBucketCollections(sorted(events, key=lambda event: event.seqno))
        self.prepares.read()

    def add_event(self, event: ManifestEvent, seqno: int, cas: int) -> int:
        """Stage a system event; return its seqno.

        Args:
            event: the event.
            seqno: its seqno; 0 for the next one.
            cas: its CAS.

        Raises:
            ArenaFull, DiskFull: there is no room for it, and nothing happens.
        """
        # The manifest says durably that marks, or events of version 2, are in use before the first of them is staged:
        # an older program would misread them.
        self._store.declarations.use_event(is_flat=not is_expressible(event))
        return self._stage_event(event, event_parts(event), seqno or None, cas)

    def become(self, manifest: CollectionsManifest, next_cas: Callable[[], int]) -> bool:
        """Stage the events that lead from the present collections to the collections of a manifest.

        Returns:
            True if any event was staged; False if the collections are those of the manifest already.

        Raises:
            ArenaFull: only some events had room. Call again after the next commit, to stage the rest.
        """
        steps = self.collections.steps_to(manifest)
        if steps:
            self._store.declarations.use_event(is_flat=not all(is_expressible(event) for event, _ in steps))
        for event, parts in steps:
            self._stage_event(event, parts, None, next_cas())
        return bool(steps)

    def _stage_event(self, event: ManifestEvent, parts: EventParts, seqno: int | None, cas: int) -> int:
        seqno = self._store.staging.event(self.id, parts, seqno=seqno, cas=cas)
        self.collections.add(seqno, event)
        return seqno

    @property
    def high_seqno(self) -> int:
        """The newest seqno, durable or not."""
        return self._store.index.high_seqno(self.id)

    @property
    def durable_seqno(self) -> int:
        """The newest seqno on disk; readers may see the changes up to it.

        While a snapshot without an announced end (UPR) is received, this is the end of the last whole snapshot instead:
        a reader could not be given the end of an unfinished one.
        """
        durable = self._store.table.item(self.id, index.DURABLE_HIGH)  # as the store's, which a drain asks for often
        # A UPR marker has no end, so a reader could not be given a marker with a true one; it waits for the boundary
        # behind the changes (dcp 14).
        return min(durable, self._complete_seqno) if self.snapshot_end == ENDLESS else durable

    @property
    def purge_seqno(self) -> int:
        """The purge seqno: tombstones at or below it may be missing, because a compaction has dropped them, here or at
        a producer.
        """
        return self._store.index.purge_seqno(self.id)

    @property
    def deleted_rev(self) -> int:
        """The highest revision of all tombstones so far, here or at a producer."""
        return self._store.table.item(self.id, index.DELETED_REV)

    @property
    def complete_seqno(self) -> int:
        """The end of the last snapshot that was received whole; in an active vbucket, the high seqno."""
        # After a restart inside a snapshot this is the persisted snapshot start, or a later end that the record knows
        # (failover 1).
        return self.high_seqno if self.high_seqno >= self.snapshot_end else self._complete_seqno

    @property
    def complete_durable_seqno(self) -> int:
        """The newest seqno at which the changes on disk are complete: a failover to this copy loses nothing up to it.

        A snapshot of old data has only the newest version of each key. While its end is missing, keys are missing that
        were written again near its end, so no part of the snapshot is complete. Changes after a refused change are not
        complete either.
        """
        durable = self.durable_seqno
        if durable < self.snapshot_end:  # of two seqnos the older one may be the last that is on disk
            complete = self._complete_seqno
            durable = complete if complete <= durable else self.consistent.at_or_below(durable)
        # An operator ranks copies by this number. A copy that counted changes behind its gap would win over one that
        # has them all.
        return min(durable, self._before_gap) if self.has_gap else durable

    @property
    def readable_seqno(self) -> int:
        """The value of `complete_durable_seqno`, but at most the seqno before the first change that is damaged
        on disk.
        """
        lost_seqnos = self._store.quarantine.lost(self.id)
        return (
            min(self.complete_durable_seqno, int(lost_seqnos[0]) - 1)
            if len(lost_seqnos)
            else self.complete_durable_seqno
        )

    @property
    def acknowledged_seqno(self) -> int:
        """The seqno up to which this copy may have acknowledged prepares: `readable_seqno`, or the value that this had
        before damage was found, if that is higher.

        Confirmed durable writes up to this seqno may depend on this copy, although a failover ranks the copy by its
        readable seqno.
        """
        # It never falls when damage is found: the owner and this copy may have been the majority of a confirmed write
        # behind the damage, which a failover to a third copy would give up silently.
        return max(self._acknowledged_seqno, self.readable_seqno)

    @property
    def damaged_changes(self) -> int:
        """The number of the vbucket's changes that are damaged on disk, and can't be read."""
        return len(self._store.quarantine.lost(self.id))

    @property
    def is_receiving_snapshot(self) -> bool:
        """True if the end of the present snapshot has not been received, so that the state is not consistent."""
        return self.high_seqno < self.snapshot_end

    def ends_snapshot(self, seqno: int) -> bool:
        """Return True if the vbucket's state at `seqno` is consistent, or will be at the end of the present
        snapshot.
        """
        # Below `snapshot_end` an active vbucket has what it received as a copy; above it every seqno is a state of its
        # own.
        if self.state is State.ACTIVE and seqno >= self.snapshot_end:
            return True
        return seqno in (self.snapshot_end, self.complete_seqno) or self.consistent.at_or_below(seqno) == seqno

    def is_exact(self, seqno: int) -> bool:
        """Return True if the store can show the vbucket as it was at `seqno`.

        Changes from a producer are consistent only at the ends of its snapshots, which are not stored. Changes that
        this node wrote itself are consistent at every seqno, until a compaction drops the old versions.
        """
        return self.state is State.ACTIVE and seqno >= self.snapshot_end and self._store.index.exact(self.id, seqno)

    @property
    def versions_after(self) -> int:
        """The seqno above which every version is in the log, and at which the state can be shown; ENDLESS in a replica
        or pending vbucket.

        The log has every version that this vbucket wrote while active, as far as the versions are above the rollback
        floor of compaction. Of the changes received from a producer, it has every version after the last snapshot that
        came without History. A replica offers no versions, because its producer decides where its snapshots end. A dead
        vbucket that was handed over still offers the versions that it has.
        """
        return ENDLESS if self.state in (State.REPLICA, State.PENDING) else self.held_versions_after

    @property
    def held_versions_after(self) -> int:
        """The seqno above which this node's log has every version, as far as changes were received."""
        return max(self.deduplicated_seqno, self._store.index.rollback_floor(self.id))

    def set_state(self, state: State, *, new_branch: bool = True) -> bool:
        """Change the state; do nothing and return False if it is the present state already.

        Args:
            state: the new state.
            new_branch: True if becoming active begins a branch; False at the end of a DCP takeover, where the history
                of the old owner continues.

        Raises:
            ArenaFull, DiskFull: the record of the new state has no room, and nothing happens.
        """
        # A repeated SET_VBUCKET is no new branch and ends no stream (failover 1, 3): a mover repeats it after a lost
        # answer.
        if state == self.state:
            return False
        # The check comes before the first change of memory: a vbucket that is active in memory alone would acknowledge
        # writes that a restart finds in a replica.
        self._store.staging.check_record_room()  # else it would be so in memory only
        if state is State.ACTIVE and new_branch:
            # The received part of an unfinished snapshot stays, but belongs to the new branch (failover 1). So do the
            # changes behind a gap: a consumer that got them from the owner also has the changes that are missing here.
            whole = self._before_gap if self.has_gap else ENDLESS
            # A branch from the high seqno would declare a half-received snapshot to be common history, and a consumer
            # that has the rest of it from the former owner would not be sent back (failover 1, 2).
            self.failover.create(min(self.complete_seqno, whole))
        if state is State.ACTIVE:
            # This must come before `snapshot_end` below is set to the high seqno, which it compares.
            self._settle_versions()
            self.checkpoint = 0  # the next changes come from clients, not from a producer
            self.gap = Gap()  # this copy is the owner now, so its changes are the only ones
            # From here on this node assigns every seqno, and each one ends a consistent state (see is_exact).
            self._complete_seqno = self.snapshot_start = self.snapshot_end = self.high_seqno
            # The producer announced purges up to the end of a snapshot that never came whole; tombstones above the high
            # seqno were never here to be missing.
            self._store.lacks_tombstones(self.id, 0)
            # A producer that went on writing here would be a second owner: its seqnos would collide with those of our
            # clients (failover 3, inbound streams are closed).
            self.stop_following("it became active")
            begun, high = self.failover.newest.seqno, self.high_seqno
            is_right = begun <= high or not new_branch  # after a takeover, the newest branch is the former owner's
            node_invariant(is_right, "vbucket {}: a branch from {}, above seqno {}", self.id, begun, high)
            node_invariant(not self.is_receiving_snapshot, "vbucket {} is active inside a snapshot", self.id)
        # `state` is still the old one here: `_leave_active` notes the changes that an active vbucket wrote itself as
        # states to which a rollback can return.
        self._leave_active()
        self.state = state
        self._stage()
        # Behind the record: a stream that ends here and is asked for again at once finds the new state in the log and
        # in memory.
        self._tell(lambda reader: reader.state_changed())
        return True

    def _settle_versions(self) -> None:
        """Set `deduplicated_seqno` for the received changes, because no more changes come from a producer.

        Changes above the end of the snapshot came by TAP, which sends no versions. If there is a gap, a version may be
        missing anywhere.
        """
        high = self.high_seqno
        is_whole = high <= self.snapshot_end and not self.has_gap
        self.deduplicated_seqno = min(self.deduplicated_seqno, high) if is_whole else high

    def hand_over(self, now: int) -> None:
        """Stop accepting writes, because the node that takes over is ready (failover 4, step 8).

        "Outbound streams are not ended": they send the rest.

        Args:
            now: Unix seconds.
        """
        self._store.staging.check_record_room()  # before any abort: without room, this node stays the owner
        # The aborts are staged while the vbucket is active, in front of the record that says dead: the takeover stream
        # carries them to the new owner.
        self._abort_prepares(now)
        self._leave_active()
        # No reader hears of this change: the takeover stream and those of other replicas drain what was written until
        # now (failover 3, active to dead).
        self.state = State.DEAD
        self._stage()

    def handed_over(self) -> None:
        """End the streams after a handover that is finished, or broken off while no vbucket is active here.

        The streams were left open to send the rest. Without this call they would now stay open and silent, and their
        consumers would not look for later changes at the new owner.
        """
        self._tell(lambda reader: reader.state_changed())

    def take_back(self) -> None:
        """Become active again, because the node that should have taken over refused. No other node has written to the
        vbucket, so no new branch begins.

        Raises:
            ArenaFull, DiskFull: the record has no room, and nothing happens: the mover gives the vbucket back.
        """
        node_invariant(self.state is State.DEAD, "vbucket {}: taken back while {}", self.id, self.state.name)
        self._store.staging.check_record_room()  # else it would be active in memory only, and dead after a restart
        # Nobody else became active, so this is no new owner, and a new branch would send every consumer through a
        # rollback test for nothing.
        self.state = State.ACTIVE
        self._stage()
        self._tell(lambda reader: reader.state_changed())

    def back_up(self, backed_up: bool) -> None:
        """Refuse writes with ETMPFAIL if `backed_up` is True, so that a takeover can end; otherwise accept them
        again.
        """
        was_backed_up, self.is_backed_up = self.is_backed_up, backed_up
        self.show_state()
        if was_backed_up and not backed_up and self.state is State.ACTIVE:
            self.gate = self._wrote()  # the handover failed; a change of the collections may have skipped this vbucket

    def show_state(self) -> None:
        """Decide which path serves an active vbucket: the fast path, or, while the vbucket is backed up or has waiting
        prepares, the plain path, which checks more than the state.
        """
        if self.state is State.ACTIVE:
            plainly = self.is_backed_up or self.prepares.pending
            # Staging a record writes the other states there; BACKED_UP alone is not in the log.
            self._store.table[self.id, index.STATE] = BACKED_UP if plainly else int(State.ACTIVE)

    def _abort_prepares(self, now: int) -> None:
        """Abort the waiting prepares, because the vbucket moves to a node that may not know of them.

        `DurableWrites.settle_before` has already settled the prepares that a client may have seen confirmed.
        """
        # If there is no room for the aborts, the handover continues without them: otherwise a vbucket could never leave
        # an owner whose disk is full.
        with suppress(StorageError):  # the new owner may then commit the prepare; its client got no answer yet
            for key in tuple(self.prepares.pending):
                self.prepares.abort(key, now)

    def stop_following(self, reason: str) -> None:
        """End the inbound stream, if there is one."""
        # Cleared first, because `vbucket_left` may call this method again.
        inbound, self.inbound = self.inbound, None
        if inbound is not None:
            inbound.vbucket_left(reason)

    @property
    def resume_position(self) -> Position:
        """The position to send when requesting more from a producer (dcp 9, the resume rule).

        The branch is the newest one that began at or before the end of the present snapshot: the items of the snapshot
        belong to that branch, although some are older than it.
        """
        last, start, end = self.high_seqno, self.snapshot_start, self.snapshot_end
        # If the snapshot was received whole or not at all, the position is [last, last] (dcp 9, resume rule): an end
        # that was not reached could cause a rollback.
        if not start <= last < end or last == start:
            start = end = last
        log = self.failover.entries
        # With start 0 the uuid must be 0: a producer that checks strictly would refuse the uuid of a table that this
        # new copy drew itself (failover 2, rule 1).
        uuid = next((entry.vb_uuid for entry in log if entry.seqno <= end), 0) if last else 0
        return Position(self.id, uuid, last, start, end, log)

    @property
    def position_before_gap(self) -> Position:
        """The position to send to a producer so that all changes after the gap come again. Its seqno is the one that
        `roll_back` will reach.
        """
        # A compaction may have raised the rollback floor above the gap. The request must name the seqno that
        # `roll_back` will really reach; otherwise the new changes would not follow the ones that are kept.
        seqno = self._store.lowered_to(self.id, self._nearest(self.gap.whole_seqno))
        log = tuple(entry for entry in self.failover.entries if entry.seqno <= seqno)
        # The uuid is that of the branch at the seqno (failover 2.3): with a newer one the producer would count changes
        # as common that this copy never had.
        return Position(self.id, log[0].vb_uuid if log and seqno else 0, seqno, seqno, seqno, log)

    def begin_snapshot(
        self,
        start_seqno: int,
        end_seqno: int,
        purge_seqno: int = 0,
        deleted_rev: int = 0,
        *,
        has_versions: bool = False,
    ) -> None:
        """Begin the snapshot that a marker announces.

        If the snapshot replaces an unfinished one (dcp 9), the incomplete range still begins at the start of the
        unfinished snapshot.

        Args:
            start_seqno: the start in the marker.
            end_seqno: the end in the marker, where the next consistent state is; ENDLESS for UPR.
            purge_seqno: the seqno up to which the producer may lack tombstones. From then on this vbucket lacks them
                too, and must report that to readers that continue from a lower seqno (failover 2, step 2).
            deleted_rev: the highest revision of those tombstones; new keys start above it here too.
            has_versions: True if the snapshot has every version (History).
        """
        node_invariant(start_seqno <= end_seqno, "vbucket {}: snapshot [{}, {}]", self.id, start_seqno, end_seqno)
        node_invariant(self.state is not State.ACTIVE, "vbucket {} is active, and receives a snapshot", self.id)
        if self.is_receiving_snapshot:
            # Without this line, a producer that replaces [10, 20] by [15, 30] at seqno 17 would make 15 look like a
            # whole state, and a failover would branch there.
            start_seqno = min(self.snapshot_start, start_seqno)
        else:
            # The end of the snapshot before is the last place to which a rollback can go exactly; the record below
            # keeps it.
            self.consistent.note(self.high_seqno)
        # Taken before the new range replaces the old one, from which the property computes it.
        self._complete_seqno = complete = self.complete_seqno
        high = self.high_seqno
        node_invariant(complete <= high, "vbucket {}: complete up to {}, above seqno {}", self.id, complete, high)
        self.snapshot_start, self.snapshot_end = start_seqno, end_seqno
        if not has_versions:
            # Changes that an earlier marker announced, and that did not come, are part of this snapshot.
            self.deduplicated_seqno = max(min(self.deduplicated_seqno, high), end_seqno)
        # In the log this stands before the first change of the snapshot: a crash in the middle of it must not leave a
        # copy that lacks tombstones and does not know it (decision 0033).
        self._store.lacks_tombstones(self.id, purge_seqno, deleted_rev)
        self._stage()

    def pass_boundary(self, *, goes_on: bool) -> None:
        """Note a UPR boundary: the changes received so far are consistent. If `goes_on` is True, the stream continues,
        and a snapshot without an announced end begins.
        """
        # A UPR boundary comes behind its changes, so everything up to here is whole (dcp 14, "range being [first seqno,
        # last seqno]").
        self.snapshot_start = self.snapshot_end = self.deduplicated_seqno = self.high_seqno
        if goes_on:
            self.begin_snapshot(self.high_seqno, ENDLESS)
        else:
            self._stage()
        self.advanced()

    def pass_seqno(self, seqno: int) -> None:
        """Count all seqnos up to `seqno` as received, because the producer sends no change with them to this node (dcp
        2.18).
        """
        self._store.pass_seqno(self.id, seqno)
        # No row has this seqno, so only the record's high seqno can bring it back at a restart.
        self._stage()

    def note_deleted_rev(self, deleted_rev: int) -> None:
        """Note the highest revision of the producer's tombstones: new keys start above it here too."""
        if deleted_rev > self.deleted_rev:
            self._store.lacks_tombstones(self.id, self.purge_seqno, deleted_rev)
            self._stage()

    @property
    def refused_changes(self) -> int:
        """The number of changes of its producer that the vbucket refused, and still lacks."""
        return self.gap.changes

    @property
    def has_gap(self) -> bool:
        """True if the vbucket has changes after a missing one; False if no change is missing, or only newer changes
        than those in the vbucket.
        """
        return self.gap.changes > 0 and self.high_seqno > self.gap.whole_seqno

    @property
    def needs_all_anew(self) -> bool:
        """True if the gap closes only when the producer sends all changes after it again.

        False for a damaged vbucket: for that, the vbucket would have to give up everything that it can still show
        (decision 0107), and would not be ready for a takeover any sooner.
        """
        return self.has_gap and not self.gap.is_named and not self.damaged_changes

    @property
    def _before_gap(self) -> int:
        """The newest consistent state in which no change is missing; it is never inside a snapshot."""
        return self.consistent.at_or_below(self.gap.whole_seqno)

    def miss(self, whole_seqno: int, key: Key | None = None, seqno: int = 0) -> None:
        """Note that the vbucket refused a change of its producer; end the streams of its readers.

        The readers would otherwise get snapshots that seem whole but lack the change, and would resume after it at the
        owner.

        Args:
            whole_seqno: the seqno up to which no change is missing.
            key: the key of the change; None if it is not plausible.
            seqno: the seqno of the change; 0 if it is not plausible.
        """
        is_there = key is not None and key.collection in self.collections.alive
        self.gap.add(whole_seqno, key if is_there else None, seqno)
        # The record comes before any change behind the refused one: a crash then leaves the gap noted, or nothing
        # behind it.
        self._stage()
        # A stream of this copy passes its producer's markers on, and nothing in them could say that one change is
        # missing.
        self._tell(lambda reader: reader.state_changed())

    def close_gap(self) -> bool:
        """Close the gap if no refused change is missing any more (`Gap.is_closed`); return True if it was closed.

        Between a refused change and the newer version of its key, the states in this copy never existed at the owner: a
        later rollback does not stop there.

        Raises:
            ArenaFull, DiskFull: the record has no room, and nothing happens.
        """
        if not self.gap.is_closed(
            lambda key: self._store.seqno_of(self.id, key.key, key.collection), self.collections.alive
        ):
            return False
        # Without room for the record the gap would be closed in memory only, and would be back after a restart.
        self._store.staging.check_record_room()
        # The states noted behind the gap are forgotten, because each of them lacked the refused change.
        self.consistent.cut(self.gap.whole_seqno)
        self._complete_seqno = min(self._complete_seqno, self._before_gap)
        self.deduplicated_seqno = max(self.deduplicated_seqno, self.high_seqno)  # the refused version never comes
        self.gap = Gap()
        self._stage()
        return True

    def close_checkpoint(self, checkpoint: int) -> None:
        """Note that a TAP producer has sent a checkpoint whole: the feed can resume after it."""
        self.checkpoint = checkpoint
        self._stage()

    def follow(self, log: list[tuple[int, int]]) -> None:
        """Adopt the failover log of the producer that this vbucket follows; end the readers' streams if it is a new
        log.

        A consumer attributes changes to the branches in the log of its last stream (failover 2.3). The readers got the
        former log, so they must request their streams again to get the new one.

        The inbound stream begins after all changes here. If the vbucket has no change after a refused one, this closes
        its gap: the producer either sends the refused change again, or does not have it any more.

        Args:
            log: pairs of branch uuid and first seqno, newest first.
        """
        before = self.failover.entries
        # With changes behind the gap, the stream begins behind these changes and can't bring the missing ones; the gap
        # stays.
        if not self.has_gap:  # all refused changes come again, except those that the producer lost in a failover
            self.gap = Gap()
        self.failover.replace(log)
        # TAP checkpoint ids belong to the history of one producer (tap.md 5.1); another producer would skip changes.
        self.checkpoint = 0
        self._stage()
        # A stream that was resumed under the same log changes nothing for readers, and is the common case.
        if self.failover.entries != before:
            self._tell(lambda reader: reader.state_changed())

    def roll_back(self, seqno: int) -> int:
        """Undo all changes above `seqno`, or above the newest consistent state below it; return the new high seqno.

        "It may roll back further than asked, never less" (dcp 9). If `seqno` lies within a received snapshot, the
        rollback goes to an earlier consistent state. If the store no longer has the versions for that, it goes to 0.

        Raises:
            ArenaFull, DiskFull: there is no room for the rollback and its record; nothing changes.
        """
        self._store.staging.check_rollback_room()  # else the rows would be gone, and the record below be missing
        nearest, before = self._nearest(seqno), self.high_seqno
        node_invariant(nearest <= seqno, "vbucket {}: back to {}, {} was asked for", self.id, nearest, seqno)
        # This frame and the record below are in the same batch, because a batch is never closed within a turn of the
        # loop: a crash keeps both or neither.
        self._store.rollback(self.id, nearest)
        # The snapshot was given up, so no tombstones of it are missing; a purge seqno above the new high seqno no
        # longer counts.
        self._store.lacks_tombstones(self.id, 0)
        # Collections and prepares follow from the rows, and some of those are gone.
        self.read_events()
        # The store goes to 0 where compaction has dropped the versions that an exact return needs.
        reached = self.high_seqno
        most = min(before, seqno)
        node_invariant(reached <= most, "vbucket {}: back to {} leads to {}", self.id, most, reached)
        # All changes behind the refused change are undone, so the next stream brings the refused change again.
        if reached <= self.gap.whole_seqno or not reached:
            self.gap = Gap()
        self.consistent.cut(reached)
        self.checkpoint = 0
        # Branches above the point describe history that this vbucket holds no more (failover 1, prune).
        self.failover.prune(reached)
        self._complete_seqno, self.snapshot_start, self.snapshot_end = reached, reached, reached
        self.deduplicated_seqno = min(self.deduplicated_seqno, reached)
        # After the rollback this copy no longer vouches for the undone changes, even if it had acknowledged them.
        self._acknowledged_seqno = min(self._acknowledged_seqno, reached)
        self._stage()
        self._tell(lambda reader: reader.rolled_back())
        return reached

    def _nearest(self, seqno: int) -> int:
        """Return the newest consistent state at or below `seqno`."""
        # There is no change above `seqno`, so nothing must be undone, even if the list of states has lost this one.
        if seqno >= self.high_seqno and not self.is_receiving_snapshot:
            return self.high_seqno
        if self.state is State.ACTIVE and seqno >= self.snapshot_end:
            return seqno
        return self.consistent.at_or_below(seqno)

    def drop(self) -> None:
        """Drop the vbucket with its documents; its streams end as after a state change (dcp 2.6)."""
        # The inbound stream must not write behind the DROP frame: at a restart its changes would create the vbucket
        # again, without the changes before them.
        self.stop_following("it was deleted")
        self.state = State.DEAD
        self._store.drop(self.id)
        self.gate = self._wrote()
        self._tell(lambda reader: reader.state_changed())

    def advanced(self) -> None:
        """Tell the readers that more changes are durable."""
        self._tell(lambda reader: reader.advanced())

    def damaged(self, acknowledged_seqno: int) -> None:
        """Tell the readers that a part of the vbucket can't be read any more.

        Args:
            acknowledged_seqno: the value of the property `acknowledged_seqno` before the damage, which is kept.
        """
        self._acknowledged_seqno = acknowledged_seqno
        self._tell(lambda reader: reader.damaged())

    def record(self) -> VBucketRecord:
        """Return the vbucket's state as the record that the log keeps."""
        return VBucketRecord(
            state=int(self.state),
            failover=self.failover.entries,
            snapshot_start=self.snapshot_start,
            snapshot_end=self.snapshot_end,
            max_cas=int(self._store.table[self.id, index.CAS]),
            consistent=self.consistent.ranges,
            checkpoint=self.checkpoint,
            refused_changes=self.gap.changes,
            whole_seqno=self.gap.whole_seqno,
            refused=self.gap.refused,
            deduplicated=self.deduplicated_seqno,
        )

    def _leave_active(self) -> None:
        """If the vbucket is active, note that a rollback can return to any seqno that it wrote itself; this must be
        known later, when another node is the owner.
        """
        self.is_backed_up = False
        if self.state is State.ACTIVE:
            self.consistent.note(self.snapshot_end, self.high_seqno)
            if self.damaged_changes:  # an active vbucket has acknowledged all its writes, readable or not
                self._acknowledged_seqno = max(self._acknowledged_seqno, self.high_seqno)

    def _stage(self) -> None:
        self._store.staging.record(self.id, self.record())
        # The word in the index table that keeps the fast path out is overwritten by the state of each record.
        if self.is_backed_up or self.prepares.pending:
            self.show_state()  # the record says active, which would let writes in again
        self.gate = self._wrote()

    def _tell(self, what: Callable[[Reader], None]) -> None:
        """Call `what` with every reader; a reader may remove itself during its call."""
        # Hence the copy of the set.
        for reader in tuple(self.readers):
            what(reader)
