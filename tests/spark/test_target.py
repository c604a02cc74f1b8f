"""The writer inside a real Spark, against a real node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from headwater.testing.node import Node, node
from tests.pipelines.support import documents

pytestmark = pytest.mark.spark


@pytest.fixture
def bucket() -> Iterator[Node]:
    with node(vbuckets=4) as running:
        yield running


def test_a_frame_is_written_and_written_again(spark: Any, bucket: Node) -> None:
    frame = spark.range(500).select(
        f.concat(f.lit("k"), "id").alias("key"),
        f.col("id").cast("string").alias("value"),
        (f.col("id") % 10).alias("flags"),
        (f.col("id") >= 400).alias("deleted"),
        f.lit("2100-01-01 00:00:00").cast("timestamp").alias("expiry"),
    )
    for _ in range(2):
        frame.write.format("dcp").mode("append").save(bucket.url)
        assert documents(bucket) == {b"k%d" % i: b"%d" % i for i in range(400)}
    with bucket.client() as client:
        assert client.get("k7").flags == 7


@pytest.mark.battery
def test_a_stream_that_is_killed_and_started_again_loses_nothing(spark: Any, tmp_path: Path) -> None:
    with node(vbuckets=4) as source, node(vbuckets=8) as target:

        def run(**options: str) -> None:
            changes = spark.readStream.format("dcp").options(maxChangesPerTrigger="80").load(source.url)
            query = (
                changes.writeStream.format("dcp")
                .options(withMeta="true", checkpointLocation=str(tmp_path / "checkpoint"), **options)
                .trigger(availableNow=True)
                .start(target.url)
            )
            assert query.awaitTermination(400)

        with source.client() as client:
            client.set_many((f"k{i}", f"{i}") for i in range(200))
            client.delete_many(f"k{i}" for i in range(10))
        target.kill()
        with pytest.raises(PySparkException, match=str(target.port)):
            run(retrySeconds="1")
        target.restart()
        run()
        assert documents(target) == documents(source) == {b"k%d" % i: b"%d" % i for i in range(10, 200)}
        with source.client() as client:
            client.set("k11", "again")
            client.delete("k12")
        run()
        assert documents(target) == documents(source)


@pytest.mark.parametrize(
    ("columns", "mode", "told"),
    [
        ("id", "append", "id.* is not a column that is written"),
        ("'k' AS key", "append", "value is missing"),
        ("1 AS key, 'v' AS value", "append", "key is binary or string"),
        ("'k' AS key, 'v' AS value", "overwrite", "a bucket is not emptied by a write"),
        ("'k' AS key, 'v' AS value", "ignore", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
        ("'k' AS key, 'v' AS value", "errorifexists", "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"),
    ],
)
def test_a_wrong_column_or_mode_is_refused_before_anything_is_written(
    spark: Any, bucket: Node, columns: str, mode: str, told: str
) -> None:
    frame = spark.range(3).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=told):
        frame.write.format("dcp").mode(mode).save(bucket.url)
    assert documents(bucket) == {}


def test_refused_rows_are_kept_aside_and_read_again(spark: Any, bucket: Node, tmp_path: Path) -> None:
    frame = spark.range(10).selectExpr("repeat('k', 246 + int(id)) AS key", "'v' AS value")
    with pytest.raises(PySparkException, match="rows were refused for good"):
        frame.write.format("dcp").mode("append").save(bucket.url)
    frame.write.format("dcp").option("deadLetters", str(tmp_path / "refused")).mode("append").save(bucket.url)
    assert len(documents(bucket)) == 5
    refused = spark.read.parquet(str(tmp_path / "refused"))
    assert sorted(len(row.key) for row in refused.collect()) == [251, 252, 253, 254, 255]
    assert refused.where("reason LIKE '%1 to 250 bytes%'").count() == 5
