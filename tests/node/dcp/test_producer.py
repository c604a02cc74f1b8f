"""A DCP connection on a node: how it opens, whose name it is, how it ends, and the commands that are no DCP."""

from __future__ import annotations

import pytest

from headwater.accounts.roles import read_grants
from headwater.errors import RemoteProtocolError
from headwater.node.dcp.producer import END_BYTES
from headwater.node.users.logins import Users
from headwater.wire import dcp
from headwater.wire.dcp import EndReason, StreamFlag
from headwater.wire.header import response
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import Producer, StreamDesk, fill, told
from tests.node.support import Talk

CHANGE_BYTES = 55 + 1 + 5


# --------------------------------------------------------------------------- opening


@pytest.mark.parametrize(
    ("key", "extras", "status"),
    [
        (b"", bytes(7) + b"\1", Status.EINVAL),
        (b"n" * 201, bytes(7) + b"\1", Status.EINVAL),
        (b"n", bytes(4), Status.EINVAL),
        (b"n", bytes(7) + b"\x03", Status.EINVAL),
        (b"n", bytes(8), Status.SUCCESS),
        (b"n", bytes(7) + b"\1", Status.SUCCESS),
    ],
)
def test_opens_and_their_answers(desk: StreamDesk, key: bytes, extras: bytes, status: Status) -> None:
    talk = desk.session()
    talk.hello(0x07)
    assert talk.one(Opcode.DCP_OPEN, key=key, extras=extras).status == status


@pytest.mark.parametrize("opcode", [0x51, 0x52, 0x53, 0x54, 0x57, 0x5B, 0x5C, 0x5D, 0x5E, 0x61])
def test_dcp_commands_need_a_dcp_connection(desk: StreamDesk, opcode: int) -> None:
    talk = desk.session()
    talk.hello(0x07)
    assert talk.one(opcode, extras=bytes(4)).status == Status.EINVAL


def test_unordered_execution_and_dcp_exclude_each_other(desk: StreamDesk) -> None:
    talk = desk.session()
    talk.hello(0x07)
    talk.kv.features |= {0x0E}
    assert talk.one(Opcode.DCP_OPEN, key=b"n", extras=bytes(7) + b"\1").status == Status.NOT_SUPPORTED
    assert talk.one(Opcode.DCP_CONTROL, key=b"k", value=b"v").status == Status.NOT_SUPPORTED


# --------------------------------------------------------------------------- life of a connection


def test_a_name_belongs_to_the_newest_connection(desk: StreamDesk) -> None:
    older = Producer(desk, "same")
    older.stream()
    newer = Producer(desk, "same")
    assert older.connection.is_closed
    assert "another connection took the name" in older.connection.dropped
    assert not desk.bucket.vbuckets[0].readers
    newer.stream()
    desk.set(0, "a")
    desk.commit()
    assert told(newer.read())[-1] == ("mutation", 1, "a")
    assert list(desk.dcp.sessions) == [b"same"]


def test_closing_the_socket_leaves_nothing_behind(desk: StreamDesk) -> None:
    fill(desk, 0, 600, b"x" * 1000)
    reader = Producer(desk)
    reader.stream()
    reader.turn()
    reader.connection.drop("gone", fault=False)
    assert not desk.bucket.vbuckets[0].readers
    assert desk.dcp.sessions == {}


def test_closing_a_stream_stops_it_at_once(desk: StreamDesk) -> None:
    fill(desk, 0, 5)
    reader = Producer(desk)
    reader.stream()
    assert len(reader.read()) == 6
    assert reader.close_stream().status == Status.SUCCESS
    assert reader.close_stream().status == Status.KEY_ENOENT
    fill(desk, 0, 3)
    assert reader.read() == []


