"""Tables for readers without deletion vectors, read by one: Arrow's datasets, over the files that delta-rs names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from harness.nodes import diverge
from headwater.errors import TableError
from headwater.failpoints import armed
from headwater.lake import folds
from headwater.lake.log import TableLog
from headwater.lake.store import TableStore
from headwater.pipelines.mirror import mirror
from headwater.testing.node import Node, node
from tests.pipelines.support import change, documents, folded, table


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running, running.client() as client:
        assert client.set_many((f"a{i}", b"one") for i in range(60)) == {}
        yield running


def run(bucket: Node, place: Path, *, copy_on_write: bool = True, **asked: Any) -> None:
    mirror(None, bucket.url, place, once=True, workers=0, copy_on_write=copy_on_write, **asked)


def plainly(place: Path, *columns: str) -> list[dict[str, Any]]:
    """The rows as a reader sees them that refuses tables with deletion vectors."""
    rows: list[dict[str, Any]] = DeltaTable(place).to_pyarrow_dataset().to_table(columns=list(columns)).to_pylist()
    return rows


def is_equal(bucket: Node, place: Path) -> None:
    rows = plainly(place, "key", "value")
    assert len(rows) == len({row["key"] for row in rows})
    assert {row["key"]: row["value"] for row in rows} == table(place) == documents(bucket)


def test_a_reader_without_deletion_vectors_sees_what_the_bucket_has(bucket: Node, tmp_path: Path) -> None:
    place = tmp_path / "t"
    run(bucket, place, changelog=True)
    with bucket.client() as client:
        client.set_many((f"a{i}", b"two") for i in range(0, 60, 7))
    run(bucket, place, changelog=True)
    is_equal(bucket, place)

    def lost() -> None:
        change(bucket, "lost")
        run(bucket, place, changelog=True, copy_on_write=False)  # once made so, a table stays so
        is_equal(bucket, place)

    diverge(bucket, lost=lost)
    change(bucket, "won")
    run(bucket, place, changelog=True)
    is_equal(bucket, place)
    assert folded(tmp_path / "t_changes") == documents(bucket)
    assert plainly(tmp_path / "t_changes", "key")


def test_a_table_with_vectors_is_what_that_reader_refuses_and_is_not_made_another(bucket: Node, tmp_path: Path) -> None:
    run(bucket, tmp_path, copy_on_write=False)
    with pytest.raises(Exception, match=r"[dD]eletion"):
        plainly(tmp_path, "key")
    with pytest.raises(TableError, match="it was made with deletion vectors: mirror without --copy-on-write"):
        run(bucket, tmp_path)


def test_documents_that_are_all_gone_leave_no_file(bucket: Node, tmp_path: Path) -> None:
    run(bucket, tmp_path)
    with bucket.client() as client:
        client.delete_many([f"a{i}" for i in range(60)])
    run(bucket, tmp_path)
    assert plainly(tmp_path, "key") == [] and not TableLog(TableStore(tmp_path)).refresh().files


def test_columns_that_come_with_the_rows_that_replace_others_are_in_all_files(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket, bucket.client() as client:
        client.set_many((f"f{i}", json.dumps({"n": i})) for i in range(40))
        run(bucket, tmp_path, json=True)
        client.set_many((f"f{i}", json.dumps({"n": -i, "late": str(i)})) for i in range(0, 40, 2))
        run(bucket, tmp_path, json=True)
    rows = {row["key"]: (row["n"], row["late"]) for row in plainly(tmp_path, "key", "n", "late")}
    assert rows == {f"f{i}": (i, None) if i % 2 else (-i, str(i)) for i in range(40)}


def test_files_are_folded_and_what_was_killed_is_done_again(bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        for n in range(folds.FAN + 1):
            client.set_many((f"b{n}-{i}", b"v") for i in range(5))
            client.set("a1", f"{n}".encode())
            run(bucket, tmp_path)
    log = TableLog(TableStore(tmp_path))
    assert len(log.refresh().files) < folds.FAN
    change(bucket, "two")
    with armed("lake.before_commit=eio"):
        run(bucket, tmp_path, retry_seconds=60)
    is_equal(bucket, tmp_path)
