"""Changing parts of a JSON text: what is there, what is beside it, and that the rest is not touched."""

import copy
import json
from time import process_time
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.kernels.builds import debugging
from headwater.node.kv.subdoc import editing
from headwater.node.kv.subdoc.editing import EDITS, LOOKUPS
from headwater.node.kv.subdoc.path import parse
from headwater.node.refused import CommandRefused
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

GET, EXISTS, COUNT = Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS, Opcode.SUBDOC_GET_COUNT
ADD, UPSERT, DELETE = Opcode.SUBDOC_DICT_ADD, Opcode.SUBDOC_DICT_UPSERT, Opcode.SUBDOC_DELETE
REPLACE, COUNTER = Opcode.SUBDOC_REPLACE, Opcode.SUBDOC_COUNTER
LAST, FIRST = Opcode.SUBDOC_ARRAY_PUSH_LAST, Opcode.SUBDOC_ARRAY_PUSH_FIRST
INSERT, UNIQUE = Opcode.SUBDOC_ARRAY_INSERT, Opcode.SUBDOC_ARRAY_ADD_UNIQUE

TEXT = ' {"a" : 1.50, "b": [1, {"x": "y"} ,3] , "c.d": { }, "e":[ ], "\\u0066": null} '


class Edit(NamedTuple):
    """An edit as text, which is easier to read."""

    text: str
    told: str = ""


def look(opcode: int, path: str, text: str = TEXT) -> str:
    return LOOKUPS[opcode](text.encode(), parse(path.encode())).decode()


def edit(opcode: int, path: str, value: str = "", text: str = TEXT, mkdir_p: bool = False) -> Edit:
    made = EDITS[opcode](text.encode(), parse(path.encode()), value.encode(), mkdir_p)
    return Edit(made.text.decode(), made.result.decode())


def refusal(opcode: int, path: str, *rest: Any, **more: Any) -> Status:
    with pytest.raises(CommandRefused) as caught:
        (look if opcode in LOOKUPS else edit)(opcode, path, *rest, **more)
    return Status(caught.value.status)


@pytest.mark.parametrize(
    ("path", "found"),
    [("a", "1.50"), ("b[1].x", '"y"'), ("b[-1]", "3"), ("`c.d`", "{ }"), ("b", '[1, {"x": "y"} ,3]'), ("f", "null")],
)
def test_a_value_is_told_as_it_stands(path: str, found: str) -> None:
    assert look(GET, path) == found
    assert look(EXISTS, path) == ""


@pytest.mark.parametrize(("path", "found"), [("", "5"), ("b", "3"), ("e", "0"), ("`c.d`", "0"), ("b[1]", "1")])
def test_members_and_elements_are_counted(path: str, found: str) -> None:
    assert look(COUNT, path) == found


def test_a_path_that_leads_nowhere_is_told_from_one_that_meets_something_else() -> None:
    for opcode in (GET, EXISTS, COUNT):
        assert refusal(opcode, "z") == refusal(opcode, "b[3]") == refusal(opcode, "e[-1]") == Status.SUBDOC_PATH_ENOENT
        assert refusal(opcode, "a.z") == refusal(opcode, "b.z") == Status.SUBDOC_PATH_MISMATCH
        assert refusal(opcode, "[0]") == refusal(opcode, "b[1][0]") == Status.SUBDOC_PATH_MISMATCH
    assert refusal(COUNT, "a") == Status.SUBDOC_PATH_MISMATCH
    assert refusal(GET, "") == refusal(EXISTS, "") == Status.EINVAL


def test_a_member_is_put_and_all_else_stays_as_it_was_written() -> None:
    assert edit(UPSERT, "a", '"z"').text == TEXT.replace("1.50", '"z"')
    assert edit(ADD, "b[1].n", "true").text == TEXT.replace('"y"', '"y","n":true')
    assert edit(ADD, "`c.d`.n", "1").text == TEXT.replace("{ }", '{"n":1 }')
    assert edit(REPLACE, "b[0]", "{}").text == TEXT.replace("[1,", "[{},")
    assert edit(ADD, "new", "0").text == TEXT.replace("null}", 'null,"new":0}')
    assert edit(UPSERT, 'q"uote', "0", text="{}").text == '{"q\\"uote":0}'


def test_what_is_there_is_not_added_and_what_is_not_there_is_not_replaced() -> None:
    assert refusal(ADD, "a", "1") == Status.SUBDOC_PATH_EEXISTS
    assert refusal(REPLACE, "z", "1") == Status.SUBDOC_PATH_ENOENT
    assert refusal(UPSERT, "b[0]", "1") == Status.SUBDOC_PATH_EINVAL
    assert refusal(UPSERT, "a.b", "1") == Status.SUBDOC_PATH_MISMATCH


