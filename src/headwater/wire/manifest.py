"""The collections manifest: the scopes and collections of a bucket. Source: specification, kv.md 4.

    {"uid": "a", "scopes": [{"uid": "0", "name": "_default",
     "collections": [{"uid": "0", "name": "_default", "history": true}]}]}

Ids and uids are lower-case hex without prefix. A sender that leaves `history` out does not know the flag: then a
collection keeps its flag, and a new one gets the flag of its bucket. Each change of a bucket's collections creates a
manifest with a higher uid; the steps between two manifests are events, one seqno each, in the log of every vbucket (dcp
2.16). So the events of a log also yield the manifest (`CollectionsManifest.after`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Final, NamedTuple

from headwater.wire.json_text import read_json

__all__ = [
    "COLLECTION_ID_FIRST",
    "DEFAULT",
    "EMPTY",
    "NAME_MAX",
    "NAME_PATTERN",
    "Collection",
    "CollectionsManifest",
    "EventKind",
    "HistoryFlags",
    "ManifestEvent",
    "ManifestRefused",
    "NoSuchName",
    "Scope",
    "parse_uid",
]

DEFAULT: Final = "_default"
SYSTEM: Final = "_system"
NAME_MAX: Final = 251
ID_MAX: Final = 0xFFFF_FFFF
UID_MAX: Final = 0xFFFF_FFFF_FFFF_FFFF
COLLECTION_ID_FIRST: Final = 8
"""Ids 1 to 7 are reserved: 1 names system events."""
TTL_MAX: Final = 0x7FFF_FFFF
NAME_PATTERN: Final = re.compile(r"[A-Za-z0-9\-][A-Za-z0-9_\-%]{0,250}")


class ManifestRefused(ValueError):  # noqa: N818 - what it is to its reader
    """A manifest can't be accepted: `stale` is True if a newer one is known, `breaks` if it contradicts the present
    one.
    """

    def __init__(self, problem: str, *, stale: bool = False, breaks: bool = False) -> None:
        super().__init__(problem)
        self.stale = stale
        self.breaks = breaks


class NoSuchName(ManifestRefused):
    """There is no scope or collection with that name; clients parse this text."""


class EventKind(IntEnum):
    """The kinds of system events (dcp 2.16); 2 is retired, MODIFY_COLLECTION exists in version 2 only."""

    CREATE_COLLECTION = 0
    DROP_COLLECTION = 1
    CREATE_SCOPE = 3
    DROP_SCOPE = 4
    MODIFY_COLLECTION = 5


class ManifestEvent(NamedTuple):
    """One step from a manifest to the next.

    Attributes:
        kind: the kind of step. manifest_uid: uid of the new manifest in the last event of a change, of the old manifest
            in all others.
        scope_id, collection_id: ids of the scope and collection; `collection_id` is None in events of scopes.
        name: name of the new or modified scope or collection; empty in drops. max_ttl: seconds, None for none.
        history: False if old versions of the collection's documents are not for readers, from this event on.
    """

    kind: EventKind
    manifest_uid: int
    scope_id: int
    collection_id: int | None = None
    name: str = ""
    max_ttl: int | None = None
    history: bool = True


@dataclass(frozen=True, slots=True)
class Collection:
    """A collection; `max_ttl` is in seconds, None if it has none of its own. `history`: True if readers of every
    version get the old ones of its documents.
    """

    id: int
    name: str
    max_ttl: int | None = None
    history: bool = True

    @property
    def identity(self) -> tuple[int, str, int | None]:
        """The part of a collection that never changes."""
        return self.id, self.name, self.max_ttl


@dataclass(frozen=True, slots=True)
class HistoryFlags:
    """The history flags of collections that have none in a text: `known` by id, and `default` for all others."""

    known: Mapping[int, bool] = field(default_factory=dict)
    default: bool = True

    def of(self, collection: int) -> bool:
        """Return the history flag of the collection with this id."""
        return self.known.get(collection, self.default)


@dataclass(frozen=True, slots=True)
class Scope:
    """A scope and its collections."""

    id: int
    name: str
    collections: tuple[Collection, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectionsManifest:
    """A manifest: uid and scopes, in their original order."""

    uid: int
    scopes: tuple[Scope, ...]

    # --- looking up ---------------------------------------------------------------------------------------------------

    def scope(self, name: str) -> Scope | None:
        """Return the scope with a name, or None."""
        return next((each for each in self.scopes if each.name == name), None)

    def scope_by_id(self, number: int) -> Scope | None:
        """Return the scope with an id, or None."""
        return next((scope for scope in self.scopes if scope.id == number), None)

    def collection(self, scope: str, name: str) -> Collection | None:
        """Return the collection with these names of its scope and itself, or None."""
        parent = self.scope(scope)
        return next((each for each in parent.collections if each.name == name), None) if parent else None

    def each_collection(self) -> Iterator[tuple[Scope, Collection]]:
        """Yield every scope and collection as a pair."""
        for scope in self.scopes:
            for collection in scope.collections:
                yield scope, collection

    def has(self, number: int) -> bool:
        """Return True if there is a collection with an id."""
        for scope in self.scopes:  # asked for each stream that opens: no generators
            for collection in scope.collections:
                if collection.id == number:
                    return True
        return False

    def flags(self, *, default: bool) -> HistoryFlags:
        """Return the history flags of these collections, with `default` for all others."""
        return HistoryFlags({collection.id: collection.history for _, collection in self.each_collection()}, default)

    def by_id(self) -> dict[int, tuple[Scope, Collection]]:
        """Return the scope and the collection, by the collection's id."""
        return {collection.id: (scope, collection) for scope, collection in self.each_collection()}

    # --- text ---------------------------------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the manifest as JSON."""
        return json.dumps(self.as_json(), separators=(",", ":")).encode()

    def as_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        return {"uid": f"{self.uid:x}", "scopes": [_scope_json(scope) for scope in self.scopes]}

    @classmethod
    def decode(
        cls, data: bytes, *, is_whole: bool = True, count_max: int | None = None, flags: HistoryFlags | None = None
    ) -> CollectionsManifest:
        """Read a manifest from JSON.

        Args:
            is_whole: True for a manifest that a client sets; False for the part that a user may see.
            count_max: largest number of scopes, and of collections; None for no limit.
            flags: the history of collections that the text says nothing of; None if all have one.

        Raises:
            ManifestRefused: not a manifest, more than `count_max`, or a broken rule for single manifests.
        """
        try:
            content = read_json(data)
        except ValueError as error:
            raise ManifestRefused(f"the manifest is not JSON: {error}") from None
        if not isinstance(content, dict) or not isinstance(content.get("scopes"), list):
            raise ManifestRefused('a manifest is {"uid": "hex", "scopes": [...]}')
        if count_max is not None:
            _check_counts(content["scopes"], count_max)
        scopes = tuple(_read_scope(each, flags or HistoryFlags()) for each in content["scopes"])
        new = cls(parse_uid(content.get("uid"), "the manifest", UID_MAX), scopes)
        new.check(is_whole=is_whole)
        return new

    def check(self, *, is_whole: bool = True) -> None:
        """Check the rules for a single manifest; ManifestRefused if it breaks one."""
        _unlike((each.name for each in self.scopes), "scopes are named")
        _unlike((each.id for each in self.scopes), "scopes have id")
        _unlike((collection.id for _, collection in self.each_collection()), "collections have id")
        scope = self.scope(DEFAULT)
        if (scope is None and is_whole) or (scope is not None and scope.id):
            raise ManifestRefused("scope _default, of uid 0, is missing")
        if reserved := [each.name for each in self.scopes if 0 < each.id < COLLECTION_ID_FIRST]:
            raise ManifestRefused(f"scope {reserved[0]}: uids 1 to 7 are reserved")
        for scope, collection in self.each_collection():
            if (collection.id == 0) != (collection.name == DEFAULT):
                raise ManifestRefused(f"uid 0 belongs to collection _default, not to {scope.name}.{collection.name}")
            if 0 < collection.id < COLLECTION_ID_FIRST:
                raise ManifestRefused(f"{scope.name}.{collection.name}: uids 1 to 7 are reserved")
            if collection.id == 0 and scope.id:
                raise ManifestRefused("collection _default belongs to scope _default")

    # --- by name ------------------------------------------------------------------------------------------------------

    def with_scope(self, name: str, number: int) -> CollectionsManifest:
        """Return the next manifest, with one more scope; raise ManifestRefused if the name is invalid or in use."""
        check_name(name, "scope")
        if self.scope(name):
            raise ManifestRefused(f'Scope with name "{name}" already exists')
        return CollectionsManifest(self.uid + 1, (*self.scopes, Scope(number, name)))

    def without_scope(self, name: str) -> CollectionsManifest:
        """Return the next manifest, without a scope and its collections; raise ManifestRefused if it has no
        such scope.
        """
        if name == DEFAULT:
            raise ManifestRefused("Deleting the _default scope is not allowed")
        dropped_scope = self._scope(name)
        return CollectionsManifest(self.uid + 1, tuple(scope for scope in self.scopes if scope != dropped_scope))

    def with_collection(
        self, scope: str, name: str, max_ttl: int | None, number: int, *, history: bool = True
    ) -> CollectionsManifest:
        """Return the next manifest, with one more collection in a scope."""
        check_name(name, "collection")
        parent = self._scope(scope)
        if self.collection(scope, name):
            raise ManifestRefused(f'Collection with name "{name}" in scope "{scope}" already exists')
        new = Collection(number, name, read_max_ttl(max_ttl, name), history)
        return self._with(replace(parent, collections=(*parent.collections, new)))

    def without_collection(self, scope: str, name: str) -> CollectionsManifest:
        """Return the next manifest, without a collection."""
        parent, _ = self._collection(scope, name)
        return self._with(
            replace(
                parent, collections=tuple(collection for collection in parent.collections if collection.name != name)
            )
        )

    def with_history(self, scope: str, name: str, *, history: bool) -> CollectionsManifest:
        """Return the next manifest, with this history flag of a collection; this manifest if it has that flag
        already.
        """
        parent, collection = self._collection(scope, name)
        if collection.history == history:
            return self
        changed = replace(collection, history=history)
        return self._with(
            replace(parent, collections=tuple(changed if each is collection else each for each in parent.collections))
        )

    def _collection(self, scope: str, name: str) -> tuple[Scope, Collection]:
        parent, collection = self._scope(scope), self.collection(scope, name)
        if collection is None:
            raise NoSuchName(f'Collection with name "{name}" in scope "{scope}" is not found')
        return parent, collection

    def _scope(self, name: str) -> Scope:
        scope = self.scope(name)
        if scope is None:
            raise NoSuchName(f'Scope with name "{name}" is not found')
        return scope

    def _with(self, scope: Scope) -> CollectionsManifest:
        return CollectionsManifest(self.uid + 1, tuple(scope if each.id == scope.id else each for each in self.scopes))

    # --- from one to the next -----------------------------------------------------------------------------------------

    def check_next(self, following: CollectionsManifest) -> None:
        """Check that `following` may replace this manifest; ManifestRefused otherwise."""
        # "Uid not greater (and not identical): ERANGE" (kv.md 4).
        if following.uid < self.uid or (following.uid == self.uid and following != self):
            raise ManifestRefused(f"manifest {following.uid:x} is not newer than {self.uid:x}", stale=True)
        present, new = self.by_id(), following.by_id()
        for number in present.keys() & new.keys():
            if (present[number][0].id, present[number][1].identity) != (new[number][0].id, new[number][1].identity):
                name = f"{present[number][0].name}.{present[number][1].name}"
                raise ManifestRefused(f"collection {number:x}, {name}, may not become another", breaks=True)
        if 0 in new and 0 not in present:
            raise ManifestRefused("collection _default was dropped and never comes back", breaks=True)
        names = {scope.id: scope.name for scope in following.scopes}
        for scope in self.scopes:
            if (name := names.get(scope.id, scope.name)) != scope.name:
                raise ManifestRefused(f"scope {scope.id:x}, {scope.name}, may not become {name}", breaks=True)

    def events_to(self, following: CollectionsManifest) -> list[ManifestEvent]:
        """Return the events of the steps to another manifest, in the order of kv.md 4; only the last has the
        new uid.
        """
        present, new = self.by_id(), following.by_id()
        my_scopes, their_scopes = {scope.id for scope in self.scopes}, {scope.id for scope in following.scopes}
        # Drops come first, then scopes, then collections, then dropped scopes: each event finds what it needs (kv.md
        # 4).
        events = [
            ManifestEvent(EventKind.DROP_COLLECTION, self.uid, scope.id, collection.id)
            for scope, collection in self.each_collection()
            if collection.id not in new
        ]
        events += [
            ManifestEvent(EventKind.CREATE_SCOPE, self.uid, scope.id, name=scope.name)
            for scope in following.scopes
            if scope.id not in my_scopes
        ]
        events += [
            _event_of(EventKind.CREATE_COLLECTION, self.uid, scope, collection)
            for scope, collection in following.each_collection()
            if collection.id not in present
        ]
        events += [
            _event_of(EventKind.MODIFY_COLLECTION, self.uid, scope, collection)
            for scope, collection in following.each_collection()
            if collection.id in present and present[collection.id][1].history != collection.history
        ]
        events += [
            ManifestEvent(EventKind.DROP_SCOPE, self.uid, scope.id)
            for scope in self.scopes
            if scope.id not in their_scopes
        ]
        # "Only the last event carries the new one, so a client may persist (uid, seqno) safely" (dcp 2.16).
        return [*events[:-1], *(event._replace(manifest_uid=following.uid) for event in events[-1:])]

    def after(self, *events: ManifestEvent) -> CollectionsManifest:
        """Return the manifest after these events; an event that does not apply to it changes only the uid."""
        fold = ManifestFold(self)
        for event in events:
            fold.add(event)
        return fold.manifest


