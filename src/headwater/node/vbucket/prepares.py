"""The waiting prepares of one vbucket's durable writes, as its log has them.

A durable write is two changes: a prepare, which only replicas that requested prepares get, and then, once enough of
these replicas have the prepare on disk, the document itself. The prepare is stored under a key of its own, so the
document stays unchanged until then. The prepare is over when that key is deleted: by an abort, or by the mark after the
document.

A replica may get the document without the information that it ends a prepare (dcp 8.2, a snapshot from disk). Then the
newer document proves that the prepare is over, now and after a restart, and the mark is added later. The drop of a
collection ends the prepares in it in the same way, because streams no longer report their commits and aborts.

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
"""The number of commits that are remembered. A stream sends COMMIT for these, and the document for older ones."""

FRAME_BYTES = 64
"""An upper limit of the bytes that a document needs in the arena besides its key and value, and a mark besides
its key.
"""


class Key(NamedTuple):
    """The key of a document, without its collection's id."""

    collection: int
    key: bytes


class VBucketPrepares:
    """The prepares that wait in a vbucket.

    A check here holds only until the next change, so its caller must stage the checked change before any other.

    Args:
        alive: the existing collections, by the log.

    Attributes:
        pending: the seqno of each waiting prepare by its key, in the order of the seqnos.
        commits: the seqno of each committed prepare by the seqno of its document; the newest COMMITS_KEPT.
    """

    def __init__(self, vbucket: int, store: Storage, alive: Callable[[], Container[int]]) -> None:
        self.pending: dict[Key, int] = {}
        self.commits: dict[int, int] = {}
        self._vbucket = vbucket
        self._store = store
        self._alive = alive

    def read(self) -> None:
        """Read the prepares from the log. A prepare that is damaged in the log keeps waiting, because another copy may
        know how it ended.
        """
        self.commits.clear()
        # A row in a damaged batch reads as an empty tombstone, so the log alone would say that the prepare is over. A
        # key whose former owner may have answered success would then serve its old version.
        lost_seqnos = self._store.quarantine.lost(self._vbucket).tolist()
        damaged = [(seqno, key) for key, seqno in self.pending.items() if seqno in lost_seqnos]
        waiting = [(each.by_seqno, key_of(each.key)) for each in self._store.prepares.waiting(self._vbucket)]
        # Commits are staged in the order of the prepares, and `commits` walks this dictionary from its front.
        self.pending = {key: seqno for seqno, key in sorted(damaged + waiting) if not self._seems_over(key, seqno)}

    def add(self, prepare: dcp.Prepare) -> int:
        """Stage a prepare; return its seqno: that of the message, or the next one if that is 0.

        Raises:
            ArenaFull, DiskFull: there is no room for it.
        """
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
        """Commit a prepare: stage its document, and the mark that the prepare is over; return the document's seqno.

        Args:
            key: the key of a waiting prepare.
            now: Unix seconds.
            seqno: the seqno of the document; None for the next one.

        Raises:
            ArenaFull, DiskFull: there is no room for both, and nothing happens.
            CorruptStore: the prepare is damaged on disk.
            KeyError: no prepare of the key waits.
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
        """Return True if the prepare of a key is waiting, has this seqno, and can be read."""
        waits = self.pending.get(key) == seqno
        return waits and self._store.prepares.find(self._vbucket, joined(key)) is not None

    def abort(self, key: Key, now: int, seqno: int = 0) -> int:
        """Stage the abort of a prepare; return its seqno, which is `seqno`, or the next one for 0.

        Raises:
            ArenaFull, DiskFull: there is no room for it.
        """
        message = dcp.Abort(key=joined(key), prepared_seqno=self.pending.get(key, 0), abort_seqno=seqno)
        # A replica may get an ABORT whose prepare it never had: the disk snapshot that it follows left the prepare out
        # (dcp 10). The frame is stored then with prepared seqno 0.
        aborted = self._store.prepares.stage_abort(self._vbucket, message, now)
        self.pending.pop(key, None)
        return aborted

    def settle(self, now: int) -> None:
        """Add the missing marks of prepares that ended with a document or with the drop of a collection. A prepare
        whose document can't be read, because it is damaged, keeps waiting.

        Raises:
            ArenaFull, DiskFull: some marks had no room; call again later.
        """
        for key in [key for key, seqno in self.pending.items() if self._seems_over(key, seqno)]:
            self._store.prepares.stage_over(self._vbucket, joined(key), now)
            del self.pending[key]

    def is_over(self, key: Key) -> bool:
        """Return True if a prepare in `pending` is over, and only its mark is missing, for lack of room."""
        return self._is_over(key, self.pending[key])

    def newest(self, upto_seqno: int) -> int:
        """Return the highest seqno of a waiting prepare at or below `upto_seqno`; 0 for none."""
        return max((seqno for seqno in self.pending.values() if seqno <= upto_seqno), default=0)

    def committed(self, after_seqno: int, upto_seqno: int) -> Iterator[tuple[int, int]]:
        """Yield (seqno of the commit, seqno of the prepare) for commits above `after_seqno`, up to `upto_seqno`."""
        return ((at, seqno) for at, seqno in self.commits.items() if after_seqno < at <= upto_seqno)

    def _seems_over(self, key: Key, seqno: int) -> bool:
        """Return True if a prepare is known to be over; False if damage hides its document."""
        try:
            return self._is_over(key, seqno)
        except CorruptStore:
            return False

    def _is_over(self, key: Key, seqno: int) -> bool:
        """Return True if the collection was dropped, or the document is newer than the prepare. Raises CorruptStore if
        the document is damaged.
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
    """Split the stored key of a prepare into the id of its collection and the document's key."""
    return Key(*leb128.split_key(key))


def joined(key: Key) -> bytes:
    """Return the id of the collection, in LEB128, followed by the key; the default collection has the id 0."""
    return leb128.join_key(key.collection, key.key)
