"""The mirror's table: one row a live document, and how a batch of changes gets into it in one Delta commit.

A row carries where its change stood in the history (vbucket, seqno, branch). That is enough to take batches twice, for
a change that is not newer than its row does nothing; and to take changes back. When a branch was lost above seqno s of
a vbucket,

* rows of that vbucket above s go, unless the replay has them too;
* documents that the lost branch had overwritten or deleted must come back as they were at s. The table no longer has
  them, and neither have the changes above s that the source replays. So the vbucket is read once more, from 0 to s.

All of it is one MERGE: no reader of the table sees neither or both histories. docs/decisions/0022 tells what else was
tried.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headwater.spark.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

KEPT = ("key", "value", "vbucket", "seqno", "vb_uuid", "cas", "rev_seqno", "flags", "expiry", "datatype")
"""The source's columns that a row of the table has, first."""

TRANSACTION = "spark.databricks.delta.write.txn"
MEANINGS = {"seqno": "place of the row's last change in the vbucket's history"}


class MirrorTable:
    """A Delta table that follows a bucket.

    Args:
        spark: a session with Delta Lake.
        path: where the table lies; made if there is none.
        key_type: "binary" or "string".
    """

    def __init__(self, spark: SparkSession, path: str, key_type: str = "binary") -> None:
        self.path, self._key_type = path, key_type
        self._create(spark)

    def columns(self, spark: SparkSession) -> dict[str, str]:
        """Return the table's columns now: name to type."""
        fields = self._delta(spark).toDF().schema.fields
        return {field.name: field.dataType.simpleString() for field in fields}

    def add_columns(self, spark: SparkSession, columns: Mapping[str, str]) -> None:
        """Add columns at the end; rows that are there get nulls."""
        if columns:
            described = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
            spark.sql(f"ALTER TABLE delta.`{self.path}` ADD COLUMNS ({described})")

    def merge(
        self, changes: DataFrame, rollbacks: Mapping[int, int], columns: Sequence[str], transaction: tuple[str, int]
    ) -> None:
        """Bring the newest change of each key into the table, and undo what lies above a rollback's seqno.

        Args:
            changes: at most one row a key, with `columns` and `event`. Of a vbucket that was rolled back, all
            documents that
                last changed at or below the rollback's seqno are among them.
            rollbacks: vbucket to the seqno it returned to.
            columns: the columns of the table to write.
            transaction: (application, version): a version that is in the table already does nothing.
        """
        spark = changes.sparkSession
        newer = "s.seqno > t.seqno"
        if rollbacks:
            # What the lost branch wrote may have the higher seqno; in a vbucket that went back, different is enough.
            listed = ", ".join(map(str, sorted(rollbacks)))
            newer = f"({newer} OR (s.vbucket IN ({listed}) AND (s.seqno <> t.seqno OR s.cas <> t.cas)))"
        values = {f"`{name}`": f"s.`{name}`" for name in columns}
        merging = (
            self._delta(spark)
            .alias("t")
            .merge(changes.alias("s"), "t.vbucket = s.vbucket AND t.key = s.key")
            .whenMatchedDelete(f"{newer} AND s.event <> 'mutation'")
            .whenMatchedUpdate(newer, values)
            .whenNotMatchedInsert("s.event = 'mutation'", values)
        )
        if rollbacks:
            merging = merging.whenNotMatchedBySourceDelete(undone(rollbacks))
        with as_transaction(spark, *transaction):
            merging.execute()

    def _delta(self, spark: SparkSession) -> Any:
        from delta.tables import DeltaTable

        return DeltaTable.forPath(spark, self.path)

    def _create(self, spark: SparkSession) -> None:
        from delta.tables import DeltaTable

        builder = DeltaTable.createIfNotExists(spark).location(self.path)
        for name in KEPT:
            kind, meaning = COLUMNS[name]
            kind = self._key_type if name == "key" else kind
            builder = builder.addColumn(name, kind, comment=MEANINGS.get(name, meaning))
        builder.execute()


def undone(rollbacks: Mapping[int, int]) -> str:
    """Return the SQL condition for rows that a rollback takes out, unless the replay has them again."""
    points = ", ".join(f"{vb}, {point}L" for vb, point in sorted(rollbacks.items()))
    # A vbucket that is not in the map gives null, which is not true.
    return f"t.seqno > try_element_at(map({points}), t.vbucket)"


def newest(changes: DataFrame) -> DataFrame:
    """Return the newest change of each key."""
    from pyspark.sql import functions as f

    last = f.max_by(f.struct("*"), "seqno").alias("last")
    return changes.groupBy("vbucket", "key").agg(last).select("last.*")


def restored(
    spark: SparkSession, url: str, options: Mapping[str, str], rollbacks: Mapping[int, int]
) -> DataFrame | None:
    """Return the documents of these vbuckets as of the seqno each was rolled back to; None if that is nothing."""
    points = {str(vb): point for vb, point in sorted(rollbacks.items()) if point > 0}
    if not points:
        return None
    reading = spark.read.format("dcp").options(**options)
    return reading.option("vbuckets", ",".join(points)).option("endingOffsets", json.dumps(points)).load(url)


@contextmanager
def as_transaction(spark: SparkSession, application: str, version: int) -> Iterator[None]:
    """Let Delta skip what this application has already written under this version (or a later one)."""
    spark.conf.set(f"{TRANSACTION}AppId", application)
    spark.conf.set(f"{TRANSACTION}Version", str(version))
    try:
        yield
    finally:
        spark.conf.unset(f"{TRANSACTION}AppId")
        spark.conf.unset(f"{TRANSACTION}Version")
