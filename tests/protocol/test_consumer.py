"""The consumer node's end, in literal bytes: capture 09 of a real server, and every error of dcp 9."""

import json
import struct
from pathlib import Path

import pytest

from headwater.errors import RemoteProtocolError
from headwater.protocol.consumer import ROLLBACKS_MAX, Consumer
from headwater.protocol.consumer_events import (
    Advanced,
    Changed,
    Ended,
    Event,
    Marked,
    NotDcp,
    Opened,
    PeerGone,
    PositionNeeded,
    Refused,
    RollbackNeeded,
    StateWanted,
    StreamWanted,
)
from headwater.protocol.consumer_stream import ConsumerStream
from headwater.protocol.controls import Negotiated
from headwater.protocol.negotiation import ConsumerSettings
from headwater.protocol.position import Position
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State

CAPTURE = Path(__file__).parents[1] / "data" / "captures" / "09-dcp-consumer-add-stream.jsonl"
LOG = ((0x1122334455667788, 0),)
VB = 20


class Talk:
    """A consumer, and somebody who plays producer and mover."""

    def __init__(self, settings: ConsumerSettings | None = None, *, xerror: bool = True) -> None:
        self.end = Consumer(Negotiated(xerror=xerror, connection_name="c"), settings or ConsumerSettings(), now=0.0)
        self.now = 0.0
        self.asked: list[Frame] = []

    def give(self, frame: Frame) -> list[Event]:
        return self.end.receive_frame(Frame.decode(frame.encode()), self.now)

    def sent(self) -> list[Frame]:
        return FrameBuffer().receive_data(self.end.data_to_send())

    def one(self, frame: Frame) -> Frame:
        """The only answer to a message that brings about nothing else."""
        assert self.give(frame) == []
        (answer,) = self.sent()
        assert answer.opaque == frame.opaque
        return answer

    def control_all(self, *refused: str) -> tuple[list[tuple[str, str]], list[Event]]:
        """Answer every control; those named are refused. Returns them, and what came of the last."""
        seen, events = [], []
        while frames := [frame for frame in self.sent() if frame.opcode == Opcode.DCP_CONTROL]:
            (frame,) = frames
            seen.append((frame.key.decode(), frame.value.decode()))
            status = Status.EINVAL if frame.key.decode() in refused else Status.SUCCESS
            events = self.give(answer_to(frame, status))
        return seen, events

    def open(
        self, position: Position | None = None, *, flags: int = 0, refused: tuple[str, ...] = ()
    ) -> ConsumerStream:
        """Bring a stream to where data comes."""
        mover = add_stream(flags)
        assert self.give(mover) == [StreamWanted(VB, flags, mover)]
        stream, _ = self.end.add(VB, flags, mover)
        self.control_all(*refused)
        self.end.ask(stream, position or Position.beginning(VB))
        (self.asked_last,) = [frame for frame in self.sent() if frame.opcode == Opcode.DCP_STREAM_REQ]
        assert self.give(answer_to(self.asked_last, value=struct.pack(">QQ", *LOG[0]))) == [Opened(stream, LOG)]
        (added,) = self.sent()
        assert (added.opcode, added.status, added.opaque) == (Opcode.DCP_ADD_STREAM, 0, mover.opaque)
        assert added.extras == stream.opaque.to_bytes(4)
        return stream


def answer_to(frame: Frame, status: int = 0, **more: bytes) -> Frame:
    return Frame(Magic.CLIENT_RESPONSE, frame.opcode, vbucket=status, opaque=frame.opaque, **more)


def add_stream(flags: int = 0, opaque: int = 0xADADADAD) -> Frame:
    return dcp.AddStream(vbucket=VB, opaque=opaque, flags=flags).frame()


def marker(opaque: int, start: int, end: int, flags: int = 1, vbucket: int = VB) -> Frame:
    return dcp.SnapshotMarker(vbucket=vbucket, opaque=opaque, start_seqno=start, end_seqno=end, flags=flags).frame()


