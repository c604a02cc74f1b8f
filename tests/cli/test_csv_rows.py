"""CSV as rows of text, and fields as values."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.csv_rows import rows_of, typed, types_of

FIELDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@given(st.lists(st.lists(FIELDS, min_size=2, max_size=4), max_size=5), st.sampled_from(",\t;"))
def test_what_was_written_is_read(rows: list[list[str]], delimiter: str) -> None:
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter).writerows(rows)
    for strict in (False, True):
        assert list(rows_of(io.BytesIO(out.getvalue().encode()), delimiter, strict=strict)) == rows


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (b"a,b\n\n1,2", [["a", "b"], ["1", "2"]]),
        (b'a\r\n"x\r\ny"\r\n', [["a"], ["x\r\ny"]]),
        (b'5" pipe,"a""b"\n', [['5" pipe', 'a"b']]),
        (b'"ab"c,d\n', [["abc", "d"]]),
    ],
)
def test_rows_are_cut_as_spreadsheets_cut_them(text: bytes, rows: list[list[str]]) -> None:
    assert list(rows_of(io.BytesIO(text), ",")) == rows


def test_a_file_that_ends_within_a_field_is_no_csv() -> None:
    table = rows_of(io.BytesIO(b'a\n1\n"2\n3\n'), ",")
    assert [next(table), next(table)] == [["a"], ["1"]]
    with pytest.raises(csv.Error, match="the file ends within a field that began with a quote"):
        next(table)


def test_types_are_those_that_give_each_field_back_as_it_stood() -> None:
    head = "id,zip,n,x,ok,t\n1,007,-7,1.5,true,a\n2,1,,2,false,1\n"
    inferred = {"id": "text", "zip": "text", "n": "int", "x": "float", "ok": "bool", "t": "text"}
    assert types_of(head, ",", {}, "id", infer=True) == inferred
    assert types_of(head, ",", {"zip": "int"}, "id", infer=False) == dict.fromkeys(inferred, "text") | {"zip": "int"}
    with pytest.raises(ValueError, match="--types names 'm'"):
        types_of(head, ",", {"m": "int"}, "id", infer=False)


def test_an_empty_field_is_text_or_missing() -> None:
    assert [typed(kind, "") for kind in ("text", "int", "float", "bool")] == ["", None, None, None]
