"""Whether two nodes are of one bucket, by their collections.

A vbucket brings its collections along, by their ids, and of two manifests the newer one counts for all that a node has.
So where an id has two names documents would come to stand in a collection of another name, and where the newer manifest
lacks a collection its documents would be dropped. Whoever lets vbuckets go from one node to another asks here first:
moves and transitions, a rebalance, and a node that is told to follow another.

Source: kv.md 4.
"""

from __future__ import annotations

from headwater.wire.manifest import CollectionsManifest, ManifestRefused

__all__ = ["contradiction", "is_alike", "only_in", "why_not_from"]


def contradiction(one: CollectionsManifest, other: CollectionsManifest) -> str:
    """Why two manifests can't be of one bucket's history; "" if they can. One may be older than the other."""
    mine, theirs = one.by_id(), other.by_id()
    for number in sorted(mine.keys() & theirs.keys()):
        here, there = (".".join(each.name for each in names[number]) for names in (mine, theirs))
        if here != there:
            return f"{here} of the one and {there} of the other have the same id, {number:x}"
    if one.uid == other.uid:
        return "" if is_alike(one, other) else f"both have a manifest {one.uid:x}, and it is not the same"
    older, newer = sorted((one, other), key=lambda each: each.uid)
    try:
        older.check_next(newer)
    except ManifestRefused as error:
        return str(error)
    return ""


def is_alike(one: CollectionsManifest, other: CollectionsManifest) -> bool:
    """Return True if two manifests have the same scopes and collections, whatever their uids."""
    return _meaning(one) == _meaning(other)


def _meaning(manifest: CollectionsManifest) -> object:
    """All that a manifest says but the order in which it does."""
    collections = {(scope.id, each) for scope, each in manifest.each_collection()}
    return {(scope.id, scope.name) for scope in manifest.scopes}, collections


def why_not_from(source: CollectionsManifest, target: CollectionsManifest) -> str:
    """Why a vbucket can't go from a bucket with the one manifest to a node with the other; "" if it can."""
    if not target.uid:
        return ""
    if problem := contradiction(source, target):
        return problem
    if target.uid > source.uid and (lost := only_in(source, target)):
        return f"there the manifest is newer, and {lost} would be dropped with all documents"
    return ""


def only_in(manifest: CollectionsManifest, other: CollectionsManifest) -> str:
    """The names of collections that the other manifest does not have."""
    return ", ".join(
        f"{scope.name}.{each.name}" for scope, each in manifest.each_collection() if not other.has(each.id)
    )
