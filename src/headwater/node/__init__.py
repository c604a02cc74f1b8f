"""The server: one asyncio process that keeps a bucket, answers requests and feeds change streams.

server.py accepts; connection.py moves one client's bytes (inbox.py, outbox.py); kv/ answers key-value requests; dcp/,
tap/ and streams/ feed changes; committer.py makes batches durable; bucket.py ties store, vbuckets and committer
together; main.py and run.py are `headwater serve`. The layers of these files: docs/architecture.md.
"""
