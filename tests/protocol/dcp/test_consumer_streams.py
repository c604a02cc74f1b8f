"""The checks of each message of a stream: every error of dcp 9."""

import pytest

from headwater.protocol.dcp.events import (
    Changed,
    Ended,
    Marked,
)
from headwater.protocol.dcp.position import Position
from headwater.wire import dcp
from headwater.wire.header import Frame, Magic
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status
from tests.protocol.dcp.consumer_talk import (
    LOG,
    VB,
    Talk,
    marker,
    mutation,
)


@pytest.mark.parametrize("opcode", [0x5F, 0x60, 0x62, 0x63, 0x65, 0x66, 0x67])
def test_what_was_not_negotiated_is_not_skipped(opcode: int) -> None:
    talk = Talk()
    stream = talk.open()
    answer = talk.one(Frame(Magic.CLIENT_REQUEST, opcode, b"k", bytes(16), vbucket=VB, opaque=stream.opaque))
    assert answer.status == Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        (mutation(1, 0), Status.EINVAL),
        (mutation(1, 4), Status.ERANGE),
        (mutation(1, 5), Status.ERANGE),
        (mutation(1, 11), Status.ERANGE),
        (mutation(1, 6, nmeta=3), Status.EINVAL),
        (mutation(2, 6), Status.OPAQUE_NO_MATCH),
        (mutation(1, 6, vbucket=9), Status.DCP_STREAM_NOT_FOUND),
        (marker(1, 9, 8), Status.EINVAL),
        (marker(1, 1, 5), Status.ERANGE),
        (marker(2, 11, 12), Status.OPAQUE_NO_MATCH),
        (Frame(0x80, Opcode.DCP_SNAPSHOT_MARKER, extras=b"\1", value=bytes(36), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_SNAPSHOT_MARKER, extras=b"\0", value=bytes(52), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_MUTATION, b"k", bytes(30), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_MUTATION, b"", bytes(7) + b"\6" + bytes(23), vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_DELETION, b"k", bytes(7) + b"\6" + bytes(13), b"v", 1, VB, 1), Status.EINVAL),
        (Frame(0x08, Opcode.DCP_MUTATION, b"k", bytes(31), vbucket=VB, opaque=1, framing=b"\x22\0\1"), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_SET_VBUCKET_STATE, extras=b"\5", vbucket=VB, opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_STREAM_END, extras=bytes(4), vbucket=9, opaque=1), Status.DCP_STREAM_NOT_FOUND),
        (Frame(0x80, Opcode.DCP_FLUSH, vbucket=VB, opaque=1), Status.NOT_SUPPORTED),
        (Frame(0x80, Opcode.DCP_OPEN, b"n", bytes(8), opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_NOOP, value=b"x", opaque=1), Status.EINVAL),
        (Frame(0x80, Opcode.DCP_CLOSE_STREAM, vbucket=9, opaque=1), Status.DCP_STREAM_NOT_FOUND),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(frame: Frame, status: Status) -> None:
    talk = Talk()
    stream = talk.open(Position(VB, LOG[0][0], 5, 5, 5, LOG))
    talk.give(marker(stream.opaque, 6, 10))
    before = talk.end.table.rows[VB].tolist()
    assert talk.one(frame).status == status
    assert talk.end.table.rows[VB].tolist() == before
    (event,) = talk.give(mutation(stream.opaque, 6))
    assert isinstance(event, Changed)


def test_a_change_before_any_marker_is_out_of_range() -> None:
    talk = Talk()
    assert talk.one(mutation(talk.open().opaque, 1)).status == Status.ERANGE


def test_the_end_of_another_stream_is_ignored() -> None:
    talk = Talk()
    stream = talk.open()
    assert talk.give(dcp.StreamEnd(vbucket=VB, opaque=stream.opaque + 1, status=0).frame()) == []
    assert talk.sent() == []
    assert talk.give(dcp.StreamEnd(vbucket=VB, opaque=stream.opaque, status=2).frame()) == [Ended(stream, 2)]


def test_markers_of_every_version_are_read() -> None:
    talk = Talk()
    stream = talk.open()
    v2 = dcp.SnapshotMarkerV2(
        vbucket=VB,
        opaque=stream.opaque,
        start_seqno=1,
        end_seqno=2,
        flags=2,
        max_visible_seqno=2,
        high_completed_seqno=0,
    )
    assert talk.give(v2.frame()) == [Marked(stream, 1, 2, 2)]


def test_a_purge_seqno_is_taken_from_a_marker_of_version_2_2_and_not_from_above_its_end() -> None:
    talk = Talk()
    stream = talk.open()
    told = (
        f"8056000001000014000000350000000{stream.opaque:x}0000000000000000" + "02" + "00000000000000010000000000000009"
        "00000006" + "00000000000000000000000000000000" + "{:016x}" + "0000000000000000"
    )
    assert talk.give(Frame.decode(bytes.fromhex(told.format(4)))) == [Marked(stream, 1, 9, 6, 4)]
    assert talk.give(Frame.decode(bytes.fromhex(told.format((1 << 64) - 1)))) == [Marked(stream, 1, 9, 6, 9)]


def test_the_highest_deleted_revision_is_read_from_who_agreed_to_tell_it() -> None:
    for refused, read in ((), 8), (("headwater_deleted_rev",), 0):
        talk = Talk()
        stream = talk.open(refused=refused)
        told = dcp.SnapshotMarkerV22(
            vbucket=VB,
            opaque=stream.opaque,
            start_seqno=1,
            end_seqno=9,
            flags=6,
            max_visible_seqno=0,
            high_completed_seqno=0,
            purge_seqno=4,
            high_prepared_seqno=8,
        )
        assert talk.give(told.frame()) == [Marked(stream, 1, 9, 6, 4, read)]
