"""Documents as columns: whatever they hold, nothing ends a mirror and nothing is lost without a word."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.lake.json_values import written
from headwater.lake.shape import delta_field, fields
from headwater.lake.unfold import (
    COLUMN_BYTES_MAX,
    COLUMNS_MAX,
    FIELD,
    FIELD_AS_JSON,
    REST,
    JsonColumns,
    JsonShape,
    agrees,
    column_of,
    field_of,
    fit,
    is_unfolded,
    kind_of,
    merged,
    readable,
    wider,
)
from tests.lake.support import rows

DESCRIBED = [*fields("string"), delta_field(REST, "string")]
OWN = {column["name"] for column in DESCRIBED}


def unfolded(*documents: Any, shape: JsonShape | None = None) -> list[dict[str, Any]]:
    """The fields' columns of each document, without those that are null."""
    shape = shape or JsonShape(DESCRIBED)
    texts = [text if isinstance(text, str) else json.dumps(text) for text in documents]
    made = shape.rows(rows(*[(f"k{n}", 0, n + 1, text) for n, text in enumerate(texts)])).to_pylist()
    kept = OWN - {REST}
    return [{name: value for name, value in row.items() if name not in kept and value is not None} for row in made]


def test_fields_become_columns_of_the_types_they_are_seen_with() -> None:
    shape = JsonShape(DESCRIBED)
    document = {"carrier": "UA", "distance": 1400, "delay": 7.5, "late": True, "stops": ["ORD"], "at": {"x": 1}}
    assert unfolded(document, shape=shape) == [document]
    kinds = {column["name"]: column["type"] for column in shape.added}
    assert (kinds["carrier"], kinds["distance"], kinds["delay"], kinds["late"]) == (
        "string",
        "long",
        "double",
        "boolean",
    )
    assert kinds["stops"] == {"type": "array", "elementType": "string", "containsNull": True}
    assert kinds["at"]["type"] == "struct"


@pytest.mark.parametrize("name", ["event", "_document", "_corrupt_record", "snapshot_end", "op", "batch"])
def test_no_field_shares_a_name_with_what_the_mirror_works_with(name: str) -> None:
    assert unfolded({name: "click"}) == [{name: "click"}]
    assert unfolded({name: 1}) == [{name: 1}]


@pytest.mark.parametrize("name", ["key", "Value", "SEQNO", "modified_at", "_rest"])
def test_a_field_called_like_a_column_of_ours_has_a_prefix(name: str) -> None:
    assert unfolded({name: 5}) == [{f"doc_{name}": 5}]


READERS_OWN = ["_metadata", "_METADATA", "__delta_internal_is_row_deleted", "_Tmp_metadata_row_index"]
OF_ROW_IDS = ["_row-id-col-5", "_ROW-commit-version-col-5-sequence"]


@pytest.mark.parametrize("name", [*READERS_OWN, *OF_ROW_IDS])
def test_a_field_called_like_a_column_that_spark_makes_has_a_prefix(name: str) -> None:
    assert unfolded({name: 5}) == [{f"doc_{name}": 5}]


def test_a_name_too_long_for_a_schema_stands_in_rest_and_in_an_object_makes_it_text() -> None:
    name = "n" * (COLUMN_BYTES_MAX + 1)
    assert unfolded({name: 1, name[1:]: 2}) == [{name[1:]: 2, REST: json.dumps({name: 1})}]
    assert unfolded({"ß" * 200: 1}) == [{REST: json.dumps({"ß" * 200: 1}, ensure_ascii=False)}]
    assert unfolded({"o": {name: 1}}) == [{"o": json.dumps({name: 1})}]


def test_names_that_differ_by_case_or_by_what_cannot_be_written_have_columns_of_their_own() -> None:
    assert unfolded({"Id": 1}, {"id": 2}) == [{"Id": 1}, {"id_2": 2}]
    assert unfolded({"Name": "a", "name": "b"}) == [{"Name": "a", "name_2": "b"}]
    assert unfolded({"a b": 1, "a.b": 2, "": 3, "_": 4}) == [{"a_b": 1, "a_b_2": 2, "_": 3, "__2": 4}]
    assert unfolded({"größe": 1, "content-type": "x", "a:b": 2, "2024": 3}) == [
        {"größe": 1, "content-type": "x", "a:b": 2, "2024": 3}
    ]


def test_a_field_keeps_its_column_for_all_who_come_later() -> None:
    first = JsonShape(DESCRIBED)
    unfolded({"id": 1}, shape=first)
    later = JsonShape([*DESCRIBED, *first.added])
    assert unfolded({"Id": 2, "id": 3}, shape=later) == [{"Id_2": 2, "id": 3}]


