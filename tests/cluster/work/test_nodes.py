"""Work on the nodes of a cluster."""

import asyncio
from typing import Any

from headwater.cluster.work import EncryptCluster, InitCluster, WorkRun
from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B, a_map, survey


def test_a_cluster_is_planned_with_the_numbers_of_each_node_and_made_as_planned() -> None:
    members: Any = FakeMembers(FakeNode(A, ". ."), FakeNode(B, ". ."))
    work = InitCluster((A, B), replicas=1)
    assert (work.title, work.is_patient) == ("Make a cluster of node-a:11210, node-b:11210", True)
    plan = asyncio.run(work.plan(members, []))
    assert plan.rows == (("node-a:11210", "1", "1"), ("node-b:11210", "1", "1"))
    assert (plan.facts["begun"], members.sent) == (False, [])
    outcome = asyncio.run(work.run(members, [], WorkRun()))
    assert (outcome.line, outcome.facts) == (plan.lines[0], {**plan.facts, "begun": True})


def test_the_next_step_is_named_where_a_node_has_data() -> None:
    members: Any = FakeMembers(FakeNode(A, "A A"), FakeNode(B, ". ."))
    plan = asyncio.run(InitCluster((A, B)).plan(members, []))
    assert plan.lines[1] == "node-a:11210 owns them all; spread them: headwater cluster rebalance node-a:11210"


def test_how_nodes_call_each_other_is_told_before_and_after() -> None:
    members: Any = FakeMembers(found=survey(a_map("AB", "BC", "CA")))
    plan = asyncio.run(EncryptCluster(encrypted=False).plan(members, [A]))
    assert plan.lines == ("The 3 nodes call each other without TLS now, and then without TLS",)
    outcome = asyncio.run(EncryptCluster(encrypted=False).run(members, [A], WorkRun()))
    assert outcome.line.startswith("the nodes call each other without TLS, map 2:")
