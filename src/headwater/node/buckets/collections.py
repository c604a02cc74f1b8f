"""The collections of a bucket by the node's manifest; each vbucket also has a manifest in its own log.

The newest manifest is in a small file next to the log, with the lowest ids that were never used: one line of title and
checksum, one line of JSON. A change is written to the file first, then staged as system events in every active vbucket,
then acknowledged. After a crash in between, the next start stages the missing events. Replicas receive collections by
system events only (kv.md 4). When a vbucket becomes active, and its manifest differs from the node's, the newer of the
two replaces the older one: so a manifest spreads with the vbuckets that have it.

Source: kv.md 4; dcp 2.16.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from headwater.errors import CorruptStore, DiskFull, StorageError, UnsureFile
from headwater.failpoints import failpoint
from headwater.node.process.run_queue import Slices
from headwater.node.refused import CommandRefused
from headwater.node.reporting.log_lines import event
from headwater.node.storage.disk import Disk
from headwater.node.storage.staging import ArenaFull
from headwater.node.storage.text_file import WholeFile, decode_text_file, encode_text_file
from headwater.wire import manifest as wire
from headwater.wire.manifest import COLLECTION_ID_FIRST, CollectionsManifest, EventKind, ManifestRefused
from headwater.wire.status import Status
from headwater.wire.vbucket import State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headwater.node.committer import Committer
    from headwater.node.process.run_queue import RunQueue
    from headwater.node.storage.api import Storage
    from headwater.node.vbucket.vbucket import VBucket

log: Final = logging.getLogger("headwater.node")

NAME: Final = "COLLECTIONS"
NEXT_NAME: Final = "COLLECTIONS.new"
_FAILPOINTS: Final = ("collections.before_rename", "collections.after_rename")
_TITLE: Final = "headwater-collections"
_FORMAT: Final = "1"
COLLECTIONS_MAX: Final = 1200
"""The most collections of a bucket, as in the reference server; also the most scopes."""
SCOPE_ID_FIRST: Final = 8
FOLDER_BYTES: Final = 64 << 10
"""The bytes of the disk that a folder may need for the name of a new file."""
RETRY_SECONDS: Final = 10.0


class Owner(Protocol):
    """The part of a bucket that its collections need."""

    vbuckets: dict[int, VBucket]
    store: Storage
    committer: Committer

    def next_cas(self, vbucket: int) -> int:
        """Return the next CAS of a vbucket."""


class CollectionsFile:
    """The file of the manifest in a store's folder."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self.path: Path = folder / NAME
        self.whole: Final = WholeFile(disk, self.path, folder / NEXT_NAME, _FAILPOINTS)
        self._disk = disk
        self._folder = folder

    def load(self) -> tuple[CollectionsManifest, int, int]:
        """Return the manifest, and the lowest ids of collections and scopes that were never used.

        Raises:
            CorruptStore: the file was changed since it was written.
            StorageError: the file has another format, or can't be read.
        """
        try:
            if NAME not in self._disk.names(self._folder):
                return wire.EMPTY, COLLECTION_ID_FIRST, SCOPE_ID_FIRST
            data = self._disk.read(self.path)
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror or error}") from error
        content = json.loads(decode_text_file(data, self.path, _TITLE, [_FORMAT], "collections manifest"))
        try:
            return (
                CollectionsManifest.decode(json.dumps(content["manifest"]).encode()),
                content["next_collection"],
                content["next_scope"],
            )
        except ManifestRefused as error:
            raise CorruptStore(self.path, 0, str(error)) from None

    def save(self, manifest: CollectionsManifest, next_collection: int, next_scope: int) -> None:
        """Replace the manifest on disk; durable on return. Blocks while the disk works.

        Raises:
            DiskFull, StorageError: the old manifest is still on disk.
            UnsureFile: either manifest may be on disk.
        """
        content = {"manifest": manifest.as_json(), "next_collection": next_collection, "next_scope": next_scope}
        self.whole.replace(encode_text_file(_TITLE, _FORMAT, json.dumps(content).encode()))


