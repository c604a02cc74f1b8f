"""Buckets beside a node's first, in real processes: made, selected, dropped, and killed at every step of it."""

from __future__ import annotations

import asyncio
import errno
import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from harness.nodes import until
from headwater import testing
from headwater.errors import StorageError, UnsureFile
from headwater.node.buckets import catalog
from headwater.node.buckets.bucket import Bucket
from headwater.node.buckets.catalog import VBUCKETS_PER_TURN, Catalog, NewBucket, OpenBucket
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.refused import CommandRefused
from headwater.testing.faults import FaultyDisk
from headwater.testing.node import Node, NodeError
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.support import Clock
from tests.node.wire import Client

HELLO = b"".join(code.to_bytes(2) for code in (0x07, 0x0B))
SMALL = b"ep.so\0vbuckets=2"


class Guest(Client):
    """A connection with XERROR, to a bucket."""

    def __init__(self, port: int, bucket: str = "") -> None:
        super().__init__(port)
        assert self.ask(Opcode.HELLO, value=HELLO).status == 0
        if bucket:
            assert self.select(bucket) == 0

    def __enter__(self) -> Guest:
        return self

    @staticmethod
    def frame(opcode: int, **sections: object) -> bytes:
        return Frame(0x80, opcode, **sections).encode()  # type: ignore[arg-type]

    def select(self, bucket: str) -> int:
        return self.ask(Opcode.SELECT_BUCKET, key=bucket.encode()).status

    def create(self, name: str, told: bytes = SMALL) -> int:
        return self.ask(Opcode.CREATE_BUCKET, key=name.encode(), value=told).status

    def drop(self, name: str) -> int:
        return self.ask(Opcode.DELETE_BUCKET, key=name.encode()).status

    def names(self) -> list[str]:
        return self.ask(Opcode.LIST_BUCKETS).value.decode().split()

    def put(self, key: bytes, value: bytes) -> int:
        return self.ask(Opcode.SET, key=key, extras=bytes(8), value=value).status

    def got(self, key: bytes) -> bytes | int:
        found = self.ask(Opcode.GET, key=key)
        return found.status or found.value


def buckets_of(node: Node) -> dict[str, bytes | int]:
    """Ask for `k` in each bucket of a node."""
    with Guest(node.port) as guest:
        found: dict[str, bytes | int] = {}
        for name in guest.names():
            assert guest.select(name) == 0
            found[name] = guest.got(b"k")
        return found


def folders(node: Node) -> list[str]:
    there = node.data / "buckets"
    return sorted(path.name for path in there.iterdir()) if there.exists() else []


def test_each_bucket_has_its_own_documents_and_they_are_there_after_kill_9() -> None:
    with testing.node(vbuckets=2) as node:
        with Guest(node.port) as guest:
            assert guest.put(b"k", b"first") == 0
            assert guest.create("orders") == guest.create("carts", b"ep.so\0vbuckets=4;quota_mib=64") == 0
            assert guest.names() == ["default", "orders", "carts"]
            assert guest.got(b"k") == b"first", "making a bucket selects none"
            assert guest.select("orders") == 0 and guest.got(b"k") == Status.KEY_ENOENT
            assert guest.put(b"k", b"second") == 0
            assert guest.select("carts") == guest.put(b"k", b"third") == 0
            assert guest.ask(Opcode.SET, key=b"k", extras=bytes(8), vbucket=3).status == 0
        told = {"default": b"first", "orders": b"second", "carts": b"third"}
        assert buckets_of(node) == told
        node.kill()
        node.start()
        assert buckets_of(node) == told
        node.stop()
        node.start()
        assert buckets_of(node) == told


def test_answers_of_one_bucket_all_come_though_another_is_selected_right_behind_them() -> None:
    """In one write: quiet and loud writes, the next bucket, more of them; each waits for its own bucket's batch."""
    with testing.node(vbuckets=2) as node, Guest(node.port) as guest:
        assert guest.create("orders") == 0
        frames = []
        for turn in range(20):
            name = b"orders" if turn % 2 else b"default"
            frames.append(guest.frame(Opcode.SELECT_BUCKET, key=name))
            frames += [guest.frame(Opcode.SET, key=b"%d" % turn, extras=bytes(8), value=b"v") for _ in range(3)]
            frames.append(guest.frame(Opcode.GET, key=b"%d" % turn))
        guest.send(b"".join(frames))
        answers = [guest.read() for _ in frames]
        assert [answer.status for answer in answers if answer is not None] == [0] * len(frames)
        for turn in range(20):
            assert guest.select("orders" if turn % 2 else "default") == 0 and guest.got(b"%d" % turn) == b"v"
            assert guest.select("default" if turn % 2 else "orders") == 0 and guest.got(b"%d" % turn) == 1


