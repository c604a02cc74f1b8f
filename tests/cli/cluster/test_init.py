"""`headwater cluster init`: what is made of nodes without data, of one with, and of two with."""

from headwater.wire.vbucket import State
from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B

BOTH = ("cluster", "init", "node-a:11210", "node-b:11210")


def test_empty_nodes_get_a_map_and_then_their_vbuckets(told):
    members = FakeMembers(FakeNode(A, ". ."), FakeNode(B, ". ."))
    status, shown, problems = told(members, *BOTH, "--replicas", "1")
    assert (status, problems) == (0, "")
    (sent,) = members.sent
    assert shown == f"2 vbuckets of default on 2 nodes, 1 replica of each, map {sent.epoch}:{sent.rev}\n"
    assert members.calls[0] == ("map", sent.rev)
    assert sorted(members.calls[1:]) == sorted((sent.owner(vb), "set_state", vb, State.ACTIVE) for vb in (0, 1))


def test_a_node_with_data_owns_everything_and_the_next_step_is_named(told):
    members = FakeMembers(FakeNode(A, "A A"), FakeNode(B, ". ."))
    status, shown, _ = told(members, *BOTH)
    assert status == 0 and [members.sent[0].owner(vb) for vb in (0, 1)] == [A, A]
    assert shown.endswith("node-a:11210 owns them all; spread them: headwater cluster rebalance node-a:11210\n")


def test_nodes_that_join_one_with_data_get_its_history(told):
    full = FakeNode(A, "A A")
    full.kept = 60, 1 << 20
    members = FakeMembers(full, FakeNode(B, ". ."))
    assert told(members, *BOTH)[0] == 0
    assert [call for call in members.calls if "keep_history" in call] == [(B, "keep_history", 60, 1 << 20)]


def test_one_node_is_not_several_and_has_nothing_to_spread(told):
    _, shown, _ = told(FakeMembers(FakeNode(A, "A A")), *BOTH[:3])
    assert shown.startswith("2 vbuckets of default on 1 node, 0 replicas of each") and "spread" not in shown


def test_two_nodes_with_data_are_no_cluster(told):
    members = FakeMembers(FakeNode(A, "A A"), FakeNode(B, "A A"))
    status, shown, problems = told(members, *BOTH)
    assert (status, shown, members.calls) == (1, "", [])
    assert "node-a:11210" in problems and "node-b:11210" in problems and problems.count("\n") == 1
