"""The columns of a mirror's table, as Delta and Arrow name them, and the conversion of rows of the source to them.

Every row has the document, its metadata and the place of its last change; `modified_at` is the CAS as a time, for a
server's CAS is its clock in nanoseconds (null if it can't be a clock).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from headwater.wire.event_columns import EVENT_COLUMNS

_DELTA = {"int": "integer", "bigint": "long"}  # types that Spark calls otherwise

KEPT = {
    each.name: (_DELTA.get(each.spark, each.spark), each.kept)
    for each in sorted(EVENT_COLUMNS, key=lambda column: column.name not in ("key", "value"))
    if each.kept
}
"""Column -> (Delta's type, meaning)."""

CHANGES = {each.name: _DELTA.get(each.spark, each.spark) for each in EVENT_COLUMNS if each.spark} | {"batch": "long"}
"""Column -> Delta's type in a change log: all columns of the source, and the number of the batch."""

SOURCE = tuple(name for name in CHANGES if name == "event" or (name in KEPT and name != "modified_at"))
"""The columns of the `dcp` source that a task reads."""

PRIMITIVES: dict[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "timestamp": pa.timestamp("us", "UTC"),
}
VARIANT = "variant"
PRIMITIVES[VARIANT] = pa.struct([pa.field(half, pa.binary(), nullable=False) for half in ("metadata", "value")])
TYPE_FEATURES: Final = {VARIANT: "variantType"}
"""Type -> the feature of Delta's protocol that a table with such a column needs."""

WIDENING: Final = "typeWidening"
"""The feature of a table whose columns may get wider types (lake/widening.py)."""

TYPE_CHANGES: Final = "delta.typeChanges"
"""The key of a column's metadata with the changes of its type, oldest first."""

Widenings = frozenset[tuple[str, str]]
"""Pairs of types, from and to."""

NANOSECONDS_A_MICROSECOND = 1000
_CLOCK_FROM = 1_000_000_000_000_000_000 // NANOSECONDS_A_MICROSECOND  # 2001: smaller ones are counters, not clocks


def delta_field(name: str, kind: Any, comment: str = "") -> dict[str, Any]:
    """Return a column as a log's schema describes it."""
    metadata = {"comment": comment} if comment else {}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def delta_type(kind: str | Mapping[str, str]) -> Any:
    """Return Delta's type for a type in Spark, or for the columns of a struct."""
    if isinstance(kind, str):
        return _DELTA.get(kind, kind)
    return {"type": "struct", "fields": [delta_field(name, delta_type(inner)) for name, inner in kind.items()]}


def fields(key: str = "binary") -> list[dict[str, Any]]:
    """Return the columns of a new table; `key` is the keys' type, `binary` or `string`."""
    kinds = {"key": key}
    return [delta_field(name, kinds.get(name, kind), meaning) for name, (kind, meaning) in KEPT.items()]


def arrow_type(kind: Any) -> pa.DataType:
    """Return the Arrow type of a column's type as Delta writes it.

    Raises:
        KeyError: a type that our tables do not have.
    """
    if isinstance(kind, str):
        return PRIMITIVES[kind]
    if kind["type"] == "array":
        return pa.list_(pa.field("element", arrow_type(kind["elementType"])))
    if kind["type"] == "struct":
        return pa.struct([pa.field(inner["name"], arrow_type(inner["type"])) for inner in kind["fields"]])
    raise KeyError(kind["type"])


def arrow_schema(columns: Sequence[Mapping[str, Any]]) -> pa.Schema:
    """Return the Arrow schema of a log's columns."""
    return pa.schema([pa.field(column["name"], arrow_type(column["type"])) for column in columns])


def modified_at(cas: Any) -> Any:
    """Return CAS values (64 bits) as times."""
    micros = pc.divide(cas, NANOSECONDS_A_MICROSECOND)
    plain = pc.if_else(pc.greater_equal(micros, pa.scalar(_CLOCK_FROM)), micros, pa.scalar(None, pa.int64()))
    return plain.cast(PRIMITIVES["timestamp"])


class TableShape:
    """A converter from rows of the source to rows of a table.

    Args:
        columns: the table's columns, as its log describes them.
        widenings: the changes of types that columns of documents may take.

    Attributes:
        schema: schema of the rows that are made.
        added: columns that the rows have and the table does not have yet, or has with a narrower type.
        conflicts: messages about values that did not fit their column.
        misfits: for each row of the last batch, why it does not fit this table, or None; empty if all fit.
    """

    def __init__(self, columns: Sequence[Mapping[str, Any]], widenings: Widenings = frozenset()) -> None:
        self.described: Final = [dict(column) for column in columns]
        self.widenings: Final = widenings
        self.schema: pa.Schema = arrow_schema(columns)
        self.added: list[dict[str, Any]] = []
        self.conflicts: set[str] = set()
        self.misfits: list[str | None] = []

    def taken(self, batch: pa.RecordBatch) -> NDArray[np.bool_] | None:
        """Return a mask of the changes whose documents this table can have; None for all of them."""
        return None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the table's rows for mutations of the source."""
        arrays = []
        for column in self.schema:
            values = self.values(column.name, batch)
            arrays.append(values if values.type == column.type else values.cast(column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def values(self, column: str, batch: pa.RecordBatch) -> Any:
        """Return the values of a column; nulls for a column that another writer added."""
        if column not in KEPT:
            return pa.nulls(batch.num_rows, self.schema.field(column).type)
        return modified_at(batch.column("cas")) if column == "modified_at" else batch.column(column)


@dataclass(frozen=True, slots=True)
class TableForm:
    """The form in which a table keeps documents.

    Attributes:
        option: the mirror's option that asks for the form; empty where none is needed.
        columns: the columns of a new table, as its log describes them.
        shape: the class that makes the rows of such a table.
        is_of: returns True for the columns of a table that has the form.
        present, absent: texts for people about a table that has the form, and about one without it.
        reads_json: False if every document fits, so that a quarantine would stay empty.
    """

    option: str
    columns: Sequence[Mapping[str, Any]]
    shape: type[TableShape]
    is_of: Callable[[Sequence[Mapping[str, Any]]], bool]
    present: str = ""
    absent: str = ""
    reads_json: bool = True


PLAIN: Final = TableForm("", fields(), TableShape, lambda described: True, reads_json=False)
"""Documents as bytes, with any key."""
