"""Documents with their metadata: GET_META and SET, ADD, DEL_WITH_META with conflict resolution (kv.md 2).

These move documents between clusters: the sender gives CAS, revision, expiry and flags, and whoever is ahead wins. This
bucket resolves by revision; last-write-wins buckets are not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any

from headwater.node.kv import documents, values
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.wire.datatype import Datatype
from headwater.wire.header import Frame
from headwater.wire.opcodes import QUIET, Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession
    from headwater.node.storage.records import Document

FORCE, FORCE_ACCEPT, REGENERATE_CAS, SKIP_CONFLICT_RESOLUTION, IS_EXPIRATION = 0x01, 0x02, 0x04, 0x08, 0x10
_OPTIONS = FORCE | FORCE_ACCEPT | REGENERATE_CAS | SKIP_CONFLICT_RESOLUTION | IS_EXPIRATION
_CAS_IMPOSSIBLE = (0, 0xFFFF_FFFF_FFFF_FFFF)
_HEAD = Struct(">IIQQ")
_META = Struct(">I4sIQ")
_WITH_META: dict[str, Any] = {
    "extras": (24, 26, 28, 30),
    "key": Part.REQUIRED,
    "value": Part.ANY,
    "cas": True,
    "document": True,
    "writes": True,
}


@dataclass(frozen=True, slots=True)
class Incoming:
    """What a with-meta request wants stored."""

    flags: int
    expiry: int
    rev_seqno: int
    cas: int
    options: int
    value: bytes


@command(Opcode.GET_META, Opcode.GETQ_META, extras=(0, 1), key=Part.REQUIRED, document=True)
def get_meta(session: KvSession, frame: Frame) -> Reply:
    """deleted, flags, expiry (a tombstone's delete time), revision [, datatype]; works on tombstones."""
    if frame.extras not in (b"", b"\1", b"\2"):
        raise Refused(Status.EINVAL, f"a version of {frame.extras[0]} is not 1 or 2")
    found = documents.newest(session, frame)
    if found is None:
        raise Refused(Status.KEY_ENOENT)
    time = found.delete_time if found.deleted else found.expiry
    extras = _META.pack(int(found.deleted), found.flags.to_bytes(4, "big"), time, found.rev_seqno)
    if frame.extras == b"\2":
        extras += bytes([found.datatype])
    return Reply(extras=extras, cas=found.cas)


def _incoming(frame: Frame) -> Incoming:
    """24 bytes, then options (28, 30) and the length of the old extended metadata (26, 30), which is cut off the
    value."""
    flags, expiry, rev_seqno, cas = _HEAD.unpack_from(frame.extras)
    size = len(frame.extras)
    options = int.from_bytes(frame.extras[24:28], "big") if size >= 28 else 0
    nmeta = int.from_bytes(frame.extras[-2:], "big") if size in (26, 30) else 0
    if nmeta > len(frame.value):
        raise Refused(Status.EINVAL, f"{nmeta} bytes of metadata in a value of {len(frame.value)}")
    if cas in _CAS_IMPOSSIBLE:
        raise Refused(Status.CAS_VALUE_INVALID, "a CAS of 0 or all ones can't be stored")
    return Incoming(flags, expiry, rev_seqno, cas, options, frame.value[: len(frame.value) - nmeta])


def _check_options(options: int, *, deletes: bool) -> None:
    """FORCE_ACCEPT is for last-write-wins buckets; REGENERATE_CAS needs SKIP_CONFLICT_RESOLUTION."""
    if options & ~_OPTIONS or options & FORCE_ACCEPT or (options & IS_EXPIRATION and not deletes):
        raise Refused(Status.EINVAL, f"options 0x{options:x} do not fit this bucket or command")
    if options & REGENERATE_CAS and not options & SKIP_CONFLICT_RESOLUTION:
        raise Refused(Status.EINVAL, "a CAS is only regenerated when conflict resolution is skipped")


def _wins(given: Incoming, stored: Document | None, *, deletes: bool, has_xattrs: bool) -> bool:
    """Revision mode: set (rev, cas, expiry, flags), delete (rev, cas); the incoming one wins iff strictly greater.

    Nothing stored: it wins; tombstones take part like documents. All equal: a set still wins if it brings extended
    attributes that the stored one has not.
    """
    if stored is None or given.options & (FORCE | SKIP_CONFLICT_RESOLUTION):
        return True
    if deletes:
        return (given.rev_seqno, given.cas) > (stored.rev_seqno, stored.cas)
    stored_time = stored.delete_time if stored.deleted else stored.expiry
    ours = (stored.rev_seqno, stored.cas, stored_time, stored.flags)
    theirs = (given.rev_seqno, given.cas, given.expiry, given.flags)
    return theirs > ours or (theirs == ours and has_xattrs and not stored.datatype & Datatype.XATTR)


def _admitted(session: KvSession, frame: Frame, *, deletes: bool) -> tuple[Incoming, Document | None]:
    given = _incoming(frame)
    _check_options(given.options, deletes=deletes)
    stored = documents.newest(session, frame)
    if frame.cas and (stored is None or stored.deleted):
        raise Refused(Status.KEY_ENOENT)
    if stored is not None:
        documents.check_cas(frame, stored)
    has_xattrs = bool(frame.datatype & Datatype.XATTR)
    adds = QUIET.get(frame.opcode, frame.opcode) == Opcode.ADD_WITH_META
    if adds and stored is not None and not stored.deleted:
        raise Refused(Status.KEY_EEXISTS)
    if not _wins(given, stored, deletes=deletes, has_xattrs=has_xattrs):
        raise Refused(Status.KEY_EEXISTS)
    return given, stored


def _cas(session: KvSession, frame: Frame, given: Incoming) -> int:
    regenerate = given.options & REGENERATE_CAS
    return session.store_bucket.next_cas(frame.vbucket) if regenerate else given.cas


@command(
    Opcode.SET_WITH_META,
    Opcode.SETQ_WITH_META,
    Opcode.ADD_WITH_META,
    Opcode.ADDQ_WITH_META,
    **_WITH_META,
)
def set_with_meta(session: KvSession, frame: Frame) -> Reply:
    """Store a document as another cluster has it, if it is ahead; else KEY_EEXISTS."""
    given, _ = _admitted(session, frame, deletes=False)
    cas = _cas(session, frame, given)
    seqno = session.store_bucket.store.stage_mutation(
        frame.vbucket,
        frame.key,
        given.value,
        cas=cas,
        rev_seqno=given.rev_seqno,
        flags=given.flags,
        expiry=given.expiry,
        datatype=values.accepted(given.value, frame.datatype),
    )
    session.store_bucket.counters["cmd_set"] += 1
    return documents.changed(session, frame.vbucket, seqno, cas)


@command(
    Opcode.DEL_WITH_META,
    Opcode.DELQ_WITH_META,
    **_WITH_META,
)
def del_with_meta(session: KvSession, frame: Frame) -> Reply:
    """Store a tombstone as another cluster has it, also of a key never seen; its value may only hold attributes."""
    given, _ = _admitted(session, frame, deletes=True)
    kept = values.inflate(given.value, frame.datatype)
    if kept and (not frame.datatype & Datatype.XATTR or values.split_body(kept, frame.datatype)[1]):
        raise Refused(Status.EINVAL, "a tombstone holds extended attributes or nothing")
    bucket, cas = session.store_bucket, _cas(session, frame, given)
    seqno = bucket.store.stage_deletion(
        frame.vbucket,
        frame.key,
        kept,
        cas=cas,
        rev_seqno=given.rev_seqno,
        delete_time=given.expiry or bucket.now(),
        datatype=Datatype.XATTR if kept else 0,
        expired=bool(given.options & IS_EXPIRATION),
    )
    bucket.counters["cmd_delete"] += 1
    return documents.changed(session, frame.vbucket, seqno, cas)
