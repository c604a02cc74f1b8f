"""An external index fed by TAP: which documents hold which word; filled by the backfill, kept right by what follows.

    python tap_external_index.py                                   a node of its own, as a demonstration
    python tap_external_index.py couchbase://host/bucket FILE      follow the bucket until Ctrl-C
    python tap_external_index.py FILE WORD                         the keys of the documents that hold the word

The index is a SQLite file. It is followed where it was left, if the nodes keep sessions for that long
(`headwater serve --tap-keep-alive-seconds 300`), else filled anew, a vbucket at a time. Each vbucket is followed at its
owner only. One that gets another owner comes from there from scratch, so that also after a failover the index is what
the bucket is.
"""

import contextlib
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path

from headwater import client, testing
from headwater.client.routing import Address
from headwater.client.tapnodes import TapNodes
from headwater.errors import HeadwaterError
from headwater.protocol.tap.consumer import TapMessage
from headwater.wire.tap import Delete, Flush, MessageFlag, Mutation, OpaqueCode
from headwater.wire.tap import Opaque as OpaqueMessage

SCHEMA = """
CREATE TABLE IF NOT EXISTS words (word TEXT, key TEXT, vbucket INTEGER, PRIMARY KEY (word, key)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS words_of_keys ON words (key);
CREATE INDEX IF NOT EXISTS words_of_vbuckets ON words (vbucket);
"""


class Index:
    """Keys by word, in a file."""

    def __init__(self, path: Path | str) -> None:
        self._database = sqlite3.connect(path, check_same_thread=False)
        self._database.executescript(SCHEMA)
        self._lock = threading.Lock()

    def take(self, _: Address, message: TapMessage) -> None:
        """Bring the index up to date; the same message twice changes nothing."""
        with self._lock:
            self._apply(message)
            # The answer to a message is one to all before it as well: then all of them must be on disk.
            if message.flags & MessageFlag.ACK:
                self._database.commit()

    def _apply(self, message: TapMessage) -> None:
        run = self._database.execute
        match message:
            case OpaqueMessage() if message.code == OpaqueCode.INITIAL_VBUCKET_STREAM:
                run("DELETE FROM words WHERE vbucket = ?", (message.vbucket,))
            case Mutation() | Delete():
                key = message.key.decode()
                run("DELETE FROM words WHERE key = ?", (key,))
                if isinstance(message, Mutation):
                    rows = [(word, key, message.vbucket) for word in set(message.value.decode().split())]
                    self._database.executemany("INSERT INTO words VALUES (?, ?, ?)", rows)
            case Flush():
                run("DELETE FROM words")

    def find(self, word: str) -> list[str]:
        """Keys of the documents that hold the word."""
        with self._lock:
            return [
                key for (key,) in self._database.execute("SELECT key FROM words WHERE word = ? ORDER BY key", (word,))
            ]

    def close(self) -> None:
        """Close the file; what is not committed was not acknowledged, and comes again."""
        self._database.close()


def follow(index: Index, url: str) -> TapNodes:
    """Keep an index right within a `with` block."""
    return TapNodes(url, index.take, name="index", owners_only=True)


def wait_for(index: Index, word: str, keys: list[str]) -> None:
    """Wait until a word is found where it should be."""
    deadline = time.monotonic() + 10
    while index.find(word) != keys and time.monotonic() < deadline:
        time.sleep(0.01)


def demonstrate() -> None:
    """Index two documents, go away while they change, and come back."""
    with (
        tempfile.TemporaryDirectory() as folder,
        testing.node(vbuckets=16, tap_keep_alive_seconds=60) as node,
        client.connect(node.url) as writer,
    ):
        writer.set("a", "red apple")
        writer.set("b", "red wine")
        index = Index(Path(folder) / "index.sqlite")
        with follow(index, node.url):
            wait_for(index, "red", ["a", "b"])
        print("red:", *index.find("red"))
        index.close()
        writer.set("b", "white wine")
        writer.delete("a")
        index = Index(Path(folder) / "index.sqlite")
        with follow(index, node.url):
            wait_for(index, "red", [])
        print("red:", *index.find("red"))
        print("wine:", *index.find("wine"))
        index.close()


def main(arguments: list[str]) -> None:
    """See above."""
    match arguments:
        case []:
            demonstrate()
        case [url, path] if "://" in url:
            index = Index(path)
            with follow(index, url), contextlib.suppress(KeyboardInterrupt):
                threading.Event().wait()
            index.close()
        case [path, word]:
            print(*Index(path).find(word), sep="\n")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except HeadwaterError as error:
        raise SystemExit(str(error)) from None
