"""The mirror against a real node: whatever happens to the bucket, the table is what the bucket is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headwater.pipelines.mirror import MirrorFailed, mirror
from headwater.testing.node import Node, node

pytestmark = pytest.mark.spark


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def table(path: Path, *columns: str) -> dict[bytes, Any]:
    """The table's rows by key, read with delta-rs: not the code that wrote them."""
    rows = DeltaTable(path).to_pyarrow_table(columns=["key", *(columns or ("value",))]).to_pylist()
    return {row.pop("key"): row if columns else row["value"] for row in rows}


def documents(bucket: Node) -> dict[bytes, bytes]:
    """What the node holds, told by its own history."""
    held: dict[bytes, bytes] = {}
    with bucket.client() as client, client.changes(until="now") as changes:
        for change in changes:
            if type(change).__name__ == "Mutation":
                held[change.key] = change.value
            elif type(change).__name__ in ("Deletion", "Expiration"):
                held.pop(change.key, None)
    return held


def test_the_table_follows_the_bucket(spark: Any, bucket: Node, tmp_path: Path) -> None:
    with bucket.client() as client:
        client.set_many((f"k{i}", b"one") for i in range(50))
        first = mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
        assert (first.mutations, first.deletions, first.changes) == (50, 0, sum(client.seqnos().values()))
        client.set_many((f"k{i}", b"two") for i in range(10))
        client.delete_many([f"k{i}" for i in range(40, 50)])
        second = mirror(spark, bucket.url, tmp_path / "t", once=True, changelog=True)
    assert (second.mutations, second.deletions) == (10, 10)
    held = table(tmp_path / "t")
    assert held == documents(bucket)
    assert (len(held), held[b"k3"], held[b"k30"]) == (40, b"two", b"one")
    log = DeltaTable(tmp_path / "t_changes").to_pyarrow_table().to_pylist()
    assert len(log) == 70
    assert len({(row["vbucket"], row["vb_uuid"], row["seqno"]) for row in log}) == 70
