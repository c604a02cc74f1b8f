"""Documents as VARIANT, byte for byte what Spark's own builder makes; Spark itself reads them in tests/pipelines."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.variant_utils import VariantBuilder, VariantUtils

from headwater.lake.json_values import TOO_DEEP
from headwater.lake.shape import fields
from headwater.lake.variant import AS_VARIANT, BYTES_MAX, COLUMN, DEPTH_MAX, TOO_LONG, VariantShape, encoded
from tests.lake.support import rows


def built(text: str) -> tuple[bytes, bytes]:
    """(metadata, value) as PySpark builds them."""
    value, metadata = VariantBuilder().build(text)
    return metadata, value


@pytest.mark.parametrize(
    ("text", "metadata", "value"),
    [
        ("null", "010000", "00"),
        ("true", "010000", "04"),
        ("false", "010000", "08"),
        ("1", "010000", "0c01"),
        ("-129", "010000", "107fff"),
        ("70000", "010000", "1470110100"),
        ("5000000000", "010000", "1800f2052a01000000"),
        ("1.25", "010000", "20027d000000"),
        ("1e2", "010000", "1c0000000000005940"),
        ('"hi"', "010000", "096869"),
        ("[1, 2]", "010000", "03020002040c010c02"),
        ('{"b": 1, "a": null}', "010200010262 61".replace(" ", ""), "0202010002000 30c0100".replace(" ", "")),
    ],
)
def test_a_text_has_these_bytes(text: str, metadata: str, value: str) -> None:
    assert encoded(text.encode()) == (bytes.fromhex(metadata), bytes.fromhex(value))


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"a": {"b": [{"c": 1}, {"c": 2, "d": None}]}, "b": True},
        {"": 1, " ": 2, "a.b": 3, "A": 4, "a": 5, "äöü": "ß", "日本": "語"},
        {"t": "x" * 63, "u": "x" * 64, "v": "é" * 40_000},
        {f"f{n:04}": n for n in range(300)},
        {f"f{n}": {f"f{m}": "x" * 50 for m in range(n)} for n in range(40)},
        list(range(-200, 400)),
        [
            2**7 - 1,
            2**7,
            -(2**7),
            2**15,
            -(2**15) - 1,
            2**31,
            2**63 - 1,
            -(2**63),
            2**63,
            10**38 - 1,
            10**38,
            -(10**40),
        ],
        ["x" * 70_000, "y"],
        ["x" * (1 << 20)] * 15,
    ],
    ids=lambda document: str(document)[:30],
)
def test_the_bytes_are_those_that_spark_builds(document: Any) -> None:
    text = json.dumps(document)
    assert encoded(text.encode()) == built(text)


@pytest.mark.parametrize(
    "text",
    [
        *("1.0", "-0.5", "0.1", "123456789.1", "0.000000001", "12345678901234567.8", "1.5e3", "-1E-7", "-0.0"),
        *("1" * 30 + ".5", "0." + "0" * 30 + "1", "0." + "0" * 60 + "1", "9" * 50 + ".5"),
    ],
)
def test_numbers_are_what_spark_makes_of_them(text: str) -> None:
    assert encoded(text.encode()) == built(text)


NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.none()
DOCUMENTS = st.recursive(
    NUMBERS | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


@given(DOCUMENTS)
def test_whatever_a_document_is_spark_reads_the_same(document: Any) -> None:
    text = json.dumps(document, ensure_ascii=False).encode(errors="replace").decode()
    found = encoded(text.encode())
    assert not isinstance(found, str)
    assert found == built(text)
    metadata, value = found
    assert same(VariantUtils.to_python(value, metadata), json.loads(text))


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return math.isclose(float(found), wanted) if isinstance(found, Decimal | float) else bool(found == wanted)
    return bool(found == wanted)


@given(st.binary(max_size=50))
def test_garbage_is_told_and_raises_nothing(garbage: bytes) -> None:
    found = encoded(garbage)
    assert isinstance(found, str | tuple)
    if isinstance(found, str):
        assert found.startswith(("no JSON", "JSON"))


def test_what_is_no_variant_is_told_in_words() -> None:
    assert encoded(b"") == encoded(None) == "no JSON: the value is empty"
    assert encoded(b"{} x") == "no JSON: Extra data at character 3"
    assert encoded(b"[Infinity]") == "no JSON: Infinity is no value of JSON"
    assert encoded(b"[1e999]") == "no JSON: 1e999 is beyond what a double holds"
    assert encoded(b"\xff") == "no JSON: not UTF-8 at byte 0"
    assert encoded(b"[" * 100_000 + b"]" * 100_000) == TOO_DEEP
    assert encoded(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX) == built("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert encoded(b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1)) == TOO_DEEP
    assert encoded(b'"' + b"x" * BYTES_MAX + b'"') == TOO_LONG
    assert encoded(b'{"' + b"x" * BYTES_MAX + b'": 1}') == TOO_LONG


def test_a_lone_surrogate_and_a_name_that_comes_twice_are_no_hindrance() -> None:
    assert encoded(rb'{"\ud800": "\ud800"}') == built(r'{"\\ud800": "\\ud800"}')
    assert encoded(b'{"a": 1, "a": 2}') == built('{"a": 2}')


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (rb'{"\ud800": 1, "\udfff": 2, "?": 3}', {r"\ud800": 1, r"\udfff": 2, "?": 3}),
        (rb'{"\ud800": 1, "\\ud800": 2, "\\ud800_2": 3}', {r"\ud800_3": 1, r"\ud800": 2, r"\ud800_2": 3}),
        (b'[{"\xed\xa0\x80": "\xed\xa0\x80"}]', [{r"\ud800": r"\ud800"}]),
    ],
)
def test_names_with_half_a_surrogate_pair_stay_different_names(text: bytes, written: Any) -> None:
    found = encoded(text)
    assert found == built(json.dumps(written))


@pytest.mark.parametrize("number", ["9" * 309, "-" + "9" * 5000, "1e400", "1" + "0" * 400 + ".5"])
def test_a_number_beyond_a_double_is_told_by_its_digits(number: str) -> None:
    found = encoded(f'{{"n": {number}}}'.encode())
    assert isinstance(found, str) and found.startswith(f"no JSON: {number[:30]}")
    assert encoded(b"9" * 308) == built("9" * 308)


def test_rows_have_the_document_or_null_and_the_value_whole() -> None:
    shape = VariantShape(AS_VARIANT.columns)
    assert AS_VARIANT.is_of(AS_VARIANT.columns) and not AS_VARIANT.is_of(fields())
    made = shape.rows(rows(("a", 0, 1, '{"n": 1}'), ("b", 0, 2, "no JSON"), ("c", 0, 3, "[1]"))).to_pylist()
    assert [row["value"] for row in made] == [b'{"n": 1}', b"no JSON", b"[1]"]
    halves = [row[COLUMN] and (row[COLUMN]["metadata"], row[COLUMN]["value"]) for row in made]
    assert halves == [built('{"n": 1}'), None, built("[1]")]
    assert shape.misfits == [None, "no JSON: Expecting value at character 0", None]
    bad = rows(("a", 0, 1, "{}"), ("b", 0, 2, "{}")).set_column(4, "key", [b"\xff", b"b"])
    taken = shape.taken(bad)
    assert taken is not None and list(taken) == [False, True]
    assert len(shape.conflicts) == 1
