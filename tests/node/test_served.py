"""A bucket of a node, and what it has of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headwater.errors import StorageError
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.clock_floor import NAME as CLOCK_FILE
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.connections.connection import Connection
from headwater.node.kv.session import KvSession
from headwater.node.membership.file import NAME as MAP_FILE
from headwater.node.membership.file import MapFile
from headwater.node.refused import CommandRefused
from headwater.node.served import ServedBucket
from headwater.node.server import Server
from headwater.node.storage.store import ArenaFull, Store
from headwater.wire.address import Address
from headwater.wire.dcp import Prepare
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.membership.support import EPOCH, cluster_map


class Two:
    """A node, and another bucket beside the one that it was started with."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.get_running_loop()
        self.stores: list[Store] = []
        self.server = Server(*self._made(folder / "one", "one"), self.loop)
        self.server.listen()
        self.other = ServedBucket(self.server, *self._made(folder / "two", "two"))
        self.other.start(1)
        self.peers: list[socket.socket] = []

    def _made(self, folder: Path, name: str) -> tuple[NodeConfig, Bucket, Committer]:
        config = NodeConfig(data=folder, bucket=name, vbuckets=2, port=0)
        store = Store.open(folder, vbuckets=2)
        self.stores.append(store)
        committer = Committer(store, self.loop)
        bucket = Bucket(name, store, committer)
        bucket.recover(config)
        committer.commit_now()
        return config, bucket, committer

    def connect(self, served: ServedBucket) -> tuple[Connection, KvSession]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        self.peers.append(theirs)
        connection = served.adopt(ours, f"peer:{len(self.peers)}")
        session = connection.session = KvSession(connection, served)
        return connection, session

    async def close(self) -> None:
        await self.other.stop()
        await self.other.committer.drain()
        self.other.committer.close()
        await self.server.close()
        for store in self.stores:
            store.close()
        for peer in self.peers:
            peer.close()


def run(folder: Path, story: Callable[[Two], Awaitable[None]]) -> None:
    async def main() -> None:
        two = Two(folder)
        try:
            await asyncio.wait_for(story(two), 120)
        finally:
            await two.close()

    asyncio.run(main())


def test_a_batch_that_is_lost_disconnects_the_writers_of_its_bucket_and_no_others(tmp_path: Path) -> None:
    async def story(two: Two) -> None:
        (here, _), (there, session) = two.connect(two.server.first), two.connect(two.other)
        here.session.written_gate = session.written_gate = 99  # type: ignore[misc]
        for lost in two.other.committer.on_failure:
            lost(OSError("the disk is gone"), [])
        assert there.is_closed and not here.is_closed

    run(tmp_path, story)


def test_each_bucket_counts_its_own_requests_and_has_its_own_map(tmp_path: Path) -> None:
    async def story(two: Two) -> None:
        one, other = two.server.first, two.other
        other.requests.begin()
        other.requests.ran(1, 1, 5)
        one.requests.settled(5)
        assert 1 not in other.requests.durations, "another bucket's batch was taken for its own"
        other.requests.settled(5)
        assert 1 in other.requests.durations and 1 not in one.requests.durations
        assert b'"name":"two"' in other.cluster.config() and b'"name":"one"' in one.cluster.config()

    run(tmp_path, story)


def test_what_a_map_takes_away_is_not_served_though_there_is_no_room_for_its_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(two: Two) -> None:
        served, nodes = two.server.first, ["127.0.0.1:1", "127.0.0.1:2"]
        lasting, taken = (cluster_map(rev, nodes, [(rev - 1, 2 - rev)] * 2, this=0) for rev in (1, 2))
        await served.membership.take((EPOCH, 1), lasting.replace(b'"default"', b'"one"'))
        prepare = Prepare(by_seqno=0, rev_seqno=1, durability_level=1, key=b"\0k", cas=1 << 16)
        write = served.bucket.durable_writes.begin(0, prepare, None)
        await served.committer.wait(served.committer.wrote())
        monkeypatch.setattr(Store, "full", property(lambda store: True))
        with pytest.raises(CommandRefused, match="too full to obey it"):
            await served.membership.take((EPOCH, 2), taken.replace(b'"default"', b'"one"'))
        assert served.bucket.state(0) is State.ACTIVE and not served.bucket.is_active(0)
        with pytest.raises(CommandRefused) as refused:
            await write.outcome
        assert refused.value.status == Status.SYNC_WRITE_AMBIGUOUS

    run(tmp_path, story)


