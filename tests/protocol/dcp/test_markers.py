"""Snapshot markers in the bytes of each layout (dcp 2.7)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headwater.protocol.dcp.markers import Purged, encode_marker
from headwater.protocol.dcp.producer_stream import ProducerStream, SentMessage
from headwater.protocol.dcp.stream_request import Accepted
from headwater.wire import dcp
from headwater.wire.dialect import Dialect
from headwater.wire.framing import stream_id_framing

V22 = (
    "8056000001000007000000350000007700000000000000000200000000000000010000000000000009"
    "00000006000000000000000000000000000000000000000000000004" + "0000000000000000"
)


def stream(vbucket: int = 7, opaque: int = 0x77, dialect: Dialect = Dialect.DCP) -> ProducerStream:
    accepted = Accepted((vbucket, None), 0, 0, 0, 0)
    return ProducerStream(accepted.key, opaque, accepted, dialect=dialect)


@given(
    vbucket=st.integers(0, 0xFFFF),
    opaque=st.integers(0, 0xFFFF_FFFF),
    start=st.integers(0, (1 << 64) - 1),
    last=st.integers(0, (1 << 64) - 1),
    flags=st.integers(0, 63),
)
def test_the_short_way_to_a_marker_leads_to_the_declared_bytes(
    vbucket: int, opaque: int, start: int, last: int, flags: int
) -> None:
    declared = dcp.SnapshotMarker(
        vbucket=vbucket, opaque=opaque, start_seqno=start, end_seqno=last, flags=flags
    ).encode()
    assert encode_marker(stream(vbucket, opaque), start, last, flags) == declared


def test_a_purge_seqno_goes_out_in_a_marker_of_version_2_2() -> None:
    assert encode_marker(stream(), 1, 9, 6, Purged(4)).hex() == V22
    assert encode_marker(stream(), 1, 9, 6, Purged(4, 8)).hex() == V22[:-16] + "0000000000000008"
    assert encode_marker(stream(), 1, 9, 6, Purged(0, 8)) == encode_marker(stream(), 1, 9, 6)


def test_a_purge_seqno_goes_with_a_stream_id() -> None:
    tagged = stream()
    tagged.framing = stream_id_framing(3)
    assert encode_marker(tagged, 1, 9, 6, Purged(4)).hex() == (
        "08560300010000070000003800000077" + "00" * 8 + "220003" + V22[48:]
    )


def test_in_upr_a_marker_has_no_numbers_and_inside_a_snapshot_there_is_none() -> None:
    old = stream(dialect=Dialect.UPR)
    assert encode_marker(old, 1, 9, 6, Purged(4)).hex() == "805600000000000700000000000000770000000000000000"
    old.step(SentMessage.MARKER)
    assert encode_marker(old, 1, 9, 6, Purged(4)) == b""
