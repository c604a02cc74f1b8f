"""The files compaction writes are segments like any other."""

from __future__ import annotations

import errno
import threading

import pytest

from headwater.errors import DiskFull, StorageError
from headwater.node.storage import compacted
from headwater.node.storage.compacted import CompactedWriter
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.recovery import reread
from headwater.node.storage.store import Store
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, compact, frames, open_store


def test_a_document_larger_than_a_segment_gets_a_segment_that_holds_it() -> None:
    store = open_store(FaultyDisk(), arena_bytes=1 << 17)
    store.log.segment_bytes = 1 << 12
    for number, size in enumerate((10, 90_000, 10, 3000, 3000)):
        store.staging.mutation(0, b"%d" % number, b"x" * size, cas=1, rev_seqno=1)
    commit(store)
    compact(store)
    with store.view(0) as view:
        assert [len(one.value) for one in frames(view)] == [10, 90_000, 10, 3000, 3000]
    assert all(len(segment.memory) == segment.end for segment in store.log.segments[:-1])


def test_records_come_first_and_what_is_written_is_verified_like_the_log() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    for vb in (0, 1):
        store.staging.record(vb, VBucketRecord(1 + vb))
    store.staging.mutation(1, b"k", b"v", cas=1, rev_seqno=1)
    commit(store)
    compact(store)
    first = store.log.segments[0]
    ((begin, _), *_) = reread(first).bodies.tolist()
    assert [first.memory[begin + 1], first.header.first_batch] == [0xF0, 0]


def test_files_that_are_not_wanted_are_removed() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    before = set(disk.files())
    writer = CompactedWriter(store.log)
    writer.records([], {0: VBucketRecord(1)})
    assert writer.finish() > 100
    assert len(disk.files()) == len(before) + 1
    writer.discard()
    assert set(disk.files()) == before


def filled(store: Store, number: int = 60) -> None:
    for each in range(number):
        store.staging.mutation(0, b"%d" % each, b"%04d" % each * 250, cas=1, rev_seqno=1)
    commit(store)


class Watching(FaultyDisk):
    """A disk on which each write of a batch waits for its turn, and tells who asked."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = threading.Semaphore(0)
        self.watched = False
        self.threads: list[str] = []

    def turn(self) -> OSError | None:
        if self.watched:
            self.threads.append(threading.current_thread().name)
            if self.threads[-1].startswith("headwater-compaction"):
                assert self.turns.acquire(timeout=120)
        return super().turn()


def writers() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith("headwater-compaction")]


def test_batches_are_written_in_order_by_another_thread_and_read_back_like_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacted, "BATCH_BYTES", 4096)
    store = open_store(FaultyDisk(), arena_bytes=1 << 17)
    filled(store)
    compact(store)
    bodies = [len(reread(segment).bodies) for segment in store.log.segments[:-1]]
    assert sum(bodies) >= 60 // 3
    with store.view(0) as view:
        assert [one.value for one in frames(view)] == [b"%04d" % each * 250 for each in range(60)]
    store.close()
    assert not writers()


def test_no_more_batches_gather_than_there_are_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the other thread's writes is let through only once the copying thread has come to a standstill."""
    monkeypatch.setattr(compacted, "BATCH_BYTES", 4096)
    disk = Watching()
    store = open_store(disk, arena_bytes=1 << 17)
    filled(store)
    store.log.seal()
    job = store.compact(history_rows=lambda vb: 0)
    assert job is not None
    job.survey()
    job.announce()
    commit(store)
    waiting: list[int] = []
    plain = compacted.CompactedWriter._wait

    def wait(writer: compacted.CompactedWriter, most: int) -> None:
        waiting.append(len(writer._under_way))
        disk.turns.release()
        plain(writer, most)

    monkeypatch.setattr(compacted.CompactedWriter, "_wait", wait)
    disk.watched = True
    job.copy()
    assert 1 < max(waiting) <= compacted.BUFFERS
    for _ in job.swap():
        pass
    with store.view(0) as view:
        assert [one.value for one in frames(view)] == [b"%04d" % each * 250 for each in range(60)]


@pytest.mark.parametrize("nth", [1, 2, 5])
@pytest.mark.parametrize(("number", "kind"), [(errno.EIO, StorageError), (errno.ENOSPC, DiskFull)])
def test_what_goes_wrong_in_the_other_thread_comes_out_of_copy(
    nth: int, number: int, kind: type[StorageError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacted, "BATCH_BYTES", 4096)
    disk = FaultyDisk()
    store = open_store(disk, arena_bytes=1 << 17)
    filled(store)
    before = set(disk.files())
    store.log.seal()
    job = store.compact(history_rows=lambda vb: 0)
    assert job is not None
    job.survey()
    job.announce()
    commit(store)
    created = 5  # create, reserve, write, sync, sync of the folder: then come the batches
    disk.fail(created + nth, number)
    with pytest.raises(kind):
        job.copy()
    assert not writers()
    job.cancel()
    assert store.document(0, b"59") is not None
    assert len(set(disk.files()) - before) == 1  # the segment that goes on since the seal
    compact(store)
    with store.view(0) as view:
        assert len(list(frames(view))) == 60
