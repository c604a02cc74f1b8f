"""The collections of a node's bucket over crashes, and of documents whose collection is dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from headwater import testing
from headwater.errors import DiskFull, StorageError, UnsureFile
from headwater.node.buckets.collections import RETRY_SECONDS, Collections, CollectionsFile
from headwater.node.process.run_queue import RunQueue
from headwater.node.storage.staging import Staging
from headwater.testing.node import Node
from headwater.wire.manifest import EMPTY, CollectionsManifest, ManifestRefused
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from headwater.wire.vbucket import State
from tests.node.aware import Aware, everything, manifest
from tests.node.upkeep.test_compactor import Desk, run

A, B = 8, 9


def uid_of(node: Node) -> str:
    with Aware(node.port) as client:
        return str(json.loads(client.ask(Opcode.COLLECTIONS_GET_MANIFEST).value)["uid"])


def test_what_was_answered_is_there_after_kill_9() -> None:
    with testing.node(vbuckets=2) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A, b=B)) == 0
            assert client.put(b"k", b"kept", A) == client.put(b"k", b"default") == 0
            assert client.becomes(manifest(2, a=A)) == 0
        before = everything(node.port)
        node.kill()
        node.start()
        assert uid_of(node) == "2"
        with Aware(node.port) as client:
            assert (client.got(b"k", A), client.got(b"k"), client.got(b"k", B)) == (b"kept", b"default", 0x88)
            assert client.becomes(manifest(3, a=A, c=10)) == client.put(b"k", b"v", 10) == 0
        # Of the dropped collection the drop is left, which replaced its creation.
        assert [each for each in everything(node.port) if each[0] == "event"][: len(before)] == [
            ("event", 1, 3, 8, 0, b"shop"),
            ("event", 2, 0, A, 0, b"a"),
            ("event", 6, 1, B, 2, b""),
            ("event", 7, 0, 10, 3, b"c"),
        ]


@pytest.mark.parametrize(
    ("place", "nth"),
    [
        ("collections.before_rename", 2),
        ("collections.after_rename", 2),
        ("collections.before_events", 4 + 1),
        ("collections.before_events", 4 + 3),
    ],
)
def test_killed_while_the_manifest_changes_a_node_has_the_old_one_or_the_new_one_whole(place: str, nth: int) -> None:
    with testing.node(vbuckets=4, environment={"HEADWATER_FAILPOINTS": f"{place}=kill@{nth}"}) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A)) == 0
            client.send(b"\x80\xb9" + bytes(6) + len(manifest(2, a=A, b=B)).to_bytes(4) + bytes(12))
            client.send(manifest(2, a=A, b=B))
            assert client.read() is None
        assert node.wait() == -9
        node.environment.clear()
        node.start()
        uid = uid_of(node)
        assert uid == ("1" if place == "collections.before_rename" else "2")
        with Aware(node.port) as client:
            for vb in range(4):
                assert client.put(b"k", b"v", A, vbucket=vb) == 0
                assert client.put(b"k", b"v", B, vbucket=vb) == (0 if uid == "2" else Status.UNKNOWN_COLLECTION)


def test_a_change_that_was_refused_since_the_folder_could_not_be_synced_is_not_made_by_a_restart() -> None:
    """By then another node may have given the same id to another name."""
    with testing.node(vbuckets=2, environment={"HEADWATER_FAILPOINTS": "collections.after_rename=eio@2"}) as node:
        with Aware(node.port) as client:
            assert client.becomes(manifest(1, a=A)) == 0
            assert client.becomes(manifest(2, a=A, b=B)) == Status.ETMPFAIL
        node.kill()
        node.environment.clear()
        node.start()
        assert uid_of(node) == "1"


def test_a_damaged_file_stops_the_start_and_is_named() -> None:
    with testing.node(vbuckets=2) as node:
        with Aware(node.port) as client:
            client.becomes(manifest(1, a=A))
        node.stop()
        file = node.data / "COLLECTIONS"
        file.write_bytes(file.read_bytes().replace(b'"a"', b'"b"'))
        with pytest.raises(AssertionError, match=r"COLLECTIONS.*checksum of the collections manifest is wrong"):
            node.start()


def test_a_folder_is_of_the_new_format_only_once_it_has_collections() -> None:
    with testing.node(vbuckets=2) as node:
        with Aware(node.port) as client:
            client.put(b"k", b"v")
            assert (node.data / "MANIFEST").read_bytes().startswith(b"headwater-store 2 ")
            client.becomes(manifest(1, a=A))
        assert (node.data / "MANIFEST").read_bytes().startswith(b"headwater-store 3 ")
        node.kill()
        node.start()
        with Aware(node.port) as client:
            assert client.got(b"k") == b"v"
        assert (node.data / "MANIFEST").read_bytes().startswith(b"headwater-store 3 ")


def test_ids_of_dropped_collections_are_never_given_again() -> None:
    with testing.node(vbuckets=2) as node, Aware(node.port) as client:
        assert client.becomes(manifest(1, a=A, b=B)) == 0
        client.put(b"k", b"old", A)
        assert client.becomes(manifest(2, b=B)) == 0
        assert client.becomes(manifest(3, a=A, b=B)) == Status.CANNOT_APPLY_COLLECTIONS_MANIFEST
        assert client.becomes(manifest(3, a=10, b=B)) == 0
        assert (client.got(b"k", A), client.got(b"k", 10)) == (Status.UNKNOWN_COLLECTION, Status.KEY_ENOENT)
        node.restart()
        with Aware(node.port) as again:
            assert again.becomes(manifest(4, a=10, b=B, c=A)) == Status.CANNOT_APPLY_COLLECTIONS_MANIFEST


def test_documents_of_a_dropped_collection_leave_the_disk_with_the_next_compaction() -> None:
    with testing.node(vbuckets=1) as node:
        with Aware(node.port) as client:
            client.becomes(manifest(1, a=A, b=B))
            for number in range(300):
                client.put(b"%d" % number, b"x" * 100, A)
            client.put(b"kept", b"v", B)
            client.put(b"kept", b"v")
            client.becomes(manifest(2, b=B))
            before = compacted(client, node)
            assert (client.got(b"kept"), client.got(b"kept", B)) == (b"v", b"v")
        seen = everything(node.port)
        node.kill()
        node.start()
        assert everything(node.port, name=b"again") == seen
        assert before < 30_000
        assert [each[0] for each in seen] == ["marker", "event", "event", "set", "set", "event", "end"]


def compacted(client: Aware, node: Node) -> int:
    """Bytes of the frames that are left."""
    extras = bytes(16) + b"\1" + bytes(7)
    assert client.ask(Opcode.COMPACT_DB, extras=extras).status == 0
    return sum(path.read_bytes().rstrip(b"\0").__len__() for path in node.data.glob("*.log"))


class Turns(RunQueue):
    """A queue in which each look at the clock ends a slice, and something happens at the first turn."""

    slice_seconds = 0.0

    def __init__(self, loop: asyncio.AbstractEventLoop, happens: Callable[[], object]) -> None:
        super().__init__(loop)
        self.slice_seconds, self.taken, self._happens = -1.0, 0, happens

    async def turn(self) -> None:
        self.taken += 1
        if self.taken == 1:
            self._happens()
        await asyncio.sleep(0)


@pytest.mark.parametrize("first", [State.REPLICA, State.ACTIVE])
def test_a_change_gives_way_between_vbuckets_and_goes_by_what_they_are_then(first: State) -> None:
    async def story(desk: Desk) -> None:
        one, other = desk.bucket.vbuckets[0], desk.bucket.vbuckets[1]
        other.set_state(State.REPLICA if first is State.ACTIVE else State.ACTIVE)

        def happens() -> None:
            other.set_state(first)

        collections = desk.bucket.collections
        queue = collections.run_queue = Turns(desk.loop, happens)
        made = await collections.change(collections.with_collection("_default", "carts", None))
        assert queue.taken >= 1 and one.collections.uid == made.uid == 1
        assert one.durable_seqno == one.high_seqno  # what was answered is on disk
        assert other.collections.uid == (1 if first is State.ACTIVE else 0)

    run(story)


def test_a_vbucket_that_refused_writes_for_a_hand_over_is_brought_up_when_that_breaks_off() -> None:
    async def story(desk: Desk) -> None:
        held, collections = desk.bucket.vbuckets[0], desk.bucket.collections
        held.back_up(True)
        await collections.change(collections.with_collection("_default", "carts", None))
        assert held.collections.uid == 0
        held.back_up(False)
        async with asyncio.timeout(10):
            while not held.collections.uid or held.durable_seqno != held.high_seqno:
                await asyncio.sleep(0.001)

    run(story)


def test_a_vbucket_that_becomes_active_while_a_change_is_written_has_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        late, collections, wait = desk.bucket.vbuckets[1], desk.bucket.collections, desk.committer.wait
        late.set_state(State.REPLICA)

        async def waits(gate: int) -> bool:
            late.set_state(State.ACTIVE)
            return await wait(gate)

        monkeypatch.setattr(desk.committer, "wait", waits)
        made = await collections.change(collections.with_collection("_default", "carts", None))
        assert late.collections.uid == made.uid == 1 and late.durable_seqno == late.high_seqno

    run(story)


def served(desk: Desk) -> list[int]:
    """The collections that kernels may serve, as the next request finds them."""
    collections = desk.bucket.collections
    if collections.is_stale:
        collections.refresh()
    return list(map(int, collections.plain))


def test_kernels_serve_the_collections_without_a_ttl_that_the_node_and_every_active_vbucket_have() -> None:
    async def story(desk: Desk) -> None:
        collections, late = desk.bucket.collections, desk.bucket.vbuckets[1]
        assert served(desk) == [0]
        late.set_state(State.REPLICA)
        await collections.change(lambda _: CollectionsManifest.decode(manifest(1, a=A, b=(B, 100))))
        assert served(desk) == [0, A]
        # Promoted, it lacks the collection until the node has staged its events.
        late.set_state(State.ACTIVE)
        assert served(desk) == [0]
        assert collections._settling is not None
        await collections._settling
        assert served(desk) == [0, A]
        # A drop is in force with the manifest, before any vbucket has its event.
        collections.manifest = CollectionsManifest.decode(manifest(2, b=(B, 100)))
        assert served(desk) == [0]

    run(story)


def test_kernels_serve_no_collection_whose_event_was_lost_with_its_batch() -> None:
    async def story(desk: Desk) -> None:
        collections = desk.bucket.collections
        await desk.committer.wait(desk.committer.gate())
        collections.manifest = CollectionsManifest.decode(manifest(1, a=A))
        for vb in desk.bucket.vbuckets:
            collections._bring_up(vb)
        assert served(desk) == [0, A]
        desk.disk.fail(1)
        assert not await desk.committer.wait(desk.committer.wrote())
        desk.disk.heal()
        assert [A in vbucket.collections.alive for vbucket in desk.bucket.vbuckets.values()] == [False, False]
        assert served(desk) == [0]

    run(story)


def test_a_vbucket_that_lacks_a_collection_takes_it_from_the_kernels_as_long_as_it_is_there() -> None:
    async def story(desk: Desk) -> None:
        collections, late = desk.bucket.collections, desk.bucket.vbuckets[1]
        late.back_up(True)  # so it gets no event
        await collections.change(lambda _: CollectionsManifest.decode(manifest(1, a=A)))
        assert (served(desk), late.collections.uid) == ([0], 0)
        desk.bucket.vbuckets[0].close_checkpoint(1)
        assert not collections.is_stale
        desk.bucket.drop_vbucket(1)
        assert served(desk) == [0, A]

    run(story)


def test_a_record_of_a_replica_costs_no_look_at_all_vbuckets() -> None:
    async def story(desk: Desk) -> None:
        replica = desk.bucket.vbuckets[1]
        replica.set_state(State.REPLICA)
        assert served(desk) == [0]
        replica.close_checkpoint(1)
        assert not desk.bucket.collections.is_stale

    run(story)


def brought(desk: Desk, newer: CollectionsManifest) -> None:
    """A vbucket becomes active here with a manifest that the node does not know."""
    late = desk.bucket.vbuckets[1]
    late.set_state(State.REPLICA)
    late.become(newer, lambda: 1)
    desk.committer.wrote()
    late.set_state(State.ACTIVE)


def newest_at_the_node(desk: Desk) -> list[int]:
    """The uid in memory, in the vbuckets, and after a restart of the file alone."""
    there = desk.bucket.vbuckets.values()
    return [desk.bucket.collections.manifest.uid, *(each.collections.uid for each in there), on_disk(desk).uid]


def on_disk(desk: Desk) -> CollectionsManifest:
    return CollectionsFile(desk.disk, desk.store.log.folder).load()[0]


async def level(desk: Desk, uid: int) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while newest_at_the_node(desk) != [uid] * 4:
                await asyncio.sleep(0.001)
    await desk.committer.drain()


@pytest.mark.parametrize("by_uid", [True, False])
def test_a_newer_manifest_that_a_vbucket_brings_while_an_older_one_is_written_stays(
    by_uid: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By uid the older one is refused then; by name the newer one is what is edited."""

    async def story(desk: Desk) -> None:
        collections, save, writes = desk.bucket.collections, CollectionsFile.save, 0
        newer = EMPTY.with_collection("_default", "theirs", None, 20).with_collection("_default", "more", None, 21)
        older = EMPTY.with_collection("_default", "ours", None, A)

        async def brings() -> None:
            brought(desk, newer)

        def saves(file: CollectionsFile, *made: Any) -> None:
            nonlocal writes
            writes += 1
            if writes == 1:
                asyncio.run_coroutine_threadsafe(brings(), desk.loop).result(10)
            save(file, *made)

        monkeypatch.setattr(CollectionsFile, "save", saves)
        if by_uid:
            with pytest.raises(ManifestRefused, match="manifest 1 is not newer than 2") as refused:
                await collections.change(lambda _: older)
            assert refused.value.stale
        else:
            made = await collections.change(collections.with_collection("_default", "ours", None))
            assert made.uid == 3 and made.has(20) and made.collection("_default", "ours")
        uid = 2 if by_uid else 3
        await level(desk, uid)
        assert newest_at_the_node(desk) == [uid] * 4

    run(story)


