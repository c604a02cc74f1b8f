"""A log's columns as an Iceberg schema. Delta knows columns by name, Iceberg by number.

A column keeps its number (field id) as long as it has its name and a type to which Iceberg lets the old one be
promoted; any other change makes it another column. Data files have no numbers: the table's name mapping gives them
theirs. Source: Iceberg's spec.md, "Schema Evolution", "Column Projection" and "Name Mapping Serialization".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headwater.lake.row_ids import IdColumns
from headwater.lake.shape import TYPE_CHANGES

PRIMITIVES: Final = {
    "binary": "binary",
    "string": "string",
    "integer": "int",
    "long": "long",
    "double": "double",
    "boolean": "boolean",
    "timestamp": "timestamptz",
}
"""Delta's type -> Iceberg's."""

PROMOTIONS: Final = frozenset({("int", "long"), ("float", "double")})
NAME_MAPPING: Final = "schema.name-mapping.default"

ROW_ID: Final = 2147483540
LAST_UPDATED: Final = 2147483539
"""The field ids of `_row_id` and `_last_updated_sequence_number`, by which readers find them in data files."""

OF_DELTA_ALONE: Final = 2147483447
"""The field id of the column that only readers of Delta use: the highest that a column may have. Those below it are for
columns that nobody reads. Without one in the mapping pyiceberg refuses the file."""

Field = dict[str, Any]


class UnknownTypeError(Exception):
    """A column has a type that can't be published; the argument is a text that names both."""


class FieldIds:
    """A source of numbers for columns.

    Args:
        last: the highest number that was ever assigned.

    Attributes:
        last: the highest number assigned so far.
    """

    def __init__(self, last: int = 0) -> None:
        self.last: int = last

    def fields(self, columns: Sequence[Mapping[str, Any]], earlier: Sequence[Field] = ()) -> list[Field]:
        """Return columns as fields of an Iceberg struct.

        Args:
            columns: columns as the log describes them.
            earlier: the fields that the struct had so far.

        Raises:
            UnknownTypeError: a type that can't be published.
        """
        before = {field["name"]: field for field in earlier}
        return [self._field(column, before.get(column["name"])) for column in columns]

    def _field(self, column: Mapping[str, Any], before: Field | None) -> Field:
        # A number must never mean two types: files written before are read by it, and would show values of the old
        # column.
        if before is not None and not _stays(before["type"], column["type"]):
            before = None
        number = self._next() if before is None else before["id"]
        _check_changes(column)
        try:
            kind = self._type(column["type"], None if before is None else before["type"])
        except UnknownTypeError as error:
            raise UnknownTypeError(f"{column['name']}: {error}") from None
        field = {"id": number, "name": column["name"], "required": False, "type": kind}
        comment = (column.get("metadata") or {}).get("comment")
        return field | ({"doc": comment} if comment else {})

    def _type(self, kind: Any, before: Any) -> Any:
        if isinstance(kind, str):
            if kind not in PRIMITIVES:
                raise UnknownTypeError(kind)
            return PRIMITIVES[kind]
        if kind["type"] == "struct":
            return {"type": "struct", "fields": self.fields(kind["fields"], before["fields"] if before else ())}
        if kind["type"] != "array":
            raise UnknownTypeError(str(kind["type"]))
        earlier_element = before["element"] if before and _stays(before["element"], kind["elementType"]) else None
        number = before["element-id"] if before and earlier_element is not None else self._next()
        element = self._type(kind["elementType"], earlier_element)
        return {"type": "list", "element-id": number, "element": element, "element-required": False}

    def _next(self) -> int:
        self.last += 1
        return self.last


def _check_changes(column: Mapping[str, Any]) -> None:
    """Check that readers of Iceberg can convert what older files have of a column whose type was widened.

    Raises:
        UnknownTypeError: they can't.
    """
    for change in (column.get("metadata") or {}).get(TYPE_CHANGES, ()):
        old_type, new_type = change["fromType"], change["toType"]
        if (PRIMITIVES.get(old_type), PRIMITIVES.get(new_type)) not in PROMOTIONS:
            raise UnknownTypeError(f"{column['name']}: {new_type}, widened from {old_type}")


def _stays(before: Any, kind: Any) -> bool:
    """Return True if a column of Iceberg's type `before` is the same column with Delta's type `kind`."""
    if isinstance(kind, str):
        new_type = PRIMITIVES.get(kind)
        return before == new_type or (before, new_type) in PROMOTIONS
    names = {"struct": "struct", "array": "list"}
    return isinstance(before, dict) and before["type"] == names.get(kind["type"])


def name_mapping(fields: Sequence[Field], columns: IdColumns | None = None, file_names: Iterable[str] = ()) -> str:
    """Return the mapping from the names in data files to the fields, as the table's property has it.

    Args:
        fields: of the table.
        columns: of data files, by which rows keep their ids.
        file_names: more columns that data files may have and that nobody reads, such as ids of before their feature was
            dropped. pyiceberg refuses a file with a column that the mapping lacks.
    """
    mapped = [_mapped(field["id"], field["name"], field["type"]) for field in fields]
    if columns is not None:
        names = {ROW_ID: columns.row, LAST_UPDATED: columns.sequence, OF_DELTA_ALONE: columns.commit}
        mapped += [_mapped(number, name, "long") for number, name in names.items()]
    mapped_names = {entry["names"][0] for entry in mapped}
    unmapped = [name for name in dict.fromkeys(file_names) if name not in mapped_names]
    mapped += [_mapped(OF_DELTA_ALONE - 1 - place, name, "long") for place, name in enumerate(unmapped)]
    return json.dumps(mapped, ensure_ascii=False)


def mapped_names(mapping: str) -> list[str]:
    """Return the names of columns in a mapping that `name_mapping` made."""
    return [name for entry in json.loads(mapping) for name in entry["names"]]


def _mapped(number: int, name: str, kind: Any) -> dict[str, Any]:
    mapped: dict[str, Any] = {"field-id": number, "names": [name]}
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            mapped["fields"] = [_mapped(field["id"], field["name"], field["type"]) for field in kind["fields"]]
        else:
            mapped["fields"] = [_mapped(kind["element-id"], "element", kind["element"])]
    return mapped


def integers(fields: Sequence[Field]) -> dict[str, tuple[int, int]]:
    """Return the columns of whole numbers: name -> (field id, bytes of a bound)."""
    sizes = {"int": 4, "long": 8}
    return {field["name"]: (field["id"], sizes[field["type"]]) for field in fields if _size_of(field, sizes)}


def _size_of(field: Field, sizes: Mapping[str, int]) -> int:
    return sizes.get(field["type"], 0) if isinstance(field["type"], str) else 0
