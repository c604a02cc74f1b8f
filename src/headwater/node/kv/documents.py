"""Documents one at a time: get, set, add, replace, delete, append, prepend (kv.md 2).

The kernel answers most of these requests; this module handles the rest, and has helpers for every command on a
document: `live` (which expires documents), `store` and `remove` (which stage a change and return its answer).
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, TypeVar

from headwater.errors import DiskFull
from headwater.node.buckets.locks import CAS_OF_LOCKED
from headwater.node.kv import values
from headwater.node.kv.answering import StagedChange
from headwater.node.kv.command import handles
from headwater.node.kv.framing import preserves_ttl
from headwater.node.refused import CommandRefused
from headwater.wire import documents as wire
from headwater.wire import leb128, times
from headwater.wire.datatype import Datatype
from headwater.wire.dcp import Prepare
from headwater.wire.features import Feature
from headwater.wire.header import VALUE_BYTES_MAX
from headwater.wire.layout import Request
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.durable_writes import DurableWrite
    from headwater.node.kv.api import Session
    from headwater.node.storage.records import StoredDocument
    from headwater.wire.framing import DurabilityInfo


Found = TypeVar("Found", bound=wire.GetResponse)
EXPIRY_MAX = 0xFFFF_FFFF


# --- helpers ----------------------------------------------------------------------------------------------------------


def sent_key(session: Session, key: bytes) -> bytes:
    """Return a key in the encoding of this connection, in the collection of the current request."""
    return leb128.join_key(session.collection, key) if session.knows_collections else key


def limited(session: Session, expiry: int) -> int:
    """Return an expiry (Unix seconds, 0 for never), limited by the maximum TTL of the current request's collection."""
    bucket = session.store_bucket
    most = bucket.collections.ttl_max(session.collection)
    return expiry if most is None else min(expiry or EXPIRY_MAX, bucket.now() + most, EXPIRY_MAX)


def is_expired(document: StoredDocument, now: int) -> bool:
    """Return True if a document is not deleted and its expiry has passed."""
    return not document.deleted and times.is_expired(document.expiry, now)


def expire(bucket: Bucket, vbucket: int, key: bytes, document: StoredDocument) -> None:
    """Stage the expiration of a document: a tombstone with the next seqno, a new CAS, revision + 1, and the document's
    expiry as its delete time.
    """
    attributes = values.system_attributes(document)
    bucket.store.staging.deletion(
        vbucket,
        key,
        attributes,
        cas=bucket.next_cas(vbucket),
        rev_seqno=bucket.next_revision(vbucket, document),
        delete_time=document.expiry,
        now=bucket.now(),
        datatype=Datatype.XATTR if attributes else 0,
        expired=True,
        collection=document.collection,
    )
    bucket.counters["expired"] += 1
    bucket.committer.wrote()


def newest(session: Session, request: Request) -> StoredDocument | None:
    """Return the newest version of the key, tombstones included; None if there is none.

    If the document has expired, its tombstone is staged first, and returned. If the tombstone has no room now, it is
    returned without being staged. If a durable write of the key is in flight, the result is None.
    """
    bucket, vb = session.store_bucket, request.vbucket
    document = bucket.store.document(vb, request.key, session.collection)
    if document is not None and is_expired(document, bucket.now()):
        if bucket.durable_writes.is_in_flight(vb, session.collection, request.key):
            return None  # nothing comes between a prepare and its commit
        # A read must not fail because its document's tombstone has no room, or may not be written while the vbucket
        # moves.
        if bucket.store.full or bucket.is_backed_up(vb):
            return _as_expired(document)
        try:
            expire(bucket, vb, request.key, document)
        except DiskFull:
            return _as_expired(document)
        # The answer "not found" waits for the tombstone's batch: if the batch were lost, another client could read the
        # document again.
        session.wrote()
        document = bucket.store.document(vb, request.key, session.collection)
    return document


def _as_expired(document: StoredDocument) -> StoredDocument:
    """Return the tombstone that an expired document will become once there is room to stage it."""
    return replaced(document, deleted=True, value=b"", datatype=0, flags=0, expiry=0, delete_time=document.expiry)


def live(session: Session, request: Request) -> StoredDocument | None:
    """Return the document with the key; None if there is none, or it has expired."""
    document = newest(session, request)
    return None if document is None or document.deleted else document


