"""Documents one at a time: get, set, add, replace, delete, append, prepend (kv.md 2).

The kernel answers most of these; here are the rest of their forms, and the helpers that every command on a document
uses: `live` (which notices that a document has expired), `store` and `remove` (which stage a change and make its
answer).
"""

from __future__ import annotations

from dataclasses import replace as replace_field
from typing import TYPE_CHECKING

from headwater.node.kv import values
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.kv.framing import preserves_ttl
from headwater.node.kv.locks import CAS_OF_LOCKED, lock_of
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.header import VALUE_BYTES_MAX, Frame
from headwater.wire.opcodes import QUIET, Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.bucket import Bucket
    from headwater.node.kv.session import KvSession
    from headwater.node.storage.records import Document

RELATIVE_SECONDS_MAX = 30 * 86400
U32_MAX = 0xFFFF_FFFF


# --- helpers ----------------------------------------------------------------------------------------------------------


def absolute_expiry(expiry: int, now: int) -> int:
    """wire.md 10: 0 = never; 1 to 30 days = seconds from now; larger = Unix time."""
    if expiry == 0 or expiry > RELATIVE_SECONDS_MAX:
        return expiry
    return min(now + expiry, U32_MAX)


def is_expired(document: Document, now: int) -> bool:
    """Whether a live document's time is over."""
    return not document.deleted and 0 < document.expiry <= now


def expire(bucket: Bucket, vb: int, key: bytes, document: Document) -> None:
    """Turn an expired document into its EXPIRATION record: new seqno and CAS, revision + 1, its expiry as delete
    time."""
    kept = values.system_attributes(document)
    bucket.store.stage_deletion(
        vb,
        key,
        kept,
        cas=bucket.next_cas(vb),
        rev_seqno=document.rev_seqno + 1,
        delete_time=document.expiry,
        datatype=Datatype.XATTR if kept else 0,
        expired=True,
    )
    bucket.counters["expired"] += 1
    bucket.committer.wrote()


def newest(session: KvSession, frame: Frame) -> Document | None:
    """The newest version of the key, tombstones included; a document that has expired becomes one first."""
    bucket, vb = session.store_bucket, frame.vbucket
    found = bucket.store.document(vb, frame.key)
    if found is not None and is_expired(found, bucket.now()):
        if bucket.store.full:
            raise Refused(Status.ETMPFAIL, "the disk is full")
        expire(bucket, vb, frame.key, found)
        session.wrote()
        found = bucket.store.document(vb, frame.key)
    return found


def live(session: KvSession, frame: Frame) -> Document | None:
    """The document of the key, or None if there is none."""
    found = newest(session, frame)
    return None if found is None or found.deleted else found


def existing(session: KvSession, frame: Frame) -> Document:
    """The document of the key; Refused(KEY_ENOENT) if there is none."""
    found = live(session, frame)
    if found is None:
        raise Refused(Status.KEY_ENOENT)
    return found


def check_cas(frame: Frame, document: Document) -> None:
    """A request with a CAS changes the document only if it still has that one."""
    if frame.cas and frame.cas != document.cas:
        raise Refused(Status.KEY_EEXISTS)


def changed(session: KvSession, vb: int, seqno: int, cas: int) -> Reply:
    """The answer of a change: kv.md 2, "M": with MutationSeqno 16 bytes vb uuid and seqno."""
    session.wrote()
    extras = b""
    if session.has(Feature.MUTATION_SEQNO):
        uuid = session.store_bucket.vbuckets[vb].failover.newest.vb_uuid
        extras = uuid.to_bytes(8, "big") + seqno.to_bytes(8, "big")
    return Reply(extras=extras, cas=cas)


def store(
    session: KvSession, frame: Frame, value: bytes, *, old: Document | None, flags: int, expiry: int, datatype: int
) -> Reply:
    """Stage the next version of the key: seqno high + 1, a new CAS, revision + 1 (kv.md 2, "Every mutation")."""
    bucket, vb = session.store_bucket, frame.vbucket
    cas = bucket.next_cas(vb)
    seqno = bucket.store.stage_mutation(
        vb,
        frame.key,
        value,
        cas=cas,
        rev_seqno=old.rev_seqno + 1 if old else 1,
        flags=flags,
        expiry=expiry,
        datatype=datatype,
    )
    bucket.counters["cmd_set"] += 1
    bucket.locks.release(vb, frame.key)
    return changed(session, vb, seqno, cas)


def remove(session: KvSession, frame: Frame, old: Document) -> Reply:
    """Stage the deletion of a live document; its system attributes stay with the tombstone.

    The answer has the tombstone's CAS (kv.md 2, "M"), but for a client that never said HELLO: memcached answers 0
    there, and its conformance test insists on it.
    """
    bucket, vb = session.store_bucket, frame.vbucket
    kept, cas = values.system_attributes(old), bucket.next_cas(vb)
    seqno = bucket.store.stage_deletion(
        vb,
        frame.key,
        kept,
        cas=cas,
        rev_seqno=old.rev_seqno + 1,
        delete_time=bucket.now(),
        datatype=Datatype.XATTR if kept else 0,
    )
    bucket.counters["cmd_delete"] += 1
    bucket.locks.release(vb, frame.key)
    return changed(session, vb, seqno, cas if session.features else 0)


def found_reply(session: KvSession, document: Document, key: bytes = b"") -> Reply:
    """The answer of a hit: flags, value as this connection may see it, CAS."""
    value, datatype = values.shown(document, session.features)
    return Reply(extras=document.flags.to_bytes(4, "big"), key=key, value=value, datatype=datatype, cas=document.cas)


