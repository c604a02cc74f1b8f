"""The short way to a message's bytes says what the long way says, and leaves the complaints to it."""

import pytest
from hypothesis import given, settings

from headwater.errors import LocalProtocolError
from headwater.testing.strategies import any_class, message_of
from headwater.wire import dcp, tap, upr
from headwater.wire.header import BODY_BYTES_MAX

SHORT = [cls for cls in any_class() if cls.layout.compact is not None]


@pytest.mark.parametrize("cls", SHORT, ids=lambda cls: f"{cls.__module__.split('.')[-1]}.{cls.__name__}")
def test_both_ways_make_the_same_bytes(cls):
    @settings(max_examples=15, deadline=None)
    @given(message=message_of(cls))
    def same(message):
        if message.framing is None:
            assert cls.layout.compact.encode(message.__dict__) == message.frame().encode()
        assert message.encode() == message.frame().encode()

    same()


def test_messages_of_one_form_have_a_short_way_and_others_none():
    assert {dcp.StreamRequest, dcp.StreamEnd, dcp.BufferAck, dcp.Mutation, upr.StreamRequest} <= set(SHORT)
    several_forms, with_a_body, looked_at = dcp.AddStreamResponse, dcp.StreamResponse, dcp.SetVbucketState
    assert not {several_forms, with_a_body, looked_at, tap.Mutation} & set(SHORT)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (dcp.StreamEnd(status=1 << 32), "StreamEnd: status: 4294967296 does not fit a u32"),
        (dcp.StreamEnd(status=0, vbucket=1 << 16), "vbucket or status is 65536"),
        (dcp.StreamEnd(status=0, key=b"k"), "StreamEnd: a key of 1 bytes; this message has none"),
        (dcp.Mutation(by_seqno=1, rev_seqno=1), "Mutation: a key of 0 bytes; this message needs one"),
        (dcp.Noop(opaque=-1), "opaque is -1"),
    ],
)
def test_what_does_not_fit_is_told_as_on_the_long_way(message, complaint):
    assert message.layout.compact.encode(message.__dict__) is None
    with pytest.raises(LocalProtocolError, match=complaint):
        message.encode()


def test_a_body_that_is_too_large_is_told():
    message = dcp.Mutation(by_seqno=1, rev_seqno=1, key=b"k", value=bytes(BODY_BYTES_MAX))
    with pytest.raises(LocalProtocolError, match="body length"):
        message.encode()


PLAIN = [cls for cls in SHORT if cls.layout.compact.is_plain]


@pytest.mark.parametrize("cls", PLAIN, ids=lambda cls: f"{cls.__module__.split('.')[-1]}.{cls.__name__}")
def test_a_plain_message_is_read_where_it_lies_and_any_other_is_left_alone(cls):
    @settings(max_examples=15, deadline=None)
    @given(message=message_of(cls))
    def same(message):
        data = message.encode()
        is_plain = message.framing is None and not (message.key or message.value or message.datatype or message.cas)
        assert cls.read_plain(b"before" + data + b"behind", 6) == (message if is_plain else None)
        assert cls.read_plain(data[:-1], 0) is None

    same()


@pytest.mark.parametrize("cls", PLAIN, ids=lambda cls: f"{cls.__module__.split('.')[-1]}.{cls.__name__}")
def test_a_plain_message_is_written_without_being_made(cls):
    @settings(max_examples=15, deadline=None)
    @given(message=message_of(cls))
    def same(message):
        numbers = {field.name: getattr(message, field.name) for field in cls.layout.fields}
        written = cls.encode_plain(message.vbucket, message.opaque, *numbers.values())
        assert written == cls(vbucket=message.vbucket, opaque=message.opaque, **numbers).encode()

    same()


def test_what_must_have_a_key_or_answers_something_is_never_plain():
    assert {dcp.StreamRequest, dcp.StreamEnd, dcp.SnapshotMarker, upr.StreamRequest} <= set(PLAIN)
    assert not {dcp.Mutation, dcp.CloseStreamResponse} & set(PLAIN)
    assert dcp.Mutation.read_plain(bytes.fromhex("8057000000000000") + bytes(16), 0) is None


@pytest.mark.parametrize(("status", "vbucket"), [(1 << 32, 0), (0, 1 << 16)])
def test_a_number_that_does_not_fit_a_plain_message_is_told(status, vbucket):
    with pytest.raises(LocalProtocolError, match=str(max(status, vbucket))):
        dcp.StreamEnd.encode_plain(vbucket, 7, status)


def test_a_message_with_several_forms_is_written_the_long_way():
    assert dcp.SetVbucketState.layout.compact is None
    assert dcp.SetVbucketState.encode_plain(3, 7, 2) == dcp.SetVbucketState(vbucket=3, opaque=7, state=2).encode()
    assert dcp.SetVbucketState.read_plain(dcp.SetVbucketState(state=2).encode(), 0) is None
