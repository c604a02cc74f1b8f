"""Locked documents: what a lock keeps from whom (kv.md 2, "Locked document"). The commands are in locking.py.

A lock is a promise of this process for some seconds; it is not stored, and a restart forgets it. It stands as long as
the document has the CAS it had: whatever changes the document ends the lock, a replication or a rollback included. The
kernel knows nothing of locks, so while there are any, every request takes the plain path (fast.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from headwater.node.kv.command import Refused
from headwater.wire.header import Frame
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.kv.session import KvSession

LOCKS_MAX = 100_000
CAS_OF_LOCKED = 0xFFFF_FFFF_FFFF_FFFF
"""What GET tells instead of a locked document's CAS, so that nobody can use it."""


class Lock(NamedTuple):
    """`token` lets its holder change the document, whose own CAS is `cas`; it is over at `until`, Unix seconds."""

    token: int
    cas: int
    until: int


class Locks:
    """The locks of a bucket. `held`: by (vbucket, key), those that are over among them."""

    def __init__(self) -> None:
        self.held: dict[tuple[int, bytes], Lock] = {}
        self._last = 0

    def any(self, now: int) -> bool:
        """Whether there may be a lock; they are all forgotten once the last is over."""
        if now >= self._last:
            self.held.clear()
        return bool(self.held)

    def get(self, vb: int, key: bytes, now: int) -> Lock | None:
        """The lock of a key, if it is not over."""
        found = self.held.get((vb, key))
        return found if found is not None and now < found.until else None

    def take(self, vb: int, key: bytes, lock: Lock) -> None:
        """Lock a key. Refused(ETMPFAIL) when there are too many."""
        if len(self.held) >= LOCKS_MAX:
            raise Refused(Status.ETMPFAIL, f"{LOCKS_MAX} documents are locked")
        self.held[vb, key] = lock
        self._last = max(self._last, lock.until)

    def release(self, vb: int, key: bytes) -> None:
        """The key has no lock any more."""
        self.held.pop((vb, key), None)


def lock_of(session: KvSession, frame: Frame) -> Lock | None:
    """The lock that stands on the request's document."""
    bucket, vb = session.store_bucket, frame.vbucket
    if not bucket.locks.held:
        return None
    found = bucket.locks.get(vb, frame.key, bucket.now())
    if found is None:
        return None
    document = bucket.store.document(vb, frame.key)
    return found if document is not None and document.cas == found.cas else None


def with_own_cas(session: KvSession, frame: Frame) -> Frame:
    """A change of a locked document: with the token in place of a CAS it gets the document's own; else LOCKED."""
    lock = lock_of(session, frame)
    if lock is None:
        return frame
    if frame.cas != lock.token:
        raise Refused(Status.LOCKED, "the document is locked")
    return replace(frame, cas=lock.cas)
