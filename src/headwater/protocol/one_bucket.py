"""Checks that two nodes belong to one bucket, by their collections.

A vbucket brings its collections along by their ids, and of two manifests the newer one counts for everything on a node.
So if an id has two names, documents would move to a collection of another name; if the newer manifest lacks a
collection, its documents would be dropped. Every operation that moves vbuckets between nodes checks this first: moves
and transitions, a rebalance, and a node that starts to follow another.

Source: kv.md 4.
"""

from __future__ import annotations

from headwater.wire.manifest import CollectionsManifest, ManifestRefused

__all__ = ["contradiction", "is_alike", "only_in", "why_not_from"]


def contradiction(first: CollectionsManifest, second: CollectionsManifest) -> str:
    """Return the reason why two manifests can't belong to one bucket's history; "" if they can.

    A manifest may be an older version of the other.
    """
    first_ids, second_ids = first.by_id(), second.by_id()
    for number in sorted(first_ids.keys() & second_ids.keys()):
        first_name, second_name = (".".join(each.name for each in names[number]) for names in (first_ids, second_ids))
        if first_name != second_name:
            return f"{first_name} of the one and {second_name} of the other have the same id, {number:x}"
    if first.uid == second.uid:
        # Without the flags of histories: a server that knows none, or leaves them out of its manifest, names the same
        # collections.
        is_same = _collections(first) == _collections(second)
        return "" if is_same else f"both have a manifest {first.uid:x}, and it is not the same"
    # Manifests follow each other by uid, and one may simply not have reached the other node yet.
    older, newer = sorted((first, second), key=lambda each: each.uid)
    try:
        older.check_next(newer)
    except ManifestRefused as error:
        return str(error)
    return ""


def is_alike(first: CollectionsManifest, second: CollectionsManifest) -> bool:
    """Return True if two manifests have the same scopes and collections with the same history flags, whatever their
    uids.
    """
    return _collections(first) == _collections(second) and _flags(first) == _flags(second)


def _collections(manifest: CollectionsManifest) -> object:
    """Return the scopes and collections of a manifest in a form without order, for comparison."""
    collections = {(scope.id, collection.identity) for scope, collection in manifest.each_collection()}
    return {(scope.id, scope.name) for scope in manifest.scopes}, collections


def _flags(manifest: CollectionsManifest) -> dict[int, bool]:
    """Return the history flag of each collection by its id."""
    return {collection.id: collection.history for _, collection in manifest.each_collection()}


def why_not_from(source: CollectionsManifest, target: CollectionsManifest) -> str:
    """Return the reason why a vbucket can't move from a bucket with manifest `source` to one with `target`; "" if it
    can.
    """
    if not target.uid:
        return ""
    if problem := contradiction(source, target):
        return problem
    if target.uid > source.uid and (missing_names := only_in(source, target)):
        return f"there the manifest is newer, and {missing_names} would be dropped with all documents"
    return ""


def only_in(manifest: CollectionsManifest, other: CollectionsManifest) -> str:
    """Return the names of the collections of `manifest` that `other` lacks, separated by commas; "" for none."""
    return ", ".join(
        f"{scope.name}.{collection.name}"
        for scope, collection in manifest.each_collection()
        if not other.has(collection.id)
    )
