"""Stream requests on a DCP connection: many at once, with other messages between them, for damaged vbuckets."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from headwater.errors import RemoteProtocolError
from headwater.node.dcp.producer import STREAMS_OPENED_AT_ONCE
from headwater.wire import dcp
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.node.streams.support import Producer, StreamDesk, fill, spoil, told

# --------------------------------------------------------------------------- many requests at once


def requests(vbuckets: range) -> bytes:
    return b"".join(
        dcp.StreamRequest(vbucket=vb, opaque=vb, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0).encode()
        for vb in vbuckets
    )


def test_requests_that_come_together_are_answered_together_and_in_order(desk: StreamDesk) -> None:
    reader = Producer(desk)
    before = len(reader.connection.sent)
    reader.give(requests(range(4)))
    assert len(reader.connection.sent) == before + 1
    answers = reader.buffer.receive_data(reader.bytes_sent())
    assert [(answer.opaque, answer.status) for answer in answers] == [(vb, Status.SUCCESS) for vb in range(4)]


def test_while_many_streams_are_opened_the_first_ones_send_already(tmp_path: Path) -> None:
    with closing(StreamDesk(tmp_path / "store", vbuckets=128)) as desk:
        for vb in range(128):
            desk.set(vb, "key")
        desk.commit()
        reader = Producer(desk)
        reader.give(requests(range(128)))
        frames = reader.buffer.receive_data(reader.bytes_sent())
        opened = [frame.opaque for frame in frames if frame.opcode == Opcode.DCP_STREAM_REQ]
        assert opened == list(range(128))
        assert Opcode.DCP_MUTATION in {frame.opcode for frame in frames[: STREAMS_OPENED_AT_ONCE + 2]}
        frames += reader.read()
    for vb in range(128):
        mine = [frame.opcode for frame in frames if frame.opaque == vb]
        assert mine == [Opcode.DCP_STREAM_REQ, Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]


def test_what_came_before_a_frame_that_ends_it_all_is_answered(desk: StreamDesk) -> None:
    reader = Producer(desk)
    with pytest.raises(RemoteProtocolError):
        reader.give(requests(range(2)) + dcp.StreamEnd(status=0).encode())
    assert len(reader.buffer.receive_data(reader.bytes_sent())) == 2


def test_a_control_between_two_requests_changes_the_encoding_of_the_second(desk: StreamDesk) -> None:
    reader = Producer(desk, flags=0x21)
    reader.stream(0, 1)
    reader.control("enable_expiry_opcode", "true")
    reader.stream(1, 2)
    for vb in (0, 1):
        desk.set(vb, "k")
        desk.delete(vb, "k", expired=True)
    desk.commit()
    assert [each[0] for each in told(reader.read())] == ["marker", "deletion", "marker", "expiration"]


# --------------------------------------------------------------------------- damage


def test_a_stream_of_a_damaged_vbucket_ends_and_is_refused_from_before_the_damage(desk: StreamDesk) -> None:
    fill(desk, 0, 3)
    reader = Producer(desk)
    reader.stream(0, 7)
    reader.stream(1, 8)
    reader.read()
    desk.set(0, "lost")
    desk.commit()
    spoil(desk)
    ends = [dcp.StreamEnd.decode(frame) for frame in reader.read() if frame.opcode == Opcode.DCP_STREAM_END]
    assert [(end.vbucket, end.status) for end in ends] == [(0, dcp.EndReason.BACKFILL_FAIL)]
    assert reader.request(0, 9, start_seqno=0).status == Status.EINTERNAL
    uuid = desk.bucket.vbuckets[0].failover.newest.vb_uuid
    assert reader.request(0, 10, start_seqno=4, vb_uuid=uuid).status == Status.SUCCESS
