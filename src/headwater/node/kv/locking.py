"""GET_LOCKED, UNLOCK, and the requests that a lock refuses (kv.md 2, "Locked document"). node/buckets/locks.py keeps
the locks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from headwater.node.buckets.locks import DocumentLock
from headwater.node.kv import documents
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.wire import documents as wire
from headwater.wire.features import Feature
from headwater.wire.layout import Done, Request
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.api import Session

Asked = TypeVar("Asked", bound=Request)

SECONDS_DEFAULT = 15
SECONDS_MAX = 30


def with_own_cas(session: Session, request: Asked) -> Asked:
    """Return a change of a locked document with the document's CAS in place of the lock's token; return any other
    request unchanged.

    Raises:
        CommandRefused: LOCKED, the document is locked and the request does not have the token.
    """
    lock = session.store_bucket.lock_of(request.vbucket, request.key, session.collection)
    if lock is None:
        return request
    if request.cas != lock.token:
        raise CommandRefused(Status.LOCKED, "the document is locked")
    # The handlers compare the request's CAS with the stored one, not with the token.
    return replace(request, cas=lock.cas)


@handles(wire.GetLocked, document=True)
def get_locked(session: Session, request: wire.GetLocked) -> wire.GetResponse:
    """Answer GET_LOCKED: lock the document, and return it with the lock's token as CAS. Seconds: "0 or absent = 15, cap
    30".
    """
    document, bucket, vbucket = documents.existing(session, request), session.store_bucket, request.vbucket
    if bucket.lock_of(vbucket, request.key, session.collection) is not None:
        raise _refused(session, Status.LOCKED, "the document is locked already")
    seconds = min(request.lock_seconds or SECONDS_DEFAULT, SECONDS_MAX)
    token, now = bucket.locks.next_token(), bucket.clock.monotonic()
    lock = DocumentLock(token, document.cas, now + seconds)
    bucket.locks.take(vbucket, request.key, lock, now, session.collection)
    return documents.answer_hit(session, document, wire.GetResponse, cas=token)


@handles(wire.Unlock, document=True)
def unlock(session: Session, request: wire.Unlock) -> Done:
    """Answer UNLOCK: release a document's lock by its token; "wrong token: 09, not locked: 0e". The document keeps its
    CAS.
    """
    documents.existing(session, request)
    lock = session.store_bucket.lock_of(request.vbucket, request.key, session.collection)
    if lock is None:
        raise _refused(session, Status.NOT_LOCKED, "the document is not locked")
    if request.cas != lock.token:
        raise _refused(session, Status.LOCKED, "this is not the token that GET_LOCKED gave")
    session.store_bucket.locks.release(request.vbucket, request.key, session.collection)
    return Done()


def _refused(session: Session, status: int, why: str) -> CommandRefused:
    """Return a refusal of GET_LOCKED or UNLOCK; clients without XERROR get ETMPFAIL (86) in place of `status`."""
    return CommandRefused(status if session.has(Feature.XERROR) else Status.ETMPFAIL, why)
