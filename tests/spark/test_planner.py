import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headwater.protocol.dcp.position import Position
from headwater.spark.history import BranchHistory, HeldPoints
from headwater.spark.offsets import Offset
from headwater.spark.planner import Range, newest, pack, plan, ranges, share_out
from tests.spark.model import ModelNode, Row, fold

ONE = ((0xA, 0),)


def history(high: int, log: tuple[tuple[int, int], ...] = ONE) -> BranchHistory:
    return BranchHistory(log, high)


def test_the_first_batch_reads_everything_from_the_beginning() -> None:
    end = plan(Offset(), {0: history(10), 1: history(0)})
    assert end.positions[0] == Position(0, 0xA, 10, 0, 10)
    assert ranges(Offset(), end) == [Range(0, 0xA, 0, 10, 10)]


def test_when_nothing_moved_the_very_same_offset_comes_back() -> None:
    start = plan(Offset(), {0: history(10)})
    assert plan(start, {0: history(10)}) is start


def test_the_next_batch_starts_where_the_last_ended_and_remembers_what_was_observed() -> None:
    first = plan(Offset(), {0: history(10)})
    second = plan(first, {0: history(25)})
    assert second.positions[0] == Position(0, 0xA, 25, 10, 25)
    assert ranges(first, second) == [Range(0, 0xA, 10, 25, 25)]


def test_an_idle_vbucket_becomes_complete_when_another_moves() -> None:
    first = plan(Offset(), {0: history(10), 1: history(5)})
    second = plan(first, {0: history(10), 1: history(6)})
    assert second.positions[0] == Position(0, 0xA, 10, 10, 10)
    assert ranges(first, second) == [Range(1, 0xA, 5, 6, 6)]


def test_a_lost_branch_is_rolled_back_and_replaced_in_one_batch() -> None:
    start, held = Offset({0: Position(0, 0xA, 250, 100, 260)}), HeldPoints()
    held.record({0: Position(0, 0xA, 100, 0, 100)}, {0: history(150)})
    end = plan(start, {0: history(300, ((0xB, 200), (0xA, 0)))}, held_points=held, changes_max=10)
    assert end.rollbacks == {0}
    assert ranges(start, end) == [Range(0, 0xB, 100, 250, 300, rollback=True)]


def test_a_rollback_to_an_empty_history_is_a_batch_of_one_row() -> None:
    start = Offset({0: Position(0, 0xA, 9, 9, 9)})
    end = plan(start, {0: history(0, ((0xB, 0),))})
    again = Offset.from_json(json.loads(json.dumps(end.to_json())))
    assert ranges(start, again) == [Range(0, 0xB, 0, 0, 0, rollback=True)]
    assert plan(again, {0: history(0, ((0xB, 0),))}) is again


def test_a_vbucket_that_nobody_has_stays_where_it_is() -> None:
    start = Offset({0: Position(0, 0xA, 9, 9, 9), 1: Position(1, 0xA, 5, 5, 5)})
    end = plan(start, {1: history(6)})
    assert end.positions[0] == start.positions[0]
    assert ranges(start, end) == [Range(1, 0xA, 5, 6, 6)]


def test_available_now_ends_at_what_was_there_when_it_began() -> None:
    end = plan(Offset(), {0: history(10), 1: history(7)}, targets={0: 4})
    assert ranges(Offset(), end) == [Range(0, 0xA, 0, 4, 10)]
    assert plan(end, {0: history(10), 1: history(7)}, targets={0: 4}) is end


def test_a_reader_from_the_beginning_goes_past_the_purge_seqno_at_once() -> None:
    end = plan(Offset(), {0: BranchHistory(ONE, 300, purge_seqno=150)}, changes_max=10)
    assert end.positions[0] == Position(0, 0xA, 150, 0, 300)
    assert ranges(end, plan(end, {0: BranchHistory(ONE, 300, purge_seqno=150)}, changes_max=10)) == [
        Range(0, 0xA, 150, 160, 300)
    ]


