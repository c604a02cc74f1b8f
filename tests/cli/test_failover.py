"""`headwater failover`: what it says, asks and does with the replicas of a pair."""

from headwater.testing import Node
from headwater.wire.vbucket import State
from tests.cli.support import Run
from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B, C

PROMOTE_B = ("failover", "node-b:11210")


def pair(owner=None, **follows):
    """B follows A, which is dead unless it is given."""
    replica = FakeNode(B, "r r", seqnos=[1200, 34], follows=follows or {f"{A}/default": [0, 1]})
    return FakeMembers(owner or FakeNode(A, is_gone=True), replica)


def test_the_replicas_are_promoted_when_the_answer_is_yes(told):
    members = pair()
    status, shown, problems = told(members, *PROMOTE_B, answers="y\n")
    first, *_, last = shown.splitlines()
    assert (status, problems, first) == (0, "", "to become active: 2 vbuckets of node-b:11210")
    assert last.endswith("done: 1,234 changes of history are served")
    assert members.nodes[B].held == {0: State.ACTIVE, 1: State.ACTIVE}


def test_a_no_leaves_them_as_they_are(told):
    members = pair()
    assert told(members, *PROMOTE_B, answers="n\n")[0] == 130 and members.calls == []


def test_an_owner_that_lives_keeps_what_it_owns_unless_that_is_forced(told):
    members = pair(FakeNode(A, "A A"))
    status, _, problems = told(members, *PROMOTE_B, "--yes")
    assert (status, members.calls) == (1, [])
    assert "lives and owns the vbuckets 0-1" in problems and "headwater move --from node-a:11210" in problems
    status, shown, _ = told(members, *PROMOTE_B, "--yes", "--force")
    assert status == 0 and shown.startswith(
        "to become active: 2 vbuckets of node-b:11210, 2 made dead on node-a:11210\n"
    )


def test_what_is_accepted_by_its_name_is_told_before_the_question(told):
    members = pair(FakeNode(A, "A A"))
    status, shown, _ = told(members, *PROMOTE_B, "--accept", "alive", answers="n\n")
    assert (status, members.calls) == (130, [])
    assert "accepted (alive): node-a:11210 lives and owns the vbuckets 0-1" in shown
    members.nodes[B].damage = {1: 3}
    status, _, problems = told(members, *PROMOTE_B, "--accept", "alive", "--yes")
    assert (status, members.calls) == (1, []) and "damaged changes of the vbuckets 1" in problems


def test_only_the_vbuckets_that_are_named_are_promoted(told):
    members = pair()
    status, shown, _ = told(members, *PROMOTE_B, "--from", "node-a:11210", "--vbuckets", "1", "--yes")
    assert status == 0 and shown.endswith("done: 34 changes of history are served\n")
    assert members.nodes[B].held == {0: State.REPLICA, 1: State.ACTIVE}


def test_only_what_follows_the_node_that_is_named_is_promoted(told):
    members = pair(**{f"{A}/default": [0], f"{C}/default": [1]})
    status, shown, _ = told(members, *PROMOTE_B, "--from", "node-a:11210", "--yes")
    assert status == 0 and shown.endswith("done: 1,200 changes of history are served\n")
    assert members.nodes[B].held == {0: State.ACTIVE, 1: State.REPLICA}


def test_a_bucket_that_the_node_has_not_is_no_node_that_does_not_answer(run: Run, node: Node) -> None:
    status, out, problems = run("failover", f"{node.address}/mistyped", "--dry-run")
    assert (status, out) == (1, "") and "does not answer" not in problems and "start it" not in problems
    assert f"{node.address} refuses (" in problems and "is the bucket's name right" in problems
