"""A stream request as the asking side writes it, client and consumer node alike, in the dialect of the connection.

The other side, which reads and judges it, is stream_request.py. Source: dcp 2.4, 14.
"""

from headwater.protocol.dcp.position import Position
from headwater.protocol.dcp.upr import begins_at
from headwater.wire import dcp, upr
from headwater.wire.dialect import Dialect


def request_after(  # noqa: PLR0917 - the fields of a message
    position: Position, end_seqno: int, vb_uuid: int, opaque: int, dialect: Dialect, flags: int = 0, value: bytes = b""
) -> bytes:
    """The request for what comes after `position` in the history `vb_uuid`, up to `end_seqno`; `value` chooses
    collections, in DCP."""
    if dialect is Dialect.UPR:
        return upr.StreamRequest(
            vbucket=position.vbucket,
            opaque=opaque,
            flags=flags,
            start_seqno=position.seqno,
            end_seqno=end_seqno,
            vb_uuid=vb_uuid,
            high_seqno=begins_at(position, vb_uuid),
        ).encode()
    reserved, start = 0, position.seqno
    snapshot = position.snapshot_start, position.snapshot_end
    if value:
        return dcp.StreamRequest(
            vbucket=position.vbucket,
            opaque=opaque,
            flags=flags,
            start_seqno=start,
            end_seqno=end_seqno,
            vb_uuid=vb_uuid,
            snap_start_seqno=position.snapshot_start,
            snap_end_seqno=position.snapshot_end,
            value=value,
        ).encode()
    return dcp.StreamRequest.encode_plain(
        position.vbucket, opaque, flags, reserved, start, end_seqno, vb_uuid, *snapshot
    )
