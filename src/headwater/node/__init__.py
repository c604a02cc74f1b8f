"""The server: one asyncio process that stores a bucket, answers requests and feeds change streams.

server.py accepts connections; connection.py moves one client's bytes (inbox.py, outbox.py); kv/ answers key-value
requests; dcp/, tap/ and streams/ feed changes; committer.py makes batches durable; bucket.py connects store, vbuckets
and committer; main.py and run.py implement `headwater serve`. The layers of these files: docs/architecture.md.
"""
