"""How far back a bucket keeps old versions, and its quota: on all nodes, after kill -9, and on nodes that join."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest

from headwater import testing
from headwater.client.routing import Address
from headwater.cluster import buckets
from headwater.cluster.admin import NodeAdmin
from headwater.cluster.buckets import BucketWish
from headwater.cluster.founding import found_cluster, planned
from headwater.cluster.members import Members
from headwater.cluster.rebalance import Rebalance
from headwater.errors import ClusterError
from headwater.testing.node import Node
from headwater.wire.admin import SetParam

from .nodes import VBUCKETS, command, empty_nodes

Result = TypeVar("Result")
MIB = 1 << 20


def on(nodes: list[Node], work: Callable[[Members, list[Address]], Awaitable[Result]]) -> Result:
    async def run() -> Result:
        async with Members() as members:
            return await work(members, [Address(node.host, node.port) for node in nodes])

    return asyncio.run(run())


def kept(nodes: list[Node], bucket: str = "default") -> list[tuple[int, int]]:
    return on(nodes, lambda members, seeds: _kept(members.of(bucket), seeds))


async def _kept(members: Members, seeds: list[Address]) -> list[tuple[int, int]]:
    return [await members.admin(seed).history() for seed in seeds]


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


@pytest.mark.parametrize(("before", "after"), [((60, 0), (0, MIB)), ((0, MIB), (60, 0)), ((60, 0), (7, MIB))])
def test_a_history_that_gets_another_limit_ends_in_no_moment(
    before: tuple[int, int], after: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each limit is a request of its own; where neither is in force, a compaction removes the history."""
    ask, seen = NodeAdmin._ask, list[tuple[int, int]]()

    async def watched(admin: NodeAdmin, request: Any, *words: Any) -> Any:
        answer = await ask(admin, request, *words)
        if isinstance(request, SetParam):
            seen.append(await admin.history())
        return answer

    monkeypatch.setattr(NodeAdmin, "_ask", watched)
    with testing.node(vbuckets=4) as node:
        for limits in (before, after):
            on([node], lambda known, seeds: known.admin(seeds[0]).keep_history(*limits))  # noqa: B023 - called at once
    assert (len(seen), seen[-1], all(map(any, seen))) == (4, after, True)


def _place(node: Node) -> Address:
    return Address(node.host, node.port)


def test_nodes_that_are_made_a_cluster_get_the_history_of_the_one_with_documents() -> None:
    with testing.node(vbuckets=4) as first, testing.node(vbuckets=4, vbucket_state="none") as second:
        with first.client() as client:
            client.set(b"k", b"v")
        on([first], lambda known, seeds: buckets.keep_history(known, seeds, "default", 60, None))
        on([first, second], lambda known, seeds: found_cluster(known, seeds, 0))
        assert kept([first, second]) == [(60, 0)] * 2


def test_a_history_that_was_ended_does_not_come_back_with_a_node_that_was_away() -> None:
    with empty_nodes(4) as nodes:
        members, back, new = nodes[:2], nodes[2], nodes[3]
        on(members, lambda known, seeds: found_cluster(known, seeds, 1))
        _set(back, 3600)  # as a member that was failed over before the history was ended
        on(members, lambda known, seeds: Rebalance(known, seeds, add=[_place(back)]).run())
        assert kept([*members, back]) == [(0, 0)] * 3
        on(members, lambda known, seeds: Rebalance(known, seeds, add=[_place(new)]).run())
        assert kept(nodes) == [(0, 0)] * 4


def test_a_default_for_new_collections_does_not_come_back_with_a_node_that_was_away() -> None:
    with empty_nodes(3) as nodes:
        on(nodes[:1], lambda known, seeds: found_cluster(known, seeds, 0))
        for joining, default in ((nodes[1], False), (nodes[2], True)):
            _say_of_new([joining], history=not default)
            _say_of_new(nodes[: nodes.index(joining)], history=default)
            place = [_place(joining)]
            on(nodes[:1], lambda known, seeds: Rebalance(known, seeds, add=place).run())  # noqa: B023 - called at once
            have = on(nodes[:1], lambda known, seeds: buckets.collections_have_history(known, seeds, "default"))
            assert set(have.values()) == {default}


@pytest.mark.parametrize("quota", [256, 0])
def test_a_quota_does_not_come_back_with_a_node_that_was_away(quota: int) -> None:
    """With less it would refuse documents; without any it would fill a disk, and the next node would get that."""
    with empty_nodes(3) as nodes:
        members, back = nodes[:2], nodes[2]
        on(members, lambda known, seeds: found_cluster(known, seeds, 1))
        on(members, lambda known, seeds: buckets.create(known, seeds, BucketWish("orders", quota_mib=quota)))
        # As a member that was failed over before the quota was changed.
        on([back], lambda known, seeds: known.of("").admin(seeds[0]).create_bucket("orders", None, 128, is_empty=True))
        on(members, lambda known, seeds: Rebalance(known.of("orders"), seeds, add=[_place(back)]).run())
        assert [on([node], _quota) for node in nodes] == [quota] * 3


