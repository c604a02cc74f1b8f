"""Drain a bucket into Arrow record batches and ask them a question; no Python object stands for a single change.

This is the fast way: frames from the socket become columns in one call. A batch knows the positions after it.
"""

import pyarrow as pa
import pyarrow.compute as pc

from headwater import client, testing

with testing.node(vbuckets=16) as node, client.connect(node.url) as bucket:
    bucket.set_many((f"sensor-{number % 100}", f"{number}") for number in range(10_000))
    with bucket.batches(until="now") as batches:
        history = pa.Table.from_batches([batch.records for batch in batches])
    print("changes", history.num_rows)
    print("keys", pc.count_distinct(history["key"]).as_py())
    print("bytes of values", pc.sum(pc.binary_length(history["value"])).as_py())
