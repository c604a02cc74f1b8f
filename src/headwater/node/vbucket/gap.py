"""The gap of a replica: the changes of its producer that it refused, and still lacks.

A stream has only the newest version of each key. So a refused change is no longer missing once it was accepted after
all, or a newer version of its key came, or its collection was dropped: then the replica holds all that its owner holds.
The keys are kept with the vbucket's record, and therefore only a few of them; if a gap has more changes, or changes
without a key, it can't be determined when it is closed, and a mover requests all changes after it again.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Container, Iterable
from typing import TypeAlias

from headwater.node.vbucket.prepares import Key
from headwater.wire.header import KEY_BYTES_MAX

KEYS_MAX = 4
"""Keys of 250 bytes, that many of them, have room in a record beside a full failover log."""

Refused: TypeAlias = tuple[tuple[int, str, int], ...]
"""Changes as a record has them: id of the collection, key in base64, seqno."""


class Gap:
    """The changes that a replica refused and lacks; most replicas lack none.

    Args:
        changes: their number. whole_seqno: the seqno up to which none is missing. refused: the changes with a known
            key.

    Attributes:
        changes, whole_seqno: as given.
    """

    def __init__(self, changes: int = 0, whole_seqno: int = 0, refused: Iterable[tuple[int, str, int]] = ()) -> None:
        self.changes: int = changes
        self.whole_seqno: int = whole_seqno if changes else 0
        self._seqnos = {Key(collection, b64decode(key)): seqno for collection, key, seqno in refused}
        self._named_changes = changes if self._seqnos else 0

    def add(self, whole_seqno: int, key: Key | None, seqno: int) -> None:
        """Add a refused change.

        Args:
            key: the key; None if the message has no plausible one. A key that is too long for a document counts as
                None: no version of it will ever come.
        """
        # After a second refusal the copy is whole only up to before the first one.
        self.whole_seqno = min(self.whole_seqno, whole_seqno) if self.changes else whole_seqno
        self.changes += 1
        # The change counts all the same, so `is_named` is False from here on, and the gap closes only when everything
        # behind it comes anew.
        if key is None or len(key.key) > KEY_BYTES_MAX:
            return
        if key in self._seqnos or len(self._seqnos) < KEYS_MAX:
            # A version older than the newest refused one would not do: between the two the owner may have deleted the
            # document.
            self._seqnos[key] = max(seqno, self._seqnos.get(key, 0))
            self._named_changes += 1

    @property
    def is_named(self) -> bool:
        """True if the keys of all changes are known."""
        return 0 < self.changes <= self._named_changes

    def is_closed(self, newest: Callable[[Key], int], alive: Container[int]) -> bool:
        """Return True if no change is missing any more.

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
        # A part of the keys would be worse than none: after a restart the gap would seem to be closed once those few
        # had come.
        if not self.is_named:
            return ()
        return tuple((key.collection, b64encode(key.key).decode(), seqno) for key, seqno in self._seqnos.items())
