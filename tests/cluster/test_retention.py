"""How far back a bucket keeps old versions: on all nodes, after kill -9, and on nodes that join."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import TypeVar

import pytest

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster import buckets
from headwater.cluster.buckets import BucketWish
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.errors import ClusterError
from headwater.testing.node import Node

Result = TypeVar("Result")
MIB = 1 << 20


def on(nodes: list[Node], work: Callable[[Members, list[Address]], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with Members() as members:
            return await work(members, [Address(each.host, each.port) for each in nodes])

    return asyncio.run(run())


def kept(nodes: list[Node], bucket: str = "default") -> list[tuple[int, int]]:
    return on(nodes, lambda members, seeds: _kept(members.of(bucket), seeds))


async def _kept(members: Members, seeds: list[Address]) -> list[tuple[int, int]]:
    return [await members.admin(each).history() for each in seeds]


def test_all_nodes_keep_it_kill_9_is_no_end_of_it_and_a_node_that_joins_gets_it() -> None:
    with ExitStack() as stack:
        nodes = [stack.enter_context(testing.node(vbuckets=4, vbucket_state="none")) for _ in range(3)]
        members, joining = nodes[:2], nodes[2:]
        on(members, lambda known, seeds: found_cluster(known, seeds, 1))
        on(members[:1], lambda known, seeds: buckets.create(known, seeds, BucketWish("orders")))
        for bucket, seconds, size in (("default", 3600, None), ("default", None, 2 * MIB), ("orders", 60, 0)):
            assert on(members[:1], lambda known, seeds: buckets.keep_history(known, seeds, bucket, seconds, size)) == 2  # noqa: B023 - called at once
        for node in members:
            node.kill()
        for node in members:
            node.start()
        assert kept(members) == [(3600, 2 * MIB)] * 2
        assert kept(members, "orders") == [(60, 0)] * 2
        on(members, lambda known, seeds: Rebalance(known, seeds, add=[_place(joining[0])]).run())
        assert kept(nodes) == [(3600, 2 * MIB)] * 3
        members[1].stop()
        with pytest.raises(ClusterError, match="as before on 1 of 3 nodes"):
            on(members[:1], lambda known, seeds: buckets.keep_history(known, seeds, "default", 7, None))
        members[1].start()
        assert kept(nodes) == [(7, 2 * MIB), (3600, 2 * MIB), (7, 2 * MIB)], "the same again goes on"


def _place(node: Node) -> Address:
    return Address(node.host, node.port)


def test_nodes_that_are_made_a_cluster_get_the_history_of_the_one_with_documents() -> None:
    with testing.node(vbuckets=4) as first, testing.node(vbuckets=4, vbucket_state="none") as second:
        with first.client() as client:
            client.set(b"k", b"v")
        on([first], lambda known, seeds: buckets.keep_history(known, seeds, "default", 60, None))
        on([first, second], lambda known, seeds: found_cluster(known, seeds, 0))
        assert kept([first, second]) == [(60, 0)] * 2