def test_the_way_to_a_path_is_made_only_when_asked() -> None:
    for opcode, made in ((UPSERT, "1"), (ADD, "1"), (LAST, "[1]"), (FIRST, "[1]"), (UNIQUE, "[1]"), (COUNTER, "1")):
        assert refusal(opcode, "x.y.z", "1") == Status.SUBDOC_PATH_ENOENT
        grown = TEXT.replace("null}", f'null,"x":{{"y":{{"z":{made}}}}}}}')
        assert edit(opcode, "x.y.z", "1", mkdir_p=True).text == grown
        assert refusal(opcode, "e[0].z", "1", mkdir_p=True) == Status.SUBDOC_PATH_ENOENT


@pytest.mark.parametrize(
    ("path", "cut", "put"),
    [
        ("a", '"a" : 1.50, ', ""),
        ("b[0]", "1, {", "{"),
        ("b[1]", ', {"x": "y"} ,3', " ,3"),
        ("b[-1]", " ,3]", "]"),
        ("b[1].x", '"x": "y"', ""),
        ("f", ', "\\u0066": null', ""),
    ],
)
def test_an_item_is_removed_with_its_comma(path: str, cut: str, put: str) -> None:
    left = edit(DELETE, path).text
    assert json.loads(left) == json.loads(TEXT.replace(cut, put))
    assert refusal(DELETE, "z") == Status.SUBDOC_PATH_ENOENT


def test_arrays_grow_at_both_ends_and_in_between() -> None:
    assert edit(LAST, "b", "8, 9").text == TEXT.replace(",3]", ",3,8, 9]")
    assert edit(LAST, "e", "8").text == TEXT.replace("[ ]", "[8 ]")
    assert edit(FIRST, "b", "8").text == TEXT.replace("[1,", "[8,1,")
    assert edit(FIRST, "e", "8,9").text == TEXT.replace("[ ]", "[8,9 ]")
    assert edit(INSERT, "b[1]", "8").text == TEXT.replace('{"x"', '8,{"x"')
    assert edit(INSERT, "b[3]", "8").text == TEXT.replace(",3]", ",3,8]")
    assert edit(INSERT, "e[0]", "8").text == TEXT.replace("[ ]", "[8 ]")
    assert edit(LAST, "", "1", text="[]").text == edit(UNIQUE, "", "1", text="[]").text == "[1]"
    assert refusal(LAST, "a", "1") == refusal(FIRST, "`c.d`", "1") == Status.SUBDOC_PATH_MISMATCH
    assert refusal(INSERT, "b[4]", "8") == refusal(INSERT, "z[0]", "8") == Status.SUBDOC_PATH_ENOENT
    assert refusal(INSERT, "b[-1]", "8") == refusal(INSERT, "a", "8") == Status.SUBDOC_PATH_EINVAL


def test_a_value_is_added_once() -> None:
    text = '{"set":["a", 1 ,true]}'
    assert edit(UNIQUE, "set", '"b"', text=text).text == '{"set":["a", 1 ,true,"b"]}'
    for there in ('"a"', '"\\u0061"', "1", "true"):
        assert refusal(UNIQUE, "set", there, text=text) == Status.SUBDOC_PATH_EEXISTS
    assert refusal(UNIQUE, "set", "[1]", text=text) == Status.SUBDOC_VALUE_CANTINSERT
    assert refusal(UNIQUE, "b", "9") == Status.SUBDOC_PATH_MISMATCH


def test_counting_has_64_bits() -> None:
    text = f'{{"n":41,"max":{(1 << 63) - 1},"far":{1 << 63},"long":{"9" * 5000},"f":1.5,"s":"1"}}'
    assert edit(COUNTER, "n", "1", text=text) == (text.replace("41", "42"), "42")
    assert edit(COUNTER, "n", "-42", text=text).told == "-1"
    assert edit(COUNTER, "new", "-7", text=text) == (text.replace("}", ',"new":-7}'), "-7")
    for delta in ("0", "-0", "1.0", "x", "", " 1", str(1 << 63), "1" * 5000):
        assert refusal(COUNTER, "n", delta, text=text) == Status.SUBDOC_DELTA_EINVAL
    assert refusal(COUNTER, "max", "1", text=text) == Status.SUBDOC_VALUE_CANTINSERT
    assert (
        refusal(COUNTER, "far", "1", text=text) == refusal(COUNTER, "long", "1", text=text) == Status.SUBDOC_NUM_ERANGE
    )
    for path in ("f", "s"):
        assert refusal(COUNTER, path, "1", text=text) == Status.SUBDOC_PATH_MISMATCH


