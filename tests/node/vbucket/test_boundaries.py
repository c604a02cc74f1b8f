"""A replica that is fed by UPR: where its snapshots end it learns afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.protocol.dcp.position import ENDLESS
from headwater.wire.vbucket import State
from tests.node.streams.support import Producer, StreamDesk, told


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[StreamDesk]:
    made = StreamDesk(tmp_path / "store")
    made.bucket.vbuckets[0].set_state(State.REPLICA)
    made.bucket.vbuckets[0].follow([(0xB, 0)])
    made.bucket.vbuckets[0].pass_boundary(goes_on=True)
    made.commit()
    yield made
    made.close()


def test_what_came_since_the_last_boundary_is_seen_by_nobody(desk):
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    desk.commit()
    assert (vbucket.high_seqno, vbucket.durable_seqno, vbucket.is_receiving_snapshot) == (1, 0, True)
    vbucket.pass_boundary(goes_on=True)
    assert (vbucket.durable_seqno, vbucket.complete_seqno) == (1, 1)


def test_a_position_inside_a_snapshot_is_incomplete_and_at_a_boundary_whole(desk):
    vbucket = desk.bucket.vbuckets[0]
    assert vbucket.resume_position.complete
    desk.set(0, "a")
    inside = vbucket.resume_position
    assert (inside.seqno, inside.snapshot_start, inside.snapshot_end) == (1, 0, ENDLESS)
    vbucket.pass_boundary(goes_on=True)
    assert vbucket.resume_position.complete
    vbucket.pass_boundary(goes_on=False)
    assert (vbucket.snapshot_start, vbucket.snapshot_end) == (1, 1)


def test_going_back_leads_to_the_last_boundary(desk):
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    vbucket.pass_boundary(goes_on=True)
    desk.set(0, "a")
    desk.commit()
    assert vbucket.roll_back(2) == 1
    assert desk.store.document(0, b"a").seqno == 1


def test_whoever_becomes_active_keeps_all_and_branches_off_at_the_boundary(desk):
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    vbucket.pass_boundary(goes_on=True)
    desk.set(0, "b")
    vbucket.set_state(State.ACTIVE)
    desk.commit()
    assert vbucket.failover.entries[0][1] == 1
    assert (vbucket.high_seqno, vbucket.durable_seqno) == (2, 2)


def test_readers_of_a_replica_are_sent_whole_snapshots_with_their_ends(desk):
    vbucket = desk.bucket.vbuckets[0]
    desk.set(0, "a")
    vbucket.pass_boundary(goes_on=True)
    desk.commit()
    reader = Producer(desk)
    reader.stream()
    assert told(reader.read()) == [("marker", 0, 1, 6), ("mutation", 1, "a")]
    desk.set(0, "b")
    desk.set(0, "a")
    desk.commit()
    assert told(reader.read()) == []
    vbucket.pass_boundary(goes_on=True)
    assert reader.connection.woken
    assert told(reader.read()) == [("marker", 1, 3, 5), ("mutation", 2, "b"), ("mutation", 3, "a")]


def test_it_is_the_same_after_a_restart(tmp_path: Path):
    first = StreamDesk(tmp_path / "store")
    first.bucket.vbuckets[0].set_state(State.REPLICA)
    first.bucket.vbuckets[0].pass_boundary(goes_on=True)
    first.set(0, "a")
    first.bucket.vbuckets[0].pass_boundary(goes_on=True)
    first.set(0, "b")
    first.commit()
    first.close()
    again = StreamDesk(tmp_path / "store")
    vbucket = again.bucket.vbuckets[0]
    assert (vbucket.high_seqno, vbucket.complete_seqno, vbucket.snapshot_end) == (2, 1, ENDLESS)
    assert vbucket.roll_back(2) == 1
    again.close()
