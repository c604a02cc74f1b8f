"""Cache invalidation by TAP: a cache in front of a bucket forgets the keys that change, and only those.

It listens to every node, so it stays right when vbuckets move and when a node fails. While some node is not heard it
keeps nothing: what changes there now, nobody tells. What it has of before is dropped.
"""

import threading

from headwater import client, testing
from headwater.client import tap
from headwater.client.routing import Address
from headwater.client.tapnodes import TapNodes
from headwater.protocol.tap.consumer import TapMessage
from headwater.wire.tap import Delete, Flush, Mutation, OpaqueCode
from headwater.wire.tap import Opaque as OpaqueMessage


class Cache:
    """Values by key, filled on demand, emptied by what every node of the bucket tells.

    Attributes: hits, misses: how often a value was here, and was not. forgotten: set when something was dropped.
    """

    def __init__(self, url: str) -> None:
        self.hits = self.misses = 0
        self.forgotten = threading.Event()
        self._bucket = client.connect(url)
        self._values: dict[bytes, bytes] = {}
        self._reading: set[bytes] = set()
        self._lock = threading.Lock()
        self._nodes = TapNodes(url, self._hear, missed=self._forget_all, since=tap.NOW, keys_only=True)
        self._nodes.open()
        self._nodes.wait_until_heard()

    def get(self, key: bytes) -> bytes:
        """Return the value, from memory when it has not changed since it was read."""
        with self._lock:
            if key in self._values:
                self.hits += 1
                return self._values[key]
            self.misses += 1
            if not self._nodes.deaf:
                self._reading.add(key)
        value = self._bucket.get(key).value
        with self._lock:
            if key in self._reading:  # if not, it changed while it was read: the value may be the one of before
                self._reading.discard(key)
                self._values[key] = value
        return value

    def close(self) -> None:
        """Let go of the connections."""
        self._nodes.close()
        self._bucket.close()

    def _hear(self, _: Address, message: TapMessage) -> None:
        match message:
            case Mutation() | Delete():
                self._forget(message.key)
            case Flush():
                self._forget_all()
            case OpaqueMessage() if message.code == OpaqueCode.INITIAL_VBUCKET_STREAM:
                self._forget_all()  # a vbucket begins anew: which of our keys it had, only the bucket knows

    def _forget(self, key: bytes) -> None:
        with self._lock:
            self._values.pop(key, None)
            self._reading.discard(key)
        self.forgotten.set()

    def _forget_all(self) -> None:
        with self._lock:
            self._values.clear()
            self._reading.clear()
        self.forgotten.set()


if __name__ == "__main__":
    with testing.node(vbuckets=16) as node, client.connect(node.url) as writer:
        writer.set("price", "10")
        cache = Cache(node.url)
        print("read", cache.get(b"price").decode())
        cache.forgotten.clear()
        writer.set("price", "12")
        cache.forgotten.wait(timeout=60)
        print("after the change", cache.get(b"price").decode())
        cache.close()
