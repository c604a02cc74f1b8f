"""Snappy values: the claim is judged before memory is given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.wire import snappy


@given(st.binary(max_size=2000))
def test_a_value_both_ways(value):
    block = snappy.compress(value)
    assert snappy.inflated_size(block) == len(value)
    assert snappy.inflate(block) == value


def test_literals_alone_are_a_legal_block():
    assert snappy.inflate(b"\x05\x10hello") == b"hello"


def test_a_value_that_repeats_itself_shrinks_and_comes_back():
    value = b"abcdefgh" * 100_000
    block = snappy.compress(value)
    assert len(block) * 15 < len(value) and snappy.inflate(block) == value


@given(st.binary(max_size=100))
def test_any_bytes_are_inflated_or_refused(data):
    try:
        value = snappy.inflate(data)
    except RemoteProtocolError:
        return
    assert len(value) == snappy.inflated_size(data)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (b"", "no size in the first 0 bytes"),
        (b"\xff\xff\xff\xff\xff\x01", "no size in the first 5 bytes"),
        (b"\xff\xff\xff\xff\x0f", "5 bytes can't inflate to the 4294967295 claimed"),
        (b"\x05", "snappy: "),
        (b"\x05\x10hell", "snappy: "),
        (b"\x00a", "1 bytes follow a claim of no bytes at all"),
    ],
)
def test_a_lying_block_is_refused(block, text):
    with pytest.raises(RemoteProtocolError, match=text):
        snappy.inflate(block)


def test_a_value_over_the_limit_is_refused_with_both_numbers():
    with pytest.raises(RemoteProtocolError, match="inflates to 1000 bytes, 999 are allowed"):
        snappy.inflate(snappy.compress(bytes(1000)), bytes_max=999)
