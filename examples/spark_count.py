"""A Spark batch over a bucket's history: the changes counted by kind."""

import os
import sys

from pyspark.sql import SparkSession

import headwater.spark
from headwater import client, testing

# Spark starts `python3` for its workers unless told otherwise; in an activated environment that is the same one.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
headwater.spark.register(spark)

with testing.node(vbuckets=16) as node:
    with client.connect(node.url) as bucket:
        bucket.set_many((f"order-{number}", '{"state": "new"}') for number in range(1000))
        bucket.delete_many(f"order-{number}" for number in range(100))
    changes = spark.read.format("dcp").load(node.url)
    for row in changes.groupBy("event").count().orderBy("event").collect():
        print(row["event"], row["count"])

spark.stop()
