"""The collections of one vbucket: the result of the system events in its log.

The collections are not stored separately from the log. At the start, and after a rollback, the events are read from the
log again. An event that a node stages, or that a replica receives, is added to the log and to this object at the same
time. A reader sees the collections as of its own seqno: a drop hides documents only once the drop itself is durable.

Source: dcp 2.16, 5, 8.2; kv.md 4.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary, ref

import numpy as np
from numpy.typing import NDArray

from headwater.kernels.choices import EVENTS_OF_COLLECTIONS, EVENTS_OF_SCOPES, MODIFICATIONS, PREPARES
from headwater.node.storage.messages import StoredEvent
from headwater.node.storage.records import EventParts, event_parts
from headwater.node.storage.views import PlainSpan
from headwater.protocol.dcp.position import ENDLESS
from headwater.wire import manifest
from headwater.wire.manifest import CollectionsManifest, EventKind, ManifestEvent

if TYPE_CHECKING:
    from headwater.node.storage.compaction import Dropped
    from headwater.node.storage.views import Shown


@dataclass(frozen=True, slots=True)
class Wanted:
    """The changes that a stream asks for.

    Attributes:
        aware: True if the stream knows of collections; otherwise it gets the default collection only, and no events.
        collections: the ids of the chosen collections; None if the stream chooses none by id.
        scope: the id of the scope whose present and future collections are wanted; None if the stream chooses no scope.
        prepares: True if prepares and aborts of durable writes are wanted too.
        modifications: True if the events of modified collections are wanted too, which only version 2 has.
    """

    aware: bool = False
    collections: frozenset[int] | None = None
    scope: int | None = None
    prepares: bool = False
    modifications: bool = False

    @property
    def is_everything(self) -> bool:
        """True if all collections are wanted."""
        return self.aware and self.collections is None and self.scope is None

    def concerns(self, event: ManifestEvent) -> bool:
        """Return True if an event is about one of the wanted collections."""
        if not self.aware:
            return event.collection_id == 0
        if self.scope is not None:
            return event.scope_id == self.scope
        return self.collections is None or event.collection_id in self.collections


PLAIN: Final = Wanted()
EVERYTHING: Final = Wanted(aware=True)
EVERYTHING_FLAT: Final = Wanted(aware=True, modifications=True)
"""The choice of a stream of the whole bucket, with events of version 0 and 1, or of version 2."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class FoldedEvents:
    """The result of the events of a history; kept in memory while a vbucket refers to it.

    Attributes:
        manifest: the existing collections.
        alive: the existing collections by id, with the maximum TTL of each in seconds; None for no maximum.
        plain: the ids of the existing collections without a history, sorted.
        choices: the choices of readers, by what they want and by the number of events that they may see.
        next: the manifest of the last call of `steps_to`, and the events that lead to it.
    """

    manifest: CollectionsManifest
    alive: dict[int, int | None]
    plain: NDArray[np.uint64]
    choices: dict[tuple[Wanted, int], Shown] = field(default_factory=dict)
    next: tuple[CollectionsManifest, list[tuple[ManifestEvent, EventParts]]] | None = None


