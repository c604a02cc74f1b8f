"""The collections of one vbucket: what the system events in its log fold to.

Nothing of it is kept beside the log. At the start, and after a rollback, the events are read from it again; what a node
stages, and what a replica is sent, is added here and there at once. So what a reader is told of collections is true at
the seqno where it is: a drop hides documents only when the drop itself is durable.

Source: dcp 2.16, 5, 8.2; kv.md 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from headwater.kernels.choices import EVENTS_OF_COLLECTIONS, EVENTS_OF_SCOPES, PREPARES
from headwater.wire import manifest
from headwater.wire.manifest import CollectionsManifest, EventKind, ManifestEvent, ManifestFold

if TYPE_CHECKING:
    from headwater.node.storage.compaction import Dropped
    from headwater.node.storage.views import Shown
    from headwater.wire.dcp import SystemEvent


@dataclass(frozen=True, slots=True)
class Wanted:
    """The changes that a stream asked for.

    Attributes:
        aware: it knows of collections; without, it gets the default one and no events.
        collections: the ids of these only; None: no such choice.
        scope: the id of the one whose collections are wanted, future ones too; None: no such choice.
        prepares: prepares and aborts of durable writes, too.
    """

    aware: bool = False
    collections: frozenset[int] | None = None
    scope: int | None = None
    prepares: bool = False

    @property
    def is_everything(self) -> bool:
        """Whether all collections are wanted."""
        return self.aware and self.collections is None and self.scope is None


PLAIN: Final = Wanted()
EVERYTHING: Final = Wanted(aware=True)


class VBucketCollections:
    """The collections of a vbucket, by its log.

    An event costs the same however many collections there are: a change may bring a thousand to a thousand vbuckets.

    Attributes:
        default_dropped_seqno: of the drop of the default collection, which never comes back; 0 while it is there.
    """

    def __init__(self, events: Iterable[SystemEvent] = ()) -> None:
        self._fold = ManifestFold(manifest.EMPTY)
        self._alive: dict[int, int | None] | None = {0: None}
        self._history: list[tuple[int, ManifestEvent]] = []
        self._changes = 0
        self._shown: dict[Wanted, tuple[tuple[int, int], Shown]] = {}
        self.default_dropped_seqno: int = 0
        for event in events:
            self.add(event)

    def add(self, event: SystemEvent) -> None:
        """An event was staged."""
        told = event_of(event)
        self._history.append((event.by_seqno, told))
        self._fold.add(told)
        self._changes += 1
        self._alive = None
        if told.kind is EventKind.DROP_COLLECTION and told.collection_id == 0:
            self.default_dropped_seqno = event.by_seqno

    @property
    def manifest(self) -> CollectionsManifest:
        """The manifest as staged, that is with events that are not durable yet."""
        return self._fold.manifest

    @property
    def uid(self) -> int:
        """The uid of that."""
        return self._fold.uid

    @property
    def alive(self) -> dict[int, int | None]:
        """The collections of that by id, and the maximum TTL of each in seconds."""
        if self._alive is None:
            self._alive = {number: collection.max_ttl for number, (_, collection) in self.manifest.by_id().items()}
        return self._alive

    @property
    def named(self) -> list[str]:
        """The collections beside the default one, as `scope.collection`."""
        return [f"{scope.name}.{each.name}" for scope, each in self.manifest.each_collection() if each.id]

    def at(self, seqno: int) -> CollectionsManifest:
        """The manifest of a seqno."""
        if not self._history or self._history[-1][0] <= seqno:
            return self.manifest
        return manifest.EMPTY.after(*(event for at, event in self._history if at <= seqno))

    def shown(self, wanted: Wanted, seqno: int) -> Shown:
        """The choice of a reader to whom all up to a durable seqno may be told (kernels/choices.py)."""
        history = self._history
        is_all = not history or history[-1][0] <= seqno  # asked all the time, so not counted
        stamp = (self._changes, len(history) if is_all else sum(at <= seqno for at, _ in history))
        cached = self._shown.get(wanted)
        if cached is None or cached[0] != stamp:
            cached = self._shown[wanted] = (stamp, self._choose(wanted, seqno))
        return cached[1]

    def is_over(self, wanted: Wanted, seqno: int) -> bool:
        """Whether of what a stream asked for nothing is left at a seqno, nor can ever come."""
        if not self._history:
            return False
        now = self.at(seqno)
        if not wanted.aware:
            return 0 not in now.by_id()
        if wanted.scope is not None:
            return now.scope_by_id(wanted.scope) is None
        return wanted.collections is not None and not wanted.collections & now.by_id().keys()

    def dropped(self) -> Dropped:
        """The collections that were dropped, and the seqno of each drop; by id."""
        kind = EventKind.DROP_COLLECTION
        found = sorted((event.collection_id or 0, seqno) for seqno, event in self._history if event.kind is kind)
        return np.array(found, np.uint64).reshape(-1, 2)

    def _choose(self, wanted: Wanted, seqno: int) -> Shown:
        alive = self.at(seqno).by_id()
        if not wanted.aware:
            plain = [0] if 0 in alive else []
            return np.array(plain + [PREPARES + each for each in plain if wanted.prepares], np.uint64)
        collections, scopes = self._ever()
        documents = {number for number, (scope, _) in alive.items() if wanted.scope in {None, scope.id}}
        if wanted.collections is not None:
            documents &= wanted.collections
            collections, scopes = set(wanted.collections), set()
        elif wanted.scope is not None:
            collections, scopes = self._ever(wanted.scope)[0], {wanted.scope}
        chosen = documents | {EVENTS_OF_COLLECTIONS + each for each in collections}
        chosen |= {PREPARES + each for each in documents if wanted.prepares}
        return np.array(sorted(chosen | {EVENTS_OF_SCOPES + each for each in scopes}), np.uint64)

    def _ever(self, scope: int | None = None) -> tuple[set[int], set[int]]:
        """The ids of all collections (of a scope) and scopes of which there was an event."""
        events = [event for _, event in self._history if scope is None or event.scope_id == scope]
        collections = {event.collection_id for event in events if event.collection_id is not None}
        return collections, {event.scope_id for event in events if event.collection_id is None}


def event_of(message: SystemEvent) -> ManifestEvent:
    """The event that a message tells of."""
    return ManifestEvent(
        EventKind(message.event),
        message.manifest_uid,
        message.scope_id,
        message.collection_id,
        message.key.decode("utf-8", "replace"),
        message.max_ttl,
    )


def message_of(event: ManifestEvent) -> SystemEvent:
    """The message that tells of an event, still without seqno; version 1 only where there is a maximum TTL."""
    from headwater.wire.dcp import SystemEvent  # noqa: PLC0415

    return SystemEvent(
        by_seqno=0,
        event=int(event.kind),
        version=0 if event.max_ttl is None else 1,
        key=event.name.encode(),
        manifest_uid=event.manifest_uid,
        scope_id=event.scope_id,
        collection_id=event.collection_id,
        max_ttl=event.max_ttl,
    )
