"""The work that `make bench-scale` measures: each function does some at a size, and returns the CPU seconds it took."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.growth import CONSTANT, LINEAR, Axis
from headwater import testing
from headwater.backup.archive import Archive, folder
from headwater.backup.manifest import MANIFEST, BackupManifest, BackupPart, digest
from headwater.backup.place import Folder
from headwater.lake import checkpoints
from headwater.lake.index import Hashes, Indexes, index_of
from headwater.lake.log import FOLDER, TableLog, creation
from headwater.lake.shape import fields
from headwater.lake.store import TableStore
from headwater.lake.upkeep import checkpoint
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.scans import ScanPlan
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.storage.newest import NewestSeqnos
from headwater.node.storage.store import Store
from headwater.node.vbucket.collection_events import EVERYTHING
from headwater.protocol.dcp.position import Position
from headwater.spark.nodes import SourceNodes
from headwater.spark.settings import parse
from headwater.testing.faults import FaultyDisk
from headwater.wire.manifest import CollectionsManifest

VBUCKETS = 64


def spent(work: Callable[[], object]) -> float:
    """Do some work; return the CPU seconds of this process that it took."""
    before = time.process_time()
    work()
    return time.process_time() - before


# --- collections ------------------------------------------------------------------------------------------------------


def on_bucket(vbuckets: int, work: Callable[[Bucket], Awaitable[float]]) -> float:
    """Run some work on a bucket in memory; return its seconds."""

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
    """Return a manifest with `collections` collections in a scope beside the default one."""
    default: dict[str, Any] = {"uid": "0", "name": "_default", "collections": [{"uid": "0", "name": "_default"}]}
    made = [{"uid": f"{8 + number:x}", "name": f"c{number}"} for number in range(collections)]
    return json.dumps({"uid": "1", "scopes": [default, {"uid": "8", "name": "s", "collections": made}]}).encode()


def set_collections(size: int) -> float:
    """Set one manifest with `size` collections, in all vbuckets of a bucket."""

    async def work(bucket: Bucket) -> float:
        before, made = time.process_time(), CollectionsManifest.decode(manifest(size))
        await bucket.collections.change(lambda _: made)
        return time.process_time() - before

    return on_bucket(VBUCKETS, work)


def add_collection(size: int) -> float:
    """Add one collection to `size` others: each vbucket gets its event, and their fold is computed once."""

    async def work(bucket: Bucket) -> float:
        made = CollectionsManifest.decode(manifest(size))
        await bucket.collections.change(lambda _: made)
        before = time.process_time()
        await bucket.collections.change(bucket.collections.with_collection("s", "more", None))
        return time.process_time() - before

    return on_bucket(1024, work)


def read_collections(size: int) -> float:
    """Read the events of `size` collections, as at a start."""

    async def work(bucket: Bucket) -> float:
        made = CollectionsManifest.decode(manifest(size))
        await bucket.collections.change(lambda _: made)
        return spent(lambda: [vbucket.read_events() for vbucket in bucket.vbuckets.values()])

    return on_bucket(VBUCKETS, work)


def first_newest(size: int) -> float:
    """Ask for the newest seqno of each vbucket for the first time, where `size` collections were made and dropped."""

    async def work(bucket: Bucket) -> float:
        for number in range(size):
            name = f"c{number}"
            await bucket.collections.change(bucket.collections.with_collection("_default", name, None))
            await bucket.collections.change(
                partial(CollectionsManifest.without_collection, scope="_default", name=name)
            )
        newest = NewestSeqnos(bucket.store.index, bucket.store.slots)
        shown = bucket.vbuckets[0].collections.choice(EVERYTHING, 2 * size)
        return spent(lambda: [newest.seqno(vb, shown) for vb in bucket.vbuckets])

    return on_bucket(VBUCKETS, work)


def decode_manifest(size: int) -> float:
    """Decode the text of a manifest with `size` scopes."""
    scopes: list[dict[str, Any]] = json.loads(manifest(0))["scopes"]
    scopes += [{"uid": f"{9 + number:x}", "name": f"s{number}"} for number in range(size)]
    text = json.dumps({"uid": "1", "scopes": scopes}).encode()
    return spent(lambda: CollectionsManifest.decode(text))


# --- scans ------------------------------------------------------------------------------------------------------------


def scan(size: int) -> float:
    """Scan the whole range of a vbucket with `size` keys, which were written in another order."""

    async def nobody() -> None:
        return

    async def work(bucket: Bucket) -> float:
        for number in range(size):
            key = b"key-%08d" % (number * 7919 % size)
            bucket.store.staging.mutation(0, key, b"value", cas=1, rev_seqno=1)
            if number % 10_000 == 0:
                await bucket.committer.wait(bucket.committer.wrote())
        await bucket.committer.wait(bucket.committer.wrote())
        before, range_scan = time.process_time(), bucket.scans.create(bucket.vbuckets[0], ScanPlan(), 0.0)
        count = 0
        while await range_scan.next(nobody, 0) is not None:
            count += 1
        if count != size:
            raise AssertionError(f"{count} of {size} keys")
        return time.process_time() - before

    return on_bucket(1, work)


# --- the mirror -------------------------------------------------------------------------------------------------------


def indexes(size: int) -> float:
    """Look up a batch in the index of each of `size` files, once the indexes are mapped."""
    nothing = Hashes(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    with tempfile.TemporaryDirectory() as folder:
        of_table = Indexes(TableStore(folder), "table", bytes(16))
        for number in range(size):
            of_table.write(f"{number}.parquet", index_of(nothing, np.zeros(1, np.int64)), 1)
        return spent(lambda: [of_table.of(f"{number}.parquet").find(nothing) for number in range(size)])


def of_removals(size: int, work: Callable[[TableLog], object]) -> float:
    """Do some work on a table that keeps `size` removals of files, none of which has expired."""
    with tempfile.TemporaryDirectory() as folder:
        log, now = TableLog(TableStore(folder)), int(1000 * time.time())
        log.refresh()
        log.commit(creation(fields(), {}, "table"), "CREATE TABLE")
        gone = ({"path": f"{number:032x}.parquet", "deletionTimestamp": now, "size": 1} for number in range(size))
        removed = checkpoints.removals(log.store, [], gone)
        checkpoints.write(log.store, FOLDER, log.state.version, log.state.actions(), removed)
        return spent(lambda: work(log))


def start(size: int) -> float:
    """Start to follow the log of such a table, twenty times."""
    return of_removals(size, lambda log: [TableLog(log.store).refresh() for _ in range(20)])


def observe(size: int) -> float:
    """Let the planner look at a node with `size` vbuckets, of which one was written to, twenty times."""
    with testing.node(vbuckets=size) as node, node.client() as client:
        nodes = SourceNodes(parse({"url": node.url}, streaming=True))
        nodes.observe()
        total = 0.0
        for number in range(20):
            client.set(b"key", b"%d" % number)
            total += spent(lambda: nodes.observe(resting=range(size)))
        nodes.close()
        return total


def archive(size: int) -> float:
    """Read an archive of `size` increments of 1,024 vbuckets, as at the beginning and twice at the end of a backup."""
    with tempfile.TemporaryDirectory() as folder_path:
        place = Folder(Path(folder_path))
        starts = dict.fromkeys(range(1024), 0)
        ends = {vb: Position(vb, 1, 9, 9, 9, ((1, 0),)) for vb in starts}
        digests = {}
        for number in range(size):
            made = f"20260101T000000Z-increment+{number:04d}"
            part = BackupPart(starts, ends, (), {})
            data = BackupManifest(made, "", "", "default", 1024, "", "", part).to_bytes()
            place.write(folder(made, MANIFEST), data)
            digests[made] = digest(data)
        Archive(place).write_index(digests)

        def read() -> None:
            first = Archive(place)
            Archive(place, Archive(place, first))

        return spent(read)


AXES = {
    "set-collections": Axis(f"a manifest of N collections in {VBUCKETS} vbuckets", 64, LINEAR, set_collections),
    "add-collection": Axis("a collection more beside N, in 1,024 vbuckets", 16, LINEAR, add_collection),
    "read-collections": Axis(f"a start with N collections in {VBUCKETS} vbuckets", 64, LINEAR, read_collections),
    "first-newest": Axis(f"a first look at N dropped collections in {VBUCKETS} vbuckets", 50, LINEAR, first_newest),
    "scan": Axis("a range scan of a vbucket with N keys", 25_000, LINEAR, scan),
    "indexes": Axis("a batch's look into N indexes", 128, LINEAR, indexes),
    "start": Axis("twenty starts on a table that keeps N removals", 10_000, CONSTANT, start),
    "checkpoint": Axis(
        "a checkpoint of a table that keeps N removals", 10_000, LINEAR, lambda n: of_removals(n, checkpoint)
    ),
    "observe": Axis("twenty looks of a planner at N vbuckets, one written to", 64, LINEAR, observe),
    "archive": Axis("the manifests of N backups of 1,024 vbuckets, in a run", 4, LINEAR, archive),
    "decode-manifest": Axis("a manifest of N scopes, decoded", 1000, LINEAR, decode_manifest),
}