def test_a_newer_manifest_that_comes_while_vbuckets_are_brought_up_is_written_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(desk: Desk) -> None:
        wait = desk.committer.wait
        first = EMPTY.with_collection("_default", "a", None, A)
        newer = first.with_collection("_default", "b", None, B)
        waits = 0

        async def waited(gate: int) -> bool:
            nonlocal waits
            waits += 1
            if waits == 1:
                brought(desk, newer)
            return await wait(gate)

        monkeypatch.setattr(desk.committer, "wait", waited)
        brought(desk, first)
        await level(desk, 2)
        assert newest_at_the_node(desk) == [2] * 4

    run(story)


def test_what_a_full_disk_had_no_room_for_is_brought_up_once_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start, which goes on without, and behind a change that was told to be in force."""
    monkeypatch.setattr("headwater.node.buckets.collections.RETRY_SECONDS", 0.001)

    async def story(desk: Desk) -> None:
        collections, has_room, stage = desk.bucket.collections, False, Staging.event

        def event(*told: Any, **more: Any) -> int:
            if not has_room:
                raise DiskFull("/data", 100)
            return stage(*told, **more)

        monkeypatch.setattr(Staging, "event", event)
        with pytest.raises(DiskFull):
            await collections.change(lambda _: EMPTY.with_collection("_default", "a", None, A))
        for _ in range(5):  # whatever else there is to do meanwhile
            await asyncio.sleep(0)
        assert newest_at_the_node(desk) == [1, 0, 0, 1]
        has_room = True
        await level(desk, 1)
        assert newest_at_the_node(desk) == [1] * 4

        has_room = False
        newer = collections.manifest.with_collection("_default", "b", None, B)
        CollectionsFile(desk.disk, desk.store.log.folder).save(newer, B + 1, 8)
        desk.bucket.collections = Collections(desk.bucket, desk.disk, desk.store.log.folder)
        desk.bucket.collections.recover()
        assert newest_at_the_node(desk) == [2, 1, 1, 2]
        has_room = True
        desk.bucket.collections.start()
        await level(desk, 2)
        assert newest_at_the_node(desk) == [2] * 4

    run(story)


def before_first_save(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen, in the thread that writes, when a manifest is about to be written the first time."""
    save, acts = CollectionsFile.save, [act]

    def saves(file: CollectionsFile, *made: Any) -> None:
        if acts:
            acts.pop()()
        save(file, *made)

    monkeypatch.setattr(CollectionsFile, "save", saves)