def test_a_first_batch_that_was_done_again_behind_a_purge_is_taken_back_by_the_next() -> None:
    """An attempt before the purge may have written what was deleted since, and the last one never heard of that."""
    end = plan(Offset(), {0: history(100)})
    after = plan(end, {0: BranchHistory(ONE, 130, purge_seqno=120)})
    assert (after.rollbacks, after.losses) == ({0}, {0: 120})
    assert ranges(end, after) == [Range(0, 0xA, 0, 130, 130, rollback=True, purged=120)]


def test_latest_begins_at_the_end_with_an_empty_batch() -> None:
    end = newest({0: history(10), 1: history(0)})
    assert end.positions == {0: Position(0, 0xA, 10, 10, 10)}
    assert ranges(Offset(latest=True), end) == []


def test_a_vbucket_that_rolled_back_and_waits_remembers_that_nothing_below_is_held() -> None:
    start = Offset({0: Position(0, 0xA, 250, 250, 250), 1: Position(1, 0xA, 5, 5, 5)})
    branched = ((0xB, 200), (0xA, 0))
    first = plan(start, {0: history(300, branched), 1: history(5)}, changes_max=0)
    assert first.rollbacks == {0}
    second = plan(first, {0: history(300, branched), 1: history(6)}, targets={0: 250, 1: 6})
    assert (second.rollbacks, second.positions[0]) == (frozenset(), Position(0, 0xB, 250, 0, 300))
    assert ranges(first, second) == [Range(1, 0xA, 5, 6, 6)]
    third = plan(second, {0: history(310, ((0xC, 260), *branched)), 1: history(6)})
    assert third.rollbacks == {0}  # the restored state was read while the history above 260 was another one


def test_a_rollback_row_and_its_replay_go_to_one_task() -> None:
    parts = [Range(vb, 0xA, 5, 5 + vb * 100, 900, rollback=vb % 2 == 0) for vb in range(9)]
    packed = pack(parts, 4)
    assert sorted(part.vbucket for members in packed for part in members) == list(range(9))
    assert len(packed) == 4


@given(st.dictionaries(st.integers(0, 1023), st.integers(0, 10**6), max_size=40), st.integers(0, 10**6))
def test_shares_fill_the_limit_and_no_more(backlogs: dict[int, int], limit: int) -> None:
    shares = share_out(backlogs, limit)
    assert shares.keys() == backlogs.keys()
    assert all(0 <= shares[vb] <= backlogs[vb] for vb in backlogs)
    assert sum(shares.values()) == min(limit, sum(backlogs.values()))


def test_a_small_backlog_is_taken_whole_and_the_large_ones_share_evenly() -> None:
    assert share_out({0: 3, 1: 1000, 2: 500}, 203) == {0: 3, 1: 100, 2: 100}
    assert share_out({0: 5, 1: 9, 2: 7}, 1) == {0: 0, 1: 1, 2: 0}


@given(st.lists(st.integers(1, 10**6), max_size=60), st.integers(1, 12))
def test_packing_keeps_every_range_once_and_balances_them(spans: list[int], partitions: int) -> None:
    parts = [Range(vb, 1, 10, 10 + span, 10 + span) for vb, span in enumerate(spans)]
    packed = pack(parts, partitions)
    assert sorted((part for members in packed for part in members), key=lambda part: part.vbucket) == parts
    assert len(packed) == min(partitions, len(parts))
    costs = [sum(part.cost for part in members) for members in packed]
    assert not parts or max(costs) <= sum(costs) / len(costs) + max(part.cost for part in parts)


