"""Every message of DCP, all versions. Source: specification, dcp.md 2 (and 2.21 for stream ids).

The opaque of a stream's messages is that of the StreamRequest that opened it; no-ops and buffer acknowledgements belong
to the connection. The producer sends the changes, the consumer receives them; the mover is a third party that requests
streams from a consumer node (AddStream). The older UPR forms are in `headwater.wire.upr`.
"""

from __future__ import annotations

from headwater.wire.durability import DurabilityLevel
from headwater.wire.flags import (
    PRODUCES_OR_CONSUMES,
    TAKES_OVER,
    BeforeState,
    EndReason,
    OpenFlag,
    SnapshotFlag,
    StreamFlag,
)
from headwater.wire.layout import (
    ANY_STATUS,
    OPTIONAL,
    REQUIRED,
    VALUE,
    Done,
    Request,
    Response,
    about,
    u8,
    u16,
    u32,
    u64,
)
from headwater.wire.opcodes import Opcode
from headwater.wire.privilege import LOGIN, REPLICATE, STREAM
from headwater.wire.records import CacheItem, CacheItems, FailoverLog
from headwater.wire.status import Status

_LEVELS = tuple(map(int, DurabilityLevel))

__all__ = [
    "Abort",
    "AddStream",
    "AddStreamResponse",
    "Before",
    "BeforeState",
    "BufferAck",
    "BufferAckInValue",
    "CacheItem",
    "CacheTransfer",
    "CacheTransferEnd",
    "CloseStream",
    "Commit",
    "Control",
    "Deletion",
    "DeletionV2",
    "EndReason",
    "Expiration",
    "FailoverLog",
    "GetFailoverLog",
    "GetFailoverLogResponse",
    "Mutation",
    "Noop",
    "Open",
    "OpenFlag",
    "OsoSnapshot",
    "Prepare",
    "SeqnoAcknowledged",
    "SeqnoAdvanced",
    "SetVbucketState",
    "SnapshotFlag",
    "SnapshotMarker",
    "SnapshotMarkerV2",
    "SnapshotMarkerV22",
    "StreamEnd",
    "StreamFlag",
    "StreamRequest",
    "StreamResponse",
    "StreamRollback",
    "SystemEvent",
    "SystemEventV2",
]

# --------------------------------------------------------------------------- connection and streams


class Open(
    Request,
    opcode=Opcode.DCP_OPEN,
    privilege=LOGIN,
    beyond=PRODUCES_OR_CONSUMES,
    key=REQUIRED,
    value=OPTIONAL,
    answer=Done,
):
    """Turns the connection into a DCP connection; the key is its name, the value JSON with `consumer_name`.

    The documented length of a name is at most 200 bytes. Source: DCP, commands/open-connection.md.
    """

    seqno: u32 = about("reserved, 0", default=0)
    flags: u32 = about("OpenFlag bits; PRODUCER asks the receiver to produce")


class AddStreamResponse(Response, opcode=Opcode.DCP_ADD_STREAM, status=ANY_STATUS, value=OPTIONAL, extras_bytes=(0, 4)):
    """Sent once the producer answered the consumer's StreamRequest, with the producer's status.

    The seed's text speaks of a vbucket id in the extras; there is none (erratum A1).
    """

    stream_opaque: u32 | None = about(
        "opaque of the stream towards the producer; 0 after a local failure, absent when refused at once", default=None
    )


class AddStream(Request, opcode=Opcode.DCP_ADD_STREAM, privilege=REPLICATE, answer=AddStreamResponse):
    """The mover requests that a consumer node stream this vbucket. Source: DCP, commands/add-stream.md."""

    flags: u32 = about("StreamFlag bits, copied into the consumer's StreamRequest")


class CloseStream(Request, opcode=Opcode.DCP_CLOSE_STREAM, privilege=STREAM, answer=Done):
    """Stops the vbucket's stream; either end may send it. Source: DCP, commands/close-stream.md."""


class StreamResponse(Response, opcode=Opcode.DCP_STREAM_REQ):
    """The stream is open; the vbucket's failover log follows."""

    failover_log: FailoverLog = about("(vb uuid, seqno) entries, newest first, at least one", place=VALUE)


