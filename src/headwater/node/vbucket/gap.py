"""The gap of a replica: which changes of its producer it refused and lacks, and whether it lacks them still.

A stream has the newest version of each key alone. So a change that was refused is lacking no more once it came after
all, or a newer version of its key did, or its collection was dropped: what its owner holds by then, the replica holds
too. The keys are kept with the vbucket's record, and so a few of them only; of a gap with more, or with changes that
have no key, nobody knows when it is closed, and a mover has all behind it fetched again.
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
    """The changes that a replica refused and lacks; empty for most.

    Args:
        changes: how many. whole_seqno: up to where none is missing. refused: those of which the key is known.

    Attributes:
        changes, whole_seqno: as given.
    """

    def __init__(self, changes: int = 0, whole_seqno: int = 0, refused: Iterable[tuple[int, str, int]] = ()) -> None:
        self.changes: int = changes
        self.whole_seqno: int = whole_seqno if changes else 0
        self._seqnos = {Key(collection, b64decode(key)): seqno for collection, key, seqno in refused}
        self._named_changes = changes if self._seqnos else 0

    def add(self, whole_seqno: int, key: Key | None, seqno: int) -> None:
        """One more change was refused.

        Args:
            key: None where the message has none that can be believed. One that is too long for any document is none:
                no version of it will ever come.
        """
        self.whole_seqno = min(self.whole_seqno, whole_seqno) if self.changes else whole_seqno
        self.changes += 1
        if key is None or len(key.key) > KEY_BYTES_MAX:
            return
        if key in self._seqnos or len(self._seqnos) < KEYS_MAX:
            self._seqnos[key] = max(seqno, self._seqnos.get(key, 0))
            self._named_changes += 1

    @property
    def is_named(self) -> bool:
        """Return True if the keys of all changes are known."""
        return 0 < self.changes <= self._named_changes

    def is_closed(self, newest: Callable[[Key], int], alive: Container[int]) -> bool:
        """Return True if nothing is lacking any more.

        Args:
            newest: the seqno of the newest version of a key, 0 for none.
            alive: the collections that are there.
        """
        return self.is_named and all(
            newest(key) >= seqno or key.collection not in alive for key, seqno in self._seqnos.items()
        )

    @property
    def refused(self) -> Refused:
        """The changes of which the key is known, to be kept; none if that is not so of all."""
        if not self.is_named:
            return ()
        return tuple((key.collection, b64encode(key.key).decode(), seqno) for key, seqno in self._seqnos.items())
