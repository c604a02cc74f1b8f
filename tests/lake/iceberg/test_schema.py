"""Columns by name become columns by number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headwater.lake.iceberg.schema import FieldIds, UnknownTypeError, integers, name_mapping
from headwater.lake.row_ids import IdColumns


def column(name: str, kind: Any, **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*columns: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(columns)}


def array(kind: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


NESTED = [
    column("key", "binary", comment="the document's key"),
    column("address", struct(column("city", "string"), column("floors", array("long")))),
]


def test_each_column_and_each_nested_one_gets_a_number() -> None:
    fields = FieldIds().fields(NESTED)
    floors = {"type": "list", "element-id": 5, "element": "long", "element-required": False}
    assert fields == [
        {"id": 1, "name": "key", "required": False, "type": "binary", "doc": "the document's key"},
        {
            "id": 2,
            "name": "address",
            "required": False,
            "type": {
                "type": "struct",
                "fields": [
                    {"id": 3, "name": "city", "required": False, "type": "string"},
                    {"id": 4, "name": "floors", "required": False, "type": floors},
                ],
            },
        },
    ]


def test_columns_keep_their_numbers_whatever_comes_between_them() -> None:
    first = FieldIds()
    before = first.fields(NESTED)
    wider = [column("new", "boolean"), NESTED[1], NESTED[0]]
    wider[1] = column("address", struct(column("zip", "string"), *NESTED[1]["type"]["fields"]))
    after = {field["name"]: field for field in FieldIds(first.last).fields(wider, before)}
    assert (after["key"]["id"], after["address"]["id"], after["new"]["id"]) == (1, 2, 6)
    assert [field["id"] for field in after["address"]["type"]["fields"]] == [7, 3, 4]


def test_a_wider_type_is_the_same_column_and_any_other_is_another() -> None:
    first = FieldIds()
    before = first.fields([column("a", "integer"), column("b", "long"), column("c", array("integer"))])
    after = FieldIds(first.last).fields(
        [column("a", "long"), column("b", "string"), column("c", array("string"))], before
    )
    assert [field["id"] for field in after] == [1, 5, 3]
    assert after[2]["type"]["element-id"] == 6


def test_a_type_that_iceberg_gets_no_column_of_is_named() -> None:
    with pytest.raises(UnknownTypeError, match="address: document: variant"):
        FieldIds().fields([column("address", struct(column("document", "variant")))])
    with pytest.raises(UnknownTypeError, match="a: map"):
        FieldIds().fields([column("a", {"type": "map"})])


def test_the_mapping_has_a_name_for_each_number() -> None:
    assert json.loads(name_mapping(FieldIds().fields(NESTED))) == [
        {"field-id": 1, "names": ["key"]},
        {
            "field-id": 2,
            "names": ["address"],
            "fields": [
                {"field-id": 3, "names": ["city"]},
                {"field-id": 4, "names": ["floors"], "fields": [{"field-id": 5, "names": ["element"]}]},
            ],
        },
    ]


def test_columns_of_whole_numbers_have_bounds() -> None:
    fields = FieldIds().fields([column("vbucket", "integer"), column("seqno", "long"), *NESTED])
    assert integers(fields) == {"vbucket": (1, 4), "seqno": (2, 8)}


def test_columns_of_row_ids_are_mapped_to_the_numbers_of_the_specification() -> None:
    assert json.loads(name_mapping([], IdColumns("ids", "versions"))) == [
        {"field-id": 2147483540, "names": ["ids"]},
        {"field-id": 2147483539, "names": ["versions-sequence"]},
        {"field-id": 2147483447, "names": ["versions"]},
    ]