class Collections:
    """The collections of a bucket by the node's manifest.

    Attributes:
        manifest: the newest manifest.
        has_history: True if any collection has a history.
        plain: the ids of the collections that kernels may serve, ascending: those without a maximum TTL that the node's
            manifest and each active vbucket have. `refresh` brings it up to date.
        is_stale: True if `plain` may not be up to date.
        run_queue: the queue that gives other work its turn during a change; None before the node runs.
    """

    def __init__(self, bucket: Owner, disk: Disk, folder: Path) -> None:
        self._bucket = bucket
        self._file = CollectionsFile(disk, folder)
        self._ttls: dict[int, int | None] = {}
        self.has_history: bool = True
        self.plain: NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.is_stale: bool = True
        self._included: dict[int, Mapping[int, int | None]] = {}
        self._lacking: set[int] = set()
        self.manifest, self._next_collection, self._next_scope = self._file.load()
        self._saved = self.manifest
        self.run_queue: RunQueue | None = None
        self._changing, self._is_stopped = asyncio.Lock(), False
        self._settling: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None

    @property
    def file(self) -> WholeFile:
        """The file of the manifest."""
        return self._file.whole

    @property
    def manifest(self) -> CollectionsManifest:
        """The newest manifest."""
        return self._manifest

    @manifest.setter
    def manifest(self, new: CollectionsManifest) -> None:
        self._manifest = new
        self._ttls = {collection.id: collection.max_ttl for _, collection in new.each_collection()}
        self.has_history = any(collection.history for _, collection in new.each_collection())
        self.is_stale = True

    def refresh(self) -> None:
        """Update `plain`.

        A change is in the node's manifest before vbuckets have its events, and a vbucket may become active without the
        newest ones. Requests about a collection that one of them lacks are for the plain path, which looks at the
        vbucket.
        """
        every = {id_ for id_, ttl in self._ttls.items() if ttl is None}
        active = [vbucket for vbucket in self._bucket.vbuckets.values() if vbucket.state is State.ACTIVE]
        # Vbuckets with the same events share one object.
        self._included = {id(alive): alive for alive in (vbucket.collections.alive for vbucket in active)}
        behind = {place for place, alive in self._included.items() if every - alive.keys()}
        self._lacking = {vbucket.id for vbucket in active if id(vbucket.collections.alive) in behind}
        self.plain = np.array(sorted(every.intersection(*self._included.values())), np.uint64)
        self.is_stale = False

    def _may_lack_some(self, vbucket: VBucket) -> bool:
        return vbucket.state is State.ACTIVE and id(vbucket.collections.alive) not in self._included

    def ttl_max(self, collection: int) -> int | None:
        """Return the maximum TTL of a collection in seconds; None for no limit."""
        return self._ttls.get(collection)

    def unknown_collection(self, collection: int) -> CommandRefused:
        """Return the refusal for an unknown collection.

        The refusal has the manifest's uid: so a client can find out whether its own manifest is outdated, or the
        collection was dropped.
        """
        return self.unknown(Status.UNKNOWN_COLLECTION, f"there is no collection 0x{collection:x}")

    def missing_in(self, vbucket: VBucket, collection: int) -> CommandRefused:
        """Return the refusal for a collection that a vbucket lacks.

        If the node's manifest has the collection, the status is a temporary failure, because the vbucket will soon get
        the event: vbuckets get the events of a change one after the other, and a promoted vbucket gets them a moment
        later.
        """
        if collection in self._ttls and vbucket.collections.uid < self.manifest.uid:
            return CommandRefused(
                Status.ETMPFAIL, f"collection 0x{collection:x} is new, and not in vbucket {vbucket.id} yet"
            )
        return self.unknown_collection(collection)

    def unknown(self, status: Status, context: str) -> CommandRefused:
        """Return the refusal for a collection or scope that the manifest lacks, with the manifest's uid."""
        details = {"manifest_uid": f"{self.manifest.uid:x}", "error": {"context": context}}
        return CommandRefused(status, context, value=json.dumps(details).encode())

    def recover(self) -> None:
        """After the store was opened, stage the events that active vbuckets lack of the newest manifest, which is in
        the file or in a vbucket.

        If the events do not fit into one batch or on the disk, `start` stages the rest.
        """
        for vbucket in self._bucket.vbuckets.values():
            self._learn(vbucket.collections.manifest)
        # Without room the start continues, because only a running node can delete documents.
        with suppress(ArenaFull, DiskFull):
            for vb in filter(self._may_lack, self._bucket.vbuckets):
                self._bring_up(vb)

    def start(self) -> None:
        """Stage the events that `recover` could not stage, now that the node runs."""
        if self._saved != self.manifest or any(map(self._may_lack, self._bucket.vbuckets)):
            self._settle_later()

    # --- changes ------------------------------------------------------------------------------------------------------

    async def change(self, edit: Callable[[CollectionsManifest], CollectionsManifest]) -> CollectionsManifest:
        """Replace the manifest by the result of `edit`; return the new manifest. On return it is durable, in the file
        and in every active vbucket.

        Args:
            edit: returns the new manifest from the present one; called again if a vbucket brings another manifest
                meanwhile.

        Raises:
            ManifestRefused: the new manifest may not follow the present one.
            DiskFull, StorageError: the manifest could not be written, and is not in force; or it is in force, but some
                vbuckets do not have it yet.
            UnsureFile: the manifest may be in force after a restart.
        """
        async with self._changing:
            is_written = False
            try:
                while not await self._take(manifest := self._edited(edit)):
                    is_written = True
            except ManifestRefused:
                if is_written:
                    await self._take_back()
                raise
            try:
                await self._follow()
            except DiskFull:
                self._settle_later()
                raise
            return manifest

    def _edited(self, edit: Callable[[CollectionsManifest], CollectionsManifest]) -> CollectionsManifest:
        self._check_serves()
        manifest = edit(self.manifest)
        _check_size(manifest)
        self.manifest.check_next(manifest)
        self._check_ids(manifest)
        return manifest

    async def _take(self, manifest: CollectionsManifest) -> bool:
        """Write a manifest to the file and put it into force; return False if a vbucket brought another one meanwhile.

        In that case the vbucket's manifest stays in force until the caller has checked that the new one may follow it:
        the new one, even with a higher uid, may use the same ids for other collections.
        """
        current = self.manifest
        # A manifest that a vbucket has brought must be saved, too: otherwise a node that loses the vbucket forgets it.
        if manifest != current or manifest != self._saved:
            await self._save(manifest)
            if self.manifest is not current:
                return False
            self.manifest = manifest
        return True

    async def _take_back(self) -> None:
        """Write the present manifest again, because another one was written and then refused.

        Raises:
            UnsureFile: the write failed, so a restart may bring the refused manifest into force.
        """
        try:
            await self._save(self.manifest)
        except UnsureFile:
            raise
        except StorageError as error:
            raise UnsureFile(self.file.path, str(error)) from error

    def _check_ids(self, manifest: CollectionsManifest) -> None:
        """Raise ManifestRefused if a manifest uses an old id for a new collection or scope (kv.md 4), because the log
        may have documents of the former collection.

        This is allowed on a node that owns no vbucket: if the node was failed over with a drop that the other nodes had
        not received, it must accept their manifest when it joins them again.
        """
        if not any(vbucket.state is State.ACTIVE for vbucket in self._bucket.vbuckets.values()):
            return
        present_ids, scopes = self.manifest.by_id(), {scope.id for scope in self.manifest.scopes}
        for scope, collection in manifest.each_collection():
            if collection.id not in present_ids and 0 < collection.id < self._next_collection:
                raise ManifestRefused(f"{scope.name}.{collection.name}: id {collection.id:x} was given", breaks=True)
        for scope in manifest.scopes:
            if scope.id not in scopes and scope.id < self._next_scope:
                raise ManifestRefused(f"{scope.name}: id {scope.id:x} was given before", breaks=True)

    async def _save(self, manifest: CollectionsManifest) -> None:
        """Write a manifest to the file, and record its ids as used. After a failed write, the ids may be used again."""
        save = self._save_drop if _only_drops(self._saved, manifest) else self._file.save
        try:
            await asyncio.get_running_loop().run_in_executor(None, save, manifest, *self._ids_behind(manifest))
        except (UnsureFile, asyncio.CancelledError):  # the manifest may be written, or will be in a moment
            self._given(manifest)
            raise
        self._given(manifest)
        self._saved = manifest

    def _save_drop(self, manifest: CollectionsManifest, next_collection: int, next_scope: int) -> None:
        """Write a manifest that only drops, which will lead to more room. If the disk is full, use the room of the
        store's reserve. Blocks while the disk works.
        """
        try:
            self._file.save(manifest, next_collection, next_scope)
        except (DiskFull, UnsureFile) as error:
            store_log, needed = self._bucket.store.log, 2 * len(manifest.encode()) + FOLDER_BYTES
            if not ((isinstance(error, DiskFull) or store_log.is_full) and store_log.give_to_delete(needed)):
                raise
            self._file.save(manifest, next_collection, next_scope)

    async def _follow(self) -> None:
        """Stage the events that active vbuckets lack, a few vbuckets at a time, and wait until all events are durable.

        A vbucket may be handed over, rolled back or become active meanwhile. So each vbucket is checked when its turn
        comes, and all are checked again at the end.

        Raises:
            DiskFull: some events had no room.
            StorageError: the bucket is being dropped, or the batch with the events was lost.
        """
        bucket, committer, loop = self._bucket, self._bucket.committer, asyncio.get_running_loop()
        declare = partial(bucket.store.declarations.use_event, is_flat=self._has_plain)
        await loop.run_in_executor(None, declare)
        slices = None if self.run_queue is None else Slices(loop, self.run_queue)
        level = dict[int, int]()
        while True:
            for vb in self._behind(level):
                if slices is not None:
                    await slices.breathe()
                self._check_serves()
                failpoint("collections.before_events")
                try:
                    if self._may_lack(vb) and not self._bring_up(vb):
                        level[vb] = self.manifest.uid
                except (ArenaFull, DiskFull) as refused:
                    if isinstance(refused, DiskFull) and bucket.store.staging.is_blank:
                        raise  # otherwise a commit may release the next piece of the reserve for deletions
                    await committer.wait(committer.wrote())
            # One wait for all events, because most of them are in one batch.
            if not await committer.wait(committer.gate()):
                raise StorageError(
                    "the change is in force, but the batch with its events could not be written: repeat it"
                )
            if not self._behind(level):
                return

    def _behind(self, level: Mapping[int, int]) -> list[int]:
        """Return the vbuckets that may lack events. A vbucket for which `level` has the uid of the node's manifest is
        known to lack none.
        """
        return [vb for vb in self._bucket.vbuckets if self._may_lack(vb) and level.get(vb) != self.manifest.uid]

    def _check_serves(self) -> None:
        if self._is_stopped:
            raise StorageError("the bucket is being dropped")

    def _may_lack(self, vb: int) -> bool:
        """Return True if a vbucket is active here, accepts writes, and has an older manifest than the node."""
        vbucket = self._bucket.vbuckets.get(vb)
        if vbucket is None or vbucket.state is not State.ACTIVE or vbucket.is_backed_up:
            return False
        return vbucket.collections.uid < self.manifest.uid

    def _bring_up(self, vb: int) -> bool:
        """Stage the events that a vbucket lacks; return True if there were any.

        Raises:
            ArenaFull, DiskFull: only some events had room.
        """
        bucket = self._bucket
        self.is_stale = True  # also if only some events had room
        is_changed = bucket.vbuckets[vb].become(self.manifest, lambda: bucket.next_cas(vb))
        if is_changed:
            bucket.committer.wrote()
        return is_changed

    # --- vbuckets that come and go ------------------------------------------------------------------------------------

    def look_at(self, vbucket: int) -> None:
        """Compare the manifests after a vbucket's record changed, or it was dropped.

        The vbucket may have become active, or have a newer manifest.
        """
        vbucket_ = self._bucket.vbuckets.get(vbucket)
        # A record is written with each snapshot that a replica gets: those must not cost a look at all vbuckets.
        if vbucket in self._lacking or (vbucket_ is not None and self._may_lack_some(vbucket_)):
            self.is_stale = True
        if vbucket_ is None or vbucket_.collections.uid == self.manifest.uid:
            return
        if vbucket_.collections.uid > self.manifest.uid:
            self._learn(vbucket_.collections.manifest)
            self._settle_later()
        elif vbucket_.state is State.ACTIVE:
            self._settle_later()

    def batch_lost(self) -> None:
        """Stage events again, because a batch was lost that may have contained some."""
        self.is_stale = True
        if self.manifest.uid:
            for vb, vbucket in self._bucket.vbuckets.items():
                # The vbucket may count events that were in the lost batch; the log says which are left.
                if self._bucket.store.index.is_mixed(vb):
                    vbucket.read_events()
            self._settle_later()

    def _learn(self, manifest: CollectionsManifest) -> None:
        """Put a vbucket's manifest, which is in its log, into force if it is newer than the node's."""
        if manifest.uid > self.manifest.uid:
            self._given(manifest)
            self.manifest = manifest

    def _given(self, manifest: CollectionsManifest) -> None:
        self._next_collection, self._next_scope = self._ids_behind(manifest)

    def _ids_behind(self, manifest: CollectionsManifest) -> tuple[int, int]:
        """Return the lowest unused ids of a collection and of a scope after this manifest."""
        collections = (collection.id + 1 for _, collection in manifest.each_collection())
        scopes = (scope.id + 1 for scope in manifest.scopes)
        return max([self._next_collection, *collections]), max([self._next_scope, *scopes])

    def _settle_later(self) -> None:
        """Update the file and the other vbuckets in the background."""
        if self._settling is None or self._settling.done():
            with suppress(RuntimeError):  # no loop yet: `start` does this
                self._settling = asyncio.get_running_loop().create_task(self._settle())

    async def _settle(self) -> None:
        await asyncio.sleep(0)  # the caller may be in the middle of a change of a vbucket
        try:
            await self.change(lambda manifest: manifest)
            while self._saved.uid < self.manifest.uid:  # a vbucket has brought a newer manifest meanwhile
                await self.change(lambda manifest: manifest)
        except (ManifestRefused, StorageError) as error:
            if self._is_stopped:
                return
            late = event("collections.late", uid=self.manifest.uid)
            log.warning("the collections are not up to date everywhere: %s", error, extra=late)
            if isinstance(error, StorageError) and self._again is None:
                self._again = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._settle_again)

    def _settle_again(self) -> None:
        self._again = None
        if not self._is_stopped:
            self._settle_later()

    async def stop(self) -> None:
        """Stop staging events, because the bucket is dropped. On return no change is running, and no file is being
        written.
        """
        self._is_stopped = True  # cancelling a change instead would not stop the thread that writes the file
        async with self._changing:
            pass

    # --- by name ------------------------------------------------------------------------------------------------------

    @property
    def next_ids(self) -> tuple[int, int]:
        """The lowest ids of a collection and of a scope that were never used."""
        return self._next_collection, self._next_scope

    def with_scope(self, name: str) -> Callable[[CollectionsManifest], CollectionsManifest]:
        """Return the edit, for `change`, that adds a scope."""
        return lambda manifest: manifest.with_scope(name, self._next_scope)

    def with_collection(
        self, scope: str, name: str, max_ttl: int | None, *, history: bool | None = None
    ) -> Callable[[CollectionsManifest], CollectionsManifest]:
        """Return the edit, for `change`, that adds a collection to a scope.

        Args:
            scope: the scope's name.
            name: the collection's name.
            max_ttl: its maximum TTL in seconds; None for no limit.
            history: True if it has a history; None for the bucket's default.
        """
        has_history = self._bucket.store.declarations.collections_have_history if history is None else history
        return lambda manifest: manifest.with_collection(
            scope, name, max_ttl, self._next_collection, history=has_history
        )

    @property
    def _has_plain(self) -> bool:
        """True if any collection has no history; only events of version 2 can say this."""
        return any(not collection.history for _, collection in self.manifest.each_collection())


def _only_drops(before: CollectionsManifest, after: CollectionsManifest) -> bool:
    """Return True if a change of manifests drops something and creates nothing."""
    kinds = {each.kind for each in before.events_to(after)}
    return bool(kinds) and kinds <= {EventKind.DROP_COLLECTION, EventKind.DROP_SCOPE}


def _check_size(manifest: CollectionsManifest) -> None:
    collections = sum(1 for _ in manifest.each_collection())
    if max(collections, len(manifest.scopes)) > COLLECTIONS_MAX:
        raise ManifestRefused(
            f"{collections} collections in {len(manifest.scopes)} scopes; {COLLECTIONS_MAX} of each are allowed"
        )