def mutation(opaque: int, seqno: int, vbucket: int = VB, **more: int) -> Frame:
    fields: dict[str, int] = {"by_seqno": seqno, "rev_seqno": 1, **more}
    return dcp.Mutation(vbucket=vbucket, opaque=opaque, cas=77, key=b"k", value=b"v", **fields).frame()


def test_the_conversation_a_real_server_had() -> None:
    """Its stream request, ADD_STREAM answer and marker answer are ours, opaque for opaque."""
    lines = [json.loads(line) for line in CAPTURE.read_text().splitlines()]
    theirs = [
        Frame.decode(bytes.fromhex(line["hex"])) for line in lines if line["dir"] == "S>C" and len(line["hex"]) >= 48
    ]
    request = next(frame for frame in theirs if frame.opcode == Opcode.DCP_STREAM_REQ)
    talk = Talk()
    stream = talk.open()
    assert talk.asked_last.extras[:24] == request.extras[:24]
    assert (talk.asked_last.vbucket, stream.opaque) == (VB, 1)
    given = [line for line in lines if line["dir"] == "C>S" and "memory snapshot 1..3" in line["note"]]
    at = lines.index(given[0])
    events: list[Event] = []
    for line in lines[at : at + 4]:
        for frame in FrameBuffer().receive_data(bytes.fromhex(line["hex"])):
            ours = Frame(
                frame.magic, frame.opcode, frame.key, frame.extras, frame.value, 0, VB, stream.opaque, frame.cas
            )
            events += talk.give(ours)
            for event in events[-1:]:
                if isinstance(event, Changed):
                    talk.end.applied(event)
    assert [type(event) for event in events] == [Marked, Changed, Changed, Changed]
    assert talk.end.answer_markers()
    (answer,) = talk.sent()
    assert (answer.opcode, answer.status, answer.opaque) == (Opcode.DCP_SNAPSHOT_MARKER, 0, stream.opaque)


def test_controls_are_asked_one_at_a_time_in_their_order_and_once() -> None:
    talk = Talk()
    stream, events = talk.end.add(VB, 0, add_stream())
    assert events == []
    seen, events = talk.control_all()
    assert [key for key, _ in seen] == [
        "connection_buffer_size",
        "enable_noop",
        "set_noop_interval",
        "set_priority",
        "supports_cursor_dropping_vulcan",
        "supports_hifi_MFU",
        "send_stream_end_on_client_close_stream",
        "enable_expiry_opcode",
        "v7_dcp_status_codes",
    ]
    assert events == [PositionNeeded(stream)]
    another, events = talk.end.add(VB + 1, 0, add_stream())
    assert events == [PositionNeeded(another)]
    assert talk.sent() == []


def test_a_refused_control_is_a_feature_that_is_absent() -> None:
    talk = Talk()
    stream = talk.open(refused=("connection_buffer_size", "enable_noop", "v7_dcp_status_codes"))
    assert talk.end.window.window_bytes == 0
    assert talk.end.deadline is None
    assert talk.one(mutation(stream.opaque, 1, vbucket=3)).status == Status.KEY_ENOENT
    assert talk.one(mutation(stream.opaque + 9, 1)).status == Status.KEY_EEXISTS


def test_an_interval_with_fractions_is_asked_again_in_whole_seconds() -> None:
    talk = Talk(ConsumerSettings(noop_interval_seconds=1.5))
    talk.end.add(VB, 0)
    seen, _ = talk.control_all("set_noop_interval")
    assert [value for key, value in seen if key == "set_noop_interval"] == ["1.500000", "2"]


def test_a_control_answered_with_another_opaque_ends_the_connection() -> None:
    talk = Talk()
    talk.end.add(VB, 0)
    (asked,) = talk.sent()
    with pytest.raises(RemoteProtocolError, match="a control was answered"):
        talk.give(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_CONTROL, opaque=asked.opaque + 1))


