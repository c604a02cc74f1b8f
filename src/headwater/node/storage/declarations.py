"""Facts about a node that the manifest of its store keeps permanently; each is written once, before it is needed. The
manifest also keeps settings about histories, which may change.

    declarations.join()        the node is a member of a cluster: a start without its map is refused
    declarations.is_member     True if the node ever was a member

    declarations.keep_history(seconds=86_400)       from now on, whatever ends the process
    declarations.history

Older programs that do not know a fact refuse the folder; see manifest.py.
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
    """The facts in the manifest of a log.

    The first call of a method that declares a fact blocks while the disk works; the fact is durable on return. Each
    such method raises DiskFull or StorageError if the fact could not be written.
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
        """Declare that frames may have marks: older programs must refuse the folder from now on."""
        # Checked in memory first, because a thousand vbuckets stage the same event.
        if not self._log.manifest.content.collections:
            self._log.declare(lambda manifest: replace(manifest, collections=True))

    def use_flags(self) -> None:
        """Declare that the log may have system events of version 2; otherwise like `use_collections`."""
        if not self._log.manifest.content.flags:
            self._log.declare(lambda manifest: replace(manifest, collections=True, flags=True))

    def use_event(self, *, is_flat: bool) -> None:
        """Declare that the log may have system events; `is_flat` is True for an event of version 2."""
        self.use_flags() if is_flat else self.use_collections()

    def join(self) -> None:
        """Declare that the node is a member of a cluster. Any thread may call this."""
        if not self.is_member:
            self._log.declare(lambda manifest: replace(manifest, member=True))

    def keep_users(self) -> None:
        """Declare that there is a list of users, so that a start without the list is refused. Any thread may
        call this.
        """
        if not self.has_users:
            self._log.declare(lambda manifest: replace(manifest, users=True))

    @property
    def history(self) -> Retention:
        """The retention of superseded versions."""
        return self._log.manifest.content.history

    def keep_history(self, seconds: int | None = None, size: int | None = None) -> None:
        """Set the retention of superseded versions: the seconds, and the size in bytes; None leaves a limit unchanged.
        Any thread may call this.
        """

        def edit(manifest: Manifest) -> Manifest:
            old = manifest.history
            retention = Retention(old.seconds if seconds is None else seconds, old.bytes if size is None else size)
            return replace(manifest, history=retention)

        self._log.declare(edit)

    @property
    def collections_have_history(self) -> bool:
        """True if a new collection has a history, unless the request that creates it says otherwise."""
        return not self._log.manifest.content.plain_collections

    def give_collections_history(self, *, history: bool) -> None:
        """Set whether new collections have a history by default. Any thread may call this."""
        self._log.declare(lambda manifest: replace(manifest, plain_collections=not history))
