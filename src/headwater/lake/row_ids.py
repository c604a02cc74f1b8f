"""The ids of rows, as Delta's log has them: a row keeps its id while its key is in the table.

A file's rows have the ids `baseRowId` + position, which its commit gives out. A row that continues an older one, of a
file that was there before, carries that one's id in a column of the Parquet file that is no column of the table; the
table's properties have the column's name. Whatever was ever given out lies at or below the *mark*, a record of the log.
The commit in which a row was last changed is kept by the same rules, for files that are folded.

Iceberg's row lineage has the same two facts, by the same columns: the name mapping gives them Iceberg's field ids
(lake/iceberg/schema.py). Source: Delta's PROTOCOL.md, "Row Tracking"; Iceberg's spec.md, "Row Lineage".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FEATURE: Final = "rowTracking"
ENABLED: Final = "delta.enableRowTracking"
SUSPENDED: Final = "delta.rowTrackingSuspended"
ID_COLUMN: Final = "delta.rowTracking.materializedRowIdColumnName"
COMMIT_COLUMN: Final = "delta.rowTracking.materializedRowCommitVersionColumnName"
MARK: Final = "delta.rowTracking"
"""The domain whose record has the highest id that was given out."""

PRESERVED: Final = {"delta.rowTracking.preserved": "true"}
"""The tag of a commit whose writer kept the ids of rows that it moved or changed."""

NO_ID: Final = -1
"""In an array of ids: the row gets the id of its place."""

Action = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IdColumns:
    """The names of the columns in data files that keep ids, none of which is a column of the table.

    Attributes:
        row: the row's id.
        commit: the version of the Delta table in which the row was last changed.
    """

    row: str
    commit: str

    @property
    def sequence(self) -> str:
        """The column with Iceberg's sequence number of the same commit; see `sequence_of`."""
        return f"{self.commit}-sequence"

    @property
    def folded(self) -> pa.Schema:
        """The columns of a folded file. A batch's files have the id only: their rows are changed by their commit."""
        return pa.schema([(name, pa.int64()) for name in (self.row, self.commit, self.sequence)])

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> IdColumns | None:
        """Return the columns that a table's properties name; None for none."""
        names = properties.get(ID_COLUMN), properties.get(COMMIT_COLUMN)
        return cls(names[0], names[1]) if names[0] and names[1] else None


def sequence_of(version: int) -> int:
    """Return the sequence number in Iceberg of what a version of the Delta table changed: numbers begin at 1."""
    return version + 1


def new_properties(earlier: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that make a table keep ids, with the names of columns that it had before, if it had any."""
    name = uuid.uuid4()
    names = {ID_COLUMN: f"_row-id-col-{name}", COMMIT_COLUMN: f"_row-commit-version-col-{name}"}
    going_on = {SUSPENDED: "false"} if SUSPENDED in earlier else {}
    return {ENABLED: "true"} | going_on | {option: earlier.get(option) or text for option, text in names.items()}


def next_row(records: Mapping[str, str]) -> int:
    """Return the first id that was not given out yet, by the records of a log."""
    return int(json.loads(records[MARK])["rowIdHighWaterMark"]) + 1 if MARK in records else 0


def mark(following: int) -> Action:
    """Return the action by which ids are given out from `following` on."""
    text = json.dumps({"rowIdHighWaterMark": following - 1}, separators=(",", ":"))
    return {"domainMetadata": {"domain": MARK, "configuration": text, "removed": False}}


def with_ids(actions: Sequence[Action], following: int, version: int) -> list[Action]:
    """Return the actions of a commit with ids for the rows of files that have none, and the mark behind them.

    Args:
        actions: may have a mark of their own, below which no id is given out.
        following: the first id that was not given out before.
        version: the version that the commit makes.
    """
    marks = {domain["domain"]: domain["configuration"] for domain in _domains(actions) if domain["domain"] == MARK}
    first = next_id = max(following, next_row(marks))
    actions_ = []
    for action in actions:
        add = action.get("add")
        if add is not None and add.get("baseRowId") is None:
            actions_.append({"add": add | {"baseRowId": next_id, "defaultRowCommitVersion": version}})
            next_id += int(json.loads(add["stats"])["numRecords"])
        elif (action.get("domainMetadata") or {}).get("domain") != MARK:
            actions_.append(action)
    return actions_ if next_id == first == following else [*actions_, mark(next_id)]


def _domains(actions: Iterable[Action]) -> list[Action]:
    return [action["domainMetadata"] for action in actions if "domainMetadata" in action]


def column(ids: NDArray[np.int64]) -> Any:
    """Return ids as a column of a data file: null for `NO_ID`."""
    return pa.array(ids, pa.int64(), mask=ids == NO_ID)


def array(ids: Any) -> NDArray[np.int64]:
    """Return such a column as an array, with `NO_ID` for null."""
    values: NDArray[np.int64] = ids.cast(pa.int64()).fill_null(NO_ID).to_numpy(zero_copy_only=False)
    return values


def with_kept(
    batch: pa.RecordBatch, columns: IdColumns, places: NDArray[np.int64], first: int | None, commit: int | None
) -> pa.RecordBatch:
    """Return rows that are copied to another file, with columns for the ids and commits that they already have.

    Args:
        batch: with the columns of `IdColumns.folded`, as the file has them.
        columns: their names.
        places: of the rows in their file.
        first: the file's `baseRowId`; None for a file that the table does not have yet.
        commit: the file's `defaultRowCommitVersion`; likewise.
    """
    ids, commits = array(batch.column(columns.row)), array(batch.column(columns.commit))
    if first is not None:
        ids = np.where(ids == NO_ID, first + places, ids)
    if commit is not None:
        commits = np.where(commits == NO_ID, commit, commits)
    sequences = np.where(commits == NO_ID, NO_ID, sequence_of(0) + commits)
    values = dict(zip(columns.folded.names, (ids, commits, sequences), strict=True))
    arrays = [column(values[name]) if name in values else batch.column(name) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
