"""Replay refuses frames that no version of the store wrote, with file and offset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

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


def replayed(*frames: bytes) -> tuple[Replay, Index]:
    body = b"".join(frames)
    segment = Segment.create(FaultyDisk(), Path("/store"), SegmentHeader(bytes(16), 1, 2, 0), 4096, 64)
    segment.writable().write([body], 112)
    segment.end = 112 + len(body)
    into = Index(2, (1, 2))
    replay = Replay(into, Slots())
    replay.segment(OpenedSegment(segment, np.array([[112, 112 + len(body)]], np.int64)))
    replay.finish()
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
