"""Every message of DCP, all versions. Source: specification, dcp.md 2 (and 2.21 for stream ids).

The opaque of a stream's messages is that of the StreamRequest that opened it; no-ops and buffer acknowledgements
belong to the connection. Producer and consumer name the two ends of the data; the mover is the third party that tells
a consumer node which streams to add. The older UPR forms are in `headwater.wire.upr`.
"""

from __future__ import annotations

from headwater.wire.flags import EndReason, OpenFlag, SnapshotFlag, StreamFlag
from headwater.wire.layout import ANY_STATUS, OPTIONAL, REQUIRED, VALUE, Request, Response, about, u8, u16, u32, u64
from headwater.wire.opcodes import Opcode
from headwater.wire.records import CacheItem, CacheItems, FailoverLog
from headwater.wire.status import Status

__all__ = [
    "Abort",
    "AddStream",
    "AddStreamResponse",
    "BufferAck",
    "BufferAckInValue",
    "BufferAckResponse",
    "CacheItem",
    "CacheTransfer",
    "CacheTransferEnd",
    "CloseStream",
    "CloseStreamResponse",
    "Commit",
    "Control",
    "ControlResponse",
    "Deletion",
    "DeletionV2",
    "EndReason",
    "Expiration",
    "FailoverLog",
    "GetFailoverLog",
    "GetFailoverLogResponse",
    "Mutation",
    "Noop",
    "NoopResponse",
    "Open",
    "OpenFlag",
    "OpenResponse",
    "OsoSnapshot",
    "Prepare",
    "SeqnoAcknowledged",
    "SeqnoAdvanced",
    "SetVbucketState",
    "SetVbucketStateResponse",
    "SnapshotFlag",
    "SnapshotMarker",
    "SnapshotMarkerResponse",
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


class Open(Request, opcode=Opcode.DCP_OPEN, key=REQUIRED, value=OPTIONAL):
    """Turns the connection into a DCP connection; the key is its name, the value JSON with `consumer_name`.

    The documented length of a name is at most 200 bytes. Source: DCP, commands/open-connection.md.
    """

    seqno: u32 = about("reserved, 0", default=0)
    flags: u32 = about("OpenFlag bits; PRODUCER asks the receiver to produce")


class OpenResponse(Response, opcode=Opcode.DCP_OPEN):
    """The connection is a DCP connection now."""


class AddStream(Request, opcode=Opcode.DCP_ADD_STREAM):
    """The mover tells a consumer node to stream this vbucket. Source: DCP, commands/add-stream.md."""

    flags: u32 = about("StreamFlag bits, copied into the consumer's StreamRequest")


class AddStreamResponse(Response, opcode=Opcode.DCP_ADD_STREAM, status=ANY_STATUS, value=OPTIONAL, extras_bytes=(0, 4)):
    """Sent once the producer answered the consumer's StreamRequest, with the producer's status.

    The seed's text speaks of a vbucket id in the extras; there is none (erratum A1).
    """

    stream_opaque: u32 | None = about(
        "opaque of the stream towards the producer; 0 after a local failure, absent when refused at once", default=None
    )


class CloseStream(Request, opcode=Opcode.DCP_CLOSE_STREAM):
    """Stops the vbucket's stream; either end may be told. Source: DCP, commands/close-stream.md."""


class CloseStreamResponse(Response, opcode=Opcode.DCP_CLOSE_STREAM):
    """The stream is closed; messages already under way may still arrive."""


class StreamRequest(Request, opcode=Opcode.DCP_STREAM_REQ, value=OPTIONAL):
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


class StreamResponse(Response, opcode=Opcode.DCP_STREAM_REQ):
    """The stream is open; the vbucket's failover log follows."""

    failover_log: FailoverLog = about("(vb uuid, seqno) entries, newest first, at least one", where=VALUE)


class StreamRollback(Response, opcode=Opcode.DCP_STREAM_REQ, status=Status.ROLLBACK):
    """Histories differ: the consumer must drop what lies after `rollback_seqno`, then ask again."""

    rollback_seqno: u64 = about("the last seqno both ends share", where=VALUE)


class GetFailoverLog(Request, opcode=Opcode.DCP_GET_FAILOVER_LOG):
    """The consumer asks for a vbucket's failover log. Source: DCP, commands/failover-log.md."""


class GetFailoverLogResponse(Response, opcode=Opcode.DCP_GET_FAILOVER_LOG):
    """The vbucket's failover log."""

    failover_log: FailoverLog = about("(vb uuid, seqno) entries, newest first, at least one", where=VALUE)


class StreamEnd(Request, opcode=Opcode.DCP_STREAM_END):
    """The producer's last message of a stream; never answered. Source: DCP, commands/stream-end.md."""

    status: u32 = about("EndReason")


# --------------------------------------------------------------------------- snapshots


class SnapshotMarker(Request, opcode=Opcode.DCP_SNAPSHOT_MARKER):
    """Announces a snapshot, V1; answered only when flag ACK is set. Source: DCP, commands/snapshot-marker.md."""

    start_seqno: u64 = about("first seqno of the snapshot")
    end_seqno: u64 = about("last seqno of the snapshot")
    flags: u32 = about("SnapshotFlag bits")


class SnapshotMarkerV2(Request, opcode=Opcode.DCP_SNAPSHOT_MARKER):
    """Announces a snapshot, V2.0; numbers that are absent are 0."""

    version: u8 = about("0", default=0, only=(0,))
    start_seqno: u64 = about("first seqno of the snapshot", where=VALUE)
    end_seqno: u64 = about("last seqno of the snapshot", where=VALUE)
    flags: u32 = about("SnapshotFlag bits", where=VALUE)
    max_visible_seqno: u64 = about("highest seqno in it that is neither prepare nor abort", where=VALUE)
    high_completed_seqno: u64 = about("highest prepare that is committed or aborted; valid with DISK", where=VALUE)


class SnapshotMarkerV22(SnapshotMarkerV2):
    """Announces a snapshot, V2.2 (control max_marker_version=2.2)."""

    version: u8 = about("2; version 1 does not exist", default=2, only=(2,))
    purge_seqno: u64 = about("highest tombstone seqno that was purged", where=VALUE)
    high_prepared_seqno: u64 = about("highest prepare persisted in a complete snapshot", where=VALUE)


class SnapshotMarkerResponse(Response, opcode=Opcode.DCP_SNAPSHOT_MARKER):
    """The whole snapshot of a marker with flag ACK was received."""


# --------------------------------------------------------------------------- changes


class Mutation(Request, opcode=Opcode.DCP_MUTATION, key=REQUIRED, value=OPTIONAL):
    """A document was stored; never answered. Source: DCP, commands/mutation.md."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    flags: u32 = about("the application's own flags, kept as they came", default=0)
    expiration: u32 = about("Unix seconds, or 0 for never", default=0)
    lock_time: u32 = about("seconds the document stays locked; 0", default=0)
    nmeta: u16 = about("bytes of extended metadata after the value; 0 today", default=0)
    nru: u8 = about("the sender's cache hint; consumers ignore it", default=0)


class Deletion(Request, opcode=Opcode.DCP_DELETION, key=REQUIRED, value=OPTIONAL):
    """A document was deleted, V1. The value holds extended attributes at most. Source: DCP, commands/deletion.md."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    nmeta: u16 = about("bytes of extended metadata after the value; 0 today", default=0)


class DeletionV2(Request, opcode=Opcode.DCP_DELETION, key=REQUIRED, value=OPTIONAL):
    """A document was deleted, V2: sent when OPEN had INCLUDE_DELETE_TIMES."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    delete_time: u32 = about("Unix seconds of the deletion", default=0)
    unused: u8 = about("0", default=0)


class Expiration(Request, opcode=Opcode.DCP_EXPIRATION, key=REQUIRED, value=OPTIONAL):
    """A document ran out; only with control enable_expiry_opcode. Source: DCP, commands/expiration.md."""

    by_seqno: u64 = about("place of this change in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    delete_time: u32 = about("Unix seconds at which it ran out", default=0)


# --------------------------------------------------------------------------- takeover and connection upkeep


class SetVbucketState(Request, opcode=Opcode.DCP_SET_VBUCKET_STATE):
    """Hands a vbucket over; must be answered. Source: DCP, commands/set-vbucket-state.md."""

    state: u8 = about("vbucket.State: 1 active, 2 replica, 3 pending, 4 dead", only=(1, 2, 3, 4))


class SetVbucketStateResponse(Response, opcode=Opcode.DCP_SET_VBUCKET_STATE):
    """The consumer took the state over; the UPR text says no answer is sent, which is wrong (erratum U10)."""


class Noop(Request, opcode=Opcode.DCP_NOOP):
    """The producer asks whether the consumer lives. Source: DCP, commands/no-op.md."""


class NoopResponse(Response, opcode=Opcode.DCP_NOOP):
    """The consumer lives; same opaque."""


class BufferAck(Request, opcode=Opcode.DCP_BUFFER_ACKNOWLEDGEMENT):
    """The consumer has processed so many bytes; never answered. Source: DCP, commands/buffer-ack.md."""

    acked_bytes: u32 = about("bytes of counted messages processed since the acknowledgement before this one")


class BufferAckInValue(Request, opcode=Opcode.DCP_BUFFER_ACKNOWLEDGEMENT):
    """As the document's example has it: no extras, the number in the value. Accept both, send BufferAck."""

    acked_bytes: u32 = about("as in BufferAck", where=VALUE)


class BufferAckResponse(Response, opcode=Opcode.DCP_BUFFER_ACKNOWLEDGEMENT):
    """Documented, yet never sent by a producer; consumers swallow it (erratum P3)."""


class Control(Request, opcode=Opcode.DCP_CONTROL, key=REQUIRED, value=REQUIRED):
    """The consumer sets an option of the connection: key and value are text. Source: DCP, commands/control.md."""


class ControlResponse(Response, opcode=Opcode.DCP_CONTROL):
    """The option is set."""


# --------------------------------------------------------------------------- collections, durability, cache


class SystemEvent(Request, opcode=Opcode.DCP_SYSTEM_EVENT, key=OPTIONAL):
    """A collection or scope came or went; the key is its name. Source: DCP, commands/system-event.md.

    The document's example has scope and collection id swapped; on the wire the scope comes first (erratum P8).
    """

    by_seqno: u64 = about("place of this event in the vbucket's history")
    event: u32 = about("0 create collection, 1 drop collection, 3 create scope, 4 drop scope", only=(0, 1, 3, 4))
    version: u8 = about("0, or 1 with a maximum time to live", only=(0, 1))
    manifest_uid: u64 = about("manifest this event completes (the one before it, if more events follow)", where=VALUE)
    scope_id: u32 = about("the scope", where=VALUE)
    collection_id: u32 | None = about("the collection, in events 0 and 1", default=None, where=VALUE)
    max_ttl: u32 | None = about("seconds, in version 1", default=None, where=VALUE)


class SystemEventV2(Request, opcode=Opcode.DCP_SYSTEM_EVENT, key=OPTIONAL, value=OPTIONAL):
    """As SystemEvent, its value a FlatBuffers table (control flatbuffers_system_events)."""

    by_seqno: u64 = about("place of this event in the vbucket's history")
    event: u32 = about("as in SystemEvent, and 5 modify collection", only=(0, 1, 3, 4, 5))
    version: u8 = about("2", default=2, only=(2,))


class Prepare(Request, opcode=Opcode.DCP_PREPARE, key=REQUIRED, value=OPTIONAL):
    """A durable write waits for its commit; its CAS is never 0. Source: DCP, commands/prepare.md."""

    by_seqno: u64 = about("place of the prepare in the vbucket's history, from 1")
    rev_seqno: u64 = about("how many times this key has changed")
    flags: u32 = about("the application's own flags, kept as they came", default=0)
    expiration: u32 = about("Unix seconds, or 0 for never", default=0)
    lock_time: u32 = about("0", default=0)
    nru: u8 = about("the sender's cache hint", default=0)
    deleted: u8 = about("1 when the waiting write is a deletion", default=0, only=(0, 1))
    durability_level: u8 = about("1 majority, 2 and persist on active, 3 persist to majority", only=(1, 2, 3))


class SeqnoAcknowledged(Request, opcode=Opcode.DCP_SEQNO_ACKNOWLEDGED):
    """The consumer has prepared everything up to a seqno. Source: DCP, commands/seqno-acknowledged.md."""

    prepared_seqno: u64 = about("highest prepare that is satisfied, and all before it")


class Commit(Request, opcode=Opcode.DCP_COMMIT, key=REQUIRED):
    """A prepared write happened. Source: DCP, commands/commit.md."""

    prepared_seqno: u64 = about("seqno of the prepare")
    commit_seqno: u64 = about("place of the commit in the vbucket's history")


class Abort(Request, opcode=Opcode.DCP_ABORT, key=REQUIRED):
    """A prepared write did not happen. Source: DCP, commands/abort.md."""

    prepared_seqno: u64 = about("seqno of the prepare")
    abort_seqno: u64 = about("place of the abort in the vbucket's history")


class SeqnoAdvanced(Request, opcode=Opcode.DCP_SEQNO_ADVANCED):
    """Nothing this stream may see lies before a seqno. Source: DCP, commands/seqno-advanced.md."""

    seqno: u64 = about("the seqno reached; counts as received")


class OsoSnapshot(Request, opcode=Opcode.DCP_OSO_SNAPSHOT):
    """Brackets a backfill that comes out of seqno order. Source: DCP, commands/oso-snapshot.md."""

    flags: u32 = about("1 start, 2 end", only=(1, 2))


class CacheTransfer(Request, opcode=Opcode.DCP_CACHE_TRANSFER):
    """Documents the producer has in memory, ahead of the stream. Source: DCP, commands/cache-transfer.md."""

    items: CacheItems = about("the documents, in any order", where=VALUE)


class CacheTransferEnd(Request, opcode=Opcode.DCP_CACHE_TRANSFER_END):
    """The cache transfer is over; the ordinary stream begins."""
