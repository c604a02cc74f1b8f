"""Steps through JSON texts: the ends of values, members by name, elements by index."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels.paths import ESCAPED, FOUND, MISSING, NOWHERE, element, member, steps, value_end, walk

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


def test_a_name_with_escapes_is_for_somebody_else_to_read() -> None:
    assert member(view('{"\\u0061":1}'), 0, b"a")[0] == ESCAPED
    assert member(view('{"x\\u0061":1,"a":2}'), 0, b"a")[0] == FOUND


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
        assert not there or "\\" in text


def test_a_walk_does_not_count_from_the_end_nor_read_names_that_are_written_otherwise() -> None:
    assert steps(("a", -1)) is None and steps(()) is None
    made = steps(("a", 1))
    assert made is not None
    assert walk(view('{"b":0, "a": [1, {"x":2} ]}'), made) == (17, 24)
    assert walk(view('{"\\u0061":[1,2]}'), made) == walk(view("[1]"), made) == (NOWHERE, NOWHERE)


def test_a_name_with_a_quote_is_not_found_across_the_end_of_another() -> None:
    assert member(view('{"a":"x","b":1}'), 0, b'a":')[0] == MISSING
    assert member(view('{"a":1}'), 0, b'a"')[0] == MISSING
