"""What nodes answer to an administrator, read into objects; what is no such answer is refused."""

import pytest

from headwater.cluster import answers
from headwater.errors import RemoteProtocolError
from headwater.wire.header import Frame
from headwater.wire.vbucket import State


def test_states_are_read_by_name():
    assert answers.states({"vb_0": "active", "vb_17": "dead"}) == {0: State.ACTIVE, 17: State.DEAD}


@pytest.mark.parametrize("told", [{"vb_x": "active"}, {"vb_1": "asleep"}])
def test_a_state_that_is_none_is_refused(told):
    with pytest.raises(RemoteProtocolError, match="STAT vbucket"):
        answers.states(told)


def test_the_state_of_one_vbucket_is_four_bytes():
    assert answers.state(Frame(0x81, 0x3E, value=bytes([0, 0, 0, 2]))) is State.REPLICA


@pytest.mark.parametrize("value", [b"", bytes(4), bytes([0, 0, 0, 5]), bytes([1])])
def test_a_state_of_another_shape_is_refused(value):
    with pytest.raises(RemoteProtocolError, match="GET_VBUCKET"):
        answers.state(Frame(0x81, 0x3E, value=value))


def test_seqnos_are_entries_of_ten_bytes():
    value = bytes.fromhex("0003 00000000000000090400 00000000000000ff")
    assert answers.seqnos(Frame(0x81, 0x48, value=value)) == {3: 9, 1024: 255}
    with pytest.raises(RemoteProtocolError, match="no multiple of 10"):
        answers.seqnos(Frame(0x81, 0x48, value=value[:-1]))


def test_a_failover_log_has_entries_of_sixteen_bytes_and_at_least_one():
    value = bytes.fromhex("00000000000000aa 0000000000000007 00000000000000bb 0000000000000000")
    assert answers.failover_log(Frame(0x81, 0x96, value=value)) == [(0xAA, 7), (0xBB, 0)]
    for wrong in (b"", value[:-1]):
        with pytest.raises(RemoteProtocolError, match="failover log"):
            answers.failover_log(Frame(0x81, 0x96, value=wrong))


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
        "[::1]:2/default:connected": "false",
    }
    found = answers.following(told)
    first = found["127.0.0.1:1/default"]
    assert (first.connected, first.connects, first.problem) == (True, 2, "")
    assert (first.vbuckets, first.takeovers) == ({0: "reading", 5: "waiting"}, {0})
    assert not found["[::1]:2/default"].connected
