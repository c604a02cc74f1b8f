"""GET_LOCKED and UNLOCK (kv.md 2, "Locked document"); what a lock is, is in locks.py."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.node.kv import documents
from headwater.node.kv.command import Part, Refused, Reply, command
from headwater.node.kv.locks import Lock, lock_of
from headwater.wire.features import Feature
from headwater.wire.header import Frame
from headwater.wire.opcodes import Opcode
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession

SECONDS_DEFAULT = 15
SECONDS_MAX = 30


@command(Opcode.GET_LOCKED, extras=(0, 4), key=Part.REQUIRED, document=True)
def get_locked(session: KvSession, frame: Frame) -> Reply:
    """The document, locked; the CAS is the token. "0 or absent = 15, cap 30"."""
    document, bucket, vb = documents.existing(session, frame), session.store_bucket, frame.vbucket
    if lock_of(session, frame) is not None:
        raise _refused(session, Status.LOCKED, "the document is locked already")
    seconds = min(int.from_bytes(frame.extras, "big") or SECONDS_DEFAULT, SECONDS_MAX)
    token = bucket.next_cas(vb)
    bucket.locks.take(vb, frame.key, Lock(token, document.cas, bucket.now() + seconds))
    return replace(documents.found_reply(session, document), cas=token)


@command(Opcode.UNLOCK_KEY, key=Part.REQUIRED, cas=True, document=True)
def unlock(session: KvSession, frame: Frame) -> Reply:
    """With the token; "wrong token: 09, not locked: 0e". The document has the CAS it had before."""
    documents.existing(session, frame)
    lock = lock_of(session, frame)
    if lock is None:
        raise _refused(session, Status.NOT_LOCKED, "the document is not locked")
    if frame.cas != lock.token:
        raise _refused(session, Status.LOCKED, "this is not the token that GET_LOCKED gave")
    session.store_bucket.locks.release(frame.vbucket, frame.key)
    return Reply()


def _refused(session: KvSession, status: int, why: str) -> Refused:
    """Clients without XERROR are told 86 by these two commands."""
    return Refused(status if session.has(Feature.XERROR) else Status.ETMPFAIL, why)
