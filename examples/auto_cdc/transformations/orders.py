from pyspark import pipelines as dp
from pyspark.sql import SparkSession

for table, scd_type in (("orders", 1), ("orders_history", 2)):
    source = SparkSession.active().readStream.format("dcp").option("undoFolder", f"/data/orders/undo-{table}")
    source = source.option("keyFormat", "string").option("valueFormat", "string")
    dp.temporary_view(name=f"{table}_changes")(lambda s=source: s.load("couchbase://127.0.0.1:11210/default"))
    dp.create_streaming_table(table)
    flow = {"apply_as_deletes": "event <> 'mutation'", "column_list": ["key", "value"], "stored_as_scd_type": scd_type}
    dp.create_auto_cdc_flow(table, f"{table}_changes", ["key"], "sequence", **flow)