def test_a_node_whose_first_bucket_it_is_joins_without_a_quota() -> None:
    with empty_nodes(2) as members, testing.node(vbuckets=VBUCKETS, vbucket_state="none", bucket="orders") as joining:
        on(members, lambda known, seeds: found_cluster(known, seeds, 1))
        on(members, lambda known, seeds: buckets.create(known, seeds, BucketWish("orders", quota_mib=256)))
        on(members, lambda known, seeds: Rebalance(known.of("orders"), seeds, add=[_place(joining)]).run())
        assert [on([each], _quota) for each in (*members, joining)] == [256, 256, 0]


def test_members_whose_first_bucket_it_is_take_no_quota_off_a_node_that_joins() -> None:
    with ExitStack() as stack:
        firsts = [stack.enter_context(_empty(bucket="orders")) for _ in range(2)]
        members = [stack.enter_context(_empty(bucket="default")), *firsts]
        joining = stack.enter_context(_empty(bucket="default"))
        _make_orders(members[0], 256)
        _make_orders(joining, 128)
        on(members, lambda known, seeds: found_cluster(known.of("orders"), seeds, 0))
        on(members, lambda known, seeds: Rebalance(known.of("orders"), seeds, add=[_place(joining)]).run())
        assert [on([each], _quota) for each in (*members, joining)] == [256, 0, 0, 256]


def _make_orders(node: Node, quota: int) -> None:
    wish = ("orders", None, quota)
    on([node], lambda known, seeds: known.of("").admin(seeds[0]).create_bucket(*wish, is_empty=True))


def _empty(bucket: str) -> Any:
    return testing.node(vbuckets=VBUCKETS, vbucket_state="none", bucket=bucket)


async def _quota(known: Members, seeds: list[Address]) -> int:
    return await known.of("orders").admin(seeds[0]).quota_mib()


def test_a_node_that_joins_gets_what_most_members_keep_and_of_two_the_one_that_keeps_any() -> None:
    with empty_nodes(4) as nodes:
        on(nodes[:2], lambda known, seeds: found_cluster(known, seeds, 1))
        _set(nodes[1], 60)
        on(nodes[:1], lambda known, seeds: Rebalance(known, seeds, add=[_place(nodes[2])]).run())
        assert kept(nodes[:3]) == [(0, 0), (60, 0), (60, 0)]
        _set(nodes[0], 7)
        on(nodes[:1], lambda known, seeds: Rebalance(known, seeds, add=[_place(nodes[3])]).run())
        assert kept(nodes) == [(7, 0), (60, 0), (60, 0), (60, 0)]


def test_empty_nodes_that_are_made_a_cluster_get_the_history_of_the_first_that_keeps_any() -> None:
    with empty_nodes(3) as nodes:
        _set(nodes[1], 60)
        on(nodes, lambda known, seeds: found_cluster(known, seeds, 1))
        assert kept(nodes) == [(60, 0)] * 3


def test_a_node_without_documents_brings_no_history_into_the_cluster_of_one_with_documents() -> None:
    with testing.node(vbuckets=4) as first, testing.node(vbuckets=4, vbucket_state="none") as second:
        with first.client() as client:
            client.set(b"k", b"v")
        _set(second, 60)
        on([first, second], lambda known, seeds: found_cluster(known, seeds, 0))
        assert kept([first, second]) == [(0, 0)] * 2


def test_init_that_was_killed_behind_the_map_has_brought_the_history_before() -> None:
    with testing.node(vbuckets=VBUCKETS) as first, empty_nodes(2) as others:
        with first.client() as client:
            client.set(b"k", b"v")
        nodes = [first, *others]
        _set(first, 60)
        line = ("cluster", "init", *(node.address for node in nodes), "--replicas", "1")
        assert command(*line, failpoints="init.map_sent=kill")[0] < 0
        assert kept(nodes) == [(60, 0)] * 3, "the map makes members of them that have it"
        assert command(*line)[0] == 0
        assert kept(nodes) == [(60, 0)] * 3


@pytest.mark.parametrize("seconds", [60, 0])
def test_init_that_goes_on_gives_nodes_without_the_map_the_history_of_those_with_it(seconds: int) -> None:
    with empty_nodes(3) as nodes:
        first = on(nodes, lambda known, seeds: planned(known, seeds, 1)).map
        on(nodes, lambda known, seeds: known.tell(seeds[0], first))  # the run was killed while it sent the map
        _set(nodes[0], seconds)
        _set(nodes[1], 3600)
        on(nodes, lambda known, seeds: found_cluster(known, seeds, 1))
        assert kept(nodes) == [(seconds, 0)] * 3


def test_a_node_that_keeps_what_the_members_keep_is_not_told() -> None:
    """One of a release that knows no history shows none, and refuses the number 0 as well."""
    empty = testing.node(vbuckets=VBUCKETS, vbucket_state="none", log_level="info")
    with empty_nodes(1) as (member,), empty as joining:
        on([member], lambda known, seeds: found_cluster(known, seeds, 0))
        on([member], lambda known, seeds: Rebalance(known, seeds, add=[_place(joining)]).run())
        assert "of history" not in joining.log
        _set(joining, 60)
        assert "60 s of history" in joining.log


def _set(node: Node, seconds: int) -> None:
    on([node], lambda known, seeds: known.admin(seeds[0]).keep_history(seconds, None))


def _say_of_new(nodes: list[Node], *, history: bool) -> None:
    for node in nodes:
        on([node], lambda known, seeds: known.admin(seeds[0]).give_collections_history(history=history))
