"""Commands that observe durability or list keys: OBSERVE, OBSERVE_SEQNO, GET_KEYS, GET_RANDOM_KEY (kv.md 2, 3)."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable
from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import RemoteProtocolError
from headwater.node.kv import documents
from headwater.node.kv.command import handles
from headwater.node.kv.gathering import KeyStates, states_in
from headwater.node.kv.vbuckets import check_served, vbucket
from headwater.node.process.run_queue import Slices
from headwater.node.refused import CommandRefused
from headwater.wire import leb128, meta
from headwater.wire.admin import GetKeys, GetKeysResponse
from headwater.wire.documents import GetKeyResponse, GetRandomKey
from headwater.wire.features import Feature
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Session

KEYS_DEFAULT, KEYS_MAX = 1000, 10_000
OBSERVE_BYTES_MAX = 64 << 10
AT_ONCE = 1000
"""So many keys are looked at in one go; more in slices, between which others have their turn."""
_IN_MEMORY, _PERSISTED, _NOT_FOUND, _LOGICALLY_DELETED = 0x00, 0x01, 0x80, 0x81


@handles(meta.ObserveSeqno, anywhere=True)
def observe_seqno(
    session: Session, request: meta.ObserveSeqno
) -> meta.ObserveSeqnoResponse | meta.ObserveSeqnoFailedOver:
    """Return the persisted and the current seqno of a branch; the vbucket may have any state but dead.

    A copy in the middle of a snapshot reports the part that it has on disk. With the feature COMPLETE_SEQNOS it reports
    the seqno to which a failover would go back: the one up to which the copy is complete (decision 0086), for a replica
    at most the one before its first damaged change, by which a failover ranks it (0107).

    The answer has format 1, with the last seqno of the branch, if the uuid is an older entry of the failover table.
    """
    vbucket_, vb_uuid = vbucket(session, request), request.vb_uuid
    if vbucket_.state is State.DEAD:
        raise session.not_my_vbucket()
    session.saw(vbucket_)
    high = vbucket_.durable_seqno
    survives = vbucket_.complete_durable_seqno if vbucket_.state is State.ACTIVE else vbucket_.readable_seqno
    persisted = survives if session.has(Feature.COMPLETE_SEQNOS) else high
    last = vbucket_.failover.last_seqno_for_uuid(vb_uuid, high)
    if last is None:
        raise CommandRefused(Status.KEY_ENOENT)
    newest = vbucket_.failover.newest.vb_uuid
    if vb_uuid == newest:
        return meta.ObserveSeqnoResponse(
            vbucket=request.vbucket, vb_uuid=newest, persisted_seqno=persisted, current_seqno=high
        )
    return meta.ObserveSeqnoFailedOver(
        vbucket=request.vbucket,
        vb_uuid=newest,
        persisted_seqno=persisted,
        current_seqno=high,
        old_vb_uuid=vb_uuid,
        last_received_seqno=last,
    )


@handles(meta.Observe, value_bytes_max=OBSERVE_BYTES_MAX)
def observe(session: Session, request: meta.Observe) -> meta.ObserveResponse | Awaitable[meta.ObserveResponse]:
    """Return the state and CAS of keys. A change that is not durable is reported as such, without waiting: this is the
    purpose of the command.
    """
    others = states_in(session.others)
    if len(request.keys) > AT_ONCE:
        return _observe_many(session, request, others)
    return meta.ObserveResponse(states=[_observed(session, vb, key, others) for vb, key in request.keys])


async def _observe_many(session: Session, request: meta.Observe, others: KeyStates) -> meta.ObserveResponse:
    states, slices = [], Slices(session.server.loop, session.server.run_queue)
    for vb, key in request.keys:
        await slices.breathe()
        states.append(_observed(session, vb, key, others))
    return meta.ObserveResponse(states=states)


def _observed(session: Session, vb: int, key: bytes, others: KeyStates) -> tuple[int, bytes, int, int]:
    """Return (vbucket, key, state, CAS); `others` has the states from other workers."""
    if (vb, key) in others:
        return vb, key, *others[vb, key]
    bucket = session.store_bucket
    if not key:
        raise CommandRefused(Status.EINVAL, "a key of 0 bytes")
    if bucket.state(vb) is not State.REPLICA:
        check_served(session, vb)
    collection, logical = _split(session, key)
    if collection not in bucket.vbuckets[vb].collections.alive:
        raise bucket.collections.missing_in(bucket.vbuckets[vb], collection)
    # "Not found" or an old CAS here would deny a write whose client has read success from an owner before.
    if vb in bucket.durable_writes.held and bucket.is_active(vb):
        bucket.durable_writes.refuse_in_flight(vb, collection, logical, writes=False)
    return vb, key, *_observe_one(bucket, vb, logical, collection)


def _split(session: Session, key: bytes, *, is_start: bool = False) -> tuple[int, bytes]:
    """Return the collection and the logical key of a key inside a request; a start key (`is_start`) may be empty."""
    if not session.has(Feature.COLLECTIONS):
        return 0, key
    try:
        collection, taken = leb128.decode(key)
    except RemoteProtocolError as bad:
        raise CommandRefused(Status.EINVAL, str(bad)) from None
    if taken == len(key) and not is_start:
        raise CommandRefused(Status.EINVAL, "no logical key after the collection id")
    return collection, key[taken:]


def _observe_one(bucket: Bucket, vb: int, key: bytes, collection: int) -> tuple[int, int]:
    document = bucket.store.document(vb, key, collection)
    if document is None:
        return _NOT_FOUND, 0
    if document.deleted or documents.is_expired(document, bucket.now()):
        return (_NOT_FOUND if document.durable else _LOGICALLY_DELETED), document.cas
    return (_PERSISTED if document.durable else _IN_MEMORY), document.cas


@handles(GetKeys)
def get_keys(session: Session, request: GetKeys) -> GetKeysResponse | Awaitable[GetKeysResponse]:
    """Return keys in order from the start key on; 1,000 unless the request has another number."""
    bucket = session.store_bucket
    check_served(session, request.vbucket)
    wanted = min(KEYS_DEFAULT if request.count is None else request.count, KEYS_MAX)
    session.saw_unstable()
    span = _KeySpan(request.vbucket, *_split(session, request.key, is_start=True), wanted)
    if span.collection not in bucket.vbuckets[request.vbucket].collections.alive:
        raise bucket.collections.missing_in(bucket.vbuckets[request.vbucket], span.collection)
    bucket.durable_writes.refuse_unsettled(span.vbucket, span.collection)
    session.collection = span.collection
    if bucket.store.index.rows(request.vbucket) > AT_ONCE:
        return _keys_of_many(session, span)
    keys = (key for key in bucket.live_keys(span.vbucket, 0, span.collection) if key >= span.start)
    return GetKeysResponse(keys=[documents.sent_key(session, key) for key in sorted(keys)[:wanted]])


class _KeySpan(NamedTuple):
    """The range of keys in a request."""

    vbucket: int
    collection: int
    start: bytes
    wanted: int


async def _keys_of_many(session: Session, span: _KeySpan) -> GetKeysResponse:
    slices, keys = Slices(session.server.loop, session.server.run_queue), None
    while keys is None:
        keys = await _first_keys(session.store_bucket, span, slices)
    return GetKeysResponse(keys=[documents.sent_key(session, key) for key in keys])


async def _first_keys(bucket: Bucket, span: _KeySpan, slices: Slices) -> list[bytes] | None:
    """Return the first keys in order; None if the rows were rewritten meanwhile, and keys may be missing."""
    vb, wanted, keys = span.vbucket, span.wanted, set[bytes]()
    columns = bucket.store.index.columns[vb]
    for key in bucket.live_keys(vb, 0, span.collection):
        await slices.breathe()
        # Keys are found by rows, and a compaction or a rollback has numbered them anew in between.
        if bucket.store.index.columns[vb] is not columns:
            return None
        if key >= span.start:
            keys.add(key)
            if len(keys) > 2 * wanted + KEYS_DEFAULT:
                keys = set(sorted(keys)[:wanted])
    return sorted(keys)[:wanted]


@handles(GetRandomKey)
def get_random_key(session: Session, request: GetRandomKey) -> GetKeyResponse:
    """Return a document of a random active vbucket, of any worker: the first live one after a random row."""
    bucket, collection = session.store_bucket, request.collection_id or 0
    if request.collection_id is not None and not session.has(Feature.COLLECTIONS):
        raise CommandRefused(Status.EINVAL, "a collection can't be named without Collections")
    if collection not in bucket.collections.manifest.by_id():
        raise bucket.collections.unknown_collection(collection)
    session.collection = collection
    active = [vb for vb in bucket.vbuckets if bucket.is_active(vb) and bucket.store.index.items(vb)]
    if (theirs := _random_of_others(session, len(active))) is not None:
        return theirs
    while active:
        vb = active.pop(secrets.randbelow(len(active)))
        if key := bucket.random_key(vb, collection):
            bucket.durable_writes.refuse_unsettled(vb, collection)
            document = bucket.store.document(vb, key, collection)
            # A document that is not on the disk yet is passed over rather than waited for: any other will do.
            if document is not None and not document.deleted and document.durable:
                return documents.answer_hit(session, document, GetKeyResponse, key=documents.sent_key(session, key))
    if (theirs := _random_of_others(session, 0)) is not None:
        return theirs
    raise CommandRefused(Status.KEY_ENOENT)


def _random_of_others(session: Session, own_count: int) -> GetKeyResponse | None:
    """Draw a vbucket among `own_count` of this worker's and those of the workers that answered with a document; return
    the document if the vbucket is another worker's, otherwise None.
    """
    answers = {where: each for where, each in zip(session.relays, session.others, strict=False) if not each.status}
    if not answers:
        return None
    owners = map(session.server.cluster.owner, range(session.store_bucket.vbucket_count))
    places = [where for where in owners if where in answers] or list(answers)
    drawn = secrets.randbelow(own_count + len(places))
    return None if drawn < own_count else GetKeyResponse.decode(answers[places[drawn - own_count]])