@pytest.mark.parametrize("value", ["", "nope", "1,2", "{", '"a', "NaN", "[1]]"])
def test_a_value_that_is_no_json_is_refused(value: str) -> None:
    assert refusal(UPSERT, "a", value) == Status.SUBDOC_VALUE_CANTINSERT
    assert refusal(REPLACE, "a", value) == Status.SUBDOC_VALUE_CANTINSERT


@pytest.mark.parametrize("value", ["", " ", "1,", ",1", "nope", "1]", "1],[2"])
def test_elements_that_are_no_json_are_refused(value: str) -> None:
    assert refusal(LAST, "b", value) == Status.SUBDOC_VALUE_CANTINSERT


def test_a_document_grows_no_deeper_than_paths_reach() -> None:
    deep = "[" * 31 + "]" * 31
    assert edit(UPSERT, "a", deep).text.count("[") > 30
    assert refusal(UPSERT, "a", f"[{deep}]") == Status.SUBDOC_VALUE_ETOODEEP
    assert edit(UPSERT, "a", json.dumps("[" * 40)).text.count("[") > 40


def test_depth_is_no_reason_to_refuse_what_lies_beside_it() -> None:
    text = '{"a":' + "[" * 100_000 + "]" * 100_000 + ',"b":1}'
    assert look(GET, "b", text) == "1"
    assert edit(DELETE, "a", text=text).text == '{"b":1}'


def test_a_name_that_is_written_otherwise_is_the_same_name() -> None:
    text = '{"\\u0061":1,"b\\"":2,"c\\/":3,"a\\u0062":4}'
    assert [look(GET, path, text) for path in ("a", 'b"', "c/", "ab")] == ["1", "2", "3", "4"]
    assert refusal(GET, "b", text) == Status.SUBDOC_PATH_ENOENT
    assert edit(UPSERT, "a", "9", text=text).text == text.replace(":1", ":9")


# --- a model ----------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "c.d", "ü", 'q"', "\\", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


def paths_of(value: Any) -> list[tuple[str | int, ...]]:
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    return [()] + [(name, *rest) for name, item in items for rest in paths_of(item)]


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for each in path:
        value = value[each]
    return value


@given(VALUES, st.data())
def test_what_is_found_and_changed_is_what_python_would(document: Any, data: st.DataObject) -> None:
    text = json.dumps(document, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=data.draw(st.booleans()))
    written = text.encode()
    path = data.draw(st.sampled_from(paths_of(document)))
    if not path:
        return
    assert json.loads(editing.get(written, path)) == at(document, path)
    replaced, removed = copy.deepcopy(document), copy.deepcopy(document)
    at(replaced, path[:-1])[path[-1]] = {"new": [1]}
    del at(removed, path[:-1])[path[-1]]
    assert json.loads(editing.put_over(written, path, b'{"new": [1]}', False).text) == replaced
    assert json.loads(editing.delete(written, path, b"", False).text) == removed
    if isinstance(path[-1], int):
        longer = copy.deepcopy(document)
        at(longer, path[:-1]).insert(path[-1], 7)
        assert json.loads(editing.insert(written, path, b"7", False).text) == longer


@pytest.mark.skipif(debugging(), reason="kernels run as Python")
def test_a_million_elements_are_looked_through_without_making_others_wait() -> None:
    """One by one in Python they took seconds of the event loop's thread, and the members of a dictionary as long."""
    array = "[" + ",".join([r'"\n\u0061"'] * (1 << 20)) + "]"
    named = "{" + ",".join(rf'"\u0061{number:07}":1' for number in range(1 << 18)) + "}"
    edit(UNIQUE, "a", "1", '{"a":[2]}')  # compiled before it is timed
    edit(UPSERT, "a", "[]", "{}")
    begun = process_time()
    assert edit(UNIQUE, "a", '"b"', f'{{"a":{array}}}').text.endswith(r'\u0061","b"]}')
    assert refusal(UNIQUE, "a", r'"\na"', f'{{"a":{array}}}') == Status.SUBDOC_PATH_EEXISTS
    assert edit(UPSERT, "a", array, "{}").text == f'{{"a":{array}}}'
    assert look(GET, "a0262143", named) == "1"
    assert process_time() - begun < 2.0
