"""The locks of documents (kv.md 2, "Locked document"). kv/locking.py has the commands, and refuses requests by locks.

A lock lasts for some seconds; it is not stored, so a restart ends it. Every change of the document's CAS ends the lock,
too, also a replicated change or a rollback. Kernels do not check locks, so while there are locks, every request takes
the plain path (kv/fast.py).

A token is above every CAS that a document may have. If a token could be equal to a later CAS of the document, its
holder could, after the end of the lock, replace another client's change without having seen it.
"""

from __future__ import annotations

from typing import NamedTuple

from headwater.node.refused import CommandRefused
from headwater.wire.numbers import HELD_MAX
from headwater.wire.status import Status

LOCKS_MAX = 100_000
CAS_OF_LOCKED = 0xFFFF_FFFF_FFFF_FFFF
"""GET returns this in place of a locked document's CAS, so that nobody can use the real one."""
_TOKENS = CAS_OF_LOCKED - HELD_MAX - 1
"""The number of tokens: the numbers above the highest CAS of a document, without CAS_OF_LOCKED."""


class DocumentLock(NamedTuple):
    """A lock of a document.

    Attributes:
        token: the token with which its holder may change the document.
        cas: the document's CAS.
        until: the end of the lock, in seconds of a monotonic clock.
    """

    token: int
    cas: int
    until: float


class Locks:
    """The locks of a bucket.

    Args:
        started_ns: the Unix time of the start in nanoseconds, from which tokens are counted. So a new token is unlikely
            to equal one from before a restart, although this is possible (there are 2^32 - 1 tokens).

    Attributes:
        held: the locks by vbucket, then by (collection, key), including expired ones; vbuckets without locks are
            missing.
    """

    def __init__(self, started_ns: int = 0) -> None:
        self.held: dict[int, dict[tuple[int, bytes], DocumentLock]] = {}
        self._count = 0
        self._first = self._last = 0.0  # the earliest and the latest end of a lock
        self._given = started_ns % _TOKENS

    def next_token(self) -> int:
        """Return a token that no present lock of this process has."""
        self._given = (self._given + 1) % _TOKENS
        return HELD_MAX + 1 + self._given

    def any(self, now: float) -> bool:
        """Return True if a lock may exist at `now`; forget all locks once the last has expired."""
        # All at once, so that the kernel serves again (kv/fast.py).
        if now >= self._last:
            self.held.clear()
            self._count = 0
        return bool(self.held)

    def get(self, vbucket: int, key: bytes, now: float, collection: int = 0) -> DocumentLock | None:
        """Return the lock of a key; None if it has none, or the lock has expired."""
        lock = self.held.get(vbucket, {}).get((collection, key))
        return lock if lock is not None and now < lock.until else None

    def take(self, vbucket: int, key: bytes, lock: DocumentLock, now: float, collection: int = 0) -> None:
        """Lock a key.

        Raises:
            CommandRefused: ETMPFAIL, there are too many locks.
        """
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
        """Forget the locks of a vbucket that is not active here (any more), because its owner does not have them.

        Otherwise they would apply again if the vbucket became active here later. This is also called for each snapshot
        that a replica receives.
        """
        self._count -= len(self.held.pop(vbucket, ()))

    def _forget_over(self, now: float) -> None:
        unexpired = {
            vb: {key: lock for key, lock in locks.items() if now < lock.until} for vb, locks in self.held.items()
        }
        self.held = {vb: locks for vb, locks in unexpired.items() if locks}
        moments = [lock.until for locks in self.held.values() for lock in locks.values()]
        self._count, self._first = len(moments), min(moments, default=0.0)
