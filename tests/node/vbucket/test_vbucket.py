"""A vbucket's state and history: what is written down, what survives, and who is told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from headwater.errors import DiskFull
from headwater.kernels import index
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.store import Store
from headwater.node.vbucket.prepares import Key
from headwater.node.vbucket.vbucket import VBucket
from headwater.protocol.dcp.position import ENDLESS
from headwater.wire.dcp import Abort, Prepare
from headwater.wire.vbucket import State

UUIDS = count(0x100)


def new_uuid() -> int:
    return next(UUIDS)


class Listener:
    position = 0

    def __init__(self) -> None:
        self.heard: list[str] = []

    def advanced(self) -> None:
        self.heard.append("advanced")

    def state_changed(self) -> None:
        self.heard.append("state changed")

    def rolled_back(self) -> None:
        self.heard.append("rolled back")

    def damaged(self) -> None:
        self.heard.append("damaged")


class Home:
    """A store that is opened, crashed or closed at will, with one vbucket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.staged = 0
        self.store = Store.open(path, vbuckets=4)
        self.vbucket = self.create()

    def wrote(self) -> int:
        self.staged += 1
        return self.staged

    def create(self, state: State = State.ACTIVE) -> VBucket:
        return VBucket.create(1, self.store, self.wrote, state=state, new_uuid=new_uuid)

    def write(self, *keys: str) -> None:
        for key in keys:
            self.store.staging.mutation(1, key.encode(), b"v", cas=self.store.index.high_seqno(1) + 1, rev_seqno=1)
        self.commit()

    def commit(self) -> None:
        batch = self.store.freeze()
        if batch is not None:
            self.store.write(batch)
            self.store.settle(batch)

    def restart(self, *, clean: bool) -> VBucket:
        self.commit()
        self.store.close(clean=clean)
        self.store = Store.open(self.path, vbuckets=4)
        record = self.store.recovered[1]
        self.vbucket = VBucket.recover(record, 1, self.store, self.wrote, clean=self.store.clean, new_uuid=new_uuid)
        return self.vbucket


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path / "store")
    yield made
    made.store.close(clean=False)


def seqnos(vbucket: VBucket) -> list[int]:
    return [entry.seqno for entry in vbucket.failover]


def test_a_new_vbucket_has_one_branch_from_seqno_0(home: Home) -> None:
    assert seqnos(home.vbucket) == [0]
    assert home.vbucket.failover.newest.vb_uuid != 0


def test_becoming_active_begins_a_branch_at_the_high_seqno(home: Home) -> None:
    home.write("a", "b", "c")
    before = home.vbucket.failover.entries
    assert home.vbucket.set_state(State.REPLICA)
    assert home.vbucket.failover.entries == before
    assert home.vbucket.set_state(State.ACTIVE)
    assert seqnos(home.vbucket) == [3, 0]
    assert home.vbucket.failover.entries[1:] == before


def test_the_state_it_has_already_changes_nothing(home: Home) -> None:
    before, staged = home.vbucket.failover.entries, home.staged
    assert not home.vbucket.set_state(State.ACTIVE)
    assert (home.vbucket.failover.entries, home.staged) == (before, staged)


def test_a_takeover_is_no_new_branch(home: Home) -> None:
    home.vbucket.set_state(State.PENDING)
    home.vbucket.set_state(State.ACTIVE, new_branch=False)
    assert seqnos(home.vbucket) == [0]


def test_a_replica_promoted_in_the_middle_of_a_snapshot_branches_where_the_last_whole_one_ended(home: Home) -> None:
    home.write("a", "b", "c")
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(4, 10)
    home.write("d", "e")
    assert home.vbucket.is_receiving_snapshot
    home.vbucket.set_state(State.ACTIVE)
    assert seqnos(home.vbucket) == [3, 0]
    assert not home.vbucket.is_receiving_snapshot