class StreamRollback(Response, opcode=Opcode.DCP_STREAM_REQ, status=Status.ROLLBACK):
    """The histories differ: the consumer must drop the changes after `rollback_seqno`, then send the request again."""

    rollback_seqno: u64 = about("the last seqno both ends share", place=VALUE)


class StreamRequest(
    Request,
    opcode=Opcode.DCP_STREAM_REQ,
    privilege=STREAM,
    beyond=TAKES_OVER,
    value=OPTIONAL,
    answer=(StreamResponse, StreamRollback),
):
    """The consumer asks for a vbucket's changes after `start_seqno`. Source: DCP, commands/stream-request.md.

    The value, JSON, filters by collection and names a stream id. Sample S2 of the seed lacks its last 8 bytes.
    """

    flags: u32 = about("StreamFlag bits", default=0)
    reserved: u32 = about("0", default=0)
    start_seqno: u64 = about("the highest seqno the consumer has; the stream begins after it")
    end_seqno: u64 = about("the last seqno wanted; 2^64-1 for a stream without end", default=0xFFFF_FFFF_FFFF_FFFF)
    vb_uuid: u64 = about(
        "the history the consumer has: newest entry of its failover log; 0 only with start 0", default=0
    )
    snap_start_seqno: u64 = about("start of the snapshot around start_seqno")
    snap_end_seqno: u64 = about("end of that snapshot")


class GetFailoverLogResponse(Response, opcode=Opcode.DCP_GET_FAILOVER_LOG):
    """The vbucket's failover log."""

    failover_log: FailoverLog = about("(vb uuid, seqno) entries, newest first, at least one", place=VALUE)


class GetFailoverLog(Request, opcode=Opcode.DCP_GET_FAILOVER_LOG, privilege=STREAM, answer=GetFailoverLogResponse):
    """The consumer asks for a vbucket's failover log. Source: DCP, commands/failover-log.md."""


class StreamEnd(Request, opcode=Opcode.DCP_STREAM_END, privilege=REPLICATE):
    """The producer's last message of a stream; never answered. Source: DCP, commands/stream-end.md."""

    status: u32 = about("EndReason")


# --------------------------------------------------------------------------- snapshots


class SnapshotMarker(Request, opcode=Opcode.DCP_SNAPSHOT_MARKER, privilege=REPLICATE, answer=Done):
    """Announces a snapshot, V1; answered only when flag ACK is set. Source: DCP, commands/snapshot-marker.md."""

    start_seqno: u64 = about("the state before the snapshot, or its first seqno")
    end_seqno: u64 = about("last seqno of the snapshot")
    flags: u32 = about("SnapshotFlag bits")


class SnapshotMarkerV2(Request, opcode=Opcode.DCP_SNAPSHOT_MARKER, privilege=REPLICATE, answer=Done):
    """Announces a snapshot, V2.0; numbers that are absent are 0."""

    version: u8 = about("0", default=0, only=(0,))
    start_seqno: u64 = about("the state before the snapshot, or its first seqno", place=VALUE)
    end_seqno: u64 = about("last seqno of the snapshot", place=VALUE)
    flags: u32 = about("SnapshotFlag bits", place=VALUE)
    max_visible_seqno: u64 = about("highest seqno in it that is neither prepare nor abort", place=VALUE)
    high_completed_seqno: u64 = about("highest prepare that is committed or aborted; valid with DISK", place=VALUE)


class SnapshotMarkerV22(SnapshotMarkerV2):
    """Announces a snapshot, V2.2 (control max_marker_version=2.2)."""

    version: u8 = about("2; version 1 does not exist", default=2, only=(2,))
    purge_seqno: u64 = about("highest tombstone seqno that was purged", place=VALUE)
    high_prepared_seqno: u64 = about("highest prepare persisted in a complete snapshot", place=VALUE)


# --------------------------------------------------------------------------- changes


