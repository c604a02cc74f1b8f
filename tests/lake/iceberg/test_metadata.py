"""A table's metadata: what each snapshot adds, what expires, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadataUtil, TableMetadataV3

from headwater.lake.iceberg import metadata
from headwater.lake.iceberg.metadata import Metadata
from headwater.lake.iceberg.schema import FieldIds

TABLE = "1a6fe9b8-6d3a-4f2a-8f3c-0d9a6a3c3a10"
PLACE = "file:///t/_iceberg"
FIELDS = FieldIds().fields([{"name": "key", "type": "binary", "metadata": {}}])


def snapshot(number: int, first: int = 0, rows: int = 0) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        "sequence-number": number,
        "manifest-list": f"{PLACE}/metadata/snap-{number}.avro",
        "summary": {"operation": "append", metadata.TABLE: TABLE, metadata.VERSION: str(10 + number)},
        "first-row-id": first,
        "added-rows": rows,
    }


def grown(count: int, each_ms: int = 1000) -> Metadata:
    table = metadata.with_schema(metadata.new_metadata(TABLE, PLACE), FIELDS, 1)
    for number in range(1, count + 1):
        before = f"{PLACE}/metadata/v{number - 1}.metadata.json" if number > 1 else None
        table = metadata.with_snapshot(table, snapshot(number, 5 * number - 5, 5), each_ms * number, before)
    return table


def test_a_file_is_read_by_pyiceberg_and_by_us() -> None:
    table = grown(2)
    content = metadata.encode(table)
    read = TableMetadataUtil.parse_raw(content.decode())
    assert isinstance(read, TableMetadataV3)
    assert (read.current_snapshot_id, read.last_sequence_number, read.next_row_id) == (2, 2, 10)
    assert [entry.metadata_file for entry in read.metadata_log] == [f"{PLACE}/metadata/v1.metadata.json"]
    assert metadata.decode(content) == table


def test_a_table_without_a_snapshot_says_none() -> None:
    content = metadata.encode(metadata.new_metadata(TABLE, PLACE))
    assert "current-snapshot-id" not in json.loads(content)
    assert metadata.decode(content) == metadata.new_metadata(TABLE, PLACE)
    assert metadata.version_of(metadata.decode(content)) is None


def test_a_snapshot_is_the_current_one_and_the_branchs() -> None:
    table = grown(3)
    assert metadata.current_snapshot(table) == table["snapshots"][-1]
    assert table["refs"] == {"main": {"snapshot-id": 3, "type": "branch"}}
    assert metadata.version_of(table) == (TABLE, 13)
    assert [each["timestamp-ms"] for each in table["snapshot-log"]] == [1000, 2000, 3000]


def test_the_oldest_snapshots_go_and_what_belongs_to_them() -> None:
    table = grown(metadata.SNAPSHOTS_MAX) | {"refs": {"mine": {"snapshot-id": 1, "type": "tag"}}}
    table = metadata.with_snapshot(table, snapshot(99), 10**9, None)
    assert len(table["snapshots"]) == metadata.SNAPSHOTS_MAX == len(table["snapshot-log"])
    assert table["snapshots"][0]["snapshot-id"] == 2
    assert list(table["refs"]) == ["main"]


def test_a_clock_that_goes_back_makes_no_time_that_does() -> None:
    table = metadata.with_snapshot(grown(3), snapshot(4), 1, None)
    assert table["last-updated-ms"] == 3000 == table["snapshot-log"][-1]["timestamp-ms"]


def test_old_snapshots_expire_and_the_current_one_never_does() -> None:
    table = grown(5)
    left = metadata.without_old(table, 4000, 9000, "v5")
    assert left is not None
    assert [each["snapshot-id"] for each in left["snapshots"]] == [4, 5]
    assert metadata.without_old(left, 4000, 9000, "v6") is None
    alone = metadata.without_old(table, 10**9, 9000, "v5")
    assert alone is not None
    assert [each["snapshot-id"] for each in alone["snapshots"]] == [5]
    assert alone["last-updated-ms"] == 9000


def test_a_schema_is_added_when_columns_change_and_goes_with_its_last_snapshot() -> None:
    table = grown(1)
    assert metadata.with_schema(table, FIELDS, 1)["schemas"] == table["schemas"]
    wider = [*FIELDS, {"id": 2, "name": "b", "required": False, "type": "long"}]
    table = metadata.with_snapshot(metadata.with_schema(table, wider, 2), snapshot(2), 5000, None)
    assert [schema["schema-id"] for schema in table["schemas"]] == [0, 1]
    assert (table["current-schema-id"], table["last-column-id"]) == (1, 2)
    left = metadata.without_old(table, 5000, 9000, None)
    assert left is not None
    assert [schema["schema-id"] for schema in left["schemas"]] == [1]


@pytest.mark.parametrize(
    "other",
    [
        {"table-uuid": "another"},
        {"location": "file:///elsewhere"},
        {"format-version": 2},
        {"partition-specs": [{"spec-id": 0, "fields": [{"name": "vbucket"}]}]},
    ],
)
def test_what_is_another_table_is_begun_anew(other: dict[str, Any]) -> None:
    assert metadata.is_continued(grown(1), TABLE, PLACE)
    assert not metadata.is_continued(grown(1) | other, TABLE, PLACE)


def test_a_table_that_is_begun_anew_gives_no_number_twice() -> None:
    anew = metadata.renewed_metadata(grown(3) | {"location": "file:///elsewhere"}, TABLE, PLACE)
    assert (anew["last-sequence-number"], anew["next-row-id"], anew["last-column-id"]) == (3, 15, 1)
    assert (anew["snapshots"], anew["refs"], anew["location"]) == ([], {}, PLACE)
    assert metadata.renewed_metadata(grown(3), "another", PLACE) == metadata.new_metadata("another", PLACE)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "Expecting value"),
        (b"[]", "not a table's metadata"),
        (b'{"format-version": 3}', "lacks table-uuid, location"),
        (b'{"format-version": 3, "table-uuid": "a", "location": "b", "snapshots": {}}', "snapshots of another type"),
    ],
)
def test_what_is_no_metadata_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        metadata.decode(content)
