"""Observation by TAP: count what is written, by prefix of the key, without ever fetching a value."""

from collections import Counter

from headwater import client, testing
from headwater.client import tap
from headwater.wire.tap import Delete, Mutation

with testing.node(vbuckets=16) as node, client.connect(node.url) as writer:
    writer.set("user:old", "from before")
    with tap.connect(node.url, since=tap.NOW, keys_only=True) as stream:
        stream.open()
        stream.next(timeout_seconds=1.0)  # the stream is set up once its first message is here
        seen: Counter[str] = Counter()
        for number in range(6):
            writer.set(f"user:{number}" if number % 2 else f"order:{number}", "a value that stays on the node")
        while seen.total() < 7 and (message := stream.next(timeout_seconds=10)) is not None:
            if isinstance(message, Mutation | Delete):
                kind = "stored" if isinstance(message, Mutation) else "deleted"
                seen[f"{kind} {message.key.decode().partition(':')[0]}"] += 1
            if seen.total() == 6:
                writer.delete("order:0")  # sooner, and the two changes of the key might have been merged into one
    for what, count in sorted(seen.items()):
        print(what, count)