class Mutation(Request, opcode=Opcode.DCP_MUTATION, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document was stored; never answered. Source: DCP, commands/mutation.md."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    flags: u32 = about("the application's own flags, kept as they came", default=0)
    expiration: u32 = about("Unix seconds, or 0 for never", default=0)
    lock_time: u32 = about("seconds the document stays locked; 0", default=0)
    nmeta: u16 = about("bytes of extended metadata after the value; 0 today", default=0)
    nru: u8 = about("the sender's cache hint; consumers ignore it", default=0)


class Deletion(Request, opcode=Opcode.DCP_DELETION, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document was deleted, V1. The value holds extended attributes at most. Source: DCP, commands/deletion.md."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    nmeta: u16 = about("bytes of extended metadata after the value; 0 today", default=0)


class DeletionV2(Request, opcode=Opcode.DCP_DELETION, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document was deleted, V2: sent when OPEN had INCLUDE_DELETE_TIMES."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    delete_time: u32 = about("Unix seconds of the deletion", default=0)
    unused: u8 = about("0", default=0)


class Expiration(Request, opcode=Opcode.DCP_EXPIRATION, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A document expired; only with control enable_expiry_opcode. Source: DCP, commands/expiration.md."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    delete_time: u32 = about("Unix seconds at which it ran out", default=0)


# --------------------------------------------------------------------------- takeover and connection upkeep


class SetVbucketState(Request, opcode=Opcode.DCP_SET_VBUCKET_STATE, privilege=REPLICATE, answer=Done):
    """Hands a vbucket over; must be answered. Source: DCP, commands/set-vbucket-state.md.

    The UPR text says that no answer is sent, which is wrong (erratum U10).
    """

    state: u8 = about("vbucket.State: 1 active, 2 replica, 3 pending, 4 dead", only=(1, 2, 3, 4))


class Noop(Request, opcode=Opcode.DCP_NOOP, privilege=REPLICATE, answer=Done):
    """The producer checks that the consumer is alive; must be answered. Source: DCP, commands/no-op.md."""


class BufferAck(Request, opcode=Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, privilege=STREAM, answer=Done):
    """The consumer has processed `acked_bytes` bytes. Source: DCP, commands/buffer-ack.md.

    The document describes an answer, but producers never send one; consumers ignore it (erratum P3).
    """

    acked_bytes: u32 = about("bytes of counted messages processed since the acknowledgement before this one")


class BufferAckInValue(Request, opcode=Opcode.DCP_BUFFER_ACKNOWLEDGEMENT, privilege=STREAM, answer=Done):
    """BufferAck in the form of the document's example: no extras, number in the value. Accept both, send BufferAck."""

    acked_bytes: u32 = about("as in BufferAck", place=VALUE)


class Control(Request, opcode=Opcode.DCP_CONTROL, privilege=STREAM, key=REQUIRED, value=REQUIRED, answer=Done):
    """The consumer sets an option of the connection: key and value are text. Source: DCP, commands/control.md."""


# --------------------------------------------------------------------------- collections, durability, cache


class SystemEvent(Request, opcode=Opcode.DCP_SYSTEM_EVENT, privilege=REPLICATE, key=OPTIONAL):
    """A collection or scope was created or dropped; the key is its name. Source: DCP, commands/system-event.md.

    The document's example has scope and collection id swapped; on the wire the scope comes first (erratum P8).
    """

    by_seqno: u64 = about("place of this event in the vbucket's history")
    event: u32 = about("0 create collection, 1 drop collection, 3 create scope, 4 drop scope", only=(0, 1, 3, 4))
    version: u8 = about("0, or 1 with a maximum time to live", only=(0, 1))
    manifest_uid: u64 = about("manifest this event completes (the one before it, if more events follow)", place=VALUE)
    scope_id: u32 = about("the scope", place=VALUE)
    collection_id: u32 | None = about("the collection, in events 0 and 1", default=None, place=VALUE)
    max_ttl: u32 | None = about("seconds, in version 1", default=None, place=VALUE)


class SystemEventV2(Request, opcode=Opcode.DCP_SYSTEM_EVENT, privilege=REPLICATE, key=OPTIONAL, value=OPTIONAL):
    """As SystemEvent, its value a FlatBuffers table (control flatbuffers_system_events)."""

    by_seqno: u64 = about("place of this event in the vbucket's history")
    event: u32 = about("as in SystemEvent, and 5 modify collection", only=(0, 1, 3, 4, 5))
    version: u8 = about("2", default=2, only=(2,))


class Prepare(Request, opcode=Opcode.DCP_PREPARE, privilege=REPLICATE, key=REQUIRED, value=OPTIONAL, cas=True):
    """A durable write that waits for its commit; its CAS is never 0. Source: DCP, commands/prepare.md."""

    by_seqno: u64 = about("place of the prepare in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    flags: u32 = about("the application's own flags, kept as they came", default=0)
    expiration: u32 = about("Unix seconds, or 0 for never", default=0)
    lock_time: u32 = about("0", default=0)
    nru: u8 = about("the sender's cache hint", default=0)
    deleted: u8 = about("1 when the waiting write is a deletion", default=0, only=(0, 1))
    durability_level: u8 = about("1 majority, 2 and persist on active, 3 persist to majority", only=_LEVELS)


class SeqnoAcknowledged(Request, opcode=Opcode.DCP_SEQNO_ACKNOWLEDGED, privilege=REPLICATE):
    """The consumer has prepared everything up to a seqno. Source: DCP, commands/seqno-acknowledged.md."""

    prepared_seqno: u64 = about("highest prepare that is satisfied, and all before it")


class Commit(Request, opcode=Opcode.DCP_COMMIT, privilege=REPLICATE, key=REQUIRED):
    """A prepared write is committed: the document has its new value. Source: DCP, commands/commit.md."""

    prepared_seqno: u64 = about("seqno of the prepare")
    commit_seqno: u64 = about("place of the commit in the vbucket's history")


class Abort(Request, opcode=Opcode.DCP_ABORT, privilege=REPLICATE, key=REQUIRED):
    """A prepared write is aborted: the document keeps its old value. Source: DCP, commands/abort.md."""

    prepared_seqno: u64 = about("seqno of the prepare")
    abort_seqno: u64 = about("place of the abort in the vbucket's history")


class SeqnoAdvanced(Request, opcode=Opcode.DCP_SEQNO_ADVANCED, privilege=REPLICATE):
    """The stream has no change up to a seqno that its filter lets through. Source: DCP, commands/seqno-advanced.md."""

    seqno: u64 = about("the seqno reached; counts as received")


class OsoSnapshot(Request, opcode=Opcode.DCP_OSO_SNAPSHOT, privilege=REPLICATE):
    """Begins or ends a backfill that is not in seqno order. Source: DCP, commands/oso-snapshot.md."""

    flags: u32 = about("1 start, 2 end", only=(1, 2))


class CacheTransfer(Request, opcode=Opcode.DCP_CACHE_TRANSFER, privilege=REPLICATE):
    """Documents the producer has in memory, ahead of the stream. Source: DCP, commands/cache-transfer.md."""

    items: CacheItems = about("the documents, in any order", place=VALUE)


class CacheTransferEnd(Request, opcode=Opcode.DCP_CACHE_TRANSFER_END, privilege=REPLICATE):
    """The cache transfer is over; the ordinary stream begins."""


class Before(Request, opcode=Opcode.DCP_BEFORE, privilege=REPLICATE, value=OPTIONAL, cas=True):
    """The version that the change in the next message replaced (control headwater_before). Source: decision 0158.

    CAS, datatype and value are those of the replaced version. If there is no such version, the numbers are 0 and there
    is no value.
    """

    by_seqno: u64 = about("seqno of the mutation, deletion or expiration that is the next message of the connection")
    before_seqno: u64 = about("seqno of the version that it replaced", default=0)
    rev_seqno: u64 = about("how many times the key had changed", default=0)
    flags: u32 = about("the application's own flags", default=0)
    expiration: u32 = about("Unix seconds, or 0 for never", default=0)
    state: u8 = about("1 this version, 2 there was no document, 3 not kept any more", only=tuple(map(int, BeforeState)))


_SEQNO = SeqnoAdvanced.layout.extras_struct


def seqno_of(extras: bytes | memoryview) -> int:
    """Return the seqno that the extras of every change, and of SeqnoAdvanced, begin with."""
    seqno: int = _SEQNO.unpack_from(extras)[0]
    return seqno
