"""A client of Spark Connect, which has no Java and nothing of ours but `register`: reads, writes, streams.

Arguments: url of the server, of a bucket, of an empty one, folder of a checkpoint. Its last line is one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main(server: str, source: str, target: str, checkpoint: str) -> None:
    spark = SparkSession.builder.remote(server).getOrCreate()
    wanted = {"minPartitions": "2"}
    read = spark.read.format("dcp").options(**wanted).load(source)
    told: dict[str, Any] = {"read": read.count()}
    read.where("seqno % 2 = 0").select("key", "value", "event").write.format("dcp").mode("append").save(target)
    told["written"] = spark.read.format("dcp").options(**wanted).load(target).count()
    changes = spark.readStream.format("dcp").options(**wanted).load(source)
    asked = changes.select("key", "value", "event").writeStream.format("dcp").trigger(availableNow=True)
    query = asked.option("checkpointLocation", checkpoint).start(target)
    query.awaitTermination()
    told["offset"] = query.lastProgress["sources"][0]["endOffset"]
    from headwater.spark import register  # noqa: PLC0415 - so that all before has done without

    register(spark)
    told["registered"] = spark.read.format("dcp").options(**wanted).load(target).count()
    spark.stop()
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
