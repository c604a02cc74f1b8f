"""The messages in which UPR differs from DCP. Source: specification, dcp.md 2 (UPR notes) and 14.

All others, from OPEN to STREAM_END, are those of `headwater.wire.dcp`. Lengths show which dialect a peer speaks: a
stream request of 40 bytes of extras instead of 48, a marker without any, a mutation one byte shorter.
"""

from __future__ import annotations

from headwater.wire.dcp import StreamResponse
from headwater.wire.flags import TAKES_OVER
from headwater.wire.layout import OPTIONAL, REQUIRED, Request, Response, about, u16, u32, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import REPLICATE, STREAM
from headwater.wire.status import Status

__all__ = ["Expiration", "Flush", "Mutation", "SnapshotMarker", "StreamRequest", "StreamRollback"]


class StreamRollback(Response, opcode=Opcode.DCP_STREAM_REQ, status=Status.ROLLBACK):
    """The histories differ; UPR has the seqno in the extras, DCP in the value (erratum U3). Headwater accepts both, and
    sends DCP's form.
    """

    rollback_seqno: u64 = about("the last seqno both ends share")


class StreamRequest(
    Request, opcode=Opcode.DCP_STREAM_REQ, privilege=STREAM, beyond=TAKES_OVER, answer=(StreamResponse, StreamRollback)
):
    """The consumer asks for a vbucket's changes after `start_seqno`; UPR has no snapshot range."""

    flags: u32 = about("as in DCP", default=0)
    reserved: u32 = about("0", default=0)
    start_seqno: u64 = about("the highest seqno the consumer has; the stream begins after it")
    end_seqno: u64 = about("the last seqno wanted; 2^64-1 for a stream without end", default=0xFFFF_FFFF_FFFF_FFFF)
    vb_uuid: u64 = about("the history the consumer has", default=0)
    high_seqno: u64 = about("the seqno that stands beside vb_uuid in the consumer's failover log", default=0)


class SnapshotMarker(Request, opcode=Opcode.DCP_SNAPSHOT_MARKER, privilege=REPLICATE):
    """A bare boundary: the snapshot before it is complete, the next one begins."""


class Mutation(Request, opcode=Opcode.DCP_MUTATION, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document was stored; 30 bytes of extras, without cache hint."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    flags: u32 = about("the application's own flags, kept as they came", default=0)
    expiration: u32 = about("Unix seconds, or 0 for never", default=0)
    lock_time: u32 = about("seconds the document stays locked; 0", default=0)
    nmeta: u16 = about("bytes of extended metadata after the value", default=0)


class Expiration(Request, opcode=Opcode.DCP_EXPIRATION, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document expired; 18 bytes of extras, as in a deletion."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    nmeta: u16 = about("bytes of extended metadata after the value", default=0)


class Flush(Request, opcode=Opcode.DCP_FLUSH, refused=Status.NOT_SUPPORTED, privilege=REPLICATE):
    """The consumer must drop all data of the vbucket; retired in DCP."""
