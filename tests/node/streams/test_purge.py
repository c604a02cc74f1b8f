"""Purged tombstones, and the streams whose markers tell of them (dcp 2.7; decision 0033)."""

from __future__ import annotations

import pytest

from headwater.kernels import index
from headwater.wire.dcp import StreamFlag
from tests.node.streams.support import Producer, StreamDesk, told

DISK, FIRST, MEMORY = 0x06, 0x05, 0x01


@pytest.fixture
def purged(desk: StreamDesk) -> StreamDesk:
    """A vbucket of seqnos 1 and 4, whose tombstone 3 is gone."""
    for key in "abc":
        desk.set(0, key)
    desk.delete(0, "b")
    desk.set(0, "d")
    desk.commit()
    desk.store.table[0, index.PURGE] = 4
    return desk


def follower(desk: StreamDesk) -> Producer:
    """As our own consumer: it has asked to be told."""
    made = Producer(desk, flags=0x21)
    assert made.control("headwater_purge_seqno", "true") == 0
    return made


def markers(reader: Producer) -> list[tuple[object, ...]]:
    return [each[1:] for each in told(reader.read()) if each[0] == "marker"]


def test_a_backfill_tells_up_to_where_tombstones_were_purged(purged: StreamDesk) -> None:
    reader = follower(purged)
    reader.stream()
    assert markers(reader) == [(0, 5, DISK, 4)]


def test_who_did_not_ask_gets_the_markers_of_before(purged: StreamDesk) -> None:
    reader = Producer(purged, flags=0x21)
    reader.stream()
    assert markers(reader) == [(0, 5, DISK)]


def test_where_nothing_was_purged_there_is_nothing_to_tell(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.commit()
    reader = follower(desk)
    reader.stream()
    assert markers(reader) == [(0, 1, DISK)]


def test_who_was_sent_the_tombstones_is_not_told_that_they_are_gone_now(purged: StreamDesk) -> None:
    reader = follower(purged)
    reader.stream()
    reader.read()
    purged.delete(0, "a")
    purged.set(0, "e")
    purged.commit()
    assert markers(reader) == [(5, 7, FIRST)]
    purged.store.table[0, index.PURGE] = 6
    purged.set(0, "f")
    purged.commit()
    assert markers(reader) == [(7, 8, MEMORY)]


def test_a_backfill_of_which_nothing_is_left_is_made_up_for_by_the_first_marker(desk: StreamDesk) -> None:
    desk.set(0, "a")
    desk.delete(0, "a")
    desk.commit()
    desk.store.rollback(0, 0)
    desk.store.table[0, [index.HIGH, index.FROZEN_HIGH, index.DURABLE_HIGH, index.PURGE]] = 2
    reader = follower(desk)
    reader.stream()
    assert told(reader.read()) == []
    desk.set(0, "b")
    desk.commit()
    assert markers(reader) == [(0, 3, FIRST, 2)]
    desk.set(0, "c")
    desk.commit()
    assert markers(reader) == [(3, 4, MEMORY)]


def test_who_wants_no_rollback_for_a_purge_is_told_of_it(purged: StreamDesk) -> None:
    reader = follower(purged)
    uuid = purged.bucket.vbuckets[0].failover.newest.vb_uuid
    reader.stream(start_seqno=1, vb_uuid=uuid, flags=int(StreamFlag.IGNORE_PURGED_TOMBSTONES))
    assert markers(reader) == [(1, 5, DISK, 4)]
