"""JSON from strangers, and the words that go with a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.wire.json_text import CONTEXT_CHARACTERS_MAX, LEVELS_MAX, context_of, error_body, read_json


def test_a_json_text_is_read() -> None:
    assert read_json(b'{"a":[1,null]}') == {"a": [1, None]}


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff", b"nul", b"[" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b"1" * 5000]
)
def test_what_is_no_json_or_too_deep_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_what_is_nested_up_to_the_bound_is_read() -> None:
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        inner = "[]" if opening == "[" else "{}"
        assert read_json(opening * (LEVELS_MAX - 1) + inner + closing * (LEVELS_MAX - 1))
        with pytest.raises(ValueError, match="64 levels"):
            read_json(opening * LEVELS_MAX + inner + closing * LEVELS_MAX)


def test_what_a_refusal_says_comes_back() -> None:
    assert context_of(error_body('start "8" lies above')) == 'start "8" lies above'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", ""),
        (b"Invalid arguments", "Invalid arguments"),
        (b'{"error":{"context":7}}', ""),
        (b'{"error":"no"}', ""),
        (b'{"rev":1}', ""),
        (b'{"a":' * 100_000, ""),
        (b"x" * 1000, "x" * CONTEXT_CHARACTERS_MAX),
    ],
)
def test_of_any_body_what_is_meant_for_people(body: bytes, said: str) -> None:
    assert context_of(body) == said


@given(st.binary(max_size=60))
def test_no_body_breaks_it(body: bytes) -> None:
    assert len(context_of(body)) <= CONTEXT_CHARACTERS_MAX


def test_many_lists_of_numbers_are_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a cluster map, with a list for each vbucket, is not walked through value by value."""
    monkeypatch.setattr("headwater.wire.json_text._check_levels", pytest.fail)
    rows = [[0, -1]] * 1000
    assert read_json(json.dumps({"vBucketMap": rows})) == {"vBucketMap": rows}
    assert read_json(json.dumps({"vBucketMap": rows}, separators=(",", ":")).encode()) == {"vBucketMap": rows}


@pytest.mark.parametrize("text", ["[1]" * 5, "[]", "{[1,2]: }"])
def test_lists_within_texts_hide_no_level(text: str) -> None:
    deep = "[" * (LEVELS_MAX + 1) + json.dumps(text) + "]" * (LEVELS_MAX + 1)
    with pytest.raises(ValueError, match="levels deep"):
        read_json(deep)
