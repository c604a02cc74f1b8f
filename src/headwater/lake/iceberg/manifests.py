"""Manifests and manifest lists: which files a snapshot has, as Avro.

A manifest lists data files or deletion vectors, each with its status in the snapshot for which the manifest was
written; a manifest list has the manifests of one snapshot. Readers take Avro's fields by their numbers, not by their
names. The sequence numbers and row ids of a new file are null in the manifest of the snapshot that adds it, and come
from the manifest list; every later manifest has them. Source: Iceberg's spec.md, "Manifests", "Manifest Lists",
"Sequence Number Inheritance" and "First Row ID Inheritance".

Avro has no checksum of a file; each block ends with the marker of the file's head, and the list has a manifest's
length, which is checked.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final

import fastavro

FORMAT_VERSION: Final = 3
SYNC_BYTES: Final = 16


class EntryStatus(IntEnum):
    """The status of a file in a manifest."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


class Content(IntEnum):
    """The kind of files that a manifest lists."""

    DATA = 0
    DELETES = 1


@dataclass(frozen=True, slots=True)
class ManifestEntry:
    """A data file or a deletion vector, as a manifest lists it.

    Attributes:
        path: location of the data file, or of the Puffin file.
        rows: number of its rows; of a vector, of its dead rows.
        size: size of the whole file in bytes.
        lower, upper: bounds by field id, each little endian.
        snapshot: id of the snapshot that added it; None until that is committed.
        sequence, file_sequence: sequence numbers of its data and of the file; None likewise.
        first_row: id of the first row of a data file; None likewise.
        data_file, offset, length: of a vector: location of its data file, and the vector's place in the Puffin file.
        kind: the format, `parquet` or `puffin`.
        content: 0 for data, 1 for vectors and other deletes by position, 2 for deletes by value.
    """

    path: str
    rows: int
    size: int
    lower: Mapping[int, bytes] = field(default_factory=dict)
    upper: Mapping[int, bytes] = field(default_factory=dict)
    snapshot: int | None = None
    sequence: int | None = None
    file_sequence: int | None = None
    first_row: int | None = None
    data_file: str | None = None
    offset: int | None = None
    length: int | None = None
    kind: str = "parquet"
    content: int = 0


@dataclass(frozen=True, slots=True)
class ListedManifest:
    """A manifest, as the list has it.

    Attributes:
        path: its location. length: its size in bytes.
        content: what it lists.
        sequence: sequence number of the snapshot for which it was written; that snapshot's id is `snapshot`.
        least_sequence: the lowest sequence number of its live files.
        files, rows: number of files and of their rows, by status.
        first_row: the row id from which its added data files count; None for vectors.
        spec: the number of the partition spec.
    """

    path: str
    length: int
    content: Content
    sequence: int
    least_sequence: int
    snapshot: int
    files: tuple[int, int, int]
    rows: tuple[int, int, int]
    first_row: int | None
    spec: int = 0


Listed = tuple[EntryStatus, ManifestEntry]


def _optional(kind: Any, number: int, name: str) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _required(kind: Any, number: int, name: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "field-id": number}


