"""The client's end of a stream from a producer that speaks UPR only."""

from __future__ import annotations

from headwater.protocol.dcp.events import Boundary, Ended, Opened, Refused, RollbackNeeded
from headwater.protocol.dcp.position import ENDLESS, Position
from headwater.wire import dcp, upr
from headwater.wire.status import Status
from tests.protocol.dcp.drain_talk import LOG, UUID, a_drain, accepted, answer, asked, feed, happened, outcome

BOUNDARY = upr.SnapshotMarker(opaque=2).encode()
OLD = {"window_bytes": 0, "silence_seconds": None}  # took no control
REFUSED = answer(Status.EINVAL)


def change(seqno: int) -> bytes:
    return upr.Mutation(opaque=2, cas=1, key=b"k%d" % seqno, value=b"v", by_seqno=seqno, rev_seqno=1).encode()


def test_a_request_that_is_not_understood_is_made_again_in_upr():
    drain = a_drain(**OLD)
    drain.request(Position(0, UUID, 5, 5, 5, LOG), 100, 0.0)
    assert len(drain.data_to_send()) == 24 + 48
    feed(drain, REFUSED)
    again = upr.StreamRequest.decode(drain.data_to_send())
    assert (again.opaque, again.start_seqno, again.end_seqno, again.vb_uuid) == (2, 5, 100, UUID)
    assert again.high_seqno == dict(LOG)[UUID]
    assert drain.events == []


def test_a_producer_that_refuses_both_is_believed():
    drain = asked(**OLD)
    feed(drain, REFUSED)
    drain.data_to_send()
    feed(drain, answer(Status.EINVAL, opaque=2))
    assert happened(drain.events) == [(0, Refused, 0, Status.EINVAL, b"")]


def test_a_connection_that_spoke_dcp_once_speaks_nothing_else():
    drain = accepted(**OLD)
    drain.request(Position(1), ENDLESS, 0.0)
    feed(drain, answer(Status.EINVAL, opaque=2))
    assert happened(drain.events)[-1] == (0, Refused, 1, Status.EINVAL, b"")


def test_a_producer_that_took_a_control_is_not_asked_in_upr():
    drain = asked()
    feed(drain, REFUSED)
    assert happened(drain.events) == [(0, Refused, 0, Status.EINVAL, b"")]


def test_half_a_snapshot_can_not_be_gone_on_from():
    drain = asked(Position(0, UUID, 5, 3, 9, LOG), **OLD)
    feed(drain, REFUSED)
    assert happened(drain.events) == [(0, RollbackNeeded, 0, 3, "UPR goes on from the end of a snapshot only")]


def test_boundaries_are_the_places_to_come_back_to():
    drain = asked(markers=False, **OLD)
    feed(drain, REFUSED)
    feed(drain, dcp.StreamResponse(opaque=2, failover_log=LOG).encode(), BOUNDARY, change(1), change(2))
    assert drain.position(0) == Position(0, UUID, 2, 0, ENDLESS)
    feed(drain, BOUNDARY)
    assert drain.position(0) == Position(0, UUID, 2, 2, 2)
    feed(drain, change(3))
    assert drain.position(0) == Position(0, UUID, 3, 2, ENDLESS)
    expired = upr.Expiration(opaque=2, cas=1, key=b"k1", by_seqno=4, rev_seqno=2).encode()
    feed(drain, expired, dcp.StreamEnd(opaque=2, status=0).encode())
    rows, events, _ = outcome(drain)
    assert [row["seqno"] for row in rows] == [1, 2, 3, 4]
    assert events == [
        (0, Opened, 0, tuple(LOG)),
        (0, Boundary, 0, True),
        (2, Boundary, 0, True),
        (4, Boundary, 0, False),
        (4, Ended, 0, 0),
    ]
    assert drain.position(0) == Position(0, UUID, 4, 4, 4)


def test_a_stream_that_was_broken_off_left_half_a_snapshot():
    drain = asked(**OLD)
    feed(drain, REFUSED)
    feed(drain, dcp.StreamResponse(opaque=2, failover_log=LOG).encode(), BOUNDARY, change(1))
    feed(drain, dcp.StreamEnd(opaque=2, status=1).encode())
    assert not drain.position(0).complete


def test_half_a_snapshot_is_not_even_asked_for_once_upr_is_known_to_be_spoken():
    drain = asked(**OLD)
    feed(drain, REFUSED)
    drain.data_to_send()
    drain.request(Position(3, UUID, 5, 3, 9, LOG), ENDLESS, 0.0)
    assert drain.data_to_send() == b""
    assert happened(drain.events) == [(0, RollbackNeeded, 3, 3, "UPR goes on from the end of a snapshot only")]
    assert drain.position(3) == Position(3, UUID, 5, 3, 9, LOG)
