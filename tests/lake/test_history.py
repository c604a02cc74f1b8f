"""A change log as history, by the queries of two engines: what holds now is what the bucket has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from harness.nodes import diverge
from headwater.lake import changes
from headwater.lake.history import query
from headwater.pipelines.mirror import mirror
from headwater.pipelines.table import CHANGES, Table
from headwater.testing.node import node
from tests.pipelines.support import change, documents, folded


def history(place: Path) -> list[dict[str, Any]]:
    """The history by DataFusion."""
    found = QueryBuilder().register("changes", DeltaTable(f"{place}_changes")).execute(query("changes")).read_all()
    columns = (column.to_pylist() for column in found.columns)
    return [dict(zip(found.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]


def test_each_version_ends_where_the_next_begins_and_what_was_lost_never_was(tmp_path: Path) -> None:
    place = tmp_path / "t"
    with node(vbuckets=4) as bucket:

        def follow() -> None:
            mirror(None, bucket.url, place, once=True, changelog=True, workers=0)

        with bucket.client() as client:
            client.set_many((f"a{i}", b"one") for i in range(60))
        follow()

        def lost() -> None:
            change(bucket, "lost")
            follow()

        diverge(bucket, lost=lost)
        change(bucket, "won")
        follow()
        with bucket.client() as client:
            client.set("a3", b"later")
            client.delete("a4")
        follow()
        rows = history(place)
        held = {bytes(row["key"]): bytes(row["value"]) for row in rows if row["valid_to"] is None}
        assert held == documents(bucket)
    versions = [row for row in rows if bytes(row["key"]) == b"a3"]
    first, second = sorted(versions, key=lambda version: int(version["valid_from"]))
    assert (bytes(first["value"]), bytes(second["value"])) == (b"won", b"later")
    assert (first["valid_to"], first["valid_to_time"]) == (second["valid_from"], second["valid_from_time"])
    # A killed node gives CAS values up to five seconds ahead of its clock (decision 0166), some of which follow
    # each other within a microsecond. The order is that of the seqnos.
    assert first["valid_from_time"] <= second["valid_from_time"] and second["valid_to"] is None
    (gone,) = [row for row in rows if bytes(row["key"]) == b"a4"]
    assert gone["valid_to"] > gone["valid_from"] and gone["valid_to_time"] >= gone["valid_from_time"]
    assert not [row for row in rows if b"lost" in bytes(row["value"]) or b"lost" in bytes(row["key"])]


def test_a_log_of_a_release_without_times_gets_the_column_and_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "t"
    old = [column for column in changes.fields() if column["name"] != "modified_at"]
    log = Table(f"{place}_changes", "default", CHANGES, old).log
    with node(vbuckets=4) as bucket:
        with bucket.client() as client:
            client.set_many((f"a{i}", b"one") for i in range(60))
        mirror(None, bucket.url, place, once=True, changelog=True, workers=0)
        assert [column["name"] for column in log.refresh().fields] == [
            *(column["name"] for column in old),
            "modified_at",
        ]
        assert folded(Path(f"{place}_changes")) == documents(bucket)
    assert all(row["valid_from_time"] is not None for row in history(place))
