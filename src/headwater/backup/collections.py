"""The collections of a backup: where its rows belong, and what a bucket lacks to take them.

A row belongs to a collection by its id. An id is never given twice, so whether a row counts at the end of a backup is
whether the manifest of collections that was kept with that backup has its id: documents of a collection that was
dropped stay away, and a collection that was made again under the same name is another one.

A chain holds one choice from its beginning: all collections, or the default one alone (no manifest is kept then, and
the files are those of ever). What was left out up to a position would never come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from headwater.client.unread import OWN_OF_SERVERS, knows_collections
from headwater.cluster.collections import CollectionPath, Lacking
from headwater.errors import BackupError, OptionError
from headwater.wire.manifest import DEFAULT, EMPTY, UID_MAX, CollectionsManifest

if TYPE_CHECKING:
    from headwater.client import Client

DEFAULT_PATH = CollectionPath(DEFAULT, DEFAULT)
COLUMNS = ("collection_id", "scope", "collection")
"""More columns of the files of a backup with all collections. The names are those that were known; the id counts."""

Live = Mapping[int, CollectionPath]
"""The collections that rows are written to, by id."""
Manifests = Sequence[CollectionsManifest | None]
"""Those of the backups at whose ends the vbuckets of a point are, older ones first."""


def paths_of(manifest: CollectionsManifest | None) -> list[str]:
    """Return the names of all collections; None is the manifest of a backup of the default one alone."""
    return sorted(f"{scope.name}.{each.name}" for scope, each in (manifest or EMPTY).each_collection())


def holds_more(manifest: CollectionsManifest) -> bool:
    """Whether a bucket has more than its default collection and those that servers keep for themselves."""
    return any(each.id and scope.name != OWN_OF_SERVERS for scope, each in manifest.each_collection())


def chosen_of(manifests: Manifests, names: Iterable[str] | None) -> frozenset[str] | None:
    """Check the collections that somebody wants of backups; None is all of them.

    Raises:
        OptionError: one is not in the backups.
    """
    if names is None:
        return None
    known = {path for manifest in manifests for path in paths_of(manifest)}
    chosen = frozenset(str(CollectionPath.parse(name.strip())) for name in names)
    for name in sorted(chosen - known):
        raise OptionError("collections", name, f"a collection of these backups: {', '.join(sorted(known))}")
    return chosen


def live(manifest: CollectionsManifest | None, chosen: frozenset[str] | None) -> dict[int, CollectionPath]:
    """Return where rows go, by the id of their collection. What servers keep for themselves they make themselves."""
    return {
        each.id: CollectionPath(scope.name, each.name)
        for scope, each in (manifest or EMPTY).each_collection()
        if (scope.name != OWN_OF_SERVERS if chosen is None else f"{scope.name}.{each.name}" in chosen)
    }


def routed(batch: pa.RecordBatch, upto: NDArray[np.int64], routes: Mapping[int, Live]) -> pa.RecordBatch:
    """Return the rows whose collections are still there, with the names to write them by.

    Args:
        batch: rows of a backup with all collections.
        upto: for each vbucket how many backups of the chain count.
        routes: for each such number the collections that were there then.
    """
    counts = upto[batch.column("vbucket").to_numpy()]
    pairs = counts << 32 | batch.column("collection_id").to_numpy()
    distinct, where = np.unique(pairs, return_inverse=True)
    paths = [routes[pair >> 32].get(pair & 0xFFFF_FFFF) for pair in distinct.tolist()]
    # The default collection is written with bare keys: any bucket takes those.
    named = [None if path == DEFAULT_PATH else path for path in paths]
    batch = _with(batch, "scope", [path.scope if path else None for path in named], where)
    batch = _with(batch, "collection", [path.collection if path else None for path in named], where)
    kept = np.array([path is not None for path in paths], np.bool_)[where]
    return batch if kept.all() else batch.filter(pa.array(kept))


def _with(batch: pa.RecordBatch, name: str, words: list[str | None], where: NDArray[Any]) -> pa.RecordBatch:
    column: Any = pa.array(words, pa.string()).take(pa.array(where))
    return batch.set_column(batch.schema.get_field_index(name), name, column)


# --------------------------------------------------------------------------- what a bucket lacks


def lacking(client: Client, manifests: Manifests, chosen: frozenset[str] | None) -> list[Lacking]:
    """Return the scopes and collections of backups that a bucket does not have.

    Raises:
        BackupError: its nodes do not know collections.
        TransportError, StatusError: no node told.
    """
    wanted = _wanted(manifests, chosen)
    if not wanted:
        return []
    there = client.manifest(UID_MAX)
    if not there.uid and not knows_collections(client):
        names = ", ".join(str(each.path) for each in wanted)
        told = f"it knows no collections, and the backup has {names}; --collections {DEFAULT_PATH} restores the rest"
        raise BackupError("the bucket to restore into", told)
    return [each for each in wanted if not each.path.is_in(there)]


def _wanted(manifests: Manifests, chosen: frozenset[str] | None) -> list[Lacking]:
    found: dict[CollectionPath, Lacking] = {}
    for manifest in manifests:
        for number, path in live(manifest, chosen).items():
            if path != DEFAULT_PATH and manifest is not None:
                found[path] = Lacking(path, manifest.by_id()[number][1].max_ttl)
        for scope in manifest.scopes if manifest is not None and chosen is None else ():
            if not scope.collections and scope.name not in (DEFAULT, OWN_OF_SERVERS):
                path = CollectionPath(scope.name)
                found[path] = Lacking(path)
    return list(found.values())
