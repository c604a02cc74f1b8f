"""A vbucket of this node: state, failover table, the snapshot it is receiving, and who reads its changes.

The documents and the seqnos live in the store; here is what gives them meaning. Whatever changes here is staged as a
record of the same log, between the changes before and after it, so that recovery is replay and nothing can disagree.

    any -> another state    the streams that read it end with StateChanged; becoming active begins a new branch
    rollback                streams end with Rollback; branches above the point are forgotten
    drop                    streams end with StateChanged; nothing of it is left

Source: failover 1 (when entries are created) and 3 (states and transitions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from headwater.kernels.index import CAS
from headwater.node.storage.records import VBucketRecord
from headwater.protocol.failover import FailoverTable
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.storage.store import Store


class Reader(Protocol):
    """Somebody who reads a vbucket's changes and must hear when that comes to an end.

    `position`: the seqno up to which it lacks nothing; tombstones above it are not purged.
    """

    position: int

    def advanced(self) -> None:
        """More of the vbucket is durable."""

    def state_changed(self) -> None:
        """The vbucket has another state, or is gone."""

    def rolled_back(self) -> None:
        """The vbucket gave up a part of its history."""


class VBucket:
    """One vbucket; made by `create` or `recover`.

    Attributes:
        id: 0 to 1023.
        state: active, replica, pending or dead.
        failover: the branches of its history, newest first.
        snapshot_start, snapshot_end: the range being received from a producer; of an active vbucket, both the high
            seqno when it became active.
        gate: the batch that makes the latest record durable.
        readers: those to be told of changes; streams enter and leave by themselves.
    """

    def __init__(
        self, vbucket: int, store: Store, wrote: Callable[[], int], *, state: State, failover: FailoverTable
    ) -> None:
        self.id = vbucket
        self.state = state
        self.failover = failover
        self.snapshot_start = 0
        self.snapshot_end = 0
        self.gate = 0
        self.readers: set[Reader] = set()
        self._store = store
        self._wrote = wrote
        self._complete_seqno = 0

    @classmethod
    def create(
        cls, vbucket: int, store: Store, wrote: Callable[[], int], *, state: State, new_uuid: Callable[[], int]
    ) -> VBucket:
        """A vbucket that this node did not have: empty, with one branch from seqno 0."""
        made = cls(vbucket, store, wrote, state=state, failover=FailoverTable(new_uuid=new_uuid))
        made._stage()
        return made

    @classmethod
    def recover(
        cls,
        record: VBucketRecord,
        vbucket: int,
        store: Store,
        wrote: Callable[[], int],
        *,
        clean: bool,
        new_uuid: Callable[[], int],
    ) -> VBucket:
        """The vbucket as its last record tells, after the store was opened.

        After an unclean stop an active vbucket begins a new branch: somebody may have been told of changes that no
        longer exist. At the high seqno if the snapshot it had received was whole, else where that snapshot began.
        """
        table = FailoverTable(record.failover, new_uuid=new_uuid)
        found = cls(vbucket, store, wrote, state=State(record.state), failover=table)
        found.snapshot_start, found.snapshot_end = record.snapshot_start, record.snapshot_end
        found._complete_seqno = min(record.snapshot_start, found.high_seqno)
        table.sanitize(found.high_seqno)
        if found.state is State.ACTIVE and not clean:
            found.failover.create(found.complete_seqno)
        if table.entries != record.failover:
            found._stage()
        return found

    @property
    def high_seqno(self) -> int:
        """The newest seqno given, durable or not."""
        return self._store.high_seqno(self.id)

    @property
    def durable_seqno(self) -> int:
        """The newest seqno on disk: as far as anybody may see."""
        return self._store.durable_seqno(self.id)

    @property
    def purge_seqno(self) -> int:
        """The highest tombstone seqno that compaction has dropped."""
        return self._store.purge_seqno(self.id)

    @property
    def complete_seqno(self) -> int:
        """The end of the last snapshot that was received whole; of an active vbucket, every seqno ends one."""
        return self.high_seqno if self.high_seqno >= self.snapshot_end else self._complete_seqno

    @property
    def is_receiving_snapshot(self) -> bool:
        """Whether the snapshot in hand lacks its end: what is there is no consistent state yet."""
        return self.high_seqno < self.snapshot_end

    def is_exact(self, seqno: int) -> bool:
        """Whether the store can show the vbucket as it was at `seqno`.

        What was received from a producer is consistent at the ends of its snapshots only, and where those were is not
        kept; what this node wrote itself is, until compaction has dropped the versions of then.
        """
        return self.state is State.ACTIVE and seqno >= self.snapshot_end and self._store.exact(self.id, seqno)

    def set_state(self, state: State, *, new_branch: bool = True) -> bool:
        """Go to another state; False, and nothing happens, if it is in that state already.

        Args:
            state: where to go.
            new_branch: whether becoming active begins a branch. Not so at the end of a DCP takeover: the history
                goes on where the old owner stopped.
        """
        if state == self.state:
            return False
        if state is State.ACTIVE and new_branch:
            # What was received of an unfinished snapshot stays, but belongs to the new branch (failover 1).
            self.failover.create(self.complete_seqno)
        if state is State.ACTIVE:
            # From here on every seqno is one of our own, and ends a state that can be told (see is_exact).
            self._complete_seqno = self.snapshot_start = self.snapshot_end = self.high_seqno
        self.state = state
        self._stage()
        self._tell(lambda reader: reader.state_changed())
        return True

    def begin_snapshot(self, start_seqno: int, end_seqno: int) -> None:
        """A snapshot marker arrived: what follows is consistent again at `end_seqno` only."""
        self._complete_seqno = self.complete_seqno
        self.snapshot_start, self.snapshot_end = start_seqno, end_seqno
        self._stage()

    def follow(self, log: list[tuple[int, int]]) -> None:
        """Take over the failover log of the producer that this vbucket is a replica of."""
        self.failover.replace(log)
        self._stage()

    def roll_back(self, seqno: int) -> None:
        """Give up everything above `seqno` (the store may have to give up all, if it can not go back that far)."""
        self._store.rollback(self.id, seqno)
        reached = min(seqno, self.high_seqno)
        self.failover.prune(reached)
        self._complete_seqno, self.snapshot_start, self.snapshot_end = reached, reached, reached
        self._stage()
        self._tell(lambda reader: reader.rolled_back())

    def drop(self) -> None:
        """Forget the vbucket and all it holds; its streams end as for a state change (dcp 2.6)."""
        self.state = State.DEAD
        self._store.drop(self.id)
        self.gate = self._wrote()
        self._tell(lambda reader: reader.state_changed())

    def advanced(self) -> None:
        """Tell the readers that more is durable."""
        self._tell(lambda reader: reader.advanced())

    def record(self) -> VBucketRecord:
        """What must survive a restart."""
        return VBucketRecord(
            state=int(self.state),
            failover=self.failover.entries,
            snapshot_start=self.snapshot_start,
            snapshot_end=self.snapshot_end,
            max_cas=int(self._store.table[self.id, CAS]),
        )

    def _stage(self) -> None:
        self._store.stage_record(self.id, self.record())
        self.gate = self._wrote()

    def _tell(self, what: Callable[[Reader], None]) -> None:
        """Tell every reader; some leave while they are told."""
        for reader in tuple(self.readers):
            what(reader)
