"""The metadata of an Iceberg table, as JSON, and its snapshots. Pure: dicts in, dicts out.

Each change makes a whole new metadata file. Source: Iceberg's spec.md, "Table Metadata" and "Snapshots".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from headwater.lake.iceberg.manifests import FORMAT_VERSION
from headwater.lake.iceberg.schema import NAME_MAPPING, Field, mapped_names, name_mapping
from headwater.lake.row_ids import IdColumns

SNAPSHOTS_MAX: Final = 20
"""The number of snapshots in the metadata, which is written anew each time: each is about 500 bytes."""

MAIN: Final = "main"
VERSION, TABLE = "headwater.delta-version", "headwater.delta-table"
"""The names in a snapshot's summary of the version and the id of the Delta table that it shows."""

SHOWN: Final = "headwater.shown"
"""The property with the current snapshot's id and the version of the Delta table that it shows by now: versions that
change no row, such as those that move only the time, get no snapshot, or they would push out those that do."""

GC_ENABLED: Final = "gc.enabled"
"""The property by which Iceberg's own upkeep refuses to remove files (expire_snapshots, remove_orphan_files, DROP ...
PURGE): which files are needed is the log's to say."""

_UNPARTITIONED: Final = {"spec-id": 0, "fields": []}
_NO_PARTITION_FIELD: Final = 999
Metadata = dict[str, Any]


def renewed_metadata(before: Metadata | None, table: str, location: str) -> Metadata:
    """Return the metadata of a table without a snapshot.

    If `before` has the same table, from another place or with unreadable manifests, the numbers of sequences, rows and
    columns continue: readers may know some of them.

    Args:
        before: the newest metadata; None if there is none.
        table: the table's id, a uuid.
        location: of the Iceberg table.
    """
    empty = new_metadata(table, location)
    if before is None or (before["format-version"], before["table-uuid"]) != (FORMAT_VERSION, table):
        return empty
    names = ("last-sequence-number", "next-row-id", "last-column-id", "schemas", "current-schema-id")
    # Going on with these numbers keeps readers safe: a row id or a sequence number that is given twice would make two
    # rows one.
    anew = empty | {name: before[name] for name in names} | {"last-updated-ms": before["last-updated-ms"]}
    return anew | {"properties": {name: text for name, text in before["properties"].items() if name == NAME_MAPPING}}


def new_metadata(table: str, location: str) -> Metadata:
    """Return the metadata of a new table."""
    return {
        "format-version": FORMAT_VERSION,
        "table-uuid": table,
        "location": location,
        "last-sequence-number": 0,
        "last-updated-ms": 0,
        "last-column-id": 0,
        "current-schema-id": -1,
        "schemas": [],
        "default-spec-id": 0,
        "partition-specs": [_UNPARTITIONED],
        "last-partition-id": _NO_PARTITION_FIELD,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {},
        "current-snapshot-id": None,
        "refs": {},
        "snapshots": [],
        "snapshot-log": [],
        "metadata-log": [],
        "next-row-id": 0,
    }


def is_continued(metadata: Metadata, table: str, location: str) -> bool:
    """Return True if a publication can continue this metadata: it has this table's id and location, our format version,
    and no partitions.
    """
    wanted_fields = (FORMAT_VERSION, table, location)
    if (metadata.get("format-version"), metadata.get("table-uuid"), metadata.get("location")) != wanted_fields:
        return False
    return all(not spec["fields"] for spec in metadata["partition-specs"]) and isinstance(metadata["next-row-id"], int)


def current_schema(metadata: Metadata) -> dict[str, Any] | None:
    """Return the current schema; None before there is one."""
    number = metadata["current-schema-id"]
    return next((schema for schema in metadata["schemas"] if schema["schema-id"] == number), None)


def with_schema(
    metadata: Metadata,
    fields: Sequence[Field],
    last_column: int,
    columns: IdColumns | None = None,
    file_names: Iterable[str] = (),
) -> Metadata:
    """Return metadata whose current schema has these fields.

    Args:
        metadata: the metadata to continue.
        fields: of the table.
        last_column: the highest number of a column so far.
        columns: of data files, by which rows keep their ids.
        file_names: of data files as well, which nobody reads; those of the metadata before are kept.
    """
    before = current_schema(metadata)
    if before is None or before["fields"] != list(fields):
        number = 1 + max((schema["schema-id"] for schema in metadata["schemas"]), default=-1)
        schema = {"type": "struct", "schema-id": number, "fields": list(fields)}
        metadata = metadata | {"schemas": [*metadata["schemas"], schema], "current-schema-id": number}
    # Data files keep the columns that they have when the feature of ids is dropped, or begins again by other names.
    mapping = name_mapping(
        fields, columns, [*mapped_names(metadata["properties"].get(NAME_MAPPING, "[]")), *file_names]
    )
    properties = metadata["properties"] | {NAME_MAPPING: mapping, GC_ENABLED: "false"}
    return metadata | {"last-column-id": max(last_column, metadata["last-column-id"]), "properties": properties}


def with_property(metadata: Metadata, name: str, value: str | None) -> Metadata:
    """Return metadata in which the table has a property; None for none of this name."""
    properties = {other: text for other, text in metadata["properties"].items() if other != name}
    return metadata | {"properties": properties | ({} if value is None else {name: value})}


def current_snapshot(metadata: Metadata) -> dict[str, Any] | None:
    """Return the current snapshot; None if there is none."""
    return next(
        (snapshot for snapshot in metadata["snapshots"] if snapshot["snapshot-id"] == metadata["current-snapshot-id"]),
        None,
    )