class Replay(RuleBasedStateMachine):
    """Writers, failovers, planners that forget and tasks that run twice: the folded log must end as the node is."""

    KEYS = st.sampled_from("abcd")
    VBUCKET = st.integers(0, 1)

    def __init__(self) -> None:
        super().__init__()
        self.node = ModelNode(2)
        self.start = Offset()
        self.end: Offset | None = None
        self.held = HeldPoints()
        self.rows: list[Row] = []
        self.limit = 3

    @rule(vb=VBUCKET, keys=st.lists(KEYS, min_size=1, max_size=4))
    def write(self, vb: int, keys: list[str]) -> None:
        for key in keys:
            self.node.vbuckets[vb].write(key)

    @rule(vb=VBUCKET, lost=st.integers(0, 6))
    def fail_over(self, vb: int, lost: int) -> None:
        self.node.vbuckets[vb].fail_over(lost)

    @precondition(lambda self: self.end is None)
    @rule(limit=st.sampled_from([None, 1, 3]))
    def plan(self, limit: int | None) -> None:
        seen = self.node.seen()
        self.held.record(self.start.positions, seen)
        end = plan(self.start, seen, held_points=self.held, changes_max=limit)
        self.end = None if end is self.start else Offset.from_json(json.loads(json.dumps(end.to_json())))

    @precondition(lambda self: self.end is not None)
    @rule(times=st.integers(1, 2))
    def read(self, times: int) -> None:
        assert self.end is not None
        for _ in range(times):
            self.rows += self.node.batch(self.start, self.end)
        self.start, self.end = self.end, None

    @rule()
    def forget(self) -> None:
        self.held = HeldPoints()

    @invariant()
    def an_offset_reads_back_as_itself(self) -> None:
        assert Offset.from_json(self.start.to_json()).to_json() == self.start.to_json()

    def teardown(self) -> None:
        for _ in range(60):
            if self.end is None:
                Replay.plan(self, 3)
            if self.end is None:
                break
            Replay.read(self, 1)
        assert self.end is None
        assert fold(self.rows) == self.node.truth()


TestReplay = Replay.TestCase


@given(data=st.data())
def test_successive_ranges_cover_the_history_once(data: st.DataObject) -> None:
    node = ModelNode(3)
    offset, covered = Offset(), dict.fromkeys(range(3), 0)
    for _ in range(data.draw(st.integers(1, 6))):
        for vbucket in node.vbuckets:
            for _ in range(data.draw(st.integers(0, 5))):
                vbucket.write("k")
        limit = data.draw(st.sampled_from([None, 1, 4]))
        end = plan(offset, node.seen(), changes_max=limit)
        made = [] if end is offset else ranges(offset, end)
        assert limit is None or sum(part.end_seqno - part.start_seqno for part in made) <= limit
        for part in made:
            assert part.start_seqno == covered[part.vbucket]
            covered[part.vbucket] = part.end_seqno
        assert {vb: end.position(vb).seqno for vb in range(3)} == covered
        offset = end


@pytest.mark.parametrize("memory", [True, False])
def test_a_version_that_was_left_out_and_came_back_alive_is_delivered(memory: bool) -> None:
    """The trap: `a` at 1 is replaced by seqno 3 while the batch up to 2 is read, and a failover undoes seqno 3."""
    node, held = ModelNode(1), HeldPoints()
    only = node.vbuckets[0]
    only.write("a")
    only.write("b")
    first = plan(Offset(), node.seen())
    only.write("a")
    rows = node.batch(Offset(), first)
    assert fold(rows) == {(0, "b"): 2}
    if memory:
        held.record(first.positions, node.seen())
    only.fail_over(lost=1)
    held.record(first.positions, node.seen())
    second = plan(first, node.seen(), held_points=held)
    assert second.rollbacks == {0}  # from 0 again: a deletion might have been purged before that is read
    assert fold(rows + node.batch(first, second)) == node.truth() == {(0, "a"): 1, (0, "b"): 2}


def test_the_end_of_an_earlier_batch_is_no_safe_place_by_itself() -> None:
    """`a` at 1 is left out of batch one (1, 2], for 3 replaced it; batch two reads 3; the failover keeps 1 and 2 only.

    Going back to 2 would be enough by the seqnos, and would lose `a`: it was whole at 2 only while 3 was history.
    """
    node, held = ModelNode(1), HeldPoints()
    only = node.vbuckets[0]
    only.write("a")
    only.write("b")
    first = plan(Offset(), node.seen())
    only.write("a")
    rows = node.batch(Offset(), first)
    held.record(first.positions, node.seen())
    second = plan(first, node.seen(), held_points=held)
    rows += node.batch(first, second)
    assert fold(rows) == {(0, "a"): 3, (0, "b"): 2}
    only.fail_over(lost=1)
    held.record(second.positions, node.seen())
    third = plan(second, node.seen(), held_points=held)
    assert [(part.start_seqno, part.rollback) for part in ranges(second, third)] == [(0, True)]
    assert fold(rows + node.batch(second, third)) == node.truth() == {(0, "a"): 1, (0, "b"): 2}
