"""The collections of a drain: names to ids when it begins, ids to names while it runs.

Streams are requested by ids (dcp 5), and keys come with ids. `resolve` finds them in the nodes' manifest.
`CollectionNames` is the other direction: it begins with that manifest and learns from the streams' system events, each
of which comes before the first document of its collection. No id is given twice, so names are only added, and one
register serves all vbuckets on all nodes.

    None                                        the default collection, keys without ids: what clients always got
    collections="all"                           the whole bucket
    collections=["shop.orders", "shop.carts"]   these
    scope="shop"                                all of the scope, future ones too
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

from headwater.client.cluster import Cluster
from headwater.client.routing import Address, ClusterMap
from headwater.errors import (
    BucketNotFound,
    CollectionMadeAnew,
    NotMyVbucket,
    NotSupported,
    OptionError,
    RemoteProtocolError,
    StatusError,
    TransportError,
    UnknownCollection,
    error_for,
)
from headwater.protocol.dcp.coverage import Coverage
from headwater.protocol.dcp.position import Position
from headwater.protocol.handshake import refused
from headwater.transport.backoff import for_requests
from headwater.transport.waiting import Ready, Steps
from headwater.wire import leb128
from headwater.wire.admin import GetManifest
from headwater.wire.header import Frame
from headwater.wire.manifest import DEFAULT, EMPTY, UID_MAX, CollectionsManifest, EventKind, ManifestRefused
from headwater.wire.status import Status

ALL: Final = "all"
Collections: TypeAlias = Iterable[str] | Literal["all"] | Coverage | None
"""The choice of collections: names "scope.collection", "all" for the whole bucket, or a resolved choice."""

_UNKNOWN = frozenset({Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED})


class CollectionName(NamedTuple):
    """A collection by ids and by names.

    Attributes:
        scope_id, scope, collection: None where only the id is known: the collection was created before the first change
            that was read, and dropped before its name was looked up.
    """

    collection_id: int
    scope_id: int | None
    scope: str | None
    collection: str | None

    @property
    def path(self) -> str:
        """The name as an argument of `collections`; its id if it has no name."""
        return f"0x{self.collection_id:x}" if self.collection is None else f"{self.scope}.{self.collection}"


DEFAULT_COLLECTION: Final = CollectionName(0, 0, DEFAULT, DEFAULT)


class CollectionNames:
    """The known names of collections and scopes, by id."""

    def __init__(self, manifest: CollectionsManifest = EMPTY) -> None:
        self._collections = {0: DEFAULT_COLLECTION}
        self._scopes: dict[int, str] = {0: DEFAULT}
        self.learn(manifest)

    def learn(self, manifest: CollectionsManifest) -> None:
        """Add the names of a manifest."""
        for scope in manifest.scopes:
            self._scopes[scope.id] = scope.name
            for collection in scope.collections:
                self._collections[collection.id] = CollectionName(collection.id, scope.id, scope.name, collection.name)

    def see(self, kind: EventKind, scope_id: int, collection_id: int | None, name: str) -> None:
        """Add the name of a system event."""
        if kind is EventKind.CREATE_SCOPE:
            self._scopes[scope_id] = name
        elif kind is EventKind.CREATE_COLLECTION and collection_id is not None:
            scope = self._scopes.get(scope_id)
            self._collections[collection_id] = CollectionName(collection_id, scope_id, scope, name)

    def of(self, collection_id: int) -> CollectionName:
        """Return the name of a collection; for an unknown collection a CollectionName that has only the id."""
        return self._collections.get(collection_id) or CollectionName(collection_id, None, None, None)

    def scope(self, scope_id: int) -> str | None:
        """Return the name of a scope; None if it is unknown."""
        return self._scopes.get(scope_id)


@dataclass(slots=True)
class StreamedCollections:
    """The share of a bucket's collections that a drain reads.

    Args:
        choice: the chosen collections, as positions have them. left: the chosen collections that still exist, as stream
            requests name them.

    Attributes:
        manifest_uid: uid of the newest manifest that was used.
        dropped: collections of `choice` that are gone; the vbuckets' streams report them, or else the drain does.
        is_over: True if none of the chosen collections is left.
    """

    choice: Coverage
    names: CollectionNames
    left: Coverage = field(init=False)
    manifest_uid: int = field(init=False)
    dropped: tuple[int, ...] = ()
    is_over: bool = False

    def __post_init__(self) -> None:
        self.left, self.manifest_uid = self.choice, self.choice.manifest_uid

    def value(self, purge_seqno: int = 0) -> bytes:
        """Return the value of a stream request.

        Args:
            purge_seqno: the purge seqno of the vbucket's last marker, for nodes that accept it in a request; 0 for
                none.
        """
        return self.left.encode(purge_seqno)

    def missing_in(self, manifest: CollectionsManifest) -> tuple[int, ...]:
        """Return the chosen collections that a newer manifest does not have."""
        present = self.choice.within(manifest).collections or ()
        return tuple(number for number in self.choice.collections or () if number not in present)

    def described_without(self, manifest: CollectionsManifest) -> str:
        """Return the part of the choice that a newer manifest does not have, as the subject of a sentence."""
        if self.choice.scope is not None:
            return f"scope {self.names.scope(self.choice.scope) or hex(self.choice.scope)} is"
        paths = [self.names.of(number).path for number in self.missing_in(manifest)]
        return f"collection{'s' * (len(paths) > 1)} {', '.join(paths)} {'are' if len(paths) > 1 else 'is'}"

    def apply_manifest(self, manifest: CollectionsManifest) -> bool:
        """Apply a newer manifest; return True if fewer of the chosen collections exist than before."""
        before = self.left
        self.names.learn(manifest)
        self.manifest_uid = max(self.manifest_uid, manifest.uid)
        self.is_over = self.choice.has_gone(manifest)
        self.left = before if self.is_over else before.within(manifest)
        present = () if self.is_over else self.left.collections or ()
        self.dropped = tuple(number for number in self.choice.collections or () if number not in present)
        return self.is_over or self.left != before


# --------------------------------------------------------------------------- names to ids


def resolve(manifest: CollectionsManifest, collections: Collections, scope: str | None) -> Coverage:
    """Return the chosen collections as ids.

    Raises:
        OptionError: an invalid name. UnknownCollection, UnknownScope: a chosen collection or scope does not exist.
    """
    if scope is not None:
        return Coverage(manifest.uid, scope=scope_id(manifest, scope))
    if isinstance(collections, Coverage):
        return collections
    names = read_names(collections)
    if names is None:
        return Coverage(manifest.uid)
    ids = {collection_id(manifest, *parse_path(name)) for name in names}
    return Coverage(manifest.uid, collections=tuple(sorted(ids)))


def resolve_again(
    manifest: CollectionsManifest,
    collections: Iterable[str] | Literal["all"] | None,
    scope: str | None,
    saved: Coverage,
) -> Coverage:
    """Return the choice of a reader that continues. A name whose collection was dropped since stands for an id in
    `saved`, as long as `saved` has enough such ids.

    Returns: `saved` itself if a collection was dropped, so that the next start may use the same names.

    Raises:
        OptionError, UnknownCollection, UnknownScope: as `resolve`.
    """
    # An older manifest says nothing of what was dropped since.
    if manifest.uid >= saved.manifest_uid:
        if scope is not None and saved.scope is not None and manifest.scope(scope) is None and saved.has_gone(manifest):
            return saved
        names = read_names(collections) if scope is None else None
        if names is not None and saved.collections is not None:
            named_collections = [manifest.collection(*path) for path in {parse_path(name) for name in names}]
            ids = {collection.id for collection in named_collections if collection is not None}
            remaining = set(saved.within(manifest).collections or ())
            if ids == remaining and 0 < named_collections.count(None) <= len(saved.collections) - len(remaining):
                return saved
    return resolve(manifest, collections, scope)


def read_names(collections: Iterable[str] | None) -> list[str] | None:
    """Return the names, given one by one or as one text with commas; None for "all".

    Raises:
        OptionError: there is no name.
    """
    if collections is None or isinstance(collections, str):
        names = [name.strip() for name in (collections or "").split(",")]
    else:
        names = list(collections)
    if names == [ALL]:
        return None
    if not names or not all(isinstance(name, str) and name for name in names):
        raise OptionError("collections", collections, '"all", or names like "scope.collection"')
    return names


def parse_path(name: str) -> tuple[str, str]:
    """Split "scope.collection"; empty parts are the default ones.

    Raises:
        OptionError: it has no dot, or several.
    """
    parts = name.split(".") if isinstance(name, str) else ()
    if len(parts) != 2:
        raise OptionError("collection", name, 'a name like "scope.collection", with one dot')
    return parts[0] or DEFAULT, parts[1] or DEFAULT


def scope_id(manifest: CollectionsManifest, name: str) -> int:
    """Return the id of a scope; UnknownScope lists the existing ones."""
    scope = manifest.scope(name)
    if scope is None:
        choices = ", ".join(scope_.name for scope_ in manifest.scopes)
        raise error_for(Status.UNKNOWN_SCOPE, f"there is no scope {name} (manifest {manifest.uid:x} has {choices})")
    return scope.id


def collection_id(manifest: CollectionsManifest, scope: str, name: str) -> int:
    """Return the id of a collection; UnknownCollection lists those of its scope."""
    number = scope_id(manifest, scope)
    collection = manifest.collection(scope, name)
    if collection is None:
        of_scope = manifest.scope_by_id(number)
        choices = ", ".join(collection_.name for collection_ in of_scope.collections) if of_scope else ""
        text = f"there is no collection {scope}.{name} (by manifest {manifest.uid:x} the scope has {choices or 'none'})"
        raise error_for(Status.UNKNOWN_COLLECTION, text)
    return collection.id


# --------------------------------------------------------------------------- the nodes' manifest


def manifest_of(cluster: Cluster, at_least: int = 0) -> Steps[CollectionsManifest]:
    """Ask the nodes for the manifest: the first that answers, and the others if its uid is below `at_least`.

    Returns: the newest manifest; EMPTY from servers that know nothing of collections.

    Raises:
        TransportError, StatusError: no node answered. RemoteProtocolError: an answer that is no manifest.
    """
    newest: CollectionsManifest | None = None
    last_error: TransportError | StatusError | None = None
    for address in cluster.known_nodes:
        try:
            answer = yield from _ask_manifest(cluster, address)
        except (TransportError, StatusError) as error:
            if not error.retriable and not isinstance(error, BucketNotFound):  # one that was emptied is not asked alone
                raise
            last_error = error
            continue
        manifest = _read_manifest(address, answer)
        if newest is None or manifest.uid > newest.uid:
            newest = manifest
        if newest.uid >= at_least:
            return newest
    if newest is None:
        raise last_error or NotSupported("the manifest of collections: no node is known")
    return newest


def newest_manifest(cluster: Cluster, vbuckets: Iterable[int] | None = None) -> Steps[CollectionsManifest]:
    """Return the newest manifest of all owners of vbuckets, each of which must answer within one operation's time.

    A node that has sent a change knows its collection, or that it was dropped since; another node may not know of it
    yet. So a collection that is missing in this manifest was dropped, while one that `manifest_of` does not show may be
    new.

    Args:
        cluster: the bucket.
        vbuckets: the vbuckets whose owners are asked; None for all.

    Returns: the newest manifest; EMPTY from servers that know nothing of collections.

    Raises:
        TransportError, StatusError: one of them did not answer, or no vbucket has a node. RemoteProtocolError: an
            answer that is no manifest.
    """
    numbers = None if vbuckets is None else tuple(vbuckets)
    backoff, until = for_requests(), cluster.deadline()
    while True:
        try:
            return (yield from _manifest_of_owners(cluster, numbers, until))
        except (TransportError, StatusError) as error:
            moment = cluster.clock() + backoff.next_seconds()
            if moment >= until or not (error.retriable or (yield from cluster.was_emptied(error, until))):
                raise
        yield Ready((), moment)


def _manifest_of_owners(cluster: Cluster, vbuckets: Iterable[int] | None, until: float) -> Steps[CollectionsManifest]:
    yield from cluster.look_around(until=until)
    while True:
        cluster_map, manifests = cluster.map, []
        owners = [*map(cluster_map.owner, range(cluster_map.vbuckets) if vbuckets is None else vbuckets)]
        for address in dict.fromkeys(owner for owner in owners if owner is not None):
            manifests.append(_read_manifest(address, (yield from _ask_manifest(cluster, address))))
        if cluster.map is cluster_map:  # else one of them knew of other owners
            if not manifests:
                raise NotMyVbucket(f"the manifest of collections: no vbucket has a node in the map {cluster_map.label}")
            return max(manifests, key=lambda manifest: manifest.uid)


def _ask_manifest(cluster: Cluster, address: Address) -> Steps[Frame]:
    link = yield from cluster.link(address)
    return (yield from link.call(GetManifest().frame(), cluster.deadline()))


def _read_manifest(address: Address, answer: Frame) -> CollectionsManifest:
    if answer.status in _UNKNOWN:
        return EMPTY
    if answer.status:
        raise refused(f"the manifest of {address}", answer)
    try:
        return CollectionsManifest.decode(answer.value, is_whole=False)
    except ManifestRefused as error:
        raise RemoteProtocolError(f"COLLECTIONS_GET_MANIFEST (opcode 0xba): {error}") from None


class CollectionId:
    """The id of a collection, for requests by key.

    The id is looked up on first use, and again after a node did not know it: the collection may have been dropped and
    made anew.

    Args:
        cluster: with connections that ask for Collections.
        path: "scope.collection".

    Raises:
        OptionError: `path` is no such name.
    """

    scope: str
    name: str

    def __init__(self, cluster: Cluster, path: str) -> None:
        self.scope, self.name = parse_path(path)
        self._cluster = cluster
        self._id: int | None = None
        self._map: ClusterMap | None = None  # of the bucket in which it has that id

    @property
    def path(self) -> str:
        """The collection's name, "scope.collection"."""
        return f"{self.scope}.{self.name}"

    @property
    def number(self) -> int:
        """The id as of the last lookup; 0 before the first."""
        return self._id or 0

    def is_of(self, cluster_map: ClusterMap) -> bool:
        """Return True if the id is known and belongs to the bucket of this map."""
        return self._id is not None and self._map is not None and self._map.is_same_bucket(cluster_map)

    def prefix(self) -> Steps[bytes]:
        """Return the bytes in front of each key.

        Raises:
            UnknownCollection, UnknownScope: it does not exist. TransportError: no node answered.
        """
        while not self.is_of(self._cluster.map):
            yield from self.look_up()
        return leb128.encode(self.number)

    def prefix_after(self, refusal: UnknownCollection, sent_prefix: bytes) -> Steps[bytes]:
        """Look up the id after a node refused a request with `sent_prefix`; return the prefix to send instead.

        What counts is the id that was sent: another request may have looked up the new one by now.

        Raises:
            UnknownCollection: the refusal, because the id is still the one that was sent. Errors as `prefix`.
        """
        yield from self.look_up()
        if (prefix := (yield from self.prefix())) == sent_prefix:
            raise refusal
        return prefix

    def look_up(self) -> Steps[None]:
        """Look up the id. Errors as `prefix`."""
        # A node that says an id is not there may know more than the others, or less: then all are asked.
        cluster_map = self._cluster.map
        manifest = yield from manifest_of(self._cluster, UID_MAX if self.is_of(cluster_map) else 0)
        self._map = (
            cluster_map if cluster_map.is_same_bucket(self._cluster.map) else None
        )  # of which of the two, nobody knows
        self._id = None
        self._id = collection_id(manifest, self.scope, self.name)


