"""A planner's memory between batches, with nodes that are a dictionary."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

import pytest

from headwater.errors import DataLoss, OptionError, RollbackRequired
from headwater.protocol.dcp.complete import NANOSECONDS, ClocksHeld, Completeness
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.spark.columns import RowMaker
from headwater.spark.history import BranchHistory
from headwater.spark.offsets import Offset
from headwater.spark.planner import plan, ranges
from headwater.spark.planning import FURTHER_MAX, TELL_SECONDS, Planning, check, check_ends, check_loss
from headwater.spark.settings import parse

URL = "couchbase://127.0.0.1/b"
ONE = ((0xA, 0),)


class Seen:
    """The nodes' answers."""

    def __init__(self, **high: int) -> None:
        self.log: tuple[tuple[int, int], ...] = ONE
        self.high = high["high"]
        self.persisted: int | None = None
        self.asked: list[bool] = []
        self.wholes: list[bool] = []
        self.resting: list[set[int]] = []
        self.coverage: Coverage | None = None
        self.vbuckets, self.ownerless = 1, (0, 0.0)
        self.complete, self.clock = Completeness(), 0

    def observe(
        self, *, all_owners: bool = False, idle: bool = False, resting: Collection[int] = ()
    ) -> dict[int, BranchHistory]:
        self.asked.append(idle)
        self.resting.append(set(resting))
        self.wholes.append(all_owners)
        if self.clock:
            self.complete.look(ClocksHeld(self.clock, self.clock), {0: self.high}, [0], 0.0)
        return {0: BranchHistory(self.log, self.high, persisted_seqno=self.persisted)}

    def covered(self, start: Offset) -> Coverage | None:
        return start.coverage or self.coverage


def planning(seen: Seen, **options: Any) -> Planning:
    made = Planning(parse({"url": URL, "pollIntervalSeconds": "0"}, streaming=True), **options)
    made.nodes = seen  # type: ignore[assignment]
    return made


def test_a_run_to_the_end_settles_what_it_read_to_the_end_of_a_history_that_did_not_move() -> None:
    seen = Seen(high=10)
    made = planning(seen, settle=True)
    made.aim()
    first = made.latest({"v": 1, "vb": {}}, None)
    assert first["vb"] == {"0": ["000000000000000a", 10, 0, 10]}
    calm = made.latest(first, None)
    assert calm["vb"] == {"0": ["000000000000000a", 10]}
    assert made.latest(calm, None) is calm


def test_a_start_at_the_newest_waits_for_vbuckets_without_a_node() -> None:
    """One that is left out would be read from its beginning, all of it, once it has a node again."""
    seen = Seen(high=10)
    made = planning(seen)
    first = made.latest({"v": 1, "latest": True}, None)
    assert (first["vb"], seen.wholes) == ({"0": ["000000000000000a", 10]}, [True])
    made.latest(first, None)
    assert seen.wholes == [True, False]


def test_every_offset_carries_the_collections_that_are_read() -> None:
    seen = Seen(high=10)
    seen.coverage, told = Coverage(4, collections=(8, 9)), {"uid": "4", "collections": ["8", "9"]}
    made = planning(seen, settle=True)
    made.aim()
    first = made.latest({"v": 1, "vb": {}}, None)
    calm = made.latest(first, None)
    assert first["collections"] == calm["collections"] == told
    assert made.latest(calm, None) is calm
    assert planning(seen).latest({"v": 1, "latest": True}, None)["collections"] == told


def test_nothing_settles_that_moved_on_or_that_runs_for_ever() -> None:
    seen = Seen(high=10)
    ends, endless = planning(seen, settle=True), planning(seen, settle=True)
    ends.aim()
    first = ends.latest({"v": 1, "vb": {}}, None)
    assert endless.latest(first, None) is first
    seen.high = 11
    assert endless.latest(first, None)["vb"]["0"][1] == ends.latest(first, None)["vb"]["0"][1] == 11


def test_only_who_has_all_there_was_asks_idly() -> None:
    """After a batch all is looked at: whether it was whole shows in what the nodes say then."""
    seen = Seen(high=10)
    made = planning(seen)
    first = made.latest({"v": 1, "vb": {}}, None)
    assert made.latest(first, None) is first
    assert made.latest(first, None) is first
    made.look_again()
    assert made.latest(first, None) is first
    assert seen.asked == [False, False, True, False]


def test_a_run_to_the_end_goes_a_little_further_where_it_was_written_to_while_it_read() -> None:
    """Behind the goal lies what replaced a document while it was read: without it the document would be missing."""
    seen = Seen(high=10)
    made = planning(seen)
    made.aim()
    place = made.latest({"v": 1, "vb": {}}, None)
    for high in range(11, 11 + FURTHER_MAX):
        seen.high = high
        place = made.latest(place, None)
        assert place["vb"]["0"][1] == high
    seen.high += 1
    assert made.latest(place, None) is place, "or it would never end"


