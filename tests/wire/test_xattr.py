"""Extended attributes; the published vectors are in test_vectors.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import LocalProtocolError, RemoteProtocolError
from headwater.wire import xattr

KEYS = st.text(st.characters(codec="ascii", exclude_characters="\0"), min_size=1, max_size=15)
PAIRS = st.dictionaries(KEYS, st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"0")), max_size=4)


@given(PAIRS, st.binary(max_size=30))
def test_pairs_and_body_both_ways(pairs, body):
    value = xattr.join(pairs, body)
    assert xattr.split(value) == (pairs, body)
    again, view = xattr.split(memoryview(value))
    assert isinstance(view, memoryview) and (again, bytes(view)) == (pairs, body)


@given(PAIRS, st.data())
def test_a_garbled_section_is_read_or_refused(pairs, data):
    garbled = bytearray(xattr.join(pairs, b"body"))
    garbled[data.draw(st.integers(0, len(garbled) - 1))] = data.draw(st.integers(0, 255))
    garbled = bytes(garbled[: data.draw(st.integers(0, len(garbled)))])
    try:
        again, body = xattr.split(garbled)
    except RemoteProtocolError:
        return
    assert xattr.join(again, body) == garbled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\0\0", "4 bytes of length at offset 0, 2 are there"),
        (b"\xff\xff\xff\xffabc", "4294967295 bytes at offset 0, 3 are there"),
        (b"\0\0\0\x03abc", "4 bytes of length at offset 4, 3 are there"),
        (b"\0\0\0\x06\0\0\0\x09ab", "9 bytes at offset 4, 2 are there"),
        (b"\0\0\0\x06\0\0\0\x02ab", "must each end with a 0"),
        (xattr.join({"a": b"1"})[:4] + b"\0\0\0\x04\0ab\0", "key of 0 bytes"),
        ((24).to_bytes(4) + (xattr.join({"a": b"1"})[4:] * 3), "comes twice"),
        (b"\0\0\0\x08\0\0\0\x04\xff\x001\0", "key ff is not UTF-8"),
    ],
)
def test_a_broken_section_is_told(value, text):
    with pytest.raises(RemoteProtocolError, match=text):
        xattr.split(value)


def test_a_tombstone_keeps_system_attributes_only():
    value = xattr.join({"_sync": b"{}", "user": b"1"}, b"body")
    assert xattr.only_system(value) == xattr.join({"_sync": b"{}"})
    assert xattr.only_system(xattr.join({"user": b"1"}, b"body")) == b""


@pytest.mark.parametrize("key", ["", "sixteen-letters-", "a\0b"])
def test_an_impossible_key_never_leaves(key):
    with pytest.raises(LocalProtocolError, match="1 to 15 bytes"):
        xattr.join({key: b"1"})
