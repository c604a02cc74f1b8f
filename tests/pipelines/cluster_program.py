"""A program for spark-submit: source, writer and mirror on whatever cluster it is given, and where they ran.

Arguments: url of a bucket, url of an empty one, folder of a table. Prints one JSON object as its last line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import headwater
from headwater.pipelines.mirror import mirror
from headwater.spark import register


def where(rows: Iterator[Any]) -> Iterator[tuple[str, str, str]]:
    """Say which Python runs this, in which folder, and whence it has headwater."""
    yield sys.prefix, str(Path.cwd()), str(headwater.__file__)


def main(source: str, target: str, place: str) -> None:
    spark = SparkSession.builder.appName("headwater on a cluster").getOrCreate()
    register(spark)
    read = spark.read.format("dcp").load(source)
    told: dict[str, Any] = {"read": read.count(), "partitions": read.rdd.getNumPartitions()}
    written = read.select("key", "value", "flags", "expiry", "event")
    written.write.format("dcp").mode("append").save(target)
    told["mirrored"] = mirror(spark, source, place, once=True).mutations
    slots = spark.sparkContext.defaultParallelism
    told["slots"] = slots
    told["where"] = sorted(set(spark.sparkContext.parallelize(range(slots), slots).mapPartitions(where).collect()))
    spark.stop()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
