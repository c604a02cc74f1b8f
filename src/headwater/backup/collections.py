"""The collections of a backup: those that its rows belong to, and those that a bucket lacks before a restore.

A row belongs to a collection by its id. An id is never used twice, so a row counts at the end of a backup if the
manifest of collections that was kept with that backup has its id: documents of a dropped collection stay away, and a
collection that was created again under the same name is another one.

A chain makes one choice at its beginning: all collections, or the default one alone (it then keeps no manifest, and its
files are as they always were). Rows that were left out up to a position would never come later.
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
    from headwater.backup.manifest import BackupManifest
    from headwater.client import Client

DEFAULT_PATH = CollectionPath(DEFAULT, DEFAULT)
COLUMNS = ("collection_id", "scope", "collection")
"""Further columns of a backup with all collections. Names are those at the time of the row; the id counts."""

Live = Mapping[int, CollectionPath]
"""The collections that rows are written to, by id."""
Manifests = Sequence[CollectionsManifest | None]
"""The collections at the ends of the backups to which the vbuckets of a point belong, older ones first."""


def paths_of(manifest: CollectionsManifest | None) -> list[str]:
    """Return the names of all collections; None is the manifest of a backup of the default collection alone."""
    return sorted(f"{scope.name}.{collection.name}" for scope, collection in (manifest or EMPTY).each_collection())


def holds_more(manifest: CollectionsManifest) -> bool:
    """Return True if a bucket has collections besides its default one and those of the servers themselves."""
    return any(collection.id and scope.name != OWN_OF_SERVERS for scope, collection in manifest.each_collection())


def chosen_of(manifests: Manifests, names: Iterable[str] | None) -> frozenset[str] | None:
    """Return the collections that a user chose, after a check that the backups have them; None for all.

    Raises:
        OptionError: a collection is not in the backups.
    """
    if names is None:
        return None
    existing = {path for manifest in manifests for path in paths_of(manifest)}
    paths = frozenset(str(CollectionPath.parse(name.strip())) for name in names)
    for name in sorted(paths - existing):
        raise OptionError("collections", name, f"a collection of these backups: {', '.join(sorted(existing))}")
    return paths


def live(manifest: CollectionsManifest | None, choice: frozenset[str] | None) -> dict[int, CollectionPath]:
    """Return, by the id of a collection, the collection that its rows are written to.

    Without a choice, collections that servers create themselves are left out.

    Args:
        manifest: the collections at the end of a backup; None for the default one alone.
        choice: the chosen collections; None for all.
    """
    return {
        collection.id: CollectionPath(scope.name, collection.name)
        for scope, collection in (manifest or EMPTY).each_collection()
        if (scope.name != OWN_OF_SERVERS if choice is None else f"{scope.name}.{collection.name}" in choice)
    }


def routed(batch: pa.RecordBatch, backup_counts: NDArray[np.int64], routes: Mapping[int, Live]) -> pa.RecordBatch:
    """Return the rows whose collections exist at the point that is restored, with columns for the names of scope and
    collection.

    Args:
        batch: rows of a backup with all collections.
        backup_counts: for each vbucket the number of backups of the chain that are restored.
        routes: for each such number the collections that existed then.
    """
    counts = backup_counts[batch.column("vbucket").to_numpy()]
    pairs = counts << 32 | batch.column("collection_id").to_numpy()
    distinct, places = np.unique(pairs, return_inverse=True)
    paths = [routes[pair >> 32].get(pair & 0xFFFF_FFFF) for pair in distinct.tolist()]
    # The default collection is written with bare keys: any bucket takes those.
    names = [None if path == DEFAULT_PATH else path for path in paths]
    batch = _with(batch, "scope", [path.scope if path else None for path in names], places)
    batch = _with(batch, "collection", [path.collection if path else None for path in names], places)
    # Rows of a collection that no longer existed at the point stay away: its id is never given again.
    is_routed = np.array([path is not None for path in paths], np.bool_)[places]
    return batch if is_routed.all() else batch.filter(pa.array(is_routed))


def _with(batch: pa.RecordBatch, name: str, words: list[str | None], places: NDArray[Any]) -> pa.RecordBatch:
    column: Any = pa.array(words, pa.string()).take(pa.array(places))
    return batch.set_column(batch.schema.get_field_index(name), name, column)


# --------------------------------------------------------------------------- what a bucket lacks


def lacking(client: Client, backups: Sequence[BackupManifest], choice: frozenset[str] | None) -> list[Lacking]:
    """Return the scopes and collections of backups, older first, that a bucket does not have.

    Raises:
        BackupError: its nodes do not know collections.
        TransportError, StatusError: no node answered.
    """
    required = _required_collections(backups, choice)
    if not required:
        return []
    manifest = client.manifest(UID_MAX)
    # A uid of 0 says either that there never was a collection, or that the node knows none.
    if not manifest.uid and not knows_collections(client):
        names = ", ".join(str(collection.path) for collection in required)
        problem = f"it knows no collections, and the backup has {names}; --collections {DEFAULT_PATH} restores the rest"
        raise BackupError("the bucket to restore into", problem)
    return [collection for collection in required if not collection.path.is_in(manifest)]


def _required_collections(backups: Sequence[BackupManifest], choice: frozenset[str] | None) -> list[Lacking]:
    lacking_by_path: dict[CollectionPath, Lacking] = {}
    for backup in backups:
        if (manifest := backup.collections) is None:
            continue
        for number, path in live(manifest, choice).items():
            if path != DEFAULT_PATH:
                entry = manifest.by_id()[number][1]
                lacking_by_path[path] = Lacking(path, entry.max_ttl, entry.history if backup.has_histories else None)
        for scope in manifest.scopes if choice is None else ():
            if not scope.collections and scope.name not in (DEFAULT, OWN_OF_SERVERS):
                path = CollectionPath(scope.name)
                lacking_by_path[path] = Lacking(path)
    return list(lacking_by_path.values())
