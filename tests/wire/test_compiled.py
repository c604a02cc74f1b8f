"""The short ways between a message and its bytes say what the long way says, and leave the complaints to it."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.errors import BadMessage, LocalProtocolError
from headwater.testing.strategies import any_class, message_of
from headwater.wire import admin, dcp, documents, meta
from headwater.wire.compiled import short_of
from headwater.wire.failure import Failure
from headwater.wire.header import BODY_BYTES_MAX, Frame, Magic

pytestmark = pytest.mark.slow  # it begins early: nothing may be left to one worker at the end


@cache
def short(cls):
    return short_of(cls, cls._defaults)


def name(cls):
    return f"{cls.__module__.split('.')[-1]}.{cls.__name__}"


def has_short_ways(cls):
    return short(cls).read.__name__ == "read"


SHORT = [cls for cls in any_class() if has_short_ways(cls)]
MUTILATIONS = st.fixed_dictionaries(
    {},
    optional={
        "magic": st.sampled_from(Magic),
        "opcode": st.integers(0, 255),
        "key": st.binary(max_size=3),
        "extras": st.binary(max_size=24),
        "value": st.binary(max_size=24),
        "vbucket": st.integers(0, 3),
        "framing": st.binary(min_size=1, max_size=3),
    },
)


@pytest.mark.parametrize("cls", SHORT, ids=name)
def test_both_ways_write_the_same_bytes_and_read_the_same_message(cls):
    @settings(max_examples=15, deadline=None)
    @given(message=message_of(cls))
    def same(message):
        message = replace(message, framing=None)
        frame = message.frame()
        assert short(cls).write(message.__dict__, frame.opcode, frame.opaque) == frame.encode() == message.encode()
        assert short(cls).read(frame) == cls._decode(frame) == cls.decode(frame.encode())

    same()


@pytest.mark.parametrize("cls", SHORT, ids=name)
def test_what_is_not_the_message_is_left_to_the_long_way(cls):
    @settings(max_examples=20, deadline=None)
    @given(message=message_of(cls), mutilation=MUTILATIONS)
    def left(message, mutilation):
        frame = replace(message.frame(), **mutilation)
        try:
            expected = cls._decode(frame)
        except BadMessage:
            expected = None
        assert short(cls).read(frame) in (None, expected)

    left()


def test_every_message_has_short_ways_but_those_with_an_engine_private_section_and_one_with_a_number_of_seven_bytes():
    without = {cls for cls in any_class() if not has_short_ways(cls)}
    assert without == {cls for cls in any_class() if cls.layout.engine} | {admin.CompactDb}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (dcp.StreamEnd(status=1 << 32), "StreamEnd: status: 4294967296 does not fit a u32"),
        (dcp.StreamEnd(status=0, vbucket=1 << 16), "vbucket or status is 65536"),
        (dcp.StreamEnd(status=0, key=b"k"), "StreamEnd: a key of 1 bytes; this message has none"),
        (dcp.Mutation(by_seqno=1, rev_seqno=1), "Mutation: a key of 0 bytes; this message needs one"),
        (dcp.Noop(opaque=-1), "opaque is -1"),
        (documents.IncrementResponse(counter=1, value=b"v"), "IncrementResponse: a value of 1 bytes"),
        (admin.GetVbucketResponse(state=1 << 8), "GetVbucketResponse: state is 256, expected 1 or 2 or 3 or 4"),
        (documents.Stored(seqno=1), "Stored"),
        (meta.ObserveResponse(states=[(1 << 16, b"k", 0, 0)]), "states: 65536 does not fit a u16"),
        (meta.Observe(keys=[(0, bytes(1 << 16))]), "keys: 65536 does not fit a u16"),
    ],
)
def test_what_does_not_fit_is_told_as_on_the_long_way(message, complaint):
    assert short(type(message)).write(message.__dict__, message.layout.opcode & 0xFF, message.opaque) is None
    with pytest.raises(LocalProtocolError, match=complaint):
        message.encode()


def test_a_body_that_is_too_large_is_told():
    message = dcp.Mutation(by_seqno=1, rev_seqno=1, key=b"k", value=bytes(BODY_BYTES_MAX))
    with pytest.raises(LocalProtocolError, match="body length"):
        message.encode()


def test_a_failure_that_says_success_is_none():
    assert short(Failure).read(Frame(Magic.CLIENT_RESPONSE, 0, vbucket=0)) is None
    assert short(Failure).read(Frame(Magic.CLIENT_RESPONSE, 0, vbucket=1)) == Failure(status=1, opcode=0)


def test_an_answer_has_the_opcode_and_opaque_of_its_request_and_no_framing():
    request = Frame(Magic.CLIENT_REQUEST, documents.Append.layout.opcode, opaque=7)
    answer = documents.Stored(cas=5, framing=b"\x01\x02")
    assert documents.Stored.decode(answer.answering(request)) == documents.Stored(cas=5, opcode=14, opaque=7)
