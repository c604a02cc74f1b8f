"""The rights of a user who has roles in some scopes or collections of a bucket, besides those in the whole bucket.

Roles name scopes and collections, whereas requests and streams have their ids. The manifest maps names to ids, so a
role also holds for a collection that was dropped and created again under its name. As on Couchbase, a collection in
which a user has no right does not exist for that user (UNKNOWN_COLLECTION, UNKNOWN_SCOPE), so that its name is not
revealed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from headwater.accounts.roles import ROLES, Grant
from headwater.wire.manifest import CollectionsManifest
from headwater.wire.privilege import LOGIN, STREAM
from headwater.wire.status import Status

__all__ = ["Places"]

_LOGIN, _STREAM = int(LOGIN), int(STREAM)


class Places:
    """A user's rights in a bucket, and in its scopes and collections.

    Args:
        rights: the rights in the whole bucket, as bits.
        grants: the roles for scopes and collections of the bucket.

    Attributes:
        rights: the rights in the whole bucket, as bits.
        anywhere: the rights that the user has in the bucket or in any part of it, as bits.
    """

    def __init__(self, rights: int, grants: Iterable[Grant]) -> None:
        self.rights = rights
        self.anywhere: int = rights
        self._rights_by_place: dict[tuple[str, str | None], int] = {}
        for grant in grants:
            place = grant.scope or "", grant.collection
            self._rights_by_place[place] = self._rights_by_place.get(place, 0) | int(ROLES[grant.role])
            self.anywhere |= int(ROLES[grant.role])
        self._manifest: CollectionsManifest | None = None
        self._collections: dict[int, int] = {}
        self._scopes: dict[int, int] = {}

    def in_collection(self, manifest: CollectionsManifest, collection: int) -> int:
        """Return the rights in the collection with this id; for an unknown id, those in the whole bucket."""
        self._read(manifest)
        return self._collections.get(collection, self.rights)

    def in_scope(self, manifest: CollectionsManifest, scope: int) -> int:
        """Return the rights in the whole scope with this id; for an unknown id, those in the whole bucket."""
        self._read(manifest)
        return self._scopes.get(scope, self.rights)

    def sees_scope(self, manifest: CollectionsManifest, scope: int) -> bool:
        """Return True if the user has any right in the scope with this id, or in one of its collections."""
        scope_ = manifest.scope_by_id(scope)
        collections = () if scope_ is None else scope_.collections
        return self.in_scope(manifest, scope) > _LOGIN or any(
            self.in_collection(manifest, collection.id) > _LOGIN for collection in collections
        )

    def visible(self, manifest: CollectionsManifest) -> CollectionsManifest:
        """Return the manifest with only the scopes and collections in which the user has any right."""
        scopes = (
            replace(
                scope,
                collections=tuple(
                    collection for collection in scope.collections if self._sees(manifest, collection.id)
                ),
            )
            for scope in manifest.scopes
            if self.sees_scope(manifest, scope.id)
        )
        return replace(manifest, scopes=tuple(scopes))

    def denied(
        self, manifest: CollectionsManifest, collections: Iterable[int] | None, scope: int | None
    ) -> tuple[str, Status] | None:
        """Return the reason and the status with which a stream is refused to the user; None if it is allowed.

        Args:
            manifest: the bucket's manifest.
            collections: the ids of the collections in the stream; None for all of the scope, or of the bucket.
            scope: the id of the scope whose collections are in the stream; None for other streams.
        """
        if scope is not None:
            return self._scope_denied(manifest, scope)
        if collections is None:
            return None if self.rights & _STREAM else ("all of the bucket needs the role stream in it", Status.EACCESS)
        lacking = (self._collection_denied(manifest, collection) for collection in sorted(collections))
        return next(filter(None, lacking), None)

    def _scope_denied(self, manifest: CollectionsManifest, scope: int) -> tuple[str, Status] | None:
        if self.in_scope(manifest, scope) & _STREAM:
            return None
        if not self.sees_scope(manifest, scope):
            return f"there is no scope 0x{scope:x}", Status.UNKNOWN_SCOPE
        return f"all of scope 0x{scope:x} needs the role stream in it", Status.EACCESS

    def _collection_denied(self, manifest: CollectionsManifest, collection: int) -> tuple[str, Status] | None:
        rights = self.in_collection(manifest, collection)
        if rights & _STREAM:
            return None
        if rights <= _LOGIN:
            return f"there is no collection 0x{collection:x}", Status.UNKNOWN_COLLECTION
        return f"collection 0x{collection:x} needs the role stream in it", Status.EACCESS

    def _sees(self, manifest: CollectionsManifest, collection: int) -> bool:
        return self.in_collection(manifest, collection) > _LOGIN

    def _read(self, manifest: CollectionsManifest) -> None:
        """Resolve the names to ids, once for each manifest."""
        if manifest is self._manifest:
            return
        rights_by_place = self._rights_by_place
        self._scopes = {scope.id: self.rights | rights_by_place.get((scope.name, None), 0) for scope in manifest.scopes}
        self._collections = {
            collection.id: self._scopes[scope.id] | rights_by_place.get((scope.name, collection.name), 0)
            for scope, collection in manifest.each_collection()
        }
        self._manifest = manifest
