"""Collections of several nodes: all get the same manifest, and whoever was behind is brought up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster.collections import CollectionPath, change, creation, current, removal
from headwater.cluster.members import Members
from headwater.errors import ClusterError
from headwater.testing.node import Node
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.manifest import CollectionsManifest, ManifestRefused

Result = TypeVar("Result")
REVISION = time.time_ns() // 1_000_000 + 86_400_000
"""Above that of a node that serves no map but its own."""
A, B = CollectionPath("shop", "a"), CollectionPath("shop", "b")


def on(node: Node, work: Callable[[Members, list[Address]], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with Members(timeout_seconds=60) as members:
            return await work(members, [Address("127.0.0.1", node.port)])

    return asyncio.run(run())


def test_paths_are_read_and_written() -> None:
    for text, scope, collection in (
        ("s.c", "s", "c"),
        ("s", "s", ""),
        (".c", "_default", "c"),
        ("s.", "s", "_default"),
    ):
        path = CollectionPath.parse(text)
        assert (path.scope, path.collection) == (scope, collection)
    assert str(CollectionPath("s", "c")) == "s.c" and str(CollectionPath("s")) == "s"


def test_all_nodes_of_a_map_get_the_manifest_and_who_missed_one_is_brought_up() -> None:
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4) as two:

        async def give_map(members: Members, seeds: list[Address]) -> None:
            servers = tuple(Address("127.0.0.1", node.port) for node in (one, two))
            chains = tuple((vb % 2,) for vb in range(4))
            found = ClusterMap("default", "ab" * 16, 1, REVISION, servers, chains)
            await members.send(found)

        on(one, give_map)
        made = on(two, lambda members, seeds: change(members, seeds, creation(A)))
        assert on(one, current) == on(two, current) == made and made.collection("shop", "a") is not None
        two.stop()
        with pytest.raises(Exception, match=r"127\.0\.0\.1"):
            on(one, lambda members, seeds: change(members, seeds, creation(B)))
        two.start()
        made = on(one, lambda members, seeds: change(members, seeds, creation(B, 60)))
        assert on(one, current) == on(two, current) == made

        async def alone(members: Members, seeds: list[Address]) -> CollectionsManifest:
            found = await members.admin(seeds[0]).manifest()
            await members.admin(seeds[0]).set_manifest(found.without_collection("shop", "a"))
            return await members.admin(seeds[0]).manifest()

        assert on(one, alone).uid > made.uid
        again = on(two, lambda members, seeds: change(members, seeds, creation(B, 60)))
        assert on(two, current) == again and again.collection("shop", "a") is None
        with pytest.raises(ManifestRefused, match="is there, with a maximum TTL of 60"):
            on(two, lambda members, seeds: change(members, seeds, creation(B)))
        assert on(two, lambda members, seeds: change(members, seeds, removal(CollectionPath("shop")))).scopes[1:] == ()


def test_a_node_that_refuses_is_named() -> None:
    with testing.node(vbuckets=2) as node:

        async def stale(members: Members, seeds: list[Address]) -> None:
            await change(members, seeds, creation(A))
            await change(members, seeds, lambda manifest, _: CollectionsManifest(1, manifest.scopes))

        with pytest.raises(ClusterError, match=f":{node.port}.*type the same again"):
            on(node, stale)