def test_a_dropped_bucket_is_gone_with_its_connections_and_its_files() -> None:
    with testing.node(vbuckets=2) as node:
        with Guest(node.port) as guest, Guest(node.port) as other:
            assert guest.create("orders") == guest.create("carts") == 0
            assert guest.select("orders") == other.select("orders") == 0 and other.put(b"k", b"v") == 0
            with Guest(node.port, "carts") as third:
                assert guest.drop("orders") == 0, "who drops the bucket that he has is answered"
                assert other.read() is None
                assert third.put(b"k", b"stays") == 0
            assert guest.got(b"k") == Status.NO_BUCKET
            assert guest.select("orders") == guest.drop("orders") == Status.KEY_ENOENT
            assert folders(node) == ["2"]
            assert guest.create("orders") == guest.select("orders") == 0 and guest.got(b"k") == Status.KEY_ENOENT
        assert folders(node) == ["2", "3"], "no folder is used twice"
        node.kill()
        node.start()
        assert buckets_of(node) == {"default": 1, "carts": b"stays", "orders": 1}


def test_a_bucket_that_could_not_be_made_leaves_no_thread_that_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lost(committer: Committer, gate: int) -> bool:
        return False

    async def leave(opened: OpenBucket) -> None:
        raise AssertionError(opened)

    async def story() -> None:
        disk, before = FaultyDisk(), set(threading.enumerate())
        disk.make_directory(Path("/data"))
        config = NodeConfig(data=Path("/data"), vbuckets=2)
        buckets = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=print, leave=leave)
        monkeypatch.setattr(Committer, "wait", lost)
        with pytest.raises(StorageError, match="could not be written"):
            await buckets.create(NewBucket("orders"))
        left = [each.name for each in set(threading.enumerate()) - before if each.name.startswith("commit")]
        assert left == []

    asyncio.run(story())