def existing(session: Session, request: Request) -> StoredDocument:
    """Return the document with the key; raise CommandRefused(KEY_ENOENT) if there is none."""
    document = live(session, request)
    if document is None:
        raise CommandRefused(Status.KEY_ENOENT)
    return document


def check_cas(request: Request, document: StoredDocument) -> None:
    """Refuse a request with a CAS if the document has another one."""
    if request.cas and request.cas != document.cas:
        raise CommandRefused(Status.KEY_EEXISTS)


def end_lock(session: Session, request: Request) -> None:
    """Forget the lock of a document that was changed (kv.md 2: "a mutation with the token unlocks").

    A durable write changes the document when it is committed, and the new CAS ends the lock then. An aborted write
    leaves the document locked.
    """
    if session.durability is None:
        session.store_bucket.locks.release(request.vbucket, request.key, session.collection)


def changed(session: Session, vbucket: int, seqno: int, cas: int) -> wire.Stored:
    """Return the answer to a staged change, and make it wait for the change's batch. If the client has MutationSeqno,
    the answer has the vbucket's uuid and the seqno (kv.md 2, "M").
    """
    session.wrote()
    if not session.has(Feature.MUTATION_SEQNO):
        return wire.Stored(cas=cas)
    return wire.Stored(cas=cas, vb_uuid=session.store_bucket.vbuckets[vbucket].failover.newest.vb_uuid, seqno=seqno)


def stage(
    session: Session,
    request: Request,
    value: bytes,
    *,
    cas: int,
    old: StoredDocument | None,
    flags: int = 0,
    expiry: int = 0,
    datatype: int = 0,
) -> tuple[int, DurableWrite | None]:
    """Stage a document, or its prepare if the request has a durability.

    Returns:
        The seqno, and the durable write for which the answer must wait; None if the request has no durability.

    Raises:
        ArenaFull, DiskFull: there is no room, and nothing is staged.
    """
    bucket, vb = session.store_bucket, request.vbucket
    # The old version may be a tombstone: "tombstone revision kept across re-creation" (kv.md 2), or an older version
    # from another cluster would win.
    revision = bucket.next_revision(vb, old)
    if session.durability is None:
        seqno = bucket.store.staging.mutation(
            vb,
            request.key,
            value,
            cas=cas,
            rev_seqno=revision,
            flags=flags,
            expiry=expiry,
            datatype=datatype,
            collection=session.collection,
        )
        return seqno, None
    # by_seqno 0: the store assigns the next seqno when it stages the prepare.
    prepare = Prepare(
        by_seqno=0,
        rev_seqno=revision,
        flags=flags,
        expiration=expiry,
        durability_level=session.durability.level,
        key=leb128.join_key(session.collection, request.key),
        value=value,
        datatype=int(datatype),
        cas=cas,
    )
    return _begin(session, vb, prepare, session.durability)


def _begin(session: Session, vbucket: int, prepare: Prepare, durability: DurabilityInfo) -> tuple[int, DurableWrite]:
    write = session.store_bucket.durable_writes.begin(vbucket, prepare, durability.timeout_ms)
    return write.seqno, write


def stage_tombstone(
    session: Session, request: Request, attributes: bytes, *, cas: int, old: StoredDocument | None, datatype: int
) -> tuple[int, DurableWrite | None]:
    """Stage a deletion, or its prepare; otherwise like `stage`. `attributes` is the section of attributes that stay, or
    empty.
    """
    bucket, vb = session.store_bucket, request.vbucket
    revision, now = bucket.next_revision(vb, old), bucket.now()
    if session.durability is None:
        seqno = bucket.store.staging.deletion(
            vb,
            request.key,
            attributes,
            cas=cas,
            rev_seqno=revision,
            delete_time=now,
            datatype=datatype,
            collection=session.collection,
        )
        return seqno, None
    prepare = Prepare(
        by_seqno=0,
        rev_seqno=revision,
        expiration=now,  # in a deletion, this field is its time
        deleted=1,
        durability_level=session.durability.level,
        key=leb128.join_key(session.collection, request.key),
        value=attributes,
        datatype=int(datatype),
        cas=cas,
    )
    return _begin(session, vb, prepare, session.durability)


def store(
    session: Session,
    request: Request,
    value: bytes,
    *,
    old: StoredDocument | None,
    flags: int,
    expiry: int,
    datatype: int,
) -> StagedChange:
    """Stage the next version of a document: seqno high + 1, a new CAS, revision + 1 (kv.md 2, "Every mutation")."""
    bucket, vb = session.store_bucket, request.vbucket
    cas = bucket.next_cas(vb)
    seqno, write = stage(session, request, value, cas=cas, old=old, flags=flags, expiry=expiry, datatype=datatype)
    bucket.counters["cmd_set"] += 1
    end_lock(session, request)
    return StagedChange(changed(session, vb, seqno, cas), write)


