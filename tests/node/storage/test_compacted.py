"""The files compaction writes are segments like any other."""

from __future__ import annotations

from headwater.node.storage.compacted import CompactedWriter
from headwater.node.storage.records import VBucketRecord
from headwater.node.storage.recovery import reread
from headwater.testing.faults import FaultyDisk
from tests.node.storage.model import commit, compact, frames, open_store


def test_a_document_larger_than_a_segment_gets_a_segment_that_holds_it() -> None:
    store = open_store(FaultyDisk(), arena_bytes=1 << 17)
    store._log.segment_bytes = 1 << 12
    for number, size in enumerate((10, 90_000, 10, 3000, 3000)):
        store.stage_mutation(0, b"%d" % number, b"x" * size, cas=1, rev_seqno=1)
    commit(store)
    compact(store)
    with store.view(0) as view:
        assert [len(one.value) for one in frames(view)] == [10, 90_000, 10, 3000, 3000]
    assert all(len(segment.memory) == segment.end for segment in store._log.segments[:-1])


def test_records_come_first_and_what_is_written_is_verified_like_the_log() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    for vb in (0, 1):
        store.stage_record(vb, VBucketRecord(1 + vb))
    store.stage_mutation(1, b"k", b"v", cas=1, rev_seqno=1)
    commit(store)
    compact(store)
    first = store._log.segments[0]
    ((begin, _), *_) = reread(first).bodies.tolist()
    assert [first.memory[begin + 1], first.header.first_batch] == [0xF0, 0]


def test_files_that_are_not_wanted_are_removed() -> None:
    disk = FaultyDisk()
    store = open_store(disk)
    before = set(disk.files())
    writer = CompactedWriter(disk, store._log, bytes)
    writer.records({0: VBucketRecord(1)})
    assert writer.finish() > 100
    assert len(disk.files()) == len(before) + 1
    writer.discard()
    assert set(disk.files()) == before