class ManifestFold:
    """Applies events to a manifest one by one; the time for each does not depend on the number of collections.

    Attributes:
        uid: uid of the manifest after the events so far.
    """

    def __init__(self, base: CollectionsManifest) -> None:
        self.uid: int = base.uid
        self._manifest: CollectionsManifest | None = base
        self._names = {scope.id: scope.name for scope in base.scopes}
        self._collections = {
            scope.id: {collection.id: collection for collection in scope.collections} for scope in base.scopes
        }

    @property
    def manifest(self) -> CollectionsManifest:
        """The manifest after all events so far; the same object until the next one."""
        if self._manifest is None:
            scopes = (Scope(id_, name, tuple(self._collections[id_].values())) for id_, name in self._names.items())
            self._manifest = CollectionsManifest(self.uid, tuple(scopes))
        return self._manifest

    def add(self, event: ManifestEvent) -> None:
        """Apply an event; one that does not apply to the manifest changes only the uid."""
        # Never lower: events of one change carry the uid of before.
        self._manifest, self.uid = None, max(self.uid, event.manifest_uid)
        number, scope = event.collection_id, event.scope_id
        match event.kind:
            case EventKind.CREATE_SCOPE:
                self._names.setdefault(scope, event.name)
                self._collections.setdefault(scope, {})
            case EventKind.DROP_SCOPE:
                self._names.pop(scope, None)
                self._collections.pop(scope, None)
            case _ if number is not None and (collections := self._collections.get(scope)) is not None:
                self._change(collections, event, number)

    @staticmethod
    def _change(collections: dict[int, Collection], event: ManifestEvent, number: int) -> None:
        """Apply an event of a collection; a modified one keeps its place among the others."""
        if event.kind is EventKind.MODIFY_COLLECTION:
            if number in collections:
                collections[number] = replace(collections[number], history=event.history)
            return
        collections.pop(number, None)
        if event.kind is not EventKind.DROP_COLLECTION:
            collections[number] = Collection(number, event.name, event.max_ttl, event.history)


