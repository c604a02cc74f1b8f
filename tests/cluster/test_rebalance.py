"""Rebalance on real nodes: nothing is lost or doubled, whoever writes and whatever is killed meanwhile."""

import asyncio

import pytest

from headwater.cluster.members import Members
from headwater.cluster.proxied import Limits
from headwater.cluster.rebalance import Rebalance, RebalanceStep
from headwater.errors import ClusterError, HeadwaterError

from .contents import vbuckets
from .nodes import VBUCKETS, Writer, at, check, command, documents, empty_nodes, fill, init, rebalance

DOCUMENTS = documents()
KILLED = -9
IMPATIENT = Limits(patience_seconds=3.0)


def owned(*nodes):
    return [sum(state.name == "ACTIVE" for state in vbuckets(each.port).values()) for each in nodes]


def test_from_one_node_to_three_and_back_while_an_application_writes():
    with empty_nodes(3) as nodes:
        first, *others = nodes
        init(first)
        fill(first, DOCUMENTS)
        with Writer(first) as writer:
            rebalance(first, add=at(*others), replicas=1)
        check(nodes, DOCUMENTS | writer.acknowledged)
        assert sorted(owned(*nodes)) == [5, 5, 6]
        with Writer(first) as again:
            rebalance(first, remove=at(*others))
        check([first], DOCUMENTS | writer.acknowledged | again.acknowledged)
        assert owned(*nodes) == [VBUCKETS, 0, 0] and vbuckets(others[0].port) == {}
        assert len(again.acknowledged) > 0


@pytest.mark.parametrize(
    "failpoint",
    [
        "rebalance.joined=kill@2",
        "move.copying=kill@3",
        "move.pending_answered=kill@2",
        "move.active_sent=kill",
        "move.active_answered=kill@2",
        "move.owned=kill@3",
        "rebalance.narrowed=kill@4",
    ],
)
def test_a_rebalance_that_was_killed_goes_on_when_it_is_typed_again(failpoint):
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        line = ("cluster", "rebalance", nodes[0].address, "--add", nodes[1].address, "--replicas", "1", "--yes")
        assert command(*line, failpoints=failpoint)[0] == KILLED
        rebalance(nodes[0], add=at(nodes[1]), replicas=1)
        check(nodes, DOCUMENTS)
        assert owned(*nodes) == [VBUCKETS // 2] * 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_node_that_dies_during_a_rebalance_is_started_and_the_rest_is_done(which):
    with empty_nodes(3) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)

        def kill(step: RebalanceStep) -> None:
            if step.done == 3 and nodes[which].is_running:
                nodes[which].kill()

        with pytest.raises(HeadwaterError):
            rebalance(nodes[0], add=at(*nodes[1:]), replicas=1, progress=kill, limits=IMPATIENT)
        with pytest.raises(ClusterError, match="does not answer"):
            rebalance(nodes[2], add=at(*nodes[1:]), replicas=1)
        nodes[which].restart()
        rebalance(nodes[0], add=at(*nodes[1:]), replicas=1)
        check(nodes, DOCUMENTS)


def test_a_rebalance_that_is_asked_to_stop_leaves_nothing_half_done():
    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        done = []

        def stopping() -> bool:
            return len(done) >= 3

        asked = {"progress": done.append, "stopping": stopping, "vbuckets_at_once": 2}
        stopped = rebalance(nodes[0], add=at(nodes[1]), **asked)
        assert stopped is None
        check(nodes, DOCUMENTS)
        assert 0 < owned(nodes[1])[0] < VBUCKETS // 2
        assert rebalance(nodes[0], add=at(nodes[1])) is not None
        assert owned(*nodes) == [VBUCKETS // 2] * 2
        check(nodes, DOCUMENTS)


def test_two_at_the_same_time_do_not_harm_each_other():
    async def both(nodes):
        async with Members() as one, Members() as two:
            runs = (Rebalance(members, at(nodes[0]), add=at(nodes[1])).run() for members in (one, two))
            return await asyncio.gather(*runs, return_exceptions=True)

    with empty_nodes(2) as nodes:
        init(nodes[0])
        fill(nodes[0], DOCUMENTS)
        results = asyncio.run(both(nodes))
        assert not any(isinstance(each, BaseException) and not isinstance(each, HeadwaterError) for each in results)
        rebalance(nodes[0])
        check(nodes, DOCUMENTS)
        assert owned(*nodes) == [VBUCKETS // 2] * 2
