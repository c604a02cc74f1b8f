"""JSON in values that every reader of a table takes: text that UTF-8 can write, numbers that a double holds."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.lake.json_values import LargeNumber, dumped, may_have_halves, no_json, parse, written

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=10,
)


def test_numbers_are_read_as_json_has_them_and_those_beyond_a_double_by_their_digits() -> None:
    text = b"[1, -0, 1.5, 1e308, 1e400, -1e400, 1234567890123456789012]"
    assert parse(text) == [1, 0, 1.5, 1e308, LargeNumber("1e400"), LargeNumber("-1e400"), 1234567890123456789012]
    assert parse(b"9" * 308) == 10**308 - 1
    assert parse(b"1" + b"0" * 308) == 10**308  # of 309 digits, and a double holds it
    assert parse(b"9" * 309) == LargeNumber("9" * 309)
    assert parse(b"-" + b"9" * 100_000) == LargeNumber("-" + "9" * 100_000)
    assert dumped({"n": [LargeNumber("1e400")]}) == '{"n": ["1e400"]}'


@pytest.mark.parametrize("text", [b"", None, b"NaN", b"[Infinity]", b"{", b"\xff", b"1 2"])
def test_what_is_no_json_is_refused_with_a_reason(text: bytes | None) -> None:
    with pytest.raises(ValueError) as refused:
        parse(text)
    assert no_json(text, refused.value).startswith("no JSON: ")


@given(VALUES)
def test_what_is_written_is_unicode_and_loses_no_name_and_no_item(value: Any) -> None:
    text = json.dumps(value).encode()
    found = parse(text)
    assert found == value
    plain = written(found)
    dumped(plain).encode()
    assert _size(plain) == _size(value)
    if not may_have_halves(text):
        assert plain == value


def _size(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_size, value.values()))
    return len(value) + sum(map(_size, value)) if isinstance(value, list) else 0


def test_a_name_that_is_called_like_an_escape_keeps_its_name_wherever_it_stands() -> None:
    for names in (["\ud800", r"\ud800"], [r"\ud800", "\ud800"]):
        assert written({name: len(name) for name in names}) == {r"\ud800": 6, r"\ud800_2": 1}


@given(st.sampled_from(["utf-8", "utf-16", "utf-32", "utf-8-sig"]), ANY_TEXT)
def test_halves_are_found_in_any_encoding_that_json_is_read_in(encoding: str, text: str) -> None:
    value = json.dumps([text], ensure_ascii=False).encode(encoding, "surrogatepass")
    assert parse(value) == [text]
    assert may_have_halves(value) or written(text) == text
