"""JSON documents as columns: chooses the columns, and splits each document's fields among them.

The fields at the top level of documents become columns. A column belongs to one field, by the field's exact name, which
the table's schema remembers (`headwater.field`); a field of a document never shares a name with the mirror's own
columns. The type of a column is the type of its first values. A value that does not fit its column, and a field that
Delta can't have as a column, stand as JSON in `_rest`, so nothing is lost silently; the whole document is in `value`.

No document can end a mirror or make the table unreadable. Names of columns are made valid and unique whatever the case.
Objects become structs if their names are plain, and JSON text otherwise. Values that JSON allows and readers of tables
refuse become text by lake/json_values.py: half a surrogate pair, a number beyond a double.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.lake.json_values import TOO_DEEP, LargeNumber, dumped, may_have_halves, no_json, parse, written
from headwater.lake.shape import (
    KEPT,
    PRIMITIVES,
    TYPE_CHANGES,
    TableForm,
    TableShape,
    Widenings,
    arrow_schema,
    arrow_type,
    delta_field,
    fields,
    modified_at,
)

FIELD = "headwater.field"
FIELD_AS_JSON = "headwater.field.json"
"""The metadata key with a column's field as JSON text, for a name with half a surrogate pair. Such a name written
plainly makes delta-rs, Polars and DuckDB refuse the schema, in this version of the table and all later ones."""

REST = "_rest"
_REST_MEANS = "JSON of the fields that did not fit their columns"
CLASH_PREFIX = "doc_"
COLUMNS_MAX = 4000
"""The most columns of a table; further fields stand in `_rest`. Data used as field names would make millions."""

COLUMN_BYTES_MAX = 255
"""The longest name of a column; other fields stand in `_rest`, for processes and checkpoints hold the schema."""

DEPTH_MAX, NAMES_MAX = 8, 200
_BRACKETS_SAFE = 200
_UNWRITABLE = re.compile(r"[ ,;{}()\n\t\r=`.\x00-\x1f]")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_READERS_OWN = re.compile(
    r"_metadata\Z|__delta_internal_|_tmp_metadata_|_row-id-col-|_row-commit-version-col-", re.IGNORECASE
)
"""Names that Spark and Delta give columns of their own while they read; a table with such a column can't be read there
once a file has a deletion vector, not even its other columns. And names of the columns of data files by which rows keep
their ids (lake/row_ids.py)."""

_NUMBERS: dict[str, set[type]] = {"long": {int, type(None)}, "double": {int, float, type(None)}}
_NUMBERS["integer"] = _NUMBERS["long"]
_WIDTHS = ("integer", "long", "double")
_JSON_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
_JSON_NAMES |= {type(None): "null", LargeNumber: "a number"}
_INTEGERS, _LONGS = range(-(1 << 31), 1 << 31), range(-(1 << 63), 1 << 63)

Kind = str | dict[str, Any]
"""A type as Delta writes it."""


def kind_of(value: Any, depth: int = 0) -> Kind | None:
    """Return the type of a column that can hold a value; None for null, and for a value that no column can hold."""
    if depth > DEPTH_MAX and isinstance(value, list | dict):
        return "string"
    kinds: dict[type, Kind] = {bool: "boolean", float: "double", str: "string"}
    if isinstance(value, int) and not isinstance(value, bool):
        return "long" if value in _LONGS else None
    if isinstance(value, list):
        element = _merged(kind_of(item, depth + 1) for item in value)
        return None if element is None else {"type": "array", "elementType": element, "containsNull": True}
    if isinstance(value, dict):
        return _struct_of(value, depth)
    return kinds.get(type(value))


def _struct_of(value: Mapping[str, Any], depth: int) -> Kind:
    """Return a struct type if all names are plain and differ by more than case; otherwise JSON text."""
    names = {name.lower() for name in value}
    plain = 0 < len(names) == len(value) <= NAMES_MAX and all(map(_PLAIN.match, value))
    if not plain or max(map(len, value)) > COLUMN_BYTES_MAX:
        return "string"
    inner = [delta_field(name, kind_of(item, depth + 1) or "string") for name, item in value.items()]
    return {"type": "struct", "fields": inner}


def wider(first: Kind | None, second: Kind | None) -> Kind | None:
    """Return the type that holds values of both types, if there is one; otherwise the first type."""
    if first is None or second is None:
        return first if second is None else second
    if isinstance(first, str) and isinstance(second, str) and {first, second} <= {*_WIDTHS}:
        return max(first, second, key=_WIDTHS.index)
    return first


def widened(column: Mapping[str, Any], kind: Kind) -> dict[str, Any]:
    """Return a column with a wider type, and the change in its metadata."""
    changes = [*column["metadata"].get(TYPE_CHANGES, ()), {"fromType": column["type"], "toType": kind}]
    return {**column, "type": kind, "metadata": {**column["metadata"], TYPE_CHANGES: changes}}


def width_of(value: Any) -> str | None:
    """Return the narrowest of the types of numbers that has a value; None for a value that none of them has."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if isinstance(value, float):
        return width_of(int(value)) if value.is_integer() and int(value) in _LONGS else "double"
    return "integer" if value in _INTEGERS else "long" if value in _LONGS else None