EMPTY: Final = CollectionsManifest(0, (Scope(0, DEFAULT, (Collection(0, DEFAULT),)),))
"""The manifest of a bucket whose collections were never changed."""


def _event_of(kind: EventKind, uid: int, scope: Scope, collection: Collection) -> ManifestEvent:
    return ManifestEvent(kind, uid, scope.id, collection.id, collection.name, collection.max_ttl, collection.history)


def parse_uid(text: object, kind: str, uid_max: int = ID_MAX) -> int:
    """Return the number of a hexadecimal uid; ManifestRefused if the text is none, or is above `uid_max`."""
    if not isinstance(text, str) or not re.fullmatch(r"[0-9a-fA-F]{1,16}", text) or int(text, 16) > uid_max:
        raise ManifestRefused(f"{kind}: uid {text!r} is not a hex number of at most {uid_max:x}")
    return int(text, 16)


def check_name(name: object, kind: str) -> str:
    """Return the name of a new scope or collection unchanged; ManifestRefused if it is invalid."""
    if not isinstance(name, str) or len(name) > NAME_MAX or not NAME_PATTERN.fullmatch(name):
        allowed = f"1 to {NAME_MAX} of A-Z a-z 0-9 _ - %, not beginning with _ or %"
        raise ManifestRefused(f"{name!r} can't name a {kind}: {allowed}")
    return name


