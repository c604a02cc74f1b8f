"""Collection ids; the published vectors are in test_vectors.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import LocalProtocolError, RemoteProtocolError
from headwater.wire import leb128


@given(st.integers(0, leb128.COLLECTION_ID_MAX), st.binary(min_size=1, max_size=20))
def test_a_key_with_its_collection_both_ways(collection, logical):
    assert leb128.split_key(leb128.join_key(collection, logical)) == (collection, logical)


@given(st.binary(max_size=8))
def test_any_bytes_are_read_or_refused(data):
    try:
        number, taken = leb128.decode(data)
    except RemoteProtocolError:
        return
    assert leb128.encode(number) == data[:taken]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "no stop byte"),
        (b"\x80\x80", "no stop byte"),
        (b"\x80\x80\x80\x80\x80\x01", "no stop byte"),
        (b"\x81\x00", "non canonical, 1 is shorter"),
        (b"\xff\xff\xff\xff\x1f", "more than 32 bits"),
    ],
)
def test_a_wrong_spelling_is_told(data, text):
    with pytest.raises(RemoteProtocolError, match=text):
        leb128.decode(data)


def test_a_key_of_nothing_but_a_collection_is_refused():
    with pytest.raises(RemoteProtocolError, match="no logical key"):
        leb128.split_key(b"\x08")


def test_an_id_over_32_bits_never_leaves():
    with pytest.raises(LocalProtocolError, match="4294967296"):
        leb128.encode(1 << 32)
