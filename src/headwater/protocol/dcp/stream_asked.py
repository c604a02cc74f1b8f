"""Encodes stream requests, for clients and consumer nodes, in the dialect of the connection.

stream_request.py reads and checks them at the producer. Source: dcp 2.4, 14.
"""

from typing import Final

from headwater.protocol.dcp.position import Position
from headwater.protocol.dcp.upr import begins_at
from headwater.wire import dcp, upr
from headwater.wire.dialect import Dialect

_RESERVED = 0
_UPR: Final = Dialect.UPR  # a member by its enum is slow to look up


def request_after(  # noqa: PLR0917 - the fields of a message
    position: Position, end_seqno: int, vb_uuid: int, opaque: int, dialect: Dialect, flags: int = 0, value: bytes = b""
) -> bytes:
    """Return the encoded request for the changes after `position` in the history `vb_uuid`, up to `end_seqno`.

    `value` (DCP only) is the request's value, which chooses collections.
    """
    if dialect is _UPR:
        return upr.StreamRequest(
            vbucket=position.vbucket,
            opaque=opaque,
            flags=flags,
            start_seqno=position.seqno,
            end_seqno=end_seqno,
            vb_uuid=vb_uuid,
            high_seqno=begins_at(position, vb_uuid),
        ).encode()
    seqno, start, end = position.seqno, position.snapshot_start, position.snapshot_end
    if value:
        return dcp.StreamRequest(
            vbucket=position.vbucket,
            opaque=opaque,
            flags=flags,
            start_seqno=seqno,
            end_seqno=end_seqno,
            vb_uuid=vb_uuid,
            snap_start_seqno=start,
            snap_end_seqno=end,
            value=value,
        ).encode()
    return dcp.StreamRequest.encode_plain(
        position.vbucket, opaque, flags, _RESERVED, seqno, end_seqno, vb_uuid, start, end
    )
