"""Buckets that change, and tables as another implementation than ours reads them."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

from headwater.pipelines.mirror import MirrorProgress, mirror
from headwater.testing.node import Node
from headwater.wire.opcodes import Opcode
from tests.lake.s3_server import options_of
from tests.node.aware import Aware, manifest
from tests.node.replication.support import call

VBUCKETS = 4


def table(path: str | Path, *columns: str) -> dict[Any, Any]:
    """The table's rows by key, read with Polars; a key with two rows fails."""
    rows = pl.read_delta(
        str(path), columns=["key", *(columns or ("value",))], storage_options=options_of(path)
    ).to_dicts()
    found = {row.pop("key"): row if columns else row["value"] for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


def documents(bucket: Node) -> dict[bytes, bytes]:
    """Return the node's documents by its own history."""
    held: dict[bytes, bytes] = {}
    with bucket.client() as client, client.changes(until="now") as changes:
        for change in changes:
            if type(change).__name__ == "Mutation":
                held[change.key] = change.value
            elif type(change).__name__ in ("Deletion", "Expiration"):
                held.pop(change.key, None)
    return held


KEEP_TOMBSTONES, PURGE = bytes(7) + b"\1" + bytes(16), bytes(16) + b"\1" + bytes(7)


def compact(bucket: Node, vbuckets: int, which: bytes) -> None:
    """Let the node forget versions that were replaced, and with PURGE its deletions."""
    for vbucket in range(vbuckets):
        assert call(bucket, Opcode.COMPACT_DB, extras=which, vbucket=vbucket).status == 0


def missed(bucket: Node) -> dict[int, int]:
    """Delete a0 to a29, write on, and purge the deletions; return up to where, by vbucket."""
    with bucket.client() as client:
        client.delete_many([f"a{i}" for i in range(30)])
        client.set_many((f"b{i}", b"v") for i in range(40))
    compact(bucket, 4, PURGE)
    with bucket.client() as client:
        stats = client.vbucket_stats("vbucket-seqno")
    return {vb: int(told["purge_seqno"]) for vb, told in stats.items() if int(told["purge_seqno"])}


def seqnos(bucket: Node) -> int:
    with bucket.client() as client:
        return sum(client.seqnos().values())


def change(bucket: Node, name: str) -> None:
    """Overwrite some of `a`, remove some of it, and add some of one's own."""
    with bucket.client() as client:
        assert client.set_many((f"a{i}", name.encode()) for i in range(20)) == {}
        assert client.delete_many([f"a{i}" for i in range(20, 40)]) == {}
        assert client.set_many((f"{name}{i}", b"new") for i in range(30)) == {}


def folded(place: str | Path) -> dict[bytes, bytes]:
    """The documents that a change log tells of, by the rule of the guide."""
    rows = pl.read_delta(str(place), storage_options=options_of(place)).sort("batch", "vbucket", "seqno").to_dicts()
    back = [row for row in rows if row["event"] == "rollback"]
    held: dict[bytes, bytes] = {}
    for row in rows:
        void = (
            r["vbucket"] == row["vbucket"] and r["batch"] > row["batch"] and r["seqno"] < row["seqno"] for r in back
        )
        if row["event"] == "rollback" or any(void):
            continue
        if row["event"] == "mutation":
            held[row["key"]] = row["value"]
        else:
            held.pop(row["key"], None)
    return held


def becomes(bucket: Node, uid: int, **collections: int) -> None:
    with Aware(bucket.port) as client:
        assert client.becomes(manifest(uid, **collections)) == 0


def put_into(bucket: Node, collection: int, *keys: str, value: str = "{}") -> None:
    """Store documents of one collection, each in the vbucket of its key."""
    with Aware(bucket.port) as client:
        for key in keys:
            assert client.put(key.encode(), value.encode(), collection, vbucket=vbucket_of(key)) == 0


def vbucket_of(key: str) -> int:
    return (zlib.crc32(key.encode()) >> 16 & 0x7FFF) % VBUCKETS


class Running:
    """A mirror in a thread, and what it told; without worker processes unless it is asked for some."""

    def __init__(self, url: str, place: Path, **asked: Any) -> None:
        self.told = MirrorProgress()
        self.problems: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(url, place), kwargs=asked)
        self._thread.start()

    def _run(self, url: str, place: Path, **asked: Any) -> None:
        usual = {"workers": 0, "interval_seconds": 0.05, "retry_seconds": 600}
        mirror(None, url, place, progress=self._note, stop=self._stop.is_set, **(usual | asked))

    def _note(self, told: MirrorProgress) -> None:
        self.told = told
        self.problems += [told.problem] if told.problem else []

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not true():
            assert self._thread.is_alive() and time.monotonic() < deadline, (self.told, self.problems)
            self._stop.wait(0.05)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
