"""One replica's inbound stream, which applies the producer's messages to the vbucket.

The protocol object (protocol/dcp/consumer.py) has checked every message. Changes and markers are staged in the order of
the wire. So after a crash a replica has exactly the seqno, snapshot and failover log with which it can resume (dcp 9:
"persist ... atomically with the data"). Source: dcp 9; failover 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.failpoints import failpoint
from headwater.node.changes import stage
from headwater.node.vbucket.prepares import key_of
from headwater.protocol.dcp.consumer_changes import read_change
from headwater.protocol.dcp.events import Boundary, Flushed, Marked
from headwater.wire.dcp import Abort, Commit, Prepare, SnapshotFlag, StreamFlag
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.vbucket.vbucket import VBucket
    from headwater.protocol.dcp.consumer_stream import ConsumerStream
    from headwater.protocol.dcp.position import FailoverLog, Position
    from headwater.wire.header import Frame
    from headwater.wire.manifest import ManifestEvent


def wants_versions(bucket: Bucket, consumer_name: str) -> bool:
    """Return True if a bucket must request every version from a producer that it follows.

    A member of a cluster always does: its producer sends all versions only while the bucket keeps a history, which may
    begin later. A producer outside of the cluster does not know whether the bucket keeps a history, and would always
    send all versions; so the bucket requests them only while it keeps one.

    Args:
        bucket: the bucket that follows.
        consumer_name: this node's name as a member; empty outside of a cluster.
    """
    return bool(consumer_name or bucket.store.declarations.history)


class InboundStream:
    """The stream by which one vbucket follows its producer.

    Args:
        vbucket: the replica; its `inbound` is this stream until the stream is over.
        bucket: the bucket of the vbucket.
        left: called with the reason when the vbucket no longer needs the stream.
        acknowledge: called with the seqno up to which every prepare is on disk.

    Attributes:
        entry: the stream in the protocol object, set when it was added there.
        refetches: True if the stream begins before the vbucket's gap, because only then will the gap close.
        rollbacks: the number of rollbacks that the producer demanded.
    """

    entry: ConsumerStream

    def __init__(
        self,
        vbucket: VBucket,
        bucket: Bucket,
        on_leave: Callable[[InboundStream, str], None],
        acknowledge: Callable[[InboundStream, int], None],
    ) -> None:
        self.vbucket = vbucket
        self.rollbacks: int = 0
        self.refetches: bool = False
        self._bucket = bucket
        self._left = on_leave
        self._acknowledge = acknowledge
        self._acknowledged = 0
        # A vbucket has one inbound stream, on whichever connection: two producers would interleave their seqnos (dcp
        # 2.2, status 02).
        vbucket.inbound = self

    @property
    def takes_over(self) -> bool:
        """True if the mover requested a takeover."""
        return bool(self.entry.flags & StreamFlag.TAKEOVER)

    @property
    def position(self) -> Position:
        """The position to request from the producer."""
        return self.vbucket.position_before_gap if self.refetches else self.vbucket.resume_position

    def vbucket_left(self, reason: str) -> None:
        """End the stream, because the vbucket became active, was dropped, or lost staged changes."""
        self._left(self, reason)

    def close(self) -> None:
        """End the stream at the vbucket, unless the vbucket already follows another stream."""
        if self.vbucket.inbound is self:
            self.vbucket.inbound = None

    def follow(self, log: FailoverLog) -> None:
        """Begin to follow a producer that accepted the request: "a replica overwrites its table with the log" (failover
        1, replace).

        If the stream begins before a gap, the changes after the gap are undone only now, because a producer that
        refused the request would not have sent them again.

        Raises:
            StorageError: the store can't roll back to the start of the stream (a compaction removed the state). Nothing
                is undone, and the next stream starts from another seqno.
        """
        if self.refetches:
            # A compaction since the request may have raised the rollback floor. The rollback would then go further back
            # than the stream begins, and the changes in between would be missing.
            if self.position != self.entry.request_position:
                raise StorageError("the state before the gap, where the stream begins, is not in the store any more")
            self.refetches = False
            self.vbucket.roll_back(self.vbucket.gap.whole_seqno)
        self.vbucket.follow(list(log))
        # The producer forgot the old stream's acknowledgements, so prepares on disk are acknowledged again (decision
        # 0068).
        self._acknowledged = 0
        self.prepares_durable()

    def roll_back(self, seqno: int) -> None:
        """Undo the changes after `seqno`, which the producer does not share."""
        self.rollbacks += 1
        self.refetches = False  # the rollback undoes all changes after the gap, and more
        self.vbucket.roll_back(seqno)

    def obey(self, event: Marked | Boundary | Flushed) -> None:
        """Apply a message about snapshots: a snapshot begins, or (UPR) a snapshot is complete, or all data is dropped.

        Does nothing once the vbucket is active, after a takeover: its stream may still end, and in UPR an end is a
        boundary.
        """
        # A marker from the former owner would open the way for its changes over those of clients here.
        if self.vbucket.state is State.ACTIVE:
            return
        match event:
            case Marked(start_seqno=start, end_seqno=end, purge_seqno=purged, deleted_rev=deleted_rev):
                has_versions = bool(event.flags & SnapshotFlag.HISTORY)
                self.vbucket.begin_snapshot(start, end, purged, deleted_rev, has_versions=has_versions)
            case Boundary(goes_on=goes_on):
                self.vbucket.pass_boundary(goes_on=goes_on)
            case Flushed():  # "drop all data of vb" (dcp 2.11); the stream goes on
                # The tombstones are dropped with the data, so the vbucket begins a new history: otherwise a reader
                # could resume in the old one, and no change would tell it that its documents are gone.
                self.vbucket.roll_back(0)
                self.vbucket.pass_boundary(goes_on=True)
        failpoint("replica.marker")

    def apply(self, frame: Frame, *, deleted_user_xattrs: bool, collections: bool = False) -> None:
        """Apply one change that the kernel left to Python: stage it with the producer's seqno, CAS and revision."""
        change = read_change(frame, deleted_user_xattrs=deleted_user_xattrs, collections=collections)
        stage(self._bucket, self.vbucket.id, change)

    def change_collections(self, event: ManifestEvent, seqno: int) -> None:
        """Apply a system event; documents of a dropped collection are hidden from its seqno on."""
        vb = self.vbucket.id
        self.vbucket.add_event(event, seqno, self._bucket.next_cas(vb))
        # A replica learns of a manifest only by system events (kv.md 4). The bucket's own list must follow, because the
        # replica may become active.
        self._bucket.collections.look_at(vb)

    def change_durability(self, message: Prepare | Commit | Abort, *, collections: bool) -> bool:
        """Apply a prepare, a commit or an abort.

        Returns:
            False for a commit whose prepare is missing or damaged, so that the prepare must be fetched again; otherwise
            True.
        """
        if not collections:
            message = replace(message, key=b"\0" + message.key)
        vbucket, prepares, now = self.vbucket, self.vbucket.prepares, self._bucket.now()
        key = key_of(message.key)
        if isinstance(message, Prepare):
            # An older prepare of the key may be over without a mark; it must not count as waiting any more.
            prepares.settle(now)
            prepares.add(message)
            self._bucket.durable_writes.held.add(vbucket.id)
        elif isinstance(message, Abort):
            prepares.abort(key, now, message.abort_seqno)
        # The seqno is compared as well: if an older prepare of the key waits, the document would get its value.
        elif not prepares.can_commit(key, message.prepared_seqno):
            return False
        else:
            prepares.commit(key, now, message.commit_seqno)
        return True

    def prepares_durable(self) -> None:
        """Acknowledge the prepares that are on disk and in whole snapshots (dcp 10).

        Acknowledgements stop before a change that was refused or is damaged: it may be a prepare. A failover ranks this
        copy by the same seqno (decision 0107).
        """
        # Up to the last whole snapshot on the disk: "a replica acks a snapshot only when the complete snapshot was
        # received" (dcp 10).
        newest = self.vbucket.prepares.newest(self.vbucket.readable_seqno)
        if newest > self._acknowledged:
            self._acknowledged = newest
            self._acknowledge(self, newest)

    @property
    def lacks(self) -> str:
        """A sentence for people about the producer's changes that the replica lacks; empty if it lacks none."""
        if damaged := self.vbucket.damaged_changes:
            return f"{damaged} changes are damaged on its disk"
        refused = self.vbucket.refused_changes
        return f"{refused} changes were refused and are missing" if refused else ""

    def set_state(self, state: State) -> Status:
        """Take the state that the producer sets in a takeover, with "no failover entry", and without ending the stream
        (failover 3); return the status of the answer.

        EINVAL refuses a state that the vbucket can't take: it is active already, lacks changes, or is in the middle of
        a snapshot.
        """
        vbucket = self.vbucket
        if vbucket.state is State.ACTIVE:  # this node is the owner by now: the former owner can't set its state
            return Status.SUCCESS if state is State.ACTIVE else Status.EINVAL
        if state is State.ACTIVE and vbucket.is_receiving_snapshot:
            return Status.EINVAL  # the vbucket would serve a state that is not consistent
        if state in (State.PENDING, State.ACTIVE) and self.lacks:
            # This copy lacks changes that only the owner has, whose copy will be dropped after the takeover. Refused
            # here, before the copy is pending, the owner has not stopped serving nor aborted durable writes yet.
            return Status.EINVAL
        # The stream outlives this change of state (failover 3), so `set_state` must not find it: it would end it.
        vbucket.inbound = None
        try:
            vbucket.set_state(state, new_branch=False)
        finally:
            vbucket.inbound = self
        failpoint("replica.state")
        return Status.SUCCESS