def test_every_flag_of_add_stream_is_copied() -> None:
    talk = Talk()
    talk.open(flags=0x1F7)
    assert talk.asked_last.extras[:4] == (0x1F7).to_bytes(4)
    assert int.from_bytes(talk.asked_last.extras[16:24]) == 2**64 - 1


@pytest.mark.parametrize("flags", [0x08, 0x200, 1 << 31])
def test_unknown_flags_of_add_stream_are_invalid(flags: int) -> None:
    answer = Talk().one(add_stream(flags))
    assert (answer.status, answer.extras) == (Status.EINVAL, bytes(4))


@pytest.mark.parametrize("status", [Status.NOT_MY_VBUCKET, Status.KEY_EEXISTS, Status.ETMPFAIL, Status.ERANGE])
def test_the_producers_refusal_answers_add_stream(status: Status) -> None:
    talk = Talk()
    mover = add_stream()
    stream, _ = talk.end.add(VB, 0, mover)
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    assert talk.give(answer_to(asked, status)) == [Refused(stream, status)]
    (answer,) = talk.sent()
    assert (answer.status, answer.extras) == (status, stream.opaque.to_bytes(4))
    assert talk.end.streams == {}


def test_a_rollback_asks_again_with_the_same_opaque() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
    (first,) = talk.sent()
    assert talk.give(answer_to(first, Status.ROLLBACK, value=(7).to_bytes(8))) == [RollbackNeeded(stream, 7)]
    talk.end.ask(stream, Position(VB, 5, 6, 6, 6, ((5, 0),)))
    (second,) = talk.sent()
    assert (second.opaque, int.from_bytes(second.extras[8:16])) == (first.opaque, 6)


def test_a_rollback_to_nothing_tries_the_older_histories_first() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position(VB, 7, 10, 10, 10, ((7, 10), (6, 4), (5, 0))))
    quoted = []
    for _ in range(3):
        (asked,) = talk.sent()
        quoted.append(int.from_bytes(asked.extras[24:32]))
        events = talk.give(answer_to(asked, Status.ROLLBACK, value=bytes(8)))
    assert quoted == [7, 6, 5]
    assert events == [RollbackNeeded(stream, 0)]


def test_a_rollback_forward_or_without_a_number_ends_the_connection() -> None:
    for value in ((11).to_bytes(8), b"", bytes(7)):
        talk = Talk()
        stream, _ = talk.end.add(VB, 0, add_stream())
        talk.control_all()
        talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
        (asked,) = talk.sent()
        with pytest.raises(RemoteProtocolError):
            talk.give(answer_to(asked, Status.ROLLBACK, value=value))


def test_a_producer_that_sends_us_back_for_ever_is_given_up() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    for _ in range(ROLLBACKS_MAX):
        talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
        (asked,) = talk.sent()
        assert talk.give(answer_to(asked, Status.ROLLBACK, value=(10).to_bytes(8))) == [RollbackNeeded(stream, 10)]
    talk.end.ask(stream, Position(VB, 5, 10, 10, 10, ((5, 0),)))
    (asked,) = talk.sent()
    assert talk.give(answer_to(asked, Status.ROLLBACK, value=bytes(8))) == [Refused(stream, Status.ROLLBACK)]


@pytest.mark.parametrize("log", [b"", bytes(15), bytes(17)])
def test_a_malformed_failover_log_ends_the_connection(log: bytes) -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    with pytest.raises(RemoteProtocolError, match="failover log"):
        talk.give(answer_to(asked, value=log))


def test_an_answer_nobody_asked_for_ends_the_connection() -> None:
    talk = Talk()
    talk.open()
    with pytest.raises(RemoteProtocolError, match="opaque 999"):
        talk.give(Frame(Magic.CLIENT_RESPONSE, Opcode.DCP_STREAM_REQ, opaque=999, value=bytes(16)))


