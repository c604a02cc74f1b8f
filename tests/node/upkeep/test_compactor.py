"""When compaction is worth it, which tombstones may go, and that a run is whole or not at all."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Awaitable, Callable, Iterator

import numpy as np
import pytest

from headwater.errors import StorageError
from headwater.node.buckets.bucket import Bucket
from headwater.node.changes import stage
from headwater.node.committer import Committer
from headwater.node.config import NodeConfig
from headwater.node.kv import documents
from headwater.node.storage.compaction import HISTORY_ROWS, Compaction
from headwater.node.storage.store import Store
from headwater.node.upkeep.compactor import DEAD_BYTES_MIN, LOOK_SECONDS, Compactor, is_worthwhile
from headwater.protocol.dcp.consumer_changes import Change
from headwater.testing.faults import FaultyDisk
from tests.node.support import NOON, Clock

MIB = 1 << 20
DAY = 86_400


@pytest.mark.parametrize(
    ("log", "live", "left", "worth"),
    [
        (DEAD_BYTES_MIN, 0, 0, False),
        (DEAD_BYTES_MIN + 1, 0, 0, True),
        (1000 * MIB, 500 * MIB, 0, False),
        (1000 * MIB, 499 * MIB, 0, True),
        (1000 * MIB, 400 * MIB, 590 * MIB, False),
        (1000 * MIB, 300 * MIB, 590 * MIB, True),
    ],
)
def test_more_than_half_dead_and_enough_more_than_the_last_run_left(
    log: int, live: int, left: int, worth: bool
) -> None:
    assert is_worthwhile(log, live, left) is worth


def test_how_much_must_be_dead_can_be_chosen_and_100_percent_is_never() -> None:
    assert is_worthwhile(1000 * MIB, 790 * MIB, 0, dead_percent=20)
    assert not is_worthwhile(1000 * MIB, 810 * MIB, 0, dead_percent=20)
    assert not is_worthwhile(1000 * MIB, 0, 0, dead_percent=100)


class Reader:
    """A stream that has sent all up to a seqno."""

    def __init__(self, position: int) -> None:
        self.position = position

    def advanced(self) -> None:
        """Nothing: durable batches do not concern it."""


class Desk:
    """A bucket of two vbuckets with a real store and committer on a disk in memory."""

    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.store = Store.open("/data", vbuckets=2, disk=self.disk, segment_bytes=MIB, arena_bytes=MIB)
        self.loop = asyncio.get_running_loop()
        self.committer = Committer(self.store, self.loop)
        self.clock = Clock()
        self.bucket = Bucket("default", self.store, self.committer, clock=self.clock)
        self.bucket.recover(NodeConfig(vbuckets=2))
        self.compactor = Compactor(self.bucket, self.loop, purge_age_seconds=3 * DAY)

    def deleted(self, *keys: str, age_days: int, vb: int = 0) -> None:
        """Documents that were written and then deleted: two seqnos each."""
        for key in keys:
            self.store.staging.mutation(vb, key.encode(), b"v" * 100, cas=1, rev_seqno=1, flags=0, expiry=0, datatype=0)
            time = NOON - age_days * DAY
            self.store.staging.deletion(vb, key.encode(), cas=2, rev_seqno=2, delete_time=time, datatype=0)
        self.committer.wrote()

    def write(self, count: int = 1) -> None:
        """Documents behind the tombstones."""
        for number in range(count):
            self.store.staging.mutation(0, b"d%d" % number, b"d", cas=1, rev_seqno=1, flags=0, expiry=0, datatype=0)
        self.committer.wrote()

    def tombstones(self, vb: int = 0) -> str:
        return "".join(key for key in "abc" if self.store.document(vb, key.encode()) is not None)

    async def purge(self, *, before_seconds: int = 0, before_seqno: int = 0, everything: bool = False) -> None:
        await self.compactor.purge(0, before_seconds=before_seconds, before_seqno=before_seqno, everything=everything)


def run(story: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        desk = Desk()
        try:
            await story(desk)
            await desk.committer.drain()
        finally:
            await desk.compactor.stop()
            desk.committer.close()
            desk.store.close()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_everything_means_tombstones_of_any_age_and_the_purge_seqno_tells() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", "b", age_days=0)
        desk.write()
        await desk.purge(everything=True)
        assert desk.tombstones() == ""
        assert (desk.store.index.purge_seqno(0), desk.store.index.high_seqno(0), desk.compactor.runs) == (4, 5, 1)

    run(story)


def test_writers_who_never_pause_do_not_keep_a_run_from_beginning() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=9)
        desk.committer.on_durable.append(desk.write)  # each batch is followed by the next, for ever
        await desk.purge(everything=True)
        desk.committer.on_durable.remove(desk.write)
        await desk.committer.drain()
        assert desk.tombstones() == "" and desk.compactor.runs == 1
        assert desk.store.document(0, b"d0") is not None

    run(story)


def test_a_run_is_over_before_the_old_files_memory_is_given_back_and_the_end_waits_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forget, may, forgotten = Compaction.forget, threading.Event(), list[Compaction]()

    def slowly(job: Compaction) -> None:
        assert may.wait(120)
        forget(job)
        forgotten.append(job)

    monkeypatch.setattr(Compaction, "forget", slowly)

    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=9)
        desk.write()
        await desk.purge(everything=True)
        assert desk.compactor.runs == 1 and not forgotten
        desk.loop.call_later(0.01, may.set)
        await desk.compactor.stop()
        assert len(forgotten) == 1

    run(story)


def test_a_run_that_is_cancelled_between_two_vbuckets_keeps_no_other_from_beginning() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", "b", age_days=9)
        desk.deleted("a", "b", age_days=9, vb=1)
        swapped, swap = asyncio.Event(), Compaction.swap

        def told(job: Compaction) -> Iterator[int]:
            for vb in swap(job):
                swapped.set()
                yield vb

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Compaction, "swap", told)
            running = asyncio.create_task(desk.purge(everything=True))
            await swapped.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        desk.write()
        await desk.purge(everything=True)
        assert desk.tombstones() == "" and desk.compactor.runs == 1

    run(story)


def test_the_newest_change_of_a_vbucket_stays_because_it_has_the_high_seqno() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", "b", age_days=9)
        await desk.purge(everything=True)
        assert desk.tombstones() == "b"
        assert (desk.store.index.purge_seqno(0), desk.store.index.high_seqno(0)) == (2, 4)

    run(story)


def test_only_tombstones_from_before_the_time_go() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=9)
        desk.deleted("b", age_days=1)
        await desk.purge(before_seconds=NOON - 5 * DAY)
        assert desk.tombstones() == "b" and desk.store.index.purge_seqno(0) == 2

    run(story)


def test_only_tombstones_up_to_the_seqno_go() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", "b", "c", age_days=9)
        await desk.purge(before_seqno=4)
        assert desk.tombstones() == "c" and desk.store.index.purge_seqno(0) == 4

    run(story)


def test_no_tombstone_goes_that_a_stream_has_yet_to_send() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", "b", "c", age_days=9)
        desk.write()
        desk.bucket.vbuckets[0].readers |= {Reader(2), Reader(5)}
        await desk.purge(everything=True)
        assert desk.tombstones() == "bc" and desk.store.index.purge_seqno(0) == 2
        desk.bucket.vbuckets[0].readers.clear()

    run(story)


def test_no_tombstone_goes_that_a_stream_needs_which_began_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    survey = Compaction.survey

    async def story(desk: Desk) -> None:
        def surveyed(job: Compaction) -> bool:
            worth = survey(job)
            desk.bucket.vbuckets[0].readers.add(late)
            return worth

        late = Reader(2)
        monkeypatch.setattr(Compaction, "survey", surveyed)
        desk.deleted("a", "b", "c", age_days=9)
        desk.write()
        await desk.purge(everything=True)
        assert desk.tombstones() == "bc" and desk.store.index.purge_seqno(0) == 2
        desk.bucket.vbuckets[0].readers.clear()

    run(story)


def test_the_other_vbuckets_keep_their_tombstones() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=9)
        desk.deleted("b", "c", age_days=9, vb=1)
        desk.write()
        await desk.purge(everything=True)
        assert (desk.tombstones(0), desk.tombstones(1)) == ("", "bc")

    run(story)


def test_a_run_by_itself_purges_by_age() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=4)
        desk.deleted("b", age_days=2)
        desk.write(HISTORY_ROWS)
        await desk.compactor._automatic()
        assert desk.tombstones() == "b" and desk.compactor.runs == 1

    run(story)


def expired_long_ago(desk: Desk) -> None:
    """A document of which nobody saw in a month that its time was over."""
    desk.store.staging.mutation(0, b"a", b"v", cas=1, rev_seqno=1, expiry=NOON - 30 * DAY)
    found = desk.store.document(0, b"a")
    assert found is not None
    documents.expire(desk.bucket, 0, b"a", found)


def received(desk: Desk) -> None:
    """A tombstone that another node sends, with the delete time that it has there."""
    change = Change(b"a", b"", 7, 2, 8, 0, deleted=True, expired=True, delete_time=NOON - 30 * DAY)
    stage(desk.bucket, 0, change)
    desk.committer.wrote()


@pytest.mark.parametrize("made", [expired_long_ago, received])
def test_a_tombstone_is_kept_for_the_purge_age_from_when_it_was_made(made: Callable[[Desk], None]) -> None:
    """Else who was away for a moment misses it: "their time was over long ago" is no time at which he could hear it."""

    async def story(desk: Desk) -> None:
        made(desk)
        desk.write(HISTORY_ROWS + 1)
        kept = desk.store.document(0, b"a")
        assert kept is not None and kept.delete_time == NOON - 30 * DAY
        for days, there in ((0, "a"), (2, "a"), (2, "")):
            desk.clock.seconds += days * DAY
            await desk.compactor._automatic()
            assert desk.tombstones() == there, (days, there)

    run(story)


def test_documents_survive_a_run_and_are_found_again_after_a_restart() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=9)
        desk.store.staging.mutation(0, b"b", b"kept", cas=1, rev_seqno=1, flags=0, expiry=0, datatype=0)
        desk.committer.wrote()
        await desk.purge(everything=True)
        desk.store.close()
        desk.store = Store.open("/data", vbuckets=2, disk=desk.disk, segment_bytes=MIB, arena_bytes=MIB)
        found = desk.store.document(0, b"b")
        assert found is not None and bytes(found.value) == b"kept"
        assert desk.tombstones() == "b" and desk.store.index.purge_seqno(0) == 2

    run(story)


def test_two_runs_at_the_same_time_go_one_after_the_other() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", "b", age_days=9)
        desk.write()
        await asyncio.gather(desk.purge(before_seqno=2), desk.purge(before_seqno=4))
        assert desk.tombstones() == "" and desk.compactor.runs == 2

    run(story)


@pytest.mark.parametrize("turn", range(1, 6))
def test_a_disk_that_fails_leaves_all_as_it_was_and_the_next_run_succeeds(turn: int) -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=0)
        desk.store.staging.mutation(0, b"b", b"kept", cas=1, rev_seqno=1, flags=0, expiry=0, datatype=0)
        desk.committer.wrote()
        await desk.committer.drain()
        desk.disk.fail(turn, errno.EIO)
        try:
            await desk.purge(everything=True)
        except (StorageError, OSError):
            assert desk.compactor.runs == 0
        desk.disk.heal()
        await desk.purge(everything=True)
        found = desk.store.document(0, b"b")
        assert found is not None and bytes(found.value) == b"kept" and desk.store.document(0, b"a") is None

    run(story)


def test_stopping_waits_for_a_run_that_was_just_begun() -> None:
    async def story(desk: Desk) -> None:
        desk.deleted("a", age_days=9)
        desk.compactor._task = desk.loop.create_task(desk.compactor._automatic())
        await desk.compactor.stop()
        assert desk.compactor.runs == 1 and desk.compactor._task is None

    run(story)


def test_who_was_stopped_looks_no_more() -> None:
    async def story(desk: Desk) -> None:
        desk.compactor.start()
        timer = desk.compactor._timer
        assert timer is not None and timer.when() <= desk.loop.time() + LOOK_SECONDS
        await desk.compactor.stop()
        assert timer.cancelled()

    run(story)


def test_the_newest_change_of_the_default_collection_stays_though_others_are_behind_it() -> None:
    """A consumer that knows of no collections ends there. Were it gone, he would stand in front of it without what it
    deleted: after a failover to a node that never had it he would lack that document for good."""

    async def story(desk: Desk) -> None:
        default = np.zeros(1, np.uint64)
        desk.deleted("a", "b", age_days=0)
        collections = desk.bucket.collections
        await collections.change(collections.with_collection("_default", "carts", None))
        high = desk.store.index.durable_seqno(0)
        assert high > 4, "the collection has an event"
        await desk.purge(everything=True)
        assert desk.tombstones() == "b" and desk.store.index.purge_seqno(0) == 2
        assert desk.store.newest_seqno(0, default) == 4 and desk.store.index.durable_seqno(0) == high
        desk.write()
        await desk.purge(everything=True)
        assert desk.tombstones() == "" and desk.store.index.purge_seqno(0) == 4

    run(story)
