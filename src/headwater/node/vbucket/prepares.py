"""The waiting prepares of one vbucket's durable writes, by its log.

A durable write is two changes: a prepare, which only replicas that requested prepares get, and the document itself,
once enough of them have the prepare on disk. The prepare is stored under a key of its own, so the document stays
unchanged until then. The prepare is over when that key is deleted: with an abort, or with the mark after the document.

A replica may get the document without the information that it ends a prepare (dcp 8.2, a snapshot from disk); then the
newer document proves it, now and after a restart, and the mark is added later. The drop of a collection ends its
prepares in the same way, because streams do not report their ends any more.

Source: dcp 2.17, 8.2, 10. The reasons are in docs/decisions/0068.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headwater.errors import CorruptStore
from headwater.invariants import node_invariant
from headwater.wire import dcp, leb128

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from headwater.node.storage.api import Storage

COMMITS_KEPT = 4096
"""So many commits back a stream that sent the prepare can say COMMIT; behind that it sends the document."""

FRAME_BYTES = 64
"""More than a document takes in the arena beside its key and its value, or the mark at the end of its prepare beside
the key."""


class Key(NamedTuple):
    """The key of a document, without its collection's id."""

    collection: int
    key: bytes


class VBucketPrepares:
    """The prepares that wait in a vbucket; its owner stages nothing between a check and the change that follows.

    Args:
        alive: the existing collections, by the log.

    Attributes:
        pending: the seqno of each prepare that is not over, by key, in the order of the seqnos.
        commits: the seqno of each prepare, by that of the document that it became; the newest few.
    """

    def __init__(self, vbucket: int, store: Storage, alive: Callable[[], Container[int]]) -> None:
        self.pending: dict[Key, int] = {}
        self.commits: dict[int, int] = {}
        self._vbucket = vbucket
        self._store = store
        self._alive = alive

    def read(self) -> None:
        """Read the prepares from the log; keep those found damaged there, because other copies may know their end."""
        self.commits.clear()
        # A row in a damaged batch reads as an empty tombstone, so the log alone would say that the prepare is over. A
        # key whose former owner may have answered success would then serve its old version.
        lost = self._store.quarantine.lost(self._vbucket).tolist()
        damaged = [(seqno, key) for key, seqno in self.pending.items() if seqno in lost]
        waiting = [(each.by_seqno, key_of(each.key)) for each in self._store.prepares.waiting(self._vbucket)]
        # Commits are staged in the order of the prepares, and `commits` walks this dictionary from its front.
        self.pending = {key: seqno for seqno, key in sorted(damaged + waiting) if not self._seems_over(key, seqno)}

    def add(self, prepare: dcp.Prepare) -> int:
        """Stage a prepare, with its own seqno or the next one; return the seqno. Raises ArenaFull, DiskFull."""
        # The manifest must say that prepares exist, durably, before the first of them: an older program would take the
        # frame for a document.
        self._store.prepares.announce()
        seqno = self._store.prepares.stage(self._vbucket, prepare)
        key = key_of(prepare.key)
        # The key moves to the end of the dictionary, where its new seqno belongs.
        self.pending.pop(key, None)
        last = next(reversed(self.pending.values()), 0)
        node_invariant(last < seqno, "vbucket {}: prepare {} behind prepare {}", self._vbucket, seqno, last)
        self.pending[key] = seqno
        return seqno

    def commit(self, key: Key, now: int, seqno: int | None = None) -> int:
        """Stage the document that a prepare becomes, with a seqno or the next one; return the seqno.

        Raises as `add`, and CorruptStore if the prepare was found damaged.
        """
        prepare = self._store.prepares.find(self._vbucket, joined(key))
        if prepare is None:
            raise self._store.quarantine.error(self._vbucket) if key in self.pending else KeyError(key)
        # The document and the mark behind it go into one batch, or neither does: staged alone, it would come again.
        self._store.prepares.check_room(len(prepare.value) + 2 * (FRAME_BYTES + len(key.key)))
        committed = self._stage(key, prepare, seqno, now)
        begun = prepare.by_seqno
        node_invariant(begun < committed, "vbucket {}: prepare {} commits at {}", self._vbucket, begun, committed)
        # The mark takes the seqno of the document in front of it: a seqno of its own would leave a hole that no other
        # server leaves.
        self._store.prepares.stage_over(self._vbucket, joined(key), now)
        del self.pending[key]
        self._note(committed, prepare.by_seqno)
        return committed

    def can_commit(self, key: Key, seqno: int) -> bool:
        """Return True if the prepare of a key waits, has this seqno, and can be read."""
        waits = self.pending.get(key) == seqno
        return waits and self._store.prepares.find(self._vbucket, joined(key)) is not None

    def abort(self, key: Key, now: int, seqno: int = 0) -> int:
        """Stage the abort of a prepare, with a seqno or (0) the next one; return the seqno. Raises as `add`."""
        message = dcp.Abort(key=joined(key), prepared_seqno=self.pending.get(key, 0), abort_seqno=seqno)
        # A replica may get an ABORT whose prepare it never had: the disk snapshot that it follows left the prepare out
        # (dcp 10). The frame is stored then with prepared seqno 0.
        aborted = self._store.prepares.stage_abort(self._vbucket, message, now)
        self.pending.pop(key, None)
        return aborted

    def settle(self, now: int) -> None:
        """Add the missing marks of prepares that a document or the drop of a collection ended, as far as damage lets
        that be seen. ArenaFull, DiskFull: call it again later.
        """
        for key in [key for key, seqno in self.pending.items() if self._seems_over(key, seqno)]:
            self._store.prepares.stage_over(self._vbucket, joined(key), now)
            del self.pending[key]

    def is_over(self, key: Key) -> bool:
        """Return True if a prepare in `pending` is over already: there was no room for its mark yet."""
        return self._is_over(key, self.pending[key])

    def newest(self, upto_seqno: int) -> int:
        """Return the highest seqno of a waiting prepare at or below `upto_seqno`; 0 for none."""
        return max((seqno for seqno in self.pending.values() if seqno <= upto_seqno), default=0)

    def committed(self, after_seqno: int, upto_seqno: int) -> Iterator[tuple[int, int]]:
        """Yield (seqno, seqno of the prepare) of the commits in a range."""
        return ((at, seqno) for at, seqno in self.commits.items() if after_seqno < at <= upto_seqno)

    def _seems_over(self, key: Key, seqno: int) -> bool:
        """Return True if a prepare is over, as far as damage lets that be seen."""
        try:
            return self._is_over(key, seqno)
        except CorruptStore:
            return False

    def _is_over(self, key: Key, seqno: int) -> bool:
        """Return True if the collection was dropped, or the document is newer than its prepare: no other change comes
        between.
        """
        # Behind the drop of a collection no stream reports a commit or an abort in it any more (dcp 2.16), so nothing
        # else would ever end the prepare here.
        if key.collection not in self._alive():
            return True
        document = self._store.document(self._vbucket, key.key, key.collection)
        # While a prepare waits, every other write of its key is refused (dcp 10), so only its own commit can be newer.
        return document is not None and document.seqno > seqno

    def _stage(self, key: Key, prepare: dcp.Prepare, seqno: int | None, now: int) -> int:
        if prepare.deleted:
            return self._store.staging.deletion(
                self._vbucket,
                key.key,
                prepare.value,
                seqno=seqno,
                cas=prepare.cas,
                rev_seqno=prepare.rev_seqno,
                delete_time=prepare.expiration,
                now=now,
                datatype=prepare.datatype,
                collection=key.collection,
            )
        return self._store.staging.mutation(
            self._vbucket,
            key.key,
            prepare.value,
            seqno=seqno,
            cas=prepare.cas,
            rev_seqno=prepare.rev_seqno,
            flags=prepare.flags,
            expiry=prepare.expiration,
            datatype=prepare.datatype,
            collection=key.collection,
        )

    def _note(self, committed: int, prepared: int) -> None:
        self.commits[committed] = prepared
        # Forgetting is safe: a stream sends the document in place of COMMIT where the prepare's seqno is unknown (dcp
        # 8.2).
        while len(self.commits) > COMMITS_KEPT:
            del self.commits[next(iter(self.commits))]


def key_of(key: bytes) -> Key:
    """Return the key of a prepare, separated from the id of its collection."""
    return Key(*leb128.split_key(key))


def joined(key: Key) -> bytes:
    """Return a key after its collection's id, also for the default collection."""
    return leb128.join_key(key.collection, key.key)
