"""Buckets on all nodes of a cluster: made with their vbuckets dealt out, dropped, and gone on with after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar

import pytest

from headwater import testing
from headwater.client import connect
from headwater.client.routing import Address
from headwater.cluster import buckets
from headwater.cluster.buckets import BucketWish
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.errors import ClusterError, KeyNotFound, TransportError
from headwater.testing.node import Node
from headwater.wire.vbucket import State

Result = TypeVar("Result")
VBUCKETS = 4


def on(nodes: list[Node], work: Callable[[Members, list[Address]], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with Members() as members:
            return await work(members, [Address(node.host, node.port) for node in nodes])

    return asyncio.run(run())


async def states(members: Members, nodes: list[Address], bucket: str) -> list[set[State]]:
    return [set((await members.of(bucket).admin(node).states()).values()) for node in nodes]


def test_a_bucket_is_made_on_all_nodes_of_a_cluster_and_dropped_from_all() -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state="none")) for _ in range(2)]
        on(nodes, lambda members, seeds: found_cluster(members, seeds, 1))
        one = nodes[:1]
        assert on(one, lambda members, seeds: buckets.create(members, seeds, BucketWish("orders"))) == 2
        assert on(one, lambda members, seeds: buckets.create(members, seeds, BucketWish("orders"))) == 2, "again"
        with connect(f"couchbase://127.0.0.1:{nodes[1].port}/orders") as orders:
            orders.set_many((f"k{number}", "v") for number in range(50))
            assert sum(1 for _ in orders.get_many(f"k{number}" for number in range(50))) == 50
        found_states = on(nodes, lambda members, seeds: states(members, seeds, "orders"))
        assert found_states == [{State.ACTIVE, State.REPLICA}] * 2
        for node in nodes:
            node.kill()
        for node in nodes:
            node.start()
        with connect(f"couchbase://127.0.0.1:{nodes[0].port}/orders") as orders:
            assert sum(1 for _ in orders.get_many(f"k{number}" for number in range(50))) == 50
        assert on(one, lambda members, seeds: buckets.drop(members, seeds, "orders")) == 2
        for node in nodes:
            assert on([node], buckets.names) == ["default"]
        with pytest.raises(KeyNotFound):
            on(one, lambda members, seeds: buckets.drop(members, seeds, "orders"))


def test_a_node_that_is_down_is_named_and_the_same_again_goes_on() -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state="none")) for _ in range(2)]
        on(nodes, lambda members, seeds: found_cluster(members, seeds, 0))
        nodes[1].stop()
        one = nodes[:1]
        with pytest.raises(ClusterError, match=r"not made on 1 of 2 nodes.*type the same again"):
            on(one, lambda members, seeds: buckets.create(members, seeds, BucketWish("orders")))
        nodes[1].start()
        assert on(one, lambda members, seeds: buckets.create(members, seeds, BucketWish("orders"))) == 2
        nodes[1].stop()
        with pytest.raises(ClusterError, match="still there on 1 of 2 nodes"):
            on(one, lambda members, seeds: buckets.drop(members, seeds, "orders"))
        nodes[1].start()
        assert on(one, lambda members, seeds: buckets.drop(members, seeds, "orders")) == 2
        assert on(nodes[1:], buckets.names) == ["default"]


def test_a_bucket_that_a_rebalance_has_not_moved_yet_is_not_made_a_second_time() -> None:
    """The nodes of the first bucket have none of it, or not all of them do."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state="none")) for _ in range(3)]
        one, two, three = (Address(node.host, node.port) for node in nodes)
        on(nodes[:2], lambda members, seeds: found_cluster(members, seeds, 0))
        on(nodes[:1], lambda members, seeds: buckets.create(members, seeds, BucketWish("orders")))
        on(nodes[:1], lambda members, seeds: Rebalance(members, seeds, add=[three]).run())
        with pytest.raises(ClusterError, match=f"the bucket orders is on {one}, {two} already"):
            on(nodes[:1], lambda members, seeds: buckets.create(members, seeds, BucketWish("orders")))
        on(nodes[:1], lambda members, seeds: Rebalance(members, seeds, remove=[one, two]).run())
        with pytest.raises(ClusterError, match=f"the bucket orders is on {one}, {two} already"):
            on(nodes[::-1], lambda members, seeds: buckets.create(members, seeds, BucketWish("orders")))
        assert on(nodes[2:], buckets.names) == ["default"]


def test_a_bucket_has_its_quota_and_is_dropped_at_a_member_that_has_left_the_first_bucket_alone() -> None:
    """A rebalance goes from bucket to bucket, and may be stopped in between."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=VBUCKETS, vbucket_state="none")) for _ in range(3)]
        leaving = Address(nodes[2].host, nodes[2].port)
        on(nodes, lambda members, seeds: found_cluster(members, seeds, 0))
        on(nodes, lambda members, seeds: buckets.create(members, seeds, BucketWish("orders")))
        on(nodes[:1], lambda members, seeds: Rebalance(members, seeds, remove=[leaving]).run())
        assert on(nodes[:1], lambda members, seeds: buckets.set_quota(members, seeds, "orders", 128)) == 3
        assert set(on(nodes[:1], lambda members, seeds: buckets.quotas(members, seeds, "orders")).values()) == {128}
        nodes[2].stop()
        with pytest.raises(TransportError, match=f"{leaving}: connection refused"):
            on(nodes[:1], lambda members, seeds: buckets.drop(members, seeds, "orders"))
        nodes[2].start()
        assert on(nodes[:1], lambda members, seeds: buckets.drop(members, seeds, "orders")) == 3
        for node in nodes:
            assert on([node], buckets.names) == ["default"]
