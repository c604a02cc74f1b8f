"""Reports to the model of a simulated node: every durable change of the default collection, and every state.

The observer reads the store's columns, which have superseded versions as well: a change that no stream will ever show
may still be the target of a rollback.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.simulation.histories import Broken, Change, Held, Histories, Ownership, branch_of
from headwater.node.storage.quarantine import LOST
from headwater.node.storage.records import StoredDocument
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from harness.simulation.host import Host
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.committer import Committer
    from headwater.node.served import ServedBucket
    from headwater.node.storage.api import Storage
    from headwater.node.vbucket.vbucket import VBucket


class Placed:
    """A bucket on a host: its parts while the host serves it, and as they were when its process ended."""

    def __init__(self, host: Host, bucket: str) -> None:
        self.host, self.name, self._bucket = host, host.name, bucket

    @property
    def is_served(self) -> bool:
        """True if a running process serves it."""
        return self.host.served(self._bucket) is not None

    @property
    def served(self) -> ServedBucket:
        """The bucket as its node serves it."""
        return self.host.server.buckets[self._bucket]

    @property
    def bucket(self) -> Bucket:
        """The bucket's vbuckets."""
        return self.served.bucket

    @property
    def store(self) -> Storage:
        """The bucket's store."""
        return self.bucket.store

    @property
    def committer(self) -> Committer:
        """The bucket's committer, which reports durable batches."""
        return self.served.committer


