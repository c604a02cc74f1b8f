"""The first map."""

import asyncio

import pytest

from headwater.cluster.founding import first_map, planned
from headwater.cluster.members import Members
from headwater.errors import ClusterError, OptionError
from tests.node.aware import Aware, manifest

from .nodes import at, empty_nodes, init
from .views import A, B, C, a_map, view


def empty(address, states=". . . .", version=(1, 3)):
    return view(address, states, None, seqnos=[0] * (4 - states.count(".")), version=version)


def test_empty_nodes_share_the_vbuckets_and_their_replicas():
    made, data_on = first_map([empty(A), empty(B, "A A A A", (1, 50))], "beer", 1)
    assert data_on is None and made.bucket == "beer" and made.version > (1, 50)
    assert [len(held) for node in (A, B) for held in made.held_by(node)] == [2, 2, 2, 2]
    assert made.replica_count == 1 and len(made.uuid) == 32


def test_no_map_that_a_node_makes_for_itself_is_newer_than_a_clusters():
    """Such a map counts from the milliseconds of the start: one that comes back without its disk has the newest."""
    made, _ = first_map([empty(A, version=(1, 1_795_420_000_000)), empty(B)], "beer", 1)
    assert made.version > (1, 1 << 62)


def test_a_node_with_data_owns_everything_at_first():
    made, data_on = first_map([empty(A), view(B, "A A A A", None)], "b", 1)
    assert data_on == B and set(made.chains) == {(1,)} and made.replica_count == 1


def test_a_run_that_was_killed_finds_its_map():
    given = a_map("A", "B", "A", "B", servers=(A, B), replicas=0)
    assert first_map([view(A, "A . A .", given), empty(B)], "b", 0) == (given, None)


@pytest.mark.parametrize(
    ("views", "problem"),
    [
        ([empty(A), view(B, "", None, error="connection refused")], "node-b:11210 does not answer"),
        ([empty(A), view(B, ". .", None)], "has 2 vbuckets, node-a:11210 has 4"),
        ([view(A, "A A A A", None), view(B, "A A A A", None)], "both have documents"),
        ([view(A, "A A r A", None)], "owns 3 of the 4 vbuckets"),
        ([empty(A), view(C, ". . . .", a_map("A", "C", "A", "C"))], "is in a cluster with node-a"),
    ],
)
def test_nodes_that_can_not_be_one_cluster_are_refused(views, problem):
    with pytest.raises(ClusterError, match=problem):
        first_map(views, "b", 0)


def test_nobody_is_no_cluster():
    with pytest.raises(OptionError):
        first_map([], "b", 0)


def test_nodes_whose_collections_are_not_of_one_bucket_become_no_cluster():
    with empty_nodes(2) as nodes:
        for node, told in zip(nodes, (manifest(1, carts=8), manifest(2, orders=8)), strict=True):
            with Aware(node.port) as client:
                assert client.becomes(told) == 0

        async def plan():
            async with Members() as members:
                await planned(members, at(*nodes), 0)

        with pytest.raises(ClusterError, match=r"shop\.carts .*shop\.orders .*same id, 8.*headwater collection list"):
            asyncio.run(plan())
        with pytest.raises(ClusterError, match="not of one bucket"):
            init(*nodes)


def test_a_node_that_has_not_heard_of_the_newest_collections_founds_a_cluster_with_one_that_has():
    with empty_nodes(2) as nodes:
        for node, told in zip(nodes, (manifest(1, carts=8), manifest(2, carts=8, orders=9)), strict=True):
            with Aware(node.port) as client:
                assert client.becomes(told) == 0
        init(*nodes)
