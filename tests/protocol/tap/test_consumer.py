"""The consumer's end of TAP: what is noted, what is answered, what ends the connection."""

import pytest

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.protocol.end import PeerGone
from headwater.protocol.tap.consumer import MESSAGES, ConnectRefused, Received, TapConsumer, expected
from headwater.protocol.tap.options import TapOptions
from headwater.wire import tap
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status


def opaque(code: tap.OpaqueCode, vbucket: int = 3) -> Frame:
    return tap.Opaque(engine_specific=code.to_bytes(4), ttl=255, vbucket=vbucket).frame()


def state(number: int, vbucket: int = 3) -> Frame:
    return tap.VbucketSet(engine_specific=number.to_bytes(4), ttl=255, vbucket=vbucket).frame()


def delete(flags: int = 0, ttl: int = 255) -> Frame:
    extras = bytes(2) + flags.to_bytes(2) + bytes([ttl]) + bytes(3)
    return Frame(0x80, Opcode.TAP_DELETE, b"k", extras, opaque=9)


def test_a_no_op_tells_nothing() -> None:
    assert TapConsumer().read(Frame(0x80, Opcode.NOOP)) is None


def test_a_message_is_read_as_its_opcode_says() -> None:
    message = TapConsumer().read(delete())
    assert isinstance(message, tap.Delete) and message.key == b"k"


@pytest.mark.parametrize("opcode", [Opcode.GET, Opcode.DCP_MUTATION, Opcode.TAP_CONNECT])
def test_what_is_no_message_of_tap_ends_the_connection(opcode: Opcode) -> None:
    with pytest.raises(RemoteProtocolError, match=f"opcode 0x{opcode:02x} on a TAP stream"):
        TapConsumer().read(Frame(0x80, opcode))


def test_a_message_whose_time_to_live_is_over_is_not_applied() -> None:
    with pytest.raises(BadMessage, match="it goes in a circle"):
        TapConsumer().read(delete(ttl=0))


@pytest.mark.parametrize("opcode", sorted(MESSAGES))
def test_a_message_without_its_extras_is_malformed_and_a_checkpoint_ends_the_connection(opcode: int) -> None:
    checkpoints = (Opcode.TAP_CHECKPOINT_START, Opcode.TAP_CHECKPOINT_END)
    error = RemoteProtocolError if opcode in checkpoints else BadMessage
    with pytest.raises(error):
        TapConsumer().read(Frame(0x80, opcode, b"k", bytes(3)))


def dumped(end: TapConsumer, *vbuckets: int) -> TapConsumer:
    for vbucket in vbuckets:
        end.read(opaque(tap.OpaqueCode.INITIAL_VBUCKET_STREAM, vbucket))
        end.read(opaque(tap.OpaqueCode.CLOSE_BACKFILL, vbucket))
    return end


def test_nothing_is_whole_before_anything_came() -> None:
    assert not TapConsumer().is_whole
    assert not TapConsumer(expects={3}).is_whole
    assert TapConsumer(expects={3}).missing == {3}


def test_a_dump_of_nothing_is_whole_when_nothing_was_there_to_expect() -> None:
    assert TapConsumer(expects=()).is_whole


def test_a_dump_is_whole_when_every_vbucket_that_was_expected_was_opened_and_completed() -> None:
    end = dumped(TapConsumer(expects={3, 4}), 3)
    assert (end.is_whole, end.missing) == (False, {4})
    end.read(opaque(tap.OpaqueCode.INITIAL_VBUCKET_STREAM, 4))
    assert (end.is_whole, end.missing) == (False, {4})
    end.read(opaque(tap.OpaqueCode.CLOSE_BACKFILL, 4))
    assert (end.is_whole, end.missing) == (True, set())


def test_a_dump_of_a_producer_that_told_nothing_is_whole_when_all_that_was_opened_is_completed() -> None:
    end = dumped(TapConsumer(), 3)
    assert end.is_whole
    end.read(opaque(tap.OpaqueCode.INITIAL_VBUCKET_STREAM, 4))
    assert (end.is_whole, end.missing) == (False, {4})


def test_a_vbucket_that_comes_from_scratch_again_is_not_complete() -> None:
    end = dumped(TapConsumer(expects={3}), 3)
    end.read(opaque(tap.OpaqueCode.INITIAL_VBUCKET_STREAM, 3))
    assert not end.is_whole


