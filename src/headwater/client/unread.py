"""Collections of a bucket that this client does not read, or that its user may not see.

A program that copies a bucket uses this to report what its copy lacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headwater.errors import StatusError, error_for
from headwater.wire.status import Status

if TYPE_CHECKING:
    from headwater.client import Client
    from headwater.wire.manifest import CollectionsManifest

OWN_OF_SERVERS = "_system"
"""Couchbase's servers keep collections of their own in this scope, in every bucket."""
_UNKNOWN = (Status.KEY_ENOENT, Status.EINVAL, Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED)
"""Answers of servers without collections to a group of statistics that they do not have."""


def unread_collections(client: Client) -> dict[str, int]:
    """Return how many collections of each scope a reader of the default collection does not see; empty if none.

    Raises:
        TransportError: a node did not answer.
    """
    try:
        return _other_scopes(client.stats("scopes"))
    except StatusError:  # a server from before collections does not know the group
        return {}


def knows_collections(client: Client) -> bool:
    """Return True if the nodes of a bucket have collections, even if this user may not see them.

    Raises:
        TransportError: a node did not answer.
    """
    try:
        return bool(client.stats("scopes"))
    except StatusError as error:
        return error.status not in _UNKNOWN


def may_read_all(client: Client, vbuckets: Iterable[int] | None = None) -> bool:
    """Return True if this user may stream the whole bucket, and so is shown all of its collections. Each owner of one
    of these vbuckets, of all by default, is asked for a stream of all collections that ends where it begins.

    Raises:
        TransportError: a node did not answer. StatusError: it refused for another reason.
    """
    firsts: dict[object, int] = {}
    for vbucket in range(client.map.vbuckets) if vbuckets is None else vbuckets:
        if (owner := client.map.owner(vbucket)) is not None:
            firsts.setdefault(owner, vbucket)
    owned_vbuckets = [*firsts.values()]
    try:
        with client.batches(
            vbuckets=owned_vbuckets, until=dict.fromkeys(owned_vbuckets, 0), collections="all"
        ) as batches:
            for _ in batches:
                pass
    except StatusError as error:
        if error.status != Status.EACCESS:
            raise
        return False
    return True


def sees_all_collections(client: Client) -> bool:
    """Return True if every node shows this user all collections.

    A user with rights in parts of the bucket only gets a manifest of those parts. That manifest has the uid of the
    whole one and no mark, so a collection that is missing in it may exist all the same.

    All owners of vbuckets get a request that needs a right in the whole bucket and changes nothing: headwater's nodes
    require this right for statistics, Couchbase's for the seqnos of all collections, and both for a stream of
    everything.

    Raises:
        TransportError: a node did not answer. StatusError: it refused for another reason.
    """
    try:
        client.vbucket_stats("vbucket-seqno")
        client.seqnos("all")
    except StatusError as error:
        if error.status != Status.EACCESS:
            raise
        return may_read_all(client)
    return True


def whole_manifest(client: Client) -> CollectionsManifest | None:
    """Return the newest manifest of all nodes that own vbuckets; None if it may lack collections that this user is not
    shown. A collection that was there before, and is not in this manifest, was dropped.

    Raises: as `sees_all_collections`.
    """
    if not sees_all_collections(client):
        return None
    manifest = client.newest_manifest()
    # Rights may be taken between two answers.
    return manifest if sees_all_collections(client) else None


def required_manifest(client: Client) -> CollectionsManifest:
    """Return the newest manifest, which has all collections.

    Raises:
        NoAccess: the user may not see all of them. Others as `sees_all_collections`.
    """
    manifest = whole_manifest(client)
    if manifest is None:
        text = (
            "a collection is not shown, and whether it was dropped is not known to a user with rights in parts of the"
        )
        raise error_for(Status.EACCESS, f"{text} bucket only: give that user the role stream in all of it")
    return manifest


def _other_scopes(scopes: Mapping[str, str]) -> dict[str, int]:
    counts = {}
    for line, name in scopes.items():
        scope, _, field = line.rpartition(":")
        if field == "name" and name != OWN_OF_SERVERS:
            counts[name] = int(scopes.get(f"{scope}:collections", "0")) - (name == "_default")
    return {name: number for name, number in counts.items() if number > 0}
