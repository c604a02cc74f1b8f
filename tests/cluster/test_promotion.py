"""Promoting the replicas of a pair without a map: whose, which, and what is refused."""

import asyncio

import pytest

from headwater import testing
from headwater.client.routing import Address, parse
from headwater.cluster.admin import Endpoint, NodeAdmin
from headwater.cluster.members import Members
from headwater.cluster.promotion import plan_promotion, promote
from headwater.cluster.refusals import FailoverRefusal
from headwater.cluster.survey import NodeView
from headwater.errors import ClusterError
from headwater.wire.vbucket import State

from .fakes import FakeMembers, FakeNode
from .views import A, B, C, a_map

FOLLOWED = f"{A}/default"


def pair(owner=None, replica="r r r", **options):
    """A is the owner, gone unless it is given; B follows it, all of its vbuckets."""
    owner = owner or FakeNode(A, is_gone=True)
    options.setdefault("follows", {FOLLOWED: [0, 1, 2]})
    return FakeMembers(owner, FakeNode(B, replica, **options))


def planned(members, **options):
    return asyncio.run(plan_promotion(members, B, **options))


def test_the_replicas_of_a_dead_node_are_promoted_with_the_seqnos_they_have():
    members = pair(seqnos=[7, 8, 9])
    plan = planned(members)
    assert (plan.node, plan.sources, plan.vbuckets) == (B, {A: [0, 1, 2]}, {0: 7, 1: 8, 2: 9})
    assert plan.owned == {} and members.calls == []


def test_what_is_active_dead_or_elsewhere_is_none_of_it():
    assert planned(pair(replica="A p d")).vbuckets == {1: 10}


def test_only_the_vbuckets_that_were_named_are_promoted():
    assert planned(pair(), vbuckets=[0, 2, 9]).vbuckets == {0: 10, 2: 10}


def test_only_what_follows_the_node_that_was_named_is_promoted():
    members = pair(follows={FOLLOWED: [0], f"{C}/default": [1, 2]})
    members.nodes[C] = FakeNode(C, "A A A")
    plan = planned(members, source=A)
    assert plan.sources == {A: [0]} and plan.vbuckets == {0: 10}


def test_replicas_that_follow_nobody_any_more_are_promoted_by_the_owners_name():
    assert planned(pair(follows={}), source=A).vbuckets == {0: 10, 1: 10, 2: 10}


@pytest.mark.parametrize(
    ("members", "problem", "advice"),
    [
        (FakeMembers(FakeNode(B, is_gone=True)), "does not answer .connection refused.", "start it"),
        (pair(replica=". . ."), "has no replica to promote", "name --vbuckets"),
        (pair(FakeNode(A, "A d A")), "lives and owns the vbuckets 0,2", f"--from {A} --to {B} --takeover"),
    ],
    ids=["silent", "no replicas", "a living owner"],
)
def test_what_can_not_be_done_is_refused_with_the_next_step(members, problem, advice):
    with pytest.raises(ClusterError, match=problem) as refused:
        planned(members)
    assert advice in refused.value.advice and members.calls == []


@pytest.mark.parametrize(("chain", "servers", "is_cluster"), [("AB", (A, B), True), ("B", (B,), False)])
def test_members_of_a_cluster_have_a_command_of_their_own_and_a_map_of_one_makes_none(chain, servers, is_cluster):
    members = pair()

    async def view(address):
        return NodeView(address, map=a_map(chain, servers=servers), states={0: State.REPLICA}, seqnos={0: 3})

    members.view = view
    if is_cluster:
        with pytest.raises(ClusterError, match="is in a cluster"):
            planned(members)
    else:
        assert planned(members).vbuckets == {0: 3}


def test_the_owner_is_made_dead_the_replica_lets_go_and_only_then_it_is_promoted():
    members = pair(FakeNode(A, "A A d"))
    plan = planned(members, force=True)
    assert plan.owned == {A: [0, 1]}
    asyncio.run(promote(members, plan))
    assert members.calls == [
        *((A, "set_state", vb, State.DEAD) for vb in (0, 1)),
        (B, "stop_replicating", FOLLOWED, [0, 1, 2]),
        *((B, "set_state", vb, State.ACTIVE) for vb in (0, 1, 2)),
    ]


