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
