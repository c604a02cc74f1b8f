"""JSON documents as columns: which there are, and how a value is taken apart.

The fields of the documents' top level become columns. A column belongs to one field, by its exact name, which the
table's schema remembers (`headwater.field`); a document's fields and the mirror's own columns never share a name. A
column's type is that of the values it was first seen with. What does not fit its column, or has no column that Delta
could write, stands as JSON in `_rest`, so that nothing is lost without a word; the document itself is whole in `value`.

Nothing a document holds ends a mirror, nor does it keep a reader from the table. Names are made writable and unique
whatever the case; objects become structs where their names are plain, and JSON text where not. What JSON's grammar
allows and readers of tables don't take is text by lake/json_values.py: half a surrogate pair, a number beyond a double.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.lake.json_values import TOO_DEEP, LargeNumber, dumped, may_have_halves, no_json, parse, written
from headwater.lake.shape import KEPT, PRIMITIVES, TableShape, arrow_schema, arrow_type, delta_field, modified_at

FIELD = "headwater.field"
FIELD_AS_JSON = "headwater.field.json"
"""The name of a column's field; as JSON text one with half a surrogate pair, for such a schema is refused by delta-rs,
Polars and DuckDB, in every version of the table that comes after."""

REST = "_rest"
CLASH_PREFIX = "doc_"
COLUMNS_MAX = 4000
"""Columns of a table; fields beyond stand in `_rest`. Keys of a dictionary used as field names would make millions."""

COLUMN_BYTES_MAX = 255
"""A field of a longer name stands in `_rest`: the schema is in each process, each checkpoint and each catalog."""

DEPTH_MAX, NAMES_MAX = 8, 200
_BRACKETS_SAFE = 200
_UNWRITABLE = re.compile(r"[ ,;{}()\n\t\r=`.\x00-\x1f]")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_READERS_OWN = re.compile(r"_metadata\Z|__delta_internal_|_tmp_metadata_", re.IGNORECASE)
"""Names that Spark and Delta give columns of their own while they read: a table with such a column can't be read there
once a file has a deletion vector, not even its other columns."""

_NUMBERS: dict[str, set[type]] = {"long": {int, type(None)}, "double": {int, float, type(None)}}
_JSON_NAMES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean"}
_JSON_NAMES |= {type(None): "null", LargeNumber: "a number"}
_LONGS = range(-(1 << 63), 1 << 63)

Kind = str | dict[str, Any]
"""A type as Delta writes it."""


def kind_of(value: Any, depth: int = 0) -> Kind | None:
    """Return the type of a column that would hold a value; None for null, and for what no column holds."""
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
    """A struct where all names are plain and differ by more than case; JSON text otherwise."""
    names = {name.lower() for name in value}
    plain = 0 < len(names) == len(value) <= NAMES_MAX and all(map(_PLAIN.match, value))
    if not plain or max(map(len, value)) > COLUMN_BYTES_MAX:
        return "string"
    inner = [delta_field(name, kind_of(item, depth + 1) or "string") for name, item in value.items()]
    return {"type": "struct", "fields": inner}


def wider(one: Kind | None, other: Kind | None) -> Kind | None:
    """Return the type that holds both, if there is one; else the first."""
    if one is None or other is None:
        return one if other is None else other
    if {repr(one), repr(other)} == {repr("long"), repr("double")}:
        return "double"
    return one


def _merged(kinds: Iterable[Kind | None]) -> Kind | None:
    found: Kind | None = None
    for kind in kinds:
        found = wider(found, kind)
    return found


@dataclass
class JsonColumns:
    """The columns of a table's fields: field to (column, type).

    Attributes:
        of: by field's exact name.
        taken: all columns of the table, in lower case.
    """

    of: dict[str, tuple[str, Kind]] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    @classmethod
    def read(cls, described: Sequence[Mapping[str, Any]]) -> JsonColumns:
        """Read a table's schema."""
        made = cls(taken={column["name"].lower() for column in described})
        for column in described:
            if (name := field_of(column)) is not None:
                made.of[name] = (column["name"], column["type"])
        return made

    def add(self, name: str, kind: Kind) -> dict[str, Any] | None:
        """Give a field a column; return it as the schema describes it, None for too long a name or too many columns."""
        wanted = column = column_of(name)
        if len(self.taken) >= COLUMNS_MAX or len(wanted.encode()) > COLUMN_BYTES_MAX:
            return None
        number = 1
        while column.lower() in self.taken:
            number += 1
            column = f"{wanted}_{number}"
        self.taken.add(column.lower())
        self.of[name] = (column, kind)
        return delta_field(column, kind) | {"metadata": _belongs_to(name)}