def _merged(old: Document | None, value: bytes, datatype: int) -> tuple[bytes, int]:
    """A plain write replaces the body and keeps the attributes that only attribute-aware writers may change."""
    if old is None or not old.datatype & Datatype.XATTR or datatype & Datatype.XATTR:
        return value, datatype
    section = values.system_attributes(old) if old.deleted else values.body_of(old)[0]
    if not section:
        return value, datatype
    plain = values.inflate(value, datatype)
    return section + plain, (datatype & ~Datatype.SNAPPY) | Datatype.XATTR


# --- commands ---------------------------------------------------------------------------------------------------------


@command(Opcode.GET, Opcode.GETQ, Opcode.GETK, Opcode.GETKQ, key=Part.REQUIRED, document=True)
def get(session: KvSession, frame: Frame) -> Reply:
    """GET and its forms; the K forms repeat the key."""
    counters = session.store_bucket.counters
    counters["cmd_get"] += 1
    document = existing(session, frame)
    counters["get_hits"] += 1
    named = frame.opcode in (Opcode.GETK, Opcode.GETKQ)
    reply = found_reply(session, document, frame.key if named else b"")
    return replace_field(reply, cas=CAS_OF_LOCKED) if lock_of(session, frame) else reply


@command(Opcode.GET_REPLICA, key=Part.REQUIRED, document=True)
def get_replica(session: KvSession, frame: Frame) -> Reply:
    """GET on a replica, which never expires anything by itself."""
    bucket = session.store_bucket
    document = bucket.store.document(frame.vbucket, frame.key)
    if document is None or document.deleted or is_expired(document, bucket.now()):
        raise Refused(Status.KEY_ENOENT)
    return found_reply(session, document)


def _new_expiry(session: KvSession, frame: Frame, old: Document | None) -> int:
    if old is not None and preserves_ttl(frame):
        return old.expiry
    return absolute_expiry(int.from_bytes(frame.extras[4:8], "big"), session.store_bucket.now())


def _put(session: KvSession, frame: Frame, version: Document | None) -> Reply:
    """`version`: the newest one, a tombstone included."""
    alive = None if version is None or version.deleted else version
    datatype = values.accepted(frame.value, frame.datatype)
    value, datatype = _merged(version, frame.value, datatype)
    if len(value) > VALUE_BYTES_MAX:
        raise Refused(Status.E2BIG, f"with its attributes the value has {len(value)} bytes")
    flags = int.from_bytes(frame.extras[:4], "big")
    expiry = _new_expiry(session, frame, alive)
    return store(session, frame, value, old=version, flags=flags, expiry=expiry, datatype=datatype)


@command(Opcode.SET, Opcode.SETQ, extras=(8,), key=Part.REQUIRED, value=Part.ANY, cas=True, document=True, writes=True)
def set_(session: KvSession, frame: Frame) -> Reply:
    """SET: with a CAS it must be the current one (else 02), and there must be one (else 01)."""
    version = newest(session, frame)
    if frame.cas:
        if version is None or version.deleted:
            raise Refused(Status.KEY_ENOENT)
        check_cas(frame, version)
    return _put(session, frame, version)


@command(Opcode.ADD, Opcode.ADDQ, extras=(8,), key=Part.REQUIRED, value=Part.ANY, document=True, writes=True)
def add(session: KvSession, frame: Frame) -> Reply:
    """ADD: 02 if there is a document."""
    version = newest(session, frame)
    if version is not None and not version.deleted:
        raise Refused(Status.KEY_EEXISTS)
    return _put(session, frame, version)


@command(
    Opcode.REPLACE,
    Opcode.REPLACEQ,
    extras=(8,),
    key=Part.REQUIRED,
    value=Part.ANY,
    cas=True,
    document=True,
    writes=True,
)
def replace(session: KvSession, frame: Frame) -> Reply:
    """REPLACE: 01 if there is no document."""
    document = existing(session, frame)
    check_cas(frame, document)
    return _put(session, frame, document)


@command(Opcode.DELETE, Opcode.DELETEQ, key=Part.REQUIRED, cas=True, document=True, writes=True)
def delete(session: KvSession, frame: Frame) -> Reply:
    """DELETE: the answer's CAS is the tombstone's."""
    document = existing(session, frame)
    check_cas(frame, document)
    return remove(session, frame, document)


@command(
    Opcode.APPEND,
    Opcode.APPENDQ,
    Opcode.PREPEND,
    Opcode.PREPENDQ,
    key=Part.REQUIRED,
    value=Part.ANY,
    cas=True,
    document=True,
    writes=True,
)
def extend(session: KvSession, frame: Frame) -> Reply:
    """APPEND and PREPEND: to the body; flags and expiry stay. Missing: NOT_STORED 05."""
    document = live(session, frame)
    if document is None:
        raise Refused(Status.NOT_STORED)
    check_cas(frame, document)
    section, body = values.body_of(document)
    piece = values.inflate(frame.value, frame.datatype)
    appends = QUIET.get(frame.opcode, frame.opcode) == Opcode.APPEND
    body = body + piece if appends else piece + body
    if len(section) + len(body) > VALUE_BYTES_MAX:
        raise Refused(Status.E2BIG, f"the value would have {len(section) + len(body)} bytes")
    return store_body(session, frame, document, section, body, expiry=document.expiry)


def store_body(session: KvSession, frame: Frame, old: Document, section: bytes, body: bytes, *, expiry: int) -> Reply:
    """Stage a new body of a document with its attributes and flags as they were."""
    datatype = (Datatype.XATTR if section else 0) | (Datatype.JSON if values.is_json(body) else 0)
    return store(session, frame, section + body, old=old, flags=old.flags, expiry=expiry, datatype=int(datatype))
