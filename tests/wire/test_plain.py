"""Plain messages are read where they lie and written without being made; what is not plain is left alone."""

import pytest
from hypothesis import given, settings

from headwater.errors import LocalProtocolError
from headwater.testing.strategies import any_class, message_of
from headwater.wire import dcp, upr

PLAIN = [cls for cls in any_class() if cls.layout.plain is not None]


@pytest.mark.parametrize("cls", PLAIN, ids=lambda cls: f"{cls.__module__.split('.')[-1]}.{cls.__name__}")
def test_a_plain_message_is_read_where_it_lies_and_any_other_is_left_alone(cls):
    @settings(max_examples=15, deadline=None)
    @given(message=message_of(cls))
    def same(message):
        data = message.encode()
        has_more = message.key or message.value or message.datatype or message.cas or message.quiet
        is_plain = message.framing is None and not has_more
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
    assert not {dcp.Mutation, dcp.AddStreamResponse} & set(PLAIN)
    assert dcp.Mutation.read_plain(bytes.fromhex("8057000000000000") + bytes(16), 0) is None


@pytest.mark.parametrize(("status", "vbucket"), [(1 << 32, 0), (0, 1 << 16)])
def test_a_number_that_does_not_fit_a_plain_message_is_told(status, vbucket):
    with pytest.raises(LocalProtocolError, match=str(max(status, vbucket))):
        dcp.StreamEnd.encode_plain(vbucket, 7, status)


def test_a_message_with_several_forms_is_written_the_long_way():
    assert dcp.SetVbucketState.layout.plain is None
    assert dcp.SetVbucketState.encode_plain(3, 7, 2) == dcp.SetVbucketState(vbucket=3, opaque=7, state=2).encode()
    assert dcp.SetVbucketState.read_plain(dcp.SetVbucketState(state=2).encode(), 0) is None