def test_a_run_to_the_end_that_had_nothing_to_read_goes_no_further() -> None:
    seen, start = Seen(high=10), {"v": 1, "vb": {"0": ["000000000000000a", 10]}}
    made = planning(seen)
    made.aim()
    seen.high = 11
    assert made.latest(start, None) is start


def test_a_run_to_the_end_misses_a_vbucket_that_loses_its_node_on_the_way() -> None:
    """Else it would end without what is left of it, as if it had all there was."""
    seen = Seen(high=10)
    ends, endless = planning(seen), planning(seen)
    ends.aim()
    ends.latest({"v": 1, "vb": {}}, None)
    assert seen.wholes == [True, True]
    endless.latest({"v": 1, "vb": {}}, None)
    assert not seen.wholes[-1]


def test_a_batch_ends_where_enough_copies_are_and_the_rest_comes_when_they_have_it() -> None:
    seen = Seen(high=10)
    seen.persisted = 7
    made = planning(seen)
    first = made.latest({"v": 1, "vb": {}}, None)
    assert first["vb"] == {"0": ["000000000000000a", 7, 0, 10]}
    assert made.latest(first, None) is first, "nothing more is safe"
    seen.persisted = 12
    assert made.latest(first, None)["vb"]["0"][1] == 10
    seen.persisted = 0
    assert planning(seen).latest({"v": 1, "vb": {}}, None)["vb"] == {}


def test_who_read_one_batch_up_to_the_copies_reads_it_again_whole_after_a_failover_that_lost_nothing_of_it() -> None:
    """The node had more then, which may have replaced what the copy still has below: nobody can tell."""
    seen = Seen(high=10)
    seen.persisted = 7
    made = planning(seen)
    first = made.latest({"v": 1, "vb": {}}, None)
    seen.log, seen.high, seen.persisted = ((0xB, 8), *ONE), 8, 8
    again = made.latest(first, None)
    assert (again["rollback"], again["vb"]["0"][1:]) == ([0], [8, 0, 8])


def test_a_run_to_the_end_ends_with_what_enough_copies_had_when_it_began() -> None:
    seen = Seen(high=10)
    seen.persisted = 7
    made = planning(seen)
    made.aim()
    seen.high = seen.persisted = 20
    assert made.latest({"v": 1, "vb": {}}, None)["vb"]["0"][1] == 7


def test_a_bucket_that_has_fewer_vbuckets_than_were_read_is_refused() -> None:
    """Else the documents of the others would stay for ever."""
    start = {"v": 1, "vb": {"0": ["000000000000000a", 10], "3": ["000000000000000a", 10]}}
    told = (
        "is not a bucket with vbucket 3, at which the read begins: it has 1 vbuckets. Name its own in startingOffsets"
    )
    with pytest.raises(OptionError, match=told):
        planning(Seen(high=10)).latest(start, None)


def test_an_end_that_no_vbucket_has_come_to_is_refused_with_how_far_it_is() -> None:
    seen = {0: BranchHistory(ONE, 10), 1: BranchHistory(ONE, 10, persisted_seqno=7)}
    check_ends({0: 10, 1: 7}, seen, 4)
    check_ends({3: 99}, seen, 4)  # of a vbucket that is not among those that are read
    for ends, told in (({0: 11}, "vbucket 0 has come to: it is at 10"), ({1: 8}, "it is at 7"), ({4: 1}, "it has 4")):
        with pytest.raises(OptionError, match=told):
            check_ends(ends, seen, 4)


def test_a_rollback_that_the_user_does_not_want_ends_the_read() -> None:
    start = {"v": 1, "vb": {"0": ["000000000000000a", 10]}}
    seen = Seen(high=9)
    seen.log = ((0xB, 7), *ONE)
    end = planning(seen).latest(start, None)
    assert end["rollback"] == [0]
    with pytest.raises(RollbackRequired, match="rollbackPolicy is fail"):
        check("fail", Offset.from_json(start), Offset.from_json(end))
    check("emit", Offset.from_json(start), Offset.from_json(end))


def test_a_data_loss_is_in_the_offset_and_in_the_row_and_fails_whom_it_is_to_fail(caplog) -> None:
    start, seen = Offset({0: Position(0, 0xA, 10, 10, 10)}), {0: BranchHistory(ONE, 30, purge_seqno=20)}
    end = plan(start, seen)
    assert end.to_json()["rollback"] == [0] and end.to_json()["dataLoss"] == {"0": 20}
    assert Offset.from_json(end.to_json()) == end
    (part,) = ranges(start, end)
    assert (part.rollback, part.start_seqno, part.end_seqno, part.purged) == (True, 0, 30, 20)
    row = RowMaker(("event", "seqno", "snapshot_end"), "binary", "binary").rollbacks([part]).to_pylist()
    assert row == [{"event": "rollback", "seqno": 0, "snapshot_end": 20}]
    check_loss(start, end, fails=False)
    assert "data loss: deletions were purged before they were read, in vbuckets 0 (to seqno 20)" in caplog.text
    with pytest.raises(DataLoss) as caught:
        check_loss(start, end, fails=True)
    assert (caught.value.vbucket, caught.value.requested, caught.value.purged) == (0, 10, {0: 20})
    assert pickle.loads(pickle.dumps(caught.value)).purged == {0: 20}


