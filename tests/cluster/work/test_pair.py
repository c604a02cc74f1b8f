"""Work on a pair: what is shown is what is promoted, or nothing is."""

import asyncio

import pytest

from headwater.cluster.work import PromoteReplicas, WorkRun
from headwater.errors import ClusterError
from headwater.wire.vbucket import State
from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B


def pair(owner: FakeNode | None = None) -> FakeMembers:
    """B follows A, which is dead unless it is given."""
    replica = FakeNode(B, "r r", seqnos=[1200, 34], follows={f"{A}/default": [0, 1]})
    return FakeMembers(owner or FakeNode(A, is_gone=True), replica)


def test_what_was_shown_is_promoted() -> None:
    members, work = pair(), PromoteReplicas(B, vbuckets=(0,))
    plan = asyncio.run(work.plan(members, [B]))
    assert plan.lines == (f"to become active: 1 vbucket of {B}",) and not plan.facts["begun"]
    outcome = asyncio.run(work.run(members, [B], WorkRun(plan=plan)))
    assert outcome.line == "done: 1,200 changes of history are served" and outcome.facts["begun"]
    assert members.nodes[B].held == {0: State.ACTIVE, 1: State.REPLICA}


def test_an_owner_that_came_back_since_the_plan_was_shown_is_not_made_dead_by_force() -> None:
    members, work = pair(), PromoteReplicas(B, force=True)
    plan = asyncio.run(work.plan(members, [B]))
    back = FakeNode(A, "A A")
    members.nodes[A], back.calls = back, members.calls
    with pytest.raises(ClusterError, match="not as they were when the plan was shown"):
        asyncio.run(work.run(members, [B], WorkRun(plan=plan)))
    assert members.calls == []
