"""The consumer node's end, in literal bytes: capture 09 of a real server, answers, acknowledgements, silence."""

import json
from pathlib import Path

import pytest

from headwater.errors import RemoteProtocolError
from headwater.protocol.dcp.consumer import Consumer
from headwater.protocol.dcp.controls import Negotiated
from headwater.protocol.dcp.events import (
    Advanced,
    Changed,
    Event,
    Marked,
    NotDcp,
    StateWanted,
)
from headwater.protocol.dcp.negotiation import ConsumerSettings
from headwater.protocol.end import PeerGone
from headwater.wire import dcp
from headwater.wire.framing import FrameBuffer
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.protocol.dcp.consumer_talk import (
    VB,
    Talk,
    add_stream,
    marker,
    mutation,
)

CAPTURE = Path(__file__).parents[2] / "data" / "captures" / "09-dcp-consumer-add-stream.jsonl"


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


@pytest.mark.parametrize("opcode", [0x53, 0x54, 0x5D, 0x5E, 0x61])
def test_a_consumers_command_ends_the_connection(opcode: int) -> None:
    with pytest.raises(RemoteProtocolError, match="only a producer takes it"):
        Talk().give(Frame(Magic.CLIENT_REQUEST, opcode, extras=bytes(4)))


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


def test_what_a_snapshot_announced_counts_down_to_nothing() -> None:
    talk = Talk()
    stream = talk.open()
    assert talk.end.announced(stream.vbucket) == 0
    talk.give(marker(stream.opaque, 1, 100))
    assert talk.end.announced(stream.vbucket) == 100
    (changed,) = talk.give(mutation(stream.opaque, 40))
    talk.end.applied(changed)
    assert talk.end.announced(stream.vbucket) == 60
    talk.end.close(stream)
    assert talk.end.announced(stream.vbucket) == 0


def test_a_producer_that_says_nothing_for_too_long_is_gone() -> None:
    talk = Talk(ConsumerSettings(idle_seconds=30))
    talk.open()
    assert talk.end.tick(29.9) == []
    assert talk.end.tick(30.0) == [PeerGone(30)]


def test_a_producer_that_falls_silent_before_no_ops_are_agreed_on_is_gone() -> None:
    """Its machine lost its power between DCP_OPEN and the answer to a control: the replica stood still for ever.

    Found by seed 1 of `python -m harness.world --operations 1000`.
    """
    talk = Talk(ConsumerSettings(idle_seconds=30))
    assert talk.end.deadline is None, "it is not asked for anything yet"
    talk.end.add(VB, 0)
    assert talk.end.deadline == 0.0, "the time is noted at once"
    assert talk.end.tick(100.0) == []
    assert talk.end.deadline == 130.0
    assert talk.end.tick(129.9) == []
    assert talk.end.tick(130.0) == [PeerGone(30)]


def test_a_called_producer_may_not_move_vbuckets() -> None:
    talk = Talk(ConsumerSettings(takes_movers=False))
    with pytest.raises(RemoteProtocolError, match="a producer that this node called"):
        talk.give(add_stream())


def test_no_ops_are_answered_and_other_requests_passed_on() -> None:
    talk = Talk()
    assert talk.one(dcp.Noop(opaque=10_000_001).frame()).status == 0
    get = Frame(0x80, Opcode.GET, b"k", opaque=4)
    assert talk.give(get) == [NotDcp(get)]


@pytest.mark.parametrize("cut", [1, 30, 60, 100])
def test_bytes_that_come_in_pieces_are_applied_in_order_and_answered_when_processed(cut: int) -> None:
    talk = Talk()
    stream = talk.open()
    frames = [marker(stream.opaque, 1, 2, flags=0x09), mutation(stream.opaque, 1), mutation(stream.opaque, 2)]
    data = b"".join(frame.encode() for frame in frames)
    events = talk.end.receive_data(data[:cut], 1.0) + talk.end.receive_data(data[cut:], 1.0)
    assert [type(event) for event in events] == [Marked, Changed, Changed]
    assert talk.sent() == []
    talk.end.processed(1.0)
    (answer,) = talk.sent()
    assert (answer.opcode, answer.is_response) == (Opcode.DCP_SNAPSHOT_MARKER, True)


def test_a_change_that_comes_twice_in_one_piece_is_refused() -> None:
    talk = Talk()
    stream = talk.open()
    frames = [marker(stream.opaque, 1, 2), mutation(stream.opaque, 1), mutation(stream.opaque, 1)]
    events = talk.end.receive_data(b"".join(frame.encode() for frame in frames), 1.0)
    assert [type(event) for event in events] == [Marked, Changed]
    (answer,) = talk.sent()
    assert answer.status == Status.ERANGE


def test_another_end_may_begin_the_negotiation_and_go_by_its_outcome() -> None:
    talk = Talk()
    assert talk.end.controls is None
    talk.end.negotiate()
    talk.end.negotiate()
    asked, _ = talk.control_all("enable_expiry_opcode")
    assert talk.end.controls == {key: value for key, value in asked if key != "enable_expiry_opcode"}
    assert len(asked) == len(dict(asked)) > 5


def test_what_another_end_has_processed_is_acknowledged_here() -> None:
    talk = Talk()
    talk.open()
    talk.end.heard_at = 1.0
    talk.end.counted_elsewhere(60_000, 5.0)
    (acknowledged,) = talk.sent()
    assert dcp.BufferAck.decode(acknowledged).acked_bytes == 60_000 and talk.end.heard_at == 1.0


def test_opaques_are_chosen_from_where_they_are_told_to_begin_and_are_known_afterwards() -> None:
    end = Consumer(Negotiated(), ConsumerSettings(), 0.0, range((1 << 22) + 1, 1 << 23))
    stream, _ = end.add(VB, 0)
    assert stream.opaque == (1 << 22) + 1
    (control,) = FrameBuffer().receive_data(end.data_to_send())
    assert control.opaque == (1 << 22) + 2
    assert end.knows(stream.opaque) and not end.knows(1)
    end.close(stream)
    assert end.knows(stream.opaque)
