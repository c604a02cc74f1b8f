"""Compaction: the versions it may drop, those it must keep, and the readers it may not disturb."""

from __future__ import annotations

import errno
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from random import Random
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headwater.errors import DiskFull, StorageError
from headwater.failpoints import InjectedFault, armed
from headwater.kernels import compact as kernels
from headwater.kernels import index
from headwater.node.storage import compaction as module
from headwater.node.storage.compaction import Compaction, best_stretch
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.segment import Segment
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import (
    FOLDER,
    History,
    check_documents,
    check_view,
    commit,
    compact,
    finish,
    frames,
    open_store,
)


def announced(store: Store, **options: Any) -> Compaction:
    """A compaction that knows what goes, and has that on disk; its files are not written yet."""
    job = store.compact(**options)
    assert job is not None
    job.survey()
    job.announce()
    commit(store)
    return job


def overwritten(store: Store, rounds: int = 6) -> History:
    """Vbucket 0 with ten keys, each stored `rounds` times, two of them deleted at last (at second 50)."""
    history = History()
    store.staging.record(0, VBucketRecord(1, ((7, 0),)))
    for number in range(rounds):
        for key in range(10):
            name, value = b"key %d" % key, b"%d" % number * 20
            history.add(store.staging.mutation(0, name, value, cas=1, rev_seqno=1), name, value)
        commit(store)
    for name in (b"key 3", b"key 8"):
        history.add(store.staging.deletion(0, name, cas=1, rev_seqno=1, delete_time=50), name, None)
    commit(store)
    return history


def seqnos(store: Store, after: int = 0) -> list[int]:
    with store.view(0, after) as view:
        return [one.seqno for one in frames(view)]


def test_old_versions_go_and_the_newest_stay() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    history = overwritten(store)
    compact(store)
    assert store.log.bytes - store.index.live_bytes < 1000
    check_documents(store, 0, history)
    check_view(store, 0, history)
    assert int(store.table[0, index.ROWS]) == 10
    store.close()
    store = open_store(disk)
    check_documents(store, 0, history)
    assert store.recovered[0] == VBucketRecord(1, ((7, 0),), high_seqno=62, rollback_floor=62, deleted_rev=1)


def test_a_purged_tombstone_leaves_its_revision_also_where_the_purge_was_known_before() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    store.lacks_tombstones(0, 100)
    store.staging.record(0, VBucketRecord(1, ((7, 0),)))
    store.staging.mutation(0, b"key", b"value", cas=1, rev_seqno=1)
    store.staging.deletion(0, b"key", cas=2, rev_seqno=41, delete_time=50)
    for number in range(3):
        store.staging.mutation(0, b"other", b"%d" % number, cas=3, rev_seqno=1)
    commit(store)
    compact(store, purge_before=51)
    assert store.document(0, b"key") is None
    store.close()
    store = open_store(disk)
    assert store.recovered[0].deleted_rev == store.table.item(0, index.DELETED_REV) == 41


def test_a_vbucket_that_refuses_writes_goes_on_refusing_them() -> None:
    store = open_store(FaultyDisk())
    overwritten(store)
    refusing = 5  # what failover 4 calls backed up: active on disk, no writes for now
    store.table[0, index.STATE] = refusing
    compact(store)
    assert store.index.rollback_floor(0) == 62  # a record was staged
    assert int(store.table[0, index.STATE]) == refusing


def test_old_tombstones_go_but_for_the_newest_change_and_the_purge_seqno_says_so() -> None:
    store = open_store(FaultyDisk())
    history = overwritten(store)
    compact(store, purge_before=50)
    assert store.index.purge_seqno(0) == 0
    compact(store, purge_before=51)
    assert store.index.purge_seqno(0) == 61
    assert store.document(0, b"key 3") is None
    found = store.document(0, b"key 8")
    assert found is not None
    assert found.deleted
    assert seqnos(store)[-1] == store.index.high_seqno(0) == 62
    check_view(store, 0, history)


def test_no_tombstone_goes_that_a_stream_has_yet_to_send() -> None:
    store = open_store(FaultyDisk())
    overwritten(store)
    store.staging.mutation(0, b"last", b"", cas=1, rev_seqno=1)
    commit(store)
    store.log.seal()
    job = announced(store, purge_before=100, purge_limit=lambda vb: 61, history_rows=lambda vb: 0)
    job.copy()
    list(job.swap())
    assert store.index.purge_seqno(0) == 61
    assert 62 in seqnos(store)