def _widest(values: Iterable[Any]) -> str | None:
    widths = {width_of(value) for value in values} - {None}
    return max((width for width in widths if width is not None), key=_WIDTHS.index, default=None)


def _merged(kinds: Iterable[Kind | None]) -> Kind | None:
    kind: Kind | None = None
    for other in kinds:
        kind = wider(kind, other)
    return kind


@dataclass
class JsonColumns:
    """The columns of a table's fields, with their types.

    Attributes:
        of: field's exact name -> (column, type).
        taken: names of all columns of the table, in lower case.
    """

    of: dict[str, tuple[str, Kind]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, descriptions: Sequence[Mapping[str, Any]]) -> JsonColumns:
        """Return the columns that a table's schema describes."""
        columns = cls(taken={column["name"].lower() for column in descriptions})
        for column in descriptions:
            if (name := field_of(column)) is not None:
                columns.of[name] = (column["name"], column["type"])
        return columns

    def add(self, name: str, kind: Kind) -> dict[str, Any] | None:
        """Add a column for a field; return its description, None if the name is too long or there are too many."""
        plain = column = column_of(name)
        if len(self.taken) >= COLUMNS_MAX or len(plain.encode()) > COLUMN_BYTES_MAX:
            return None
        number = 1
        while column.lower() in self.taken:
            number += 1
            column = f"{plain}_{number}"
        self.taken.add(column.lower())
        self.of[name] = (column, kind)
        return delta_field(column, kind) | {"metadata": _belongs_to(name)}


def _belongs_to(name: str) -> dict[str, str]:
    return {FIELD: name} if name == written(name) else {FIELD_AS_JSON: json.dumps(name)}


def field_of(column: Mapping[str, Any]) -> str | None:
    """Return the field that a column belongs to; None for the mirror's own columns."""
    metadata = column["metadata"]
    name: str | None = json.loads(metadata[FIELD_AS_JSON]) if FIELD_AS_JSON in metadata else metadata.get(FIELD)
    return name