def test_a_failover_is_no_data_loss() -> None:
    start = Offset({0: Position(0, 0xA, 10, 10, 10)})
    end = plan(start, {0: BranchHistory(((0xB, 5), (0xA, 0)), 30)})
    assert end.rollbacks == {0} and "dataLoss" not in end.to_json()
    check_loss(start, end, fails=True)


def test_what_is_reported_says_how_many_vbuckets_no_node_has() -> None:
    seen = Seen(high=10)
    made = planning(seen)
    seen.ownerless = (3, 61.5)
    made.latest({"v": 1, "vb": {}}, None)
    assert made.reported is not None and made.reported["noNode"] == {"vbuckets": 3, "seconds": 61.5}
    assert Offset.from_json(made.reported).position(0).seqno == 10


def test_a_vbucket_rests_that_has_been_read_to_the_end_and_was_not_read_since() -> None:
    seen = Seen(high=10)
    made = planning(seen)
    begun = Offset({0: Position(0, 0xA, 5, 5, 5)}).to_json()
    first = made.latest(begun, None)
    second = made.latest(first, None)  # the batch up to 10 was read: whether it was whole, a new look tells
    assert second == first and seen.resting == [set(), set()]
    assert made.latest(second, None) == second and seen.resting[-1] == {0}
    made.look_again()
    assert made.latest(second, None) == second and seen.resting[-1] == set()
    assert made.latest(second, None) == second and seen.resting[-1] == {0}
    seen.high = 12
    third = made.latest(second, None)
    assert Offset.from_json(third).position(0).seqno == 12
    made.latest(third, None)
    assert seen.resting[-1] == set()


NOON = 1_700_000_000 * NANOSECONDS


def test_an_offset_says_up_to_which_time_nothing_is_missing_in_it() -> None:
    seen = Seen(high=10)
    seen.clock = NOON
    made = planning(seen)
    first = made.latest({"v": 1, "vb": {}}, None)
    assert first["completeUntil"] == NOON
    assert made.reported is not None and made.reported["complete"] == {"until": 0, "standsFor": ""}
    seen.clock += 5
    assert made.latest(first, None) is first, "nothing changed, and Spark would run a batch for the time alone"
    assert made.reported["complete"]["until"] == NOON + 5


def test_a_batch_that_is_cut_is_complete_up_to_the_time_that_it_had_before() -> None:
    seen = Seen(high=10)
    seen.clock = NOON
    made = planning(seen)
    first = made.latest({"v": 1, "vb": {}}, None)
    seen.high, seen.clock = 20, NOON + 1
    cut = made.latest(first, 5)
    assert (cut["vb"]["0"][1], cut["completeUntil"]) == (15, NOON)
    seen.high, seen.clock = 30, NOON + 2
    assert made.latest(cut, 5)["completeUntil"] == NOON + 1
    assert made.latest(cut, None)["completeUntil"] == NOON + 2


def test_a_failover_that_takes_changes_back_leaves_the_time_where_it_was() -> None:
    seen = Seen(high=10)
    seen.clock = NOON
    made = planning(seen)
    first = made.latest({"v": 1, "vb": {}}, None)
    seen.log, seen.high = ((0xB, 6), *ONE), 7
    after = made.latest(first, None)
    assert (after["rollback"], after["completeUntil"]) == ([0], NOON)


def test_a_job_with_a_record_of_its_own_tells_the_time_now_and_then_though_nothing_changes() -> None:
    seen = Seen(high=10)
    seen.clock = NOON
    made = planning(seen, settle=True)
    made.aim()
    calm = made.latest(made.latest({"v": 1, "vb": {}}, None), None)
    seen.clock += int(TELL_SECONDS) * NANOSECONDS - 1
    assert made.latest(calm, None) is calm
    seen.clock += 1
    later = made.latest(calm, None)
    assert later == calm | {"completeUntil": seen.clock}
    assert made.latest(later, None) is later


def test_a_position_on_a_branch_that_no_node_has_says_nothing_of_the_time() -> None:
    """A repair leaves such positions, whose vbuckets are read anew; until then rows may be missing."""
    seen = Seen(high=10)
    seen.clock = NOON
    made = planning(seen)
    end = made.latest({"v": 1, "vb": {"0": ["0000000000000001", 100]}}, None)
    assert made.reported is not None and made.reported["complete"]["until"] == 0
    assert (end["rollback"], end["completeUntil"]) == ([0], NOON)


def test_a_planner_that_starts_again_does_not_go_back() -> None:
    seen = Seen(high=10)
    first = {"v": 1, "vb": {"0": ["000000000000000a", 10]}, "completeUntil": NOON}
    seen.high, seen.clock = 11, NOON - 1
    assert planning(seen).latest(first, None)["completeUntil"] == NOON
