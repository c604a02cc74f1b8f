"""Replay refuses frames that no version of the store wrote, with file and offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import CorruptStore
from headwater.kernels import index
from headwater.node.storage.columns import Index
from headwater.node.storage.records import (
    VBucketRecord,
    clean_frame,
    deletion_frame,
    drop_frame,
    mutation_frame,
    record_frame,
    rollback_frame,
)
from headwater.node.storage.replay import OpenedSegment, Replay
from headwater.node.storage.segment import Segment, SegmentHeader
from headwater.node.storage.slots import Slots
from headwater.testing.faults import FaultyDisk

FIRST = mutation_frame(0, b"k", b"1", seqno=1, cas=5, rev_seqno=1)
SECOND = mutation_frame(0, b"k", b"2", seqno=2, cas=6, rev_seqno=2)


def replayed(*frames: bytes, vbuckets: int = 2, threads: int | None = None) -> tuple[Replay, Index]:
    body = b"".join(frames)
    segment = Segment.create(FaultyDisk(), Path("/store"), SegmentHeader(bytes(16), 1, 2, 0), 1 << 20, 64)
    segment.writable().write([body], 112)
    segment.end = 112 + len(body)
    into = Index(vbuckets, (1, 2))
    replay = Replay(into, Slots(), threads)
    replay.run([OpenedSegment(segment, np.array([[112, 112 + len(body)]], np.int64))])
    return replay, into


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (SECOND[:-1], "a frame is longer than its batch"),
        (SECOND[:6] + b"\0\2" + SECOND[8:], "vbucket 2, which the store does not have"),
        (FIRST, "vbucket 0 is not above"),
        (SECOND[:1] + b"\x56" + SECOND[2:], "never writes"),
        (SECOND[:4] + b"\x1e" + SECOND[5:], "never writes"),
        (record_frame(2, VBucketRecord(1)), "vbucket 2, which the store does not have"),
        (record_frame(0, VBucketRecord(1))[:-3] + b"???", "can't be read"),
    ],
)
def test_a_frame_that_makes_no_sense_is_refused_with_its_place(frame: bytes, why: str) -> None:
    with pytest.raises(CorruptStore, match=why) as caught:
        replayed(FIRST, frame)
    assert caught.value.offset == 112 + len(FIRST)
    assert caught.value.path == Path("/store/0000000001.log")


def test_a_rollback_in_the_log_is_done_again_and_the_records_numbers_with_it() -> None:
    record = VBucketRecord(1, ((9, 0),), purge_seqno=3, rollback_floor=1, high_seqno=2)
    replay, into = replayed(FIRST, SECOND, record_frame(0, record), rollback_frame(0, 1, 1))
    row = into.table[0]
    assert [int(row[field]) for field in (index.ROWS, index.HIGH, index.DURABLE_HIGH, index.CAS)] == [1, 1, 1, 6]
    assert (replay.records[0].high_seqno, replay.records[0].purge_seqno) == (1, 3)
    replay, into = replayed(FIRST, record_frame(0, record), rollback_frame(0, 0, 0))
    assert replay.records[0] == VBucketRecord(1, ((9, 0),))


def test_of_tombstones_the_highest_revision_is_remembered_until_the_vbucket_goes() -> None:
    gone = [
        deletion_frame(0, b"k", seqno=seqno, cas=7, rev_seqno=rev, delete_time=1) for seqno, rev in ((5, 9), (6, 4))
    ]
    record = VBucketRecord(1, ((9, 0),), deleted_rev=3)
    for frames, rev in (
        (gone, 9),
        ([*gone, record_frame(0, record)], 9),
        ([record_frame(0, record)], 3),
        ([record_frame(0, record), *gone, rollback_frame(0, 0, 0)], 9),
        ([record_frame(0, record), *gone, drop_frame(0)], 0),
    ):
        assert int(replayed(*frames)[1].table[0, index.DELETED_REV]) == rev


def test_only_the_very_last_frame_can_say_that_the_store_was_closed_in_order() -> None:
    assert replayed(FIRST, clean_frame())[0].clean
    assert not replayed(clean_frame(), FIRST)[0].clean
    assert not replayed(clean_frame(), rollback_frame(0, 0, 0))[0].clean


def _frames(changes: list[tuple[int, int, int]]) -> Iterator[bytes]:
    """Frames of (vbucket, kind, number) with seqnos that rise in each vbucket."""
    highs = [0] * 5
    for vb, kind, number in changes:
        if kind == 0:
            highs[vb] = number % (highs[vb] + 1)
            yield rollback_frame(vb, highs[vb], highs[vb])
        elif kind == 1:
            highs[vb] = 0
            yield drop_frame(vb)
        elif kind == 2:
            yield record_frame(vb, VBucketRecord(1, ((9, 0),), high_seqno=highs[vb]))
        else:
            highs[vb] += 1
            yield mutation_frame(vb, b"k%d" % (number % 7), b"v" * number, seqno=highs[vb], cas=1, rev_seqno=1)


def _facts(replay: Replay, into: Index) -> object:
    """All that an index says, but for addresses, and for where a hash table has a row."""
    fields = [index.ROWS, index.KEYS, index.HIGH, index.ITEMS, index.LIVE_BYTES, index.DURABLE_ROWS, index.CAS]
    rows = [
        tuple(getattr(into.columns[vb], name)[: into.rows(vb)].tolist() for name in ("seq", "loc", "prev", "next"))
        for vb in range(5)
    ]
    newest = [sorted(set(into.columns[vb].slots.tolist()) - {0xFFFFFFFF}) for vb in range(5)]
    return into.table[:, fields].tolist(), rows, newest, replay.records, replay.clean


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0, 1, 2, *[3] * 12]), st.integers(0, 50)), max_size=80))
def test_several_threads_find_what_one_does(changes: list[tuple[int, int, int]]) -> None:
    frames = [*_frames(changes), clean_frame()]
    alone = _facts(*replayed(*frames, vbuckets=5, threads=1))
    for threads in (2, 3, 8):
        assert _facts(*replayed(*frames, vbuckets=5, threads=threads)) == alone
    rows, newest = alone[1], alone[2]  # type: ignore[index]
    for (_, _, _, nexts), held in zip(rows, newest, strict=True):
        assert held == [row for row, after in enumerate(nexts) if after == 0xFFFFFFFF]


def test_of_what_several_threads_find_wrong_the_first_in_the_log_is_raised() -> None:
    fifth = mutation_frame(4, b"k", b"1", seqno=1, cas=5, rev_seqno=1)
    with pytest.raises(CorruptStore, match="vbucket 4 is not above") as caught:
        replayed(FIRST, fifth, fifth, FIRST, vbuckets=5, threads=2)
    assert caught.value.offset == 112 + len(FIRST) + len(fifth)