def test_closing_a_stream_with_the_control_ends_it_with_reason_1(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.control("send_stream_end_on_client_close_stream", "true")
    reader.stream()
    answer, end = reader.ask(Opcode.DCP_CLOSE_STREAM)
    assert (answer.status, told([end])) == (0, [("end", 1)])
    assert reader.read() == []


def test_ends_that_a_full_window_holds_back_are_counted_as_kept(
    desk: StreamDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    reader = Producer(desk)
    monkeypatch.setattr(reader.connection, "keeps", kept.append)
    assert reader.control("connection_buffer_size", "1") == 0
    assert reader.control("send_stream_end_on_client_close_stream", "true") == 0
    for _ in range(50):
        reader.stream()
        reader.give(dcp.CloseStream(opaque=7).encode())
        reader.buffer.receive_data(reader.bytes_sent())
    assert kept[-1] >= 48 * END_BYTES, "of which the first ones left"
    reader.give(dcp.Control(key=b"connection_buffer_size", value=b"0").encode())
    assert kept[-1] == 0


def test_a_second_stream_of_a_vbucket_is_refused_and_the_first_goes_on(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.stream(0, 7)
    assert reader.request(0, 8).status == Status.KEY_EEXISTS
    fill(desk, 0, 1)
    assert {frame.opaque for frame in reader.read()} == {7}


def test_the_log_of_an_answer_is_told_when_it_is_durable(desk: StreamDesk) -> None:
    vbucket = desk.bucket.vbuckets[0]
    vbucket.set_state(State.REPLICA)
    vbucket.set_state(State.ACTIVE)
    reader = Producer(desk)
    reader.connection.sent.clear()
    reader.give(dcp.GetFailoverLog(vbucket=0).encode())
    ((_, gate),) = reader.connection.sent
    assert gate == vbucket.gate > desk.committer.durable


def test_a_consumer_that_is_silent_for_two_intervals_is_dropped(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.control("set_noop_interval", "20")
    reader.control("enable_noop", "true")
    assert reader.session.deadline == 1020.0
    desk.time.now = 1020.0
    reader.session.tick(1020.0)
    assert reader.bytes_sent().hex() == "805c00000000000000000000009896810000000000000000"
    desk.time.now = 1040.0
    reader.session.tick(1040.0)
    assert "silent for 40 s" in reader.connection.dropped


def test_a_dcp_message_of_the_wrong_direction_hangs_up(desk: StreamDesk) -> None:
    reader = Producer(desk)
    with pytest.raises(RemoteProtocolError, match="only a consumer takes it"):
        reader.give(dcp.Noop(opaque=1).encode())


# --------------------------------------------------------------------------- what is no DCP


@pytest.mark.parametrize(
    ("opcode", "status"),
    [
        (Opcode.NOOP, Status.SUCCESS),
        (Opcode.VERSION, Status.SUCCESS),
        (Opcode.GET_ALL_VB_SEQNOS, Status.SUCCESS),
        (Opcode.GET_FAILOVER_LOG, Status.SUCCESS),
        (Opcode.SELECT_BUCKET, Status.NOT_SUPPORTED),
        (Opcode.SASL_AUTH, Status.NOT_SUPPORTED),
        (Opcode.TAP_CONNECT, Status.EINVAL),
        (0xEE, Status.UNKNOWN_COMMAND),
    ],
)
def test_other_commands_on_a_dcp_connection(desk: StreamDesk, opcode: int, status: Status) -> None:
    reader = Producer(desk)
    reader.stream()
    assert reader.one(opcode).status == status
    fill(desk, 0, 1)
    assert len(reader.read()) == 2


def test_a_document_is_written_and_streamed_on_one_connection(desk: StreamDesk) -> None:
    reader = Producer(desk)
    reader.stream()
    assert reader.one(Opcode.SET, key=b"a", extras=bytes(8), value=b"v").status == Status.SUCCESS
    desk.commit()
    assert told(reader.read())[-1] == ("mutation", 1, "a")


def test_stat_dcp_lists_connections_and_streams(desk: StreamDesk) -> None:
    fill(desk, 0, 4)
    reader = Producer(desk, "index")
    reader.control("connection_buffer_size", "1000")
    reader.stream(opaque=9)
    reader.read()
    pairs = {frame.key.decode(): frame.value.decode() for frame in desk.session().ask(Opcode.STAT, key=b"dcp")}
    assert pairs["eq_dcpq:index:type"] == "producer"
    assert pairs["eq_dcpq:index:unacked_bytes"] == str(44 + 4 * (CHANGE_BYTES + 1))
    assert pairs["eq_dcpq:index:stream_0_state"] == "in-memory"
    assert pairs["eq_dcpq:index:stream_0_last_sent_seqno"] == "4"
    assert pairs["eq_dcpq:index:stream_0_opaque"] == "9"
    reader.connection.drop("gone", fault=False)
    pairs = {frame.key.decode(): frame.value.decode() for frame in desk.session().ask(Opcode.STAT, key=b"dcp")}
    assert "eq_dcpq:index:type" not in pairs


# --------------------------------------------------------------------------- rights


def become(desk: StreamDesk, *clients: Talk, roles: str) -> None:
    """Let the clients be ann, who has these roles by now."""
    desk.users = Users({"ann": "secret"}, {"ann": read_grants(roles)})
    for client in clients:
        client.kv.user = "ann"
        client.connection.session.users_changed()


def test_a_takeover_ends_with_the_right_to_it_and_plain_streams_go_on(desk: StreamDesk) -> None:
    mover = Producer(desk)
    become(desk, mover, roles="replicate")
    fill(desk, 0, 1)
    fill(desk, 1, 1)
    mover.stream(0, flags=StreamFlag.TAKEOVER)
    mover.stream(1, opaque=8)
    become(desk, mover, roles="stream")
    assert ("end", EndReason.LOST_PRIVILEGES) in told(sent := mover.read())
    assert [frame.vbucket for frame in sent if frame.opcode == Opcode.DCP_STREAM_END] == [0]
    assert [frame.vbucket for frame in sent if frame.opcode == Opcode.DCP_MUTATION] == [1]
    assert desk.bucket.state(0) is State.ACTIVE and desk.bucket.vbuckets[0].handover is None


def test_a_takeover_that_made_the_vbucket_dead_here_goes_on_without_the_right_to_it(desk: StreamDesk) -> None:
    """The other node would be left without the last changes, and this one without the vbucket."""
    mover = Producer(desk)
    become(desk, mover, roles="replicate")
    mover.stream(0, flags=StreamFlag.TAKEOVER)
    (asked,) = mover.read()
    mover.give(response(asked).encode())
    assert desk.bucket.state(0) is State.DEAD
    become(desk, mover, roles="stream")
    desk.commit()
    assert [frame.extras for frame in mover.read()] == [bytes([State.ACTIVE])]
