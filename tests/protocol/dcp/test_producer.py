"""A conversation with the producer's end, in the literal bytes of real clients and of the specification."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import LocalProtocolError, RemoteProtocolError
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.producer import CONSUMER_COMMANDS, Producer
from headwater.protocol.dcp.producer_events import (
    FailoverLogRequested,
    NotDcp,
    StreamClosed,
    StreamRequested,
    WindowOpened,
)
from headwater.protocol.dcp.producer_stream import ProducerState
from headwater.protocol.end import PeerGone
from headwater.wire import dcp, upr
from headwater.wire.dcp import EndReason, SnapshotFlag
from headwater.wire.dialect import Dialect
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame
from headwater.wire.json_text import context_of
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.protocol.dcp.producer_talk import (
    FACTS,
    LOG,
    MARKER,
    control,
    producer,
    say,
    stream,
    stream_request,
)

ODD = ({"flags": 0x200}, {"flags": 0x100}, {"datatype": 1}, {"cas": 1}, {"framing": b""})


def test_controls_of_a_real_client_and_their_answers() -> None:
    end = producer(Negotiated())
    talk = {
        "805e0016000000000000001b5e5e00000000000000000000636f6e6e656374696f6e5f6275666665725f73697a653635353336": "00",
        "805e000b000000000000000f5e5e00000000000000000000656e61626c655f6e6f6f7074727565": "00",
        "805e001100000000000000145e5e000000000000000000007365745f6e6f6f705f696e74657276616c313830": "00",
        "805e000c00000000000000105e5e000000000000000000007365745f7072696f7269747968696768": "00",
        "805e000f00000000000000105e5e000000000000000000006e6f5f737563685f636f6e74726f6c78": "04",
        "805e001200000000000000145e5e0000000000000000000073747265616d5f6275666665725f73697a653130": "83",
    }
    for asked, status in talk.items():
        assert say(end, asked) == f"815e0000000000{status}000000005e5e00000000000000000000"
    assert (end.flow.window_bytes, end.noop.enabled, end.noop.interval_seconds) == (65536, True, 180.0)


def test_a_stream_from_request_to_end_in_the_bytes_of_the_specification() -> None:
    end = producer()
    asked = (
        "80530000300000070000003000000077000000000000000000000000000000000000000000000000ffffffffffffffff"
        "000000000000000000000000000000000000000000000000"
    )
    (event,) = end.receive_frame(Frame.decode(bytes.fromhex(asked)), 100.0)
    assert isinstance(event, StreamRequested)
    made = end.answer_stream(event, FACTS, LOG)
    assert made is not None
    assert end.data_to_send().hex() == "815300000000000000000010000000770000000000000000" + LOG.hex()
    marker = end.marker(made, 51, 60, SnapshotFlag(0x0D))
    assert marker.hex() == "8056000014000007000000140000007700000000000000000000000000000033000000000000003c0000000d"
    end.sent_changes(made, 100, 60)
    end.end_stream(made, EndReason.STATE_CHANGED)
    assert end.data_to_send().hex() == "80550000040000070000000400000077000000000000000000000002"
    assert end.streams == {}


def test_a_rollback_answer_is_8_bytes_of_value() -> None:
    end = producer()
    request = dcp.StreamRequest(
        vbucket=7, opaque=0x77, start_seqno=400, vb_uuid=0xA, snap_start_seqno=400, snap_end_seqno=400
    )
    (event,) = end.receive_frame(request.frame(), 100.0)
    assert isinstance(event, StreamRequested)
    assert end.answer_stream(event, FACTS, LOG) is None
    assert end.data_to_send().hex() == "8153000000000023000000080000007700000000000000000000" + "00000000012c"


def test_failover_log_in_the_bytes_of_the_specification() -> None:
    end = producer()
    asked = Frame.decode(bytes.fromhex("805400000000000000000000deadbeef0000000000000000"))
    (event,) = end.receive_frame(asked, 100.0)
    assert event == FailoverLogRequested(asked)
    assert isinstance(event, FailoverLogRequested)
    end.answer_log(event, LOG)
    end.answer_log(event, None)
    answers = end.data_to_send().hex()
    assert answers == (
        "815400000000000000000010deadbeef0000000000000000"
        + LOG.hex()
        + "815400000000000700000000deadbeef0000000000000000"
    )


def test_closing_a_stream_is_silent_unless_its_end_was_asked_for() -> None:
    end = producer(Negotiated())
    made = stream(end)
    (event,) = end.receive_frame(dcp.CloseStream(vbucket=7, opaque=5).frame(), 100.0)
    assert event == StreamClosed(made)
    assert end.data_to_send().hex() == "815200000000000000000000000000050000000000000000"
    assert say(end, dcp.CloseStream(vbucket=7, opaque=6).encode().hex()) == (
        "815200000000000100000000000000060000000000000000"
    )


def test_closing_with_the_control_sends_one_stream_end() -> None:
    end = producer()
    assert control(end, b"send_stream_end_on_client_close_stream", b"true") == 0
    stream(end)
    end.receive_frame(dcp.CloseStream(vbucket=7, opaque=5).frame(), 100.0)
    assert end.data_to_send().hex() == (
        "81520000000000000000000000000005000000000000000080550000040000070000000400000077000000000000000000000001"
    )


@pytest.mark.parametrize("opcode", sorted(CONSUMER_COMMANDS))
def test_what_only_a_consumer_takes_ends_the_connection(opcode: Opcode) -> None:
    with pytest.raises(RemoteProtocolError, match=f"opcode 0x{opcode:02x} was sent to a producer"):
        producer().receive_frame(Frame(0x80, opcode), 100.0)


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (Frame(0x80, Opcode.DCP_OPEN, b"again", bytes(8)), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_STREAM_REQ, extras=bytes(47)), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_STREAM_REQ, extras=bytes(48), datatype=0xFF), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_CONTROL, b"enable_noop", value=b"true", datatype=0xFF), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_CONTROL, value=b"true"), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_CONTROL, b"enable_noop"), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_CLOSE_STREAM, b"key"), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_GET_FAILOVER_LOG, b"key"), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, b"key", bytes(4)), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_BUFFER_ACKNOWLEDGEMENT), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_SEQNO_ACKNOWLEDGED, extras=bytes(8)), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_FLUSH), Status.NOT_SUPPORTED),
        (Frame(0x80, Opcode.DCP_CLOSE_STREAM, vbucket=999), Status.KEY_ENOENT),
        (Frame(0x08, Opcode.DCP_CLOSE_STREAM, framing=bytes.fromhex("220047")), Status.DCP_STREAMID_INVALID),
        (Frame(0x08, Opcode.DCP_CLOSE_STREAM, framing=bytes.fromhex("22")), Status.EINVAL),
    ],
)
def test_what_is_answered_with_an_error(frame: Frame, status: Status) -> None:
    end = producer()
    assert end.receive_frame(frame, 100.0) == []
    answer = Frame.decode(end.data_to_send())
    assert (answer.opcode, answer.status) == (frame.opcode, status)
    (refusal,) = end.refusals.take()
    assert context_of(answer.value) == refusal.reason != ""


def test_a_client_without_xerror_is_never_told_what_it_does_not_know() -> None:
    with pytest.raises(RemoteProtocolError, match="DCP_STREAMID_INVALID can not be told"):
        producer(Negotiated()).receive_frame(
            Frame(0x08, Opcode.DCP_CLOSE_STREAM, framing=bytes.fromhex("220047")), 100.0
        )


@pytest.mark.parametrize("opcode", [Opcode.NOOP, Opcode.STAT, Opcode.GET_ALL_VB_SEQNOS, 0xEE])
def test_what_is_no_dcp_is_handed_on(opcode: int) -> None:
    frame = Frame(0x80, opcode)
    assert producer().receive_frame(frame, 100.0) == [NotDcp(frame)]


def test_acknowledged_bytes_open_the_window_and_are_not_answered() -> None:
    end = producer()
    control(end, b"connection_buffer_size", b"100")
    made = stream(end)
    end.marker(made, 0, 9, MARKER)
    end.sent_changes(made, 68, 1)
    assert end.flow.is_full
    (event,) = end.receive_frame(dcp.BufferAck(acked_bytes=112).frame(), 100.0)
    assert event == WindowOpened()
    assert end.data_to_send() == b""
    assert end.flow.outstanding_bytes == 0


def test_the_end_of_a_stream_waits_for_the_window() -> None:
    end = producer()
    control(end, b"connection_buffer_size", b"1")
    made = stream(end)
    end.marker(made, 0, 9, MARKER)
    end.end_stream(made, EndReason.STATE_CHANGED)
    assert end.data_to_send() == b""
    end.receive_frame(dcp.BufferAck(acked_bytes=44).frame(), 100.0)
    assert Frame.decode(end.data_to_send()).opcode == Opcode.DCP_STREAM_END
    assert end.flow.outstanding_bytes == 28


def test_a_full_window_does_not_hold_answers_back() -> None:
    end = producer()
    control(end, b"connection_buffer_size", b"1")
    end.marker(stream(end), 0, 9, MARKER)
    stream(end, vbucket=8, opaque=0x78)
    assert say(end, dcp.CloseStream(vbucket=8).encode().hex())


def test_nothing_is_sent_through_a_full_window() -> None:
    end = producer()
    control(end, b"connection_buffer_size", b"1")
    made = stream(end)
    end.marker(made, 0, 9, MARKER)
    with pytest.raises(LocalProtocolError, match="window that is full"):
        end.sent_changes(made, 60, 1)


def test_noops_have_their_own_opaques_and_two_quiet_intervals_mean_the_peer_is_gone() -> None:
    end = producer()
    assert (end.deadline, end.tick(1e6)) == (None, [])
    control(end, b"enable_noop", b"true")
    assert end.deadline == 120.0
    assert end.tick(120.0) == []
    assert end.data_to_send().hex() == "805c00000000000000000000009896810000000000000000"
    end.receive_frame(Frame(0x81, Opcode.DCP_NOOP, opaque=10_000_001), 121.0)
    assert end.tick(140.0) == []
    assert Frame.decode(end.data_to_send()).opaque == 10_000_002
    assert end.tick(161.0) == [PeerGone(40.0)]


@pytest.mark.parametrize("asked", [False, True])
def test_a_producer_that_was_stopped_itself_asks_and_waits_again(asked: bool) -> None:
    end = producer()
    control(end, b"enable_noop", b"true")
    if asked:
        end.tick(120.0)
    woken = 1000.0
    assert end.tick(woken) == [], "what the consumer answered meanwhile lies there unread"
    assert Frame.decode(end.data_to_send()).opcode == Opcode.DCP_NOOP
    assert end.tick(woken + 40.0) == [PeerGone(40.0)]


@pytest.mark.parametrize(("opaque", "status"), [(10_000_002, 0), (10_000_001, 0x81)])
def test_a_noop_answered_wrongly_ends_the_connection(opaque: int, status: int) -> None:
    end = producer()
    control(end, b"enable_noop", b"true")
    end.tick(120.0)
    with pytest.raises(RemoteProtocolError, match="a no-op was answered"):
        end.receive_frame(Frame(0x81, Opcode.DCP_NOOP, vbucket=status, opaque=opaque), 121.0)


@pytest.mark.parametrize("status", [Status.KEY_ENOENT, Status.DCP_STREAM_NOT_FOUND])
def test_a_consumer_that_has_no_such_stream_gets_no_more_of_it(status: Status) -> None:
    end = producer()
    made = stream(end)
    answer = bytes.fromhex(f"8157000000000{status:03x}00000000000000770000000000000000")
    assert end.receive_frame(Frame.decode(answer), 100.0) == [StreamClosed(made)]
    assert end.receive_frame(Frame.decode(answer), 100.0) == []
    assert end.data_to_send() == b""


@pytest.mark.parametrize("status", [Status.SUCCESS, Status.NOT_MY_VBUCKET, Status.OPAQUE_NO_MATCH, Status.KEY_EEXISTS])
def test_answers_that_are_tolerated(status: Status) -> None:
    end = producer()
    stream(end)
    assert end.receive_frame(Frame(0x81, Opcode.DCP_MUTATION, vbucket=status, opaque=0x77), 100.0) == []
    assert end.streams


@pytest.mark.parametrize("status", [Status.EINVAL, Status.ERANGE, Status.ETMPFAIL, Status.ENOMEM])
def test_a_consumer_that_can_not_follow_is_given_up(status: Status) -> None:
    with pytest.raises(RemoteProtocolError, match=f"with {status.name}; it can not follow"):
        producer().receive_frame(Frame(0x81, Opcode.DCP_MUTATION, vbucket=status), 100.0)


@pytest.mark.parametrize("is_v7", [False, True])
@pytest.mark.parametrize("opcode", [Opcode.DCP_COMMIT, Opcode.DCP_ABORT])
def test_a_consumer_that_lacks_the_prepare_of_a_commit_or_an_abort_is_given_up(opcode: Opcode, is_v7: bool) -> None:
    end = producer()
    if is_v7:
        control(end, b"v7_dcp_status_codes", b"true")
    stream(end)
    with pytest.raises(RemoteProtocolError, match="with KEY_ENOENT; it can not follow"):
        end.receive_frame(Frame(0x81, opcode, vbucket=Status.KEY_ENOENT, opaque=0x77), 100.0)


@pytest.mark.parametrize("opcode", [Opcode.DCP_COMMIT, Opcode.DCP_ABORT])
def test_a_consumer_that_has_no_stream_for_a_commit_or_an_abort_gets_no_more_of_it(opcode: Opcode) -> None:
    end = producer()
    made = stream(end)
    answer = Frame(0x81, opcode, vbucket=Status.DCP_STREAM_NOT_FOUND, opaque=0x77)
    assert end.receive_frame(answer, 100.0) == [StreamClosed(made)]


def test_with_the_codes_of_version_7_the_general_ones_are_errors() -> None:
    end = producer()
    control(end, b"v7_dcp_status_codes", b"true")
    with pytest.raises(RemoteProtocolError, match="KEY_ENOENT"):
        end.receive_frame(Frame(0x81, Opcode.DCP_MUTATION, vbucket=Status.KEY_ENOENT), 100.0)


@given(
    opcode=st.integers(0x40, 0x70),
    magic=st.sampled_from([0x80, 0x81, 0x08]),
    key=st.binary(max_size=30),
    extras=st.binary(max_size=60),
    value=st.binary(max_size=40),
    datatype=st.integers(0, 255),
    vbucket=st.integers(0, 0xFFFF),
    framing=st.binary(max_size=5),
)
def test_whatever_arrives_is_understood_answered_or_hung_up_on(
    opcode: int, magic: int, key: bytes, extras: bytes, value: bytes, datatype: int, vbucket: int, framing: bytes
) -> None:
    end = producer()
    frame = Frame(magic, opcode, key, extras, value, datatype, vbucket, framing=framing if magic == 0x08 else b"")
    try:
        for event in end.receive_frame(frame, 100.0):
            if isinstance(event, StreamRequested):
                end.answer_stream(event, FACTS, LOG)
    except RemoteProtocolError:
        return
    answer = end.data_to_send()
    assert answer == b"" or Frame.decode(answer).opcode == opcode


def ordinary(end: Producer, data: bytes) -> StreamRequested | None:
    return end.receive_plain_request(memoryview(b"before" + data), 6, 100.0)


def test_an_ordinary_request_is_the_same_event_straight_from_the_bytes() -> None:
    short, long = producer(), producer()
    frame = stream_request(vbucket=7, opaque=0x77, end=300)
    event = ordinary(short, frame.encode())
    assert event is not None and [event] == long.receive_frame(frame, 100.0)
    for end in (short, long):
        assert end.answer_stream(event, FACTS, LOG) is not None
    assert (short.data_to_send(), short.dialect) == (long.data_to_send(), long.dialect)
    assert event.frame == frame


def test_a_request_from_the_bytes_is_a_sign_of_life() -> None:
    end = producer()
    control(end, b"enable_noop", b"true")
    assert end.receive_plain_request(memoryview(stream_request().encode()), 0, 1000.0) is not None
    assert not end.noop.peer_is_silent(1000.0)


@pytest.mark.parametrize(
    "data",
    [
        stream_request().encode()[:-1],
        stream_request(value=b"{}").encode(),
        dcp.BufferAck(acked_bytes=1).encode(),
        *(dcp.StreamRequest(start_seqno=0, snap_start_seqno=0, snap_end_seqno=0, **odd).encode() for odd in ODD),
        upr.StreamRequest(start_seqno=0, end_seqno=0, vb_uuid=0, high_seqno=0).encode(),
    ],
)
def test_anything_but_an_ordinary_request_is_left_for_the_frame(data: bytes) -> None:
    end = producer()
    before = end.dialect
    assert ordinary(end, data) is None
    assert (end.data_to_send(), end.dialect) == (b"", before)


def test_a_request_of_dcp_on_a_upr_connection_is_left_for_the_frame() -> None:
    end = producer()
    end.dialect = Dialect.UPR
    assert ordinary(end, stream_request().encode()) is None


def test_a_snapshot_that_is_sent_whole_goes_out_as_marker_and_changes_of_its_stream() -> None:
    end = producer()
    made = stream(end)
    end.send(made, [dcp.Mutation(key=b"k", by_seqno=seqno, rev_seqno=1) for seqno in (3, 5)])
    sent = FrameBuffer().receive_data(end.data_to_send())
    assert [frame.opcode for frame in sent] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION, Opcode.DCP_MUTATION]
    assert {(frame.vbucket, frame.opaque) for frame in sent} == {(made.vbucket, made.opaque)}
    assert (made.last_seqno, made.state) == (5, ProducerState.BETWEEN)
    assert end.flow.sent_bytes == sum(len(frame) for frame in sent)


@pytest.mark.parametrize("seqnos", [(5, 3), (3, 3)])
def test_a_snapshot_whose_seqnos_do_not_rise_is_never_sent(seqnos: tuple[int, int]) -> None:
    end = producer()
    with pytest.raises(LocalProtocolError):
        end.send(stream(end), [dcp.Mutation(key=b"k", by_seqno=seqno, rev_seqno=1) for seqno in seqnos])


def test_requests_may_come_in_pieces() -> None:
    end, data = producer(), stream_request().encode()
    assert end.receive_data(data[:30], 100.0) == []
    (event,) = end.receive_data(data[30:], 100.0)
    assert isinstance(event, StreamRequested)
