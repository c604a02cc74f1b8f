"""Facts about a store's node that its manifest keeps for good: each is written down once, before it matters.

    declarations.join()        the node is one of a cluster: a map that is missing at a start is missed
    declarations.is_member     whether that was ever so

A program of before that does not know a fact refuses the folder; see manifest.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headwater.node.storage.log import Log

__all__ = ["Declarations"]


class Declarations:
    """The facts in the manifest of a log. What declares one blocks, the first time; it is durable on return.

    Each raises DiskFull or StorageError where that could not be written down.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def is_member(self) -> bool:
        """Return True if the node was ever one of a cluster."""
        return self._log.manifest.content.member

    @property
    def has_users(self) -> bool:
        """Return True if there was ever a list of users in the folder."""
        return self._log.manifest.content.users

    def use_collections(self) -> None:
        """Expect changes with marks: programs of before must not read the folder any more."""
        if not self._log.manifest.content.collections:
            self._log.declare(lambda manifest: replace(manifest, collections=True))

    def join(self) -> None:
        """Be one of a cluster. Any thread."""
        if not self.is_member:
            self._log.declare(lambda manifest: replace(manifest, member=True))

    def keep_users(self) -> None:
        """Keep a list of users, to be missed when it is gone. Any thread."""
        if not self.has_users:
            self._log.declare(lambda manifest: replace(manifest, users=True))
