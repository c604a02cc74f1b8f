"""The consumer's end of TAP: what is noted, what is answered, what ends the connection."""

import pytest

from headwater.errors import BadMessage, RemoteProtocolError
from headwater.protocol.tap_consumer import MESSAGES, TapConsumer
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


def test_a_dump_is_whole_when_every_vbucket_that_came_from_scratch_was_completed() -> None:
    end = TapConsumer()
    assert end.is_whole
    for vbucket in (3, 4):
        end.read(opaque(tap.OpaqueCode.INITIAL_VBUCKET_STREAM, vbucket))
    end.read(opaque(tap.OpaqueCode.CLOSE_BACKFILL, 3))
    assert end.open_vbuckets == {4} and not end.is_whole
    end.read(opaque(tap.OpaqueCode.CLOSE_BACKFILL, 4))
    assert end.is_whole


def test_a_takeover_is_whole_when_no_vbucket_is_pending() -> None:
    end = TapConsumer()
    end.read(state(3))
    assert end.handed_over == {3} and not end.is_whole
    end.read(state(1))
    assert end.is_whole


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
