"""The frames of a batch: documents in the form of DCP, and control frames about vbuckets.

A document frame is a MUTATION (31 bytes of extras), a DELETION in its V2 form (21) or an EXPIRATION (20). Every stream
replaces the opaque by its own. In a stored frame the opaque has three facts (kernels/index.py): the number of nodes
that the change has passed by TAP (hops); the hour at which a tombstone arrived that is much older; and two marks, for a
key that begins with the id of a named collection, and for a frame with a message (a system event, prepare or abort).

A system event is stored as a document of the reserved collection 1, whose value is the SYSTEM_EVENT frame that streams
send. It has a seqno, replaces the last event of the same collection, and is rolled back and compacted like any other
change. The event of a modified collection replaces no other one, because the history of a collection must be known for
each seqno.

A prepare of a durable write is stored in the same way: as a document with a separate key, whose value is the PREPARE
frame. A deletion of that key ends the prepare: with the ABORT frame as its value, or without value and with the seqno
of the document that the prepare became.

A control frame has the same 24-byte header, and an opcode that DCP does not use (`ControlOpcode`); it is never sent.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from struct import Struct, error
from typing import Any, Final, NamedTuple

from headwater.kernels.choices import OF_COLLECTION, OF_MODIFIED, OF_PREPARE, OF_SCOPE, SYSTEM_COLLECTION
from headwater.kernels.index import HOUR_SECONDS, NAMED_MARK, SINCE_MASK, SINCE_SHIFT, SYSTEM_MARK
from headwater.wire import dcp, leb128
from headwater.wire.header import HEADER, HEADER_BYTES, Frame, Magic
from headwater.wire.manifest import EventKind, ManifestEvent
from headwater.wire.opcodes import Opcode
from headwater.wire.system_events import AnySystemEvent, oldest_message, read_message

__all__ = [
    "ControlOpcode",
    "EventParts",
    "StoredDocument",
    "VBucketRecord",
    "clean_frame",
    "control_of",
    "deletion_frame",
    "drop_frame",
    "event_apart",
    "event_frame",
    "event_parts",
    "key_in",
    "keys_in",
    "message_in",
    "mutation_frame",
    "mutation_head",
    "prepare_frame",
    "prepare_key",
    "prepare_over_frame",
    "record_frame",
    "rollback_frame",
    "since_bits",
    "stored_key",
    "told_in",
]

_MUTATION = dcp.Mutation.layout.extras_struct
_DELETION = dcp.DeletionV2.layout.extras_struct
_EXPIRATION = dcp.Expiration.layout.extras_struct
_ROLLBACK = Struct(">QQ")  # seqno to return to, high seqno after it

MUTATION: Final = int(Opcode.DCP_MUTATION)
DELETION: Final = int(Opcode.DCP_DELETION)
EXPIRATION: Final = int(Opcode.DCP_EXPIRATION)
REQUEST: Final = int(Magic.CLIENT_REQUEST)
_VBUCKET_AT, _VBUCKET_END, _OPAQUE_AT, _OPAQUE_END, _SEQNO_AT = 6, 8, 12, 16, HEADER_BYTES
_SEQNO_END: Final = _SEQNO_AT + 8
"""The offsets of vbucket, opaque and seqno in a SYSTEM_EVENT."""


class ControlOpcode(IntEnum):
    """Opcodes of control frames."""

    RECORD = 0xF0  # value: a VBucketRecord as JSON
    ROLLBACK = 0xF1  # extras: seqno to return to, high seqno after it
    DROP = 0xF2  # the vbucket is gone, its documents with it
    CLEAN = 0xF3  # the store was closed in order; counts only as the very last frame


@dataclass(slots=True, frozen=True)
class VBucketRecord:
    """The record of a vbucket: its state and numbers, without its documents.

    Attributes:
        state: wire.vbucket.State.
        failover: (vb uuid, seqno) pairs, newest first.
        purge_seqno: the seqno up to which tombstones may be missing, purged here or at the producer. Set by the store.
        snapshot_start, snapshot_end: the snapshot that contains the high seqno.
        max_cas: later changes get a CAS above this one.
        rollback_floor: the lowest seqno to which a rollback keeps documents. Set by the store.
        high_seqno: the high seqno at the time of the record. Set by the store.
        consistent: ranges [first, last] of seqnos at which the vbucket's state was consistent, ascending.
        checkpoint: the last checkpoint that a TAP producer sent whole; 0 for none.
        deleted_rev: the highest revision of all tombstones ever, purged ones included. Set by the store.
        refused_changes: number of the producer's changes that the replica refused and still lacks.
        whole_seqno: the seqno up to which no change is missing; 0 if none is missing at all.
        refused: the missing changes by collection id, key in base64 and seqno; empty if not all are known.
        deduplicated: the seqno up to which versions may be missing; None for `snapshot_end`, as in older records.
    """

    state: int
    failover: tuple[tuple[int, int], ...] = ()
    purge_seqno: int = 0
    snapshot_start: int = 0
    snapshot_end: int = 0
    max_cas: int = 0
    rollback_floor: int = 0
    high_seqno: int = 0
    consistent: tuple[tuple[int, int], ...] = ()
    checkpoint: int = 0
    deleted_rev: int = 0
    refused_changes: int = 0
    whole_seqno: int = 0
    refused: tuple[tuple[int, str, int], ...] = ()
    deduplicated: int | None = None

    def encode(self) -> bytes:
        """Return the record as JSON with sorted keys. It omits the fields about a gap if there is none, and
        `deduplicated` if this is the end of the snapshot.
        """
        fields = asdict(self)
        if not self.refused_changes:
            del fields["refused_changes"], fields["whole_seqno"]
        if not self.refused:
            del fields["refused"]
        if self.deduplicated in {None, self.snapshot_end}:
            del fields["deduplicated"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> VBucketRecord:
        """Return the record in the result of `encode`. Raises ValueError, TypeError or KeyError for anything else."""
        # Unknown fields are an error: a newer program may have recorded a fact that must not be ignored.
        fields: dict[str, Any] = json.loads(data)
        record = cls(**fields)
        return replace(
            record,
            failover=tuple((int(uuid), int(seqno)) for uuid, seqno in record.failover),
            consistent=tuple((int(first), int(last)) for first, last in record.consistent),
            refused=tuple((int(collection), str(key), int(seqno)) for collection, key, seqno in record.refused),
        )


@dataclass(slots=True, frozen=True)
class StoredDocument:
    """The newest version of a key: a document or a tombstone.

    Attributes:
        key: the key, without the id of its collection.
        value: the value in its stored form; of a tombstone, its attributes or nothing.
        flags: the client's flags.
        expiry: the Unix second of the expiry; 0 for never.
        cas: the CAS.
        rev_seqno: the revision.
        seqno: the seqno.
        datatype: the bits of Datatype.
        deleted: True for a tombstone.
        delete_time: the Unix second of the deletion; 0 for a document.
        durable: False until the version's batch is on disk; no answer that depends on the version may be sent before.
        collection: the id of the key's collection.
        expired: True for a tombstone of an expiration.
    """

    key: bytes
    value: bytes
    flags: int
    expiry: int
    cas: int
    rev_seqno: int
    seqno: int
    datatype: int
    deleted: bool
    delete_time: int
    durable: bool
    collection: int = 0
    expired: bool = False

    @classmethod
    def decode(cls, frame: bytes | memoryview, durable: bool) -> StoredDocument:
        """Read a stored frame."""
        _, opcode, key_bytes, extras_bytes, datatype, _, _, opaque, cas = HEADER.unpack_from(frame)
        flags = expiry = delete_time = 0
        if opcode == MUTATION:
            seqno, rev_seqno, flags, expiry, *_ = _MUTATION.unpack_from(frame, HEADER_BYTES)
        else:
            seqno, rev_seqno, delete_time = _EXPIRATION.unpack_from(frame, HEADER_BYTES)
        key_at = HEADER_BYTES + extras_bytes
        key, value = bytes(frame[key_at : key_at + key_bytes]), bytes(frame[key_at + key_bytes :])
        deleted, collection = opcode != MUTATION, 0
        if opaque & NAMED_MARK:
            collection, key = leb128.split_key(key)
        numbers = seqno, datatype, deleted, delete_time, durable, collection, opcode == EXPIRATION
        return cls(key, value, flags, expiry, cas, rev_seqno, *numbers)


def stored_key(collection: int, key: bytes) -> tuple[bytes, int]:
    """Return the key in its stored form, and the mark for its frame's opaque: with the collection's id and NAMED_MARK,
    or for the default collection the key itself and 0.
    """
    return (leb128.join_key(collection, key), NAMED_MARK) if collection else (key, 0)


def since_bits(delete_time: int, now: int) -> int:
    """Return the bits of a new tombstone's opaque with the hour of `now`; 0 if `delete_time` is less than an hour
    before. `since_of` of kernels/index.py does the same.
    """
    if delete_time + HOUR_SECONDS > now:
        return 0
    # Rounded up, so that a tombstone never seems older than it is, and is not purged too early (decision 0093).
    return (-(-now // HOUR_SECONDS) & SINCE_MASK) << SINCE_SHIFT


def key_in(frame: bytes | memoryview) -> tuple[bytes, int]:
    """Return the key of a stored document and its collection, without a copy of the value."""
    _, _, key_bytes, extras_bytes, _, _, _, opaque, _ = HEADER.unpack_from(frame)
    key_at = HEADER_BYTES + extras_bytes
    key = bytes(frame[key_at : key_at + key_bytes])
    if not opaque & NAMED_MARK:
        return key, 0
    collection, key = leb128.split_key(key)
    return key, collection


def keys_in(frames: bytes) -> list[tuple[bytes, int]]:
    """Return the key (without its collection's id) and the seqno of each document in a sequence of stored frames."""
    keys, at, end = [], 0, len(frames)
    while at < end:
        _, _, key_bytes, extras_bytes, _, _, body_bytes, opaque, _ = HEADER.unpack_from(frames, at)
        extras_at, at = at + HEADER_BYTES, at + HEADER_BYTES + body_bytes
        key_at = extras_at + extras_bytes
        key = frames[key_at : key_at + key_bytes]
        seqno = int.from_bytes(frames[extras_at : extras_at + 8])
        keys.append((leb128.split_key(key)[1] if opaque & NAMED_MARK else key, seqno))
    return keys


class EventParts(NamedTuple):
    """The parts of a stored system event, between which vbucket and seqno are inserted. A change of the collections
    adds the same event to a thousand vbuckets, so the parts are computed once.

    Attributes:
        key: the key of the row; the key of a modification is followed by its seqno.
        before: the message up to the vbucket.
        between: the message between vbucket and seqno.
        behind: the message after the seqno.
    """

    key: bytes
    before: bytes
    between: bytes
    behind: bytes


def event_parts(event: ManifestEvent) -> EventParts:
    """Return the parts of a system event in its stored form, without seqno, vbucket and opaque."""
    number = event.scope_id if event.collection_id is None else event.collection_id
    kind = bytes([SYSTEM_COLLECTION, _kind_of(event)])
    message = oldest_message(event).encode()
    parts = message[:_VBUCKET_AT], message[_VBUCKET_END:_SEQNO_AT], message[_SEQNO_END:]
    return EventParts(kind + leb128.join_key(number, b"\0"), *parts)


def _kind_of(event: ManifestEvent) -> int:
    if event.kind is EventKind.MODIFY_COLLECTION:
        return OF_MODIFIED
    return OF_SCOPE if event.collection_id is None else OF_COLLECTION


def event_frame(vbucket: int, event: EventParts, *, seqno: int, cas: int) -> bytes:
    """Return a system event in its stored form, with this vbucket, seqno and CAS."""
    extras = _MUTATION.pack(seqno, 1, 0, 0, 0, 0, 0)
    key = event.key + seqno.to_bytes(8) if event.key[1] == OF_MODIFIED else event.key
    message = b"".join((event.before, vbucket.to_bytes(2), event.between, seqno.to_bytes(8), event.behind))
    return _frame(MUTATION, vbucket, extras, key, message, cas=cas, hops=NAMED_MARK | SYSTEM_MARK)


def event_apart(frame: bytes | memoryview) -> tuple[int, bytes] | None:
    """Return the seqno of the system event in a stored frame, and its message with vbucket, opaque and seqno set to 0;
    None for any other frame.
    """
    key_at, message_at = _told_at(frame)
    if not message_at or frame[key_at + 1] == OF_PREPARE:
        return None
    message = bytes(memoryview(frame)[message_at:])
    head = (
        message[:_VBUCKET_AT] + bytes(2) + message[_VBUCKET_END:_OPAQUE_AT] + bytes(4) + message[_OPAQUE_END:_SEQNO_AT]
    )
    return int.from_bytes(message[_SEQNO_AT:_SEQNO_END]), head + bytes(8) + message[_SEQNO_END:]


def told_in(frame: bytes | memoryview) -> AnySystemEvent | dcp.Prepare | dcp.Abort | None:
    """Return the system event, prepare or abort in a stored frame; None for a document, and for the mark after a
    committed document. The keys of prepares and aborts begin with the id of their collection.
    """
    key_at, message_at = _told_at(frame)
    if not message_at:
        return None
    if frame[key_at + 1] != OF_PREPARE:
        return read_message(Frame.decode(memoryview(frame)[message_at:]))
    return message_in(frame)


def message_in(frame: bytes | memoryview) -> dcp.Prepare | dcp.Abort | None:
    """Return the prepare or abort in a stored frame; None for any other frame, and for the mark after a committed
    document.
    """
    key_at, message_at = _told_at(frame)
    message = memoryview(frame)[message_at:]
    if not message_at or frame[key_at + 1] != OF_PREPARE or not message:
        return None
    return dcp.Prepare.decode(message) if message[1] == Opcode.DCP_PREPARE else dcp.Abort.decode(message)


def _told_at(frame: bytes | memoryview) -> tuple[int, int]:
    """Return the offsets of key and message in a stored frame that has SYSTEM_MARK; (0, 0) for a document."""
    _, _, key_bytes, extras_bytes, _, _, _, opaque, _ = HEADER.unpack_from(frame)
    key_at = HEADER_BYTES + extras_bytes
    return (key_at, key_at + key_bytes) if opaque & SYSTEM_MARK else (0, 0)


def prepare_key(key: bytes) -> bytes:
    """Return the key under which the prepare of a document is stored; `key` begins with the id of its collection."""
    return bytes([SYSTEM_COLLECTION, OF_PREPARE]) + key


def prepare_frame(vbucket: int, prepare: dcp.Prepare) -> bytes:
    """Return a prepare in its stored form; its key begins with the id of its collection."""
    extras = _MUTATION.pack(prepare.by_seqno, 0, 0, 0, 0, 0, 0)
    body = replace(prepare, vbucket=vbucket, opaque=0, framing=None).encode()
    marks = NAMED_MARK | SYSTEM_MARK
    return _frame(MUTATION, vbucket, extras, prepare_key(prepare.key), body, cas=prepare.cas, hops=marks)


def prepare_over_frame(vbucket: int, key: bytes, seqno: int, delete_time: int, abort: dcp.Abort | None) -> bytes:
    """Return the stored form of a prepare's end: its abort, or, if `abort` is None, the mark after the committed
    document.

    Args:
        vbucket: the vbucket's number.
        key: the document's key, after the id of its collection.
        seqno: the seqno of the abort, or of the document.
        delete_time: the Unix second of the end.
        abort: the abort, or None.
    """
    body = b"" if abort is None else replace(abort, vbucket=vbucket, opaque=0, framing=None).encode()
    extras, marks = _DELETION.pack(seqno, 0, delete_time, 0), NAMED_MARK | SYSTEM_MARK
    # CAS 1 is below every CAS that is given out, so this row never raises the vbucket's clock.
    return _frame(DELETION, vbucket, extras, prepare_key(key), body, cas=1, hops=marks)


def _frame(
    opcode: int,
    vb: int,
    extras: bytes,
    key: bytes = b"",
    value: bytes = b"",
    *,
    datatype: int = 0,
    cas: int = 0,
    hops: int = 0,
) -> bytes:
    return _head(opcode, vb, extras, key, len(value), datatype=datatype, cas=cas, hops=hops) + value


def _head(
    opcode: int, vb: int, extras: bytes, key: bytes, value_bytes: int, *, datatype: int, cas: int, hops: int
) -> bytes:
    body = len(extras) + len(key) + value_bytes
    return HEADER.pack(REQUEST, opcode, len(key), len(extras), datatype, vb, body, hops, cas) + extras + key


def mutation_head(
    vbucket: int,
    key: bytes,
    value_bytes: int,
    *,
    seqno: int,
    cas: int,
    rev_seqno: int,
    flags: int = 0,
    expiry: int = 0,
    datatype: int = 0,
    hops: int = 0,
    collection: int = 0,
) -> bytes:
    """Return the part of a document's stored form (DCP 2.8) before its value of `value_bytes` bytes."""
    extras = _MUTATION.pack(seqno, rev_seqno, flags, expiry, 0, 0, 0)
    key, mark = stored_key(collection, key)
    return _head(MUTATION, vbucket, extras, key, value_bytes, datatype=datatype, cas=cas, hops=hops | mark)


def mutation_frame(vbucket: int, key: bytes, value: bytes, **numbers: int) -> bytes:
    """Return a whole document in its stored form; `numbers` are those of `mutation_head`."""
    return mutation_head(vbucket, key, len(value), **numbers) + value


def deletion_frame(
    vbucket: int,
    key: bytes,
    value: bytes = b"",
    *,
    seqno: int,
    cas: int,
    rev_seqno: int,
    delete_time: int,
    datatype: int = 0,
    expired: bool = False,
    hops: int = 0,
    collection: int = 0,
) -> bytes:
    """Return a tombstone in its stored form (DCP 2.9 V2, or 2.10); `value` has the remaining xattrs, if any."""
    opcode, extras = DELETION, _DELETION.pack(seqno, rev_seqno, delete_time, 0)
    if expired:
        opcode, extras = EXPIRATION, _EXPIRATION.pack(seqno, rev_seqno, delete_time)
    key, mark = stored_key(collection, key)
    return _frame(opcode, vbucket, extras, key, value, datatype=datatype, cas=cas, hops=hops | mark)


def record_frame(vbucket: int, record: VBucketRecord) -> bytes:
    """Return the control frame with a vbucket's record."""
    return _frame(ControlOpcode.RECORD, vbucket, b"", value=record.encode())


def rollback_frame(vbucket: int, seqno: int, high_seqno: int) -> bytes:
    """Return the control frame that undoes all changes above `seqno`, and sets the high seqno. A frame with seqno 0
    undoes all changes, and also resets the seqnos of the vbucket's record.
    """
    return _frame(ControlOpcode.ROLLBACK, vbucket, _ROLLBACK.pack(seqno, high_seqno))


def drop_frame(vbucket: int) -> bytes:
    """Return the control frame that drops a vbucket."""
    return _frame(ControlOpcode.DROP, vbucket, b"")


def clean_frame() -> bytes:
    """Return the control frame at the end of a cleanly closed log."""
    return _frame(ControlOpcode.CLEAN, 0, b"")


def control_of(frame: bytes) -> tuple[ControlOpcode, VBucketRecord | tuple[int, int] | None]:
    """Return a control frame's kind and content: a record, (seqno, high seqno) of a rollback, or None.

    Raises:
        ValueError: this version does not know the frame.
    """
    try:
        control = ControlOpcode(frame[1])
        if control is ControlOpcode.RECORD:
            return control, VBucketRecord.decode(frame[HEADER_BYTES:])
        if control is ControlOpcode.ROLLBACK:
            seqno, high = _ROLLBACK.unpack(frame[HEADER_BYTES:])
            return control, (seqno, high)
    except (ValueError, TypeError, KeyError, error) as problem:
        raise ValueError(f"control frame 0x{frame[1]:02x} can't be read: {problem}") from problem
    return control, None