def check_ids(ids: dict[str, int], new_ids: Mapping[str, int]) -> None:
    """Add the ids of collections, by name, to `ids`.

    Raises:
        CollectionMadeAnew: a name has another id there.
    """
    for path, number in new_ids.items():
        if (before := ids.setdefault(path, number)) != number:
            raise CollectionMadeAnew(path, before, number)


# --------------------------------------------------------------------------- going on


def check_start(start: Mapping[int, Position], choice: Coverage | None, manifest: CollectionsManifest) -> None:
    """Check that positions were saved with the same choice of collections. With another choice, changes that were left
    out before these positions would never come.

    Raises:
        OptionError: the choices differ; the message has the saved one.
    """
    for position in start.values():
        # A position at 0 has left nothing out yet, so any choice may follow it.
        if position.seqno and not _goes_on(position.coverage, choice, manifest):
            raise OptionError(
                "collections", _choice_text(choice, manifest), _advice_for(position.coverage, choice, manifest)
            )


def _goes_on(saved: Coverage | None, choice: Coverage | None, manifest: CollectionsManifest) -> bool:
    """Return True if the choice of saved positions and that of the caller are the same, apart from dropped
    collections.
    """
    if saved is None or choice is None:
        return saved is choice
    return saved.same_choice(choice) or saved.within(manifest).same_choice(choice)


def _choice_text(choice: Coverage | None, manifest: CollectionsManifest) -> str:
    return "the default collection only" if choice is None else choice.described(manifest)


def _advice_for(saved: Coverage | None, choice: Coverage | None, manifest: CollectionsManifest) -> str:
    """Return advice for an error: the choice that positions were saved with, and the next step if it is no longer
    possible.
    """
    advice = f"what the positions were saved with: {_choice_text(saved, manifest)}"
    if saved is not None and manifest.uid < saved.manifest_uid:
        advice += f" (by manifest {saved.manifest_uid:x}, newer than {manifest.uid:x}: is it the same bucket?)"
    elif saved is not None and choice is not None and saved.within(manifest) != saved:
        advice += "; one that was made again under its old name is another collection, read it from its beginning"
    return f"{advice}. Or begin without positions"


def covering(start: Mapping[int, Position], coverage: Coverage | None) -> dict[int, Position]:
    """Return the positions, each with this choice of collections."""
    if coverage is None:
        return dict(start)
    return {vbucket: replace(position, coverage=coverage) for vbucket, position in start.items()}
