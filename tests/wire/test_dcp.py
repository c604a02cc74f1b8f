"""DCP's versions side by side; every layout is also held to the vectors in test_vectors.py."""

import pytest

from headwater.errors import BadMessage, LocalProtocolError
from headwater.wire import dcp
from headwater.wire.dialect import Dialect, decode
from headwater.wire.header import Frame, Magic

HELLO_WORLD = dcp.Mutation(vbucket=0x210, opaque=0x1210, key=b"hello", value=b"world", by_seqno=4, rev_seqno=1, nru=0)
SPECIFIED = bytes.fromhex(
    "805700051f00021000000029000012100000000000000000"
    "00000000000000040000000000000001000000000000000000000000000000"
    "68656c6c6f776f726c64"
)
FOREVER = 0xFFFF_FFFF_FFFF_FFFF


def test_the_mutation_of_the_specification():
    assert len(SPECIFIED) == 65
    assert HELLO_WORLD.encode() == SPECIFIED and dcp.Mutation.decode(SPECIFIED) == HELLO_WORLD


@pytest.mark.parametrize(
    ("message", "extras", "value"),
    [
        (dcp.SnapshotMarker(start_seqno=1, end_seqno=8, flags=1), 20, 0),
        (dcp.SnapshotMarkerV2(start_seqno=1, end_seqno=8, flags=2, max_visible_seqno=8, high_completed_seqno=7), 1, 36),
        (
            dcp.SnapshotMarkerV22(
                start_seqno=1,
                end_seqno=8,
                flags=2,
                max_visible_seqno=8,
                high_completed_seqno=7,
                purge_seqno=3,
                high_prepared_seqno=8,
            ),
            1,
            52,
        ),
        (dcp.Deletion(key=b"k", by_seqno=1, rev_seqno=1), 18, 0),
        (dcp.DeletionV2(key=b"k", by_seqno=1, rev_seqno=1, delete_time=5), 21, 0),
        (dcp.Expiration(key=b"k", by_seqno=1, rev_seqno=1, delete_time=5), 20, 0),
        (dcp.Prepare(key=b"k", by_seqno=1, rev_seqno=1, durability_level=3), 31, 0),
        (dcp.SystemEvent(by_seqno=1, event=3, version=0, manifest_uid=4, scope_id=9), 13, 12),
        (dcp.SystemEvent(by_seqno=1, event=1, version=0, manifest_uid=4, scope_id=9, collection_id=8), 13, 16),
        (dcp.SystemEventV2(by_seqno=1, event=5, value=b"table"), 13, 5),
    ],
    ids=lambda each: type(each).__name__ if not isinstance(each, int) else None,
)
def test_versions_are_told_apart_by_their_lengths(message, extras, value):
    frame = message.frame()
    assert (len(frame.extras), len(frame.value)) == (extras, value)
    assert decode(frame, Dialect.DCP) == message


def test_a_marker_of_version_1_does_not_exist():
    frame = Frame(Magic.CLIENT_REQUEST, 0x56, extras=b"\x01", value=bytes(36))
    with pytest.raises(BadMessage, match="version is 1, expected 0; or version is 1, expected 2"):
        decode(frame, Dialect.DCP)


def test_a_marker_with_the_other_versions_length_is_refused():
    with pytest.raises(BadMessage, match="value is 52 bytes, expected 36"):
        decode(Frame(Magic.CLIENT_REQUEST, 0x56, extras=b"\x00", value=bytes(52)), Dialect.DCP)


def test_a_stream_request_asks_for_all_unless_told_otherwise():
    asked = dcp.StreamRequest(vbucket=7, opaque=0x77, start_seqno=0, snap_start_seqno=0, snap_end_seqno=0)
    assert (asked.end_seqno, asked.vb_uuid, asked.flags) == (FOREVER, 0, 0)
    assert decode(asked.encode(), Dialect.DCP) == asked


def test_the_failover_log_is_a_list_of_uuid_and_seqno():
    answer = dcp.StreamResponse(opaque=1, failover_log=[(0xFEEDDECA, 0x5432), (0xDECAFE, 4)])
    assert answer.encode()[24:].hex() == "00000000feeddeca00000000000054320000000000decafe0000000000000004"
    assert decode(answer.encode(), Dialect.DCP) == answer


def test_an_empty_failover_log_is_refused_both_ways():
    with pytest.raises(BadMessage, match="0 rows, at least 1 expected"):
        dcp.StreamResponse.decode(Frame(Magic.CLIENT_RESPONSE, 0x53))
    with pytest.raises(LocalProtocolError, match="failover_log: 0 rows"):
        dcp.StreamResponse(failover_log=[]).encode()


def test_a_failover_log_cut_inside_an_entry_is_refused():
    with pytest.raises(BadMessage, match=r"StreamResponse \(opcode 0x53\): 8 bytes expected at offset 16 of 20"):
        dcp.StreamResponse.decode(Frame(Magic.CLIENT_RESPONSE, 0x53, value=bytes(20)))


def test_a_stream_id_travels_in_the_framing():
    message = dcp.StreamEnd(vbucket=7, opaque=0x77, status=1, framing=b"\x22\x00\x47")
    assert message.encode().hex() == "08550300040000070000000700000077000000000000000022004700000001"


def test_every_change_begins_with_its_seqno():
    told = (dcp.Mutation(key=b"k", by_seqno=7, rev_seqno=1), dcp.Expiration(key=b"k", by_seqno=7, rev_seqno=1))
    assert [dcp.seqno_of(each.frame().extras) for each in (*told, dcp.SeqnoAdvanced(seqno=7))] == [7, 7, 7]