def remove(session: Session, request: Request, old: StoredDocument) -> StagedChange:
    """Stage the deletion of a live document; its system attributes stay with the tombstone.

    The answer has the tombstone's CAS (kv.md 2, "M"). A client that never sent HELLO gets 0 instead, because
    memcached's conformance test requires it.
    """
    bucket, vb = session.store_bucket, request.vbucket
    attributes, cas = values.system_attributes(old), bucket.next_cas(vb)
    datatype = Datatype.XATTR if attributes else 0
    seqno, write = stage_tombstone(session, request, attributes, cas=cas, old=old, datatype=datatype)
    bucket.counters["cmd_delete"] += 1
    end_lock(session, request)
    return StagedChange(changed(session, vb, seqno, cas if session.features else 0), write)


def answer_hit(
    session: Session, document: StoredDocument, answer: type[Found], *, key: bytes = b"", cas: int | None = None
) -> Found:
    """Return the answer with a document: its flags, its value in a form that the client accepts, and its CAS.

    Args:
        session: the client's session.
        document: the document.
        answer: the class of the answer.
        key: the key to send, if the answer has one.
        cas: the CAS to send in place of the document's; None for the document's.
    """
    value, datatype = values.representation(document, session.features)
    cas_ = document.cas if cas is None else cas
    return answer(flags=document.flags, key=key, value=value, datatype=datatype, cas=cas_)


def _merged_value(old: StoredDocument | None, value: bytes, datatype: int) -> tuple[bytes, int]:
    """Return the value and datatype to store for a plain write.

    If the new value has no attributes, the old ones are kept, because only clients that know attributes may change
    them.
    """
    if old is None or not old.datatype & Datatype.XATTR or datatype & Datatype.XATTR:
        return value, datatype
    # A new document gets the system attributes of its tombstone, which the deletion has kept (wire 9).
    section = values.system_attributes(old) if old.deleted else values.attributes_of(old)
    if not section:
        return value, datatype
    plain = values.inflate(value, datatype)
    return section + plain, (datatype & ~Datatype.SNAPPY) | Datatype.XATTR


# --- commands ---------------------------------------------------------------------------------------------------------


@handles(wire.Get, document=True)
def get(session: Session, request: wire.Get) -> wire.GetResponse:
    """Answer GET, and GETQ, which has no answer if there is no document."""
    return answer_hit(session, _looked_up(session, request), wire.GetResponse, cas=shown_cas(session, request))


@handles(wire.GetKey, document=True)
def get_key(session: Session, request: wire.GetKey) -> wire.GetKeyResponse:
    """Answer GETK and GETKQ, whose answers contain the key."""
    document = _looked_up(session, request)
    return answer_hit(
        session, document, wire.GetKeyResponse, key=sent_key(session, request.key), cas=shown_cas(session, request)
    )


def _looked_up(session: Session, request: wire.Get) -> StoredDocument:
    counters = session.store_bucket.counters
    counters["cmd_get"] += 1
    document = existing(session, request)
    counters["get_hits"] += 1
    return document


def shown_cas(session: Session, request: Request) -> int | None:
    """Return the CAS to send in place of a locked document's, so that nobody learns the lock's; None if there is no
    lock.
    """
    return CAS_OF_LOCKED if session.store_bucket.lock_of(request.vbucket, request.key, session.collection) else None


@handles(wire.GetReplica, document=True)
def get_replica(session: Session, request: wire.GetReplica) -> wire.GetResponse:
    """Answer GET_REPLICA. A replica hides an expired document, but never stages its expiration."""
    bucket = session.store_bucket
    document = bucket.store.document(request.vbucket, request.key, session.collection)
    # "A replica never expires on its own" (dcp 9): it hides the document, and the owner's tombstone comes by the
    # stream.
    if document is None or document.deleted or is_expired(document, bucket.now()):
        raise CommandRefused(Status.KEY_ENOENT)
    return answer_hit(session, document, wire.GetResponse)


def _new_expiry(session: Session, request: wire.Set, old: StoredDocument | None) -> int:
    if old is not None and preserves_ttl(request):
        return old.expiry
    return limited(session, times.absolute_expiry(request.expiration, session.store_bucket.now()))