def test_versions_that_the_newest_changes_superseded_stay_for_a_rollback() -> None:
    store = open_store(FaultyDisk())
    history = overwritten(store)
    compact(store, history_rows=12)
    assert store.index.rollback_floor(0) == 50
    assert not store.index.exact(0, 49)
    assert store.index.exact(0, 50)
    check_view(store, 0, history, end=50)
    assert store.rollback(0, 50) == 50
    history.keep(50, 50)
    check_documents(store, 0, history)


def test_a_rollback_below_the_floor_empties_the_vbucket() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    overwritten(store)
    compact(store)
    assert store.rollback(0, 61) == 0
    assert (
        store.index.items(0),
        store.index.high_seqno(0),
        store.index.rollback_floor(0),
        store.index.purge_seqno(0),
    ) == (0, 0, 0, 0)
    commit(store)
    store.close()
    store = open_store(disk)
    assert (store.index.items(0), store.index.high_seqno(0), seqnos(store)) == (0, 0, [])


def test_a_view_keeps_what_it_sees_and_its_files_until_it_is_closed() -> None:
    store = open_store(FaultyDisk())
    overwritten(store)
    old = store.view(0, 0, 45)
    with store.view(0, 0, 45) as same:
        expected = [one.value for one in frames(same)]
    compact(store, purge_before=100)
    store.rollback(0, 0)
    commit(store)
    assert store.slots.retired_bytes > 0
    assert [one.value for one in frames(old)] == expected
    old.close()
    assert store.slots.oldest_retired is None


