"""One inbound stream: what markers, changes, rollbacks and states do to the replica, and when the stream leaves it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headwater.node.dcp.inbound import InboundStream
from headwater.node.vbucket.vbucket import VBucket
from headwater.protocol.dcp.events import Boundary, Flushed, Marked
from headwater.protocol.dcp.failover import Claim, Rollback, decide
from headwater.protocol.dcp.position import ENDLESS
from headwater.wire import dcp
from headwater.wire.dcp import StreamFlag
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import StreamDesk, spoil

pytestmark = pytest.mark.usefixtures("replica")

VB = 1
LOG = ((0xABC, 0),)
ENTRY = SimpleNamespace(vbucket=VB, flags=0)


class Replica:
    """A vbucket and the stream by which it follows; `left`: why it left, each time."""

    def __init__(self, desk: StreamDesk, flags: int = 0) -> None:
        self.desk, self.left = desk, list[str]()
        self.vbucket: VBucket = desk.bucket.vbuckets[VB]
        self.acknowledged = list[int]()
        self.stream = InboundStream(
            self.vbucket,
            desk.bucket,
            lambda stream, reason: self.left.append(reason),
            lambda stream, seqno: self.acknowledged.append(seqno),
        )
        self.stream.entry = SimpleNamespace(vbucket=VB, flags=flags)  # type: ignore[assignment]
        self.stream.follow(LOG)

    def marked(self, start: int, end: int, purged: int = 0) -> None:
        self.stream.obey(Marked(ENTRY, start, end, 1, purged))  # type: ignore[arg-type]

    def changed(self, *seqnos: int) -> None:
        for seqno in seqnos:
            frame = dcp.Mutation(
                vbucket=VB, key=b"k%d" % seqno, value=b"%d" % seqno, cas=seqno << 16, by_seqno=seqno, rev_seqno=3
            ).frame()
            self.stream.apply(frame, deleted_user_xattrs=False)

    @property
    def range(self) -> tuple[int, int, int]:
        """High seqno, start and end of the snapshot in hand."""
        return self.vbucket.high_seqno, self.vbucket.snapshot_start, self.vbucket.snapshot_end


def test_a_vbucket_has_one_inbound_stream_until_that_is_over(desk: StreamDesk) -> None:
    replica = Replica(desk)
    assert replica.vbucket.inbound is replica.stream
    replica.stream.close()
    assert replica.vbucket.inbound is None


def test_a_stream_that_is_over_does_not_take_another_ones_place(desk: StreamDesk) -> None:
    replica = Replica(desk)
    other = InboundStream(replica.vbucket, desk.bucket, lambda stream, reason: None, lambda stream, seqno: None)
    replica.stream.close()
    assert replica.vbucket.inbound is other


def test_the_producers_log_becomes_the_replicas(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.stream.follow(((0xDEF, 5), *LOG))
    assert replica.vbucket.failover.entries == ((0xDEF, 5), (0xABC, 0))


def test_a_change_is_stored_with_the_producers_numbers(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 7)
    replica.changed(4, 7)
    found = desk.store.document(VB, b"k7")
    assert found is not None and (found.seqno, found.cas, found.rev_seqno, bytes(found.value)) == (7, 7 << 16, 3, b"7")
    assert replica.range == (7, 1, 7)


def test_what_is_asked_for_is_what_is_held(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 7)
    replica.changed(4)
    position = replica.stream.position
    assert (position.seqno, position.snapshot_start, position.snapshot_end, position.vb_uuid) == (4, 1, 7, 0xABC)


def test_a_boundary_makes_whole_what_came_before_it(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.stream.obey(Boundary(ENTRY, True))  # type: ignore[arg-type]
    assert replica.range == (0, 0, ENDLESS)
    replica.changed(1, 2)
    replica.stream.obey(Boundary(ENTRY, False))  # type: ignore[arg-type]
    assert replica.range == (2, 2, 2)


def test_a_reader_of_before_a_flush_begins_again_however_far_the_vbucket_has_come_since(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 2)
    replica.changed(1, 2)
    held = replica.stream.position
    replica.stream.obey(Flushed(ENTRY))  # type: ignore[arg-type]
    replica.marked(3, 9)
    replica.changed(3, 9)  # seqnos that go on; that what was held is gone, no change tells
    claim = Claim(held.seqno, ENDLESS, held.vb_uuid, held.snapshot_start, held.snapshot_end)
    decision = decide(claim, replica.vbucket.failover.entries, replica.vbucket.high_seqno)
    assert isinstance(decision, Rollback) and decision.seqno == 0


def test_a_flush_drops_the_data_begins_a_history_and_keeps_the_stream(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 2)
    replica.changed(1, 2)
    replica.stream.obey(Flushed(ENTRY))  # type: ignore[arg-type]
    assert desk.store.index.items(VB) == 0 and replica.vbucket.high_seqno == 0
    assert len(replica.vbucket.failover) == 1 and replica.vbucket.failover.entries != LOG
    assert replica.vbucket.inbound is replica.stream
    replica.changed(1)
    assert replica.vbucket.high_seqno == 1


def test_a_rollback_gives_up_what_the_producer_does_not_share_and_is_counted(desk: StreamDesk) -> None:
    replica = Replica(desk)
    for seqno in (1, 2, 3):
        replica.marked(seqno, seqno)
        replica.changed(seqno)
    replica.stream.roll_back(2)
    assert replica.vbucket.high_seqno == 2 and desk.store.document(VB, b"k3") is None
    assert replica.stream.rollbacks == 1


@pytest.mark.parametrize(
    ("flags", "takes_over"), [(0, False), (StreamFlag.TAKEOVER, True), (StreamFlag.TO_LATEST, False)]
)
def test_only_the_takeover_flag_makes_a_takeover(desk: StreamDesk, flags: int, takes_over: bool) -> None:
    assert Replica(desk, flags).stream.takes_over == takes_over


def test_a_state_that_the_producer_sets_begins_no_branch_and_the_stream_stays(desk: StreamDesk) -> None:
    replica = Replica(desk, StreamFlag.TAKEOVER)
    replica.marked(1, 1)
    replica.changed(1)
    for state in (State.PENDING, State.ACTIVE):
        assert replica.stream.set_state(state) is Status.SUCCESS and replica.vbucket.state is state
        assert replica.vbucket.inbound is replica.stream and replica.left == []
    assert replica.vbucket.failover.entries == LOG


def test_a_flush_of_the_former_owner_drops_nothing_of_what_was_taken_over(desk: StreamDesk) -> None:
    replica = Replica(desk, StreamFlag.TAKEOVER)
    replica.marked(1, 1)
    replica.changed(1)
    assert replica.stream.set_state(State.ACTIVE) is Status.SUCCESS
    for event in (Flushed(ENTRY), Boundary(ENTRY, goes_on=True)):  # type: ignore[arg-type]
        replica.stream.obey(event)
    assert desk.store.document(VB, b"k1") is not None and replica.range == (1, 1, 1)


def test_a_replica_with_half_a_snapshot_does_not_become_active(desk: StreamDesk) -> None:
    replica = Replica(desk, StreamFlag.TAKEOVER)
    replica.marked(1, 5)
    replica.changed(1)
    assert replica.stream.set_state(State.PENDING) is Status.SUCCESS
    assert replica.stream.set_state(State.ACTIVE) is Status.EINVAL
    assert replica.vbucket.state is State.PENDING and replica.vbucket.inbound is replica.stream


@pytest.mark.parametrize("state", [State.PENDING, State.ACTIVE])
def test_a_replica_whose_disk_lost_changes_is_not_taken_over(desk: StreamDesk, state: State) -> None:
    """The damage may be found when all plans are made, and the copy that is whole goes behind the takeover."""
    replica = Replica(desk, StreamFlag.TAKEOVER)
    replica.marked(1, 1)
    replica.changed(1)
    desk.commit()
    spoil(desk)
    assert replica.stream.set_state(state) is Status.EINVAL
    assert replica.stream.lacks == "1 changes are damaged on its disk" and replica.vbucket.state is State.REPLICA


def test_how_far_a_replica_may_have_acknowledged_is_known_when_damage_before_that_is_found(desk: StreamDesk) -> None:
    """The owner's majorities up to there rest on it; behind that it acknowledges nothing, whatever it receives."""
    replica = Replica(desk)
    for seqno in (1, 2, 3):
        replica.marked(seqno, seqno)
        replica.changed(seqno)
        desk.commit()
        if seqno == 2:
            spoil(desk)
    vbucket = replica.vbucket
    assert (vbucket.readable_seqno, vbucket.acknowledged_seqno, vbucket.high_seqno) == (1, 2, 3)
    spoil(desk)
    assert (vbucket.damaged_changes, vbucket.acknowledged_seqno) == (2, 2)
    replica.stream.roll_back(1)
    assert (vbucket.damaged_changes, vbucket.acknowledged_seqno) == (0, vbucket.high_seqno)