def _put(session: Session, request: wire.Set, version: StoredDocument | None) -> StagedChange:
    """Stage a SET; `version` is the newest version of the key, which may be a tombstone, or None."""
    alive = None if version is None or version.deleted else version
    datatype = values.accepted(request.value, request.datatype)
    value, datatype = _merged_value(version, request.value, datatype)
    if len(value) > VALUE_BYTES_MAX:
        raise CommandRefused(Status.E2BIG, f"with its attributes the value has {len(value)} bytes")
    expiry = _new_expiry(session, request, alive)
    return store(session, request, value, old=version, flags=request.flags, expiry=expiry, datatype=datatype)


def stage_set(session: Session, request: wire.Set) -> StagedChange:
    """Stage a SET. If the request has a CAS, the document must exist (otherwise status 01) and have that CAS (otherwise
    02).
    """
    version = newest(session, request)
    if request.cas:
        if version is None or version.deleted:
            raise CommandRefused(Status.KEY_ENOENT)
        check_cas(request, version)
    return _put(session, request, version)


@handles(wire.Set, document=True, writes=True)
def set_(session: Session, request: wire.Set) -> wire.Stored | Awaitable[wire.Stored]:
    """Answer SET, as `stage_set`."""
    return stage_set(session, request).outcome


def stage_add(session: Session, request: wire.Add) -> StagedChange:
    """Stage an ADD; refuse it with status 02 if the document exists."""
    version = newest(session, request)
    if version is not None and not version.deleted:
        raise CommandRefused(Status.KEY_EEXISTS)
    return _put(session, request, version)


@handles(wire.Add, document=True, writes=True)
def add(session: Session, request: wire.Add) -> wire.Stored | Awaitable[wire.Stored]:
    """Answer ADD, as `stage_add`."""
    return stage_add(session, request).outcome


@handles(wire.Replace, document=True, writes=True)
def replace(session: Session, request: wire.Replace) -> wire.Stored | Awaitable[wire.Stored]:
    """Answer REPLACE: with status 01 if the document does not exist."""
    document = existing(session, request)
    check_cas(request, document)
    return _put(session, request, document).outcome


def stage_delete(session: Session, request: wire.Delete) -> StagedChange:
    """Stage a DELETE; refuse it with status 01 if the document does not exist, with 02 if it has another CAS."""
    document = existing(session, request)
    check_cas(request, document)
    return remove(session, request, document)


@handles(wire.Delete, document=True, writes=True, frees=True)
def delete(session: Session, request: wire.Delete) -> wire.Stored | Awaitable[wire.Stored]:
    """Answer DELETE with the tombstone's CAS."""
    return stage_delete(session, request).outcome


@handles(wire.EvictKey, document=True)
def evict_key(session: Session, request: wire.EvictKey) -> wire.EvictKeyResponse:
    """Answer EVICT_KEY with success: every value is on disk, and the system may reclaim its memory at any time."""
    existing(session, request)
    return wire.EvictKeyResponse(value=b"Already ejected.")


@handles(wire.Append, wire.Prepend, document=True, writes=True)
def extend(session: Session, request: wire.Append) -> wire.Stored | Awaitable[wire.Stored]:
    """Answer APPEND and PREPEND, which extend the body, and keep flags and expiry; the status is NOT_STORED (05) if the
    document does not exist.
    """
    document = live(session, request)
    if document is None:
        raise CommandRefused(Status.NOT_STORED)
    check_cas(request, document)
    piece = values.inflate(request.value, request.datatype)
    size = values.inflated_bytes(document) + len(piece)
    if size > VALUE_BYTES_MAX:  # refused before 20 MiB are inflated and copied
        raise CommandRefused(Status.E2BIG, f"the value would have {size} bytes")
    section, body = values.body_of(document)
    body = piece + body if isinstance(request, wire.Prepend) else body + piece
    return store_body(session, request, document, section, body, expiry=document.expiry).outcome


def store_body(
    session: Session, request: Request, old: StoredDocument, section: bytes, body: bytes, *, expiry: int
) -> StagedChange:
    """Stage a new body for a document; its attributes and flags stay."""
    datatype = int(Datatype.JSON) if values.is_json(body) else 0
    if section:
        datatype |= int(Datatype.XATTR)
    return store(session, request, section + body, old=old, flags=old.flags, expiry=expiry, datatype=datatype)
