"""Checkpoints of a table's log: the table's state in one Parquet file, so that readers need not read every commit.

Source: Delta's PROTOCOL.md, "Checkpoints", the classic form: each row is an action, in the column of its kind. Readers
find the newest checkpoint through `_last_checkpoint`; if that file is old or lost, they list the folder. Removals stand
last; they are read only to write the next checkpoint or to remove files (`lake/removals.py`).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import CorruptStore
from headwater.failpoints import failpoint
from headwater.lake.store import Before, Listed, TableStore

log: Final = logging.getLogger(__name__)

LAST = "_last_checkpoint"
_NAME = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")

_TEXTS = pa.map_(pa.string(), pa.string())
_NAMES = pa.list_(pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_ADD: list[tuple[str, Any]] = [
    ("path", pa.string()),
    ("partitionValues", _TEXTS),
    ("size", pa.int64()),
    ("modificationTime", pa.int64()),
    ("dataChange", pa.bool_()),
    ("tags", _TEXTS),
    ("deletionVector", _VECTOR),
    ("stats", pa.string()),
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
]
_REMOVE: list[tuple[str, Any]] = [
    ("path", pa.string()),
    ("deletionTimestamp", pa.int64()),
    ("dataChange", pa.bool_()),
    ("extendedFileMetadata", pa.bool_()),
    ("partitionValues", _TEXTS),
    ("size", pa.int64()),
    ("deletionVector", _VECTOR),
]
REMOVE = pa.struct(_REMOVE)
GROUP_ROWS = 1 << 17
_NEVER_NULL: Final = frozenset(
    ("txn.appId", "add.path", "metaData.id", "protocol.minReaderVersion", "domainMetadata.domain")
)
"""A column of each kind of action but removals that each of its actions has."""
_METADATA: list[tuple[str, Any]] = [
    ("id", pa.string()),
    ("name", pa.string()),
    ("description", pa.string()),
    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
    ("schemaString", pa.string()),
    ("partitionColumns", _NAMES),
    ("configuration", _TEXTS),
    ("createdTime", pa.int64()),
]
_PROTOCOL = [
    ("minReaderVersion", pa.int32()),
    ("minWriterVersion", pa.int32()),
    ("readerFeatures", _NAMES),
    ("writerFeatures", _NAMES),
]
SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        ("add", pa.struct(_ADD)),
        ("remove", pa.struct(_REMOVE)),
        ("metaData", pa.struct(_METADATA)),
        ("protocol", pa.struct(_PROTOCOL)),
        (
            "domainMetadata",
            pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
        ),
    ]
)
_MAPS = ("partitionValues", "tags", "configuration", "options")


def write(
    store: TableStore,
    folder: str,
    version: int,
    actions: Iterable[dict[str, Any]],
    removals_: pa.Table | None = None,
    before: Before | None = None,
) -> str:
    """Write the checkpoint of a version; return its path.

    Args:
        store: the table's place.
        folder: of the log.
        version: the version whose state it holds.
        actions: the state as actions, without removals.
        removals_: the removals, with the columns of a `remove` action.
        before: as for `TableStore.output`: a file that proves that this is still the same table's log.
    """
    rows = [_row(action) for action in actions]
    path = f"{folder}/{version:020d}.checkpoint.parquet"
    with store.output(path, before=before) as out, pq.ParquetWriter(out, SCHEMA, compression="snappy") as writer:
        # The state stands in row groups without removals, so that a start reads these groups only (`_groups_of_state`).
        writer.write_table(pa.Table.from_pylist(rows, SCHEMA))
        for batch in removals_.to_batches(GROUP_ROWS) if removals_ is not None else ():
            writer.write_table(_as_actions(batch), row_group_size=GROUP_ROWS)
    # The hint comes last: a process that dies here leaves a checkpoint that a listing finds, and never a hint of a file
    # that is not there.
    failpoint("lake.checkpointed")
    size = len(rows) + (removals_.num_rows if removals_ is not None else 0)
    store.write(f"{folder}/{LAST}", json.dumps({"version": version, "size": size}).encode(), before=before)
    return path


def _as_actions(removals_: pa.RecordBatch) -> pa.Table:
    """Return removals as rows of a checkpoint."""
    rows = removals_.num_rows
    # A checkpoint changes no data, whatever the commit of the removal said.
    still = {"dataChange": pa.array(np.zeros(rows, np.bool_))}
    columns = [still.get(name, removals_.column(name)) for name, _ in _REMOVE]
    removes: Any = pa.StructArray.from_arrays(columns, fields=list(REMOVE))
    arrays = (pa.nulls(rows, field.type) if field.name != "remove" else removes for field in SCHEMA)
    return pa.Table.from_arrays(list(arrays), schema=SCHEMA)


def removals(store: TableStore, paths: Iterable[str], later: Iterable[dict[str, Any]]) -> pa.Table:
    """Return the removals of a checkpoint and of the commits after it, with the columns of a `remove` action.

    Args:
        store: the table's place.
        paths: the files of the checkpoint, all its parts.
        later: `remove` actions of the commits after it.
    """
    parts: list[Any] = [_removals_in(store, path) for path in paths]
    parts.append(pa.array([_row(action) for action in later], REMOVE))
    chunks: list[Any] = [
        chunk for part in parts for chunk in (part.chunks if isinstance(part, pa.ChunkedArray) else [part])
    ]
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(chunk) for chunk in chunks], pa.schema(_REMOVE))


def count_removals(store: TableStore, paths: Iterable[str]) -> int:
    """Return the number of removals in a checkpoint."""
    count = 0
    for path in paths:
        with store.parquet(path) as parquet_file:
            column = parquet_file.read(columns=["remove.path"]).column("remove")
            count += len(column) - column.null_count
    return count


def _removals_in(store: TableStore, path: str) -> Any:
    """Return the removals in one checkpoint file, in the columns that we know; null if its writer left one out."""
    with store.parquet(path) as parquet_file:
        column: Any = parquet_file.read(columns=["remove"]).column("remove").drop_null()
    chunked: Any = pa.chunked_array
    return column if column.type == REMOVE else chunked([_with_fields(part) for part in column.chunks], REMOVE)


def _with_fields(removals_: Any) -> Any:
    places = {column.name: number for number, column in enumerate(removals_.type)}
    arrays = [
        removals_.field(places[column.name]).cast(column.type)
        if column.name in places
        else pa.nulls(len(removals_), column.type)
        for column in REMOVE
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(REMOVE))


Checkpoint = tuple[int, list[dict[str, Any]], list[str]]
"""A checkpoint: its version, its actions without removals, and its files."""


def newest(store: TableStore, folder: str, version_max: int | None = None) -> Checkpoint | None:
    """Return the newest whole checkpoint, of version `version_max` at most; None if there is none.

    A checkpoint that can't be read is skipped: older commits, or an older checkpoint, hold the same state. Spark does
    not sync its checkpoints, so a power cut may leave one truncated.

    Raises:
        CorruptStore: no checkpoint can be read, and the first commit is gone.
        OSError: no checkpoint can be read because the disk or the mount did not answer; the checkpoints may be whole.
    """
    if version_max is None and (noted := _last_checkpoint(store, folder)) is not None:
        return noted
    parts = complete(store.list(folder))
    problem: CorruptStore | None = None
    for version in sorted(parts, reverse=True):
        if version_max is None or version <= version_max:
            try:
                # Read to the end here: a checkpoint that breaks in the middle must not leave half of its actions
                # behind.
                return version, [action for path in parts[version] for action in _read(store, path)], parts[version]
            except CorruptStore as error:
                log.warning("%s; an older one, or the commits before it, are read instead", error)
                problem = problem or error
    # While the first commit is there the log can be read from its beginning, and needs no checkpoint.
    if problem is not None and not store.exists(f"{folder}/{0:020d}.json"):
        # An outage that passed for damage would end a mirror for good, and let a repair move a sound table away.
        raise _outage(problem) or problem
    return None


def _outage(problem: CorruptStore) -> OSError | None:
    """Return the operating system's OSError behind a problem, or None; Arrow's decoding errors have no errno."""
    cause = problem.__cause__
    return cause if isinstance(cause, OSError) and cause.errno is not None else None


def _last_checkpoint(store: TableStore, folder: str) -> Checkpoint | None:
    """Return the checkpoint that `_last_checkpoint` names, without listing the folder, which may hold millions of
    commits; None if it can't be used. If the commit of its version is gone, commits after it may be gone as well."""
    try:
        hint = json.loads(store.read(f"{folder}/{LAST}"))
        version, parts = int(hint["version"]), int(hint.get("parts") or 0)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    stem = f"{folder}/{version:020d}.checkpoint"
    parts_ = [f"{stem}.{part:010d}.{parts:010d}.parquet" for part in range(1, parts + 1)] or [f"{stem}.parquet"]
    if not all(store.exists(path) for path in (f"{folder}/{version:020d}.json", *parts_)):
        return None
    try:
        return version, [action for path in parts_ for action in _read(store, path)], parts_
    except CorruptStore:
        return None  # reported when the folder is listed


