"""Changes as Spark DataFrames: the data source `dcp`.

    from headwater.spark import register
    register(spark)
    changes = spark.readStream.format("dcp").load("couchbase://127.0.0.1:11210/default")

Without `register` it works as well once headwater is installed: Spark finds the source by the package name
`pyspark_headwater`. Registering also tells the source how many tasks the session runs at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.first_line import show

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "slots"]


def register(spark: SparkSession, *, first_line: bool = True) -> None:
    """Register the format "dcp" with a session, and its number of slots, by which vbuckets are packed into partitions.

    Args:
        spark: a session, classic or Connect (Connect hides its slots: set `minPartitions`).
        first_line: True to print one line with the reason and the next step before the traceback of an uncaught error
            of ours, in this process or notebook; False leaves Spark's form.
    """
    from headwater.spark.source import DcpDataSource  # noqa: PLC0415 -- imports pyspark

    attributes: dict[str, Any] = {"slots": slots(spark), "__module__": DcpDataSource.__module__}
    # A class of its own travels to Spark's processes by value, with its number; DcpDataSource would by name only.
    spark.dataSource.register(type("RegisteredDcpDataSource", (DcpDataSource,), attributes))
    if first_line:
        show()


def slots(spark: SparkSession) -> int | None:
    """Return the number of tasks that a session runs at once; None if it is hidden (Spark Connect)."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except (AttributeError, NotImplementedError):  # Spark Connect
        return None
