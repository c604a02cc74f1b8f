"""The fence: who must be heard before a node serves again."""

from __future__ import annotations

import pytest

from headwater.node.membership.fence import Fence
from headwater.node.membership.map import read_map
from headwater.wire.cluster_map import ClusterMap
from tests.node.membership.support import cluster_map


def known(count: int, this: int | None = 0) -> ClusterMap:
    config = cluster_map(1, [f"n:{port}" for port in range(1, count + 1)], [[0]], this)
    return read_map(config, bucket="default", vbuckets=1)


@pytest.mark.parametrize(("nodes", "answers"), [(2, 1), (3, 1), (4, 2), (5, 2), (6, 3)])
def test_a_majority_opens_it(nodes: int, answers: int) -> None:
    fence = Fence(known(nodes))
    assert not fence.is_open and fence.missing == answers
    opened = [fence.hear(peer) for peer in known(nodes).peers]
    assert opened.index(True) == answers - 1 and opened.count(True) == 1
    assert fence.is_open and fence.missing == 0


def test_the_same_answer_twice_is_one_and_strangers_do_not_count() -> None:
    fence, map_of_five = Fence(known(5)), known(5)
    for _ in range(3):
        assert not fence.hear(map_of_five.peers[0])
    assert not fence.hear(known(6).peers[-1])
    assert fence.missing == 1 and fence.hear(map_of_five.peers[1])


def test_without_others_there_is_none() -> None:
    assert Fence(known(1)).is_open
    assert Fence(known(3, this=None)).is_open


def test_two_majorities_share_a_node() -> None:
    for nodes in range(2, 10):
        heard = 1 + Fence(known(nodes)).missing
        assert 2 * heard > nodes


def test_it_opens_only_when_it_is_known_that_nobody_else_is_this_member() -> None:
    fence, first = Fence(known(3), alone=None), known(3).peers[0]
    assert not fence.hear(first) and fence.missing == 0
    assert fence.hear_own(alone=True) and fence.is_open
    sooner = Fence(known(3), alone=None)
    assert not sooner.hear_own(alone=True) and sooner.hear(first)


def test_another_node_that_is_this_member_closes_it_for_good() -> None:
    fence = Fence(known(3), is_open=True)
    assert not fence.hear_own(alone=False) and not fence.is_open
    assert not fence.hear_own(alone=True) and not fence.hear(known(3).peers[0]) and not fence.is_open


def test_after_a_standstill_it_stays_open_and_in_doubt_until_a_majority_has_answered() -> None:
    fence, map_of_five = Fence(known(5), is_open=True), known(5)
    fence.hear(map_of_five.peers[0])
    fence.doubt()
    assert fence.is_open and fence.in_doubt and fence.missing == 2
    assert not fence.hear(map_of_five.peers[0]) and fence.in_doubt
    assert not fence.hear(map_of_five.peers[1]) and not fence.in_doubt and fence.missing == 0


def test_after_a_standstill_a_closed_one_needs_new_answers() -> None:
    fence, map_of_five = Fence(known(5)), known(5)
    fence.hear(map_of_five.peers[0])
    fence.doubt()
    assert not fence.hear(map_of_five.peers[1]) and not fence.is_open
    assert fence.hear(map_of_five.peers[2]) and fence.is_open and not fence.in_doubt


def test_a_map_that_leaves_nobody_to_wait_for_ends_the_doubt() -> None:
    assert Fence(known(2), is_open=True, in_doubt=True).in_doubt
    assert not Fence(known(1), is_open=True, in_doubt=True).in_doubt
    assert not Fence(known(2, this=None), is_open=True, in_doubt=True).in_doubt


def test_without_others_there_is_no_doubt() -> None:
    fence = Fence(known(1))
    fence.doubt()
    assert not fence.in_doubt
