"""`headwater replicate`: when it is done, when it gives up, and what it says. Real nodes follow in test_move.py."""

import asyncio

import pytest

from headwater import testing
from headwater.cli import replicate
from headwater.cli.failures import CommandError
from headwater.cli.replicate import FollowingWatch
from headwater.cluster.admin import NodeAdmin
from headwater.cluster.answers import FollowingReport as Told
from headwater.errors import TemporaryFailure
from headwater.testing.peers import serve
from headwater.wire.vbucket import State
from tests.cli.test_app import invoke
from tests.cluster.fakes import FakeNode
from tests.cluster.views import A, B
from tests.upr_peer import Change, UprPeer, three_snapshots

FOLLOWED = f"{A}/default"
A_TO_B = ("replicate", "node-a:11210", "node-b:11210")


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(replicate, "POLL_SECONDS", 0.0)


def follower(*seqnos, **options):
    return FakeNode(B, "r r", seqnos=list(seqnos), follows={FOLLOWED: [0, 1]}, **options)


def watch(old, new, *, once=True):
    """The changes that were counted."""
    return asyncio.run(FollowingWatch(old, new, [0, 1]).watch(once=once))[0]


def test_a_producer_that_knows_no_dcp_is_followed_to_where_it_is(monkeypatch):
    monkeypatch.setattr(replicate, "POLL_SECONDS", 0.05)
    producer = UprPeer(vbuckets=4, held={0: three_snapshots(), 3: [[Change(b"other")]]})
    with serve(producer) as address, testing.node(vbuckets=4, vbucket_state="none") as replica:
        status, shown, told = invoke("replicate", str(address), replica.address, "--once")
        assert (status, told) == (0, "") and "11 changes" in shown
        with replica.client() as bucket:
            held = bucket.stats("vbucket-details")
            assert [held[f"vb_{vbucket}:high_seqno"] for vbucket in range(4)] == ["10", "0", "0", "1"]


# --------------------------------------------------------------------------- watching


def catches_up(node, *steps):
    """Let its seqnos be these, one after the other, each time that it is asked."""
    waiting = list(steps)

    async def seqnos(state=None):
        return dict(enumerate(waiting.pop(0) if len(waiting) > 1 else waiting[0]))

    node.seqnos = seqnos
    return node


def test_it_is_over_when_all_vbuckets_have_what_there_was_at_the_beginning():
    new = catches_up(follower(0, 0), (0, 0), (5, 0), (10, 4), (10, 7))
    old = catches_up(FakeNode(A, "A A"), (10, 5), (99, 99))  # what is written meanwhile is not waited for
    assert watch(old, new) == 17


def test_one_within_a_snapshot_is_not_level_whatever_its_seqnos():
    new, left = follower(7, 9), [{0: 0, 1: 9}, {0: 7, 1: 9}]

    async def complete():
        return left.pop(0)

    new.complete = complete
    assert watch(FakeNode(A, "A A", seqnos=[7, 7]), new) == 0 and left == []


def test_a_follower_that_is_level_already_has_nothing_to_count():
    assert watch(FakeNode(A, "A A", seqnos=[7, 7]), follower(7, 9)) == 0


def has_problems(node, *problems):
    """Let it tell these, one after the other, each time that it is asked; the list is what is left."""
    waiting = list(problems)

    async def replication():
        return {FOLLOWED: Told(FOLLOWED, problem=waiting.pop(0) if len(waiting) > 1 else waiting[0])}

    node.replication = replication
    return waiting


def test_one_that_has_a_problem_is_not_level_whatever_its_seqnos():
    new = follower(7, 7)
    left = has_problems(new, "connection refused", "connection refused", "")
    assert watch(FakeNode(A, "A A", seqnos=[7, 7]), new) == 0 and left == [""]