def test_a_segment_whose_last_batch_is_written_and_not_settled_is_left_alone() -> None:
    """The log has gone on to the next one by then, but the index does not know yet that the batch is there."""
    disk = FaultyDisk()
    store = open_store(disk)
    history = overwritten(store)
    store.log.seal()
    for number in count():
        name, value = b"large %d" % number, b"x" * (store.log.batch_bytes_max // 2)
        history.add(store.staging.mutation(0, name, value, cas=1, rev_seqno=1), name, value)
        batch = store.freeze()
        assert batch is not None
        store.write(batch)
        if batch.segment is not store.log.current:
            break
        store.settle(batch)
    job = store.compact(history_rows=lambda vb: 0)
    assert job is not None and batch.segment in store.log.segments[1:-1]
    store.settle(batch)
    finish(store, job)
    check_view(store, 0, history)
    store.close()
    check_view(open_store(disk), 0, history)


def test_one_compaction_at_a_time_and_none_without_a_sealed_segment() -> None:
    store = open_store(FaultyDisk())
    store.staging.mutation(0, b"k", b"", cas=1, rev_seqno=1)
    commit(store)
    assert store.compact() is None
    store.log.seal()
    job = store.compact()
    assert job is not None
    assert store.compact() is None
    job.cancel()
    assert store.compact() is not None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_compaction_that_fails_leaves_everything_as_it_was(number: int) -> None:
    for nth in range(1, 12):
        disk = FaultyDisk()
        store = open_store(disk)
        history = overwritten(store)
        store.log.seal()
        before = set(disk.files())
        job = announced(store)
        disk.fail(nth, number)
        try:
            job.copy()
        except StorageError as error:
            assert isinstance(error, DiskFull) == (number == errno.ENOSPC)
            job.cancel()
            assert set(disk.files()) - {FOLDER / "MANIFEST.new"} == before
        else:
            list(job.swap())
        disk.heal()
        check_documents(store, 0, history)
        compact(store)
        check_view(store, 0, history)
        store.close()
        check_documents(open_store(disk), 0, history)


@pytest.mark.parametrize(
    "point",
    ["compact.planned", "compact.copied", "compact.before_rename", "compact.after_rename", "compact.before_unlink"],
)
def test_a_crash_at_any_place_leaves_one_whole_store(point: str) -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    history = overwritten(store)
    with armed(f"{point}=raise"), pytest.raises(InjectedFault):
        compact(store, purge_before=100)
    disk.locks.clear()
    store = open_store(disk)
    check_documents(store, 0, history)
    check_view(store, 0, history)
    names = {path.name for path in disk.files()}
    assert len([name for name in names if name.endswith(".log")]) == len(store.log.segments)


def test_a_rollback_before_the_floors_are_announced_stops_the_run() -> None:
    store = open_store(FaultyDisk())
    history = overwritten(store)
    store.log.seal()
    job = store.compact(history_rows=lambda vb: 0)
    assert job is not None
    job.survey()
    store.rollback(0, 30)
    history.keep(30, 30)
    job.announce()
    commit(store)
    with pytest.raises(StorageError, match="start it again"):
        job.copy()
    job.cancel()
    check_documents(store, 0, history)


@pytest.mark.parametrize("made_anew", [False, True])
def test_a_drop_before_the_floors_are_announced_leaves_no_number_of_the_rows_that_are_gone(made_anew: bool) -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    overwritten(store)
    store.log.seal()
    job = store.compact(history_rows=lambda vb: 0, purge_before=51)
    assert job is not None
    job.survey()
    store.drop(0)
    if made_anew:
        store.staging.record(0, VBucketRecord(1, ((8, 0),)))
    job.announce()
    commit(store)
    with pytest.raises(StorageError, match="start it again"):
        job.copy()
    job.cancel()
    store.close()
    store = open_store(disk)
    # Without a state, a record of the dropped vbucket would keep the node from starting.
    assert store.recovered == ({0: VBucketRecord(1, ((8, 0),))} if made_anew else {})
    assert (store.index.rollback_floor(0), store.index.purge_seqno(0)) == (0, 0)


def test_the_old_files_memory_goes_in_the_thread_that_removes_them_unless_a_view_reads_it() -> None:
    store = open_store(FaultyDisk())
    history = overwritten(store)
    for kept in (True, False):
        store.log.seal()
        old = [weakref.ref(segment.memory) for segment in store.log.segments[:-1]]
        view = store.view(0) if kept else None
        job = store.compact(history_rows=lambda vb: 0)
        assert job is not None
        finish(store, job)
        assert [memory() is not None for memory in old] == [kept] * len(old)
        if view is not None:
            assert next(frames(view)).seqno
            view.close()
        assert [memory() for memory in old] == [None] * len(old)
        store.staging.mutation(0, b"more", b"", cas=1, rev_seqno=1)
        history.add(store.index.high_seqno(0), b"more", b"")
        commit(store)
    check_view(store, 0, history)


def test_the_index_gives_memory_back() -> None:
    store = open_store(FaultyDisk(), arena_bytes=1 << 20, segment_bytes=1 << 22)
    overwritten(store, rounds=300)
    before = store.index.nbytes()
    compact(store)
    assert store.index.nbytes() < before / 10


def test_many_segments_come_out_as_many_as_are_needed() -> None:
    store = open_store(FaultyDisk())
    history = History()
    for number in range(60):
        key, value = b"%d" % number, b"x" * 1500
        history.add(store.staging.mutation(0, key, value, cas=1, rev_seqno=1), key, value)
        commit(store)
    compact(store)
    assert 60 * 1500 / 16544 < len(store.log.segments) < 12
    check_view(store, 0, history)


def test_cancelling_or_closing_waits_for_the_thread_that_copies_and_leaves_one_whole_store() -> None:
    for turn in range(6):
        disk = FaultyDisk()
        store = open_store(disk)
        history = overwritten(store)
        store.log.seal()
        job = announced(store)
        with ThreadPoolExecutor(1) as pool:
            copying = pool.submit(job.copy)
            if turn % 2:
                job.cancel()
                check_documents(store, 0, history)
            store.close()
            assert copying.exception() is None or isinstance(copying.exception(), StorageError)
        store = open_store(disk)
        check_documents(store, 0, history)
        compact(store)
        store.close()
        check_documents(open_store(disk), 0, history)


def test_a_swap_that_was_left_half_done_is_finished_by_cancelling() -> None:
    store = open_store(FaultyDisk())
    history = overwritten(store)
    store.staging.mutation(1, b"k", b"", cas=1, rev_seqno=1)
    commit(store)
    store.log.seal()
    job = announced(store)
    job.copy()
    next(job.swap())
    job.cancel()
    check_documents(store, 0, history)
    assert (store.slots.oldest_retired, store.slots.readers) == (None, 0)
    compact(store)
    check_documents(store, 0, history)


def test_a_rollback_that_is_lost_between_two_steps_of_a_swap_leaves_every_document() -> None:
    """Without the rows that it took the whole log is indexed anew, the new files with it: nothing is left to swap."""
    store = open_store(FaultyDisk())
    for vb in (0, 1):
        for number in range(20):
            store.staging.mutation(vb, b"%d" % (number % 4), b"", cas=1, rev_seqno=1)
        commit(store)
    store.log.seal()
    for vb in (0, 1):
        for number in range(20):
            store.staging.mutation(vb, b"late %d" % number, b"", cas=1, rev_seqno=1)
        commit(store)
    job = announced(store, history_rows=lambda vb: 0)
    job.copy()
    swap = job.swap()
    next(swap)
    store.rollback(0, 30)
    batch = store.freeze()
    assert batch is not None
    store.abandon(batch, OSError(errno.EIO, "lost"))
    list(swap)
    for vb in (0, 1):
        assert seqnos_of(store, vb) == [*range(17, 41)]
        assert all(store.document(vb, b"late %d" % number) is not None for number in range(20))


@pytest.mark.parametrize("rolls_back", [False, True])
def test_changes_of_after_a_lost_batch_stay_where_the_new_files_were_published_by_then(rolls_back: bool) -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    history = overwritten(store)
    store.log.seal()
    job = announced(store)
    job.copy()
    if rolls_back:
        store.rollback(0, 0)
    store.staging.mutation(0, b"key 1", b"lost", cas=1, rev_seqno=1)
    batch = store.freeze()
    assert batch is not None
    store.abandon(batch, OSError(errno.EIO, "lost"))
    history.add(store.staging.mutation(0, b"key 1", b"late", cas=1, rev_seqno=1), b"key 1", b"late")
    list(job.swap())
    commit(store)
    check_documents(store, 0, history)
    store.close()
    check_documents(open_store(disk), 0, history)


def test_a_rollback_that_is_lost_while_the_new_files_come_into_the_log_takes_no_later_change_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The log is indexed anew either before it is decided that the new files come in, which stops the run, or behind
    that, with these files in it: what is staged by the time of the swap is in no file."""
    store = open_store(FaultyDisk())
    history = overwritten(store)
    store.log.seal()
    job = announced(store)
    store.rollback(0, 0)
    batch = store.freeze()
    assert batch is not None
    is_replacing, is_lost, replace = Event(), Event(), store.log.replace

    def replace_late(old: list[Segment], new: list[Segment]) -> None:
        is_replacing.set()
        is_lost.wait(0.2)  # whoever waits for this run first does not lose the batch meanwhile
        replace(old, new)

    monkeypatch.setattr(store.log, "replace", replace_late)
    with ThreadPoolExecutor(1) as beside:
        copied = beside.submit(job.copy)
        assert is_replacing.wait(10)
        store.abandon(batch, OSError(errno.EIO, "lost"))
        is_lost.set()
        copied.result()
    history.add(store.staging.mutation(0, b"key 1", b"late", cas=1, rev_seqno=1), b"key 1", b"late")
    list(job.swap())
    commit(store)
    check_documents(store, 0, history)


def seqnos_of(store: Store, vbucket: int) -> list[int]:
    with store.view(vbucket) as view:
        return [one.seqno for one in frames(view)]


@pytest.mark.parametrize(
    ("live", "dead", "room", "best"),
    [
        ([10, 10, 10], [5, 0, 5], 100, (0, 3)),  # all of it fits
        ([100, 10, 100], [5, 1, 5], 100, (0, 1)),
        ([100, 10, 100], [5, 20, 5], 120, (0, 2)),
        ([100, 100, 100], [0, 0, 0], 999, None),  # nothing to give back
        ([100, 100, 100], [50, 50, 50], 99, None),  # nothing fits
        ([640, 3200, 640], [100, 0, 120], 9999, (0, 3)),
        ([640, 64000, 640], [100, 0, 120], 99999, (2, 3)),  # what has no garbage is not worth it
    ],
)
def test_the_stretch_that_gives_back_the_most_is_taken(
    live: list[int], dead: list[int], room: int, best: tuple[int, int] | None
) -> None:
    assert best_stretch(np.array(live), np.array(dead), room) == best


def test_where_there_is_no_room_for_all_that_stays_a_part_is_rewritten_and_then_the_next() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    history = History()
    for number in range(80):  # every other one is overwritten
        name, value = b"%d" % (number if number % 2 else number % 10), b"%03d" % number * 600
        history.add(store.staging.mutation(0, name, value, cas=1, rev_seqno=1), name, value)
        commit(store)
    store.log.seal()
    disk.capacity = sum(inode.reserved for inode in disk._names.values()) + 4096
    stretches, before = 0, store.log.bytes
    made: set[int] = set()
    while (job := store.compact(history_rows=lambda vb: 0, spare=made)) is not None and job.survey():
        assert not job.is_whole
        job.announce()
        commit(store)
        job.copy()
        list(job.swap())
        job.remove()
        made.update(job.written)
        stretches += 1
    assert job is not None
    job.cancel()
    assert stretches > 1 and before - store.log.bytes > 30 * 1800
    check_documents(store, 0, history)
    disk.locks.clear()
    check_documents(open_store(disk), 0, history)


def test_on_a_roomy_disk_no_row_that_stays_is_looked_at_for_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def bytes_of(locs: object, rows: NDArray[np.uint32], segments: object) -> int:
        looked.append(len(rows))
        return 0

    monkeypatch.setattr(kernels, "bytes_of", bytes_of)
    store = open_store(FaultyDisk())
    history = overwritten(store)
    compact(store)
    assert not looked
    check_documents(store, 0, history)
    monkeypatch.setattr(module, "ROOMY_PARTS", 1 << 80)
    compact(store)
    assert looked


class Story:
    """A store in many small segments and two vbuckets, and what is in them: documents, tombstones, rollbacks, drops."""

    def __init__(self, seed: int) -> None:
        self.disk, self.random = FaultyDisk(), Random(seed)
        self.store = open_store(self.disk)
        self.histories = [History(), History()]
        self.states = [0, 0]

    def chapter(self) -> None:
        """A few changes, and the end of a segment."""
        self.changes()
        self.store.log.seal()

    def changes(self) -> None:
        for _ in range(self.random.randint(1, 5)):
            vb = self.random.randrange(2)
            history, name, kind = self.histories[vb], b"key %d" % self.random.randrange(4), self.random.random()
            if kind < 0.55:
                value = self.random.randbytes(self.random.choice((5, 300)))
                history.add(self.store.staging.mutation(vb, name, value, cas=1, rev_seqno=1), name, value)
            elif kind < 0.75:
                seqno = self.store.staging.deletion(vb, name, cas=1, rev_seqno=1, delete_time=50)
                history.add(seqno, name, None)
            elif kind < 0.85:
                reached = self.store.rollback(vb, max(0, history.high - self.random.randrange(6)))
                history.keep(reached, self.store.index.high_seqno(vb))
            elif kind < 0.9:
                self.store.drop(vb)
                self.histories[vb], self.states[vb] = History(), 0
            else:
                self.states[vb] = self.random.randint(1, 4)
                self.store.staging.record(vb, VBucketRecord(self.states[vb], ((5, 0),)))
            commit(self.store)

    def compact(self) -> None:
        """A stretch of the log, while changes go on."""
        first, rows = self.random.randrange(len(self.store.log.segments)), self.random.choice((0, 0, 2))
        job = self.store.compact(
            part=slice(first, first + self.random.randint(1, 3)),
            history_rows=lambda vb: rows,
            purge_before=self.random.choice((0, 100)),
        )
        if job is not None:
            assert job.survey()
            assert job._bytes_at_most() >= job._bytes_exactly()
            job.announce()
            commit(self.store)
            for step in (job.copy, lambda: list(job.swap()), job.remove, job.forget):
                if self.random.random() < 0.3:
                    self.changes()
                step()

    def check(self) -> None:
        for vb, history in enumerate(self.histories):
            check_documents(self.store, vb, history)
            check_view(self.store, vb, history)
            record = self.store.staging.records.get(vb)
            assert (record.state if record else 0) == self.states[vb]
            assert self.store.index.high_seqno(vb) >= history.high

    def reopen(self) -> None:
        numbers = self.numbers()
        self.disk.locks.clear()
        self.store = open_store(self.disk)
        assert self.numbers() == numbers
        self.check()

    def numbers(self) -> list[list[int]]:
        fields = (index.ROWS, index.KEYS, index.ITEMS, index.LIVE_BYTES, index.HIGH, index.PURGE, index.FLOOR)
        return self.store.table[:, [*fields, index.STATE]].tolist()


@pytest.mark.parametrize("seed", range(60))
def test_whatever_stretches_of_the_log_are_compacted_it_says_the_same(seed: int) -> None:
    """In memory at once, and when it is replayed."""
    story = Story(seed)
    for _ in range(12):
        for _ in range(story.random.randint(1, 4)):
            story.chapter()
        story.compact()
        story.check()
        if story.random.random() < 0.5:
            story.reopen()