class Observer:
    """A watch over one bucket of one host.

    Args:
        histories, owners: the model; owners by vbucket.
    """

    def __init__(self, host: Placed, histories: Histories, owners: dict[int, Ownership]) -> None:
        self.host = host
        self._histories, self._owners = histories, owners
        self._read: dict[int, int] = {}  # vbucket: seqno up to which its rows were looked at
        self._states: dict[int, tuple[State | None, int]] = {}
        self._authored: set[tuple[int, int]] = set()  # (vbucket, uuid) that this node was active in
        self._map_changes = -1
        self._durable_before: dict[int, int] = {}

    def started(self) -> None:
        """Note that a process has begun: all data on its disk is compared again."""
        host = self.host
        before, self._durable_before = self._durable_before, {}
        self._read.clear()
        self._states = dict.fromkeys(self._owners, (None, 0))
        self._map_changes = -1
        for owner in self._owners.values():
            owner.began(host.name)
        host.committer.on_durable.append(self.durable)
        for vb, seqno in before.items():
            found = host.bucket.vbuckets.get(vb)
            if found is None or found.high_seqno < seqno:
                now = "gone" if found is None else found.high_seqno
                raise Broken(f"kept: {host.name} had vbucket {vb} to {seqno}, it is {now} now")
        self.durable()
        self._look_at_states(restarted=True)

    def gone(self) -> None:
        """Note that the process is about to die: its durable changes at this moment must be there after the next
        start.
        """
        store = self.host.store
        durable, staged = store.committing.records, store.staging.records
        self._durable_before = {vb: store.index.durable_seqno(vb) for vb, at in durable.items() if staged.get(vb) is at}

    def vanished(self) -> None:
        """Note that the bucket was dropped here: the node owns none of its vbuckets any more."""
        self._durable_before = {}
        self._states = dict.fromkeys(self._owners, (None, 0))
        for owner in self._owners.values():
            owner.demoted(self.host.name)
            owner.not_active_on_disk(self.host.name)

    def event(self) -> None:
        """Report states and logs after an event in the process."""
        if self.host.bucket.map_changes != self._map_changes:
            self._map_changes = self.host.bucket.map_changes
            for vb, seqno in self._read.items():
                self._read[vb] = min(seqno, self.host.store.index.durable_seqno(vb))
            self._look_at_states(restarted=False)

    def durable(self) -> None:
        """Report the changes of a durable batch; a bucket that is being dropped is ignored."""
        if not self.host.is_served:
            return
        store = self.host.store
        for vb in self._owners:
            records = [store.committing.records.get(vb), *store.staging.records_on_the_way(vb)]
            if not any(record is not None and record.state == State.ACTIVE for record in records):
                self._owners[vb].not_active_on_disk(self.host.name)
            if records[0] is not None:
                self._owners[vb].on_disk(self.host.name, records[0].failover)
            vbucket = self.host.bucket.vbuckets.get(vb)
            if vbucket is not None and store.index.durable_seqno(vb) > self._read.get(vb, 0):
                self._look_at_rows(vbucket)
            if purged := store.index.purge_seqno(vb):
                self._histories.purged(vb, purged)

    def _look_at_rows(self, vbucket: VBucket) -> None:
        vb, store, log = vbucket.id, self.host.store, vbucket.failover.entries
        columns = store.index.columns[vb]
        first = store.index.rows_up_to(vb, self._read.get(vb, 0))
        last = store.index.rows_up_to(vb, store.index.durable_seqno(vb))
        for row in range(first, last):
            if columns.loc[row] == LOST:
                continue
            document = StoredDocument.decode(store.slots.frame(int(columns.loc[row])), durable=True)
            if document.collection:  # the system's own as well: prepares, events
                continue
            uuid = branch_of(log, document.seqno)
            if uuid is not None and (vb, uuid) in self._authored:
                self._histories.wrote(self.host.name, vb, uuid, document.seqno, change_of(document))
            else:
                self._histories.shown(self.host.name, vb, log, document.seqno, change_of(document))
        self._read[vb] = store.index.durable_seqno(vb)

    def _look_at_states(self, *, restarted: bool) -> None:
        for vb, owner in self._owners.items():
            vbucket = self.host.bucket.vbuckets.get(vb)
            state = None if vbucket is None else vbucket.state
            # It may have been something else in between, within one turn of the loop: then it has a new branch.
            now = state, vbucket.failover.newest.vb_uuid if vbucket is not None and state is State.ACTIVE else 0
            if now == self._states[vb]:
                continue
            self._states[vb] = now
            if state in (None, State.REPLICA, State.PENDING):
                owner.demoted(self.host.name)
            if vbucket is not None:
                owner.shows(self.host.name, vbucket.failover.entries)
            if vbucket is not None and state is State.ACTIVE:
                newest = vbucket.failover.newest
                self._authored.add((vb, newest.vb_uuid))
                # What was received of an unfinished snapshot belongs to the new branch from here on (failover 1).
                self._read[vb] = min(self._read.get(vb, 0), newest.seqno)
                log, high, clean = vbucket.failover.entries, vbucket.high_seqno, self.host.store.clean
                owner.became_active(self.host.name, log, high, restarted=restarted, clean=clean)
                if restarted:
                    self.durable()

    def held(self, vb: int, collection: int = 0) -> Held:
        """Return the durable newest versions of a collection that a vbucket has here."""
        found: dict[bytes, tuple[int, Change]] = {}
        with self.host.store.view(vb, choice=np.array([collection], np.uint64)) as view:
            while not view.nothing:
                document = StoredDocument.decode(view.next_frame(), durable=True)
                found[document.key] = (document.seqno, change_of(document))
        return found

    def check(self) -> None:
        """Check every vbucket here against the histories."""
        for vb in self._owners:
            vbucket = self.host.bucket.vbuckets.get(vb)
            if vbucket is None or self.host.store.index.durable_seqno(vb) != vbucket.high_seqno:
                continue
            if vbucket.high_seqno > self._read.get(vb, 0):
                self._look_at_rows(vbucket)  # promoted within a snapshot: what it had of that is the new branch's
            log, complete, held = vbucket.failover.entries, vbucket.complete_seqno, self.held(vb)
            for seqno, change in held.values():
                self._histories.shown(self.host.name, vb, log, seqno, change)
            self._histories.check_complete(self.host.name, vb, log, held, complete)


def change_of(document: StoredDocument) -> Change:
    """Return the model's form of a stored change."""
    return Change(
        document.key,
        None if document.deleted else document.value,
        document.cas,
        document.rev_seqno,
        document.flags,
        document.delete_time if document.deleted else document.expiry,
    )
