"""The source inside a real Spark, against a real node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from headwater.testing.node import Node

pytestmark = pytest.mark.spark

Drain = Callable[..., list[Any]]


def test_a_batch_read_counts_exactly_what_is_in_the_node(spark: Any, shared_node: Node) -> None:
    with shared_node.client() as client:
        assert client.set_many((f"count:{i}", b"v") for i in range(500)) == {}
        client.set("count:7", b"again")
        client.delete("count:8")
    rows = spark.read.format("dcp").load(shared_node.url).where("key LIKE 'count:%'").collect()
    assert len(rows) == 500
    assert Counter(row.event for row in rows) == {"mutation": 499, "deletion": 1}
    found = {bytes(row.key).decode(): row.value and bytes(row.value) for row in rows}
    assert (found["count:7"], found["count:8"], found["count:9"]) == (b"again", None, b"v")