def test_a_bucket_that_could_not_be_made_gives_its_room_back_on_a_disk_that_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There was no room to write down that it goes, so what it had set aside stayed until the next start: the other
    buckets found a full disk."""
    disk = FaultyDisk(64 << 20)
    fill = Catalog._fill
    taken = 0

    async def late(self: Catalog, opened: OpenBucket, vbuckets: int) -> None:
        nonlocal taken
        await fill(self, opened, vbuckets)
        assert disk.capacity is not None
        taken = disk.capacity - disk.free(Path("/data"))
        disk.capacity = taken  # somebody else took the rest

    async def leave(opened: OpenBucket) -> None:
        raise AssertionError(opened)

    async def story() -> None:
        config = NodeConfig(data=Path("/data"), vbuckets=2)
        buckets = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=lambda _: None, leave=leave)
        with pytest.raises(StorageError, match="was not made"):
            await buckets.create(NewBucket("orders"))

    monkeypatch.setattr(Catalog, "_fill", late)
    asyncio.run(story())
    assert [path for path in disk.files() if "buckets" in path.parts] == []
    assert disk.free(Path("/data")) > taken - (64 << 10) > 1 << 20


def test_the_vbuckets_of_a_new_bucket_are_made_some_at_a_time_and_the_loop_goes_on() -> None:
    seen = list[int]()

    async def watch(found: list[Bucket]) -> None:
        while True:
            seen.append(len(found[0].vbuckets) if found else 0)
            await asyncio.sleep(0)

    async def story(found: list[Bucket]) -> None:
        disk = FaultyDisk()
        disk.make_directory(Path("/data"))
        config = NodeConfig(data=Path("/data"), vbuckets=1024)
        buckets = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=print, leave=left)
        watcher = asyncio.create_task(watch(found))
        await buckets.create(NewBucket("orders"))
        watcher.cancel()
        buckets.close(clean=True)

    async def left(opened: OpenBucket) -> None:
        raise AssertionError(opened)

    with made_buckets() as found:
        asyncio.run(story(found))
    assert len(found[0].vbuckets) == 1024
    assert max(new - old for old, new in pairwise(seen)) == VBUCKETS_PER_TURN


@contextmanager
def made_buckets() -> Iterator[list[Bucket]]:
    """In a block: the buckets that catalogs make."""
    found = list[Bucket]()

    def made(*told: Any, **named: Any) -> Bucket:
        found.append(Bucket(*told, **named))
        return found[-1]

    with mock.patch.object(catalog, "Bucket", made):
        yield found


def test_a_request_that_can_not_be_says_why() -> None:
    with testing.node(vbuckets=2) as node, Guest(node.port) as guest:
        assert guest.create("default") == Status.KEY_EEXISTS
        assert guest.create("a/b") == guest.create("x" * 101) == Status.EINVAL
        for told in (b"vbuckets=3", b"quota_mib=1", b"colour=red", b"state=dead", b"vbuckets=" + b"9" * 20):
            assert guest.create("orders", b"ep.so\0" + told) == Status.EINVAL, told
        assert guest.drop("default") == Status.NOT_SUPPORTED and guest.drop("orders") == Status.KEY_ENOENT
        assert guest.ask(Opcode.DELETE_BUCKET, key=b"orders", value=b"now").status == Status.EINVAL
        assert guest.select("") == 0 and guest.got(b"k") == Status.NO_BUCKET
        assert guest.ask(Opcode.COLLECTIONS_GET_MANIFEST).status == Status.NO_BUCKET
        assert guest.names() == ["default"] and folders(node) == []


def test_there_are_thirty_at_most() -> None:
    with testing.node(vbuckets=1) as node, Guest(node.port) as guest:
        made = [guest.create(f"b{number}", b"ep.so\0vbuckets=1") for number in range(30)]
        assert made == [0] * 29 + [Status.E2BIG]


@pytest.mark.parametrize(
    ("place", "is_there"),
    [
        ("buckets.before_rename=kill@1", False),
        ("buckets.after_rename=kill@1", False),
        ("buckets.listed=kill", False),
        ("buckets.made=kill", False),
        ("buckets.filled=kill", False),
        ("buckets.before_rename=kill@2", False),
        ("buckets.after_rename=kill@2", True),
    ],
)
def test_killed_while_it_is_made_a_bucket_is_there_whole_or_not_at_all(place: str, is_there: bool) -> None:
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": place}) as node:
        with Guest(node.port) as guest:
            guest.send(guest.frame(Opcode.CREATE_BUCKET, key=b"orders", value=SMALL))
            assert guest.read() is None
        assert node.wait() == -9
        node.environment.clear()
        node.start()
        assert buckets_of(node) == {"default": 1} | ({"orders": 1} if is_there else {})
        assert len(folders(node)) == is_there
        with Guest(node.port) as guest:
            assert guest.create("orders") == (Status.KEY_EEXISTS if is_there else 0)
            assert guest.select("orders") == guest.put(b"k", b"v") == 0


@pytest.mark.parametrize(
    ("place", "is_there"),
    [
        ("buckets.before_rename=kill@5", True),
        ("buckets.after_rename=kill@5", False),
        ("buckets.drop_listed=kill", False),
        ("buckets.removing=kill@1", False),
        ("buckets.removing=kill@3", False),
        ("buckets.emptied=kill", False),
        ("buckets.removed=kill", False),
        ("buckets.before_rename=kill@6", False),
    ],
)
def test_killed_while_it_is_dropped_a_bucket_is_whole_or_gone_with_all_its_files(place: str, is_there: bool) -> None:
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": place}) as node:
        with Guest(node.port) as guest:
            assert guest.create("carts") == guest.create("orders") == 0
            for name in ("carts", "orders"):
                assert guest.select(name) == guest.put(b"k", name.encode()) == 0
            guest.send(guest.frame(Opcode.DELETE_BUCKET, key=b"orders"))
            assert guest.read() is None
        assert node.wait() == -9
        node.environment.clear()
        node.start()
        assert buckets_of(node) == {"default": 1, "carts": b"carts"} | ({"orders": b"orders"} if is_there else {})
        assert folders(node) == (["1", "2"] if is_there else ["1"])


@pytest.mark.parametrize("place", ["buckets.before_rename", "buckets.after_rename"])
def test_a_bucket_whose_drop_was_refused_keeps_what_it_acknowledges_from_then_on(place: str) -> None:
    """The folder could not be synced behind the rename, so the list that says "dropping" is in place."""
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": f"{place}=eio@3"}) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders") == 0
            assert guest.drop("orders") == Status.ETMPFAIL
            assert guest.select("orders") == guest.put(b"k", b"acknowledged") == 0
        node.kill()
        node.environment.clear()
        node.start()
        assert buckets_of(node) == {"default": 1, "orders": b"acknowledged"}


def test_a_quota_that_waited_is_not_given_to_a_newer_bucket_of_that_name() -> None:
    """The request meant the documents that are gone; the newer bucket may need more room."""
    opened: dict[str, OpenBucket] = {}

    def serve(opening: OpenBucket) -> None:
        opened[opening.entry.name] = opening

    async def leave(closed: OpenBucket) -> None:
        closed.committer.close()

    async def story() -> None:
        disk = FaultyDisk()
        disk.make_directory(Path("/data"))
        config, loop = NodeConfig(data=Path("/data"), vbuckets=2), asyncio.get_running_loop()
        buckets = Catalog(config, disk, loop, Clock(), serve=serve, leave=leave)
        await buckets.create(NewBucket("orders"))
        changes = buckets.drop("orders"), buckets.create(NewBucket("orders"))
        quota = buckets.set_quota(opened["orders"].bucket, 64)
        *_, refused = await asyncio.gather(*changes, quota, return_exceptions=True)
        assert isinstance(refused, CommandRefused) and refused.status == Status.KEY_ENOENT
        assert buckets.quota_mib("orders") == 0
        await buckets.set_quota(opened["orders"].bucket, 64)
        assert buckets.quota_mib("orders") == 64
        buckets.close(clean=True)

    asyncio.run(story())


def test_a_bucket_of_which_nobody_knows_how_it_is_listed_is_served_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither could the list with its drop be synced nor the one before be put back: the next start goes by either."""
    gone = list[str]()

    async def leave(opened: OpenBucket) -> None:
        gone.append(opened.entry.name)
        opened.committer.close()

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    async def story() -> None:
        disk = FaultyDisk()
        disk.make_directory(Path("/data"))
        config = NodeConfig(data=Path("/data"), vbuckets=2)
        buckets = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=lambda _: None, leave=leave)
        await buckets.create(NewBucket("orders"))
        monkeypatch.setattr(disk, "sync_directory", broken)
        with pytest.raises(StorageError, match="whether it is dropped is not known"):
            await buckets.drop("orders")
        monkeypatch.undo()
        assert gone == ["orders"]
        after = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=lambda _: None, leave=leave)
        after.open()
        after.close(clean=True)

    asyncio.run(story())


