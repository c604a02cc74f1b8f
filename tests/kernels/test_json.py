"""The JSON validator beside json.loads, and by the letter of RFC 8259."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels import json as kernel
from headwater.kernels.builds import debug_copy

SCRATCH = np.zeros(kernel.SCRATCH_BYTES, np.uint8)
checked = debug_copy("headwater.kernels.json")


def says(data: bytes) -> bool:
    array = np.frombuffer(bytearray(data), np.uint8) if data else np.zeros(0, np.uint8)
    return bool(kernel.valid(array, SCRATCH))


def says_checked(data: bytes) -> bool:
    array = np.frombuffer(bytearray(data), np.uint8) if data else np.zeros(0, np.uint8)
    return bool(checked.valid(array, SCRATCH))


def _no_constant(name: str) -> None:
    raise ValueError(name)


def reference(data: bytes) -> bool:
    """json.loads, strict about what it is lax about: encoding, byte order mark, NaN."""
    try:
        json.loads(data.decode("utf-8"), parse_constant=_no_constant, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return False
    return True


@pytest.mark.parametrize(
    "text",
    [b"{}", b"[]", b"0", b"-0.0e-0", b'""', b" true\r\n\t", b'{"a":{"b":[null,false,1E+5]}}', b'"\\ud800"', b'"\x7f"'],
)
def test_these_are_json(text: bytes) -> None:
    assert says(text) and reference(text)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b" ",
        b"01",
        b"1.",
        b".5",
        b"-",
        b"+1",
        b"1e",
        b"[1,]",
        b"[,1]",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b"{1:2}",
        b"[1}",
        b"]",
        b"nul",
        b"truex",
        b"NaN",
        b"1 2",
        b'"\x1f"',
        b'"',
        b'"\\x"',
        b'"\\u12"',
        b"\xef\xbb\xbf1",
        b'"\xc0\x80"',
        b'"\xed\xa0\x80"',
        b'"\xf4\x90\x80\x80"',
        b'"\xe2\x82"',
        b"\xff",
    ],
)
def test_these_are_not(text: bytes) -> None:
    assert not says(text) and not reference(text)


def test_containers_nest_as_deep_as_told_and_no_deeper() -> None:
    assert says(b"[" * kernel.DEPTH_MAX + b"]" * kernel.DEPTH_MAX)
    assert not says(b"[" * (kernel.DEPTH_MAX + 1) + b"]" * (kernel.DEPTH_MAX + 1))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.booleans(), st.sampled_from([None, 1]))
def test_what_the_library_writes_is_json(value: object, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        return
    assert says(data)


TOKENS = rb'{ } [ ] , : " \ u 00e9 true null - 1 0 . e a abcdefghij'.split()
BYTES = [b" ", b"\n", "é".encode(), "€".encode(), "𝄞".encode(), b"\x80", b"\xc3"]
pieces = st.sampled_from([*TOKENS, *BYTES])


@given(st.lists(pieces, max_size=14).map(b"".join))
def test_whatever_is_thrown_at_it_it_agrees_with_the_library(data: bytes) -> None:
    assert says(data) == reference(data)


@given(st.binary(max_size=12))
def test_random_bytes_too(data: bytes) -> None:
    assert says(data) == reference(data)
    assert says(b'"' + data + b'"') == reference(b'"' + data + b'"')


@given(values.map(lambda value: json.dumps(value).encode()), st.integers(0, 40), st.binary(max_size=1))
def test_a_document_with_one_place_changed(text: bytes, place: int, byte: bytes) -> None:
    changed = text[:place] + byte + text[place + 1 :]
    assert says(changed) == reference(changed)


@given(st.lists(pieces, max_size=14).map(b"".join))
def test_it_never_looks_beyond_its_bytes(data: bytes) -> None:
    assert says_checked(data) == reference(data)
