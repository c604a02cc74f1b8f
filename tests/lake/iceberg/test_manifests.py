"""Manifests and their lists: literal values both ways, read by pyiceberg, and what is damaged is refused."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, read_manifest_list

from headwater.lake.iceberg.manifests import (
    Content,
    EntryStatus,
    ListedManifest,
    ManifestEntry,
    decode,
    decode_list,
    described,
    encode,
    encode_list,
)

MARKER = bytes(range(16))
SCHEMA = {"type": "struct", "schema-id": 4, "fields": []}
OLD = ManifestEntry(
    "file:///t/old.parquet",
    10,
    100,
    {1: b"\1\0\0\0"},
    {1: b"\2\0\0\0"},
    snapshot=7,
    sequence=3,
    file_sequence=3,
    first_row=40,
)
NEW = ManifestEntry("file:///t/new.parquet", 20, 200, snapshot=9)
GONE = replace(OLD, path="file:///t/gone.parquet", snapshot=9)
LISTED = [
    (EntryStatus.EXISTING, OLD),
    (EntryStatus.DELETED, GONE),
    (EntryStatus.ADDED, NEW),
    (EntryStatus.ADDED, replace(NEW, path="b")),
]
VECTOR = ManifestEntry(
    "file:///t/v.puffin",
    3,
    50,
    snapshot=9,
    data_file="file:///t/old.parquet",
    offset=4,
    length=30,
    kind="puffin",
    content=1,
)


def packed() -> tuple[bytes, ListedManifest]:
    content = encode(LISTED, Content.DATA, SCHEMA, MARKER)
    return content, described("file:///t/m.avro", content, Content.DATA, LISTED, 8, 9, 1000)


def test_a_manifest_has_the_numbers_and_the_head_of_the_specification() -> None:
    content, _ = packed()
    opened: Any = fastavro.reader(io.BytesIO(content))
    head = {name: text for name, text in opened.metadata.items() if not name.startswith("avro.")}
    assert head == {
        "schema": '{"type": "struct", "schema-id": 4, "fields": []}',
        "schema-id": "4",
        "partition-spec": "[]",
        "partition-spec-id": "0",
        "format-version": "3",
        "content": "data",
    }
    fields = {field["name"]: field for field in opened.writer_schema["fields"]}
    inner = {field["name"]: field["field-id"] for field in fields["data_file"]["type"]["fields"]}
    numbers = {name: field["field-id"] for name, field in fields.items()}
    assert numbers == {"status": 0, "snapshot_id": 1, "sequence_number": 3, "file_sequence_number": 4, "data_file": 2}
    assert inner == {
        "content": 134,
        "file_path": 100,
        "file_format": 101,
        "partition": 102,
        "record_count": 103,
        "file_size_in_bytes": 104,
        "lower_bounds": 125,
        "upper_bounds": 128,
        "first_row_id": 142,
        "referenced_data_file": 143,
        "content_offset": 144,
        "content_size_in_bytes": 145,
    }
    first = next(opened)
    assert first["data_file"]["lower_bounds"] == [{"key": 1, "value": b"\1\0\0\0"}]


def test_what_an_added_file_gets_comes_from_the_list() -> None:
    content, manifest = packed()
    read = decode(content, manifest)
    assert [status for status, _ in read] == [0, 2, 1, 1]
    assert read[0][1] == OLD and read[1][1] == GONE
    given = replace(NEW, sequence=8, file_sequence=8)
    assert [entry for _, entry in read[2:]] == [
        replace(given, first_row=1000),
        replace(given, path="b", first_row=1020),
    ]


def test_the_counts_of_a_manifest_are_by_status() -> None:
    _, manifest = packed()
    assert (manifest.files, manifest.rows) == ((1, 2, 1), (10, 40, 10))
    assert (manifest.sequence, manifest.least_sequence, manifest.first_row) == (8, 3, 1000)


def test_vectors_get_no_row_ids() -> None:
    content = encode([(EntryStatus.ADDED, VECTOR)], Content.DELETES, SCHEMA, MARKER)
    manifest = described("m", content, Content.DELETES, [(EntryStatus.ADDED, VECTOR)], 8, 9, None)
    assert decode(content, manifest) == [(EntryStatus.ADDED, replace(VECTOR, sequence=8, file_sequence=8))]


def test_a_list_comes_back_by_us_and_by_pyiceberg(tmp_path: Path) -> None:
    content, data = packed()
    (tmp_path / "m.avro").write_bytes(content)
    dead = encode([(EntryStatus.ADDED, VECTOR)], Content.DELETES, SCHEMA, MARKER)
    (tmp_path / "d.avro").write_bytes(dead)
    manifests = [
        replace(data, path=f"file://{tmp_path}/m.avro"),
        described(f"file://{tmp_path}/d.avro", dead, Content.DELETES, [(EntryStatus.ADDED, VECTOR)], 8, 9, None),
    ]
    listed = encode_list(manifests, 9, None, 8, 1000, MARKER)
    assert decode_list(listed) == manifests
    (tmp_path / "list.avro").write_bytes(listed)
    files = PyArrowFileIO()
    read = list(read_manifest_list(files.new_input(f"{tmp_path}/list.avro")))
    assert [item.content for item in read] == [ManifestContent.DATA, ManifestContent.DELETES]
    assert [(item.added_files_count, item.existing_rows_count) for item in read] == [(2, 10), (1, 0)]
    entries = [entry for item in read for entry in item.fetch_manifest_entry(files)]
    assert [(entry.data_file.file_path, entry.sequence_number) for entry in entries] == [
        ("file:///t/old.parquet", 3),
        ("file:///t/new.parquet", 8),
        ("b", 8),
        ("file:///t/v.puffin", 8),
    ]


def test_the_bytes_of_a_file_depend_on_nothing_but_what_it_says() -> None:
    assert packed() == packed()
    assert encode_list([packed()[1]], 9, 7, 8, 0, MARKER) == encode_list([packed()[1]], 9, 7, 8, 0, MARKER)


def test_a_manifest_of_another_length_is_refused() -> None:
    content, manifest = packed()
    with pytest.raises(ValueError, match=f"a manifest of {len(content) - 1} bytes, the list says {len(content)}"):
        decode(content[:-1], manifest)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_what_is_damaged_is_read_or_refused(at: int, bits: int) -> None:
    content, manifest = packed()
    damaged = bytearray(content)
    damaged[at % len(content)] ^= bits
    with_suppressed(lambda: decode(bytes(damaged), manifest))
    listed = bytearray(encode_list([manifest], 9, None, 8, 1000, MARKER))
    listed[at % len(listed)] ^= bits
    with_suppressed(lambda: decode_list(bytes(listed)))


def with_suppressed(read: Any) -> None:
    try:
        read()
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize("content", [b"", b"Obj\1", b"PFA1" * 9])
def test_what_is_no_avro_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not Avro, or damaged"):
        decode_list(content)


def test_records_that_lack_something_are_refused() -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "manifest_path", "type": "string", "field-id": 500}]}
    out = io.BytesIO()
    fastavro.writer(out, fastavro.parse_schema(schema), [{"manifest_path": "m"}])
    with pytest.raises(ValueError, match="lacks 'existing_files_count'"):
        decode_list(out.getvalue())
    with pytest.raises(ValueError, match="lacks 'data_file'"):
        decode(out.getvalue(), replace(packed()[1], length=len(out.getvalue())))
