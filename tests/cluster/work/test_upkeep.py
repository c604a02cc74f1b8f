"""Work on stored documents, on one node."""

import asyncio

import pytest

from headwater import testing
from headwater.cluster.members import Members
from headwater.cluster.work import Compact, Flush, WorkRun
from headwater.errors import OptionError
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
