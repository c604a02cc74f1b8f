"""JSON documents as columns: which there are, and how a value is taken apart.

The fields of the documents' top level become columns, their types as Spark infers them from a batch. A field that is
first seen later adds a column. A column keeps its first type: a value that does not fit it is null there and the field
is reported as a conflict; the document itself always stays whole in `value`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CLASH_PREFIX = "doc_"
_UNWRITABLE = re.compile(r"[ ,;{}()\n\t=`.]")
_CORRUPT = "_corrupt_record"


@dataclass
class Unfolding:
    """What is known of the documents' fields.

    Attributes:
        columns: field to the column it goes to.
        types: column to its type in the table.
        conflicts: what did not fit, as "column: type in the table, type met".
    """

    columns: dict[str, str] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)

    def learn(self, fields: Mapping[str, str], present: Mapping[str, str], reserved: Collection[str]) -> dict[str, str]:
        """Take in the fields of a batch; return the columns that the table lacks, with their types.

        Args:
            fields: field to type, as inferred.
            present: column to type, as the table has them.
            reserved: columns that are not for fields.
        """
        taken = {name.lower(): (name, kind) for name, kind in present.items()}
        added: dict[str, str] = {}
        for name, kind in fields.items():
            column = column_of(name, reserved)
            column, known = taken.setdefault(column.lower(), (column, ""))
            if not known:
                added[column] = known = kind
                taken[column.lower()] = (column, kind)
            elif known != kind:
                self.conflicts.add(f"{column}: {known} in the table, {kind} in documents")
            if column not in self.columns.values():
                self.columns[name] = column
            self.types[column] = known
        return added

    def apply(self, changes: DataFrame, columns: Mapping[str, str]) -> DataFrame:
        """Return the changes with all `columns` of the table: fields from their values, nulls for those they do not
        have.

        A row must lose what its newest document lacks, so columns of fields that no document of this batch has count
        too.
        """
        from pyspark.sql import functions as f

        parsed = changes
        if self.columns:
            fields = ((name.replace("`", "``"), self.types[column]) for name, column in self.columns.items())
            described = ", ".join(f"`{name}` {kind}" for name, kind in fields)
            parsed = changes.withColumn("_document", f.from_json(f.col("value").cast("string"), described))
        known = {column: f.col("_document").getField(name) for name, column in self.columns.items()}
        missing = columns.keys() - known.keys() - set(changes.columns)
        absent = {column: f.lit(None).cast(columns[column]) for column in sorted(missing)}
        return parsed.withColumns(known | absent).drop("_document") if known or absent else changes


def column_of(name: str, reserved: Collection[str]) -> str:
    """Return the column for a field: its name, made writable, and prefixed if it is one of ours (whatever the case)."""
    column = _UNWRITABLE.sub("_", name) or "_"
    return CLASH_PREFIX + column if column.lower() in reserved else column


def infer(changes: DataFrame) -> dict[str, str]:
    """Return the fields of the documents among the changes: name to type as Spark writes it. Values that are no JSON
    object have none; a field that is null everywhere has no type yet and is left out."""
    values = changes.where("event = 'mutation'").selectExpr("CAST(value AS STRING) AS value")
    schema = changes.sparkSession.read.json(values).schema
    kinds = {column.name: column.dataType.simpleString() for column in schema.fields}
    return {name: kind for name, kind in kinds.items() if name != _CORRUPT and kind != "void"}
