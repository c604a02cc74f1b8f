"""Facts about a store's node that its manifest keeps for good: each is written down once, before it is needed. And the
setting that it keeps, which may change.

    declarations.join()        the node is one of a cluster: a start without its map is refused
    declarations.is_member     True if it ever was

    declarations.keep_history(seconds=86_400)       from now on, whatever ends the process
    declarations.history

An older program that does not know a fact refuses the folder; see manifest.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headwater.node.storage.retention import Retention

if TYPE_CHECKING:
    from headwater.node.storage.log import Log
    from headwater.node.storage.manifest import Manifest

__all__ = ["Declarations"]


class Declarations:
    """The facts in the manifest of a log. A call that declares one blocks the first time; it is durable on
    return.

    Each such call raises DiskFull or StorageError if the fact could not be written.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def is_member(self) -> bool:
        """True if the node was ever a member of a cluster."""
        return self._log.manifest.content.member

    @property
    def has_users(self) -> bool:
        """True if there was ever a list of users in the folder."""
        return self._log.manifest.content.users

    def use_collections(self) -> None:
        """Declare that changes with marks may come: older programs must not read the folder any more."""
        # Looked up in memory: the first event pays for the manifest, the thousand that follow do not.
        if not self._log.manifest.content.collections:
            self._log.declare(lambda manifest: replace(manifest, collections=True))

    def join(self) -> None:
        """Declare that the node is a member of a cluster. Any thread."""
        if not self.is_member:
            self._log.declare(lambda manifest: replace(manifest, member=True))

    def keep_users(self) -> None:
        """Declare that there is a list of users, so that a start without it is refused. Any thread."""
        if not self.has_users:
            self._log.declare(lambda manifest: replace(manifest, users=True))

    @property
    def history(self) -> Retention:
        """The history of superseded versions that is kept."""
        return self._log.manifest.content.history

    def keep_history(self, seconds: int | None = None, size: int | None = None) -> None:
        """Set how far back superseded versions are kept; None leaves a limit as it is. Any thread."""

        def edit(manifest: Manifest) -> Manifest:
            old = manifest.history
            kept = Retention(old.seconds if seconds is None else seconds, old.bytes if size is None else size)
            return replace(manifest, history=kept)

        self._log.declare(edit)
