"""A cache in front of a bucket that drops exactly the keys that changed, and never serves an old value for long.

The listener begins before the first read, so no change can fall between reading a value and listening for its changes.
"""

import threading

from headwater import client, testing


class Cache:
    """Values by key, filled on demand, emptied by the bucket's change stream."""

    def __init__(self, url: str) -> None:
        self._bucket = client.connect(url)
        self._listener = client.connect(url)
        self._changes = self._listener.changes("now", no_value=True)
        self._values: dict[bytes, bytes] = {}
        self.dropped = threading.Semaphore(0)
        threading.Thread(target=self._listen, daemon=True).start()

    def get(self, key: bytes) -> bytes:
        """Return the value, from memory when it has not changed since it was read."""
        if key not in self._values:
            self._values[key] = self._bucket.get(key).value
        return self._values[key]

    def _listen(self) -> None:
        for change in self._changes:
            if isinstance(change, client.Mutation | client.Deletion | client.Expiration):
                self._values.pop(change.key, None)
                self.dropped.release()


with testing.node(vbuckets=16) as node, client.connect(node.url) as writer:
    writer.set("price", "10")
    cache = Cache(node.url)
    print("read", cache.get(b"price").decode())
    writer.set("price", "12")
    cache.dropped.acquire(timeout=60)
    print("after the change", cache.get(b"price").decode())
