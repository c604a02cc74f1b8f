"""Steps through JSON texts: the ends of values, members by name, elements by index."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels.paths import (
    CONTAINER,
    FOUND,
    MISSING,
    NOWHERE,
    among,
    depth_of,
    element,
    member,
    steps,
    value_end,
    walk,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=10,
)


def view(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8)


@given(JSON, st.sampled_from(["", " ", ",1", "]", "}", "\n]"]))
def test_a_value_ends_where_it_was_written_to(value: object, behind: str) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert value_end(view(text + behind), 0) == len(text.encode())


def test_a_member_is_found_with_its_surroundings() -> None:
    text = '{ "a" :1 , "b":[2]}'
    assert member(view(text), 0, b"a") == (FOUND, 2, 7, -1, 0)
    assert member(view(text), 0, b"b") == (FOUND, 11, 15, 8, 1)
    assert member(view(text), 0, b"c") == (MISSING, 11, 15, 8, 2)
    assert member(view("{ }"), 0, b"c")[0] == MISSING and member(view("{}"), 0, b"c")[4] == 0


@pytest.mark.parametrize("name", [b"x", b"xy", b"\xc3\xbc"])
def test_a_name_that_is_another_or_longer_or_shorter_is_not_it(name: bytes) -> None:
    assert member(view('{"xyz":1,"y":2,"xx":3,"":4,"ü2":6}'), 0, name)[0] == MISSING


def written(text: str, escaped: list[bool]) -> str:
    """A string as JSON, some of its characters by number."""
    shown = [json.dumps(each, ensure_ascii=number)[1:-1] for each, number in zip(text, escaped, strict=False)]
    plain = [
        "".join(f"\\u{unit:04X}" for unit in memoryview(each.encode("utf-16-le", "surrogatepass")).cast("H"))
        if number
        else told
        for each, told, number in zip(text, shown, escaped, strict=False)
    ]
    return f'"{"".join(plain)}"'


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)


@given(texts, texts, st.lists(st.booleans(), min_size=6, max_size=6))
def test_a_name_is_found_however_it_is_written(name: str, other: str, escaped: list[bool]) -> None:
    shown = written(name, escaped)
    assert json.loads(shown) == name
    document = view(f'{{"{"x" * 9}":0,{shown}:1}}')
    assert member(document, 0, name.encode())[0] == FOUND
    assert member(document, 0, other.encode())[0] == (FOUND if other == name else MISSING)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (r"\u0061", "a"),
        (r"\"\\\/\b\f\n\r\t", '"\\/\b\f\n\r\t'),
        (r"\u00fC", "\u00fc"),
        (r"\u20AC", "\u20ac"),
        (r"\ud83d\ude00", "\U0001f600"),
    ],
)
def test_an_escape_is_the_character_that_it_stands_for(shown: str, said: str) -> None:
    document = view(f'{{"{shown}":1}}')
    assert member(document, 0, said.encode())[0] == FOUND
    assert member(document, 0, said.encode()[:-1])[0] == member(document, 0, said.encode() + b"x")[0] == MISSING


@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\ud83d\u0061", r"\ud83dx"])
def test_half_of_a_pair_is_no_character_that_a_path_can_name(half: str) -> None:
    document = view(f'{{"{half}":1}}')
    assert member(document, 0, "\U0001f600".encode())[0] == member(document, 0, b"")[0] == MISSING
    said = json.loads(f'"{half}"').encode("utf-8", "surrogatepass")
    assert member(document, 0, said)[0] == FOUND


@given(
    st.lists(st.none() | st.booleans() | st.integers(-12, 12) | texts, max_size=5),
    st.none() | st.booleans() | st.integers(-12, 12) | texts,
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_a_simple_value_is_among_those_of_an_array_or_not(
    values: list[Any], value: Any, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps(values, indent=indent, ensure_ascii=ascii_only)
    said = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    there = any(type(item) is type(value) and item == value for item in values)
    assert among(view(text), 0, said, is_string=isinstance(value, str)) == (FOUND if there else MISSING)


def test_a_container_in_the_array_is_told_unless_the_value_comes_first() -> None:
    for inner in ("[]", '{"a":2}'):
        assert among(view(f"[1,{inner},2]"), 0, b"2", is_string=False) == CONTAINER
        assert among(view(f"[1,{inner},2]"), 0, b"1", is_string=False) == FOUND
    assert among(view("[ ]"), 0, b"1", is_string=False) == among(view("[12,1.0]"), 0, b"1", is_string=False) == MISSING


@given(JSON)
def test_how_deep_a_value_is(value: object) -> None:
    def deep(each: object) -> int:
        if not isinstance(each, list | dict):
            return 0
        inner = each.values() if isinstance(each, dict) else each
        return 1 + max(map(deep, inner), default=0)

    assert depth_of(view(json.dumps(value))) == deep(value)


def test_an_element_is_found_by_its_index() -> None:
    text = "[1, [2,3] ,4]"
    assert element(view(text), 0, 1) == (FOUND, 4, 4, 2, 1)
    assert element(view(text), 0, 3) == (MISSING, 11, 11, 9, 3)
    assert element(view("[ ]"), 0, 0)[4] == 0


@given(JSON, st.lists(st.integers(0, 5) | st.text(max_size=3), min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_a_walk_ends_where_the_path_leads_or_nowhere(value: Any, path: list[str | int], indent: int | None) -> None:
    text, found, there = json.dumps(value, ensure_ascii=False, indent=indent), value, True
    for each in path:
        there = there and isinstance(found, dict if isinstance(each, str) else list)
        there = there and (each in found if isinstance(found, dict) else each < len(found))
        found = found[each] if there else None
    made = steps(path)
    assert made is not None
    at, end = walk(view(text), made)
    if at != NOWHERE:
        assert there and json.loads(text.encode()[at:end]) == found
    else:
        assert not there


def test_a_walk_does_not_count_from_the_end_and_reads_names_that_are_written_otherwise() -> None:
    assert steps(("a", -1)) is None and steps(()) is None
    made = steps(("a", 1))
    assert made is not None
    assert walk(view('{"b":0, "a": [1, {"x":2} ]}'), made) == (17, 24)
    assert walk(view('{"\\u0061":[1,2]}'), made) == (13, 14)
    assert walk(view("[1]"), made) == (NOWHERE, NOWHERE)


def test_a_name_with_a_quote_is_not_found_across_the_end_of_another() -> None:
    assert member(view('{"a":"x","b":1}'), 0, b'a":')[0] == MISSING
    assert member(view('{"a":1}'), 0, b'a"')[0] == MISSING
