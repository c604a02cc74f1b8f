"""Answers of nodes to an administrator are read into objects; others are refused."""

import pytest

from headwater.cluster import answers
from headwater.errors import RemoteProtocolError
from headwater.wire.vbucket import State


def test_states_are_read_by_name():
    assert answers.states({"vb_0": "active", "vb_17": "dead"}) == {0: State.ACTIVE, 17: State.DEAD}


@pytest.mark.parametrize("told", [{"vb_x": "active"}, {"vb_1": "asleep"}])
def test_a_state_that_is_none_is_refused(told):
    with pytest.raises(RemoteProtocolError, match="STAT vbucket"):
        answers.states(told)


def test_a_failover_log_is_read_out_of_statistics_newest_first():
    told = {"vb_7:num_entries": "2", "vb_7:num_erroneous_entries_erased": "0"}
    told |= {"vb_7:0:id": "170", "vb_7:0:seq": "7", "vb_7:1:id": "187", "vb_7:1:seq": "0"}
    assert answers.failover_statistics(7, told) == [(0xAA, 7), (0xBB, 0)]
    for wrong in ({}, {"vb_7:num_entries": "0"}, {"vb_7:num_entries": "99999999"}, told | {"vb_7:1:seq": "-1"}):
        with pytest.raises(RemoteProtocolError, match="failovers"):
            answers.failover_statistics(7, wrong)


def test_documents_are_counted_by_vbucket():
    assert answers.items({"vb_3": "active", "vb_3:num_items": "12", "vb_3:high_seqno": "99"}) == {3: 12}


def test_takeover_stats_tell_whether_there_is_a_stream():
    told = answers.TakeoverStats.of({"status": "in-memory", "estimate": "12", "backfillRemaining": "0"})
    assert (told.is_streaming, told.estimate) == (True, 12)
    assert not answers.TakeoverStats.of({"status": "stream_does_not_exist"}).is_streaming
    with pytest.raises(RemoteProtocolError, match="estimate"):
        answers.TakeoverStats.of({"status": "in-memory", "estimate": "-1"})


def test_replication_is_told_by_producer():
    told = {
        "127.0.0.1:1/default:connected": "true",
        "127.0.0.1:1/default:connects": "2",
        "127.0.0.1:1/default:problem": "",
        "127.0.0.1:1/default:vb_0": "reading",
        "127.0.0.1:1/default:vb_0_takeover": "true",
        "127.0.0.1:1/default:vb_5": "waiting",
        "127.0.0.1:1/default:vb_5_takeover": "false",
        "127.0.0.1:1/default:vb_5_problem": "the producer answered ERANGE",
        "[::1]:2/default:connected": "false",
    }
    found = answers.following(told)
    first = found["127.0.0.1:1/default"]
    assert (first.connected, first.connects, first.problem) == (True, 2, "")
    assert first.vbuckets == {0: "reading", 5: "waiting"}
    assert first.problems == {5: "the producer answered ERANGE"} and first.takeovers == {0}
    assert not found["[::1]:2/default"].connected


def test_seqnos_are_read_out_of_the_details_of_vbuckets():
    assert answers.seqnos({"vb_3": "active", "vb_3:high_seqno": "12", "vb_3:num_items": "2"}) == {3: 12}
    with pytest.raises(RemoteProtocolError, match="vb_3:high_seqno"):
        answers.seqnos({"vb_3:high_seqno": "many"})


@pytest.mark.parametrize(
    ("told", "complete"),
    [
        ({"high_seqno": "1224", "complete_seqno": "3"}, 3),
        ({"high_seqno": "1224"}, 1224),
        ({"high_seqno": "1224", "last_persisted_snap_start": "1224", "last_persisted_snap_end": "1224"}, 1224),
        ({"high_seqno": "1224", "last_persisted_snap_start": "1100", "last_persisted_snap_end": "31150"}, 1100),
    ],
)
def test_a_copy_is_complete_up_to_where_it_says_or_where_its_snapshot_begins(told, complete):
    assert answers.complete({"vb_7": "replica", **{f"vb_7:{name}": value for name, value in told.items()}}) == {
        7: complete
    }


def test_changes_that_a_copy_lacks_are_counted_where_there_are_any():
    told = {"vb_3:refused_changes": "2", "vb_4:refused_changes": "0", "vb_4:damaged_changes": "7"}
    assert (answers.refused(told), answers.damaged(told)) == ({3: 2}, {4: 7})


def test_how_far_a_damaged_copy_may_have_acknowledged_is_known_where_a_node_tells():
    assert answers.acknowledged({"vb_4:damaged_changes": "7", "vb_4:acknowledged_seqno": "30"}) == {4: 30}
    assert answers.acknowledged({"vb_4:damaged_changes": "7"}) == {}


def test_a_flaw_is_told_in_words():
    whole = {"vb_3:high_seqno": "9", "vb_3:complete_seqno": "9"}
    behind = {"vb_3:high_seqno": "9", "vb_3:complete_seqno": "4", "vb_3:refused_changes": "1"}
    assert answers.flaw(3, whole | {"vb_3:damaged_changes": "2"}) == answers.IS_DAMAGED
    assert answers.flaw(3, behind) == answers.HAS_GAP
    assert answers.flaw(3, whole | {"vb_3:refused_changes": "1"}) == answers.flaw(3, whole) == answers.flaw(3, {}) == ""


def test_a_statistic_that_is_not_told_is_none():
    assert answers.number_of({"a": "12"}, "a") == 12
    for stats in (None, {}, {"a": ""}, {"a": "x"}, {"a": "-1"}, {"a": "9" * 21}):
        assert answers.number_of(stats, "a") is None


def test_copies_are_read_whole_with_the_failover_log_newest_first():
    told = {"vb_7": "replica 900 870 3 0 65536 aa:120 bb:0", "vb_9": "active 5 5 0 0 0 cc:0"}
    found = answers.copies(told)
    assert found[7] == answers.CopyReport(State.REPLICA, 900, 870, [(0xAA, 120), (0xBB, 0)], 3, 0, 65536)
    assert found[7].flaw == answers.HAS_GAP and not found[7].is_active
    assert found[9].is_active and found[9].flaw == ""
    assert answers.copies({"vb_1": "replica 9 4 0 2 0 aa:0"})[1].flaw == answers.IS_DAMAGED


@pytest.mark.parametrize(
    "told", ["", "asleep 1 1 0 0 0 aa:0", "active 1 x 0 0 0 aa:0", "active 1 1 0 0", "dead 1 1 0 0 0 a"]
)
def test_a_copy_that_can_not_be_read_is_refused(told):
    with pytest.raises(RemoteProtocolError, match="vbucket-copies"):
        answers.copies({"vb_1": told})
