"""How far a query is behind."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headwater.spark.lag import Lag, LagListener
from headwater.testing.node import Node

A, B = "000000000000000a", "000000000000000b"


def offset(**seqnos: int) -> dict[str, Any]:
    return {"v": 1, "vb": {name[1:]: [A, seqno] for name, seqno in seqnos.items()}}


@pytest.mark.parametrize("encode", [json.dumps, lambda each: json.dumps(json.dumps(each)), lambda each: each])
def test_a_listener_reads_the_reports_of_queries_over_this_source_only(encode: Any) -> None:
    told: list[Lag] = []
    listener = LagListener(told.append)

    def report(end: Any, latest: Any) -> None:
        ours = SimpleNamespace(endOffset=encode(end), latestOffset=encode(latest))
        listener.onQueryProgress(SimpleNamespace(progress=SimpleNamespace(id="q", name=None, sources=[ours])))

    report({"topic": {"0": 5}}, {"topic": {"0": 9}})
    report(7, None)
    assert told == []
    report(offset(v0=1), offset(v0=4) | {"after": "abc"})
    assert (told[0].query, told[0].changes) == ("q", 3)
    listener.onQueryTerminated(SimpleNamespace(id="q"))
    assert listener._meters == {}


@pytest.mark.spark
@pytest.mark.battery
@pytest.mark.timeout(900)
def test_a_query_that_stops_short_of_the_end_says_by_how_much(spark: Any, shared_node: Node, tmp_path: Path) -> None:
    told: list[Lag] = []
    came = threading.Event()

    def note(lag: Lag) -> None:
        told.append(lag)
        if not lag.changes:
            came.set()

    listener = LagListener(note)
    with shared_node.client() as client:
        assert client.set_many((f"lag{i}", b"v") for i in range(100)) == {}
        total = sum(client.seqnos().values())
    spark.streams.addListener(listener)
    try:
        stream = spark.readStream.format("dcp").option("maxChangesPerTrigger", total // 2 + 1).load(shared_node.url)
        query = (
            stream.writeStream.format("noop")
            .queryName("orders")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(300) and came.wait(60)
    finally:
        spark.streams.removeListener(listener)
    assert {lag.query for lag in told} == {"orders"}
    assert told[0].changes == total - total // 2 - 1 and len(told[0].worst) == min(told[0].vbuckets, 5)
    assert told[-1].changes == 0
