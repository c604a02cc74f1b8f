"""Documents and the text that an index has of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import OptionError
from headwater.pipelines.texts import TextRules


def test_strings_and_numbers_of_json_are_text_in_their_order() -> None:
    document = b'{"title": "Red wine", "year": 1998, "sold": true, "tags": ["dry", {"of": "Bordeaux"}], "none": null}'
    assert TextRules().read(document) == ("Red wine\n1998\ndry\nBordeaux", "")


def test_chosen_fields_are_found_through_objects_and_lists() -> None:
    document = b'{"a": {"b": [{"c": "one"}, {"c": "two"}, {"d": "no"}]}, "e": "five", "f": "no"}'
    assert TextRules(fields=("e", "a.b.c", "x.y")).read(document) == ("five\none\ntwo", "")


@pytest.mark.parametrize("value", [b"plain words", b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[NaN]"])
def test_documents_that_are_no_json_go_by_the_rule(value: bytes) -> None:
    assert TextRules(others="key").read(value) == ("", "")
    text, why = TextRules(others="quarantine").read(value)
    assert text == "" and why.startswith(("not JSON: ", "not UTF-8: "))
    text, why = TextRules(others="text").read(value)
    assert (text, why) == (value.decode() if value != b"\xff\xfe" else "", "")


def test_numbers_of_any_size_are_text_by_their_digits() -> None:
    digits = "1" * 5000
    document = f'{{"a": 1e400, "b": [{digits}, 2.5], "c": "x"}}'
    assert TextRules().read(document.encode()) == (f"1e400\n{digits}\n2.5\nx", "")


def test_half_of_a_surrogate_pair_and_a_zero_become_something_that_an_index_takes() -> None:
    assert TextRules().read(b'"a\\ud800b\\u0000c"') == ("a?b c", "")


@given(st.binary(max_size=60) | st.recursive(st.text() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_value_gives_text_that_can_be_stored_or_a_reason(value: bytes) -> None:
    text, why = TextRules(others="quarantine").read(value)
    assert "\0" not in text and text.encode() is not None and not (text and why)


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(OptionError, match="key, text, quarantine"):
        TextRules(others="drop")
    with pytest.raises(OptionError, match=r"address\.city"):
        TextRules(fields=("a..b",))
