"""Work on where vbuckets are."""

import asyncio
from typing import Any, cast

import pytest

from headwater.cluster.work import FailOver, SpreadVbuckets, WorkRun
from headwater.errors import ClusterError
from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B, C, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")


def test_the_plan_of_a_rebalance_has_rows_lines_and_facts() -> None:
    alone = a_map("A", "A", "A", "A", servers=(A,), replicas=0)
    members: Any = FakeMembers(found=survey(alone, B=view(B, ". . . .", None)))
    plan = asyncio.run(SpreadVbuckets(add=(B,)).plan(members, [A]))
    assert plan.title == "b: 4 vbuckets, 0 replicas"
    assert plan.rows[1] == ("node-b:11210", "0", "2", "0", "0", "2", "joins")
    assert plan.lines == ("node-a:11210 hands 2 vbuckets over to node-b:11210",)
    assert (plan.amount, plan.facts["joining"], plan.is_empty) == (2, ["node-b:11210"], False)


def test_only_nodes_that_join_may_still_be_starting() -> None:
    assert SpreadVbuckets(add=(B,)).is_patient
    assert not SpreadVbuckets(remove=(B,)).is_patient


def test_a_refusal_is_accepted_by_its_name_and_the_plan_tells_what_may_be_lost() -> None:
    behind = LEVEL.with_needed({0: 14})
    nodes = [FakeNode(A, is_gone=True), FakeNode(B, "r A ."), FakeNode(C, ". r A")]
    members: Any = FakeMembers(*nodes, found=survey(behind, A=view(A, "", behind, error="connection refused")))
    plan = asyncio.run(FailOver((A,), accept=("behind",)).plan(members, [B]))
    assert plan.rows[0] == ("node-a:11210", "1", "0", "0", "taken out")
    assert plan.lines[0].startswith("accepted (behind): node-b:11210 has not caught up")
    assert plan.lines[1] == "vbucket 0 of node-b:11210 may lack the seqnos 11 to 14"
    assert plan.facts["losses"]["0"]["needed"] == 14


def test_a_failover_that_would_lose_more_than_was_shown_does_nothing() -> None:
    """With --force every refusal is accepted: only the plan says what the people who confirmed it give up."""
    behind = LEVEL.with_needed({0: 14})
    nodes = [FakeNode(A, is_gone=True), FakeNode(B, "r A ."), FakeNode(C, ". r A")]
    work = FailOver((A,), force=True)

    def members(cluster_map: Any) -> Any:
        return FakeMembers(*nodes, found=survey(cluster_map, A=view(A, "", cluster_map, error="connection refused")))

    shown = asyncio.run(work.plan(members(LEVEL), [B]))
    assert shown.facts["losses"] == {}
    with pytest.raises(ClusterError, match=r"vbucket 0: may lack the seqnos 11 to 14, which was not shown"):
        asyncio.run(work.run(members(behind), [B], WorkRun(plan=shown)))
    assert [call for node in nodes for call in node.calls if call[1] in ("set_state", "send")] == []
    shown = asyncio.run(work.plan(members(behind), [B]))
    assert "0" in asyncio.run(work.run(members(behind), [B], WorkRun(plan=shown))).facts["promoted"]


def test_a_failover_is_confirmed_by_the_names_of_the_dead() -> None:
    assert FailOver((A, B)).confirmation("orders") == "node-a:11210 node-b:11210"
    assert FailOver((A,)).title == "Failover of node-a:11210"


def test_what_nobody_owns_goes_on_without_a_dead_node() -> None:
    """A refusal names `headwater cluster failover --accept damaged`, also where all members are alive."""
    told = {B: view(B, "r A r", LEVEL, damaged={0: 1}, complete=[4, 10, 10]), C: view(C, ". r A", LEVEL)}
    nodes = [FakeNode(A, "d . r"), FakeNode(B, "r A r"), FakeNode(C, ". r A")]
    found = survey(LEVEL, A=view(A, "d . r", LEVEL, seqnos=[2, 10]), B=told[B], C=told[C])
    work, members = FailOver(accept=("damaged",)), FakeMembers(*nodes, found=found)
    assert (work.title, work.confirmation("orders")) == ("Failover of what nobody owns", "orders")
    plan = asyncio.run(work.plan(cast(Any, members), [B]))
    assert plan.facts["promoted"] == {"0": "node-b:11210"} and plan.facts["out"] == []