def test_what_is_complete_on_disk_ends_where_the_last_whole_snapshot_does(home: Home) -> None:
    home.write("a", "b", "c")
    home.vbucket.set_state(State.REPLICA)
    assert home.vbucket.complete_durable_seqno == 3
    home.vbucket.begin_snapshot(4, 5)
    home.write("d")
    assert (home.vbucket.durable_seqno, home.vbucket.complete_durable_seqno) == (4, 3)
    home.store.staging.mutation(1, b"e", b"v", cas=5, rev_seqno=1)
    home.vbucket.begin_snapshot(6, 9)
    assert home.vbucket.complete_durable_seqno == 3, "the end of the snapshot is not on disk"
    home.commit()
    assert home.vbucket.complete_durable_seqno == 5
    home.write("f")
    assert home.restart(clean=False).complete_durable_seqno == 5


def test_behind_a_change_that_was_refused_nothing_is_complete(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(1, 2)
    home.write("a", "b")
    home.vbucket.miss(2)
    assert home.vbucket.complete_durable_seqno == 2
    home.vbucket.begin_snapshot(3, 3)
    home.write("d")
    assert (home.vbucket.durable_seqno, home.vbucket.complete_durable_seqno) == (3, 2)


def behind_a_gap(home: Home) -> None:
    """A snapshot that is whole, and one that lacks its second change, of the key k."""
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(1, 2)
    home.write("a", "b")
    home.vbucket.begin_snapshot(3, 5)
    home.write("c")
    home.vbucket.miss(3, Key(0, b"k"), 4)
    home.store.staging.mutation(1, b"d", b"v", seqno=5, cas=5, rev_seqno=1)
    home.commit()


def test_a_copy_is_complete_at_the_end_of_a_snapshot_before_its_gap_and_not_within_one(home: Home) -> None:
    behind_a_gap(home)
    assert home.vbucket.complete_durable_seqno == 2


def test_a_copy_that_is_promoted_with_a_gap_branches_before_it(home: Home) -> None:
    """Who has what was refused, of the former owner, is told to go back to before it."""
    behind_a_gap(home)
    home.vbucket.set_state(State.ACTIVE)
    assert seqnos(home.vbucket) == [2, 0]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_gap_is_closed_once_a_newer_version_of_what_was_refused_is_here(home: Home, restarts: bool) -> None:
    behind_a_gap(home)
    if restarts:
        home.restart(clean=False)
    assert not home.vbucket.close_gap()
    home.vbucket.begin_snapshot(6, 7)
    home.write("k")
    assert home.vbucket.close_gap()
    assert (home.vbucket.refused_changes, home.vbucket.complete_durable_seqno) == (0, 2)
    home.write("e")
    assert home.vbucket.complete_durable_seqno == 7
    assert home.restart(clean=True).refused_changes == 0


def test_nobody_is_taken_back_to_a_state_that_lacked_a_change(home: Home) -> None:
    behind_a_gap(home)
    home.vbucket.begin_snapshot(6, 6)
    home.write("k")
    home.vbucket.close_gap()
    home.vbucket.begin_snapshot(7, 7)
    home.write("e")
    assert home.vbucket.roll_back(5) == 2


def test_a_rollback_without_room_for_its_record_undoes_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frame alone would be committed, below a record whose failover log describes what was undone."""
    home.write("a", "b")
    monkeypatch.setattr(home.store.log, "make_room", lambda control=0: None)
    monkeypatch.setattr(home.store.staging, "_has_room", lambda count: count <= 100)
    with pytest.raises(DiskFull):
        home.vbucket.roll_back(1)
    assert (home.vbucket.high_seqno, home.store.index.high_seqno(1)) == (2, 2)
    assert home.store.freeze() is None, "nothing is staged"


def test_a_replica_promoted_after_a_whole_snapshot_branches_at_its_end(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(1, 2)
    home.write("a", "b")
    home.vbucket.set_state(State.ACTIVE)
    assert seqnos(home.vbucket) == [2, 0]


def test_a_record_staged_while_writes_are_refused_does_not_let_them_in(home: Home) -> None:
    home.write("a", "b")
    home.vbucket.back_up(True)
    refusing = int(home.store.table[1, index.STATE])
    home.vbucket.roll_back(1)
    assert int(home.store.table[1, index.STATE]) == refusing != State.ACTIVE
    home.vbucket.back_up(False)
    assert int(home.store.table[1, index.STATE]) == State.ACTIVE


def test_a_clean_restart_is_no_new_branch(home: Home) -> None:
    home.write("a")
    before = home.vbucket.failover.entries
    assert home.restart(clean=True).failover.entries == before


def test_after_a_crash_an_active_vbucket_begins_a_branch_at_its_high_seqno(home: Home) -> None:
    home.write("a", "b")
    before = home.vbucket.failover.entries
    after = home.restart(clean=False)
    assert seqnos(after) == [2, 0]
    assert after.failover.entries[1:] == before


@pytest.mark.parametrize("state", [State.REPLICA, State.PENDING, State.DEAD])
def test_after_a_crash_no_other_vbucket_begins_a_branch(home: Home, state: State) -> None:
    home.write("a")
    home.vbucket.set_state(state)
    before = home.vbucket.failover.entries
    after = home.restart(clean=False)
    assert (after.state, after.failover.entries) == (state, before)


def test_a_replica_that_crashed_in_a_snapshot_branches_at_its_start_when_promoted(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(2, 10)
    home.write("a", "b", "c")
    after = home.restart(clean=False)
    assert after.is_receiving_snapshot
    after.set_state(State.ACTIVE)
    assert seqnos(after) == [2, 0]


def test_two_crashes_make_two_branches_and_the_record_remembers_both(home: Home) -> None:
    home.write("a")
    home.restart(clean=False)
    home.write("b")
    assert seqnos(home.restart(clean=False)) == [2, 1, 0]


def test_a_rollback_prunes_the_branches_above_and_tells_the_readers(home: Home) -> None:
    home.write("a", "b", "c")
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.set_state(State.ACTIVE)
    listener = Listener()
    home.vbucket.readers.add(listener)
    home.vbucket.roll_back(2)
    assert seqnos(home.vbucket) == [0]
    assert (home.vbucket.high_seqno, listener.heard) == (2, ["rolled back"])
    home.commit()
    assert home.restart(clean=False).high_seqno == 2


def test_a_rollback_to_0_starts_the_history_over(home: Home) -> None:
    home.write("a", "b")
    old = home.vbucket.failover.newest.vb_uuid
    home.vbucket.roll_back(0)
    assert seqnos(home.vbucket) == [0]
    assert home.vbucket.failover.newest.vb_uuid != old


def test_readers_hear_of_states_of_progress_and_of_the_end(home: Home) -> None:
    listener = Listener()
    home.vbucket.readers.add(listener)
    home.vbucket.advanced()
    home.vbucket.set_state(State.DEAD)
    home.vbucket.drop()
    assert listener.heard == ["advanced", "state changed", "state changed"]


def test_a_dropped_vbucket_leaves_nothing_behind(home: Home) -> None:
    home.write("a")
    home.vbucket.drop()
    home.commit()
    home.store.close(clean=False)
    home.store = Store.open(home.path, vbuckets=4)
    assert 1 not in home.store.recovered
    assert home.store.document(1, b"a") is None


def test_following_a_producer_takes_over_its_history(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.follow([(0xABC, 5), (0xDEF, 0)])
    assert home.restart(clean=False).failover.entries == ((0xABC, 5), (0xDEF, 0))


def test_readers_ask_again_when_the_producer_has_begun_a_branch_that_they_were_not_told_of(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.follow([(0xABC, 0)])
    listener = Listener()
    home.vbucket.readers.add(listener)
    home.vbucket.follow([(0xABC, 0)])
    assert listener.heard == []
    home.vbucket.follow([(0xDEF, 5), (0xABC, 0)])
    assert listener.heard == ["state changed"]


def test_only_what_this_node_wrote_itself_can_be_shown_at_every_seqno(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(1, 3)
    home.write("a", "b", "c")
    assert not home.vbucket.is_exact(2)
    home.vbucket.set_state(State.ACTIVE)
    home.write("d", "e")
    assert [home.vbucket.is_exact(seqno) for seqno in (2, 3, 4)] == [False, True, True]


def test_no_cas_is_given_again_after_a_restart(home: Home) -> None:
    home.write("a")
    home.vbucket.set_state(State.REPLICA)
    assert home.vbucket.record().max_cas == 1


def test_a_purge_that_a_marker_told_of_survives_with_the_first_changes_of_its_snapshot(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(0, 3, purge_seqno=2)
    home.store.staging.mutation(1, b"a", b"v", seqno=1, cas=1, rev_seqno=1)
    after = home.restart(clean=False)
    assert (after.high_seqno, after.purge_seqno) == (1, 2)


def test_a_marker_that_tells_of_no_purge_takes_nothing_back(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(0, 3, purge_seqno=2)
    home.write("a", "b", "c")
    home.vbucket.begin_snapshot(4, 5, purge_seqno=0)
    assert home.vbucket.purge_seqno == 2
    home.vbucket.begin_snapshot(4, 6, purge_seqno=1)
    assert home.vbucket.purge_seqno == 2


@pytest.mark.parametrize("reached", [0, 2])
def test_a_purge_above_what_ever_came_does_not_outlive_a_promotion(home: Home, reached: int) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(0, 9, purge_seqno=7)
    home.write(*"ab"[:reached])
    home.vbucket.set_state(State.ACTIVE)
    assert home.vbucket.purge_seqno == reached
    assert home.restart(clean=True).purge_seqno == reached


def test_a_replica_that_begins_again_forgets_what_was_purged_elsewhere(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.begin_snapshot(0, 9, purge_seqno=7)
    assert home.vbucket.roll_back(0) == 0
    assert home.vbucket.purge_seqno == 0
    home.vbucket.begin_snapshot(0, 9, purge_seqno=7)
    home.write("a", "b")
    assert home.vbucket.roll_back(1) == 0
    assert home.vbucket.purge_seqno == 0
    assert home.restart(clean=True).purge_seqno == 0


@pytest.mark.parametrize("clean", [True, False])
def test_what_a_replica_lacks_is_known_after_a_restart(home: Home, clean: bool) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.write("a", "b")
    home.vbucket.miss(2)
    home.vbucket.miss(1)
    assert home.restart(clean=clean).refused_changes == 2


def test_it_lacks_nothing_any_more_once_it_is_rolled_back_to_before_the_gap(home: Home) -> None:
    home.write("a", "b", "c", "d")
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.miss(2)
    home.vbucket.roll_back(3)
    assert home.vbucket.refused_changes == 1
    home.vbucket.roll_back(2)
    assert home.vbucket.refused_changes == 0 and home.restart(clean=True).refused_changes == 0


@pytest.mark.parametrize("log", [[(7, 0)], [(8, 2), (7, 0)]], ids=["as before", "after a failover"])
def test_what_was_refused_last_is_missing_no_more_once_a_stream_begins(home: Home, log: list[tuple[int, int]]) -> None:
    """After a failover its key may never be written again, and the takeover was refused until it was."""
    home.write("a", "b")
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.follow([(7, 0)])
    home.vbucket.miss(2, Key(0, b"c"), 4)
    home.vbucket.miss(2)
    home.vbucket.follow(log)
    assert home.vbucket.refused_changes == 0
    assert home.restart(clean=True).refused_changes == 0


def test_what_was_refused_before_the_last_change_is_missing_still_when_a_stream_begins(home: Home) -> None:
    """The stream begins behind it."""
    home.write("a", "b")
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.miss(2, Key(0, b"c"), 3)
    home.store.staging.mutation(1, b"d", b"v", seqno=4, cas=4, rev_seqno=1)
    home.vbucket.follow([(7, 0)])
    assert home.vbucket.refused_changes == 1
    assert home.restart(clean=True).refused_changes == 1


def test_what_becomes_active_is_all_there_is(home: Home) -> None:
    home.vbucket.set_state(State.REPLICA)
    home.vbucket.miss(0)
    home.vbucket.set_state(State.ACTIVE)
    assert home.vbucket.refused_changes == 0


def test_a_state_that_can_not_be_written_down_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path)
    vbucket = home.create(State.REPLICA)
    before = vbucket.failover.entries, vbucket.snapshot_end

    def full(count: int, reserve: int) -> None:
        raise DiskFull(tmp_path, count, 0)

    with monkeypatch.context() as patched:
        patched.setattr(home.store.staging, "_check_room", full)
        with pytest.raises(DiskFull):
            vbucket.set_state(State.ACTIVE)
    assert (vbucket.state, (vbucket.failover.entries, vbucket.snapshot_end)) == (State.REPLICA, before)
    assert vbucket.set_state(State.ACTIVE)
    home.store.close(clean=False)


def prepare(home: Home) -> None:
    home.vbucket.prepares.add(Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16))


def test_what_waits_is_aborted_by_a_hand_over_at_the_time_of_that(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, times = home.store.prepares.stage_abort, list[int]()

    def staged(vbucket: int, abort: Abort, delete_time: int) -> int:
        times.append(delete_time)
        return stage(vbucket, abort, delete_time)

    monkeypatch.setattr(home.store.prepares, "stage_abort", staged)
    prepare(home)
    home.vbucket.hand_over(now=1_000)
    assert not home.vbucket.prepares.pending and home.vbucket.high_seqno == 2
    assert times == [1_000]  # a time of 0 would let the next compaction purge it


def test_a_hand_over_without_room_for_its_record_aborts_nothing(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise DiskFull("/data", 1)

    prepare(home)
    monkeypatch.setattr(home.store.staging, "check_record_room", full)
    with pytest.raises(DiskFull):
        home.vbucket.hand_over(now=1)
    assert home.vbucket.prepares.pending and home.vbucket.state is State.ACTIVE


def test_what_a_target_refused_is_not_served_again_without_room_for_its_record(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner was active in memory alone, and a restart found it dead, with what it had acknowledged meanwhile."""

    def full(count: int, reserve: int) -> None:
        raise DiskFull("/data", count, 0)

    home.vbucket.hand_over(now=1)
    with monkeypatch.context() as patched:
        patched.setattr(home.store.staging, "_check_room", full)
        with pytest.raises(DiskFull):
            home.vbucket.take_back()
    assert home.vbucket.state is State.DEAD
    home.vbucket.take_back()
    assert home.vbucket.state is State.ACTIVE


def received(home: Home, end: int, *, has_versions: bool = False, keys: str = "k") -> None:
    """A snapshot up to a seqno, whose last changes are these keys."""
    home.vbucket.begin_snapshot(home.vbucket.high_seqno, end, has_versions=has_versions)
    for seqno, key in enumerate(keys, end - len(keys) + 1):
        home.store.staging.mutation(1, key.encode(), b"v", seqno=seqno, cas=seqno, rev_seqno=1)
    home.commit()


@pytest.fixture
def replica(home: Home) -> Home:
    home.vbucket = home.create(State.REPLICA)
    return home


def test_versions_are_missing_up_to_the_end_of_the_last_snapshot_that_came_without_history(replica: Home) -> None:
    vbucket = replica.vbucket
    for end, has_versions, after in ((3, False, 3), (5, True, 3), (7, True, 3), (9, False, 9), (11, True, 9)):
        received(replica, end, has_versions=has_versions)
        assert vbucket.held_versions_after == after
    assert vbucket.versions_after == ENDLESS, "a copy shows none"
    vbucket.set_state(State.ACTIVE)
    assert vbucket.versions_after == 9


def test_a_part_of_a_snapshot_without_history_has_none_when_the_copy_takes_over(replica: Home) -> None:
    received(replica, 4)
    replica.vbucket.begin_snapshot(4, 9)
    replica.write("k")
    replica.vbucket.set_state(State.ACTIVE)
    assert replica.vbucket.versions_after == replica.vbucket.high_seqno == 5


def test_a_part_of_a_snapshot_with_history_has_every_version(replica: Home) -> None:
    received(replica, 4)
    replica.vbucket.begin_snapshot(4, 9, has_versions=True)
    replica.write("k", "k")
    replica.vbucket.set_state(State.ACTIVE)
    assert (replica.vbucket.versions_after, replica.vbucket.high_seqno) == (4, 6)


def test_what_follows_a_part_of_a_snapshot_without_history_has_versions_from_its_announced_end_on(
    replica: Home,
) -> None:
    replica.vbucket.begin_snapshot(0, 9)
    replica.write("k", "l")
    received(replica, 12, has_versions=True, keys="klklklklkl")
    assert replica.vbucket.held_versions_after == 9
    replica.vbucket.set_state(State.ACTIVE)
    assert replica.vbucket.versions_after == 9


def test_a_rollback_takes_what_was_missing_above_it_back(replica: Home) -> None:
    received(replica, 3)
    received(replica, 6)
    assert replica.vbucket.roll_back(5) == 3
    assert replica.vbucket.held_versions_after == 3
    received(replica, 9, has_versions=True, keys="abcdef")
    assert replica.vbucket.held_versions_after == 3
    replica.vbucket.roll_back(0)
    assert replica.vbucket.held_versions_after == 0


def test_an_owner_that_becomes_a_replica_keeps_the_versions_that_it_wrote(home: Home) -> None:
    home.write("a", "a")
    home.vbucket.set_state(State.REPLICA)
    received(home, 4, has_versions=True)
    home.vbucket.set_state(State.ACTIVE)
    assert home.vbucket.versions_after == 0


def test_changes_without_markers_have_no_versions(replica: Home) -> None:
    """As they come by TAP."""
    received(replica, 2, has_versions=True)
    replica.write("k", "k")
    replica.vbucket.set_state(State.ACTIVE)
    assert replica.vbucket.versions_after == 4


def test_a_refused_change_is_a_version_that_is_missing(replica: Home) -> None:
    received(replica, 2, has_versions=True, keys="ab")
    replica.vbucket.begin_snapshot(2, 5, has_versions=True)
    replica.vbucket.miss(2, Key(0, b"k"), 3)
    for seqno in (4, 5):
        replica.store.staging.mutation(1, b"k", b"v", seqno=seqno, cas=seqno, rev_seqno=1)
    replica.commit()
    assert replica.vbucket.close_gap()
    assert replica.vbucket.held_versions_after == 5


def test_a_copy_with_a_gap_that_takes_over_has_no_versions(replica: Home) -> None:
    received(replica, 2, has_versions=True, keys="ab")
    replica.vbucket.begin_snapshot(2, 5, has_versions=True)
    replica.vbucket.miss(2, Key(0, b"k"), 3)
    for seqno in (4, 5):
        replica.store.staging.mutation(1, b"l", b"v", seqno=seqno, cas=seqno, rev_seqno=1)
    replica.commit()
    replica.vbucket.set_state(State.ACTIVE)
    assert replica.vbucket.versions_after == 5


@pytest.mark.parametrize("clean", [True, False])
def test_what_came_without_history_is_known_after_a_restart(replica: Home, clean: bool) -> None:
    received(replica, 3)
    received(replica, 5, has_versions=True)
    replica.vbucket = replica.restart(clean=clean)
    assert replica.vbucket.held_versions_after == 3


def test_a_record_of_a_release_that_received_no_history_tells_none(replica: Home) -> None:
    received(replica, 3)
    assert b"deduplicated" not in replica.vbucket.record().encode(), "which that release reads"
    received(replica, 5, has_versions=True)
    written = replica.vbucket.record().encode()
    assert VBucketRecord.decode(written).deduplicated == 3
    old = VBucketRecord.decode(written.replace(b'"deduplicated":3,', b""))
    assert old.deduplicated is None
    replica.vbucket.restore(old)
    assert replica.vbucket.held_versions_after == 5
