"""A DCP connection on a node: turns, windows, names, no-ops, and the commands that are no DCP."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headwater.errors import RemoteProtocolError
from headwater.node.storage.scrub import Damage
from headwater.node.streams.outlet import ARENA_BYTES
from headwater.node.streams.session import STREAMS_OPENED_AT_ONCE
from headwater.wire import dcp, snappy
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.streams.support import Producer, StreamDesk, told

CHANGE_BYTES = 55 + 1 + 5


def fill(desk: StreamDesk, vb: int, count: int, value: bytes = b"value") -> None:
    for number in range(count):
        desk.set(vb, f"k{number}", value)
    desk.commit()


def vbuckets_of(frames: list[Frame]) -> list[int]:
    return [frame.vbucket for frame in frames]


# --------------------------------------------------------------------------- turns


def test_one_turn_sends_an_arena_at_most_and_the_next_goes_on(desk: StreamDesk) -> None:
    fill(desk, 0, 600, b"x" * 1000)
    reader = Producer(desk)
    reader.stream()
    first = reader.turn()
    assert len(first) > 200
    assert sum(map(len, first)) <= ARENA_BYTES
    assert reader.connection.woken
    assert len(first) + len(reader.read()) == 601


def test_streams_take_turns(desk: StreamDesk) -> None:
    for vb in (0, 1):
        fill(desk, vb, 400, b"x" * 1000)
    reader = Producer(desk)
    reader.stream(0, 7)
    reader.stream(1, 8)
    seen = [set(vbuckets_of(reader.turn())) for _ in range(3)]
    assert seen == [{0}, {1}, {0, 1}]
    frames = reader.read()
    assert {told([frame])[0][0] for frame in frames} == {"mutation"}


def test_a_stream_with_little_to_say_does_not_wait_for_one_with_much(desk: StreamDesk) -> None:
    fill(desk, 0, 2000, b"x" * 1000)
    reader = Producer(desk)
    reader.stream(0, 7)
    reader.turn()
    fill(desk, 1, 1)
    reader.stream(1, 8)
    assert 1 in vbuckets_of([*reader.turn(), *reader.turn()])


def test_a_value_larger_than_the_arena_goes_out_whole(desk: StreamDesk) -> None:
    fill(desk, 0, 3, b"x" * (2 << 20))
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1024")
    reader.stream(end_seqno=3)
    sizes = []
    while frames := reader.read():
        sizes.append([len(frame.value) for frame in frames if frame.opcode == Opcode.DCP_MUTATION])
        reader.ack(sum(map(len, frames)))
    assert [size for size in sizes if size] == [[2 << 20]] * 3


# --------------------------------------------------------------------------- flow control


def test_a_window_of_100_bytes_lets_the_marker_and_one_mutation_through(desk: StreamDesk) -> None:
    fill(desk, 0, 10)
    reader = Producer(desk)
    reader.control("connection_buffer_size", "100")
    reader.stream()
    assert [kind for kind, *_ in told(reader.read())] == ["marker", "mutation"]
    reader.ack(44)
    assert [kind for kind, *_ in told(reader.read())] == ["mutation"]


def test_commands_are_answered_while_the_window_is_full(desk: StreamDesk) -> None:
    fill(desk, 0, 5)
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1")
    reader.stream()
    assert len(reader.read()) == 1
    assert reader.one(Opcode.DCP_GET_FAILOVER_LOG).status == Status.SUCCESS
    assert reader.control("enable_noop", "true") == Status.SUCCESS
    reader.stream(1, 8)
    assert reader.close_stream().status == Status.SUCCESS
    assert reader.read() == []


def test_the_space_that_is_freed_goes_to_the_next_stream(desk: StreamDesk) -> None:
    fill(desk, 0, 5)
    fill(desk, 1, 5)
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1")
    reader.stream(0, 7)
    reader.stream(1, 8)
    seen = []
    for _ in range(6):
        (frame,) = reader.read()
        seen.append(frame.vbucket)
        reader.ack(len(frame))
    assert seen == [0, 1, 0, 1, 0, 1]


def test_the_ledger_counts_what_is_on_the_wire(desk: StreamDesk) -> None:
    fill(desk, 0, 50)
    desk.delete(0, "k3")
    desk.commit()
    reader = Producer(desk)
    reader.control("connection_buffer_size", "1000000")
    reader.stream(end_seqno=51)
    frames = reader.read()
    assert reader.session.producer.flow.outstanding_bytes == sum(map(len, frames))


# --------------------------------------------------------------------------- forms


def test_a_connection_without_values(desk: StreamDesk) -> None:
    fill(desk, 0, 3, b"x" * 1000)
    reader = Producer(desk, flags=0x09)
    reader.stream()
    changes = reader.read()[1:]
    assert [(frame.value, frame.datatype) for frame in changes] == [(b"", 0)] * 3


def test_compressed_values_are_inflated_for_who_did_not_ask_for_snappy(desk: StreamDesk) -> None:
    desk.set(0, "a", snappy.compress(b"hello" * 50), datatype=2)
    desk.set(0, "b", b"world" * 50)
    desk.commit()
    plain, compressed, forced = (
        Producer(desk, "plain"),
        Producer(desk, "snappy", features=(0x07, 0x0A)),
        Producer(desk, "forced", features=(0x07, 0x0A)),
    )
    assert plain.control("force_value_compression", "true") == Status.EINVAL
    assert forced.control("force_value_compression", "true") == Status.SUCCESS
    seen = []
    for reader in (plain, compressed, forced):
        reader.stream()
        seen.append([(len(frame.value), frame.datatype) for frame in reader.read()[1:]])
    small = len(snappy.compress(b"hello" * 50))
    assert seen == [[(250, 0), (250, 0)], [(small, 2), (250, 0)], [(small, 2), (small, 2)]]


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


# --------------------------------------------------------------------------- damage


def spoil(desk: StreamDesk) -> None:
    """A byte of the newest batch turns over, and the scrubber finds it."""
    segment = desk.store._log.segments[-1]
    with segment.path.open("r+b") as file:
        file.seek(segment.end - 1)
        file.write(b"\xff")
    for found in desk.store.scrub(1 << 20):
        if isinstance(found, Damage):
            desk.bucket.take_out(found)


def test_a_stream_of_a_damaged_vbucket_ends_and_is_refused_from_before_the_damage(desk: StreamDesk) -> None:
    fill(desk, 0, 3)
    reader = Producer(desk)
    reader.stream(0, 7)
    reader.stream(1, 8)
    reader.read()
    desk.set(0, "lost")
    desk.commit()
    spoil(desk)
    ends = [dcp.StreamEnd.decode(frame) for frame in reader.read() if frame.opcode == Opcode.DCP_STREAM_END]
    assert [(end.vbucket, end.status) for end in ends] == [(0, dcp.EndReason.BACKFILL_FAIL)]
    assert reader.request(0, 9, start_seqno=0).status == Status.EINTERNAL
    uuid = desk.bucket.vbuckets[0].failover.newest.vb_uuid
    assert reader.request(0, 10, start_seqno=4, vb_uuid=uuid).status == Status.SUCCESS


# --------------------------------------------------------------------------- many requests at once


def requests(vbuckets: range) -> bytes:
    return b"".join(
        dcp.StreamRequest(vbucket=vb, opaque=vb, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0).encode()
        for vb in vbuckets
    )


def test_requests_that_come_together_are_answered_together_and_in_order(desk: StreamDesk) -> None:
    reader = Producer(desk)
    before = len(reader.connection.sent)
    reader.give(requests(range(4)))
    assert len(reader.connection.sent) == before + 1
    answers = reader.buffer.receive_data(reader.bytes_sent())
    assert [(answer.opaque, answer.status) for answer in answers] == [(vb, Status.SUCCESS) for vb in range(4)]


def test_while_many_streams_are_opened_the_first_ones_send_already(tmp_path: Path) -> None:
    with closing(StreamDesk(tmp_path / "store", vbuckets=128)) as desk:
        for vb in range(128):
            desk.set(vb, "key")
        desk.commit()
        reader = Producer(desk)
        reader.give(requests(range(128)))
        frames = reader.buffer.receive_data(reader.bytes_sent())
        opened = [frame.opaque for frame in frames if frame.opcode == Opcode.DCP_STREAM_REQ]
        assert opened == list(range(128))
        assert Opcode.DCP_MUTATION in {frame.opcode for frame in frames[: STREAMS_OPENED_AT_ONCE + 2]}
        frames += reader.read()
    for vb in range(128):
        mine = [frame.opcode for frame in frames if frame.opaque == vb]
        assert mine == [Opcode.DCP_STREAM_REQ, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]


def test_what_came_before_a_frame_that_ends_it_all_is_answered(desk: StreamDesk) -> None:
    reader = Producer(desk)
    with pytest.raises(RemoteProtocolError):
        reader.give(requests(range(2)) + dcp.StreamEnd(status=0).encode())
    assert len(reader.buffer.receive_data(reader.bytes_sent())) == 2


def test_a_control_between_two_requests_changes_the_form_of_the_second(desk: StreamDesk) -> None:
    reader = Producer(desk, flags=0x21)
    reader.stream(0, 1)
    reader.control("enable_expiry_opcode", "true")
    reader.stream(1, 2)
    for vb in (0, 1):
        desk.set(vb, "k")
        desk.delete(vb, "k", expired=True)
    desk.commit()
    assert [each[0] for each in told(reader.read())] == ["marker", "deletion", "marker", "expiration"]