def test_a_takeover_is_whole_when_every_vbucket_asked_for_is_active() -> None:
    end = TapConsumer(expects={3, 4}, takes_over=True)
    dumped(end, 4)
    end.read(state(3))
    dumped(end, 3)
    assert end.missing == {3, 4}
    assert not end.is_whole
    end.read(state(1))
    assert (end.is_whole, end.missing) == (False, {4})
    end.read(state(1, vbucket=4))
    assert end.is_whole


def test_a_takeover_expects_the_vbuckets_of_its_list() -> None:
    assert expected(TapOptions(takeover=True, vbuckets=(3, 4)), {}) == {3, 4}


def test_a_dump_expects_the_active_vbuckets_with_documents() -> None:
    stats = {"vb_0": "active", "vb_0:num_items": "2", "vb_1": "active", "vb_1:num_items": "0"}
    stats |= {"vb_2": "replica", "vb_2:num_items": "5", "vb_2:high_seqno": "9"}
    assert expected(TapOptions(dump=True), stats) == {0}


def test_a_dump_expects_each_vbucket_of_its_list_unless_it_is_here_and_empty() -> None:
    stats = {"vb_0": "active", "vb_0:num_items": "2", "vb_1": "active", "vb_1:num_items": "0"}
    stats |= {"vb_2": "replica", "vb_2:num_items": "5"}
    assert expected(TapOptions(dump=True, vbuckets=(0, 1, 2, 3)), stats) == {0, 2, 3}


def test_a_dump_expects_what_it_cannot_know_from_nobody() -> None:
    assert expected(TapOptions(dump=True), {}) is None
    assert expected(TapOptions(dump=True), {"uptime": "3"}) is None


def test_what_asks_is_answered_with_its_own_opcode_and_opaque() -> None:
    answer = TapConsumer().answer(delete(flags=1))
    assert answer is not None
    assert (answer.magic, answer.opcode, answer.opaque, answer.status) == (0x81, Opcode.TAP_DELETE, 9, 0)


def test_what_does_not_ask_is_not_answered() -> None:
    assert TapConsumer().answer(delete()) is None


def test_what_could_not_be_obeyed_is_answered_once_the_producer_takes_answers() -> None:
    end = TapConsumer()
    with pytest.raises(RemoteProtocolError, match="ETMPFAIL for opcode 0x42, which asked for no answer"):
        end.answer(delete(), Status.ETMPFAIL)
    end.read(opaque(tap.OpaqueCode.ENABLE_AUTO_NACK))
    answer = end.answer(delete(), Status.ETMPFAIL)
    assert answer is not None and answer.status == Status.ETMPFAIL
    assert end.answer(delete()) is None


def test_a_message_is_answered_when_it_was_obeyed_and_not_before() -> None:
    end, frame = TapConsumer(now=0.0), delete(flags=1)
    (received,) = end.receive_data(frame.encode(), 1.0)
    assert isinstance(received, Received) and received.frame == frame
    assert end.data_to_send() == b""
    end.processed(received)
    assert Frame.decode(end.data_to_send()).status == Status.SUCCESS


def test_what_can_not_be_obeyed_is_answered_by_itself_where_errors_are_taken() -> None:
    end = TapConsumer(now=0.0)
    end.receive_data(opaque(tap.OpaqueCode.ENABLE_AUTO_NACK).encode(), 1.0)
    assert end.receive_data(delete(ttl=0).encode(), 1.0) == []
    assert Frame.decode(end.data_to_send()).status == Status.EINVAL


def test_a_refused_connect_is_an_event_and_other_answers_are_none() -> None:
    refusal = Frame(0x81, Opcode.TAP_CONNECT, vbucket=Status.NOT_SUPPORTED)
    assert TapConsumer().receive_data(refusal.encode(), 0.0) == [ConnectRefused(Status.NOT_SUPPORTED)]
    assert TapConsumer().receive_data(Frame(0x81, Opcode.NOOP).encode(), 0.0) == []


def test_a_stream_is_asked_for_by_its_options() -> None:
    end, options = TapConsumer(), TapOptions(name=b"cache")
    end.connect(options)
    assert end.data_to_send() == options.encode()


def test_silence_is_counted_from_the_last_bytes_and_an_end_says_what_is_missing() -> None:
    end = TapConsumer(expects={3, 4})
    assert (end.deadline, end.tick(1e9)) == (None, [])
    end.receive_data(delete().encode(), 100.0)
    assert (end.deadline, end.tick(699.9)) == (700.0, [])
    assert end.tick(700.0) == [PeerGone(600.0)]
    assert end.receive_eof() == [PeerGone(None, "vbuckets 3, 4")]
    assert dumped(end, 3, 4).receive_eof() == [PeerGone()]