class EventHistory:
    """A series of events: the last event, and the series before it. Vbuckets with the same events in their logs share
    one object.

    So a change of the collections is stored and evaluated once, not once for each of a thousand vbuckets. A series
    keeps the series before it in memory; it does not keep the series that continue it.

    Attributes:
        before: the series without the last event; None in an empty series.
        event: the last event; None in an empty series.
        length: the number of events.
        uid: the highest uid of the manifests that the events belong to; 0 in an empty series.
    """

    __slots__ = ("__weakref__", "_folded", "_following", "before", "event", "length", "uid")

    def __init__(self, before: EventHistory | None = None, event: ManifestEvent | None = None) -> None:
        self.before: EventHistory | None = before
        self.event: Final = event
        self.length: int = 0 if before is None else before.length + 1
        self.uid: int = 0 if before is None or event is None else max(before.uid, event.manifest_uid)
        # Weak references, so that a branch of events that a rollback undid is freed although the series before it
        # stays.
        self._following: WeakValueDictionary[ManifestEvent, EventHistory] | None = None
        self._folded: ref[FoldedEvents] | None = None

    def then(self, event: ManifestEvent) -> EventHistory:
        """Return the series with one more event; the same object for the same event while a vbucket refers to it."""
        if self._following is None:
            self._following = WeakValueDictionary()
        # A thousand vbuckets stage the same event in turn; the first one creates the row, and all others use it.
        row = self._following.get(event)
        if row is None:
            row = self._following[event] = EventHistory(self, event)
        return row

    def cut(self, length: int) -> EventHistory:
        """Return the series of the first `length` events."""
        row = self
        while row.length > length and row.before is not None:
            row = row.before
        return row

    def events(self) -> list[ManifestEvent]:
        """Return the events in their order."""
        return self._behind(None)

    @property
    def folded(self) -> FoldedEvents:
        """The result of the events. The series refers to it weakly: a caller that needs it again must keep it."""
        result = self._known
        if result is None:
            # Folding goes on from the newest row whose result is known: in a chain of n changes each is folded once,
            # not n times.
            base: EventHistory | None = self.before
            while base is not None and base._known is None:
                base = base.before
            start = base._known if base is not None else None
            last_manifest = (start.manifest if start is not None else manifest.EMPTY).after(*self._behind(base))
            collections = [collection for _, collection in last_manifest.each_collection()]
            plain = _sorted_ids(collection.id for collection in collections if not collection.history)
            result = FoldedEvents(
                last_manifest, {collection.id: collection.max_ttl for collection in collections}, plain
            )
            self._folded = ref(result)
        return result

    @property
    def _known(self) -> FoldedEvents | None:
        return None if self._folded is None else self._folded()

    def _behind(self, base: EventHistory | None) -> list[ManifestEvent]:
        events = []
        row: EventHistory | None = self
        while row is not None and row is not base:
            if row.event is not None:
                events.append(row.event)
            row = row.before
        events.reverse()
        return events


NO_EVENTS: Final = EventHistory()
_GIVING: Final = (EventKind.CREATE_COLLECTION, EventKind.MODIFY_COLLECTION)
_DECIDING: Final = (*_GIVING, EventKind.DROP_COLLECTION)
"""The kinds of events that say whether a collection has a history."""


def _sorted_ids(ids: Iterable[int]) -> NDArray[np.uint64]:
    return np.array(sorted(ids), np.uint64)


