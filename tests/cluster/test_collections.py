"""Collections of several nodes: all get the same manifest, and whoever was behind is brought up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from headwater import client, testing
from headwater.client.routing import Address
from headwater.cluster.admin import NodeAdmin
from headwater.cluster.collections import (
    CollectionPath,
    Edit,
    Lacking,
    alteration,
    change,
    creation,
    current,
    drop_everywhere,
    make,
    refuse_joining,
    refuse_older,
    removal,
    send_newer_manifest,
)
from headwater.cluster.members import Members
from headwater.errors import ClusterError
from headwater.testing.node import Node
from headwater.wire.cluster_map import ClusterMap
from headwater.wire.manifest import CollectionsManifest, ManifestRefused, NoSuchName

from .nodes import at, init, rebalance

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


def test_a_drop_that_did_not_come_to_all_nodes_goes_on_when_it_is_typed_again() -> None:
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4) as two:

        async def begun(members: Members, seeds: list[Address]) -> None:
            servers = tuple(Address("127.0.0.1", node.port) for node in (one, two))
            await members.send(
                ClusterMap("default", "ab" * 16, 1, REVISION, servers, tuple((vb % 2,) for vb in range(4)))
            )
            made = await change(members, seeds, creation(A))
            await members.admin(seeds[0]).set_manifest(made.without_collection("shop", "a"))  # no more was done

        on(one, begun)
        dropped = on(one, lambda members, seeds: change(members, seeds, removal(A)))
        assert on(two, lambda members, seeds: members.admin(seeds[0]).manifest()) == dropped
        assert dropped.collection("shop", "a") is None
        with pytest.raises(NoSuchName):
            on(one, lambda members, seeds: change(members, seeds, removal(A)))


def test_a_node_that_refuses_is_named() -> None:
    with testing.node(vbuckets=2) as node:

        async def stale(members: Members, seeds: list[Address]) -> None:
            await change(members, seeds, creation(A))
            await change(members, seeds, lambda manifest, _: CollectionsManifest(1, manifest.scopes))

        with pytest.raises(ClusterError, match=f":{node.port}.*type the same again"):
            on(node, stale)


def of_one_map(*nodes: Node) -> None:
    """Give nodes a map, in which each owns some of the vbuckets."""
    servers = tuple(Address("127.0.0.1", node.port) for node in nodes)
    chains = tuple((vb % len(nodes),) for vb in range(4))
    found = ClusterMap("default", "ab" * 16, 1, REVISION, servers, chains)
    on(nodes[0], lambda members, seeds: members.send(found))


def test_of_two_operators_at_once_one_goes_on_from_what_the_other_made() -> None:
    """Both have looked before either has told anybody; the one told the second node first, the other the first."""

    async def both(members: Members, seeds: list[Address]) -> list[CollectionsManifest]:
        looked, gate = list[int](), asyncio.Event()

        def waiting(path: CollectionPath) -> Edit:
            edit = creation(path)

            def once(manifest: CollectionsManifest, ids: tuple[int, int]) -> CollectionsManifest:
                looked.append(manifest.uid)
                return edit(manifest, ids)

            return once

        async with Members(timeout_seconds=60) as other:
            told = members.admin

            def admin(address: Address) -> NodeAdmin:
                found = told(address)
                tell = found.set_manifest

                async def set_manifest(manifest: CollectionsManifest) -> None:
                    found.set_manifest = tell  # type: ignore[method-assign]
                    if not gate.is_set():  # the other one comes in between, and is done before we tell anybody
                        gate.set()
                        made.append(await change(other, list(reversed(seeds)), waiting(B)))
                    await tell(manifest)

                found.set_manifest = set_manifest  # type: ignore[method-assign]
                return found

            made = list[CollectionsManifest]()
            members.admin = admin  # type: ignore[method-assign]
            made.append(await change(members, seeds, waiting(A)))
        assert looked == [0, 0, made[0].uid], "refused by the first node, it looked again"
        return made

    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4) as two:
        of_one_map(one, two)
        first, then = on(one, both)
        for node in (one, two):
            assert on(node, lambda members, seeds: members.admin(seeds[0]).manifest()) == then
        ids = {collection.name: collection.id for _, collection in then.each_collection()}
        assert ids["a"] != ids["b"] and first.collection("shop", "b") == then.collection("shop", "b")


async def apart(members: Members, node: Address, path: CollectionPath) -> None:
    """Change one node of several alone, as operators did who came at once."""
    admin = members.admin(node)
    await admin.set_manifest(creation(path)(await admin.manifest(), await admin.next_ids()))


def test_nodes_that_differ_are_brought_together_by_the_next_change() -> None:
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4) as two:
        of_one_map(one, two)
        on(one, lambda members, seeds: change(members, seeds, creation(A)))

        async def story(members: Members, seeds: list[Address]) -> CollectionsManifest:
            nodes = [Address("127.0.0.1", node.port) for node in (one, two)]
            await apart(members, nodes[0], B)
            theirs = await members.admin(nodes[1]).manifest()
            await members.admin(nodes[1]).set_manifest(theirs.with_scope("other", 9))
            return await change(members, seeds, creation(CollectionPath("shop", "d")))

        made = on(one, story)
        assert {collection.name for _, collection in made.each_collection()} == {"_default", "a", "b", "d"}
        assert made.scope("other") is not None
        assert on(two, lambda members, seeds: members.admin(seeds[0]).manifest()) == made


def test_a_node_that_dropped_a_collection_while_it_was_out_joins_without_dropping_it_for_all() -> None:
    """The node was failed over before the others heard of the drop; its manifest is the newest of all."""
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4, vbucket_state="none") as two:
        init(one)
        on(one, lambda members, seeds: change(members, seeds, creation(A)))
        made = on(one, lambda members, seeds: members.admin(seeds[0]).manifest())

        async def drop_alone(members: Members, seeds: list[Address]) -> None:
            for manifest in (made, made.without_collection("shop", "a")):
                await members.admin(seeds[0]).set_manifest(replace(manifest, uid=manifest.uid + 5))

        on(two, drop_alone)
        with client.connect(one.url) as bucket:
            bucket.collection("shop.a").set_many((f"k{number}".encode(), b"v") for number in range(20))
        rebalance(one, add=at(two))
        with client.connect(one.url) as bucket:
            shop = bucket.collection("shop.a")
            assert [shop.get(f"k{number}".encode()).value for number in range(20)] == [b"v"] * 20
        both = [on(node, lambda members, seeds: members.admin(seeds[0]).manifest()) for node in (one, two)]
        assert both == [replace(made, uid=made.uid + 6 + 2)] * 2


def test_an_id_with_two_names_keeps_a_node_from_joining() -> None:
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4, vbucket_state="none") as two:
        init(one)
        on(one, lambda members, seeds: change(members, seeds, creation(A)))
        on(two, lambda members, seeds: apart(members, seeds[0], B))
        with pytest.raises(ClusterError, match=r"are not of one bucket: shop.a of the one and shop.b of the other"):
            rebalance(one, add=at(two))


def test_an_id_that_a_former_member_gave_to_another_collection_is_the_clusters() -> None:
    """Each gave it while it did not hear of the other; what the former member wrote since is rolled back."""
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4, vbucket_state="none") as two:
        init(one)
        made = on(one, lambda members, seeds: change(members, seeds, creation(A)))
        on(two, lambda members, seeds: apart(members, seeds[0], B))

        async def joins(members: Members, seeds: list[Address]) -> None:
            admins = [members.admin(each) for each in (*seeds, *at(two))]
            await refuse_joining(admins[:1], admins[1:], former=at(two))
            await send_newer_manifest(members, seeds, at(two))

        on(one, joins)
        both = [on(node, lambda members, seeds: members.admin(seeds[0]).manifest()) for node in (one, two)]
        assert both[0] == both[1] == replace(made, uid=both[0].uid)
        again = on(one, lambda members, seeds: change(members, seeds, creation(B)))
        ids = {collection.name: collection.id for _, collection in again.each_collection()}
        assert ids["b"] > ids["a"]


def test_an_id_with_two_names_stops_every_change_and_is_dropped_by_force_alone() -> None:
    with testing.node(vbuckets=4) as one, testing.node(vbuckets=4) as two:
        of_one_map(one, two)
        on(one, lambda members, seeds: change(members, seeds, creation(CollectionPath("shop"))))
        nodes = [Address("127.0.0.1", node.port) for node in (one, two)]

        async def story(members: Members, seeds: list[Address]) -> None:
            await apart(members, nodes[0], A)
            await apart(members, nodes[1], B)
            before = [await members.admin(node).manifest() for node in nodes]
            for edit in (removal(A), removal(B), creation(CollectionPath("new"))):
                with pytest.raises(ClusterError, match=r"shop.a and shop.b have the same id, .*nothing was changed"):
                    await change(members, seeds, edit)
            assert [await members.admin(node).manifest() for node in nodes] == before

        on(one, story)
        made = on(two, lambda members, seeds: drop_everywhere(members, seeds, A))
        assert {collection.name for _, collection in made.each_collection()} == {"_default"}
        again = on(one, lambda members, seeds: change(members, seeds, creation(B)))
        assert on(one, current) == on(two, current) == again
        with pytest.raises(ManifestRefused, match=r"there is no shop\.a"):
            on(one, lambda members, seeds: drop_everywhere(members, seeds, A))


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    """Two nodes with a map."""
    with testing.node(vbuckets=2) as one, testing.node(vbuckets=2) as two:
        servers = tuple(Address("127.0.0.1", node.port) for node in (one, two))
        shared = ClusterMap("default", "ab" * 16, 1, REVISION, servers, ((0,), (1,)))
        on(one, lambda members, _: members.send(shared))
        yield one, two


def test_a_history_is_the_same_on_all_nodes_and_comes_with_a_vbucket(pair: tuple[Node, Node]) -> None:
    first, second = pair
    on(first, lambda members, seeds: change(members, seeds, creation(A)))
    on(first, lambda members, seeds: change(members, seeds, creation(B, history=False)))
    on(first, lambda members, seeds: change(members, seeds, alteration(A, history=False)))
    for node in pair:
        manifest = on(node, lambda members, seeds: members.admin(seeds[0]).manifest())
        assert [collection.history for _, collection in manifest.each_collection()] == [True, False, False]
    with pytest.raises(ManifestRefused, match=r"shop\.b is there, without a history"):
        on(first, lambda members, seeds: change(members, seeds, creation(B, history=True)))
    on(first, lambda members, seeds: change(members, seeds, creation(B, history=False)))
    with pytest.raises(NoSuchName):
        on(first, lambda members, seeds: change(members, seeds, alteration(CollectionPath("shop", "x"), history=True)))
    assert on(second, current).by_id()[8][1].history is False


def test_what_is_made_without_a_word_has_the_buckets_default(pair: tuple[Node, Node]) -> None:
    first, _ = pair
    for each in pair:
        on(each, lambda members, seeds: members.admin(seeds[0]).give_collections_history(history=False))
    manifest = on(first, lambda members, seeds: make(members, seeds, [Lacking(A), Lacking(B, history=True)]))
    assert [collection.history for _, collection in manifest.each_collection()] == [True, False, True]


def test_a_node_of_an_older_release_is_not_given_what_it_would_misread(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair

    async def unknown(_: NodeAdmin) -> None:
        return None

    monkeypatch.setattr(NodeAdmin, "collections_have_history", unknown)
    with pytest.raises(ClusterError, match=r"can't know that shop\.a has no history: it is of an older release"):
        on(first, lambda members, seeds: change(members, seeds, creation(A, history=False)))
    on(first, lambda members, seeds: change(members, seeds, creation(A)))
    assert on(first, current).has(8)


def test_a_node_of_an_older_release_does_not_join_where_it_would_misread_a_history(
    pair: tuple[Node, Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair
    on(first, lambda members, seeds: change(members, seeds, creation(A, history=False)))
    with testing.node(vbuckets=4, vbucket_state="none") as older:
        joining = [Address(older.host, older.port)]
        on(first, lambda members, seeds: refuse_older(members, seeds, joining))

        async def unknown(_: NodeAdmin) -> None:
            return None

        monkeypatch.setattr(NodeAdmin, "collections_have_history", unknown)
        with pytest.raises(ClusterError, match=r"can't know that shop\.a has no history"):
            on(first, lambda members, seeds: refuse_older(members, seeds, joining))