@pytest.mark.parametrize("opcode", [0x53, 0x54, 0x5D, 0x5E, 0x61])
def test_a_consumers_command_ends_the_connection(opcode: int) -> None:
    with pytest.raises(RemoteProtocolError, match="only a producer takes it"):
        Talk().give(Frame(Magic.CLIENT_REQUEST, opcode, extras=bytes(4)))


@pytest.mark.parametrize("opcode", [0x5F, 0x60, 0x62, 0x63, 0x65, 0x66, 0x67])
def test_what_was_not_negotiated_is_not_skipped(opcode: int) -> None:
    talk = Talk()
    stream = talk.open()
    answer = talk.one(Frame(Magic.CLIENT_REQUEST, opcode, b"k", bytes(16), vbucket=VB, opaque=stream.opaque))
    assert answer.status == Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (mutation(1, 0), Status.EINVAL),
        (mutation(1, 4), Status.ERANGE),
        (mutation(1, 5), Status.ERANGE),
        (mutation(1, 11), Status.ERANGE),
        (mutation(1, 6, nmeta=3), Status.EINVAL),
        (mutation(2, 6), Status.OPAQUE_NO_MATCH),
        (mutation(1, 6, vbucket=9), Status.DCP_STREAM_NOT_FOUND),
        (marker(1, 9, 8), Status.EINVAL),
        (marker(1, 1, 5), Status.ERANGE),
        (marker(2, 11, 12), Status.OPAQUE_NO_MATCH),
        (Frame(0x80, Opcode.DCP_SNAPSHOT_MARKER, extras=b"\1", value=bytes(36), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_SNAPSHOT_MARKER, extras=b"\0", value=bytes(52), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(30), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_MUTATION, b"", bytes(7) + b"\6" + bytes(23), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_DELETION, b"k", bytes(7) + b"\6" + bytes(13), b"v", 1, VB, 1), Status.EINVAL),
        (Frame(0x08, Opcode.DCP_MUTATION, b"k", bytes(31), vbucket=VB, opaque=1, framing=b"\x22\0\1"), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_SET_VBUCKET_STATE, extras=b"\5", vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_STREAM_END, extras=bytes(4), vbucket=9, opaque=1), Status.DCP_STREAM_NOT_FOUND),
        (Frame(0x80, Opcode.DCP_FLUSH, vbucket=VB, opaque=1), Status.NOT_SUPPORTED),
        (Frame(0x80, Opcode.DCP_OPEN, b"n", bytes(8), opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_NOOP, value=b"x", opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_CLOSE_STREAM, vbucket=9, opaque=1), Status.DCP_STREAM_NOT_FOUND),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(frame: Frame, status: Status) -> None:
    talk = Talk()
    stream = talk.open(Position(VB, LOG[0][0], 5, 5, 5, LOG))
    talk.give(marker(stream.opaque, 6, 10))
    before = talk.end.table.rows[VB].tolist()
    assert talk.one(frame).status == status
    assert talk.end.table.rows[VB].tolist() == before
    (event,) = talk.give(mutation(stream.opaque, 6))
    assert isinstance(event, Changed)


def test_a_change_before_any_marker_is_out_of_range() -> None:
    talk = Talk()
    assert talk.one(mutation(talk.open().opaque, 1)).status == Status.ERANGE


def test_the_end_of_another_stream_is_ignored() -> None:
    talk = Talk()
    stream = talk.open()
    assert talk.give(dcp.StreamEnd(vbucket=VB, opaque=stream.opaque + 1, status=0).frame()) == []
    assert talk.sent() == []
    assert talk.give(dcp.StreamEnd(vbucket=VB, opaque=stream.opaque, status=2).frame()) == [Ended(stream, 2)]


def test_markers_of_every_version_are_read() -> None:
    talk = Talk()
    stream = talk.open()
    v2 = dcp.SnapshotMarkerV2(
        vbucket=VB,
        opaque=stream.opaque,
        start_seqno=1,
        end_seqno=2,
        flags=2,
        max_visible_seqno=2,
        high_completed_seqno=0,
    )
    assert talk.give(v2.frame()) == [Marked(stream, 1, 2, 2)]