def version_of(metadata: Metadata) -> tuple[str, int] | None:
    """Return the id and the version of the Delta table that the current snapshot shows; None if another writer made
    it."""
    snapshot = current_snapshot(metadata)
    summary: Mapping[str, str] = snapshot["summary"] if snapshot else {}
    if snapshot is None or TABLE not in summary or not summary.get(VERSION, "").isdigit():
        return None
    number, _, later = metadata["properties"].get(SHOWN, "").partition(" ")
    # Another writer that makes a snapshot current keeps the property, which is of ours.
    is_of_it = number == str(snapshot["snapshot-id"]) and later.isdigit()
    return summary[TABLE], int(later if is_of_it else summary[VERSION])


def with_version(metadata: Metadata, version: int, now_ms: int, before: str | None) -> Metadata:
    """Return metadata whose current snapshot shows another version of the Delta table, which has the same rows.

    Args: as of `with_snapshot`.
    """
    changed = with_property(metadata, SHOWN, f"{metadata['current-snapshot-id']} {version}")
    return _dated(changed, metadata, max(now_ms, metadata["last-updated-ms"]), before)


def with_snapshot(metadata: Metadata, snapshot: dict[str, Any], now_ms: int, before: str | None) -> Metadata:
    """Return metadata with a new current snapshot, and without the oldest ones beyond `SNAPSHOTS_MAX`.

    Args:
        metadata: the metadata to continue.
        snapshot: with all its fields but the time and the schema.
        now_ms: time in milliseconds.
        before: location of the metadata file that is followed; None if there is none.
    """
    # Clocks may go backwards; readers take a log whose times do for damaged.
    now_ms = max(now_ms, metadata["last-updated-ms"])
    number = snapshot["snapshot-id"]
    full_snapshot = snapshot | {"timestamp-ms": now_ms, "schema-id": metadata["current-schema-id"]}
    refs = metadata["refs"] | {MAIN: {"snapshot-id": number, "type": "branch"}}
    log = [*metadata["snapshot-log"], {"timestamp-ms": now_ms, "snapshot-id": number}]
    changed = metadata | {
        "last-sequence-number": snapshot["sequence-number"],
        "next-row-id": snapshot["first-row-id"] + snapshot["added-rows"],
        "current-snapshot-id": number,
        "refs": refs,
        "snapshots": [*metadata["snapshots"], full_snapshot],
        "snapshot-log": log,
    }
    changed = with_property(changed, SHOWN, None)
    snapshots = changed["snapshots"][-SNAPSHOTS_MAX:]
    return _dated(_of_snapshots(changed, snapshots), metadata, now_ms, before)


def without_old(metadata: Metadata, oldest_ms: int, now_ms: int, before: str | None) -> Metadata | None:
    """Return metadata without the snapshots older than `oldest_ms`, save the current one; None if there is nothing to
    remove.

    Args:
        oldest_ms, now_ms: times in milliseconds.
        before: location of the metadata file that is followed; None if there is none.
    """
    current = metadata["current-snapshot-id"]
    snapshots = [
        snapshot
        for snapshot in metadata["snapshots"]
        if snapshot["timestamp-ms"] >= oldest_ms or snapshot["snapshot-id"] == current
    ]
    if len(snapshots) == len(metadata["snapshots"]):
        return None
    return _dated(_of_snapshots(metadata, snapshots), metadata, max(now_ms, metadata["last-updated-ms"]), before)


def _of_snapshots(metadata: Metadata, snapshots: Sequence[Mapping[str, Any]]) -> Metadata:
    """Return metadata with only these snapshots, their log entries, their references and the schemas in use."""
    numbers = {snapshot["snapshot-id"] for snapshot in snapshots}
    schemas = {metadata["current-schema-id"], *(snapshot.get("schema-id") for snapshot in snapshots)}
    return metadata | {
        "snapshots": list(snapshots),
        "snapshot-log": [entry for entry in metadata["snapshot-log"] if entry["snapshot-id"] in numbers],
        "refs": {name: ref for name, ref in metadata["refs"].items() if ref["snapshot-id"] in numbers},
        "schemas": [schema for schema in metadata["schemas"] if schema["schema-id"] in schemas],
    }


def _dated(changed: Metadata, metadata: Metadata, now_ms: int, before: str | None) -> Metadata:
    entry = [{"timestamp-ms": metadata["last-updated-ms"], "metadata-file": before}] if before else []
    log = [*metadata["metadata-log"], *entry][-SNAPSHOTS_MAX:]
    return changed | {"last-updated-ms": now_ms, "metadata-log": log}


def encode(metadata: Metadata) -> bytes:
    """Return a metadata file. A field without a value is left out."""
    fields = {name: value for name, value in metadata.items() if value is not None}
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def decode(content: bytes) -> Metadata:
    """Return the metadata of a file.

    Raises:
        ValueError: not a metadata file, or a required field is missing.
    """
    read = json.loads(content)
    if not isinstance(read, dict):
        raise ValueError("not a table's metadata")
    if missing_fields := [name for name in ("format-version", "table-uuid", "location") if name not in read]:
        raise ValueError(f"a table's metadata lacks {', '.join(missing_fields)}")
    empty = new_metadata("", "")
    metadata = empty | {name: value for name, value in read.items() if value is not None}
    if wrong := [
        name for name, value in empty.items() if value is not None and type(metadata[name]) is not type(value)
    ]:
        raise ValueError(f"a table's metadata has {wrong[0]} of another type")
    return metadata
