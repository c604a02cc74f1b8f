"""A Spark batch over a bucket's history: the changes counted by kind."""

from pyspark.sql import SparkSession

from headwater import client, testing

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

with testing.node(vbuckets=16) as node:
    with client.connect(node.url) as bucket:
        bucket.set_many((f"order-{number}", '{"state": "new"}') for number in range(1000))
        bucket.delete_many(f"order-{number}" for number in range(100))
    changes = spark.read.format("dcp").option("url", node.url).load()
    for row in changes.groupBy("event").count().orderBy("event").collect():
        print(row["event"], row["count"])

spark.stop()
