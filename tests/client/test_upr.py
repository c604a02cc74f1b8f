"""The client against a producer which knows no DCP: no HELLO, no map, no controls, streams in UPR."""

from __future__ import annotations

import pytest

from headwater import client
from headwater.client import Deletion, Expiration, Mutation, blocking
from headwater.protocol.dcp.position import Position
from headwater.testing.peers import Peer, history, serve
from tests.upr_peer import BRANCH, Change, UprPeer, three_snapshots

READ = [
    (1, b"k1", b"v"),
    (2, b"k2", b"v"),
    (3, b"k3", b"v"),
    (4, b"k4", b"v"),
    (5, b"k5", b"v"),
    (6, b"k1", b"again"),
    (7, b"k2", None),
    (8, b"k3", None),
    (9, b"k6", b"v"),
    (10, b"k7", b"\0" * 3000),
]


Seen = list[tuple[int, bytes, bytes | None]]


def told(event: object) -> Seen:
    """A change as it is expected; nothing of a marker."""
    if not isinstance(event, Mutation | Deletion | Expiration) or event.vbucket:
        return []
    return [(event.seqno, event.key, event.value if isinstance(event, Mutation) else None)]


def read(address: str, start: object = None) -> tuple[Seen, dict[int, Position]]:
    """Return the changes that a drain until now brings of vbucket 0, and where it ends."""
    with blocking.connect(address) as bucket, bucket.changes(start, until="now") as changes:
        seen = [each for event in changes for each in told(event)]
        return seen, dict(changes.positions)


def read_through(address: str) -> Seen:
    """The same, by an application that goes back where it must (docs/howto/read-changes.md)."""
    seen: Seen = []
    saved: list[Position] = []
    with blocking.connect(address) as bucket:
        changes = bucket.changes(until="now")
        while True:
            try:
                for event in changes:
                    seen += told(event)
                    saved += changes.positions.values()
            except client.RollbackRequired as error:
                point = client.safe_point(saved, error.vbucket, error.common)
                seen = [each for each in seen if each[0] <= point.seqno]
                changes = bucket.changes(dict(changes.positions) | {error.vbucket: point}, until="now")
            else:
                return seen


def test_a_drain_of_a_producer_that_speaks_upr_alone_brings_all_of_it() -> None:
    producer = UprPeer(vbuckets=4, held={0: three_snapshots(), 3: [[Change(b"other")]]})
    with serve(producer) as address:
        seen, positions = read(address)
    assert seen == READ
    assert (positions[0].seqno, positions[3].seqno) == (10, 1)


def test_a_drain_goes_on_from_a_position() -> None:
    producer = UprPeer(vbuckets=1, held={0: three_snapshots()[:2]})
    with serve(producer) as address:
        seen, positions = read(address)
        assert seen == READ[:7]
        producer.held[0].append(three_snapshots()[2])
        seen, _ = read(address, positions)
    assert seen == READ[7:]
    assert producer.asked[-1] == (0, 7, *BRANCH)


@pytest.mark.parametrize("cut", [200, 700, 1000, 1100, 1300])
def test_a_connection_that_breaks_loses_nothing_and_what_comes_twice_was_given_up(cut: int) -> None:
    producer = UprPeer(vbuckets=1, held={0: three_snapshots()}, cuts=[1 << 20, cut])
    with serve(producer) as address:
        assert read_through(address) == READ
    assert producer.connections > 2


def test_each_position_on_the_way_names_the_boundary_behind_it() -> None:
    producer = UprPeer(vbuckets=1, held={0: three_snapshots()})
    for markers in (True, False):
        with serve(producer) as address, blocking.connect(address) as bucket:
            changes = bucket.changes(until="now", markers=markers)
            seen = [changes.positions[0] for event in changes if told(event)]
            end = changes.positions[0]
        assert [position.snapshot_start for position in seen] == [0, 0, 0, 0, 0, 5, 5, 7, 7, 7]
        assert [position.complete for position in seen] == [False] * 10
        assert (end.seqno, end.complete) == (10, True)


def test_positions_are_right_where_markers_are_no_events() -> None:
    with serve(Peer(histories={0: history(12)})) as address, blocking.connect(address) as bucket:
        changes = bucket.changes(until="now", markers=False)
        seen = [changes.positions[0] for event in changes if told(event)]
    assert [(position.snapshot_start, position.snapshot_end) for position in seen][2:6] == [
        (0, 5),
        (0, 5),
        (5, 5),
        (5, 10),
    ]
