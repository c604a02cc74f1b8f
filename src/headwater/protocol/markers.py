"""The bytes of a snapshot marker, in the layout that its stream's connection has agreed to.

    V1      start, end, flags in the extras: nearly all
    V2.2    when there is a purge seqno to tell, to whom asked for it (controls.PURGE_SEQNOS)
    UPR     neither extras nor body: a boundary

Source: dcp 2.7, 14.
"""

from __future__ import annotations

from struct import Struct

from headwater.protocol.producer_stream import ProducerStream, StreamState
from headwater.wire import dcp, upr
from headwater.wire.dialect import Dialect
from headwater.wire.header import HEADER, Magic
from headwater.wire.opcodes import Opcode

_MARKER = Struct(HEADER.format + "QQI")


def encode_marker(stream: ProducerStream, start_seqno: int, end_seqno: int, flags: int, purge_seqno: int = 0) -> bytes:
    """A snapshot marker's bytes. A live change has one of its own, so this is the only message with a short way beside
    its declaration, which a test holds it to.

    In UPR a marker is a boundary, which declares whole what came before it. So a snapshot that was replaced before its
    end just goes on: nothing is sent (dcp 14).
    """
    if stream.dialect is Dialect.UPR:
        marker = upr.SnapshotMarker(vbucket=stream.vbucket, opaque=stream.opaque)
        return b"" if stream.state is StreamState.INSIDE else marker.encode()
    if purge_seqno:
        return _with_purge_seqno(stream, start_seqno, end_seqno, flags, purge_seqno)
    if stream.framing is None:
        header = (Magic.CLIENT_REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, 20, 0, stream.vbucket, 20, stream.opaque, 0)
        return _MARKER.pack(*header, start_seqno, end_seqno, flags)
    return dcp.SnapshotMarker(
        vbucket=stream.vbucket,
        opaque=stream.opaque,
        framing=stream.framing,
        start_seqno=start_seqno,
        end_seqno=end_seqno,
        flags=int(flags),
    ).encode()


def _with_purge_seqno(stream: ProducerStream, start_seqno: int, end_seqno: int, flags: int, purge_seqno: int) -> bytes:
    """V2.2 "if it has a purge seqno [...] to send. Absent numbers in V2 are 0" (dcp 2.7)."""
    return dcp.SnapshotMarkerV22(
        vbucket=stream.vbucket,
        opaque=stream.opaque,
        framing=stream.framing,
        start_seqno=start_seqno,
        end_seqno=end_seqno,
        flags=int(flags),
        max_visible_seqno=0,
        high_completed_seqno=0,
        purge_seqno=purge_seqno,
        high_prepared_seqno=0,
    ).encode()