def test_a_flush_that_was_put_off_empties_its_bucket_only(tmp_path: Path) -> None:
    async def story(two: Two) -> None:
        for served in (two.server.first, two.other):
            served.bucket.store.staging.mutation(0, b"k", b"v", cas=1, rev_seqno=1)
            await served.committer.wait(served.committer.wrote())
        two.other.flush_later(0)
        while two.other.bucket.store.index.items(0):
            await asyncio.sleep(0)
        assert two.server.first.bucket.store.index.items(0) == 1

    run(tmp_path, story)


def test_a_flush_that_was_put_off_waits_for_the_fence_and_for_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(two: Two) -> None:
        served = two.other
        served.bucket.store.staging.mutation(0, b"k", b"v", cas=1, rev_seqno=1)
        await served.committer.wait(served.committer.wrote())
        monkeypatch.setattr("headwater.node.served.RETRY_SECONDS", 0.0)
        refusals = iter([ArenaFull(1)])
        abort_all = served.bucket.durable_writes.abort_all

        def abort(vbucket: int) -> None:
            for refusal in refusals:
                raise refusal
            abort_all(vbucket)

        monkeypatch.setattr(served.bucket.durable_writes, "abort_all", abort)
        served.bucket.fence([0])
        served.flush_later(0)
        for _ in range(10):
            await asyncio.sleep(0)
        assert served.bucket.store.index.items(0) == 1
        served.bucket.unfence(0)
        while served.bucket.store.index.items(0):
            await asyncio.sleep(0)

    run(tmp_path, story)


def test_a_bucket_that_is_dropped_while_a_map_is_written_follows_nobody_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dialers went on for ever, and closed the streams of the next bucket of that name; its folder could not go."""

    async def story(two: Two) -> None:
        served, begun, goes_on = two.other, asyncio.Event(), threading.Event()
        save = MapFile.save

        def slowly(file: MapFile, config: bytes, given_up: list[int]) -> None:
            two.loop.call_soon_threadsafe(begun.set)
            goes_on.wait(60)
            save(file, config, given_up)

        monkeypatch.setattr(MapFile, "save", slowly)
        config = cluster_map(1, ["127.0.0.1:1", "127.0.0.1:2"], [(1, 0)] * 2, this=0)
        taking = asyncio.create_task(served.membership.take((EPOCH, 1), config.replace(b'"default"', b'"two"')))
        await begun.wait()
        stopping = asyncio.create_task(served.stop())
        for _ in range(10):
            await asyncio.sleep(0)
        ended = stopping.done()
        goes_on.set()
        await stopping
        is_written = MAP_FILE in served.bucket.store.disk.names(served.bucket.store.path)
        with pytest.raises(CommandRefused, match="dropped"):
            await taking
        assert not ended and is_written, "the bucket's files may go once it has stopped"
        assert not served.membership.peers.known and not served.replication.wants(0)

    run(tmp_path, story)


def test_a_bucket_that_is_dropped_takes_no_map_and_promises_no_time(tmp_path: Path) -> None:
    async def story(two: Two) -> None:
        served = two.other
        await served.stop()
        config = cluster_map(1, ["127.0.0.1:1", "127.0.0.1:2"], [(1, 0)] * 2, this=0)
        with pytest.raises(CommandRefused, match="dropped"):
            await served.membership.take((EPOCH, 1), config.replace(b'"default"', b'"two"'))
        with pytest.raises(StorageError, match="dropped"):
            await served.bucket.clock_floor.promise(1 << 60)
        names = served.bucket.store.disk.names(served.bucket.store.path)
        assert not {MAP_FILE, CLOCK_FILE} & set(names)

    run(tmp_path, story)


def test_a_node_that_started_again_serves_when_a_peer_brings_the_map_that_leaves_it_alone(tmp_path: Path) -> None:
    """The peer was taken out meanwhile: nobody is left who could be asked, and no operator had more to do."""

    async def story(two: Two) -> None:
        before, peers = two.other, ["127.0.0.1:1", "127.0.0.1:2"]
        of_both = cluster_map(1, peers, [(0, 1)] * 2, this=0).replace(b'"default"', b'"two"')
        await before.membership.take((EPOCH, 1), of_both)
        await before.stop()
        served = two.other = ServedBucket(two.server, before.config, before.bucket, before.committer)
        served.start(1)
        assert not served.bucket.is_active(0)
        of_one = cluster_map(2, peers[:1], [(0,)] * 2).replace(b'"default"', b'"two"')
        await served.membership._receive_map(Address("127.0.0.1", 2), of_one)
        assert served.bucket.is_active(0) and served.bucket.is_active(1)

    run(tmp_path, story)
