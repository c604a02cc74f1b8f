"""Tables that Auto CDC keeps of a bucket whose failovers take changes back, against a ledger of acknowledged writes.

`python -m harness.auto_cdc --seeds 0-99` runs scenarios against a plain model of what Auto CDC promises;
`--spark sc://127.0.0.1:15002` runs them through Spark's own Auto CDC (spark.py says what it needs).
"""
