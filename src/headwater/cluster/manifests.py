"""The manifests of several nodes, merged. Objects only, no I/O.

One node decides about a change of collections (cluster/collections.py), so the others know as much as it does, or less.
But nodes may have been changed one by one, by two operators at once, or while they did not hear of each other: then an
id may have two names, or each node collections that the other never had. Manifests without a doubly used id are merged
here. If an id has two names, or one node has a collection that another has dropped, they are not merged: only people
can decide which documents to give up.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwater.errors import ClusterError
from headwater.protocol.one_bucket import contradiction
from headwater.wire.manifest import Collection as OneCollection
from headwater.wire.manifest import CollectionsManifest, ManifestRefused, Scope

if TYPE_CHECKING:
    from headwater.client.routing import Address

__all__ = ["NodeManifest", "together"]


@dataclass(frozen=True, slots=True)
class NodeManifest:
    """One node, its manifest, and the lowest ids of a collection and of a scope that it has never used."""

    node: Address
    manifest: CollectionsManifest
    next_collection: int
    next_scope: int

    def has_dropped(self, collection: int) -> bool:
        """Return True if the node used this id for a collection that it dropped; it never uses the id again."""
        return collection < self.next_collection and not self.manifest.has(collection)

    def has_dropped_scope(self, scope: int) -> bool:
        """Return True if the node used this id for a scope that it dropped."""
        return scope < self.next_scope and self.manifest.scope_by_id(scope) is None


def together(
    manifests: Sequence[NodeManifest], dropping: Collection[int] = (), scopes: Collection[int] = ()
) -> CollectionsManifest:
    """Return the manifest that all of these nodes can accept: the newest if the others only know less, else one that is
    newer than all, with the collections of each.

    Args:
        dropping, scopes: ids to drop, under any name; then the result is always a newer manifest.

    Raises:
        ClusterError: an id has two names, a name two ids, or one node has a collection that another dropped.
    """
    newest = max(manifests, key=lambda each: each.manifest.uid)
    is_all = all(_leads_to(manifest, newest.manifest) for manifest in manifests) and not _has_unknown(
        manifests, newest.manifest.uid
    )
    if is_all and not dropping and not scopes:
        return newest.manifest
    # In both orders: "one dropped what the other has" is not the same the other way round.
    for first, second in itertools.permutations(manifests, 2):
        if problem := _two_names(first.manifest, second.manifest, dropping, scopes) or _missing_in_second(
            first, second, dropping, scopes
        ):
            raise _differs(first, second, problem)
    union = _all_of(manifests, newest.manifest.uid + 1, dropping, scopes)
    try:
        union.check()
    except ManifestRefused as error:
        raise _differs(manifests[0], manifests[-1], str(error)) from None
    return union


def _leads_to(each: NodeManifest, newest: CollectionsManifest) -> bool:
    """Return True if a node can accept the newest manifest: it contradicts nothing, and brings back no dropped id."""
    if contradiction(each.manifest, newest):
        return False
    reuses_id = any(each.has_dropped(collection.id) for _, collection in newest.each_collection())
    return not reuses_id and not any(each.has_dropped_scope(scope.id) for scope in newest.scopes)


def _has_unknown(manifests: Sequence[NodeManifest], uid: int) -> bool:
    """Return True if a node has a collection or scope that the nodes with the newest manifest never knew, and would
    drop.
    """
    newest = [manifest for manifest in manifests if manifest.manifest.uid == uid]
    collection, scope = (
        max(manifest_.next_collection for manifest_ in newest),
        max(manifest_.next_scope for manifest_ in newest),
    )
    return any(
        max(manifest.manifest.by_id(), default=0) >= collection
        or max(scope_.id for scope_ in manifest.manifest.scopes) >= scope
        for manifest in manifests
    )


def _two_names(
    first: CollectionsManifest, second: CollectionsManifest, dropping: Collection[int], scopes: Collection[int]
) -> str:
    first_ids, second_ids = first.by_id(), second.by_id()
    for number in sorted(first_ids.keys() & second_ids.keys() - set(dropping)):
        (first_scope, first_collection), (second_scope, second_collection) = first_ids[number], second_ids[number]
        if first_collection.identity != second_collection.identity or first_scope.id != second_scope.id:
            names = f"{first_scope.name}.{first_collection.name} and {second_scope.name}.{second_collection.name}"
            return f"{names} have the same id, {number:x}"
    for scope in first.scopes:
        there_named = second.scope_by_id(scope.id)
        if scope.id not in scopes and there_named is not None and there_named.name != scope.name:
            return f"the scopes {scope.name} and {there_named.name} have the same id, {scope.id:x}"
    return ""


def _missing_in_second(
    first: NodeManifest, second: NodeManifest, dropping: Collection[int], scopes: Collection[int]
) -> str:
    for scope, collection in first.manifest.each_collection():
        if collection.id not in dropping and second.has_dropped(collection.id):
            name = f"{scope.name}.{collection.name}, of id {collection.id:x}"
            return f"{second.node} has dropped {name}, or had another under that id"
    for scope in first.manifest.scopes:
        if scope.id not in scopes and second.has_dropped_scope(scope.id):
            return f"{second.node} has dropped the scope {scope.name}, of id {scope.id:x}, or had another under that id"
    return ""


def _all_of(
    manifests: Sequence[NodeManifest], uid: int, dropping: Collection[int], scopes: Collection[int]
) -> CollectionsManifest:
    names, collections = dict[int, str](), dict[int, dict[int, OneCollection]]()
    for each in sorted(manifests, key=lambda each: each.manifest.uid):  # of a collection the newest counts
        for scope in each.manifest.scopes:
            if scope.id not in scopes:
                names[scope.id] = scope.name
        for scope, collection in each.manifest.each_collection():
            if collection.id not in dropping:
                collections.setdefault(scope.id, {})[collection.id] = collection
    return CollectionsManifest(
        uid, tuple(Scope(number, name, tuple(collections.get(number, {}).values())) for number, name in names.items())
    )


def _differs(first: NodeManifest, second: NodeManifest, problem: str) -> ClusterError:
    return ClusterError(
        f"collections of {first.node} and {second.node} differ: {problem}",
        "nothing was changed. Save the documents of that id (headwater export), drop what has it on any node (headwater"
        " collection drop NAME --force), make what is needed anew, and load each document where it belongs",
    )
