"""The gap of a replica: the changes that it refused from its producer, and still lacks.

A stream has only the newest version of each key. So a refused change is no longer missing once the replica has accepted
it after all, or has a newer version of its key, or the collection was dropped: then the replica has all that its owner
has. The vbucket's record keeps the keys of the refused changes, but has room for a few only. If a gap has more changes,
or changes without a key, the node can't know when it is closed, and a mover requests all changes after it again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterable
from typing import TypeAlias

from headwater.node.vbucket.prepares import Key
from headwater.wire.header import KEY_BYTES_MAX

KEYS_MAX = 4
"""The number of keys that a gap names. A record with a full failover log has room for so many keys of 250 bytes."""

Refused: TypeAlias = tuple[tuple[int, str, int], ...]
"""Refused changes in the form of a record: the collection's id, the key in base64, and the seqno of each."""


class Gap:
    """The changes that a replica refused and lacks; most replicas lack none.

    Args:
        changes: the number of these changes.
        whole_seqno: the seqno up to which no change is missing.
        refused: the changes whose key is known.

    Attributes:
        changes: the number of changes that are missing.
        whole_seqno: the seqno up to which no change is missing; 0 if none is missing at all.
    """

    def __init__(self, changes: int = 0, whole_seqno: int = 0, refused: Iterable[tuple[int, str, int]] = ()) -> None:
        self.changes: int = changes
        self.whole_seqno: int = whole_seqno if changes else 0
        self._seqnos = {Key(collection, b64decode(key)): seqno for collection, key, seqno in refused}
        self._named_changes = changes if self._seqnos else 0

    def add(self, whole_seqno: int, key: Key | None, seqno: int) -> None:
        """Add a refused change.

        Args:
            whole_seqno: the seqno up to which no change is missing.
            key: the key; None if the message has no plausible one. A key that is too long for a document counts as
                None, because no later version of it can be stored either.
            seqno: the seqno of the change.
        """
        # After a second refusal the copy is still whole only up to the first one.
        self.whole_seqno = min(self.whole_seqno, whole_seqno) if self.changes else whole_seqno
        self.changes += 1
        # A change without a key still counts in `changes`, so `is_named` stays False, and the gap closes only when all
        # changes behind it come again.
        if key is None or len(key.key) > KEY_BYTES_MAX:
            return
        if key in self._seqnos or len(self._seqnos) < KEYS_MAX:
            # A version older than the newest refused one does not close the gap: the owner may have deleted the
            # document between the two.
            self._seqnos[key] = max(seqno, self._seqnos.get(key, 0))
            self._named_changes += 1

    @property
    def is_named(self) -> bool:
        """True if the keys of all changes are known."""
        return 0 < self.changes <= self._named_changes

    def is_closed(self, newest: Callable[[Key], int], alive: Container[int]) -> bool:
        """Return True if no refused change is missing any more; False if the keys of some are unknown.

        Args:
            newest: returns the seqno of the newest version of a key, 0 for none.
            alive: the existing collections.
        """
        return self.is_named and all(
            newest(key) >= seqno or key.collection not in alive for key, seqno in self._seqnos.items()
        )

    @property
    def refused(self) -> Refused:
        """The changes for the vbucket's record; none unless all keys are known."""
        # A record with only some of the keys would be wrong: after a restart the gap would seem closed as soon as newer
        # versions of these few keys had come.
        if not self.is_named:
            return ()
        return tuple((key.collection, b64encode(key.key).decode(), seqno) for key, seqno in self._seqnos.items())