def _scope_json(scope: Scope) -> dict[str, Any]:
    return {
        "uid": f"{scope.id:x}",
        "name": scope.name,
        "collections": [_collection_json(collection) for collection in scope.collections],
    }


def _collection_json(collection: Collection) -> dict[str, Any]:
    ttl = {} if collection.max_ttl is None else {"maxTTL": collection.max_ttl}
    return {"uid": f"{collection.id:x}", "name": collection.name, **ttl, "history": collection.history}


def _read_scope(fields: object, flags: HistoryFlags) -> Scope:
    if not isinstance(fields, dict) or not isinstance(fields.get("collections", []), list):
        raise ManifestRefused('a scope is {"uid": "hex", "name": "...", "collections": [...]}')
    name = fields.get("name")
    name = name if name in {DEFAULT, SYSTEM} else check_name(name, "scope")
    is_system = name == SYSTEM
    collections = tuple(_read_collection(each, flags, is_system=is_system) for each in fields.get("collections", []))
    _unlike((collection.name for collection in collections), f"collections of scope {name} are named")
    return Scope(parse_uid(fields.get("uid"), f"scope {name}"), str(name), collections)


def _read_collection(item: object, flags: HistoryFlags, *, is_system: bool) -> Collection:
    if not isinstance(item, dict):
        raise ManifestRefused('a collection is {"uid": "hex", "name": "..."}')
    name = item.get("name")
    if is_system and isinstance(name, str) and name.startswith("_"):
        name = "_" + check_name(name[1:], "collection")  # servers' own
    else:
        name = DEFAULT if name == DEFAULT else check_name(name, "collection")
    number = parse_uid(item.get("uid"), f"collection {name}")
    history = item.get("history", flags.of(number))
    if not isinstance(history, bool):
        raise ManifestRefused(f"collection {name}: history {history!r} is neither true nor false")
    return Collection(number, name, read_max_ttl(item.get("maxTTL"), name), history)


def read_max_ttl(seconds: object, name: str) -> int | None:
    """Return a maximum TTL in seconds; None if absent or 0. ManifestRefused if it is no number in range."""
    if seconds is None:
        return None
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 0 <= seconds <= TTL_MAX:
        raise ManifestRefused(f"collection {name}: maxTTL {seconds!r} is not 0 to {TTL_MAX} seconds")
    return seconds or None


def _unlike(names: Iterable[str | int], kind: str) -> None:
    names_before: set[str | int] = set()
    for name in names:
        if name in names_before:
            text = f"{name:x}" if isinstance(name, int) else name
            raise ManifestRefused(f"several {kind} {text}")
        names_before.add(name)


def _check_counts(scopes: list[Any], count_max: int) -> None:
    """Raise ManifestRefused for more than `count_max` scopes or collections, before any of them is read."""
    lists = [scope.get("collections") for scope in scopes if isinstance(scope, dict)]
    collections = sum(len(each) for each in lists if isinstance(each, list))
    if max(collections, len(scopes)) > count_max:
        raise ManifestRefused(f"{collections} collections in {len(scopes)} scopes; {count_max} of each are allowed")