def test_a_damaged_owner_that_is_none_any_more_tells_all_that_it_acknowledged(desk: StreamDesk) -> None:
    """The map does not tell a later look that it was the owner."""
    replica = Replica(desk)
    replica.marked(1, 1)
    replica.changed(1)
    desk.commit()
    vbucket = replica.vbucket
    spoil(desk)
    vbucket.set_state(State.ACTIVE)
    desk.set(vbucket.id, "k")
    desk.commit()
    assert vbucket.acknowledged_seqno < vbucket.high_seqno
    vbucket.set_state(State.DEAD)
    desk.commit()
    assert (vbucket.damaged_changes, vbucket.acknowledged_seqno) == (1, vbucket.high_seqno)


def test_somebody_else_who_makes_it_active_ends_the_stream(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.vbucket.set_state(State.ACTIVE)
    assert replica.left == ["it became active"] and replica.vbucket.inbound is None
    assert len(replica.vbucket.failover.entries) == 2


def test_a_vbucket_that_is_deleted_ends_the_stream(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.vbucket.drop()
    assert replica.left == ["it was deleted"]


# --- durable writes ---------------------------------------------------------------------------------------------------


def prepare(seqno: int, key: bytes = b"k", value: bytes = b"v", deleted: int = 0) -> dcp.Prepare:
    return dcp.Prepare(
        vbucket=VB,
        by_seqno=seqno,
        rev_seqno=7,
        flags=3,
        expiration=1_800_000_000,
        deleted=deleted,
        durability_level=1,
        key=key,
        value=value,
        cas=seqno << 16,
    )


def tell(replica: Replica, *messages: dcp.Prepare | dcp.Commit | dcp.Abort) -> list[bool]:
    return [replica.stream.change_durability(message, collections=False) for message in messages]


def test_a_prepare_is_no_document_until_its_commit_and_then_it_has_the_numbers_of_the_prepare(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 1)
    assert tell(replica, prepare(1)) == [True]
    assert desk.store.document(VB, b"k") is None and replica.vbucket.high_seqno == 1
    replica.marked(2, 2)
    assert tell(replica, dcp.Commit(key=b"k", prepared_seqno=1, commit_seqno=2)) == [True]
    stored = desk.store.document(VB, b"k")
    assert stored is not None and replica.vbucket.high_seqno == 2
    assert (stored.seqno, stored.value, stored.cas, stored.rev_seqno) == (2, b"v", 1 << 16, 7)
    assert (stored.flags, stored.expiry, stored.deleted) == (3, 1_800_000_000, False)
    assert not replica.vbucket.prepares.pending and desk.store.prepares.waiting(VB) == []


def test_a_prepared_deletion_becomes_a_tombstone_of_its_time(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 3)
    replica.changed(1)
    assert tell(replica, prepare(2, b"k1", b"", deleted=1), dcp.Commit(key=b"k1", prepared_seqno=2, commit_seqno=3))
    stored = desk.store.document(VB, b"k1")
    assert stored is not None and (stored.deleted, stored.seqno, stored.delete_time) == (True, 3, 1_800_000_000)


def test_an_abort_leaves_the_document_as_it_was(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 3)
    replica.changed(1)
    tell(replica, prepare(2, b"k1"), dcp.Abort(key=b"k1", prepared_seqno=2, abort_seqno=3))
    stored = desk.store.document(VB, b"k1")
    assert stored is not None and (stored.seqno, replica.vbucket.high_seqno) == (1, 3)
    assert not replica.vbucket.prepares.pending and desk.store.prepares.waiting(VB) == []


def test_the_commit_of_a_prepare_that_is_not_here_is_not_taken(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 2)
    assert tell(replica, dcp.Commit(key=b"k", prepared_seqno=1, commit_seqno=2)) == [False]
    assert replica.vbucket.high_seqno == 0


def test_the_commit_of_a_prepare_that_was_refused_does_not_commit_an_older_one_of_its_key(desk: StreamDesk) -> None:
    """The document had what was prepared first, under the seqno of what was prepared last."""
    replica = Replica(desk)
    replica.marked(1, 4)
    tell(replica, prepare(1, value=b"first"))
    # In the snapshot its abort, 2, was replaced by another prepare, 3, which could not be taken.
    assert tell(replica, dcp.Commit(key=b"k", prepared_seqno=3, commit_seqno=4)) == [False]
    assert desk.store.document(VB, b"k") is None and list(replica.vbucket.prepares.pending.values()) == [1]


def test_the_commit_of_a_prepare_that_was_found_damaged_is_not_taken_so_both_are_fetched_again(
    desk: StreamDesk,
) -> None:
    replica = Replica(desk)
    replica.marked(1, 1)
    tell(replica, prepare(1))
    desk.commit()
    spoil(desk)
    replica.marked(2, 2)
    assert tell(replica, dcp.Commit(key=b"k", prepared_seqno=1, commit_seqno=2)) == [False]
    replica.stream.roll_back(0)
    replica.marked(1, 2)
    assert tell(replica, prepare(1), dcp.Commit(key=b"k", prepared_seqno=1, commit_seqno=2)) == [True, True]
    assert desk.store.document(VB, b"k") is not None


def test_a_prepare_whose_document_was_found_damaged_waits_and_keeps_no_other_change_back(desk: StreamDesk) -> None:
    """Each change that came looked whether the prepare is over, could not see it, and ended the connection."""
    replica = Replica(desk)
    replica.marked(1, 1)
    replica.changed(1)
    desk.commit()
    spoil(desk)
    replica.marked(2, 3)
    assert tell(replica, prepare(2, b"k1"), prepare(3, b"other")) == [True, True]
    assert list(replica.vbucket.prepares.pending.values()) == [2, 3]


def test_a_document_behind_a_prepare_ends_it_and_is_not_taken_for_it_after_a_rollback(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 2)
    tell(replica, prepare(2, b"k3"))
    replica.marked(3, 3)
    replica.changed(3)
    replica.vbucket.prepares.settle(0)
    assert not replica.vbucket.prepares.pending and desk.store.prepares.waiting(VB) == []
    replica.vbucket.read_events()
    assert not replica.vbucket.prepares.pending
    replica.vbucket.roll_back(2)
    assert list(replica.vbucket.prepares.pending.values()) == [2]


def test_a_prepare_is_acknowledged_once_it_is_on_disk_in_a_whole_snapshot(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 3)
    tell(replica, prepare(1), prepare(2, b"other"))
    desk.commit()
    replica.stream.prepares_durable()
    assert replica.acknowledged == []
    replica.changed(3)
    replica.stream.prepares_durable()
    assert replica.acknowledged == []
    desk.commit()
    replica.stream.prepares_durable()
    replica.stream.prepares_durable()
    assert replica.acknowledged == [2]


def test_what_still_waits_is_acknowledged_again_when_the_stream_opens_anew(desk: StreamDesk) -> None:
    replica = Replica(desk)
    replica.marked(1, 1)
    tell(replica, prepare(1))
    desk.commit()
    replica.stream.close()
    again = Replica(desk)
    assert again.acknowledged == [1]
