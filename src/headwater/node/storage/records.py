"""The frames of a batch: documents as DCP would send them, and control frames about vbuckets.

A document frame is a MUTATION (31 bytes of extras), a DELETION in its V2 form (21) or an EXPIRATION (20), opaque 0.
A control frame has the same 24-byte header and an opcode that DCP does not use (`Control`); it never leaves the node.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from struct import Struct, error
from typing import Any, Final

__all__ = [
    "CONTROL_OPCODES",
    "Control",
    "Document",
    "VBucketRecord",
    "clean_frame",
    "control_of",
    "deletion_frame",
    "drop_frame",
    "mutation_frame",
    "record_frame",
    "rollback_frame",
]

_HEADER = Struct(">BBHBBHIIQ")
_MUTATION = Struct(">QQIIIHB")  # by_seqno, rev_seqno, flags, expiration, lock time, nmeta, nru
_DELETION = Struct(">QQIB")  # by_seqno, rev_seqno, delete time, unused
_EXPIRATION = Struct(">QQI")  # by_seqno, rev_seqno, delete time
_ROLLBACK = Struct(">QQ")  # seqno to return to, high seqno after it

MUTATION: Final = 0x57
DELETION: Final = 0x58
EXPIRATION: Final = 0x59
REQUEST: Final = 0x80
KEY_BYTES_MAX: Final = 0xFFFF
FRAME_BYTES_MAX: Final = 24 + 30 * 1024 * 1024


class Control(IntEnum):
    """Opcodes of control frames."""

    RECORD = 0xF0  # value: a VBucketRecord as JSON
    ROLLBACK = 0xF1  # extras: seqno to return to, high seqno after it
    DROP = 0xF2  # the vbucket is gone, its documents with it
    CLEAN = 0xF3  # the store was closed in order; counts only as the very last frame


CONTROL_OPCODES: Final = frozenset(int(one) for one in Control)


@dataclass(slots=True, frozen=True)
class VBucketRecord:
    """What a vbucket is, apart from its documents.

    Attributes:
        state: wire.vbucket.State.
        failover: (vb uuid, seqno) pairs, newest first.
        purge_seqno: tombstones up to here may be missing, purged here or at the producer. The store's own; what the
            caller gives is replaced.
        snapshot_start, snapshot_end: the snapshot that the high seqno lies in.
        max_cas: no CAS at or below it will be given again.
        rollback_floor: the smallest seqno to roll back to without losing everything. The store's own.
        high_seqno: the high seqno when the record was made. The store's own.
        consistent: ranges [first, last] of seqnos at which what is held was a consistent state, ascending.
        checkpoint: the last checkpoint that a TAP producer sent whole; 0 for none.
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

    def encode(self) -> bytes:
        """As JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> VBucketRecord:
        """From `encode()`; ValueError, TypeError or KeyError when it is not that."""
        fields: dict[str, Any] = json.loads(data)
        record = cls(**fields)
        return replace(
            record,
            failover=tuple((int(uuid), int(seqno)) for uuid, seqno in record.failover),
            consistent=tuple((int(first), int(last)) for first, last in record.consistent),
        )


@dataclass(slots=True, frozen=True)
class Document:
    """The newest version of a key: a document, or (`deleted`) its tombstone.

    `durable` is False as long as its batch is not on disk: what depends on it must not be told to anyone before.
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

    @classmethod
    def decode(cls, frame: bytes, durable: bool) -> Document:
        """Read a stored frame."""
        _, opcode, key_bytes, extras_bytes, datatype, _, _, _, cas = _HEADER.unpack_from(frame)
        flags = expiry = delete_time = 0
        if opcode == MUTATION:
            seqno, rev_seqno, flags, expiry, *_ = _MUTATION.unpack_from(frame, 24)
        else:
            seqno, rev_seqno, delete_time = _EXPIRATION.unpack_from(frame, 24)
        key_at = 24 + extras_bytes
        key, value = frame[key_at : key_at + key_bytes], frame[key_at + key_bytes :]
        deleted = opcode != MUTATION
        return cls(key, value, flags, expiry, cas, rev_seqno, seqno, datatype, deleted, delete_time, durable)


def _frame(
    opcode: int, vb: int, extras: bytes, key: bytes = b"", value: bytes = b"", *, datatype: int = 0, cas: int = 0
) -> bytes:
    body = len(extras) + len(key) + len(value)
    head = _HEADER.pack(REQUEST, opcode, len(key), len(extras), datatype, vb, body, 0, cas)
    return b"".join((head, extras, key, value))


def mutation_frame(
    vb: int,
    key: bytes,
    value: bytes,
    *,
    seqno: int,
    cas: int,
    rev_seqno: int,
    flags: int = 0,
    expiry: int = 0,
    datatype: int = 0,
) -> bytes:
    """A document as it is stored (DCP 2.8)."""
    extras = _MUTATION.pack(seqno, rev_seqno, flags, expiry, 0, 0, 0)
    return _frame(MUTATION, vb, extras, key, value, datatype=datatype, cas=cas)


def deletion_frame(
    vb: int,
    key: bytes,
    value: bytes = b"",
    *,
    seqno: int,
    cas: int,
    rev_seqno: int,
    delete_time: int,
    datatype: int = 0,
    expired: bool = False,
) -> bytes:
    """A tombstone as it is stored (DCP 2.9 V2 form, or 2.10); `value` holds the xattrs that survive, if any."""
    if expired:
        return _frame(
            EXPIRATION, vb, _EXPIRATION.pack(seqno, rev_seqno, delete_time), key, value, datatype=datatype, cas=cas
        )
    return _frame(
        DELETION, vb, _DELETION.pack(seqno, rev_seqno, delete_time, 0), key, value, datatype=datatype, cas=cas
    )


def record_frame(vb: int, record: VBucketRecord) -> bytes:
    """The control frame that carries a vbucket's record."""
    return _frame(Control.RECORD, vb, b"", value=record.encode())


def rollback_frame(vb: int, seqno: int, high_seqno: int) -> bytes:
    """The control frame that takes back everything above `seqno`; 0 takes back all, the record's seqnos as well."""
    return _frame(Control.ROLLBACK, vb, _ROLLBACK.pack(seqno, high_seqno))


def drop_frame(vb: int) -> bytes:
    """The control frame after which the vbucket does not exist."""
    return _frame(Control.DROP, vb, b"")


def clean_frame() -> bytes:
    """The control frame that ends a log in order."""
    return _frame(Control.CLEAN, 0, b"")


def control_of(frame: bytes) -> tuple[Control, VBucketRecord | tuple[int, int] | None]:
    """What a control frame says: a record, (seqno, high seqno) of a rollback, or nothing more.

    Raises:
        ValueError: it says nothing that this version understands.
    """
    try:
        control = Control(frame[1])
        if control is Control.RECORD:
            return control, VBucketRecord.decode(frame[24:])
        if control is Control.ROLLBACK:
            seqno, high = _ROLLBACK.unpack(frame[24:])
            return control, (seqno, high)
    except (ValueError, TypeError, KeyError, error) as problem:
        raise ValueError(f"control frame 0x{frame[1]:02x} can't be read: {problem}") from problem
    return control, None