def test_a_bucket_that_may_be_there_after_a_restart_is_not_said_to_be_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(opened: OpenBucket) -> None:
        opened.committer.close()

    async def story() -> None:
        disk = FaultyDisk()
        disk.make_directory(Path("/data"))
        config = NodeConfig(data=Path("/data"), vbuckets=2)
        buckets = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=lambda _: None, leave=leave)

        def renamed(source: Path, target: Path) -> None:
            type(disk).rename(disk, source, target)
            if target.name == "BUCKETS" and b"served" in disk.read(target):
                disk.fail(1, errno.EIO, forever=True)

        monkeypatch.setattr(disk, "rename", renamed)
        with pytest.raises(UnsureFile, match="may be in force after a restart"):
            await buckets.create(NewBucket("orders"))
        assert buckets.file.unsure
        disk.heal()
        assert buckets.file.settle()
        after = Catalog(config, disk, asyncio.get_running_loop(), Clock(), serve=lambda _: None, leave=leave)
        after.open()
        assert not after.stores()

    asyncio.run(story())


def test_starts_that_one_bucket_refuses_are_no_branches_of_the_others() -> None:
    """A supervisor tries again every few seconds, and a failover log keeps 25 branches."""
    with testing.node(vbuckets=2) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders") == guest.put(b"k", b"v") == 0
        node.kill()
        node.environment["HEADWATER_FAILPOINTS"] = "log.before_sync=eio@2"  # the first batch of the second bucket
        for _ in range(3):
            with pytest.raises(NodeError, match=r"buckets/1: injected at log.before_sync"):
                node.start()
        node.environment.clear()
        node.start()
        with node.client() as bucket:
            assert bucket.get("k").value == b"v"
            assert len(bucket.failover_log(0)) == 2, "one for the kill -9"


