"""The encodings of snapshot markers, in the layout that the connection agreed on, and of stream ends.

    V1      start, end, flags in the extras: the usual layout
    V2.0    for consumers that receive durable writes
    V2.2    if there is a purge seqno, and the consumer requested purge seqnos (controls.PURGE_SEQNOS)
    UPR     neither extras nor body: a boundary

Source: dcp 2.6, 2.7, 14.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.protocol.dcp.producer_stream import ProducerState, ProducerStream
from headwater.protocol.dcp.upr import end_status
from headwater.wire import dcp, upr
from headwater.wire.dcp import EndReason
from headwater.wire.dialect import Dialect


class Visible(NamedTuple):
    """The seqno of the last change other than a prepare or abort, and of the last completed prepare (0: unknown)."""

    seqno: int = 0
    completed_seqno: int = 0


class Purged(NamedTuple):
    """The tombstones that a producer has purged: the highest seqno, and the highest revision (0: unknown).

    `visible` has the numbers for consumers that receive durable writes; None for all others.
    """

    seqno: int = 0
    deleted_rev: int = 0
    visible: Visible | None = None


NOTHING_PURGED = Purged()


def encode_marker(
    stream: ProducerStream,
    start_seqno: int,
    end_seqno: int,
    flags: int,
    purge: Purged = NOTHING_PURGED,
) -> bytes:
    """Return a snapshot marker's bytes.

    In UPR a marker is a boundary: it declares that the changes before it are whole. So for a snapshot that replaces an
    incomplete one no marker is sent in UPR: the result is empty (dcp 14).
    """
    if stream.dialect is Dialect.UPR:
        marker = upr.SnapshotMarker(vbucket=stream.vbucket, opaque=stream.opaque)
        return b"" if stream.state is ProducerState.INSIDE else marker.encode()
    # The layout goes by what there is to send: V2.2 with a purge seqno, else V2.0 with the visible seqno, else V1 (dcp
    # 2.7).
    if purge.seqno:
        return _with_purged(stream, start_seqno, end_seqno, flags, purge)
    if purge.visible is not None:
        return dcp.SnapshotMarkerV2(
            vbucket=stream.vbucket,
            opaque=stream.opaque,
            start_seqno=start_seqno,
            end_seqno=end_seqno,
            flags=int(flags),
            max_visible_seqno=purge.visible.seqno,
            high_completed_seqno=purge.visible.completed_seqno,
        ).encode()
    if stream.framing is None:
        return dcp.SnapshotMarker.encode_plain(stream.vbucket, stream.opaque, start_seqno, end_seqno, int(flags))
    return dcp.SnapshotMarker(
        vbucket=stream.vbucket,
        opaque=stream.opaque,
        framing=stream.framing,
        start_seqno=start_seqno,
        end_seqno=end_seqno,
        flags=int(flags),
    ).encode()


def _with_purged(stream: ProducerStream, start_seqno: int, end_seqno: int, flags: int, purge: Purged) -> bytes:
    """Return a marker of version 2.2, which has the purge seqno. "Absent numbers in V2 are 0" (dcp 2.7).

    Between nodes of headwater that agreed on controls.DELETED_REVS, the field of the high prepared seqno holds the
    highest revision of all tombstones.
    """
    visible = purge.visible or Visible()
    return dcp.SnapshotMarkerV22(
        vbucket=stream.vbucket,
        opaque=stream.opaque,
        framing=stream.framing,
        start_seqno=start_seqno,
        end_seqno=end_seqno,
        flags=int(flags),
        max_visible_seqno=visible.seqno,
        high_completed_seqno=visible.completed_seqno,
        purge_seqno=purge.seqno,
        high_prepared_seqno=purge.deleted_rev,
    ).encode()


def encode_end(stream: ProducerStream, reason: EndReason) -> bytes:
    """Return a stream end's bytes."""
    status = end_status(reason, stream.dialect)
    if stream.framing is None:
        return dcp.StreamEnd.encode_plain(stream.vbucket, stream.opaque, status)
    return dcp.StreamEnd(vbucket=stream.vbucket, opaque=stream.opaque, framing=stream.framing, status=status).encode()
