"""The change log beside the mirror: every change as it came, appended, never touched again.

Each row has the `batch` it came in. After a failover a vbucket may be read again from a point that is held for
certain. If nothing was lost, the rows that are here already are left out, so a change is here once. If changes were
lost, a row with event `rollback` says so and the replay follows it: a row counts unless a later batch has, for its
vbucket, a `rollback` row with a lower seqno (the same batch's rollback comes before its changes).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IDENTITY = ("vbucket", "vb_uuid", "seqno")


class ChangeLog:
    """A Delta table of all changes.

    Args:
        spark: a session with Delta Lake.
        path: where it lies; made by the first batch.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path
        self._newest = self._written(spark)

    def append(
        self,
        changes: DataFrame,
        spans: Mapping[int, tuple[int, int]],
        rollbacks: Mapping[int, int],
        transaction: tuple[str, int],
    ) -> None:
        """Append a batch.

        Args:
            changes: rows of the source, rollback rows included.
            spans: vbucket to (lowest, highest) seqno of its changes in the batch.
            rollbacks: the vbuckets that were rolled back.
            transaction: (application, version): a version that is here already does nothing.
        """
        from pyspark.sql import functions as f

        again = [vb for vb, (low, _) in spans.items() if low <= self._newest.get(vb, -1) and vb not in rollbacks]
        if again:
            known = changes.sparkSession.read.format("delta").load(self.path).where(f.col("vbucket").isin(again))
            changes = changes.join(known.select(*IDENTITY), list(IDENTITY), "left_anti")
        application, version = transaction
        (
            changes.withColumn("batch", f.lit(version).cast("bigint"))
            .write.format("delta")
            .mode("append")
            .option("txnAppId", application)
            .option("txnVersion", version)
            .save(self.path)
        )
        for vb, (_, high) in spans.items():
            self._newest[vb] = high if vb in rollbacks else max(high, self._newest.get(vb, -1))

    def _written(self, spark: SparkSession) -> dict[int, int]:
        from delta.tables import DeltaTable
        from pyspark.sql import functions as f

        if not DeltaTable.isDeltaTable(spark, self.path):
            return {}
        kept = spark.read.format("delta").load(self.path).where("event <> 'rollback'")
        rows = kept.groupBy("vbucket").agg(f.max("seqno").alias("newest")).collect()
        return {row.vbucket: row.newest for row in rows}
