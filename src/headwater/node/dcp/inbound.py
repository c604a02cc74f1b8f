"""One replica's inbound stream: applies the producer's messages to the vbucket.

The protocol object (protocol/dcp/consumer.py) has checked every message. Changes and markers are staged in the order of
the wire, so that after a crash a replica has exactly the numbers with which it can resume: seqno, snapshot, failover
log (dcp 9: "persist ... atomically with the data"). Source: dcp 9; failover 3 and 4.
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
    """Return True if a connection by which a bucket follows another node must carry every version.

    A member of a cluster always requests it: its producer sends all versions only while the bucket keeps a history,
    which may begin later. A producer that is no member does not know about the history here, and would send them
    always.
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
        refetches: True if all changes after the gap must be sent again, because nothing else closes it.
        rollbacks: number of rollbacks that the producer demanded; changes: number of changes that Python applied one by
            one.
    """

    entry: ConsumerStream

    def __init__(
        self,
        vbucket: VBucket,
        bucket: Bucket,
        left: Callable[[InboundStream, str], None],
        acknowledge: Callable[[InboundStream, int], None],
    ) -> None:
        self.vbucket = vbucket
        self.rollbacks: int = 0
        self.refetches: bool = False
        self._bucket = bucket
        self._left = left
        self._acknowledge = acknowledge
        self._acknowledged = 0
        # One inbound stream for a vbucket, on any connection: two producers would interleave their seqnos (dcp 2.2,
        # status 02).
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
        """End the stream; the vbucket may have another one."""
        if self.vbucket.inbound is self:
            self.vbucket.inbound = None

    def follow(self, log: FailoverLog) -> None:
        """Begin to follow a producer that accepted the request: "a replica overwrites its table with the log" (failover
        1, replace).

        The changes after a gap are undone only now: a producer that refuses would send nothing to replace them.

        Raises:
            StorageError: the store can't roll back to the start of the stream (a compaction removed the state). Nothing
                is undone, and the next stream starts from another seqno.
        """
        if self.refetches:
            # A compaction since the request has raised the floor: rolled back further than the stream begins, the copy
            # would have a hole between the two.
            if self.position != self.entry.request_position:
                raise StorageError("the state before the gap, where the stream begins, is not in the store any more")
            self.refetches = False
            self.vbucket.roll_back(self.vbucket.gap.whole_seqno)
        self.vbucket.follow(list(log))
        # The producer forgets acknowledgements with the old stream, so what is on the disk is acknowledged again
        # (decision 0068).
        self._acknowledged = 0
        self.prepares_durable()

    def roll_back(self, seqno: int) -> None:
        """Undo the changes after `seqno`, which the producer does not share."""
        self.rollbacks += 1
        self.refetches = False  # given up is what lies behind the gap, and more
        self.vbucket.roll_back(seqno)

    def obey(self, event: Marked | Boundary | Flushed) -> None:
        """Record a new consistent state: a snapshot begins, or (UPR) a snapshot is complete, or all data is dropped.

        Does nothing after a takeover: the stream of the vbucket may still end, and in UPR an end is a boundary.
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
                # With the data the tombstones go, so the vbucket begins a history: a reader of the one before would be
                # let on from a seqno it holds, and told by no change that what it holds is gone.
                self.vbucket.roll_back(0)
                self.vbucket.pass_boundary(goes_on=True)
        failpoint("replica.marker")

    def apply(self, frame: Frame, *, deleted_user_xattrs: bool, collections: bool = False) -> None:
        """Apply one change that the kernel left to Python."""
        change = read_change(frame, deleted_user_xattrs=deleted_user_xattrs, collections=collections)
        stage(self._bucket, self.vbucket.id, change)

    def change_collections(self, event: ManifestEvent, seqno: int) -> None:
        """Apply a system event; documents of a dropped collection are hidden from its seqno on."""
        vb = self.vbucket.id
        self.vbucket.add_event(event, seqno, self._bucket.next_cas(vb))
        # A replica learns of a manifest by system events alone (kv.md 4); the node's own list must follow, or a
        # promotion would serve unknown collections.
        self._bucket.collections.look_at(vb)

    def change_durability(self, message: Prepare | Commit | Abort, *, collections: bool) -> bool:
        """Apply a prepare, a commit or an abort.

        Returns False for the commit of a prepare that is missing (an older one of its key may exist) or damaged, so
        that the prepare is fetched again.
        """
        if not collections:
            message = replace(message, key=b"\0" + message.key)
        vbucket, prepares, now = self.vbucket, self.vbucket.prepares, self._bucket.now()
        key = key_of(message.key)
        if isinstance(message, Prepare):
            # An older prepare of the key may be over without a mark: in front of a new one it would still count as
            # waiting.
            prepares.settle(now)
            prepares.add(message)
            self._bucket.durable_writes.held.add(vbucket.id)
        elif isinstance(message, Abort):
            prepares.abort(key, now, message.abort_seqno)
        # The seqno is compared as well: with an older prepare of the key, the document would get that one's value under
        # the newer seqno.
        elif not prepares.can_commit(key, message.prepared_seqno):
            return False
        else:
            prepares.commit(key, now, message.commit_seqno)
        return True

    def prepares_durable(self) -> None:
        """Acknowledge the prepares that are on disk and lie in whole snapshots (dcp 10).

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
        """A description of the producer's changes that the replica lacks, for people; empty if it lacks none."""
        if lost := self.vbucket.damaged_changes:
            return f"{lost} changes are damaged on its disk"
        refused = self.vbucket.refused_changes
        return f"{refused} changes were refused and are missing" if refused else ""

    def set_state(self, state: State) -> Status:
        """Take the state that the producer hands over, step by step: "no failover entry", and the stream stays
        (failover 3).
        """
        vbucket = self.vbucket
        if vbucket.state is State.ACTIVE:  # its clients' by now: the former owner has no say in it any more
            return Status.SUCCESS if state is State.ACTIVE else Status.EINVAL
        if state is State.ACTIVE and vbucket.is_receiving_snapshot:
            return Status.EINVAL  # it would serve what is no consistent state
        if state in (State.PENDING, State.ACTIVE) and self.lacks:
            # It lacks what the owner has, whose copy goes once this one owns the vbucket. As long as it is not pending
            # the owner serves on; else it would be dead for a moment, and have aborted its durable writes.
            return Status.EINVAL
        # The stream stays through its own change of state (failover 3), so the vbucket must not end it as it does with
        # a producer's stream on becoming active.
        vbucket.inbound = None
        try:
            vbucket.set_state(state, new_branch=False)
        finally:
            vbucket.inbound = self
        failpoint("replica.state")
        return Status.SUCCESS
