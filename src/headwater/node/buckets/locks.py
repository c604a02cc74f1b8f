"""The locks of documents (kv.md 2, "Locked document"). The commands, and the requests that a lock refuses:
kv/locking.py.

A lock is a promise of this process for some seconds; it is not stored, and a restart forgets it. It holds as long as
the document keeps its CAS: every change of the document ends the lock, a replicated change or a rollback included. The
kernel knows nothing of locks, so while there are any, every request takes the plain path (kv/fast.py).

A token is above every CAS that a document may have. A token that looked like the next CAS could become the CAS of the
next change, made by another client when the lock was over: who kept the token would replace that change unseen.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.node.refused import CommandRefused
from headwater.wire.numbers import HELD_MAX
from headwater.wire.status import Status

LOCKS_MAX = 100_000
CAS_OF_LOCKED = 0xFFFF_FFFF_FFFF_FFFF
"""GET tells this instead of a locked document's CAS, so that nobody can use it."""
_TOKENS = CAS_OF_LOCKED - HELD_MAX - 1
"""The number of tokens: all above the highest CAS of a document, except for CAS_OF_LOCKED."""


class DocumentLock(NamedTuple):
    """A lock: `token` lets its holder change the document, whose own CAS is `cas`, until `until`, in seconds of a
    monotonic clock: the time of day may jump.
    """

    token: int
    cas: int
    until: float


class Locks:
    """The locks of a bucket.

    Args:
        started_ns: nanoseconds, others than in another life of the node: then a token of that is hardly one of this.
            There are 2^32 - 1 tokens, so that is unlikely, and not impossible.

    Attributes:
        held: the locks by vbucket, then by (collection, key). Locks that are over may be among them; a vbucket without
            locks is not.
    """

    def __init__(self, started_ns: int = 0) -> None:
        self.held: dict[int, dict[tuple[int, bytes], DocumentLock]] = {}
        self._count = 0
        self._first = self._last = 0.0  # when the first and the last of them is over, at the soonest
        self._given = started_ns % _TOKENS

    def next_token(self) -> int:
        """Return a token that no lock of this process has."""
        self._given = (self._given + 1) % _TOKENS
        return HELD_MAX + 1 + self._given

    def any(self, now: float) -> bool:
        """Return True if there may be a lock; forget all locks once the last is over."""
        # All at once, so that the kernel serves again (kv/fast.py).
        if now >= self._last:
            self.held.clear()
            self._count = 0
        return bool(self.held)

    def get(self, vbucket: int, key: bytes, now: float, collection: int = 0) -> DocumentLock | None:
        """Return the lock of a key, or None if it has none that still holds."""
        lock = self.held.get(vbucket, {}).get((collection, key))
        return lock if lock is not None and now < lock.until else None

    def take(self, vbucket: int, key: bytes, lock: DocumentLock, now: float, collection: int = 0) -> None:
        """Lock a key. Raises CommandRefused(ETMPFAIL) if too many locks hold."""
        if self._count >= LOCKS_MAX and now >= self._first:
            self._forget_over(now)
        if self._count >= LOCKS_MAX:
            raise CommandRefused(Status.ETMPFAIL, f"{LOCKS_MAX} documents are locked")
        self._first = min(self._first, lock.until) if self.held else lock.until
        locks = self.held.setdefault(vbucket, {})
        self._count += (collection, key) not in locks
        locks[collection, key] = lock
        self._last = max(self._last, lock.until)

    def release(self, vbucket: int, key: bytes, collection: int = 0) -> None:
        """Forget the lock of a key."""
        locks = self.held.get(vbucket, {})
        if locks.pop((collection, key), None) is not None:
            self._count -= 1
            if not locks:
                del self.held[vbucket]

    def leave(self, vbucket: int) -> None:
        """Forget the locks of a vbucket that is not active here any more: its new owner knows nothing of them.

        A lock that was kept would hold again when the vbucket comes back. This is also called with each snapshot of a
        replica.
        """
        self._count -= len(self.held.pop(vbucket, ()))

    def _forget_over(self, now: float) -> None:
        left = {vb: {key: lock for key, lock in locks.items() if now < lock.until} for vb, locks in self.held.items()}
        self.held = {vb: locks for vb, locks in left.items() if locks}
        moments = [lock.until for locks in self.held.values() for lock in locks.values()]
        self._count, self._first = len(moments), min(moments, default=0.0)