@pytest.mark.parametrize(
    "names", [{"content-type": "x"}, {"2024": 1.5}, {"a b": 1}, {"a.b": 1}, {"größe": 1}, {"A": 1, "a": 2}, {}]
)
def test_an_object_whose_names_are_not_plain_is_json_text(names: dict[str, Any]) -> None:
    (row,) = unfolded({"o": names})
    assert json.loads(row["o"]) == names
    (row,) = unfolded({"o": [names]})
    assert [json.loads(text) for text in row["o"]] == [names]


def test_a_number_of_another_kind_widens_what_is_seen_at_once_and_stands_in_rest_later() -> None:
    assert unfolded({"price": 1}, {"price": 1.5}) == [{"price": 1.0}, {"price": 1.5}]
    shape = JsonShape(DESCRIBED)
    assert unfolded({"price": 1}, shape=shape) == [{"price": 1}]
    later = JsonShape([*DESCRIBED, *shape.added])
    assert unfolded({"price": 1.5}, {"price": 2.0}, shape=later) == [{REST: '{"price": 1.5}'}, {"price": 2}]
    assert later.conflicts == {"price: long in the table, double in documents"}


def test_what_does_not_fit_its_column_stands_in_rest_and_is_told() -> None:
    shape = JsonShape([*DESCRIBED, JsonColumns.read(DESCRIBED).add("o", _struct(a="long")) or {}])
    assert unfolded({"o": {"a": 1, "b": 2}}, {"o": 3}, {"o": {"a": "x"}}, shape=shape) == [
        {"o": {"a": 1}, REST: '{"o": {"a": 1, "b": 2}}'},
        {REST: '{"o": 3}'},
        {"o": {"a": None}, REST: '{"o": {"a": "x"}}'},
    ]
    assert shape.conflicts == {
        "o: struct in the table, struct in documents",
        "o: struct in the table, long in documents",
    }


def _struct(**kinds: str) -> dict[str, Any]:
    return {"type": "struct", "fields": [delta_field(name, kind) for name, kind in kinds.items()]}


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[1, 2]",
        "3",
        "null",
        '"text"',
        '{"a": NaN}',
        '{"a": 1',
        "[" * 100_000,
        '{"a":' * 5000 + "1" + "}" * 5000,
    ],
)
def test_what_is_no_document_has_no_fields(text: str) -> None:
    assert unfolded(text) == [{}]


def test_strange_documents_are_taken_all_the_same() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    huge = 10**60
    assert len(unfolded({"deep": deep})) == 1
    assert unfolded({"n": huge}) == [{REST: json.dumps({"n": huge})}]
    assert unfolded({"n": 1}, {"n": huge}) == [{"n": 1}, {REST: json.dumps({"n": huge})}]
    assert unfolded('{"a": 1, "a": 2}') == [{"a": 2}]
    assert unfolded({"a": []}, {"a": None}, {"a": ["x"]}) == [{"a": []}, {}, {"a": ["x"]}]
    assert unfolded({f"f{n}": n for n in range(2000)}) == [{f"f{n}": n for n in range(2000)}]


@pytest.mark.parametrize(
    ("document", "row"),
    [
        (r'{"a": "x\ud83d"}', {"a": r"x\ud83d"}),
        (r'{"tags": ["\ud83d", "b"]}', {"tags": [r"\ud83d", "b"]}),
        (r'{"o": {"p": {"q": ["\udfff"]}}}', {"o": {"p": {"q": [r"\udfff"]}}}),
        (r'{"o": {"\ud800": "\ud800"}}', {"o": r'{"\\ud800": "\\ud800"}'}),
        (r'{"o": [{"\ud800": 1, "\\ud800": 2}]}', {"o": [r'{"\\ud800_2": 1, "\\ud800": 2}']}),
        (r'{"a": "\ud83d\ude00"}', {"a": "\U0001f600"}),
    ],
)
def test_half_a_surrogate_pair_is_written_as_its_escape_wherever_it_stands(document: str, row: dict[str, Any]) -> None:
    assert unfolded(document) == [row]


def test_half_a_pair_in_text_fits_a_column_that_is_there_and_what_does_not_fit_stands_escaped_in_rest() -> None:
    described = [*DESCRIBED, delta_field("tags", _array("string")) | {"metadata": {FIELD: "tags"}}]
    assert unfolded(r'{"tags": ["\ud83d"]}', r'{"tags": "\ud83d"}', shape=JsonShape(described)) == [
        {"tags": [r"\ud83d"]},
        {REST: r'{"tags": "\\ud83d"}'},
    ]


def test_a_field_whose_name_has_half_a_pair_has_a_column_and_the_schema_stays_unicode() -> None:
    shape = JsonShape(DESCRIBED)
    assert unfolded(r'{"\ud800": 1, "\udfff": 2, "?": 3, "\\ud800": 4}', shape=shape) == [
        {"?": 3, r"\ud800": 4, "?_2": 1, "?_3": 2}
    ]
    json.dumps(shape.added, ensure_ascii=False).encode()
    later = JsonShape([*DESCRIBED, *shape.added])
    assert unfolded(r'{"\udfff": 5}', shape=later) == [{"?_3": 5}] and not later.added
    assert merged(DESCRIBED, [shape.added])[len(DESCRIBED) :] == shape.added
    assert agrees([*DESCRIBED, *shape.added], shape.added)


