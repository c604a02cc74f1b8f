"""Whether a value can be read, against the ways in which it is read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import RemoteProtocolError
from headwater.kernels import values
from headwater.kernels.builds import debug_copy
from headwater.kernels.guard import register
from headwater.wire import snappy, xattr
from headwater.wire.header import VALUE_BYTES_MAX

CHECKED = debug_copy("headwater.kernels.values")
SNAPPY, XATTR = 2, 4


def readable(value: bytes, datatype: int) -> bool:
    """By both builds of the kernel, which agree."""
    data = np.frombuffer(value or b"\0", np.uint8).copy()[: len(value)]
    register(data)
    found = {bool(build.readable(data, datatype)) for build in (values, CHECKED)}
    assert len(found) == 1
    return found.pop()


def inflates(value: bytes) -> bool:
    try:
        snappy.inflate(value)
    except RemoteProtocolError:
        return False
    return True


def splits(value: bytes) -> bool:
    try:
        xattr.split(value, xattr.PAIRS_MAX)
    except RemoteProtocolError:
        return False
    return True


texts = st.one_of(st.binary(max_size=300), st.text("ab", max_size=900).map(str.encode))


@given(texts, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=3), st.integers(0, 400))
def test_a_block_is_snappy_if_it_inflates_and_only_then(text: bytes, changes: list[tuple[int, int]], keep: int) -> None:
    block = bytearray(snappy.compress(text))
    for at, byte in changes:
        block[at % len(block)] = byte
    for each in (bytes(block), bytes(block[:keep])):
        assert readable(each, SNAPPY) is inflates(each)


@given(st.binary(max_size=40))
def test_any_bytes_are_snappy_if_they_inflate_and_only_then(value: bytes) -> None:
    assert readable(value, SNAPPY) is inflates(value)


@pytest.mark.parametrize(
    "block",
    [
        b"\x0a\x24abcdefghij",  # a literal of ten
        b"\x0e\x0cabcd\x19\x04",  # copies of one byte for the offset: 4, then ...
        b"\x08\x0cabcd\x0e\x04\x00",  # ... of two
        b"\x08\x0cabcd\x0f\x04\x00\x00\x00",  # ... and of four
        b"\x08\x0cabcd\x01\x00",  # a copy from nowhere
        b"\x08\x0cabcd\x01\x05",  # and from in front of the beginning
        b"\xbc\x05" + b"\xf4\xbb\x02" + bytes(700),  # a literal whose length has two bytes
        b"\x00",
        b"\x80\x00",
        b"\x80\x80\x80\x80\x80",
        snappy.compress(bytes(VALUE_BYTES_MAX)),
        snappy.compress(bytes(VALUE_BYTES_MAX + 1)),
    ],
)
def test_each_element_of_a_block_is_followed(block: bytes) -> None:
    assert readable(block, SNAPPY) is inflates(block)


NAMES = st.text("_ab", min_size=1, max_size=16)


@given(
    st.dictionaries(NAMES, st.sampled_from([b"1", b'"x"', b""]), max_size=4).filter(
        lambda pairs: all(len(name) <= xattr.XATTR_KEY_BYTES_MAX for name in pairs)
    ),
    st.binary(max_size=9),
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=2),
    st.integers(0, 99),
)
def test_attributes_that_are_taken_can_be_split(
    pairs: dict[str, bytes], body: bytes, changes: list[tuple[int, int]], keep: int
) -> None:
    value = xattr.join(pairs, body)
    assert readable(value, XATTR) and splits(value)
    changed = bytearray(value)
    for at, byte in changes:
        changed[at % len(changed)] = byte
    for each in (bytes(changed), value[:keep]):
        is_ascii = all(byte < 0x80 for byte in each)
        assert readable(each, XATTR) is splits(each) or (splits(each) and not is_ascii)


def test_what_is_rare_is_left_to_python() -> None:
    many = xattr.join({f"n{number}": b"1" for number in range(17)})
    assert splits(many) and not readable(many, XATTR)
    assert not readable(snappy.compress(xattr.join({"a": b"1"})), SNAPPY | XATTR)
    assert readable(b"anything", 0) and readable(b"anything", 1)


def test_the_same_name_twice_is_none() -> None:
    pair = b"\0\0\0\x04a\x001\0"
    value = (2 * len(pair)).to_bytes(4) + 2 * pair
    assert not readable(value, XATTR) and not splits(value)