def complete(listing: Iterable[Listed]) -> dict[int, list[str]]:
    """Return the checkpoints in a log's folder whose parts are all there, by version."""
    parts: dict[tuple[int, int], list[str]] = {}
    for entry in listing:
        match = _NAME.search(entry.path)
        if match:
            parts.setdefault((int(match[1]), int(match[3] or 1)), []).append(entry.path)
    return {version: paths for (version, count), paths in parts.items() if len(paths) == count}


def _read(store: TableStore, path: str) -> Iterator[dict[str, Any]]:
    try:
        with store.parquet(path) as parquet_file:
            columns = [name for name in SCHEMA.names if name != "remove"]
            table = parquet_file.read_row_groups(_groups_of_state(parquet_file.metadata), columns=columns)
    # Arrow raises OSError for bytes that it can't decode, too. `_outage` tells these from a disk that does not answer,
    # by the errno.
    except (pa.ArrowException, OSError) as error:
        raise CorruptStore(store.full(path), 0, f"not a checkpoint: {error}") from error
    for kind in table.column_names:
        if kind in SCHEMA.names:
            yield from ({kind: _plain(action)} for action in table.column(kind).drop_null().to_pylist())


def _groups_of_state(file: pq.FileMetaData) -> list[int]:
    """Return the numbers of the row groups that may hold more than removals.

    In our checkpoints only the first group holds the state. Reading a week of removals as nulls would take longer than
    reading everything else.
    """
    groups = []
    for number in range(file.num_row_groups):
        group = file.row_group(number)
        chunks = map(group.column, range(group.num_columns))
        if any(chunk.path_in_schema in _NEVER_NULL and not _is_null(chunk) for chunk in chunks):
            groups.append(number)
    return groups


def _is_null(chunk: pq.ColumnChunkMetaData) -> bool:
    """Return True if a column has no value in a row group; False also if its writer left the count out."""
    counts = chunk.statistics
    return counts is not None and counts.null_count == chunk.num_values


def _plain(value: Any) -> Any:
    """Return a value in the form of JSON: maps become dicts, nulls are left out."""
    if not isinstance(value, dict):
        return value
    members = {name: inner for name, inner in value.items() if inner is not None}
    return {
        name: dict(inner) if name in _MAPS and isinstance(inner, list) else _plain(inner)
        for name, inner in members.items()
    }


def _row(value: Any) -> Any:
    """Return a value in the form that Arrow takes: maps become lists of pairs."""
    if not isinstance(value, dict):
        return value
    return {
        name: list(inner.items()) if name in _MAPS and isinstance(inner, dict) else _row(inner)
        for name, inner in value.items()
    }
