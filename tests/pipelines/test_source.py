"""The calls that Spark makes to the source of jobs with a sink, made without Spark."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import TableChanged
from headwater.lake.writer import TaskResult
from headwater.pipelines.sink import TableOpening, TableSink
from headwater.pipelines.sinks import REPEATS_MAX, to_text
from headwater.pipelines.source import SinkDataSource, SinkPartition, SinkStreamReader
from headwater.pipelines.table import BEGINNING
from headwater.pipelines.tasks import forget
from headwater.testing.node import node

pytest.importorskip("pyspark")


def reader(url: str, place: Path) -> SinkStreamReader:
    TableSink(place, "default")  # the mirror has made its table before a planner opens it
    opening = to_text(TableOpening(str(place), "default"))
    source = SinkDataSource({"url": url, "SECRETSINK": opening, "slots": "2", "pollIntervalSeconds": "0.001"})
    return source.streamReader(None)  # type: ignore[arg-type]


def answers(made: SinkStreamReader, partitions: Any) -> list[dict[str, Any]]:
    again = pickle.loads(pickle.dumps(made))
    found = [again.read(pickle.loads(pickle.dumps(partition))) for partition in partitions]
    forget()
    return [row for batches in found for batch in batches for row in batch.to_pylist()]


def test_a_batch_is_what_the_tables_record_says_whatever_the_checkpoint_does(tmp_path: Path) -> None:
    with node(vbuckets=4) as bucket, bucket.client() as client:
        client.set_many((f"k{i}", b"v") for i in range(20))
        made = reader(bucket.url, tmp_path)
        try:
            start = made.initialOffset()
            assert start == BEGINNING
            made.prepareForTriggerAvailableNow()
            end = made.latestOffset(start, made.getDefaultReadLimit())
            (row,) = answers(made, made.partitions(start, end))
            written = TaskResult.from_bytes(row["written"])
            assert (written.counts["mutations"], row["after"]) == (20, end["after"])
            sink = TableSink(tmp_path, "default")
            sink.commit(row["after"], json.loads(row["end"]), [written])
            assert made.partitions(start, end) == []  # it is in the table
            calm = made.latestOffset(end, made.getDefaultReadLimit())
            (row,) = answers(made, made.partitions(end, calm))
            assert row["written"] == b""  # only the offset changes
            sink.commit(row["after"], json.loads(row["end"]), [])
            assert made.latestOffset(calm, made.getDefaultReadLimit()) is calm
            assert made.reportLatestOffset() is not None
        finally:
            made.stop()


def test_a_batch_that_was_left_out_is_planned_again_under_another_offset(tmp_path: Path) -> None:
    """Under the same one Spark would think that there is nothing to do, and a run of once end without it."""
    with node(vbuckets=4) as bucket, bucket.client() as client:
        client.set_many((f"k{i}", b"v") for i in range(20))
        made = reader(bucket.url, tmp_path)
        try:
            limit = made.getDefaultReadLimit()
            made.prepareForTriggerAvailableNow()
            end, ends = made.initialOffset(), []
            for _ in range(REPEATS_MAX):
                end = made.latestOffset(end, limit)
                ends.append(json.dumps(end))
            assert len(set(ends)) == REPEATS_MAX
            with pytest.raises(TableChanged, match="left out 10 times"):
                made.latestOffset(end, limit)
            (row,) = answers(made, made.partitions(made.initialOffset(), end))
            TableSink(tmp_path, "default").commit(row["after"], json.loads(row["end"]), [])
            assert "again" not in made.latestOffset(end, limit)
        finally:
            made.stop()


def test_what_spark_makes_of_no_partition_yields_nothing(tmp_path: Path) -> None:
    made = reader("couchbase://127.0.0.1/b", tmp_path)
    assert list(made.read(None)) == []  # type: ignore[arg-type]
    assert next(iter(made.read(SinkPartition(None, "a", "{}")))).to_pylist() == [
        {"written": b"", "after": "a", "end": "{}"}
    ]
    made.commit({})
