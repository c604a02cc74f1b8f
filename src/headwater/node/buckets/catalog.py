"""The buckets of a node besides its first: opened when the node starts, created and dropped while it runs.

    create:  listed as `making` -> folder -> store, vbuckets durable -> listed as `served`: it exists -> served
    drop:    listed as `dropping`: it no longer exists -> connections and store closed -> files removed -> not listed

The process may end at each arrow. No client has seen a bucket in state `making`, and no client may use a bucket in
state `dropping`. So the next start removes the files of buckets in these two states, and of no others.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Never, TypeVar

from headwater.errors import DiskFull, OptionError, StorageError, UnsureFile
from headwater.failpoints import failpoint
from headwater.node.buckets import folder
from headwater.node.buckets.bucket import Bucket, Clock
from headwater.node.buckets.file import DROPPING, MAKING, SERVED, BucketEntry, BucketList, BucketsFile
from headwater.node.buckets.quota import QUOTA_MIB_MIN, QuotaDisk
from headwater.node.committer import Committer
from headwater.node.refused import CommandRefused
from headwater.node.reporting.log_lines import event
from headwater.node.storage.arena import ARENA_BYTES
from headwater.node.storage.retention import HISTORY_BYTES_MAX, HISTORY_BYTES_MIN, HISTORY_SECONDS_MAX, Retention
from headwater.node.storage.store import Store
from headwater.node.storage.text_file import WholeFile
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from headwater.node.config import NodeConfig
    from headwater.node.storage.disk import Disk

__all__ = ["BUCKETS_MAX", "Catalog", "NewBucket", "open_store"]

BUCKETS_MAX: Final = 30
"""The most buckets of a node, including the first, as in the reference server. Each has files, arenas and a thread."""
VBUCKETS_PER_TURN: Final = 64
"""The number of vbuckets that a new bucket gets in one turn of the event loop: some 10 ms."""
BATCH_BYTES_MIN: Final = 24 << 20  # more than the largest document, 20 MiB, with its key, attributes and record

T = TypeVar("T")

log: Final = logging.getLogger("headwater.node")


def open_store(config: NodeConfig, disk: Disk | None = None) -> Store:
    """Open the store of a bucket, with the sizes from the node's settings. Raises the errors of `Store.open`.

    Args:
        config: the settings, with the bucket's folder and number of vbuckets.
        disk: the disk; None for the machine's.
    """
    segment_bytes = config.segment_mib << 20
    # A segment has room for at least two batches, and a batch for the largest document.
    arena_bytes = min(ARENA_BYTES, max(BATCH_BYTES_MIN, segment_bytes // 2))
    return Store.open(
        config.data, vbuckets=config.vbuckets, disk=disk, segment_bytes=segment_bytes, arena_bytes=arena_bytes
    )


@dataclass(frozen=True, slots=True)
class NewBucket:
    """The request for a new bucket.

    Attributes:
        name: the name of the bucket.
        vbuckets: the number of vbuckets; None for that of the node's first bucket.
        quota_mib: the limit of the size of its files in MiB; 0 for no limit.
        is_empty: True to create no vbuckets, as on a node that joins a cluster.
        history: the retention of superseded versions.
        collections_have_history: True if new collections have a history, unless the request that creates one says
            otherwise.
    """

    name: str
    vbuckets: int | None = None
    quota_mib: int = 0
    is_empty: bool = False
    history: Retention = Retention()  # noqa: RUF009 - a constant
    collections_have_history: bool = True


@dataclass(frozen=True, slots=True)
class OpenBucket:
    """An open bucket: its entry, its settings and its parts."""

    entry: BucketEntry
    config: NodeConfig
    store: Store
    bucket: Bucket
    committer: Committer


class Catalog:
    """The buckets of a node except the first.

    Args:
        config: the node's settings.
        disk: the disk with the node's folder.
        loop: the event loop.
        clock: the time.
        serve: begins to serve a bucket.
        leave: stops serving a bucket; on return no session uses it.
    """

    def __init__(
        self,
        config: NodeConfig,
        disk: Disk,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        *,
        serve: Callable[[OpenBucket], None],
        leave: Callable[[OpenBucket], Awaitable[None]],
    ) -> None:
        self._config = config
        self._disk = disk
        self._loop = loop
        self._clock = clock
        self._serve, self._leave = serve, leave
        self._file = BucketsFile(disk, config.data)
        self._known = BucketList()
        self._open: dict[str, OpenBucket] = {}
        self._changing = asyncio.Lock()

    # --- start and stop -----------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open and serve all listed buckets. First remove the files of buckets that an earlier process did not
        completely create or drop.

        Raises:
            OptionError: a bucket in the list has the name of the node's first bucket.
            CorruptStore, StorageError: a bucket can't be opened.
        """
        self._known = self._file.load()
        # Before any bucket is opened: the other buckets may need the room of these files.
        self._finish()
        try:
            for entry in self._known.in_state(SERVED):
                self._open_listed(entry)
        except BaseException:
            self.close(clean=False)
            raise

    def _open_listed(self, entry: BucketEntry) -> None:
        place = entry.folder(self._config.data)
        if entry.name == self._config.bucket:
            raise OptionError("bucket", entry.name, f"another name: this node has such a bucket already, in {place}")
        folder.check(self._disk, place, entry)
        self._keep(self._opened(entry, self._store(entry)))

    def _finish(self) -> None:
        """Remove the files of buckets whose creation or drop an earlier process did not complete."""
        for entry in (*self._known.in_state(MAKING), *self._known.in_state(DROPPING)):
            try:
                folder.remove(self._disk, entry.folder(self._config.data), entry)
                self._save(self._known.without(entry.number))
            # The start continues: nobody can use such a bucket, and the next start tries again.
            except (OSError, StorageError) as error:
                self._complain(entry, error)

    @property
    def file(self) -> WholeFile:
        """The list of buckets on disk."""
        return self._file.whole

    def stores(self) -> list[tuple[Committer, Store]]:
        """Return the open stores, each with its committer."""
        return [(each.committer, each.store) for each in self._open.values()]

    def close(self, *, clean: bool) -> None:
        """Close the stores, whose buckets are no longer served.

        Raises:
            DiskFull, StorageError: a store could not be closed cleanly; all stores are closed nevertheless.
        """
        failures: list[StorageError] = []
        for each in self._open.values():
            each.committer.close()
            try:
                each.store.close(clean=clean)
            except StorageError as error:
                failures.append(error)
        self._open.clear()
        if failures:
            raise failures[0]

    # --- changes ------------------------------------------------------------------------------------------------------

    async def create(self, wish: NewBucket) -> None:
        """Create a bucket; on return it is durable and served.

        Raises:
            CommandRefused: KEY_EEXISTS, EINVAL (an invalid name or number), E2BIG (too many buckets).
            DiskFull, StorageError: the bucket could not be created, and does not exist.
            UnsureFile: an empty bucket may exist after a restart.
        """
        async with self._changing:
            entry = self._entry(wish)
            # Listed before it has a folder, so that a later start knows that it may remove the files in this folder.
            await self._in_thread(self._save, self._known.with_entry(replace(entry, state=MAKING)))
            failpoint("buckets.listed")
            store: Store | None = None
            opened: OpenBucket | None = None
            try:
                store = await self._in_thread(self._create_store, entry, wish)
                failpoint("buckets.made")
                opened = self._opened(entry, store)
                await self._fill(opened, 0 if wish.is_empty else entry.vbuckets)
                failpoint("buckets.filled")
                # From here on the bucket exists, and a start opens it, because its vbuckets are on disk.
                await self._in_thread(self._save, self._known.with_entry(entry))
            except (OSError, StorageError) as error:
                if opened is not None:
                    opened.committer.close()  # ends its thread
                await self._in_thread(self._undo, entry, store)
                if isinstance(error, UnsureFile) and self._file.whole.unsure:  # it may be listed as served
                    raise
                raise StorageError(f'bucket "{entry.name}" was not made: {error}') from error
            self._keep(opened)
            log.info('bucket "%s" is there', entry.name, extra=event("bucket.created", bucket=entry.name))

    async def drop(self, name: str, only: Bucket | None = None) -> None:
        """Drop a bucket and all of its documents; on return the drop is durable.

        Args:
            name: the name of the bucket.
            only: drop only this bucket, not a newer one of the same name; None for any.

        Raises:
            CommandRefused: KEY_ENOENT; NOT_SUPPORTED for the node's first bucket.
            DiskFull, StorageError: the drop could not be written, and the bucket is served as before. The error's text
                says if it is unknown whether the drop was written: then the bucket is no longer served, and the next
                start either drops it or serves it.
        """
        if name == self._config.bucket:
            raise CommandRefused(
                Status.NOT_SUPPORTED, f'"{name}" is the bucket that the node was started with: flush it, or drop others'
            )
        async with self._changing:
            opened = self._open.get(name)
            if opened is None or only not in (None, opened.bucket):
                raise CommandRefused(Status.KEY_ENOENT, "there is no such bucket")
            entry = replace(opened.entry, state=DROPPING)
            try:
                await self._in_thread(self._list_drop, opened, entry)
            except UnsureFile as error:
                await self._withdraw(opened, error)
            failpoint("buckets.drop_listed")
            del self._open[name]
            # No session may use the store when its files are removed.
            await self._leave(opened)
            await self._in_thread(self._removed, opened.store, entry)
            log.info('bucket "%s" is dropped', name, extra=event("bucket.dropped", bucket=name))

    async def _withdraw(self, opened: OpenBucket, error: StorageError) -> Never:
        """Stop serving a bucket, because it is unknown whether its drop was written, and the next start might drop it
        with all later writes. Its files stay. Always raises StorageError.
        """
        name = opened.entry.name
        del self._open[name]
        await self._leave(opened)
        await self._in_thread(partial(opened.store.close, clean=False))
        why = "whether it is dropped is not known until the node is started anew, and it is served no more"
        raise StorageError(f'bucket "{name}": {why}: {error}') from error

    def quota_mib(self, name: str) -> int:
        """Return the quota of a bucket in MiB; 0 for no quota, as for the first bucket."""
        opened = self._open.get(name)
        return 0 if opened is None else opened.entry.quota_mib

    async def set_quota(self, bucket: Bucket, quota_mib: int) -> None:
        """Set the quota of a bucket in MiB, 0 for none; on return it is durable and in force.

        Raises:
            CommandRefused: KEY_ENOENT if the bucket is dropped, also where a newer one has its name; NOT_SUPPORTED for
                the first bucket; EINVAL if the quota is too small, or smaller than the present size of the bucket's
                files.
            DiskFull, StorageError: the list could not be written, and the old quota stays in force.
            UnsureFile: the old quota stays in force, but the new one may be after a restart.
        """
        if (name := bucket.name) == self._config.bucket:
            raise CommandRefused(
                Status.NOT_SUPPORTED,
                f'"{name}" is the bucket that the node was started with: the disk is its quota; others have one',
            )
        _check_quota(quota_mib)
        async with self._changing:
            self._check_open(bucket)
            opened = self._open[name]
            disk, entry = opened.store.disk, replace(opened.entry, quota_mib=quota_mib)
            used = disk.used if isinstance(disk, QuotaDisk) else 0
            if quota_mib and used > quota_mib << 20:
                why = f"its files take {-(-used >> 20)} MiB: delete documents or drop collections, compact, try again"
                raise CommandRefused(Status.EINVAL, f"a quota of {quota_mib} MiB is less than the bucket has: {why}")
            # Durable before it is in force, because the answer must also hold after a restart.
            await self._in_thread(self._save, self._known.with_entry(entry))
            if isinstance(disk, QuotaDisk):
                disk.set_quota(quota_mib)
                # A store that was full by the old quota accepts documents again at once.
                opened.store.log.look_at_disk()
            self._open[name] = replace(opened, entry=entry)
            fields = event("bucket.quota", bucket=name, quota_mib=quota_mib)
            log.info('bucket "%s" may take %s', name, f"{quota_mib} MiB" if quota_mib else "the disk", extra=fields)

    async def give_collections_history(self, bucket: Bucket, *, history: bool) -> None:
        """Set whether new collections of a bucket have a history by default; otherwise like `keep_history`."""
        async with self._changing:
            self._check_open(bucket)
            await self._in_thread(partial(bucket.store.declarations.give_collections_history, history=history))
            fields = event("bucket.collections_history", bucket=bucket.name, history=history)
            words = "a history" if history else "no history"
            log.info('new collections of bucket "%s" have %s', bucket.name, words, extra=fields)

    def _check_open(self, bucket: Bucket) -> None:
        opened = self._open.get(bucket.name)
        if bucket.name != self._config.bucket and (opened is None or opened.bucket is not bucket):
            raise CommandRefused(Status.KEY_ENOENT, "there is no such bucket")

    async def keep_history(self, bucket: Bucket, seconds: int | None = None, size: int | None = None) -> None:
        """Set the retention of superseded versions of any bucket; on return it is durable and in force.

        Args:
            bucket: the bucket.
            seconds: the longest age; 0 for no such limit, None to leave it unchanged.
            size: the most bytes; 0 for no such limit, None to leave it unchanged.

        Raises:
            CommandRefused: KEY_ENOENT if the bucket is dropped; EINVAL for a number out of range.
            DiskFull, StorageError: the limits could not be written, and the old ones stay in force; the new ones may be
                in force after a restart.
        """
        _check_history(seconds, size)
        async with self._changing:
            self._check_open(bucket)
            # In a thread, because it blocks; while `_changing` is locked, the bucket can't be dropped.
            await self._in_thread(bucket.store.declarations.keep_history, seconds, size)
            retention, name = bucket.store.declarations.history, bucket.name
            fields = event("bucket.history", bucket=name, seconds=retention.seconds, bytes=retention.bytes)
            log.info('bucket "%s" keeps %s', name, retention, extra=fields)

    def _entry(self, wish: NewBucket) -> BucketEntry:
        """Return the entry of a new bucket; raise CommandRefused if its name, number or quota is invalid."""
        name = wish.name
        if name == self._config.bucket or any(each.name == name for each in self._known.in_state(SERVED)):
            raise CommandRefused(Status.KEY_EEXISTS, f'there is a bucket "{name}"')
        if len(self._open) + 1 >= BUCKETS_MAX:
            raise CommandRefused(Status.E2BIG, f"the node has {BUCKETS_MAX} buckets, the most there can be")
        _check_quota(wish.quota_mib)
        _check_history(wish.history.seconds, wish.history.bytes)
        vbuckets = self._config.vbuckets if wish.vbuckets is None else wish.vbuckets
        entry = BucketEntry(name, self._known.next, secrets.token_hex(16), vbuckets, wish.quota_mib)
        try:
            self._config_of(entry)
        except OptionError as error:
            raise CommandRefused(Status.EINVAL, str(error)) from None
        return entry

    def _create_store(self, entry: BucketEntry, wish: NewBucket) -> Store:
        folder.make(self._disk, entry.folder(self._config.data), entry)
        store = self._store(entry)
        try:
            if wish.history:
                store.declarations.keep_history(wish.history.seconds, wish.history.bytes)
            if not wish.collections_have_history:
                store.declarations.give_collections_history(history=False)
        except BaseException:
            store.close(clean=False)
            raise
        return store

    def _undo(self, entry: BucketEntry, store: Store | None) -> None:
        """Remove the files of a bucket whose creation failed; if the removal fails too, the next start repeats it.

        The files are removed before the bucket is removed from the list, because a new list may not fit on the disk
        before.
        """
        if self._file.whole.unsure:  # it may be listed as served
            try:
                self._save(self._known.with_entry(replace(entry, state=DROPPING)))
            except StorageError as error:
                self._complain(entry, error)
                return
        self._removed(store, entry)

    def _list_drop(self, opened: OpenBucket, entry: BucketEntry) -> None:
        """Write the state `dropping` of a bucket to the list. If the disk is full, use the room of the store's
        reserve.
        """
        try:
            self._save(self._known.with_entry(entry))
        except (DiskFull, UnsureFile):
            opened.store.log.reserve.lend(keep=0)
            try:
                self._save(self._known.with_entry(entry))
            finally:
                opened.store.log.reserve.take_back()

    def _removed(self, store: Store | None, entry: BucketEntry) -> None:
        """Close a store (None: not open), remove its files, and remove the bucket from the list. If a file can't be
        removed now, the bucket stays in the list, and the next start removes its files.
        """
        try:
            if store is not None:
                store.close(clean=False)
            folder.remove(self._disk, entry.folder(self._config.data), entry)
            failpoint("buckets.removed")
            self._save(self._known.without(entry.number))
        except (OSError, StorageError) as error:
            self._complain(entry, error)

    # --- parts --------------------------------------------------------------------------------------------------------

    def _config_of(self, entry: BucketEntry) -> NodeConfig:
        """Return the settings of a bucket: those of the node, with its own name, folder and number of vbuckets."""
        return replace(
            self._config,
            bucket=entry.name,
            data=entry.folder(self._config.data),
            vbuckets=entry.vbuckets,
            vbucket_state="none",  # `_fill` creates the vbuckets of a new bucket
        )

    def _store(self, entry: BucketEntry) -> Store:
        return open_store(self._config_of(entry), QuotaDisk(self._disk, entry.quota_mib))

    async def _fill(self, opened: OpenBucket, vbuckets: int) -> None:
        """Create the vbuckets of a new bucket, some in each turn of the loop; on return they are durable.

        Raises:
            StorageError: a batch was lost.
        """
        bucket, committer = opened.bucket, opened.committer
        for first in range(0, max(vbuckets, 1), VBUCKETS_PER_TURN):
            for vb in range(first, min(first + VBUCKETS_PER_TURN, vbuckets)):
                bucket.create_vbucket(vb, State.ACTIVE)
            bucket.refresh()
            # Some at a time, because a batch has room for a limited number of records.
            if not await committer.wait(committer.wrote()):
                raise StorageError(f'bucket "{opened.entry.name}": its vbuckets could not be written')

    def _opened(self, entry: BucketEntry, store: Store) -> OpenBucket:
        """Return an open bucket from a store and the vbuckets in it."""
        config = self._config_of(entry)
        committer = Committer(store, self._loop)
        try:
            bucket = Bucket(entry.name, store, committer, clock=self._clock)
            bucket.recover(config)
        except BaseException:
            # Otherwise the committer's thread would keep the process alive.
            committer.close()
            raise
        return OpenBucket(entry, config, store, bucket, committer)

    def _keep(self, opened: OpenBucket) -> None:
        self._open[opened.entry.name] = opened
        self._serve(opened)

    def _save(self, bucket_list: BucketList) -> None:
        self._file.save(bucket_list)
        self._known = bucket_list

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await self._loop.run_in_executor(None, work, *arguments)

    def _complain(self, entry: BucketEntry, error: Exception) -> None:
        fields = event("bucket.left", bucket=entry.name)
        log.warning(
            'bucket "%s" is gone, its files are not: %s; the next start tries again', entry.name, error, extra=fields
        )


def _check_history(seconds: int | None, size: int | None) -> None:
    if seconds is not None and seconds > HISTORY_SECONDS_MAX:
        raise CommandRefused(Status.EINVAL, f"a history of {seconds} seconds; {HISTORY_SECONDS_MAX} is the most")
    if size and not HISTORY_BYTES_MIN <= size <= HISTORY_BYTES_MAX:
        bounds = f"{HISTORY_BYTES_MIN} is the least, {HISTORY_BYTES_MAX} the most, 0 for no such limit"
        raise CommandRefused(Status.EINVAL, f"a history of {size} bytes; {bounds}")


def _check_quota(quota_mib: int) -> None:
    if quota_mib and quota_mib < QUOTA_MIB_MIN:
        raise CommandRefused(Status.EINVAL, f"a quota of {quota_mib} MiB; {QUOTA_MIB_MIN} is the least, 0 for none")