def test_a_problem_that_stays_is_told_when_patience_ends(monkeypatch):
    new = follower(7, 7)
    has_problems(new, "no such user")
    monkeypatch.setattr(replicate, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(CommandError, match="node-b:11210 can't follow node-a:11210: no such user"):
        watch(FakeNode(A, "A A", seqnos=[7, 7]), new)


def test_a_vbucket_that_is_refused_again_and_again_is_told_by_number(monkeypatch):
    new = follower(7, 7)

    async def replication():
        return {FOLLOWED: Told(FOLLOWED, problems={1: "the producer answered NOT_MY_VBUCKET"})}

    new.replication = replication
    monkeypatch.setattr(replicate, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(CommandError, match="vbucket 1: the producer answered NOT_MY_VBUCKET"):
        watch(FakeNode(A, "A A", seqnos=[7, 7]), new)


def test_one_that_follows_somebody_else_has_not_begun(monkeypatch):
    monkeypatch.setattr(replicate, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(CommandError, match="not begun"):
        watch(FakeNode(A, "A A"), FakeNode(B, "r r", follows={"node-c:1/default": [0, 1]}))


# --------------------------------------------------------------------------- the command


@pytest.fixture
def connected(monkeypatch):
    """`connected(old, new)`: whom the command reaches."""

    def reach(*nodes):
        async def connect(endpoint):
            return next(node for node in nodes if node.address == endpoint.address)

        monkeypatch.setattr(NodeAdmin, "connect", connect)

    return reach


def test_once_ends_with_a_node_that_follows_no_more(connected):
    new = FakeNode(B, "r r", seqnos=[3, 4])
    connected(FakeNode(A, "A A", seqnos=[3, 4]), new)
    status, said, problems = invoke(*A_TO_B, "--once")
    assert (status, problems) == (0, "") and said.startswith("2 vbuckets level, 0 changes in 0.")
    assert said.endswith(" s; node-b:11210/default follows no more\n")
    assert new.calls[:2] == [(B, "replicate", FOLLOWED, [0, 1]), (B, "stop_replicating", FOLLOWED, [0, 1])]


class Starting(FakeNode):
    """Refuses to tell what it owns, as a member does that has just started; `silent_for` so many times."""

    silent_for = 3

    async def seqnos(self, state=None):
        if state is State.ACTIVE and self.silent_for:
            self.silent_for -= 1
            raise TemporaryFailure("ask for the seqnos")
        return await super().seqnos(state)


def test_all_that_a_node_owns_is_followed_though_it_has_just_started(connected, monkeypatch):
    new = FakeNode(B, "r r", seqnos=[3, 4])
    connected(Starting(A, "A A", seqnos=[3, 4]), new)
    assert invoke(*A_TO_B, "--once")[0] == 0
    assert new.calls[0] == (B, "replicate", FOLLOWED, [0, 1])
    monkeypatch.setattr(replicate, "PATIENCE_SECONDS", 0.0)
    connected(Starting(A, "A A", seqnos=[3, 4]), new)
    status, _, problems = invoke(*A_TO_B, "--once")
    assert status == 1 and "ask for the seqnos" in problems


def test_only_what_the_first_node_owns_can_be_followed(connected):
    new = FakeNode(B, "r r r")
    connected(FakeNode(A, "A r d"), new)
    status, _, problems = invoke(*A_TO_B, "--vbuckets", "0-2", "--once")
    assert (status, problems) == (1, f"headwater: {FOLLOWED} does not own vbucket 1, nor 1 others asked for\n")
    assert new.calls == [(B, "close")]


def test_stop_ends_the_following_of_some_or_all(connected):
    new = follower(1, 1)
    connected(new)
    assert invoke(*A_TO_B, "--stop", "--vbuckets", "1") == (0, f"{B}/default follows {FOLLOWED} no more\n", "")
    assert new.follows == {FOLLOWED: [0]}


def test_who_does_not_follow_can_not_stop(connected):
    connected(FakeNode(B, "A A"))
    assert invoke(*A_TO_B, "--stop") == (1, "", f"headwater: {B}/default does not follow {FOLLOWED}\n")
