"""Work on stored documents, on one node."""

import asyncio

import pytest

from headwater import testing
from headwater.cluster.admin import NodeAdmin
from headwater.cluster.founding import found_cluster
from headwater.cluster.members import Members
from headwater.cluster.work import Compact, Flush, WorkRun
from headwater.errors import ClusterError, OptionError
from tests.cluster.nodes import at


def test_a_flush_tells_each_node_and_an_owner_is_found_for_a_compaction() -> None:
    async def doing(node: testing.Node) -> None:
        steps: list[str] = []
        async with Members() as members:
            plan = await Flush().plan(members, at(node))
            assert plan.lines == (f"Every document of this bucket is deleted, on {node.address}",)
            run = WorkRun(report=lambda each: steps.append(each.now))
            await Flush().run(members, at(node), run)
            assert (steps, run.done, run.total) == ([f"{node.address} deletes its documents"], 1, 1)
            outcome = await Compact(0, hours=1).run(members, at(node), WorkRun())
            assert outcome.line == f"{node.address} has compacted its log"
            with pytest.raises(OptionError, match="one that a node has active"):
                await Compact(5, hours=1).plan(members, at(node))

    with testing.node(vbuckets=1) as node:
        asyncio.run(doing(node))


def test_a_flush_is_of_all_members_while_nobody_hands_anything_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vbucket that went to a node which had deleted its documents before was spared, and so was one in between."""
    refusals: list[str] = []

    async def doing(nodes: list[testing.Node]) -> None:
        flush = NodeAdmin.flush

        async def flush_beside_a_rebalance(admin: NodeAdmin) -> None:
            async with Members() as others:
                with pytest.raises(ClusterError) as refused:
                    async with others.alone("rebalance", at(*nodes), wait_seconds=0):
                        pass
            refusals.append(str(refused.value))
            await flush(admin)

        monkeypatch.setattr(NodeAdmin, "flush", flush_beside_a_rebalance)
        async with Members() as members:
            await found_cluster(members, at(*nodes), 0)
            outcome = await Flush().run(members, at(nodes[0]), WorkRun())
            assert outcome.line == "2 nodes have deleted their documents"

    with testing.node(vbuckets=2, vbucket_state="none") as one, testing.node(vbuckets=2, vbucket_state="none") as two:
        asyncio.run(doing([one, two]))
    assert len(refusals) == 2 and all("flush" in refusal for refusal in refusals)
