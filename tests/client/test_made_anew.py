"""Buckets that are dropped and made again under their name while a client writes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headwater.client import bulk, connect
from headwater.client.routing import Address
from headwater.cluster import buckets, collections
from headwater.cluster.members import Members
from headwater.errors import BucketMadeAnew, ConnectionLost
from headwater.testing.node import Node, node

KEYS = [f"k{number}" for number in range(200)]
LARGE = "v" * 8192
"""So many of these that they go out in several chunks."""


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is answered before the next: a connection that breaks under one is an error in any case."""
    monkeypatch.setattr(bulk, "CHUNKS_AHEAD", 0)


@pytest.fixture
def server() -> Iterator[Node]:
    with node(vbuckets=4) as made:
        make(made, 8, "a")
        yield made


def apart(work: Coroutine[Any, Any, None]) -> None:
    """Do an operator's work in a thread of its own: the client may be in a loop."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, work).result()


def make(server: Node, vbuckets: int, *names: str) -> None:
    """Make the bucket `orders`, with collections in the scope `shop`."""

    async def work() -> None:
        async with Members("orders") as members:
            seeds = [Address(server.host, server.port)]
            await buckets.create(members, seeds, buckets.BucketWish("orders", vbuckets))
            for name in names:
                await collections.change(members, seeds, collections.creation(collections.CollectionPath("shop", name)))

    apart(work())


def make_anew(server: Node, vbuckets: int, *names: str) -> None:
    async def drop() -> None:
        async with Members("orders") as members:
            await buckets.drop(members, [Address(server.host, server.port)], "orders")

    apart(drop())
    make(server, vbuckets, *names)


def url(server: Node) -> str:
    return f"couchbase://{server.host}:{server.port}/orders"


def interrupted(server: Node, vbuckets: int, *names: str) -> Iterator[tuple[str, str]]:
    """Yield documents; in the middle the bucket is made anew."""
    for place, key in enumerate(KEYS):
        if place == len(KEYS) // 2:
            make_anew(server, vbuckets, *names)
        yield key, LARGE


def found(server: Node, path: str = "_default._default") -> int:
    """The number of documents that a new reader finds."""
    with connect(url(server)) as reader:
        return len(reader.collection(path).get_many(KEYS))


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize("vbuckets", [8, 64])
def test_many_writes_end_when_their_bucket_is_made_anew_in_the_middle(driver: Any, server: Node, vbuckets: int) -> None:
    client = driver.connect(url(server))
    with pytest.raises(BucketMadeAnew, match=f"with 8 vbuckets, and is .* with {vbuckets}. Nothing that was written"):
        client.set_many(interrupted(server, vbuckets))
    assert found(server) == 0
    assert client.set_many((key, "v") for key in KEYS) == {}
    assert found(server) == len(KEYS)


@pytest.mark.usefixtures("settled")
def test_many_writes_to_a_collection_end_when_their_bucket_is_made_anew_in_the_middle(
    driver: Any, server: Node
) -> None:
    """The id of `a` is that of `b` in the new bucket."""
    client = driver.connect(url(server))
    with pytest.raises(BucketMadeAnew):
        client.collection("shop.a").set_many(interrupted(server, 8, "b", "a"))
    assert (found(server, "shop.a"), found(server, "shop.b")) == (0, 0)


@pytest.mark.parametrize("path", ["_default._default", "shop.a"])
@pytest.mark.parametrize("vbuckets", [8, 64])
def test_writes_by_a_client_that_knew_the_bucket_of_before_are_found(
    driver: Any, server: Node, path: str, vbuckets: int
) -> None:
    client = driver.connect(url(server))
    documents = client.collection(path)
    documents.set("k0", "v")
    make_anew(server, vbuckets, "b", "a")
    assert documents.set_many((key, "v") for key in KEYS[:100]) == {}
    make_anew(server, 8, "a", "b")
    make_anew(server, vbuckets, "b", "a")
    for key in KEYS:
        documents.set(key, "v")
    assert found(server, path) == len(KEYS)
    make_anew(server, 16, "a")
    documents.incr("k1", initial=3)
    documents.set("k2", "v", durability="majority")
    assert found(server, path) == 2


@pytest.mark.usefixtures("settled")
def test_many_writes_go_on_in_the_bucket_of_a_node_that_was_started_anew(driver: Any, server: Node) -> None:
    client = driver.connect(url(server))

    def documents() -> Iterator[tuple[str, str]]:
        for place, key in enumerate(KEYS):
            if place == len(KEYS) // 2:
                server.restart()
            yield key, LARGE

    try:
        assert client.set_many(documents()) == {}
    except ConnectionLost:  # the restart was under the last chunk
        assert client.set_many((key, LARGE) for key in KEYS) == {}
    assert found(server) == len(KEYS)