def _belongs_to(name: str) -> dict[str, str]:
    return {FIELD: name} if name == written(name) else {FIELD_AS_JSON: json.dumps(name)}


def field_of(column: Mapping[str, Any]) -> str | None:
    """Return the field that a column belongs to; None for one of the mirror's own."""
    metadata = column["metadata"]
    name: str | None = json.loads(metadata[FIELD_AS_JSON]) if FIELD_AS_JSON in metadata else metadata.get(FIELD)
    return name


def readable(described: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a table's columns as all readers take them: other names in the metadata, and none of the readers' own.

    A column that goes leaves its values to the rows that are written next.
    """
    kept = [dict(column) for column in described if field_of(column) is None or not _READERS_OWN.match(column["name"])]
    for column in kept:
        if (name := column["metadata"].get(FIELD)) is not None:
            column["metadata"] = {key: value for key, value in column["metadata"].items() if key != FIELD}
            column["metadata"] |= _belongs_to(name)
    return kept


def is_unfolded(described: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a table's JSON documents become columns."""
    return any(column["name"] == REST for column in described)


def column_of(name: str) -> str:
    """Return the column that a field would like: its name, made writable, and prefixed if it is one of ours."""
    column = _UNWRITABLE.sub("_", name.encode(errors="replace").decode()) or "_"
    return CLASH_PREFIX + column if column.lower() in {*KEPT, REST} or _READERS_OWN.match(column) else column


class JsonShape(TableShape):
    """Makes a table's rows from JSON documents; learns fields as they come.

    Args:
        described: the table's columns, as its log describes them.
    """

    def __init__(self, described: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(described)
        self.columns = JsonColumns.read(described)

    def taken(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Leave out changes of keys that are no text: this table's keys are."""
        good = texts_among(batch.column("key"))
        if good is not None:
            self.conflicts.add("key: string in the table, bytes that are not UTF-8 in the bucket; left out")
        return good

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the table's rows, with a column for every field that fits one."""
        parsed = [_parsed(value) for value in batch.column("value").to_pylist()]
        documents = [document for document, _ in parsed]
        self.misfits = [why for _, why in parsed]
        self._learn(documents)
        rest: dict[int, dict[str, Any]] = {}
        fitted = {
            column: self._fitted(documents, name, column, kind, rest)
            for name, (column, kind) in self.columns.of.items()
        }
        self._unplaced(documents, rest)
        texts = [dumped(written(rest[row])) if row in rest else None for row in range(batch.num_rows)]
        arrays = [self._array(column, batch, fitted, texts) for column in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _array(self, column: pa.Field[Any], batch: pa.RecordBatch, fitted: Mapping[str, Any], rest: list[Any]) -> Any:
        if column.name in fitted:
            return fitted[column.name]
        if column.name == REST:
            return pa.array(rest, pa.string())
        made = modified_at(batch.column("cas")) if column.name == "modified_at" else batch.column(column.name)
        return made if made.type == column.type else made.cast(column.type)

    def _learn(self, documents: Sequence[dict[str, Any]]) -> None:
        known = self.columns.of.keys()
        unknown: dict[str, Kind | None] = {}
        for document in documents:
            if not document.keys() <= known:
                for name in document.keys() - known:
                    unknown[name] = wider(unknown.get(name), kind_of(document[name]))
        # In the order of their names: tasks that see the same fields name the same columns.
        for name, kind in sorted(unknown.items()):
            described = self.columns.add(name, kind) if kind is not None else None
            if described is not None:
                self.added.append(described)
                self.described.append(described)
        if len(self.described) != len(self.schema):
            self.schema = arrow_schema(self.described)

    def _unplaced(self, documents: Sequence[dict[str, Any]], rest: dict[int, dict[str, Any]]) -> None:
        """Keep aside the fields without a column: too many of them, or numbers that no column holds."""
        known = self.columns.of.keys()
        for row, document in enumerate(documents):
            if not document.keys() <= known:
                for name in sorted(document.keys() - known):
                    if document[name] is not None:
                        rest.setdefault(row, {})[name] = document[name]

    def _fitted(
        self, documents: Sequence[dict[str, Any]], name: str, column: str, kind: Kind, rest: dict[int, dict[str, Any]]
    ) -> Any:
        values = [document.get(name) for document in documents]
        wanted = arrow_type(kind)
        if isinstance(kind, str) and kind in PRIMITIVES:
            try:
                return _exact(values, kind, wanted)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                pass
        made = []
        for row, value in enumerate(values):
            good, fits = fit(value, kind)
            made.append(good)
            if not fits:
                rest.setdefault(row, {})[name] = value
                self.conflicts.add(f"{column}: {_named(kind)} in the table, {_named(kind_of(value))} in documents")
        return pa.array(made, wanted)


def _exact(values: list[Any], kind: str, wanted: pa.DataType) -> Any:
    """Arrow's own conversion, where it takes nothing that `fit` would not."""
    if kind in {"long", "double"} and not {type(value) for value in values} <= _NUMBERS[kind]:
        raise ValueError  # Arrow would cut 1.5 down to 1
    return pa.array(values, wanted)


def fit(value: Any, kind: Kind) -> tuple[Any, bool]:
    """Return (what a column of this type holds of a value, whether that is all of it)."""
    if value is None:
        return None, True
    if isinstance(kind, dict):
        return _fit_array(value, kind) if kind["type"] == "array" else _fit_struct(value, kind)
    if kind == "string":
        # A column of text that began with an object holds objects as text.
        return (value, True) if isinstance(value, str) else _as_text(value)
    found = kind_of(value)
    if kind == "double" and found == "long":
        return float(value), int(float(value)) == value
    if kind == "long" and found == "double" and value.is_integer() and int(value) in _LONGS:
        return int(value), True
    return (value, True) if found == kind else (None, False)


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
    whole = value.keys() <= fitted.keys() and all(good for _, good in fitted.values())
    return {name: item for name, (item, _) in fitted.items()}, whole


def _named(kind: Kind | None) -> str:
    if kind is None:
        return "something no column holds"
    return kind if isinstance(kind, str) else str(kind["type"])


def _parsed(value: bytes | None) -> tuple[dict[str, Any], str | None]:
    """The fields of a document; none if it is no JSON object, and why."""
    try:
        found = parse(value)
        if value and value.count(b"[") + value.count(b"{") > _BRACKETS_SAFE:
            dumped(found)  # what can be read but not written again, for its depth, is no document to us
        if isinstance(found, dict) and may_have_halves(value):
            found = {name: written(item) for name, item in found.items()}
    except RecursionError:
        return {}, TOO_DEEP
    except ValueError as error:
        return {}, no_json(value, error)
    return (found, None) if isinstance(found, dict) else ({}, f"JSON, but no object: {_JSON_NAMES[type(found)]}")


def texts_among(keys: Any) -> NDArray[np.bool_] | None:
    """Return which of these keys are UTF-8; None if all are."""
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return np.array([is_text(key) for key in keys.to_pylist()], np.bool_)
    return None


def is_text(key: bytes | None) -> bool:
    """Whether a key is UTF-8."""
    try:
        (key or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def merged(fields: Sequence[Mapping[str, Any]], added: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Return a table's columns with those that tasks added; where tasks disagree, the wider type, else the first.

    Args:
        fields: the table's columns.
        added: what each task added.
    """
    known = JsonColumns.read(fields)
    kinds: dict[str, Kind | None] = {}
    for columns in added:
        for column in columns:
            name = field_of(column) or ""
            kinds[name] = wider(kinds.get(name), column["type"])
    wanted = [(name, kind) for name, kind in sorted(kinds.items()) if kind is not None and name not in known.of]
    return [*map(dict, fields), *(made for name, kind in wanted if (made := known.add(name, kind)) is not None)]


def agrees(fields: Sequence[Mapping[str, Any]], added: Sequence[Mapping[str, Any]]) -> bool:
    """Whether files with these added columns fit a table with these columns."""
    known = {column["name"]: (column["type"], field_of(column)) for column in fields}
    return all(known.get(column["name"]) == (column["type"], field_of(column)) for column in added)
