"""Cache invalidation by TAP: a cache in front of a node forgets the keys that change, and only those."""

from headwater import client, testing
from headwater.client import tap
from headwater.wire.tap import Delete, Flush, Mutation


class Cache:
    """Values by key, filled on demand."""

    def __init__(self, url: str) -> None:
        self._bucket = client.connect(url)
        self._values: dict[bytes, bytes] = {}
        self._stream = tap.connect(url, name="cache", since=tap.NOW, keys_only=True)
        self._stream.next(timeout_seconds=1.0)  # listen first, read later: no change falls in between

    def get(self, key: bytes) -> bytes:
        """Return the value, from memory when it has not changed since it was read."""
        if key not in self._values:
            self._values[key] = self._bucket.get(key).value
        return self._values[key]

    def listen(self) -> None:
        """Take one message and forget what it is about."""
        message = self._stream.next(timeout_seconds=10)
        if isinstance(message, Mutation | Delete):
            self._values.pop(message.key, None)
        elif isinstance(message, Flush):
            self._values.clear()

    def close(self) -> None:
        """Let go of both connections."""
        self._stream.close()
        self._bucket.close()


with testing.node(vbuckets=16) as node, client.connect(node.url) as writer:
    writer.set("price", "10")
    cache = Cache(node.url)
    print("read", cache.get(b"price").decode())
    writer.set("price", "12")
    cache.listen()
    print("after the change", cache.get(b"price").decode())
    cache.close()
