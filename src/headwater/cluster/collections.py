"""Scopes and collections of a bucket on one node or several: all of them get the same manifest.

The newest manifest that any node knows is the one that is changed, and ids are taken above all that any node ever gave;
then every node is told. One that is told in vain knows less than the others until the same is done again, or until a
vbucket brings it the news: nothing contradicts.

Source: kv.md 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from headwater.errors import ClusterError
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.manifest import DEFAULT, CollectionsManifest, ManifestRefused

if TYPE_CHECKING:
    from headwater.client.routing import Address
    from headwater.cluster.members import Members

Edit: TypeAlias = "Callable[[CollectionsManifest, tuple[int, int]], CollectionsManifest]"
"""Makes the next manifest of one and of the lowest free ids, of a collection and of a scope."""


@dataclass(frozen=True, slots=True)
class CollectionPath:
    """A scope, or (`collection`) one of its collections."""

    scope: str
    collection: str = ""

    @classmethod
    def parse(cls, text: str) -> CollectionPath:
        """Read `scope` or `scope.collection`."""
        scope, dot, collection = text.partition(".")
        return cls(scope or DEFAULT, collection or (DEFAULT if dot else ""))

    def __str__(self) -> str:
        return f"{self.scope}.{self.collection}" if self.collection else self.scope


def creation(path: CollectionPath, max_ttl: int | None = None) -> Edit:
    """The edit that makes a scope, or a collection and its scope if need be; what is there already stays."""

    def edit(manifest: CollectionsManifest, ids: tuple[int, int]) -> CollectionsManifest:
        made = manifest if manifest.scope(path.scope) else manifest.with_scope(path.scope, ids[1])
        if not path.collection:
            return made
        if found := made.collection(path.scope, path.collection):
            if found.max_ttl != max_ttl:
                raise ManifestRefused(f"{path} is there, with a maximum TTL of {found.max_ttl or 'its own'} seconds")
            return made
        return made.with_collection(path.scope, path.collection, max_ttl, ids[0])

    return edit


def removal(path: CollectionPath) -> Edit:
    """The edit that drops a collection, or a scope and all that is in it."""
    if path.collection:
        return lambda manifest, _: manifest.without_collection(path.scope, path.collection)
    return lambda manifest, _: manifest.without_scope(path.scope)


async def current(members: Members, seeds: Sequence[Address]) -> CollectionsManifest:
    """The newest manifest of the nodes that `seeds` lead to."""
    manifests = await asyncio.gather(*(members.admin(each).manifest() for each in await _nodes(members, seeds)))
    return max(manifests, key=lambda each: each.uid)


async def change(members: Members, seeds: Sequence[Address], edit: Edit) -> CollectionsManifest:
    """Change the manifest on all nodes that `seeds` lead to; on return it is durable on each.

    Raises:
        ManifestRefused: it can't be changed like that.
        ClusterError: not all nodes took it; the same again goes on.
        TransportError, StatusError: a node did not answer the question what there is; nothing was changed.
    """
    nodes = await _nodes(members, seeds)
    admins = [members.admin(each) for each in nodes]
    manifests, ids = await asyncio.gather(
        asyncio.gather(*(each.manifest() for each in admins)), asyncio.gather(*(each.next_ids() for each in admins))
    )
    made = edit(max(manifests, key=lambda each: each.uid), (max(each for each, _ in ids), max(each for _, each in ids)))
    made.check()
    results = await asyncio.gather(*(each.set_manifest(made) for each in admins), return_exceptions=True)
    refusals = [f"{each}: {result}" for each, result in zip(nodes, results, strict=True) if result is not None]
    if refusals:
        raise ClusterError(f"manifest {made.uid:x} is not everywhere: {'; '.join(refusals)}", "type the same again")
    return made


async def _nodes(members: Members, seeds: Sequence[Address]) -> list[Address]:
    """The nodes of the bucket."""
    first = (await members.identified(seeds))[0]
    config = await members.admin(first).config()
    servers = ClusterMap.from_json(config, first).servers if config else ()
    return list(servers) if len(servers) > 1 else [first]