def test_a_manifest_of_a_higher_uid_gives_no_id_that_one_which_came_meanwhile_has_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(desk: Desk) -> None:
        theirs, ours = EMPTY.with_collection("_default", "theirs", None, A), EMPTY
        for name, number in (("ours", A), ("b", B), ("c", 10)):
            ours = ours.with_collection("_default", name, None, number)

        async def come() -> None:
            brought(desk, theirs)

        before_first_save(monkeypatch, lambda: asyncio.run_coroutine_threadsafe(come(), desk.loop).result(10))
        with pytest.raises(ManifestRefused):
            await desk.bucket.collections.change(lambda _: ours)
        await level(desk, theirs.uid)
        assert {vbucket.collections.manifest for vbucket in desk.bucket.vbuckets.values()} == {theirs}
        assert on_disk(desk) == theirs

    run(story)


def test_a_manifest_that_is_refused_behind_its_writing_is_in_the_file_no_more_when_that_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client was told that the manifest is refused: a restart must not bring it."""

    async def story(desk: Desk) -> None:
        theirs = EMPTY.with_collection("_default", "theirs", None, A)
        ours = EMPTY.with_collection("_default", "ours", None, A).with_collection("_default", "b", None, B)

        async def come() -> None:
            brought(desk, theirs)

        before_first_save(monkeypatch, lambda: asyncio.run_coroutine_threadsafe(come(), desk.loop).result(10))
        with pytest.raises(ManifestRefused):
            await desk.bucket.collections.change(lambda _: ours)
        assert on_disk(desk) == theirs

    run(story)


def test_a_refused_manifest_that_the_disk_does_not_let_go_is_told_as_one_that_may_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(desk: Desk) -> None:
        theirs = EMPTY.with_collection("_default", "theirs", None, A)
        ours = EMPTY.with_collection("_default", "ours", None, A).with_collection("_default", "b", None, B)

        def fail() -> None:
            raise StorageError("EIO")

        async def come() -> None:
            brought(desk, theirs)
            before_first_save(monkeypatch, fail)

        before_first_save(monkeypatch, lambda: asyncio.run_coroutine_threadsafe(come(), desk.loop).result(10))
        with pytest.raises(UnsureFile, match="COLLECTIONS"):
            await desk.bucket.collections.change(lambda _: ours)
        await level(desk, theirs.uid)
        assert on_disk(desk) == theirs

    run(story)


@pytest.mark.parametrize("error", [UnsureFile("/data", "EIO"), StorageError("EIO")])
def test_a_manifest_that_came_with_a_vbucket_and_may_not_be_written_is_written_again_later(
    error: StorageError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.node.buckets.collections.RETRY_SECONDS", 0.001)

    async def story(desk: Desk) -> None:
        def fail() -> None:
            raise error

        theirs = EMPTY.with_collection("_default", "theirs", None, A)
        before_first_save(monkeypatch, fail)
        brought(desk, theirs)
        await level(desk, theirs.uid)
        assert on_disk(desk) == theirs

    run(story)


def test_a_manifest_that_was_not_written_is_taken_when_it_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        wanted = EMPTY.with_collection("_default", "ours", None, A)
        before_first_save(monkeypatch, fails)
        with pytest.raises(DiskFull):
            await desk.bucket.collections.change(lambda _: wanted)
        assert await desk.bucket.collections.change(lambda _: wanted) == wanted

    run(story)


def fails() -> None:
    raise DiskFull("/data", 100)


def test_drops_that_fail_leave_of_the_reserve_what_compaction_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        collections, log = desk.bucket.collections, desk.store.log
        await collections.change(collections.with_collection("_default", "a", None))
        monkeypatch.setattr(CollectionsFile, "save", lambda *_: fails())
        for _ in range(100):
            with pytest.raises(DiskFull):
                await collections.change(lambda known: known.without_collection("_default", "a"))
        assert log.reserve.size // 2 <= log.reserve.held < log.reserve.size

    run(story)


def test_changes_that_a_full_disk_refuses_are_brought_up_by_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        collections, timers = desk.bucket.collections, list[float]()

        def later(delay: float, *_: Any) -> object:
            timers.append(delay)
            return object()

        monkeypatch.setattr(collections, "_bring_up", lambda vb: fails())
        monkeypatch.setattr(desk.loop, "call_later", later)
        for name in "abc":
            with pytest.raises(DiskFull):
                await collections.change(collections.with_collection("_default", name, None))
            for _ in range(100):
                await asyncio.sleep(0)
        assert timers.count(RETRY_SECONDS) == 1

    run(story)


def test_a_bucket_that_is_dropped_waits_for_the_change_under_way_which_ends_there() -> None:
    async def story(desk: Desk) -> None:
        collections, ends = desk.bucket.collections, list[asyncio.Task[None]]()
        collections.run_queue = Turns(desk.loop, lambda: ends.append(desk.loop.create_task(collections.stop())))
        with pytest.raises(StorageError, match="the bucket is being dropped"):
            await collections.change(collections.with_collection("_default", "carts", None))
        await ends[0]
        with pytest.raises(StorageError, match="the bucket is being dropped"):
            await collections.change(collections.with_collection("_default", "later", None))

    run(story)


def test_a_change_of_many_collections_costs_an_event_each() -> None:
    """A thousand collections in a vbucket: each event looks at its own collection, not at all that there are."""

    async def story(desk: Desk) -> None:
        found = EMPTY.with_scope("s", 8)
        for number in range(1000):
            found = found.with_collection("s", f"c{number}", None, 9 + number)
        looked = 0

        def by_id(manifest: CollectionsManifest) -> dict[int, object]:
            nonlocal looked
            looked += 1
            return {collection.id: (scope, collection) for scope, collection in manifest.each_collection()}

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(CollectionsManifest, "by_id", by_id)
            await desk.bucket.collections.change(lambda _: found)
        assert [len(vbucket.collections.alive) for vbucket in desk.bucket.vbuckets.values()] == [1001, 1001]
        assert looked < 50

    run(story)