@pytest.mark.parametrize(("follows", "source"), [({FOLLOWED: [0, 1, 2]}, None), ({}, A)])
def test_an_owner_that_came_back_since_it_was_looked_at_is_not_joined_by_a_second_one(follows, source):
    """The owner was started while the operator was asked whether to go on."""
    members = pair(follows=follows)
    plan = planned(members, source=source, force=True)
    back = members.nodes[A] = FakeNode(A, "A A d")
    with pytest.raises(ClusterError, match=f"{A} lives and owns the vbuckets 0-1"):
        asyncio.run(promote(members, plan))
    assert members.calls == back.calls == []
    asyncio.run(promote(members, planned(members, source=source, force=True)))
    assert back.held == dict.fromkeys(range(3), State.DEAD)


def test_what_is_not_promoted_goes_on_following():
    members = pair()
    asyncio.run(promote(members, planned(members, vbuckets=[1])))
    assert members.calls == [(B, "stop_replicating", FOLLOWED, [1]), (B, "set_state", 1, State.ACTIVE)]
    assert members.nodes[B].follows == {FOLLOWED: [0, 2]}


def test_what_is_accepted_by_its_name_overrides_nothing_that_was_not_seen():
    """The replica is damaged, and the owner that has the changes lives after all."""
    members = pair(FakeNode(A, "A A A"))
    members.nodes[B].damage = {1: 3}
    with pytest.raises(ClusterError, match=r"lives and owns .* has damaged changes of the vbuckets 1") as refused:
        planned(members)
    assert "in spite of all 2: --accept alive --accept damaged" in refused.value.advice
    with pytest.raises(ClusterError, match=f"{A} lives and owns the vbuckets 0-2"):
        planned(members, accept=[FailoverRefusal.DAMAGED])
    both = [FailoverRefusal.DAMAGED, FailoverRefusal.ALIVE]
    assert planned(members, accept=both).accepted.keys() == set(both) == planned(members, force=True).accepted.keys()


def test_a_replica_that_was_never_whole_is_promoted_only_where_that_is_accepted():
    """The replica was being made when the owner died: it has some of the documents, and looks like any other."""
    members = pair()
    members.nodes[B].within = {2: 0}
    with pytest.raises(ClusterError, match=f"{B} has received a part only of the vbuckets 2") as refused:
        planned(members)
    assert "--accept part" in refused.value.advice
    assert planned(members, accept=[FailoverRefusal.PART]).vbuckets == {0: 10, 1: 10, 2: 10}


def test_a_replica_with_damaged_changes_is_promoted_by_force_alone():
    members = pair()
    members.nodes[B].damage = {1: 3}
    with pytest.raises(ClusterError, match=f"{B} has damaged changes of the vbuckets 1: a part of them can't be read"):
        planned(members)
    assert planned(members, force=True).vbuckets == {0: 10, 1: 10, 2: 10}
    assert planned(members, force=True).gaps == {1}, "the node wants the force said of each"


def test_an_owner_that_speaks_no_tls_where_it_is_called_by_tls_is_not_dead():
    """The replica followed it without TLS, by its plain port; the operator speaks TLS."""
    with testing.node(vbuckets=2, tls=True) as owner:
        options = {**owner.certificates.options, "vbucket_state": "none"}
        with testing.node(vbuckets=2, **options) as replica:
            tls = parse(f"{owner.tls_url}").tls
            name = Address(owner.host, owner.port)

            async def plan(**how):
                async with NodeAdmin(Endpoint(Address(replica.host, replica.port))) as node:
                    await node.replicate(Endpoint(name), [0, 1])
                async with Members(tls=tls) as members:
                    return await plan_promotion(members, Address(replica.host, replica.tls_port), **how)

            with pytest.raises(ClusterError, match=f"{name} takes connections, and can't be asked what it owns"):
                asyncio.run(plan())
            assert asyncio.run(plan(accept=[FailoverRefusal.ALIVE])).vbuckets == {0: 0, 1: 0}
            owner.stop()
            assert asyncio.run(plan()).owned == {}
