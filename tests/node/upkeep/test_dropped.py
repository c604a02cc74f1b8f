"""The documents of dropped collections: how much they take, when that counts, and that they leave the disk."""

from __future__ import annotations

import asyncio

import pytest

from headwater.node.upkeep import compactor, dropped
from headwater.node.upkeep.dropped import SETTLED_SECONDS
from headwater.node.vbucket.prepares import Key
from headwater.wire import leb128
from headwater.wire.dcp import Prepare
from tests.node.support import NOON
from tests.node.upkeep.test_compactor import MIB, Desk, run

WAIT_SECONDS = 90.0


async def made(desk: Desk, *, documents: int = 40) -> int:
    """Put documents of 50 KB into a collection of their own; returns its id."""
    collections = desk.bucket.collections
    manifest = await collections.change(collections.with_collection("_default", "carts", None))
    (number,) = [collection.id for _, collection in manifest.each_collection() if collection.name == "carts"]
    for at in range(documents):
        desk.store.staging.mutation(0, b"%d" % at, bytes(50_000), cas=1, rev_seqno=1, collection=number)
        if at % 10 == 9:
            await desk.committer.wait(desk.committer.wrote())
    return number


async def drop(desk: Desk) -> None:
    await desk.bucket.collections.change(lambda manifest: manifest.without_collection("_default", "carts"))


def test_what_was_dropped_counts_once_the_drop_is_settled_and_not_before() -> None:
    async def story(desk: Desk) -> None:
        await made(desk)
        await drop(desk)
        found = desk.compactor.dropped
        for seconds, counted in ((0.0, False), (SETTLED_SECONDS - 1, False), (SETTLED_SECONDS, True)):
            found.look(seconds)
            for _ in range(20):  # a task has its turns
                await asyncio.sleep(0)
            assert (found.bytes > 40 * 50_000) is counted
        assert found.rows_since(0) == 0 and found.rows_since(1) is None
        desk.write(3)
        await desk.committer.drain()
        assert found.rows_since(0) == 3

    run(story)


def test_a_count_that_fails_is_told_and_done_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error of a task for which nobody waits was never seen, and the documents stayed on the disk for good."""

    async def story(desk: Desk) -> None:
        await made(desk)
        await drop(desk)
        of = desk.compactor.dropped
        with monkeypatch.context() as patch:
            patch.setattr(type(desk.store), "collections", _fails)
            for now in (0.0, SETTLED_SECONDS):
                of.look(now)
                await asyncio.sleep(0)
        assert "could not be counted" in caplog.text and of.bytes == 0
        of.look(2 * SETTLED_SECONDS)
        while of._is_counting:
            await asyncio.sleep(0)
        assert of.bytes > 0

    run(story)


def _fails(*_: object) -> None:
    raise ValueError("a fault of ours")


def test_a_bucket_without_drops_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(desk: Desk) -> None:
        monkeypatch.setattr(desk.store, "collections", None)
        await made(desk, documents=10)
        for seconds in (0.0, 2 * SETTLED_SECONDS):
            desk.compactor.dropped.look(seconds)
        await desk.compactor.dropped.count()
        assert desk.compactor.dropped.bytes == 0

    run(story)


def test_a_drop_gives_its_room_back_by_itself_and_what_came_after_it_can_still_be_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dropped, "SETTLED_SECONDS", 0.0)
    monkeypatch.setattr(compactor, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(compactor, "DEAD_BYTES_MIN", MIB)

    async def story(desk: Desk) -> None:
        number = await made(desk)
        await drop(desk)
        high = desk.store.index.high_seqno(0)
        desk.write(2)
        await desk.committer.drain()
        desk.compactor.start()
        async with asyncio.timeout(WAIT_SECONDS):
            while not desk.compactor.runs:
                await asyncio.sleep(0.01)
        assert [collection[1:] for collection in desk.store.collections(0, [number])] == [(0, 0, 0)]
        assert desk.store.log.bytes < MIB
        assert desk.store.index.rollback_floor(0) <= high and desk.store.rollback(0, high + 1) == high + 1

    run(story)


def prepare(key: str, number: int, value: bytes = bytes(50_000)) -> Prepare:
    return Prepare(
        key=leb128.join_key(number, key.encode()), value=value, by_seqno=0, rev_seqno=1, durability_level=1, cas=1
    )


async def compact(desk: Desk) -> None:
    await desk.committer.wait(desk.committer.wrote())
    await desk.compactor.run(0, lambda vb: 0, lambda vb: 0)


def of_prepares(desk: Desk, number: int) -> list[bytes]:
    """Return the keys whose durable writes in a collection the log still tells of."""
    written = b"".join(content for path, content in desk.disk.files().items() if path.suffix == ".log")
    return [key for key in (b"waits", b"given up", b"done") if bytes([1, 0x70, number]) + key in written]


def test_prepares_of_a_dropped_collection_leave_the_disk_though_nobody_ended_them() -> None:
    """A crash between the drop and the abort left them for good: nobody waits for them any more."""

    async def story(desk: Desk) -> None:
        number = await made(desk, documents=0)
        vbucket = desk.bucket.vbuckets[0]
        for key in ("waits", "given up", "done"):
            vbucket.prepares.add(prepare(key, number))
        vbucket.prepares.add(prepare("kept", 0))
        vbucket.prepares.commit(Key(number, b"done"), NOON)
        await drop(desk)
        vbucket.prepares.abort(Key(number, b"given up"), NOON)
        desk.write(2)
        await compact(desk)
        assert of_prepares(desk, number) == []
        assert desk.store.index.items(0) == 2, "a prepare is no document, there or gone"
        assert list(vbucket.prepares.pending) == [Key(number, b"waits"), Key(0, b"kept")]
        vbucket.prepares.read()
        assert list(vbucket.prepares.pending) == [Key(0, b"kept")]

    run(story)


def test_an_end_that_can_still_be_taken_back_keeps_the_prepare_from_coming_back() -> None:
    async def story(desk: Desk) -> None:
        number = await made(desk, documents=0)
        vbucket = desk.bucket.vbuckets[0]
        vbucket.prepares.add(prepare("given up", number))
        await drop(desk)
        desk.write(1)
        vbucket.prepares.abort(Key(number, b"given up"), NOON)
        await desk.committer.wait(desk.committer.wrote())
        await desk.compactor.run(0, lambda vb: 0, lambda vb: 1)
        assert desk.store.prepares.waiting(0) == []

    run(story)


def test_a_drop_of_nothing_does_not_end_the_history_behind_a_drop_that_did() -> None:
    async def story(desk: Desk) -> None:
        desk.store.declarations.keep_history(0, 3 * MIB // 2)
        await made(desk)
        await drop(desk)
        ended = desk.store.index.high_seqno(0)  # with 2 MB of documents, more than the history may have
        for _ in range(500):
            desk.store.staging.mutation(0, b"k", bytes(1 << 10), cas=1, rev_seqno=1)
        collections = desk.bucket.collections
        await collections.change(collections.with_collection("_default", "scratch", None))
        await collections.change(lambda manifest: manifest.without_collection("_default", "scratch"))
        desk.store.staging.mutation(0, b"k", bytes(1 << 10), cas=1, rev_seqno=1)
        await desk.committer.wait(desk.committer.wrote())
        await desk.compactor.dropped.count()
        assert [seqno for seqno, _ in desk.compactor.dropped.of(0)] == [ended]
        await compact(desk)
        assert desk.store.index.rollback_floor(0) == ended

    run(story)
