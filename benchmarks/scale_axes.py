"""The work that `make bench-scale` measures: each function does some at a size, and returns the CPU seconds it took."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.scale import LINEAR, Axis
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.scans import ScanPlan
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from headwater.wire.manifest import CollectionsManifest

VBUCKETS = 64


def spent(work: Callable[[], object]) -> float:
    """CPU seconds of this process for some work."""
    before = time.process_time()
    work()
    return time.process_time() - before


# --- collections ------------------------------------------------------------------------------------------------------


def on_bucket(vbuckets: int, work: Callable[[Bucket], Awaitable[float]]) -> float:
    """Run some work on a bucket in memory."""

    async def run() -> float:
        store = Store.open("/data", vbuckets=vbuckets, disk=FaultyDisk(), segment_bytes=16 << 20, arena_bytes=8 << 20)
        bucket = Bucket("default", store, Committer(store, asyncio.get_running_loop()))
        bucket.recover(NodeConfig(vbuckets=vbuckets))
        try:
            return await work(bucket)
        finally:
            bucket.committer.close()
            store.close()

    return asyncio.run(run())


def manifest(collections: int) -> bytes:
    """A manifest of so many collections beside the default one, in a scope."""
    default: dict[str, Any] = {"uid": "0", "name": "_default", "collections": [{"uid": "0", "name": "_default"}]}
    made = [{"uid": f"{8 + number:x}", "name": f"c{number}"} for number in range(collections)]
    return json.dumps({"uid": "1", "scopes": [default, {"uid": "8", "name": "s", "collections": made}]}).encode()


def set_collections(size: int) -> float:
    """One manifest of so many collections, in all vbuckets of a bucket."""

    async def work(bucket: Bucket) -> float:
        before, made = time.process_time(), CollectionsManifest.decode(manifest(size))
        await bucket.collections.change(lambda _: made)
        return time.process_time() - before

    return on_bucket(VBUCKETS, work)


def add_collection(size: int) -> float:
    """One collection more beside so many: each vbucket gets its event, and what they fold to is made once."""

    async def work(bucket: Bucket) -> float:
        made = CollectionsManifest.decode(manifest(size))
        await bucket.collections.change(lambda _: made)
        before = time.process_time()
        await bucket.collections.change(bucket.collections.with_collection("s", "more", None))
        return time.process_time() - before

    return on_bucket(1024, work)


def read_collections(size: int) -> float:
    """The events of so many collections, read as at a start."""

    async def work(bucket: Bucket) -> float:
        made = CollectionsManifest.decode(manifest(size))
        await bucket.collections.change(lambda _: made)
        return spent(lambda: [each.read_events() for each in bucket.vbuckets.values()])

    return on_bucket(VBUCKETS, work)


def decode_manifest(size: int) -> float:
    """The text of a manifest with so many scopes."""
    scopes: list[dict[str, Any]] = json.loads(manifest(0))["scopes"]
    scopes += [{"uid": f"{9 + number:x}", "name": f"s{number}"} for number in range(size)]
    text = json.dumps({"uid": "1", "scopes": scopes}).encode()
    return spent(lambda: CollectionsManifest.decode(text))


# --- scans ------------------------------------------------------------------------------------------------------------


def scan(size: int) -> float:
    """A range scan of all keys of a vbucket with so many, written in another order."""

    async def nobody() -> None:
        return

    async def work(bucket: Bucket) -> float:
        for number in range(size):
            key = b"key-%08d" % (number * 7919 % size)
            bucket.store.staging.mutation(0, key, b"value", cas=1, rev_seqno=1)
            if number % 10_000 == 0:
                await bucket.committer.wait(bucket.committer.wrote())
        await bucket.committer.wait(bucket.committer.wrote())
        before, found = time.process_time(), bucket.scans.create(bucket.vbuckets[0], ScanPlan(), 0.0)
        count = 0
        while await found.next(nobody, 0) is not None:
            count += 1
        if count != size:
            raise AssertionError(f"{count} of {size} keys")
        return time.process_time() - before

    return on_bucket(1, work)


AXES = {
    "set-collections": Axis(f"a manifest of N collections in {VBUCKETS} vbuckets", 64, LINEAR, set_collections),
    "add-collection": Axis("a collection more beside N, in 1,024 vbuckets", 16, LINEAR, add_collection),
    "read-collections": Axis(f"a start with N collections in {VBUCKETS} vbuckets", 64, LINEAR, read_collections),
    "scan": Axis("a range scan of a vbucket with N keys", 25_000, LINEAR, scan),
    "decode-manifest": Axis("a manifest of N scopes, decoded", 1000, LINEAR, decode_manifest),
}
