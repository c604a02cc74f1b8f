"""UPR's own forms; DCP's are read on a UPR connection, too."""

import pytest

from headwater.errors import BadMessage
from headwater.wire import dcp, upr
from headwater.wire.dialect import Dialect, decode

MUTATION = bytes.fromhex(
    "805700051e0002100000002800001210000064a5acec8a56"
    "0000000000000004000000000000000100000000000000000000000000006865"
    "6c6c6f776f726c64"
)


def test_a_mutation_is_one_byte_shorter():
    message = decode(MUTATION, Dialect.UPR)
    assert type(message) is upr.Mutation and message.encode() == MUTATION
    with pytest.raises(BadMessage, match="extras are 30 bytes, expected 31"):
        decode(MUTATION, Dialect.DCP)


@pytest.mark.parametrize(
    "message",
    [
        upr.StreamRequest(start_seqno=5, vb_uuid=7, high_seqno=3),
        upr.StreamRollback(rollback_seqno=400),
        upr.SnapshotMarker(vbucket=1),
        upr.Expiration(key=b"k", by_seqno=1, rev_seqno=1),
        upr.Flush(),
        dcp.Deletion(key=b"k", by_seqno=1, rev_seqno=1),
        dcp.StreamRequest(start_seqno=5, snap_start_seqno=5, snap_end_seqno=5),
        dcp.StreamRollback(rollback_seqno=400),
        dcp.SnapshotMarker(start_seqno=1, end_seqno=2, flags=1),
    ],
    ids=lambda message: f"{type(message).__module__.split('.')[-1]}.{type(message).__name__}",
)
def test_lengths_tell_the_dialects_apart(message):
    for dialect in (Dialect.UPR, Dialect.AUTO):
        again = decode(message.encode(), dialect)
        assert type(again) is type(message) and again == message


def test_the_stream_requests_differ_by_8_bytes():
    assert len(upr.StreamRequest(start_seqno=0).frame().extras) == 40
    assert len(dcp.StreamRequest(start_seqno=0, snap_start_seqno=0, snap_end_seqno=0).frame().extras) == 48
