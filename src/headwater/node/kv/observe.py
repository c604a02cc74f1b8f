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
"""The most keys handled without a pause; a request with more keys lets other work run in between."""
_IN_MEMORY, _PERSISTED, _NOT_FOUND, _LOGICALLY_DELETED = 0x00, 0x01, 0x80, 0x81


@handles(meta.ObserveSeqno, anywhere=True)
def observe_seqno(
    session: Session, request: meta.ObserveSeqno
) -> meta.ObserveSeqnoResponse | meta.ObserveSeqnoFailedOver:
    """Answer OBSERVE_SEQNO with the persisted and the current seqno of a branch. The vbucket may have any state but
    dead.

    The persisted seqno is the durable one, also in the middle of a snapshot. For a client with the feature
    COMPLETE_SEQNOS it is the seqno to which a failover would go back: the one up to which the copy is complete
    (decision 0086), and, in a copy that is not active, at most the one before the first damaged change (decision 0107).

    If the uuid is an older entry of the failover table, the answer has format 1, with the last seqno of that branch.
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
    """Answer OBSERVE with the state and CAS of each key, without waiting for a batch: the state says whether the key's
    change is durable.
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
    """Return (vbucket, key, state, CAS) of a key; `others` has the states that other workers answered."""
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
    # Without this check, "not found" or an old CAS could contradict a former owner, who confirmed a newer write.
    if vb in bucket.durable_writes.held and bucket.is_active(vb):
        bucket.durable_writes.refuse_in_flight(vb, collection, logical, writes=False)
    return vb, key, *_observe_one(bucket, vb, logical, collection)


def _split(session: Session, key: bytes, *, is_start: bool = False) -> tuple[int, bytes]:
    """Split a key inside of a request into the collection's id and the logical key. A start key (`is_start`) may have
    an empty logical key.
    """
    if not session.has(Feature.COLLECTIONS):
        return 0, key
    try:
        collection, id_bytes = leb128.decode(key)
    except RemoteProtocolError as bad:
        raise CommandRefused(Status.EINVAL, str(bad)) from None
    if id_bytes == len(key) and not is_start:
        raise CommandRefused(Status.EINVAL, "no logical key after the collection id")
    return collection, key[id_bytes:]


def _observe_one(bucket: Bucket, vb: int, key: bytes, collection: int) -> tuple[int, int]:
    document = bucket.store.document(vb, key, collection)
    if document is None:
        return _NOT_FOUND, 0
    if document.deleted or documents.is_expired(document, bucket.now()):
        return (_NOT_FOUND if document.durable else _LOGICALLY_DELETED), document.cas
    return (_PERSISTED if document.durable else _IN_MEMORY), document.cas


@handles(GetKeys)
def get_keys(session: Session, request: GetKeys) -> GetKeysResponse | Awaitable[GetKeysResponse]:
    """Answer GET_KEYS with keys in order, from the start key on: KEYS_DEFAULT of them, or the number in the request."""
    bucket = session.store_bucket
    key_count = min(KEYS_DEFAULT if request.count is None else request.count, KEYS_MAX)
    span = _KeySpan(request.vbucket, *_split(session, request.key, is_start=True), key_count)
    _check_span(session, span)
    session.saw_unstable()
    session.collection = span.collection
    if bucket.store.index.rows(request.vbucket) > AT_ONCE:
        return _keys_of_many(session, span)
    keys = (key for key in bucket.live_keys(span.vbucket, 0, span.collection) if key >= span.start)
    return GetKeysResponse(keys=[documents.sent_key(session, key) for key in sorted(keys)[:key_count]])


class _KeySpan(NamedTuple):
    """The range of keys in a request: the vbucket, the collection's id, the first key, the number of keys wanted."""

    vbucket: int
    collection: int
    start: bytes
    wanted: int


def _check_span(session: Session, span: _KeySpan) -> None:
    """Refuse a listing of keys that this node does not serve, or may not show now."""
    check_served(session, span.vbucket)
    bucket = session.store_bucket
    if span.collection not in bucket.vbuckets[span.vbucket].collections.alive:
        raise bucket.collections.missing_in(bucket.vbuckets[span.vbucket], span.collection)
    bucket.durable_writes.refuse_unsettled(span.vbucket, span.collection)


async def _keys_of_many(session: Session, span: _KeySpan) -> GetKeysResponse:
    slices, keys = Slices(session.server.loop, session.server.run_queue), None
    while keys is None:
        keys = await _first_keys(session, span, slices)
        # Other requests were handled meanwhile: the keys of a vbucket that was dropped, or of a new copy of it, would
        # seem to be all that there are.
        _check_span(session, span)
    return GetKeysResponse(keys=[documents.sent_key(session, key) for key in keys])


async def _first_keys(session: Session, span: _KeySpan, slices: Slices) -> list[bytes] | None:
    """Return the first keys in order; None if the rows were numbered anew meanwhile, so that keys may be missing."""
    vb, key_count, keys = span.vbucket, span.wanted, set[bytes]()
    bucket = session.store_bucket
    columns = bucket.store.index.columns[vb]
    for key in bucket.live_keys(vb, 0, span.collection):
        session.saw_unstable()  # keys that came since the request must not be told before they are on the disk
        await slices.breathe()
        # The search goes from row to row, and a compaction or a rollback has numbered the rows anew.
        if bucket.store.index.columns[vb] is not columns:
            return None
        if key >= span.start:
            keys.add(key)
            if len(keys) > 2 * key_count + KEYS_DEFAULT:
                keys = set(sorted(keys)[:key_count])
    return sorted(keys)[:key_count]


@handles(GetRandomKey)
def get_random_key(session: Session, request: GetRandomKey) -> GetKeyResponse:
    """Answer GET_RANDOM_KEY with a document of a random active vbucket, of any worker: the first live document after a
    random row.
    """
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
            # A document that is not on disk yet is skipped, because any other document is as good.
            if document is not None and not document.deleted and document.durable:
                return documents.answer_hit(session, document, GetKeyResponse, key=documents.sent_key(session, key))
    if (theirs := _random_of_others(session, 0)) is not None:
        return theirs
    raise CommandRefused(Status.KEY_ENOENT)


def _random_of_others(session: Session, own_count: int) -> GetKeyResponse | None:
    """Draw a random vbucket, from `own_count` vbuckets of this worker and those of the workers that answered with a
    document. Return that document if the vbucket is another worker's; None if it is this worker's.
    """
    answers = {where: each for where, each in zip(session.relays, session.others, strict=False) if not each.status}
    if not answers:
        return None
    owners = map(session.server.cluster.owner, range(session.store_bucket.vbucket_count))
    places = [where for where in owners if where in answers] or list(answers)
    drawn = secrets.randbelow(own_count + len(places))
    return None if drawn < own_count else GetKeyResponse.decode(answers[places[drawn - own_count]])