def test_a_list_that_is_damaged_or_missing_and_a_folder_of_another_stop_the_start_and_are_named() -> None:
    with testing.node(vbuckets=2) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders") == guest.create("carts") == 0
        node.stop()
        file = node.data / "BUCKETS"
        good = file.read_bytes()
        file.write_bytes(good.replace(b'"orders"', b'"others"'))
        with pytest.raises(AssertionError, match=r"BUCKETS.*checksum of the list of buckets is wrong"):
            node.start()
        file.unlink()
        with pytest.raises(AssertionError, match="the list is missing, though buckets/ has folders"):
            node.start()
        file.write_bytes(good)
        one, two, away = (node.data / "buckets" / name for name in ("1", "2", "3"))
        one.rename(away)
        with pytest.raises(AssertionError, match='the folder of bucket "orders" is missing'):
            node.start()
        two.rename(one)
        with pytest.raises(AssertionError, match='this is not the folder of bucket "orders"'):
            node.start()
        one.rename(two)
        away.rename(one)
        node.start()
        assert buckets_of(node) == {"default": 1, "orders": 1, "carts": 1}


def test_a_drop_removes_no_folder_that_somebody_put_in_the_place_of_the_buckets() -> None:
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": "buckets.drop_listed=kill"}) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders") == guest.create("carts") == 0
            guest.send(guest.frame(Opcode.DELETE_BUCKET, key=b"orders"))
            assert guest.read() is None
        node.wait()
        kept = node.data / "buckets" / "1"
        (kept / "BUCKET").write_bytes((node.data / "buckets" / "2" / "BUCKET").read_bytes())
        before = sorted(path.name for path in kept.iterdir())
        node.environment.clear()
        node.start()
        assert sorted(path.name for path in kept.iterdir()) == before
        assert "nothing was removed" in node.log and buckets_of(node) == {"default": 1, "carts": 1}


def test_a_folder_of_before_opens_as_it_is_and_its_name_is_taken() -> None:
    with testing.node(vbuckets=2) as node:
        with Guest(node.port) as guest:
            assert guest.put(b"k", b"old") == 0
        node.stop()
        assert not (node.data / "BUCKETS").exists()
        node.start()
        with Guest(node.port) as guest:
            assert guest.create("orders") == 0
        node.stop()
        node.options["bucket"] = "orders"
        with pytest.raises(AssertionError, match="another name: this node has such a bucket already"):
            node.start()


def test_a_bucket_over_its_quota_refuses_documents_and_the_others_go_on() -> None:
    with testing.node(vbuckets=2) as node, Guest(node.port) as guest:
        assert guest.create("small", b"ep.so\0vbuckets=2;quota_mib=64") == guest.select("small") == 0
        value, status, number = bytes(range(256)) * 4096, 0, 0
        while status == 0 and number < 200:
            status = guest.put(b"k%d" % number, value)
            number += 1
        assert status == Status.ETMPFAIL and 20 < number < 64
        assert sum(path.stat().st_blocks * 512 for path in (node.data / "buckets" / "1").iterdir()) <= 65 << 20
        assert guest.got(b"k0") == value
        assert guest.select("default") == guest.put(b"k", value) == 0


def limited(guest: Guest, mib: float) -> int:
    """Give the selected bucket a quota."""
    value = str(int(mib * (1 << 20))).encode()
    return guest.ask(Opcode.SET_PARAM, extras=(1).to_bytes(4), key=b"max_size", value=value).status


