"""Documents with their metadata: GET_META, RETURN_META, and SET, ADD, DEL_WITH_META with conflict resolution (kv.md 2).

SET_, ADD_ and DEL_WITH_META copy documents between clusters: the sender sets CAS, revision, expiry and flags, and the
newer version wins. Buckets resolve conflicts by revision; there are no last-write-wins buckets.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headwater.node.kv import documents, values
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.wire import meta as wire
from headwater.wire.datatype import Datatype
from headwater.wire.documents import Add, Delete, Set, Stored
from headwater.wire.meta import MetaOption
from headwater.wire.numbers import HELD_MAX
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session
    from headwater.node.storage.records import StoredDocument

Changing = TypeVar("Changing", bound=Set)

_OF_DELETES = int(sum(MetaOption) & ~MetaOption.FORCE_ACCEPT)
_OF_SETS = int(_OF_DELETES & ~MetaOption.IS_EXPIRATION)
_WITH_DATATYPE = 2


@handles(wire.GetMeta, document=True)
def get_meta(session: Session, request: wire.GetMeta) -> wire.GetMetaResponse:
    """Answer GET_META with the metadata of a document or a tombstone, whose expiry is its delete time. Version 2 of the
    request gets the datatype too.
    """
    document = documents.newest(session, request)
    if document is None:
        raise CommandRefused(Status.KEY_ENOENT)
    lock_cas = documents.shown_cas(session, request)
    return wire.GetMetaResponse(
        cas=document.cas if lock_cas is None else lock_cas,
        deleted=int(document.deleted),
        flags=document.flags,
        expiration=document.delete_time if document.deleted else document.expiry,
        rev_seqno=document.rev_seqno,
        stored_datatype=document.datatype if request.req_ext_meta == _WITH_DATATYPE else None,
    )


def _value(request: wire.SetWithMeta) -> bytes:
    """Return the value without the `nmeta` bytes of old extended metadata at its end."""
    nmeta, size = request.nmeta or 0, len(request.value)
    if nmeta > size:
        raise CommandRefused(Status.EINVAL, f"{nmeta} bytes of metadata in a value of {size}")
    return request.value[: size - nmeta]


def _check(request: wire.SetWithMeta, *, deletes: bool) -> None:
    """Check CAS, revision and options. FORCE_ACCEPT is only for last-write-wins buckets; REGENERATE_CAS needs
    SKIP_CONFLICT_RESOLUTION.
    """
    # The limits of CAS and revision are those of stored documents, so that each can be copied to another node.
    if not 0 < request.stored_cas <= HELD_MAX:
        raise CommandRefused(Status.CAS_VALUE_INVALID, f"a CAS is 1 to {HELD_MAX}")
    if request.rev_seqno > HELD_MAX:
        raise CommandRefused(Status.EINVAL, f"a revision is {HELD_MAX} at most")
    options = request.options or 0
    if options & ~(_OF_DELETES if deletes else _OF_SETS):
        raise CommandRefused(Status.EINVAL, f"options 0x{options:x} do not fit this bucket or command")
    if options & MetaOption.REGENERATE_CAS and not options & MetaOption.SKIP_CONFLICT_RESOLUTION:
        raise CommandRefused(Status.EINVAL, "a CAS is only regenerated when conflict resolution is skipped")


def _wins(request: wire.SetWithMeta, stored: StoredDocument | None, *, deletes: bool, is_limited: bool) -> bool:
    """Return True if the incoming version wins over the stored one, which may be a tombstone, or None.

    Resolution by revision compares (revision, CAS, expiry, flags) for a set, and (revision, CAS) for a deletion; the
    incoming version must be strictly greater. If all four are equal, a set still wins if it has extended attributes and
    the stored version has none. If the revisions are equal, an expiration loses against any other version, whatever the
    CAS: no client requested the expiration, and a client may have written the other version elsewhere (decision 0157).

    Args:
        request: the incoming version.
        stored: the stored version.
        deletes: True for a deletion.
        is_limited: True if the collection has a maximum TTL; then the expiry is not compared.
    """
    options = request.options or 0
    if stored is None or options & (MetaOption.FORCE | MetaOption.SKIP_CONFLICT_RESOLUTION):
        return True
    lives = not options & MetaOption.IS_EXPIRATION
    ours = (stored.rev_seqno, not stored.expired, stored.cas)
    theirs = (request.rev_seqno, lives, request.stored_cas)
    # A deletion compares only these (kv.md 2).
    if deletes or ours != theirs:
        return theirs > ours
    # With equal CAS both are the same version, and only a maximum TTL can have changed the expiry. Limited again, the
    # expiry would be later each time, and the version would win each time.
    stored_time = stored.delete_time if stored.deleted else stored.expiry
    expiry = stored_time if is_limited else request.expiration
    brings_xattrs = request.datatype & Datatype.XATTR and not stored.datatype & Datatype.XATTR
    ours_last, theirs_last = (stored_time, stored.flags), (expiry, request.flags)
    return theirs_last > ours_last or (theirs_last == ours_last and bool(brings_xattrs))


def _admit(session: Session, request: wire.SetWithMeta, *, deletes: bool) -> None:
    _check(request, deletes=deletes)
    stored = documents.newest(session, request)
    if request.cas and (stored is None or stored.deleted):
        raise CommandRefused(Status.KEY_ENOENT)
    if stored is not None:
        documents.check_cas(request, stored)
    adds = isinstance(request, wire.AddWithMeta)
    if adds and stored is not None and not stored.deleted:
        raise CommandRefused(Status.KEY_EEXISTS)
    is_limited = session.store_bucket.collections.ttl_max(session.collection) is not None
    if not _wins(request, stored, deletes=deletes, is_limited=is_limited):
        raise CommandRefused(Status.KEY_EEXISTS)


def _cas(session: Session, request: wire.SetWithMeta) -> int:
    regenerate = (request.options or 0) & MetaOption.REGENERATE_CAS
    return session.store_bucket.next_cas(request.vbucket) if regenerate else request.stored_cas


@handles(wire.SetWithMeta, wire.AddWithMeta, document=True, writes=True)
def set_with_meta(session: Session, request: wire.SetWithMeta) -> Stored:
    """Answer SET_WITH_META and ADD_WITH_META: store a document with another cluster's metadata if it wins over the
    stored version, otherwise refuse it with KEY_EEXISTS.
    """
    value = _value(request)
    _admit(session, request, deletes=False)
    cas = _cas(session, request)
    seqno = session.store_bucket.store.staging.mutation(
        request.vbucket,
        request.key,
        value,
        cas=cas,
        rev_seqno=request.rev_seqno,
        flags=request.flags,
        expiry=documents.limited(session, request.expiration),
        datatype=values.accepted(value, request.datatype),
        collection=session.collection,
    )
    session.store_bucket.counters["cmd_set"] += 1
    documents.end_lock(session, request)  # the same version may come again, and the lock would compare its CAS
    return documents.changed(session, request.vbucket, seqno, cas)


@handles(wire.DelWithMeta, document=True, writes=True, frees=True)
def del_with_meta(session: Session, request: wire.DelWithMeta) -> Stored:
    """Answer DEL_WITH_META: store a tombstone with another cluster's metadata, even if the key is unknown. Its value
    may only have attributes.
    """
    value = _value(request)
    _admit(session, request, deletes=True)
    attributes = values.inflate(value, request.datatype)
    if attributes and (not request.datatype & Datatype.XATTR or values.check_attributes(attributes)):
        raise CommandRefused(Status.EINVAL, "a tombstone holds extended attributes or nothing")
    bucket, cas = session.store_bucket, _cas(session, request)
    seqno = bucket.store.staging.deletion(
        request.vbucket,
        request.key,
        attributes,
        cas=cas,
        rev_seqno=request.rev_seqno,
        delete_time=request.expiration or bucket.now(),
        now=bucket.now(),
        datatype=Datatype.XATTR if attributes else 0,
        expired=bool((request.options or 0) & MetaOption.IS_EXPIRATION),
        collection=session.collection,
    )
    bucket.counters["cmd_delete"] += 1
    documents.end_lock(session, request)
    return documents.changed(session, request.vbucket, seqno, cas)


@handles(wire.ReturnMeta, document=True, writes=True)
def return_meta(session: Session, request: wire.ReturnMeta) -> Stored:
    """Answer RETURN_META: execute the SET, ADD or DELETE in it, and answer with the vbucket's uuid and the seqno, even
    if the client has no MutationSeqno.

    The request can't have a durability (framing.py), so the answer waits for no replica.
    """
    stored = _CHANGES[request.mutation_type](session, request)
    vbucket = session.store_bucket.vbuckets[request.vbucket]
    return replace(stored, vb_uuid=vbucket.failover.newest.vb_uuid, seqno=vbucket.high_seqno)


def _set(session: Session, request: wire.ReturnMeta) -> Stored:
    return documents.stage_set(session, _plain(Set, request)).stored


def _add(session: Session, request: wire.ReturnMeta) -> Stored:
    if request.cas:
        raise CommandRefused(Status.EINVAL, "a CAS is not allowed here")
    return documents.stage_add(session, _plain(Add, request)).stored


def _delete(session: Session, request: wire.ReturnMeta) -> Stored:
    if request.value:
        raise CommandRefused(Status.EINVAL, f"a value of {len(request.value)} bytes for a deletion")
    plain = Delete(key=request.key, vbucket=request.vbucket, cas=request.cas)
    return documents.stage_delete(session, plain).stored


def _plain(request_type: type[Changing], request: wire.ReturnMeta) -> Changing:
    """Return the SET or ADD that makes the same change as a RETURN_META request."""
    return request_type(
        key=request.key,
        value=request.value,
        vbucket=request.vbucket,
        cas=request.cas,
        datatype=request.datatype,
        flags=request.flags,
        expiration=request.expiration,
    )


_CHANGES = {1: _set, 2: _add, 3: _delete}