def readable(descriptions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table's columns in a form for all readers: odd names in the metadata, reserved names left out.

    The values of a column that is left out stand in the rows that are written from then on, in `_rest`.
    """
    columns = [
        dict(column) for column in descriptions if field_of(column) is None or not _READERS_OWN.match(column["name"])
    ]
    for column in columns:
        if (name := column["metadata"].get(FIELD)) is not None:
            column["metadata"] = {key: value for key, value in column["metadata"].items() if key != FIELD}
            column["metadata"] |= _belongs_to(name)
    return columns


def is_unfolded(columns: Iterable[Mapping[str, Any]]) -> bool:
    """Return True if a table has its JSON documents unfolded into columns."""
    return any(column["name"] == REST for column in columns)


def column_of(name: str) -> str:
    """Return the preferred column name of a field: valid characters only, with a prefix if the name is one of ours."""
    column = _UNWRITABLE.sub("_", name.encode(errors="replace").decode()) or "_"
    return CLASH_PREFIX + column if column.lower() in {*KEPT, REST} or _READERS_OWN.match(column) else column


class JsonShape(TableShape):
    """A converter from JSON documents to rows of a table; adds columns as it meets new fields.

    Args:
        columns: the table's columns, as its log describes them.
        widenings: the changes of types that columns may take. With some, columns of whole numbers begin at 32 bits.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]], widenings: Widenings = frozenset()) -> None:
        super().__init__(columns, widenings)
        self.columns: JsonColumns = JsonColumns.read(columns)

    def taken(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Return a mask of the changes whose keys are text; this table can have no others."""
        good = texts_among(batch.column("key"))
        if good is not None:
            self.conflicts.add("key: string in the table, bytes that are not UTF-8 in the bucket; left out")
        return good

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the table's rows, with a value in the column of each field that has one."""
        parsed = [_parsed_fields(value) for value in batch.column("value").to_pylist()]
        documents = [document for document, _ in parsed]
        self.misfits: list[str | None] = [reason for _, reason in parsed]
        if self.widenings:
            self._widen(documents)
        self._learn(documents)
        rest_by_row: dict[int, dict[str, Any]] = {}
        fitted = {
            column: self._fitted(documents, name, column, kind, rest_by_row)
            for name, (column, kind) in self.columns.of.items()
        }
        self._add_unplaced(documents, rest_by_row)
        texts = [dumped(written(rest_by_row[row])) if row in rest_by_row else None for row in range(batch.num_rows)]
        arrays = [self._array(column, batch, fitted, texts) for column in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(
        self, column: pa.Field[Any], batch: pa.RecordBatch, fitted: Mapping[str, Any], rest_texts: list[Any]
    ) -> Any:
        if column.name in fitted:
            return fitted[column.name]
        if column.name == REST:
            return pa.array(rest_texts, pa.string())
        values = modified_at(batch.column("cas")) if column.name == "modified_at" else batch.column(column.name)
        return values if values.type == column.type else values.cast(column.type)

    def _learn(self, documents: Sequence[dict[str, Any]]) -> None:
        columns = self.columns.of.keys()
        new_kinds: dict[str, Kind | None] = {}
        for document in documents:
            if not document.keys() <= columns:
                for name in document.keys() - columns:
                    new_kinds[name] = wider(new_kinds.get(name), kind_of(document[name]))
        # In the order of their names: tasks that see the same fields name the same columns.
        for name, kind in sorted(new_kinds.items()):
            if kind == "long" and self.widenings:
                kind = _widest(document.get(name) for document in documents)  # noqa: PLW2901
            column = self.columns.add(name, kind) if kind is not None else None
            if column is not None:
                self.added.append(column)
                self.described.append(column)
        if len(self.described) != len(self.schema):
            self.schema: pa.Schema = arrow_schema(self.described)

    def _widen(self, documents: Sequence[dict[str, Any]]) -> None:
        """Widen the columns of whole numbers of 32 bits for which documents have wider numbers."""
        for name, (column, kind) in self.columns.of.items():
            values = [document.get(name) for document in documents] if kind == "integer" else []
            # A look at each value takes ten times as long as Arrow, and is needed for a batch that has a wider one.
            if kind == "integer" and _at_once(values, kind) is None:
                wider = self._wider_kind(_widest(values))
                if wider != kind:
                    self.columns.of[name] = (column, wider)
                    self._change(column, wider)

    def _wider_kind(self, widest: str | None) -> Kind:
        """Return the type that such a column gets for numbers up to a width; its own if it may get none that has
        them."""
        fitting = () if widest in (None, "integer") else _WIDTHS[_WIDTHS.index(str(widest)) :]
        return next((kind for kind in fitting if ("integer", kind) in self.widenings), "integer")

    def _change(self, column: str, kind: Kind) -> None:
        at = next(at for at, field in enumerate(self.described) if field["name"] == column)
        self.described[at] = widened(self.described[at], kind)
        self.added = [field for field in self.added if field["name"] != column] + [self.described[at]]
        self.schema = arrow_schema(self.described)

    def _add_unplaced(self, documents: Sequence[dict[str, Any]], rest_by_row: dict[int, dict[str, Any]]) -> None:
        """Put the fields that have no column into `rest_by_row`: those beyond the most columns, and those that no
        column can hold.
        """
        columns = self.columns.of.keys()
        for row, document in enumerate(documents):
            if not document.keys() <= columns:
                for name in sorted(document.keys() - columns):
                    if document[name] is not None:
                        rest_by_row.setdefault(row, {})[name] = document[name]

    def _fitted(
        self,
        documents: Sequence[dict[str, Any]],
        name: str,
        column: str,
        kind: Kind,
        rest_by_row: dict[int, dict[str, Any]],
    ) -> Any:
        values = [document.get(name) for document in documents]
        if isinstance(kind, str) and kind in PRIMITIVES and (converted := _at_once(values, kind)) is not None:
            return converted
        fitted = []
        for row, value in enumerate(values):
            good, fits = fit(value, kind)
            fitted.append(good)
            if not fits:
                rest_by_row.setdefault(row, {})[name] = value
                self.conflicts.add(f"{column}: {_label(kind)} in the table, {_label(kind_of(value))} in documents")
        return pa.array(fitted, arrow_type(kind))


UNFOLDED: Final = TableForm(
    "unfold",
    [*fields("string"), delta_field(REST, "string", _REST_MEANS)],
    JsonShape,
    is_unfolded,
    present="its JSON documents are unfolded",
    absent="its JSON documents are not unfolded",
)


def _at_once(values: list[Any], kind: str) -> Any:
    """Convert values by Arrow; None if one of them does not fit, which Arrow does not name, or would lose something."""
    # Arrow would take True for 1, and cut 1.5 down to 1.
    if kind in _NUMBERS and not {type(value) for value in values} <= _NUMBERS[kind]:
        return None
    try:
        return pa.array(values, PRIMITIVES[kind])
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def fit(value: Any, kind: Kind) -> tuple[Any, bool]:
    """Return (the value as a column of this type holds it, True if nothing of the value is lost)."""
    if value is None:
        return None, True
    if isinstance(kind, dict):
        return _fit_array(value, kind) if kind["type"] == "array" else _fit_struct(value, kind)
    if kind == "string":
        # A column of text that began with an object holds objects as text.
        return (value, True) if isinstance(value, str) else _as_text(value)
    actual = kind_of(value)
    if kind == "double" and actual == "long":
        return float(value), int(float(value)) == value
    if kind in ("integer", "long"):
        return (int(value), True) if width_of(value) in ("integer", kind) else (None, False)
    return (value, True) if actual == kind else (None, False)


def _as_text(value: Any) -> tuple[Any, bool]:
    if isinstance(value, dict | list):
        return dumped(value), True
    return None, False


def _fit_array(value: Any, kind: dict[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, list):
        return None, False
    fitted = [fit(item, kind["elementType"]) for item in value]
    return ([item for item, _ in fitted], True) if all(good for _, good in fitted) else (None, False)


def _fit_struct(value: Any, kind: dict[str, Any]) -> tuple[Any, bool]:
    if not isinstance(value, dict):
        return None, False
    fitted = {inner["name"]: fit(value.get(inner["name"]), inner["type"]) for inner in kind["fields"]}
    is_whole = value.keys() <= fitted.keys() and all(good for _, good in fitted.values())
    return {name: item for name, (item, _) in fitted.items()}, is_whole


def _label(kind: Kind | None) -> str:
    if kind is None:
        return "something no column holds"
    return kind if isinstance(kind, str) else str(kind["type"])


def _parsed_fields(value: bytes | None) -> tuple[dict[str, Any], str | None]:
    """Return the fields of a document, and None; if it is no JSON object, no fields and the reason."""
    try:
        tree = parse(value)
        # The number of brackets bounds the depth: few documents reach it, so few are written for a trial.
        if value and value.count(b"[") + value.count(b"{") > _BRACKETS_SAFE:
            dumped(tree)  # what can be read but not written again, for its depth, is no document to us
        if isinstance(tree, dict) and may_have_halves(value):
            tree = {name: written(item) for name, item in tree.items()}
    except RecursionError:
        return {}, TOO_DEEP
    except ValueError as error:
        return {}, no_json(value, error)
    return (tree, None) if isinstance(tree, dict) else ({}, f"JSON, but no object: {_JSON_NAMES[type(tree)]}")


def texts_among(keys: Any) -> NDArray[np.bool_] | None:
    """Return a mask of the keys that are UTF-8; None if all are."""
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([is_text(key) for key in keys.to_pylist()], np.bool_)
    return None


def is_text(key: bytes | None) -> bool:
    """Return True if a key is UTF-8."""
    try:
        (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def merged(
    fields: Sequence[Mapping[str, Any]], new_columns: Sequence[Sequence[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return a table's columns and those that tasks added or widened; if tasks disagree, the wider type counts, else
    the first.

    Args:
        fields: the table's columns.
        new_columns: the columns that each task added.
    """
    table_columns = JsonColumns.read(fields)
    kinds: dict[str, Kind | None] = {}
    changed: dict[str, list[Any]] = {}
    for columns in new_columns:
        for column in columns:
            name = field_of(column) or ""
            kinds[name] = wider(kinds.get(name), column["type"])
            # The changes of a column's type within a task: files of that task have both types.
            changed[name] = max(changed.get(name, []), column["metadata"].get(TYPE_CHANGES, []), key=len)
    earlier_columns = [_widened_in(column, kinds) for column in fields]
    new_fields = [
        (name, kind) for name, kind in sorted(kinds.items()) if kind is not None and name not in table_columns.of
    ]
    return [
        *earlier_columns,
        *(
            _with_changes(new, changed[name])
            for name, kind in new_fields
            if (new := table_columns.add(name, kind)) is not None
        ),
    ]


def _widened_in(column: Mapping[str, Any], kinds: Mapping[str, Kind | None]) -> dict[str, Any]:
    """Return a table's column as it is after tasks wanted types for fields, by the fields' names."""
    name = field_of(column)  # None for a column of our own, whose type is not the documents'
    kind = None if name is None else kinds.get(name)
    # Another process may have widened it meanwhile, perhaps to the other type: then the tasks do not agree with it.
    if column["type"] == "integer" and kind in ("long", "double"):
        return widened(column, kind)
    return dict(column)


def _with_changes(column: dict[str, Any], changes: list[Any]) -> dict[str, Any]:
    """Return a new column with the changes of its type, if they lead to the type that it has now."""
    if not changes or changes[-1]["toType"] != column["type"]:
        return column
    return column | {"metadata": column["metadata"] | {TYPE_CHANGES: changes}}


def agrees(fields: Sequence[Mapping[str, Any]], new_columns: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if files with these added columns fit a table with these columns."""
    table_columns = {column["name"]: (column["type"], field_of(column)) for column in fields}
    return all(table_columns.get(column["name"]) == (column["type"], field_of(column)) for column in new_columns)