def _record_schema(name: str, fields: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def _map(key: int, value: int) -> dict[str, Any]:
    pair = [_required("int", key, "key"), _required("bytes", value, "value")]
    return {
        "type": "array",
        "logicalType": "map",
        "items": {"type": "record", "name": f"k{key}_v{value}", "fields": pair},
    }


_DATA_FILE: Final = _record_schema(
    "r2",
    [
        _required("int", 134, "content"),
        _required("string", 100, "file_path"),
        _required("string", 101, "file_format"),
        _required({"type": "record", "name": "r102", "fields": []}, 102, "partition"),
        _required("long", 103, "record_count"),
        _required("long", 104, "file_size_in_bytes"),
        _optional(_map(126, 127), 125, "lower_bounds"),
        _optional(_map(129, 130), 128, "upper_bounds"),
        _optional("long", 142, "first_row_id"),
        _optional("string", 143, "referenced_data_file"),
        _optional("long", 144, "content_offset"),
        _optional("long", 145, "content_size_in_bytes"),
    ],
)
_ENTRY: Final = fastavro.parse_schema(
    _record_schema(
        "manifest_entry",
        [
            _required("int", 0, "status"),
            _optional("long", 1, "snapshot_id"),
            _optional("long", 3, "sequence_number"),
            _optional("long", 4, "file_sequence_number"),
            _required(_DATA_FILE, 2, "data_file"),
        ],
    )
)
_COUNTS: Final = ("existing", "added", "deleted")
"""The counts in a list by their names, in the order of the statuses."""

_LIST: Final = fastavro.parse_schema(
    _record_schema(
        "manifest_file",
        [
            _required("string", 500, "manifest_path"),
            _required("long", 501, "manifest_length"),
            _required("int", 502, "partition_spec_id"),
            _required("int", 517, "content"),
            _required("long", 515, "sequence_number"),
            _required("long", 516, "min_sequence_number"),
            _required("long", 503, "added_snapshot_id"),
            _required("int", 504, "added_files_count"),
            _required("int", 505, "existing_files_count"),
            _required("int", 506, "deleted_files_count"),
            _required("long", 512, "added_rows_count"),
            _required("long", 513, "existing_rows_count"),
            _required("long", 514, "deleted_rows_count"),
            _optional("long", 520, "first_row_id"),
        ],
    )
)


def encode(entries: Sequence[Listed], content: Content, schema: Mapping[str, Any], marker: bytes) -> bytes:
    """Return a manifest.

    Args:
        entries: files; those that are added have no sequence numbers and no row id, unless the log gave them some; all
            others have them.
        content: the kind of the files.
        schema: the table's schema, as its metadata has it.
        marker: 16 bytes that end a block, different for each file.
    """
    head = {
        "schema": json.dumps(schema, ensure_ascii=False),
        "schema-id": str(schema["schema-id"]),
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": str(FORMAT_VERSION),
        "content": content.name.lower(),
    }
    return _avro_file(_ENTRY, (_record(status, entry) for status, entry in entries), head, marker)


def _record(status: EntryStatus, entry: ManifestEntry) -> dict[str, Any]:
    return {
        "status": status,
        "snapshot_id": entry.snapshot,
        "sequence_number": entry.sequence,
        "file_sequence_number": entry.file_sequence,
        "data_file": {
            "content": entry.content,
            "file_path": entry.path,
            "file_format": entry.kind,
            "partition": {},
            "record_count": entry.rows,
            "file_size_in_bytes": entry.size,
            "lower_bounds": _pairs(entry.lower),
            "upper_bounds": _pairs(entry.upper),
            "first_row_id": entry.first_row,
            "referenced_data_file": entry.data_file,
            "content_offset": entry.offset,
            "content_size_in_bytes": entry.length,
        },
    }


def _pairs(bounds: Mapping[int, bytes]) -> list[dict[str, Any]] | None:
    return [{"key": number, "value": bound} for number, bound in bounds.items()] or None


def decode(content: bytes, manifest: ListedManifest) -> list[Listed]:
    """Return the entries of a manifest, with the values that they inherit from the manifest list.

    Raises:
        ValueError: the bytes are damaged, or are not the manifest that the list describes.
    """
    if len(content) != manifest.length:
        raise ValueError(f"a manifest of {len(content)} bytes, the list says {manifest.length}")
    next_row, entries = manifest.first_row, []
    for record in _records(content):
        status, entry = _entry(record)
        entry = _inherited(status, entry, manifest)
        # A row id that is null is the manifest's first, plus the rows of the entries before it that have none either
        # (spec.md, "First Row ID Inheritance").
        if manifest.content is Content.DATA and entry.first_row is None and next_row is not None:
            entry = replace(entry, first_row=next_row)
            next_row += entry.rows
        entries.append((status, entry))
    return entries


def _entry(record: Mapping[str, Any]) -> Listed:
    try:
        file_record = record["data_file"]
        entry = ManifestEntry(
            file_record["file_path"],
            file_record["record_count"],
            file_record["file_size_in_bytes"],
            _bounds(file_record.get("lower_bounds")),
            _bounds(file_record.get("upper_bounds")),
            record["snapshot_id"],
            record["sequence_number"],
            record["file_sequence_number"],
            file_record.get("first_row_id"),
            file_record.get("referenced_data_file"),
            file_record.get("content_offset"),
            file_record.get("content_size_in_bytes"),
            file_record["file_format"].lower(),
            file_record["content"],
        )
        return EntryStatus(record["status"]), entry
    except KeyError as error:
        raise ValueError(f"an entry lacks {error}") from None


def _inherited(status: EntryStatus, entry: ManifestEntry, manifest: ListedManifest) -> ManifestEntry:
    if entry.snapshot is None:
        entry = replace(entry, snapshot=manifest.snapshot)
    # Only added files inherit a sequence number; every other entry must have its own (spec.md, "Sequence Number
    # Inheritance").
    if status is not EntryStatus.ADDED:
        return entry
    file_sequence = manifest.sequence if entry.file_sequence is None else entry.file_sequence
    sequence = manifest.sequence if entry.sequence is None else entry.sequence
    return replace(entry, sequence=sequence, file_sequence=file_sequence)


def _bounds(pairs: Iterable[Mapping[str, Any]] | None) -> dict[int, bytes]:
    return {pair["key"]: pair["value"] for pair in pairs or ()}


def described(
    path: str,
    content: bytes,
    kind: Content,
    entries: Sequence[Listed],
    sequence: int,
    snapshot: int,
    first_row: int | None,
) -> ListedManifest:
    """Return the entry of a new manifest for the manifest list."""
    live = [entry.sequence for status, entry in entries if status is not EntryStatus.DELETED]
    files, rows = [0, 0, 0], [0, 0, 0]
    for status, entry in entries:
        files[status] += 1
        rows[status] += entry.rows
    # An added file has none yet and gets the snapshot's. The bound must not be too high, for writers of Iceberg drop
    # deletes that are older than all data.
    sequence_min = min((number if number is not None else sequence for number in live), default=sequence)
    counts = (files[0], files[1], files[2]), (rows[0], rows[1], rows[2])
    return ListedManifest(path, len(content), kind, sequence, sequence_min, snapshot, *counts, first_row)


def encode_list(
    manifests: Sequence[ListedManifest], snapshot: int, parent: int | None, sequence: int, first_row: int, marker: bytes
) -> bytes:
    """Return the manifest list of a snapshot.

    Args:
        manifests: in the order in which row ids were given to them.
        snapshot, parent: ids of the snapshot and of the one before it.
        sequence: the snapshot's sequence number.
        first_row: the first row id that it gives.
        marker: 16 bytes that end a block.
    """
    head = {
        "snapshot-id": str(snapshot),
        "parent-snapshot-id": "null" if parent is None else str(parent),
        "sequence-number": str(sequence),
        "first-row-id": str(first_row),
        "format-version": str(FORMAT_VERSION),
    }
    return _avro_file(_LIST, map(_of_list, manifests), head, marker)


def _of_list(manifest: ListedManifest) -> dict[str, Any]:
    record = {
        "manifest_path": manifest.path,
        "manifest_length": manifest.length,
        "partition_spec_id": manifest.spec,
        "content": manifest.content,
        "sequence_number": manifest.sequence,
        "min_sequence_number": manifest.least_sequence,
        "added_snapshot_id": manifest.snapshot,
        "first_row_id": manifest.first_row,
    }
    for name, files, rows in zip(_COUNTS, manifest.files, manifest.rows, strict=True):
        record |= {f"{name}_files_count": files, f"{name}_rows_count": rows}
    return record


def decode_list(content: bytes) -> list[ListedManifest]:
    """Return the manifests that a list has.

    Raises:
        ValueError: not a manifest list, or a damaged one.
    """
    return [_manifest(record) for record in _records(content)]


def _manifest(record: Mapping[str, Any]) -> ListedManifest:
    try:
        files = [record[f"{name}_files_count"] for name in _COUNTS]
        rows = [record[f"{name}_rows_count"] for name in _COUNTS]
        return ListedManifest(
            record["manifest_path"],
            record["manifest_length"],
            Content(record["content"]),
            record["sequence_number"],
            record["min_sequence_number"],
            record["added_snapshot_id"],
            (files[0], files[1], files[2]),
            (rows[0], rows[1], rows[2]),
            record.get("first_row_id"),
            record["partition_spec_id"],
        )
    except KeyError as error:
        raise ValueError(f"a manifest in the list lacks {error}") from None


def _avro_file(schema: Any, records: Iterable[Mapping[str, Any]], head: Mapping[str, str], marker: bytes) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, schema, records, codec="deflate", metadata=dict(head), sync_marker=marker)
    return out.getvalue()


def _records(content: bytes) -> list[dict[str, Any]]:
    try:
        return [record for record in fastavro.reader(io.BytesIO(content)) if isinstance(record, dict)]
    except Exception as error:  # the library has no class of its own for what is damaged
        raise ValueError(f"not Avro, or damaged: {str(error) or type(error).__name__}") from None