class VBucketCollections:
    """The collections of a vbucket, by its log.

    The cost of an event does not depend on the number of collections, because one change may create a thousand
    collections in a thousand vbuckets. Each vbucket has its own seqnos of the events; the events and their result are
    shared.

    Attributes:
        default_dropped_seqno: the seqno of the drop of the default collection, which never comes back; 0 while it
            exists.
    """

    def __init__(self, events: Iterable[StoredEvent] = ()) -> None:
        self._row = NO_EVENTS
        self._seqnos: array[int] = array("Q")
        self._folded: tuple[EventHistory, FoldedEvents] | None = None
        self._has_plain = False
        self.default_dropped_seqno: int = 0
        for event in events:
            self.add(event.seqno, event.event)

    def add(self, seqno: int, event: ManifestEvent) -> None:
        """Add an event that was staged with `seqno`, above all earlier ones."""
        self._seqnos.append(seqno)
        self._row = self._row.then(event)
        self._has_plain |= not event.history
        # "`_default` collection may be dropped and is never re-created" (kv.md 4), so this seqno can't be outdated by a
        # later event.
        if event.kind is EventKind.DROP_COLLECTION and event.collection_id == 0:
            self.default_dropped_seqno = seqno

    @property
    def manifest(self) -> CollectionsManifest:
        """The manifest as staged, including events that are not durable yet."""
        return self._all_events.manifest

    @property
    def uid(self) -> int:
        """The uid of the staged manifest."""
        return self._row.uid

    @property
    def alive(self) -> dict[int, int | None]:
        """The collections of the staged manifest by id, with the maximum TTL of each in seconds; None for no
        maximum.
        """
        return self._all_events.alive

    @property
    def named_paths(self) -> list[str]:
        """The collections besides the default one, as `scope.collection`."""
        return [
            f"{scope.name}.{collection.name}" for scope, collection in self.manifest.each_collection() if collection.id
        ]

    def at(self, seqno: int) -> CollectionsManifest:
        """Return the manifest as of a seqno."""
        return self._events_until(seqno).manifest

    def events_at(self, seqnos: Container[int]) -> list[StoredEvent]:
        """Return the events with these seqnos."""
        stored_events = zip(self._seqnos, self._row.events(), strict=True)
        return [StoredEvent(seqno, event) for seqno, event in stored_events if seqno in seqnos]

    def steps_to(self, following: CollectionsManifest) -> list[tuple[ManifestEvent, EventParts]]:
        """Return the events that lead to another manifest, each with its stored form. Vbuckets with the same events
        share the result.
        """
        folded = self._all_events
        # By identity: a manifest of a thousand collections would otherwise be compared a thousand times, once for each
        # vbucket.
        if folded.next is None or folded.next[0] is not following:
            events = folded.manifest.events_to(following)
            folded.next = following, [(event, event_parts(event)) for event in events]
        return folded.next[1]

    def choice(self, query: Wanted, seqno: int) -> Shown:
        """Return the choice (kernels/choices.py) of a reader that wants `query`, and may see everything up to
        `seqno`.
        """
        choices, length = self._all_events.choices, self._length(seqno)
        # A reader may see events only up to its durable seqno. With those that are staged alone, a lost batch would
        # leave it without documents of a collection that was never dropped.
        choice = choices.get((query, length))
        if choice is None:
            choice = choices[query, length] = self._choose(query, seqno)
        return choice

    def plain_spans(self, after: int, last: int) -> tuple[PlainSpan, ...]:
        """Return, for the seqnos above `after` and up to `last`, which collections had no history: spans of seqnos with
        the ids of these collections.
        """
        if not self._has_plain:
            return ()
        if after >= self._seqnos[-1]:
            plain = self._all_events.plain
            return (PlainSpan(after, last, plain),) if len(plain) else ()
        return tuple(self._spans(after, last))

    def _spans(self, after: int, last: int) -> Iterator[PlainSpan]:
        plain, begin = set[int](), after
        for seqno, event in zip(self._seqnos, self._row.events(), strict=True):
            if seqno >= last:
                break
            if event.kind not in _DECIDING or event.collection_id is None:
                continue
            if seqno > begin:
                if plain:
                    yield PlainSpan(begin, seqno, _sorted_ids(plain))
                begin = seqno
            # After its drop a collection has no changes, and its id is never used again.
            is_plain = event.kind in _GIVING and not event.history
            (plain.add if is_plain else plain.discard)(event.collection_id)
        if plain:
            yield PlainSpan(begin, last, _sorted_ids(plain))

    def has_history(self, query: Wanted, after: int, last: int) -> bool:
        """Return True if, at some seqno above `after` and up to `last`, one of the wanted collections has a history."""
        if not (spans := self.plain_spans(after, last)):
            return True
        plain = Counter[int]()
        for span in spans:
            plain.update(dict.fromkeys(span.collections.tolist(), span.last - span.after))
        documents = [each for each in self.choice(query, last).tolist() if each < EVENTS_OF_COLLECTIONS]
        # A collection counts from its creation on: before that it had no changes whose versions could be left out.
        created = self._creations() if after < self._seqnos[-1] else {}
        lengths = {document: last - max(after, created.get(document, 0)) for document in documents}
        return not documents or any(not length or plain[each] < length for each, length in lengths.items())

    def plain_spans_of(self, query: Wanted, after: int, last: int) -> tuple[PlainSpan, ...]:
        """Return `plain_spans`, reduced to the wanted collections: a stream has no changes of other collections."""
        if not (spans := self.plain_spans(after, last)):
            return ()
        numbers = self.choice(query, last)
        if not len(numbers):
            return spans
        reduced = (PlainSpan(span.after, span.last, np.intersect1d(span.collections, numbers)) for span in spans)
        return tuple(each for each in reduced if len(each.collections))

    def span_of_same_histories(self, query: Wanted, after: int, durable_seqno: int) -> tuple[int, int]:
        """Return the first span of seqnos above `after` in which no wanted collection gets or loses its history.

        Returns:
            The seqno above which the span begins, and the seqno of the modification that ends it; ENDLESS if there is
            none. The span begins above `after`, or, if the next seqnos are durable modifications, above the last of
            these.
        """
        if not self._has_plain or after >= self._seqnos[-1]:
            return after, ENDLESS
        for seqno, event in zip(self._seqnos, self._row.events(), strict=True):
            if seqno <= after or event.kind is not EventKind.MODIFY_COLLECTION or not query.concerns(event):
                continue
            if seqno > min(after + 1, durable_seqno):
                return after, seqno
            after = seqno
        return after, ENDLESS

    def _creations(self) -> dict[int, int]:
        """Return the seqno of each collection's creation by its id."""
        kind, events = EventKind.CREATE_COLLECTION, zip(self._seqnos, self._row.events(), strict=True)
        return {event.collection_id or 0: seqno for seqno, event in events if event.kind is kind}

    def is_over(self, query: Wanted, seqno: int) -> bool:
        """Return True if, at a seqno, no wanted collection exists, and none can be created later."""
        if not self._seqnos:
            return False
        now = self._events_until(seqno)
        if not query.aware:
            # A client without collections reads the default one alone, which never comes back.
            return 0 not in now.alive
        if query.scope is not None:
            # A scope without collections is not over: the filter takes in future ones (dcp 5).
            return now.manifest.scope_by_id(query.scope) is None
        return query.collections is not None and not query.collections & now.alive.keys()

    def dropped(self) -> Dropped:
        """Return the dropped collections by id, with the seqno of each drop."""
        kind, events = EventKind.DROP_COLLECTION, zip(self._seqnos, self._row.events(), strict=True)
        drops = sorted((event.collection_id or 0, seqno) for seqno, event in events if event.kind is kind)
        return np.array(drops, np.uint64).reshape(-1, 2)

    @property
    def _all_events(self) -> FoldedEvents:
        """The result of all events."""
        if self._folded is None or self._folded[0] is not self._row:
            self._folded = self._row, self._row.folded
        return self._folded[1]

    def _events_until(self, seqno: int) -> FoldedEvents:
        """Return the result of the events up to a seqno."""
        length = self._length(seqno)
        return self._all_events if length == len(self._seqnos) else self._row.cut(length).folded

    def _length(self, seqno: int) -> int:
        """Return the number of events up to a seqno: usually all, which is a quick answer because calls are
        frequent.
        """
        seqnos = self._seqnos
        return len(seqnos) if not seqnos or seqnos[-1] <= seqno else bisect_right(seqnos, seqno)

    def _choose(self, query: Wanted, seqno: int) -> Shown:
        alive = self.at(seqno).by_id()
        if not query.aware:
            plain = [0] if 0 in alive else []
            return np.array(plain + [PREPARES + each for each in plain if query.prepares], np.uint64)
        collections, scopes = self._ever()
        documents = {number for number, (scope, _) in alive.items() if query.scope in {None, scope.id}}
        if query.collections is not None:
            documents &= query.collections
            # "A filtered stream receives the events of its scope/collections only" (dcp 2.16).
            collections, scopes = set(query.collections), set()
        elif query.scope is not None:
            collections, scopes = self._ever(query.scope)[0], {query.scope}
        # Events of dropped collections are sent too: a client that had the collection learns only by the drop that its
        # documents are gone (dcp 2.16).
        numbers = documents | {EVENTS_OF_COLLECTIONS + collection for collection in collections}
        numbers |= {PREPARES + document for document in documents if query.prepares}
        numbers |= {MODIFICATIONS + document for document in documents if query.modifications}
        return np.array(sorted(numbers | {EVENTS_OF_SCOPES + scope for scope in scopes}), np.uint64)

    def _ever(self, scope: int | None = None) -> tuple[set[int], set[int]]:
        """Return the ids of all collections and of all scopes that ever had an event; with `scope`, only in
        that scope.
        """
        events = [event for event in self._row.events() if scope is None or event.scope_id == scope]
        collections = {event.collection_id for event in events if event.collection_id is not None}
        return collections, {event.scope_id for event in events if event.collection_id is None}