def test_a_seqno_advanced_counts_as_received() -> None:
    talk = Talk()
    stream = talk.open()
    talk.give(marker(stream.opaque, 1, 9, flags=0x09))
    (event,) = talk.give(dcp.SeqnoAdvanced(vbucket=VB, opaque=stream.opaque, seqno=9).frame())
    assert event == Advanced(stream, 9)
    assert not talk.end.answer_markers()
    talk.end.applied(event)
    assert talk.end.answer_markers()


def test_a_state_is_answered_with_what_came_of_it() -> None:
    talk = Talk()
    stream = talk.open(flags=1)
    frame = dcp.SetVbucketState(vbucket=VB, opaque=stream.opaque, state=3).frame()
    (event,) = talk.give(frame)
    assert event == StateWanted(stream, State.PENDING, frame)
    talk.end.answer_state(event)
    (answer,) = talk.sent()
    assert (answer.opcode, answer.status, answer.opaque) == (Opcode.DCP_SET_VBUCKET_STATE, 0, stream.opaque)


def test_every_counted_byte_is_acknowledged_also_of_what_is_refused() -> None:
    talk = Talk(ConsumerSettings(window_bytes=1000))
    stream = talk.open()
    frames = [marker(stream.opaque, 1, 3), mutation(stream.opaque, 9), mutation(stream.opaque + 1, 1)] * 2
    for frame in frames:
        talk.give(frame)
    acks = [frame for frame in talk.sent() if frame.opcode == Opcode.DCP_BUFFER_ACKNOWLEDGEMENT]
    assert [int.from_bytes(ack.extras) for ack in acks] == [44 + 57 + 57 + 44]
    talk.now = talk.end.deadline or 0.0
    assert talk.end.tick(talk.now) == []
    (late,) = talk.sent()
    assert int.from_bytes(late.extras) == 57 + 57


def test_fifty_kilobytes_are_acknowledged_however_large_the_window() -> None:
    talk = Talk()
    talk.open()
    talk.end.counted(50_000, 0.0)
    assert talk.sent() == []
    talk.end.counted(1, 0.0)
    (ack,) = talk.sent()
    assert int.from_bytes(ack.extras) == 50_001


def test_a_producer_that_says_nothing_for_too_long_is_gone() -> None:
    talk = Talk(ConsumerSettings(idle_seconds=30))
    talk.open()
    assert talk.end.tick(29.9) == []
    assert talk.end.tick(30.0) == [PeerGone(30)]


def test_a_close_while_asked_answers_the_mover_and_forgives_the_late_answer() -> None:
    talk = Talk()
    stream, _ = talk.end.add(VB, 0, add_stream())
    talk.control_all()
    talk.end.ask(stream, Position.beginning(VB))
    (asked,) = talk.sent()
    assert talk.give(Frame(0x80, Opcode.DCP_CLOSE_STREAM, vbucket=VB, opaque=3)) == [Ended(stream, None)]
    assert [(frame.opcode, frame.status) for frame in talk.sent()] == [
        (Opcode.DCP_ADD_STREAM, Status.KEY_ENOENT),
        (Opcode.DCP_CLOSE_STREAM, Status.SUCCESS),
    ]
    assert talk.give(answer_to(asked, value=struct.pack(">QQ", *LOG[0]))) == []


def test_a_called_producer_may_not_move_vbuckets() -> None:
    talk = Talk(ConsumerSettings(takes_movers=False))
    with pytest.raises(RemoteProtocolError, match="a producer that this node called"):
        talk.give(add_stream())


def test_no_ops_are_answered_and_other_requests_passed_on() -> None:
    talk = Talk()
    assert talk.one(dcp.Noop(opaque=10_000_001).frame()).status == 0
    get = Frame(0x80, Opcode.GET, b"k", opaque=4)
    assert talk.give(get) == [NotDcp(get)]
