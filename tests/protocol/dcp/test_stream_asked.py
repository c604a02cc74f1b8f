from headwater.protocol.dcp.position import Position
from headwater.protocol.dcp.stream_asked import request_after
from headwater.wire import dcp, upr
from headwater.wire.dialect import Dialect

PLACE = Position(7, 0xAB, 40, 30, 50, ((0xAB, 10),))


def test_dcp_is_asked_with_the_snapshot_around_the_seqno() -> None:
    asked = dcp.StreamRequest.decode(request_after(PLACE, 90, 0xAB, 5, Dialect.DCP, flags=1))
    assert (asked.vbucket, asked.opaque, asked.flags, asked.vb_uuid) == (7, 5, 1, 0xAB)
    assert (asked.start_seqno, asked.end_seqno, asked.snap_start_seqno, asked.snap_end_seqno) == (40, 90, 30, 50)


def test_upr_is_asked_with_the_seqno_at_which_the_history_began() -> None:
    data = request_after(PLACE, 90, 0xAB, 5, Dialect.UPR)
    asked = upr.StreamRequest.decode(data)
    assert len(data) == 24 + 40
    assert (asked.start_seqno, asked.end_seqno, asked.vb_uuid, asked.high_seqno) == (40, 90, 0xAB, 10)
