"""Commands about collections: read and set the manifest, and look up ids by name (kv.md 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwater.errors import StorageError
from headwater.node.buckets.collections import COLLECTIONS_MAX
from headwater.node.kv.command import handles
from headwater.node.refused import CommandRefused
from headwater.wire import admin as wire
from headwater.wire.datatype import Datatype
from headwater.wire.features import Feature
from headwater.wire.layout import Done
from headwater.wire.manifest import DEFAULT, NAME_PATTERN, CollectionsManifest, ManifestRefused
from headwater.wire.privilege import LOGIN
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.node.buckets.bucket import Bucket
    from headwater.node.kv.api import Session


@handles(wire.GetManifest)
def get_manifest(session: Session, request: wire.GetManifest) -> wire.GetManifestResponse:
    """Answer GET_MANIFEST with the bucket's manifest as JSON; a user with rights in parts of the bucket gets only these
    parts.
    """
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    return wire.GetManifestResponse(value=_visible_manifest(session).encode(), datatype=datatype)


@handles(wire.SetManifest, lasts=True)
async def set_manifest(session: Session, request: wire.SetManifest) -> Done:
    """Answer SET_MANIFEST: set the manifest, which is durable in all active vbuckets before the answer is sent.

    "Invalid: EINVAL; uid not greater (and not identical): ERANGE; breaking rules: 8a" (kv.md 4).
    """
    bucket = session.store_bucket
    try:
        manifest = await bucket.collections.change(lambda known: _read(bucket, known, request.value))
    except ManifestRefused as error:
        raise CommandRefused(status_of(error), str(error)) from None
    except StorageError as error:
        raise CommandRefused(Status.ETMPFAIL, str(error)) from None
    session.server.record(session, f"set the collections of bucket {bucket.name!r}, manifest {manifest.uid:x}")
    return Done()


def _read(bucket: Bucket, present: CollectionsManifest, data: bytes) -> CollectionsManifest:
    """Return the manifest in a request. A collection without a statement about its history keeps the known one, or gets
    the bucket's default.
    """
    flags = present.flags(default=bucket.store.declarations.collections_have_history)
    return CollectionsManifest.decode(data, count_max=COLLECTIONS_MAX, flags=flags)


def status_of(error: ManifestRefused) -> Status:
    """Return the status for a refused manifest."""
    if error.stale:
        return Status.ERANGE
    return Status.CANNOT_APPLY_COLLECTIONS_MANIFEST if error.breaks else Status.EINVAL


@handles(wire.GetCollectionId)
def get_collection_id(session: Session, request: wire.GetCollectionId) -> wire.GetCollectionIdResponse:
    """Answer GET_COLLECTION_ID with the id of `scope.collection`; an empty part means the default scope or
    collection.
    """
    collections = session.store_bucket.collections
    scope, dot, name = _path(request).partition(".")
    if not dot:
        raise CommandRefused(Status.EINVAL, "a collection is asked for as scope.collection")
    scope, name, seen = _part(scope), _part(name), _visible_manifest(session)
    if seen.scope(scope) is None:
        raise collections.unknown(Status.UNKNOWN_SCOPE, f"there is no scope {scope}")
    collection = seen.collection(scope, name)
    if collection is None:
        raise collections.unknown(Status.UNKNOWN_COLLECTION, f"there is no collection {scope}.{name}")
    return wire.GetCollectionIdResponse(manifest_uid=collections.manifest.uid, collection_id=collection.id)


@handles(wire.GetScopeId)
def get_scope_id(session: Session, request: wire.GetScopeId) -> wire.GetScopeIdResponse:
    """Answer GET_SCOPE_ID with the id of a scope; a ".collection" after the scope's name is ignored."""
    collections = session.store_bucket.collections
    name = _part(_path(request).partition(".")[0])
    scope = _visible_manifest(session).scope(name)
    if scope is None:
        raise collections.unknown(Status.UNKNOWN_SCOPE, f"there is no scope {name}")
    return wire.GetScopeIdResponse(manifest_uid=collections.manifest.uid, scope_id=scope.id)


def _visible_manifest(session: Session) -> CollectionsManifest:
    """Return the parts of the manifest that the user may see."""
    manifest, places = session.store_bucket.collections.manifest, session.access.places
    return manifest if places is None or session.access.rights > LOGIN else places.visible(manifest)


def _path(request: wire.GetCollectionId | wire.GetScopeId) -> str:
    """Return the names in the request: its value, or its key (from old clients)."""
    if bool(request.key) == bool(request.value) and request.key:
        raise CommandRefused(Status.EINVAL, "names both in the key and in the value")
    try:
        return (request.value or request.key).decode()
    except UnicodeDecodeError:
        raise CommandRefused(Status.EINVAL, "the names are not UTF-8") from None


def _part(name: str) -> str:
    """Return a scope's or collection's name, with the default name for an empty one. Raises CommandRefused(EINVAL) if
    it is invalid.
    """
    if not name:
        return DEFAULT
    if name not in {DEFAULT, "_system"} and not NAME_PATTERN.fullmatch(name):
        raise CommandRefused(Status.EINVAL, f"{name[:60]!r} is no name of a scope or collection")
    return name