def test_a_quota_is_changed_at_once_and_for_good_and_is_never_less_than_what_is_there() -> None:
    with testing.node(vbuckets=2, segment_mib=32) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders", b"ep.so\0vbuckets=2;quota_mib=64") == guest.create("carts") == 0
            assert guest.select("orders") == 0
            filled = [guest.put(b"k%d" % number, bytes(4 << 20)) for number in range(20)]
            assert Status.ETMPFAIL in filled
            assert limited(guest, 64.5) == limited(guest, 1) == Status.EINVAL
            assert limited(guest, 256) == 0
            until(lambda: guest.put(b"more", bytes(4 << 20)) == 0, "there is room again")
            for number in range(8):
                assert guest.put(b"more%d" % number, bytes(4 << 20)) == 0
            below = guest.ask(Opcode.SET_PARAM, extras=(1).to_bytes(4), key=b"max_size", value=b"%d" % (64 << 20))
            assert below.status == Status.EINVAL and b"compact, try again" in below.value
        node.kill()
        node.start()
        with Guest(node.port, "orders") as guest:
            assert guest.put(b"again", bytes(4 << 20)) == 0
            assert guest.names() == ["default", "orders", "carts"], "in the order in which they were made"
            assert limited(guest, 0) == 0
        with Guest(node.port, "default") as guest:
            assert limited(guest, 128) == Status.NOT_SUPPORTED
            assert guest.ask(Opcode.SET_PARAM, extras=(1).to_bytes(4), key=b"x", value=b"1").status == Status.EINVAL


def test_a_bucket_that_is_given_a_quota_may_use_it_for_documents() -> None:
    """Half of the quota was kept free, by the size of the disk, until the next start."""
    with testing.node(vbuckets=2) as node, Guest(node.port) as guest:
        assert guest.create("orders") == guest.select("orders") == 0
        stored = sum(guest.put(b"k%d" % number, bytes(1 << 20)) == 0 for number in range(33))
        quota = next(mib for mib in range(64, 256, 4) if limited(guest, mib) == 0)
        while guest.put(b"k%d" % stored, bytes(1 << 20)) == 0:
            stored += 1
        assert 0.7 * quota < stored < quota


@pytest.mark.parametrize(("place", "wanted"), [("before", 100), ("after", 200)])
def test_killed_while_a_quota_is_changed_it_is_the_old_one_or_the_new_one(place: str, wanted: int) -> None:
    point = f"buckets.{place}_rename=kill@3"  # a creation takes two
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": point}) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders", b"ep.so\0vbuckets=2;quota_mib=100") == guest.select("orders") == 0
            value = b"%d" % (200 << 20)
            guest.send(guest.frame(Opcode.SET_PARAM, extras=(1).to_bytes(4), key=b"max_size", value=value))
            assert guest.read() is None
        assert node.wait() == -9
        node.environment.clear()
        node.start()
        assert json.loads(page(node, "/pools/default/buckets/orders"))["quota"] == {
            "ram": wanted << 20,
            "rawRAM": wanted << 20,
        }


def page(node: Node, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{node.address}{path}", timeout=120) as answer:
        return bytes(answer.read())


def test_the_list_says_what_it_says_on_disk() -> None:
    with testing.node(vbuckets=2) as node:
        with Guest(node.port) as guest:
            assert guest.create("orders", b"ep.so\0vbuckets=4;quota_mib=100") == 0
        _, body = Path(node.data / "BUCKETS").read_bytes().split(b"\n", 1)
        (told,) = json.loads(body)["buckets"]
        assert {**told, "uuid": ""} == {
            **{"name": "orders", "number": 1, "uuid": "", "vbuckets": 4, "quota_mib": 100, "state": "served"}
        }


def test_of_two_that_drop_a_bucket_the_later_one_does_not_drop_what_was_made_of_its_name_between_them() -> None:
    served = list[Bucket]()

    async def leave(opened: OpenBucket) -> None:
        opened.committer.close()

    async def story() -> None:
        disk = FaultyDisk()
        disk.make_directory(Path("/data"))
        config = NodeConfig(data=Path("/data"), vbuckets=2)
        loop = asyncio.get_running_loop()
        buckets = Catalog(config, disk, loop, Clock(), serve=lambda opened: served.append(opened.bucket), leave=leave)
        await buckets.create(NewBucket("orders"))
        meant = served[0]
        changes = (buckets.drop("orders", meant), buckets.create(NewBucket("orders")), buckets.drop("orders", meant))
        _, _, refused = await asyncio.gather(*changes, return_exceptions=True)
        assert isinstance(refused, CommandRefused) and refused.status == Status.KEY_ENOENT
        await buckets.drop("orders", served[1])
        buckets.close(clean=True)

    asyncio.run(story())