def test_a_schema_of_before_is_made_readable_and_the_columns_go_on() -> None:
    half = delta_field("?", "long") | {"metadata": {FIELD: "\ud800", "comment": "c"}}
    spark = delta_field("_METADATA", "long") | {"metadata": {FIELD: "_METADATA"}}
    plain = delta_field("a", "long") | {"metadata": {FIELD: "a"}}
    mended = readable([*DESCRIBED, half, spark, plain])
    assert mended == [*DESCRIBED, half | {"metadata": {FIELD_AS_JSON: r'"\ud800"', "comment": "c"}}, plain]
    assert field_of(mended[-2]) == "\ud800"
    assert readable(mended) == mended
    assert unfolded(r'{"\ud800": 1, "_METADATA": 2}', shape=JsonShape(mended)) == [{"?": 1, "doc__METADATA": 2}]


@pytest.mark.parametrize("number", ["1e400", "-1E400", "9" * 400, "-" + "9" * 5000, "1" + "0" * 400 + ".5"])
def test_a_number_beyond_a_double_stands_in_rest_by_its_digits(number: str) -> None:
    assert unfolded(f'{{"a": 1, "n": {number}}}') == [{"a": 1, REST: json.dumps({"n": number})}]
    assert unfolded(f'{{"n": [1, {number}]}}') == [{REST: json.dumps({"n": [1, number]})}]
    assert unfolded(f'{{"n": {{"a b": {number}}}}}') == [{"n": json.dumps({"a b": number})}]
    for kind in ("double", "long", "string", "boolean", _array("double")):
        shape = JsonShape([*DESCRIBED, delta_field("n", kind) | {"metadata": {FIELD: "n"}}])
        assert unfolded(f'{{"n": {number}}}', shape=shape) == [{REST: json.dumps({"n": number})}]
        assert len(shape.conflicts) == 1
    assert unfolded(number) == [{}]


def _array(kind: str) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def test_fields_beyond_what_a_table_can_have_stand_in_rest() -> None:
    (row,) = unfolded({f"f{n:05}": n for n in range(COLUMNS_MAX + 5)})
    assert len(row) == COLUMNS_MAX - len(DESCRIBED) + 1
    assert len(json.loads(row[REST])) == len(DESCRIBED) + 5


def test_changes_of_keys_that_are_no_text_are_left_out_and_told() -> None:
    shape, batch = JsonShape(DESCRIBED), rows(("a", 0, 1, "{}"), ("b", 0, 2, "{}"))
    assert shape.taken(batch) is None
    bad = batch.set_column(4, "key", [b"\xff", b"b"])
    assert list(shape.taken(bad)) == [False, True]
    assert len(shape.conflicts) == 1


def test_tasks_that_agree_add_what_they_saw_and_others_get_the_wider_type() -> None:
    one, two, three = JsonShape(DESCRIBED), JsonShape(DESCRIBED), JsonShape(DESCRIBED)
    unfolded({"a": 1, "b": "x"}, shape=one)
    unfolded({"a": 2, "c": 1}, shape=two)
    unfolded({"a": 2.5}, shape=three)
    both = merged(DESCRIBED, [one.added, two.added])
    assert agrees(both, one.added) and agrees(both, two.added)
    wide = merged(DESCRIBED, [one.added, three.added])
    assert {column["name"]: column["type"] for column in wide}["a"] == "double"
    assert agrees(wide, three.added) and not agrees(wide, one.added)
    assert is_unfolded(wide) and not is_unfolded(fields())


def test_types_by_the_letter() -> None:
    assert [kind_of(value) for value in (None, True, 1, 2**63, 1.5, "x", [], [None, 1, 2.5])] == [
        None,
        "boolean",
        "long",
        None,
        "double",
        "string",
        None,
        {"type": "array", "elementType": "double", "containsNull": True},
    ]
    assert (wider("long", "string"), wider(None, "long"), wider("double", "long")) == ("long", "long", "double")
    assert fit(True, "long") == (None, False)
    assert fit(2**53 + 1, "double")[1] is False
    assert column_of("a,b;c") == "a_b_c"


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=4)
"""Halves of surrogate pairs among it, as JSON's escapes can say them."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(ANY_TEXT, JSON, max_size=4), max_size=5))
def test_any_documents_become_rows_of_one_schema(documents: list[dict[str, Any]]) -> None:
    shape = JsonShape(DESCRIBED)
    found = unfolded(*documents, shape=shape)
    columns = {field_of(column): column["name"] for column in shape.added}
    assert len({name.lower() for name in columns.values()}) == len(columns)
    for document, row in zip(documents, found, strict=True):
        rest = json.loads(row[REST]) if REST in row else {}
        for name, value in document.items():
            assert value is None or written(name) in rest or columns[name] in row
