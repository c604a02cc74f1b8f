"""An external index fed by TAP: which documents hold which word; filled by the backfill, kept right by what follows."""

from collections import defaultdict

from headwater import client, testing
from headwater.client import tap
from headwater.wire.tap import Delete, Mutation


class Index:
    """Keys by word."""

    def __init__(self) -> None:
        self._keys: defaultdict[str, set[str]] = defaultdict(set)
        self._words: dict[str, set[str]] = {}

    def apply(self, message: object) -> None:
        """Bring the index up to date; the same message twice changes nothing."""
        if not isinstance(message, Mutation | Delete):
            return
        key = message.key.decode()
        for word in self._words.pop(key, set()):
            self._keys[word].discard(key)
        if isinstance(message, Mutation):
            self._words[key] = set(message.value.decode().split())
            for word in self._words[key]:
                self._keys[word].add(key)

    def find(self, word: str) -> list[str]:
        """Keys of the documents that hold the word."""
        return sorted(self._keys[word])


with testing.node(vbuckets=16, tap_keep_alive_seconds=60) as node, client.connect(node.url) as writer:
    writer.set("a", "red apple")
    writer.set("b", "red wine")
    index = Index()
    with tap.connect(node.url, name="index") as stream:
        while len(index.find("red")) < 2:
            index.apply(stream.next(timeout_seconds=10))
        print("red:", *index.find("red"))
        writer.set("b", "white wine")
        writer.delete("a")
        while index.find("red"):
            index.apply(stream.next(timeout_seconds=10))
        print("red:", *index.find("red"))
        print("wine:", *index.find("wine"))
