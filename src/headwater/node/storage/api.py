"""The interface of the store for buckets, vbuckets and streams; store.py implements it. node/committer.py commits.

Callers use the parts of the store directly: `index` has seqnos, counts and arrays of the vbuckets, `staging` stages
changes, `prepares` stages durable writes, `quarantine` has the damage, `declarations` has the facts outside the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from headwater.node.storage.columns import Index
    from headwater.node.storage.committing import Committing
    from headwater.node.storage.compaction import Compaction, Dropped
    from headwater.node.storage.declarations import Declarations
    from headwater.node.storage.disk import Disk
    from headwater.node.storage.log import Log
    from headwater.node.storage.messages import StoredEvent
    from headwater.node.storage.prepares import StoredPrepares
    from headwater.node.storage.quarantine import Quarantine
    from headwater.node.storage.records import StoredDocument, VBucketRecord
    from headwater.node.storage.retention import Drops, HistoryLimits
    from headwater.node.storage.scrub import Damage
    from headwater.node.storage.slots import Slots
    from headwater.node.storage.staging import Staging
    from headwater.node.storage.views import PlainSpan, Shown, View


class Storage(Protocol):
    """A log of changes and its index; attributes, errors and arguments are those of `Store`.

    Call all methods from the event loop's thread, except the steps of a scrub.
    """

    path: Path
    disk: Disk
    recovered: dict[int, VBucketRecord]
    clean: bool
    table: NDArray[np.uint64]
    segments: NDArray[np.uint64]
    index: Index
    slots: Slots
    log: Log
    staging: Staging
    committing: Committing
    prepares: StoredPrepares
    declarations: Declarations
    quarantine: Quarantine

    @property
    def full(self) -> bool:
        """True if the disk has no room for another batch."""

    # ---------------------------------------- reading; views have durable changes only, the others staged ones too

    def document(self, vbucket: int, key: bytes, collection: int = 0) -> StoredDocument | None:
        """Return the newest version of a key, which may be a tombstone."""

    def document_bytes(self, vbucket: int, key: bytes, collection: int = 0) -> int:
        """Return the size of a document's stored frame in bytes; 0 if there is no document."""

    def seqno_of(self, vbucket: int, key: bytes, collection: int = 0) -> int:
        """Return the seqno of a key's newest version; 0 if there is none."""

    def events(self, vbucket: int) -> list[StoredEvent]:
        """Return the newest system event of each collection and scope."""

    def collections(self, vbucket: int, ids: list[int]) -> Iterator[tuple[int, int, int, int]]:
        """Yield (id, number of live documents, bytes of their frames, number of tombstones) of each collection."""

    def expired(self, vbucket: int, now: int, limit: int = ..., alive: Shown = ...) -> list[tuple[bytes, int]]:
        """Return keys and collections of documents that have expired by Unix second `now`."""

    def newest_seqno(self, vbucket: int, choice: Shown) -> int:
        """Return the seqno of the newest durable change in the choice `choice`; 0 if there is none."""

    def view(
        self,
        vbucket: int,
        after_seqno: int = ...,
        end_seqno: int = ...,
        choice: Shown = ...,
        *,
        every_version: bool = ...,
        plain: Sequence[PlainSpan] = ...,
        befores: bool = ...,
    ) -> View:
        """Return a view of the present durable changes between two seqnos; close it when done."""

    def gather_live(  # noqa: PLR0917 - as the kernel has them
        self,
        vbucket: int,
        numbers: tuple[int, int, int, int],
        out: NDArray[np.uint8],
        opaque: int,
        encoding: int,
        slow: int,
        room: int,
    ) -> tuple[int, int]:
        """Write a marker and the frames of newly durable changes to `out`; return their bytes and number."""

    # ---------------------------------------- undoing; staged, and durable with the next batch

    def pass_seqno(self, vbucket: int, seqno: int) -> None:
        """Count a seqno as used, although no change has it."""

    def lacks_tombstones(self, vbucket: int, upto_seqno: int, deleted_rev: int = 0) -> None:
        """Raise the purge seqno, because the next changes lack tombstones up to `upto_seqno`."""

    def rollback(self, vbucket: int, seqno: int) -> int:
        """Undo all changes above a seqno; return the seqno that was reached: this one, or 0."""

    def lowered_to(self, vbucket: int, seqno: int) -> int:
        """Return the high seqno that a rollback to `seqno` would leave."""

    def drop(self, vbucket: int) -> None:
        """Drop a vbucket with its documents."""

    # ---------------------------------------- the log

    def scrub(self, slice_bytes: int) -> Iterator[int | Damage]:
        """Verify the log, one slice at each step; any one thread may take the steps."""

    def take_out(self, damage: Damage) -> set[int] | None:
        """Stop serving a damaged range; return the vbuckets with changes in it, None if it was known already."""

    @property
    def damaged_batches(self) -> int:
        """The number of known damaged ranges in the files of the log."""

    def compact(
        self,
        *,
        purge_before: int = 0,
        purge_limit: Callable[[int], int] | None = None,
        history_rows: Callable[[int], int] = ...,
        part: slice = ...,
        spare: Collection[int] = (),
        dropped: Callable[[int], Dropped] | None = None,
        history: HistoryLimits | None = None,
        drops: Callable[[int], Drops] = ...,
    ) -> Compaction | None:
        """Begin and return a compaction; None if there are no sealed segments, or another compaction is running."""

    def history(
        self, limits: HistoryLimits, least: Callable[[int], int], drops: Callable[[int], Drops] = ...
    ) -> AbstractContextManager[Callable[[], int]]:
        """Return a context with a function, which returns the bytes of superseded versions that a compaction would
        keep.
        """

    def close(self, clean: bool = True) -> None:
        """Close the store; if `clean` is True, commit the staged changes first."""
