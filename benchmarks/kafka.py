"""A merge by way of Kafka: Spark's Kafka source, MERGEd into a Delta table."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gauge import Cost, cost

SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
TOPIC = "changes"
PATIENCE_SECONDS = 600.0


def publish_rows(spark: Any, address: str, files: Sequence[str]) -> None:
    """Put keys and values of some Parquet files into the topic, as a connector does. The first call makes the topic."""
    rows = spark.read.parquet(*files).selectExpr("CAST(key AS BINARY) key", "CAST(value AS BINARY) value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", address).option("topic", TOPIC).save()


class KafkaMerge:
    """A streaming query that merges each batch of the topic into a plain Delta table, and then waits for the next call
    of `batch`.

    It does nothing else: no key comes twice in a batch here, so the query does not look for such keys, and there are no
    deletions.

    Args:
        address: of the broker, in whose topic there must be messages.
        place: the folder of table and checkpoint.
    """

    def __init__(self, spark: Any, address: str, place: Path) -> None:
        self._spark, self._table = spark, place / "merged"
        self._stands, self._may, self._ending = threading.Semaphore(0), threading.Semaphore(0), False
        read = spark.readStream.format("kafka").option("kafka.bootstrap.servers", address)
        rows = read.option("subscribe", TOPIC).option("startingOffsets", "earliest").load()
        columns = rows.select("key", "value", "partition", "offset", "timestamp")
        spark.createDataFrame([], columns.schema).write.format("delta").save(str(self._table))
        writer = columns.writeStream.foreachBatch(self._merge).option("checkpointLocation", str(place / "checkpoint"))
        self._query = writer.start()

    def _merge(self, batch: Any, number: int) -> None:
        if self._ending:
            return
        batch.createOrReplaceTempView("arrived")
        text = f"MERGE INTO delta.`{self._table}` t USING arrived s ON t.key = s.key"
        batch.sparkSession.sql(f"{text} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
        self._stands.release()
        self._may.acquire()

    def wait(self) -> None:
        """Wait until a batch is in the table."""
        if not self._stands.acquire(timeout=PATIENCE_SECONDS):
            raise AssertionError(f"no batch came: {self._query.exception()}")

    def batch(self) -> Cost:
        """Let the query do the next batch; return its cost."""

        def run() -> None:
            self._may.release()
            self.wait()

        return cost(run)

    def rows(self) -> int:
        """Return how many rows the table has."""
        count: int = self._spark.read.format("delta").load(str(self._table)).count()
        return count

    def close(self) -> None:
        """End the query. It must be waiting after a batch."""
        self._ending = True
        self._may.release()
        self._query.stop()
