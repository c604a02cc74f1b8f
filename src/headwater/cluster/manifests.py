"""The manifests of several nodes, put together. Objects only, no I/O.

One node decides about a change of collections (cluster/collections.py), so the others know as much as it does, or less.
But nodes were changed one by one, by two operators at once, or while they did not hear of each other: then an id may
have two names, or each node collections that the other never had. What has no id twice is put together here. Where an
id has two names, or one node has what another has dropped, nothing is: whose documents would go, only people can tell.
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
    """One node, its manifest, and the lowest ids of a collection and of a scope that it never gave."""

    node: Address
    manifest: CollectionsManifest
    next_collection: int
    next_scope: int

    def gave(self, collection: int) -> bool:
        """Return True if it gave this id to a collection that it has no more; it never takes it again."""
        return collection < self.next_collection and not self.manifest.has(collection)

    def gave_scope(self, scope: int) -> bool:
        """Return True if it gave this id to a scope that it has no more."""
        return scope < self.next_scope and self.manifest.scope_by_id(scope) is None


def together(
    told: Sequence[NodeManifest], dropping: Collection[int] = (), scopes: Collection[int] = ()
) -> CollectionsManifest:
    """The manifest that all of these can come to: the newest if they only know less than it does, else one that is
    newer than all, with what each has.

    Args:
        dropping, scopes: ids that are to go, whatever their names; then it is always a newer one.

    Raises:
        ClusterError: an id has two names, a name two ids, or one node has what another dropped.
    """
    newest = max(told, key=lambda each: each.manifest.uid)
    is_all = all(_leads_to(each, newest.manifest) for each in told) and not _has_unknown(told, newest.manifest.uid)
    if is_all and not dropping and not scopes:
        return newest.manifest
    for one, other in itertools.permutations(told, 2):
        if problem := _two_names(one.manifest, other.manifest, dropping, scopes) or _gone(one, other, dropping, scopes):
            raise _differs(one, other, problem)
    made = _all_of(told, newest.manifest.uid + 1, dropping, scopes)
    try:
        made.check()
    except ManifestRefused as error:
        raise _differs(told[0], told[-1], str(error)) from None
    return made


def _leads_to(each: NodeManifest, newest: CollectionsManifest) -> bool:
    """Return True if a node can go on to the newest manifest: it contradicts nothing, and brings nothing back."""
    if contradiction(each.manifest, newest):
        return False
    again = any(each.gave(found.id) for _, found in newest.each_collection())
    return not again and not any(each.gave_scope(scope.id) for scope in newest.scopes)


def _has_unknown(told: Sequence[NodeManifest], uid: int) -> bool:
    """Return True if a node has what none of those with the newest manifest was ever told of: by that it would be
    dropped."""
    newest = [each for each in told if each.manifest.uid == uid]
    collection, scope = max(each.next_collection for each in newest), max(each.next_scope for each in newest)
    return any(
        max(each.manifest.by_id(), default=0) >= collection or max(found.id for found in each.manifest.scopes) >= scope
        for each in told
    )


def _two_names(
    one: CollectionsManifest, other: CollectionsManifest, dropping: Collection[int], scopes: Collection[int]
) -> str:
    mine, theirs = one.by_id(), other.by_id()
    for number in sorted(mine.keys() & theirs.keys() - set(dropping)):
        (here, ours), (there, found) = mine[number], theirs[number]
        if ours != found or here.id != there.id:
            return f"{here.name}.{ours.name} and {there.name}.{found.name} have the same id, {number:x}"
    for scope in one.scopes:
        there_named = other.scope_by_id(scope.id)
        if scope.id not in scopes and there_named is not None and there_named.name != scope.name:
            return f"the scopes {scope.name} and {there_named.name} have the same id, {scope.id:x}"
    return ""


def _gone(one: NodeManifest, other: NodeManifest, dropping: Collection[int], scopes: Collection[int]) -> str:
    for scope, found in one.manifest.each_collection():
        if found.id not in dropping and other.gave(found.id):
            return (
                f"{other.node} has dropped {scope.name}.{found.name}, of id {found.id:x}, or had another under that id"
            )
    for scope in one.manifest.scopes:
        if scope.id not in scopes and other.gave_scope(scope.id):
            return f"{other.node} has dropped the scope {scope.name}, of id {scope.id:x}, or had another under that id"
    return ""


def _all_of(
    told: Sequence[NodeManifest], uid: int, dropping: Collection[int], scopes: Collection[int]
) -> CollectionsManifest:
    names, collections = dict[int, str](), dict[int, dict[int, OneCollection]]()
    for each in told:
        for scope in each.manifest.scopes:
            if scope.id not in scopes:
                names[scope.id] = scope.name
        for scope, found in each.manifest.each_collection():
            if found.id not in dropping:
                collections.setdefault(scope.id, {})[found.id] = found
    return CollectionsManifest(
        uid, tuple(Scope(number, name, tuple(collections.get(number, {}).values())) for number, name in names.items())
    )


def _differs(one: NodeManifest, other: NodeManifest, problem: str) -> ClusterError:
    return ClusterError(
        f"collections of {one.node} and {other.node} differ: {problem}",
        "nothing was changed. Save the documents of that id (headwater export), drop what has it on any node (headwater"
        " collection drop NAME --force), make what is needed anew, and load each document where it belongs",
    )
