import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.console.json_view import CHARACTERS_MAX, indented

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(st.text(max_size=4), inside, max_size=4),
    max_leaves=12,
)


@given(VALUES, st.booleans())
def test_the_text_that_is_shown_has_the_same_value(value: object, is_ascii: bool) -> None:
    shown = indented(json.dumps(value, ensure_ascii=is_ascii).encode())
    assert shown is not None
    assert json.loads(shown) == value


def test_each_member_has_a_line_and_empty_ones_have_none_inside() -> None:
    value = rb'{"name":"gr\u00fc\u00dfe \ud83d\ude00","tags":["a","b"],"none":{},"list":[ ],"n":1.50e400}'
    assert indented(value) == (
        '{\n  "name": "gr\u00fc\u00dfe \U0001f600",\n  "tags": [\n    "a",\n    "b"\n  ],\n'
        '  "none": {},\n  "list": [],\n'
        '  "n": 1.50e400\n}'
    )


def test_numbers_keep_their_digits_and_names_that_come_twice_come_twice() -> None:
    assert indented(b'{"a":1.0,"a":100000000000000000000000000001}') == (
        '{\n  "a": 1.0,\n  "a": 100000000000000000000000000001\n}'
    )


@pytest.mark.parametrize(
    "escape", [r"\u202e", r"\u0000", r"\u0022", r"\u005c", r"\n", r"\"", r"\\", r"\ud800", r"\u00a0"]
)
def test_what_would_not_be_seen_as_what_it_is_stays_an_escape(escape: str) -> None:
    assert indented(f'"{escape}"'.encode()) == f'"{escape}"'


@pytest.mark.parametrize("value", [b"", b"{", b"\xff", b"plain text", b"[" * 100 + b"]" * 100])
def test_what_is_no_json_is_not_shown_as_such(value: bytes) -> None:
    assert indented(value) is None


def test_what_is_nested_deep_and_long_is_cut() -> None:
    shown = indented(b"[" * 60 + b"0," * 30_000 + b"0" + b"]" * 60)
    assert shown is not None and len(shown) < CHARACTERS_MAX + 1000
    assert "cut: 60,121 bytes" in shown.splitlines()[-1]
