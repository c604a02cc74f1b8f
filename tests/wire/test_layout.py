"""The declarations as a whole: what is written is read back, whatever is sent is understood or refused."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import BadMessage, LocalProtocolError, RemoteProtocolError
from headwater.testing.strategies import any_class, any_message, frames, message_of
from headwater.wire import dcp, documents, tap
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame, Magic
from headwater.wire.layout import Answer
from headwater.wire.opcodes import Opcode

pytestmark = pytest.mark.slow  # it begins early: nothing may be left to one worker at the end


@pytest.mark.parametrize("cls", any_class(), ids=lambda cls: f"{cls.__module__.split('.')[-1]}.{cls.__name__}")
def test_what_a_class_writes_it_reads_back(cls):
    @settings(max_examples=15, deadline=None)
    @given(message=message_of(cls))
    def reads_back(message):
        data = message.encode()
        again = cls.decode(data)
        assert again == message
        assert again.encode() == data

    reads_back()


@settings(max_examples=200, deadline=None)
@given(any_message())
def test_decoding_by_dialect_keeps_every_byte(message):
    data = message.encode()
    assert decode(data, Dialect.AUTO).encode() == data


@settings(max_examples=300, deadline=None)
@given(frames(), st.sampled_from(Dialect))
def test_a_frame_is_understood_to_the_last_byte_or_refused(frame, dialect):
    with suppress(BadMessage):
        assert decode(frame, dialect).encode() == frame.encode()


@settings(max_examples=300, deadline=None)
@given(any_message(), st.data())
def test_garbled_bytes_are_understood_or_refused(message, data):
    garbled = bytearray(message.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(0, len(garbled)))
    with suppress(RemoteProtocolError):
        assert decode(garbled[:keep]).encode() == garbled[:keep]


def test_a_wrong_length_is_told_with_numbers():
    with pytest.raises(BadMessage, match=r"^Mutation \(opcode 0x57\): extras are 18 bytes, expected 31$") as caught:
        dcp.Mutation.decode(Frame(Magic.CLIENT_REQUEST, 0x57, key=b"k", extras=bytes(18)))
    assert caught.value.status == 0x04


def test_a_missing_key_is_told():
    with pytest.raises(BadMessage, match="the key is 0 bytes, one is required"):
        documents.Get.decode(Frame(Magic.CLIENT_REQUEST, 0x00))


def test_a_value_where_none_belongs_is_told():
    with pytest.raises(BadMessage, match="the value is 1 bytes, none is expected"):
        documents.Get.decode(Frame(Magic.CLIENT_REQUEST, 0x00, key=b"k", value=b"v"))


def test_a_response_is_not_taken_for_a_request():
    with pytest.raises(BadMessage, match="a frame with magic 0x81 and opcode 0x57 is not this message"):
        dcp.Mutation.decode(Frame(Magic.CLIENT_RESPONSE, 0x57))


def test_what_a_server_asks_is_not_taken_for_what_a_client_asks():
    with pytest.raises(BadMessage, match="magic 0x82 and opcode 0x01 is not this message"):
        documents.Set.decode(Frame(Magic.SERVER_REQUEST, 0x01, key=b"k", extras=bytes(8)))


def test_an_answer_with_another_status_is_another_message():
    with pytest.raises(BadMessage, match="status is 0x23, expected 0x00"):
        dcp.StreamResponse.decode(dcp.StreamRollback(rollback_seqno=7).frame())


def test_a_number_too_large_never_leaves():
    with pytest.raises(LocalProtocolError, match=r"SeqnoAdvanced: seqno: 18446744073709551616 does not fit a u64"):
        dcp.SeqnoAdvanced(seqno=1 << 64).encode()


def test_a_key_where_none_belongs_never_leaves():
    with pytest.raises(LocalProtocolError, match="Noop: a key of 1 bytes; this message has none"):
        dcp.Noop(key=b"k").encode()


def test_half_an_optional_pair_never_leaves():
    with pytest.raises(LocalProtocolError, match="no form of this message has exactly vb_uuid"):
        documents.Stored(vb_uuid=1, opcode=Opcode.SET).encode()


def test_framing_makes_a_message_flexible():
    frame = documents.Get(key=b"k", framing=b"").frame()
    assert frame.magic == Magic.FLEXIBLE_REQUEST
    assert documents.Get.decode(frame).framing == b""
    assert documents.GetResponse(opcode=0, flags=0, framing=b"\x02\x00\x43").frame().magic == Magic.FLEXIBLE_RESPONSE


def test_what_is_shown_of_a_message_is_what_is_not_default():
    assert repr(dcp.StreamEnd(vbucket=3, status=2)) == "StreamEnd(vbucket=3, status=2)"


@given(any_message(), st.integers(0, 255), st.integers(0, 0xFFFF_FFFF))
def test_an_answer_in_two_pieces_is_the_same_answer(message, opcode, opaque):
    if isinstance(message, Answer):
        asked = Frame(Magic.CLIENT_REQUEST, opcode, opaque=opaque)
        head, value = message.answering_apart(asked)
        assert head + value == message.answering(asked) and value == Frame.decode(head + value).value


def test_messages_are_values():
    assert dcp.Commit(key=b"k", prepared_seqno=1, commit_seqno=2) == dcp.Commit(
        key=b"k", prepared_seqno=1, commit_seqno=2
    )
    with pytest.raises(AttributeError):
        dcp.Noop().opaque = 1


def test_taps_engine_part_stands_between_extras_and_key():
    message = tap.Delete(key=b"key", engine_specific=tap.revision(9))
    assert message.encode()[24:].hex() == "00080000ff000000" + "0000000000000009" + b"key".hex()
    assert message.engine_len == 8


def test_a_large_value_behind_no_engine_part_is_not_copied():
    frame = tap.Mutation(key=b"key", value=bytes(1 << 20)).frame()
    assert tap.Mutation.decode(frame).value is frame.value


def test_an_engine_part_longer_than_the_body_is_refused():
    frame = Frame(Magic.CLIENT_REQUEST, 0x42, key=b"key", extras=bytes.fromhex("00ff0000ff000000"))
    with pytest.raises(BadMessage, match="engine-private part of 255 bytes and key of 3 in 3"):
        tap.Delete.decode(frame)
