"""Checkpoints of a table's log: the state as one Parquet file, so that nobody has to read every commit.

Source: Delta's PROTOCOL.md, "Checkpoints", the classic form: each row is an action, in a column of its kind. Readers
find the newest through `_last_checkpoint`; that file may lag or be lost, then the folder is looked through.
"""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headwater.errors import CorruptStore
from headwater.failpoints import failpoint
from headwater.lake.store import TableStore, reading_parquet

log = logging.getLogger(__name__)

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


def write(store: TableStore, folder: str, version: int, actions: Iterable[dict[str, Any]]) -> str:
    """Write the checkpoint of a version; return its path."""
    rows = [_row(action) for action in actions]
    path = f"{folder}/{version:020d}.checkpoint.parquet"
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), out, compression="snappy")
    store.write(path, out.getvalue())
    failpoint("lake.checkpointed")
    store.write(f"{folder}/{LAST}", json.dumps({"version": version, "size": len(rows)}).encode())
    return path


def newest(store: TableStore, folder: str, most: int | None = None) -> tuple[int, list[dict[str, Any]]] | None:
    """Return (version, actions) of the newest whole checkpoint, of version `most` at most; None if there is none.

    One that can't be read is passed over: the commits before it, or an older one, say the same. Spark does not sync its
    own, so a machine that lost its power may leave it cut.

    Raises:
        CorruptStore: none can be read, and the first commit is gone.
    """
    found = complete(store, folder)
    problem: CorruptStore | None = None
    for version in sorted(found, reverse=True):
        if most is None or version <= most:
            try:
                return version, [action for path in found[version] for action in _read(store, path)]
            except CorruptStore as error:
                log.warning("%s; an older one, or the commits before it, are read instead", error)
                problem = problem or error
    if problem is not None and not store.exists(f"{folder}/{0:020d}.json"):
        raise problem
    return None


def complete(store: TableStore, folder: str) -> dict[int, list[str]]:
    """Return the checkpoints all parts of which are there, by version."""
    parts: dict[tuple[int, int], list[str]] = {}
    for listed in store.list(folder):
        named = _NAME.search(listed.path)
        if named:
            parts.setdefault((int(named[1]), int(named[3] or 1)), []).append(listed.path)
    return {version: paths for (version, wanted), paths in parts.items() if len(paths) == wanted}


def _read(store: TableStore, path: str) -> Iterator[dict[str, Any]]:
    try:
        with reading_parquet(io.BytesIO(store.read(path))) as opened:
            table = opened.read()
    except (pa.ArrowException, OSError) as error:
        raise CorruptStore(store.full(path), 0, f"not a checkpoint: {error}") from None
    for kind in table.column_names:
        if kind in SCHEMA.names:
            yield from ({kind: _plain(action)} for action in table.column(kind).to_pylist() if action is not None)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: maps as dicts, and nothing where there is null."""
    if not isinstance(value, dict):
        return value
    kept = {name: inner for name, inner in value.items() if inner is not None}
    return {
        name: dict(inner) if name in _MAPS and isinstance(inner, list) else _plain(inner)
        for name, inner in kept.items()
    }


def _row(value: Any) -> Any:
    """Return a value as Arrow takes it: maps as lists of pairs."""
    if not isinstance(value, dict):
        return value
    return {
        name: list(inner.items()) if name in _MAPS and isinstance(inner, dict) else _row(inner)
        for name, inner in value.items()
    }
