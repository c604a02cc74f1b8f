"""Failing over: who takes over from the dead."""

import asyncio
from dataclasses import replace

import pytest

from headwater.cluster.failover import Failover, orphans, plan_failover, taken_back
from headwater.cluster.members import NO_OTHERS
from headwater.cluster.publisher import OWN_MAPS_MAX, Publisher
from headwater.cluster.refusals import FailoverRefusal
from headwater.cluster.repair import repair
from headwater.cluster.survey import NodeView, Survey, settle
from headwater.errors import AuthError, ClusterError
from headwater.node.membership.roles import News, news, role
from headwater.wire.cluster_map import UNKNOWN, ClusterMap
from headwater.wire.vbucket import State

from .fakes import FakeMembers, FakeNode
from .views import A, B, C, D, a_map, survey, view


def dead(found, node, **nodes):
    letter = {A: "A", B: "B", C: "C"}[node]
    return survey(found, **{letter: view(node, "", found, error="gone"), **nodes})


def test_the_replica_of_the_dead_nodes_vbucket_becomes_its_owner():
    plan = plan_failover(dead(a_map("AB", "BC", "CA"), A), [A], {})
    assert [
        (promotion.vbucket, promotion.lost, promotion.chosen, promotion.seqno) for promotion in plan.promotions
    ] == [(0, A, B, 10)]
    assert plan.after.servers == (B, C) and plan.after.rev > 7 and plan.anew == {}
    assert [plan.after.copies(vb) for vb in range(3)] == [(B,), (B, C), (C,)]


def test_the_longest_replica_is_chosen_and_the_other_follows_it():
    found = a_map("ABC", "BAC", "CAB", replicas=2)
    told = dead(found, A, B=view(B, "r A r", found, seqnos=[7, 9, 9]), C=view(C, "r r A", found, seqnos=[8, 9, 9]))
    plan = plan_failover(told, [A], {(B, 0): [(1, 0)], (C, 0): [(1, 0)]})
    assert plan.promotions[0].chosen == C and plan.after.copies(0) == (C, B)


def test_a_complete_copy_is_chosen_before_one_that_fills_up_and_is_further():
    found = a_map("ABC", replicas=2)
    told = dead(found, A, B=view(B, "r", found, seqnos=[1112]), C=view(C, "r", found, seqnos=[1224], complete=[0]))
    plan = plan_failover(told, [A], {(B, 0): [(1, 0)], (C, 0): [(1, 0)]})
    assert (plan.promotions[0].chosen, plan.after.copies(0)) == (B, (B, C))


def test_a_copy_of_a_history_that_was_given_up_is_not_chosen():
    found = a_map("ABC", replicas=2)
    told = dead(found, A, B=view(B, "r", found, seqnos=[70]), C=view(C, "r", found, seqnos=[8]))
    plan = plan_failover(told, [A], {(B, 0): [(1, 0)], (C, 0): [(2, 5), (1, 0)]})
    assert plan.promotions[0].chosen == C


def test_a_copy_that_the_map_does_not_name_is_promoted_only_where_that_is_accepted():
    found = a_map("A", replicas=0)
    told = dead(found, A, C="d")
    with pytest.raises(ClusterError, match="which the map does not name, has an old copy of vbucket 0 up to seqno"):
        plan_failover(told, [A], {})
    plan = plan_failover(told, [A], {}, accept=[FailoverRefusal.BEHIND])
    assert plan.promotions[0].chosen == C and FailoverRefusal.BEHIND in plan.losses[0].losses


def test_a_copy_that_the_map_does_not_name_is_promoted_beside_one_that_it_names():
    found = a_map("AB", replicas=1)
    told = dead(found, A, B=view(B, "r", found, seqnos=[5]), C=view(C, "d", found, seqnos=[7]))
    plan = plan_failover(told, [A], {(B, 0): [(1, 0)], (C, 0): [(1, 0)]})
    assert plan.promotions[0].chosen == C and not plan.losses


def test_a_vbucket_without_a_copy_is_begun_anew_only_when_that_is_asked_for():
    told = dead(a_map("A", "A", "B", replicas=0), A)
    with pytest.raises(ClusterError, match=r"no copy is left of 2 vbuckets .0-1."):
        plan_failover(told, [A], {})
    plan = plan_failover(told, [A], {}, lose_data=True)
    assert plan.anew == {0: C, 1: B} and plan.promotions == []
    assert [plan.after.owner(vb) for vb in range(3)] == [C, B, B]


def test_a_run_that_was_killed_after_the_map_goes_on():
    found = a_map("B", "BC", servers=(B, C))
    plan = plan_failover(survey(found, B="r A"), [A], {})
    assert [(promotion.vbucket, promotion.chosen) for promotion in plan.promotions] == [(0, B)] and not plan.is_empty
    assert plan_failover(survey(found), [A], {}).is_empty


def test_vbuckets_with_an_owner_are_nobodys_orphans():
    assert orphans(dead(a_map("AB", "BC"), C), [C]) == {}


def test_a_majority_is_taken_out_only_by_force():
    found = a_map("AB", "BC", "CA")
    told = dead(found, A, B=view(B, "", found, error="gone"))
    with pytest.raises(ClusterError, match="2 of 3 members are dead"):
        plan_failover(told, [A, B], {}, lose_data=True)
    assert plan_failover(told, [A, B], {}, force=True, lose_data=True).after.servers == (C,)


WAITS = "it waits for the map of 1 more of its peers"


def test_a_member_that_waits_for_the_dead_one_itself_takes_over_only_by_force():
    """B was failed over while it was down; A went on alone, by a map that B has not heard of, and died."""
    found = a_map("AB", "BA", servers=(A, B))
    left = dead(found, A, B=view(B, "r A", found, fenced=WAITS))
    with pytest.raises(ClusterError, match="node-a:11210 may have gone on alone"):
        plan_failover(left, [A], {})
    assert plan_failover(left, [A], {}, force=True).after.servers == (B,)


def test_a_member_that_stood_still_takes_over_the_other_only_by_force():
    """B was failed over while it was paused; A went on alone, by a map that B has not heard of, and died."""
    found = a_map("AB", "BA", servers=(A, B))
    left = dead(found, A, B=replace(view(B, "r A", found), in_doubt=True))
    with pytest.raises(ClusterError, match=r"node-b:11210 stood still .* node-a:11210 may have gone on alone"):
        plan_failover(left, [A], {})
    assert plan_failover(left, [A], {}, accept=[FailoverRefusal.MAJORITY]).after.servers == (B,)


def test_half_of_the_members_take_over_when_one_of_them_serves():
    found = a_map("AB", "BA", servers=(A, B))
    assert plan_failover(dead(found, A, B=view(B, "r A", found)), [A], {}).after.servers == (B,)


def test_a_majority_takes_over_though_each_of_it_waits():
    """Others that went on without them would have been a minority, by force."""
    found = a_map("AB", "BC", "CA")
    waiting = {"B": view(B, "r A .", found, fenced=WAITS), "C": view(C, ". r A", found, fenced=WAITS)}
    assert plan_failover(dead(found, A, **waiting), [A], {}).after.servers == (B, C)


def test_somebody_must_be_left():
    with pytest.raises(ClusterError, match="no other member, so nobody is left"):
        plan_failover(survey(a_map("A", servers=(A,))), [A], {}, force=True)


def behind(node, **dead_one):
    """A owns the vbucket and has it up to 168, as C does; B has 130."""
    found = a_map("ABC", replicas=2)
    views = {"A": view(A, "A", found, seqnos=[168]), "B": view(B, "r", found, seqnos=[130])}
    return dead(found, node, **{**views, "C": view(C, "r", found, seqnos=[168])} | dead_one)


def test_a_copy_that_was_behind_when_another_was_taken_out_must_catch_up_to_be_promoted():
    """A and C are the majority that has acknowledged up to 168; C is taken out, then A dies."""
    after = plan_failover(behind(C, C=view(C, "", a_map("ABC", replicas=2), error="gone")), [C], {}).after
    assert (after.copies(0), after.needed) == ((A, B), {0: 168})
    kept = ClusterMap.from_json(after.to_json(B))
    told = survey(kept, A=view(A, "", kept, error="gone"), B=view(B, "r", kept, seqnos=[130]))
    with pytest.raises(ClusterError, match=r"vbucket 0 up to seqno 130, and durable writes up to 168 may be at the de"):
        plan_failover(told, [A], {})
    forced = plan_failover(told, [A], {}, force=True).after
    assert (forced.copies(0), forced.needed) == ((B,), {0: 130})  # the next replica of B, now
    level = survey(kept, A=view(A, "", kept, error="gone"), B=view(B, "r", kept, seqnos=[168]))
    assert plan_failover(level, [A], {}).after.owner(0) == B


def test_a_copy_that_is_complete_up_to_less_than_it_has_must_catch_up_too():
    found = a_map("AB", servers=(A, B)).with_needed({0: 168})
    told = survey(found, A=view(A, "", found, error="gone"), B=view(B, "r", found, seqnos=[170], complete=[130]))
    with pytest.raises(ClusterError, match="up to seqno 130"):
        plan_failover(told, [A], {})


def test_a_copy_that_is_behind_the_promoted_one_must_catch_up_with_that_to_be_promoted_next():
    found = a_map("ABC", replicas=2)
    told = dead(found, A, B=view(B, "r", found, seqnos=[130]), C=view(C, "r", found, seqnos=[168]))
    assert plan_failover(told, [A], {}).after.needed == {0: 168}


def test_a_copy_that_an_owner_gets_after_it_was_left_alone_must_catch_up_to_be_promoted():
    """The only replica is failed over, a rebalance gives C the next one, and A dies while that fills up."""
    found = a_map("AB")
    after = plan_failover(dead(found, B, A=view(A, "A", found, seqnos=[168])), [B], {}).after
    assert (after.copies(0), after.needed) == ((A,), {0: 168})
    joined = after.with_chains({0: (A, C)})
    behind = view(C, "r", joined, seqnos=[160], complete=[100])
    with pytest.raises(ClusterError, match=f"{C} has not caught up .* up to seqno 100, .* up to 168"):
        plan_failover(survey(joined, A=view(A, "", joined, error="gone"), C=behind), [A], {})


def test_a_copy_that_was_never_whole_is_promoted_by_force_alone():
    """A rebalance makes the first replica, or moves the only copy, and the owner dies meanwhile: it may come back."""
    for found in (a_map("AC"), a_map("A", replicas=0)):
        told = dead(found, A, C=view(C, "r", found, seqnos=[1224], complete=[0]))
        with pytest.raises(ClusterError, match=f"{C} has received a part only of .* start the dead node"):
            plan_failover(told, [A], {})
        assert plan_failover(told, [A], {}, force=True).after.owner(0) == C
    empty = dead(a_map("AC"), A, C=view(C, "r", a_map("AC"), seqnos=[0]))
    assert plan_failover(empty, [A], {}).after.owner(0) == C


def test_copies_of_vbuckets_that_the_dead_had_no_part_in_need_nothing_and_level_ones_neither():
    found = a_map("ABC", "AB", replicas=2)
    told = dead(found, C, A=view(A, "A A", found, seqnos=[9, 9]), B=view(B, "r r", found, seqnos=[9, 3]))
    assert plan_failover(told, [C], {}).after.needed == {}


def test_a_seqno_that_was_needed_stays_so_over_the_next_failover_until_all_copies_have_it():
    found = a_map("ABC", replicas=2).with_needed({0: 168})
    told = dead(found, C, A=view(A, "A", found, seqnos=[168]), B=view(B, "r", found, seqnos=[130]))
    assert plan_failover(told, [C], {}).after.needed == {0: 168}
    level = dead(found, C, A=view(A, "A", found, seqnos=[168]), B=view(B, "r", found, seqnos=[168]))
    assert plan_failover(level, [C], {}).after.needed == {}


def with_flaw(flaw, complete):
    """A is dead; B has come to seqno 9, lacks a change of before, and is complete up to there; C has come to 7."""
    found = a_map("ABC", replicas=2)
    one = view(B, "r", found, seqnos=[9], complete=[complete], **{flaw: {0: 1}})
    return dead(found, A, B=one, C=view(C, "r", found, seqnos=[7]))


def damaged_owner(dead_one, seqno):
    """A owns the vbucket, of which its disk lost changes; B and C have replicas, and one of them does not answer."""
    found = a_map("ABC", replicas=2)
    owner = view(A, "A", found, seqnos=[9], damaged={0: 1})
    return dead(
        found,
        dead_one,
        A=owner,
        **{"C" if dead_one == B else "B": view({B: C, C: B}[dead_one], "r", found, seqnos=[seqno])},
    )


def test_the_replica_that_may_be_the_only_whole_copy_of_a_damaged_owners_vbucket_is_taken_out_only_by_force():
    with pytest.raises(ClusterError, match=r"node-a:11210 owns the vbuckets 0 and has damaged .* are on node-b:11210"):
        plan_failover(damaged_owner(B, 8), [B], {})
    assert plan_failover(damaged_owner(B, 8), [B], {}, force=True).after.copies(0) == (A, C)


def test_a_damaged_copy_that_was_handed_over_counts_as_the_owners_before_the_map_says_so():
    found = a_map("ABC", replicas=2)
    told = dead(found, C, A=view(A, "d", found, seqnos=[8]), B=view(B, "A", found, seqnos=[9], damaged={0: 1}))
    with pytest.raises(ClusterError, match=r"node-b:11210 owns the vbuckets 0 and has damaged .* are on node-c:11210"):
        plan_failover(told, [C], {})


def test_where_another_replica_of_a_damaged_owner_is_whole_the_dead_one_is_taken_out():
    assert plan_failover(damaged_owner(B, 9), [B], {}).after.copies(0) == (A, C)


def test_a_dead_node_without_a_copy_of_what_is_damaged_is_taken_out():
    found = a_map("AB", "BC")
    told = dead(found, C, A=view(A, "A .", found, damaged={0: 1}))
    assert plan_failover(told, [C], {}).after.servers == (A, B)


LOGS = {(node, 0): [(1, 0)] for node in (B, C)}
FLAWS = pytest.mark.parametrize(
    ("flaw", "told"), [("refused", "B refused changes of the vbuckets 0"), ("damaged", "B has damaged changes of the")]
)


@FLAWS
def test_a_copy_without_a_flaw_is_chosen_before_a_longer_one_that_lacks_changes(flaw, told):
    for complete in (5, 7):
        plan = plan_failover(with_flaw(flaw, complete), [A], LOGS)
        assert (plan.promotions[0].chosen, plan.promotions[0].flaw) == (C, "")


@FLAWS
def test_where_no_copy_is_complete_as_far_as_one_with_a_flaw_it_takes_force(flaw, told):
    with pytest.raises(ClusterError, match=told.replace("B", str(B))):
        plan_failover(with_flaw(flaw, 8), [A], LOGS)
    plan = plan_failover(with_flaw(flaw, 8), [A], LOGS, force=True)
    assert plan.promotions[0].chosen == B and plan.promotions[0].flaw in told


def damaged_replica(acknowledged, sound):
    """A is dead; B has come to seqno 9, and had acknowledged before its damage was found; C is sound."""
    found = a_map("ABC", replicas=2)
    told = {"damaged": {0: 1}, "acknowledged": {0: acknowledged}}
    return dead(
        found, A, B=view(B, "r", found, seqnos=[9], complete=[3], **told), C=view(C, "r", found, seqnos=[sound])
    )


def test_a_sound_copy_that_lacks_what_a_damaged_replica_had_acknowledged_is_promoted_by_force_alone():
    """B and the dead owner were the majority of a durable write before B's damage was found: nobody else has it."""
    with pytest.raises(ClusterError, match=r"node-c:11210 lacks changes that node-b:11210, whose copy is damaged, has"):
        plan_failover(damaged_replica(8, 7), [A], LOGS)
    plan = plan_failover(damaged_replica(8, 7), [A], LOGS, accept=[FailoverRefusal.DAMAGED])
    assert (plan.promotions[0].chosen, list(plan.losses)) == (C, [0])


def test_a_sound_copy_that_has_all_that_a_damaged_replica_acknowledged_is_promoted():
    """Others acknowledged what B received behind that, or it is not durable."""
    plan = plan_failover(damaged_replica(8, 8), [A], LOGS)
    assert (plan.promotions[0].chosen, plan.promotions[0].flaw) == (C, "")


def test_what_a_damaged_replica_acknowledged_in_a_history_that_was_given_up_stops_nobody():
    plan = plan_failover(damaged_replica(8, 7), [A], {(B, 0): [(1, 0)], (C, 0): [(2, 5), (1, 0)]})
    assert (plan.promotions[0].chosen, plan.promotions[0].flaw) == (C, "")


def two_histories(**seqnos):
    """A is dead, B and C were each promoted at seqno 90 while the other was away."""
    found = a_map("ABC", replicas=2)
    views = {letter: view(node, "r", found, seqnos=[seqnos[letter]]) for letter, node in (("B", B), ("C", C))}
    return dead(found, A, **views), {(B, 0): [(2, 90), (1, 0)], (C, 0): [(3, 90), (1, 0)]}


def test_of_two_histories_that_went_on_from_the_same_point_the_operator_says_which_is_given_up():
    told, logs = two_histories(B=100, C=500)
    with pytest.raises(
        ClusterError, match=f"{C} and {B} have different histories of the vbuckets 0: each was promoted"
    ):
        plan_failover(told, [A], logs)
    assert plan_failover(told, [A], logs, force=True).promotions[0].chosen == C
    assert plan_failover(told, [A, C], logs, force=True).promotions[0].chosen == B


def test_a_copy_that_has_nothing_of_its_own_is_no_rival():
    told, logs = two_histories(B=90, C=500)
    assert plan_failover(told, [A], logs).promotions[0].chosen == C
    begun = {(B, 0): [(7, 0)], (C, 0): [(3, 90), (1, 0)]}
    assert plan_failover(two_histories(B=0, C=500)[0], [A], begun).promotions[0].chosen == C


def handed_over():
    """C took the vbucket over from A, and the operator was killed before the map said so; then A dies. B lacks what A
    and C acknowledged."""
    found = a_map("ABC", replicas=1)
    return dead(found, A, B=view(B, "r", found, seqnos=[130]), C=view(C, "A", found, seqnos=[168]))


def test_a_vbucket_that_was_handed_over_before_the_map_said_so_belongs_to_its_new_owner():
    plan = plan_failover(handed_over(), [A], {})
    assert plan.promotions == [] and [each.copies(0) for each in (plan.ownerless, plan.after)] == [(C, B)] * 2
    assert [each.owner(0) for each in (plan.ownerless, plan.after)] == [C, C]


def test_a_vbucket_that_a_living_node_handed_over_gets_its_new_owner_in_the_map_as_well():
    found = a_map("ABC", "CA")
    plan = plan_failover(dead(found, C, A=view(A, "d r", found), B=view(B, "A .", found)), [C], {})
    assert plan.after.copies(0) == (B, A) and [promotion.vbucket for promotion in plan.promotions] == [1]


def test_a_copy_that_is_behind_an_owner_that_the_map_did_not_name_must_catch_up_to_be_promoted():
    kept = plan_failover(handed_over(), [A], {}).after
    told = survey(kept, B=view(B, "r", kept, seqnos=[130]), C=view(C, "", kept, error="gone"))
    with pytest.raises(ClusterError, match="up to seqno 130, and durable writes up to 168 may be at the dead node"):
        plan_failover(told, [C], {})


def test_a_vbucket_that_an_earlier_failover_left_without_the_owner_that_it_has_gets_it_in_the_map():
    found = a_map("-BC", servers=(B, C)).with_needed({0: 9})
    plan = plan_failover(survey(found, B=view(B, "r", found, seqnos=[8]), C="A"), [A], {})
    assert not plan.is_empty and plan.after.owner(0) == C and plan.after.needed == {0: 10}


class Out(FakeMembers):
    """Members of which A is out of the operator's sight. `until_heard`: called as long as a replica follows it, which
    is until the first map without it is everywhere."""

    def __init__(self, known, *nodes, until_heard=lambda: None):
        super().__init__(*nodes)
        self.known, self.until_heard = known, until_heard

    async def survey(self, seeds, *, without=()):
        views = {server: await self.view(server) for server in self.known.servers}
        return Survey(self.known, {each: replace(view, map=self.known) for each, view in views.items()})

    async def send(self, wanted, *, first=(), also=(), instead=NO_OTHERS):
        await super().send(wanted)
        if len(self.sent) == 1:
            self.until_heard()
        self.known = wanted

    async def tell(self, address, wanted):
        await super().tell(address, wanted)
        self.known = wanted


def fail_over(members, seed, **options):
    return asyncio.run(Failover(members, [seed], [A], **options).run())


def test_the_first_map_without_the_dead_node_is_newer_than_one_that_it_may_have_been_given_alone():
    """A rebalance that was killed had asked it. Back with a newer map, it would own all that others were given."""
    known = a_map("ABC", replicas=2)
    members = Out(known, FakeNode(A, "A", is_gone=True), FakeNode(B, "r"), FakeNode(C, "r"))
    fail_over(members, B)
    assert min(each.rev for each in members.sent) > known.rev + OWN_MAPS_MAX


def test_two_members_that_are_failed_over_to_each_other_get_maps_of_different_revisions():
    """Each was alone when the other was taken out. With equal revisions neither would ever follow the other's map."""
    known = a_map("AB").with_servers([A, B])
    of_b = Out(known, FakeNode(A, "A", is_gone=True), FakeNode(B, "r"))
    of_a = Out(known, FakeNode(A, "A"), FakeNode(B, "r", is_gone=True))
    asyncio.run(Failover(of_b, [B], [A]).run())
    asyncio.run(Failover(of_a, [A], [B]).run())
    assert {each.version for each in of_a.sent}.isdisjoint(each.version for each in of_b.sent)


def test_a_node_that_can_not_be_asked_and_lives_is_taken_out_only_where_that_is_accepted():
    """The node has another password by now, or speaks no TLS, and serves its clients all the same."""
    refuses = FakeNode(A, "A")

    async def refused(*_, **how):
        raise AuthError("no such user")

    refuses.states = refuses.lease = refused
    members = Out(a_map("ABC", replicas=2), refuses, FakeNode(B, "r"), FakeNode(C, "r"))
    view = members.view

    async def view_of(address):
        if address == A:
            return NodeView(A, error="no such user", is_refusal=True, lives=True)
        return await view(address)

    members.view = view_of
    with pytest.raises(ClusterError, match=r"can't be asked \(no such user\), and is not dead") as problem:
        fail_over(members, B)
    assert "--accept alive" in problem.value.advice and members.sent == []
    assert fail_over(members, B, accept=[FailoverRefusal.ALIVE]).promotions[0].chosen == B


def test_copies_are_asked_again_when_none_of_them_follows_the_dead_node_any_more():
    """With the replica that heard last it was a majority: what these two acknowledged is at that one alone."""
    one, two = FakeNode(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[10])
    members = Out(a_map("ABC", replicas=2), FakeNode(A, "A", is_gone=True), one, two)
    members.until_heard = lambda: two.high.update({0: 42})
    done = fail_over(members, B)
    assert [each.owner(0) for each in members.sent] == [None, C], "first nobody owns it, and all leave the dead node"
    assert members.calls[-1] == (C, "set_state", 0, State.ACTIVE)
    assert [(promotion.lost, promotion.chosen, promotion.seqno) for promotion in done.promotions] == [(A, C, 42)]
    assert done.before.servers == (A, B, C) and done.after.copies(0) == (C, B)


def test_the_owner_is_asked_again_how_far_it_is_when_no_majority_counts_the_dead_copy_any_more():
    """Until the owner has the map, it acknowledges with the node that only the operator does not see."""
    owner, behind = FakeNode(A, "A", seqnos=[10]), FakeNode(B, "r", seqnos=[10])
    members = Out(a_map("ABC", replicas=2), owner, behind, FakeNode(C, "r", is_gone=True))
    members.until_heard = lambda: owner.high.update({0: 42})
    done = asyncio.run(Failover(members, [A, B], [C]).run())
    assert [each.copies(0) for each in members.sent] == [(A, B)] * 2
    assert done.after.needed == members.sent[-1].needed == {0: 42}


def cut_off(members, dead, seeds):
    """The map that stands when the operator is killed before the copies are asked again."""
    asyncio.run(Failover(members, seeds, [dead]).run())
    return ClusterMap.from_json(members.sent[0].to_json(B))


def test_what_the_owner_acknowledged_before_a_failover_was_cut_off_is_not_given_up_by_the_next_one():
    """C is out of the operator's sight alone: until the map is there, A acknowledges with it. Then A dies."""
    owner, behind = FakeNode(A, "A", seqnos=[10]), FakeNode(B, "r", seqnos=[10])
    members = Out(a_map("ABC", replicas=2), owner, behind, FakeNode(C, "r", is_gone=True))
    members.until_heard = lambda: owner.high.update({0: 42})
    known = cut_off(members, C, [A, B])
    next_ones = Out(known, FakeNode(A, "A", is_gone=True), FakeNode(B, "r", seqnos=[10]))
    with pytest.raises(ClusterError, match=f"cut off before it had asked .* of the vbuckets 0, and {A} may have more"):
        fail_over(next_ones, B)
    assert next_ones.sent == []
    assert fail_over(next_ones, B, force=True).after.owner(0) == B


def test_what_another_replica_acknowledged_before_a_failover_was_cut_off_is_not_given_up_by_the_next_one():
    """A is out of sight, and a majority with C until C has heard; then C dies, and B never had what these two had."""
    further = FakeNode(C, "r", seqnos=[10])
    members = Out(a_map("ABC", replicas=2), FakeNode(A, "A", is_gone=True), FakeNode(B, "r", seqnos=[10]), further)
    members.until_heard = lambda: further.high.update({0: 42})
    known = cut_off(members, A, [B, C])
    next_ones = Out(known, FakeNode(B, "r", seqnos=[10]), FakeNode(C, "r", is_gone=True))
    with pytest.raises(ClusterError, match=f"the vbuckets 0, and {C} may have more"):
        asyncio.run(Failover(next_ones, [B], [C]).run())
    both = Out(known, FakeNode(A, "d", is_gone=True), FakeNode(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[42]))
    assert fail_over(both, B).after.owner(0) == C, "a run that asks all copies goes on"
    assert both.sent[-1].needed == {0: 42}


def test_a_failover_that_was_cut_off_and_is_typed_again_finds_out_how_far_the_owner_is():
    known = a_map("AB", servers=(A, B)).with_needed({0: UNKNOWN})
    members = Out(known, FakeNode(A, "A", seqnos=[42]), FakeNode(B, "r", seqnos=[10]), FakeNode(C, "r", is_gone=True))
    asyncio.run(Failover(members, [A, B], [C]).run())
    assert [(each.unknown, each.needed_at_least(0)) for each in members.sent] == [([0], 42), ([], 42)]
    level = Out(known, FakeNode(A, "A", seqnos=[42]), FakeNode(B, "r", seqnos=[42]), FakeNode(C, "r", is_gone=True))
    asyncio.run(Failover(level, [A, B], [C]).run())
    assert level.sent[-1].needed == {}


def test_a_dead_node_that_answers_again_when_it_is_out_of_the_map_does_not_stop_a_failover():
    gone = FakeNode(A, "A", is_gone=True)
    members = Out(a_map("AB", "BA"), gone, FakeNode(B, "r A"), FakeNode(C, ". ."))

    def back():
        gone.is_gone = False

    members.until_heard = back
    assert [promotion.chosen for promotion in fail_over(members, B).promotions] == [B]


def test_a_dead_node_that_answers_again_when_it_is_out_of_the_map_is_told_so():
    """A asked B before that had the map without it: A serves, and would be taken for a survivor if B died next."""
    known = a_map("AB", "BA", servers=(A, B))
    gone = FakeNode(A, "A r", is_gone=True, config=known.to_json(A))
    members = Out(known, gone, FakeNode(B, "r A"))

    def back():
        gone.is_gone = False

    members.until_heard = back
    fail_over(members, B)
    assert members.calls[-1] == (A, "map", members.sent[-1].version)


def test_a_dead_node_that_has_no_map_or_that_of_another_bucket_when_it_answers_again_is_told_nothing():
    known = a_map("AB", "BA", servers=(A, B))
    for config in (None, replace(known, uuid="f" * 32).to_json(A)):
        gone = FakeNode(A, "A r", is_gone=True, config=config)
        members = Out(replace(known, uuid="a" * 32), gone, FakeNode(B, "r A"))
        members.until_heard = lambda gone=gone: setattr(gone, "is_gone", False)
        fail_over(members, B)
        assert [call for call in members.calls if call[:2] == (A, "map")] == []


def test_a_copy_that_does_not_answer_when_it_is_asked_again_stops_a_failover_without_an_owner():
    one = FakeNode(B, "r", seqnos=[10])
    members = Out(a_map("ABC", replicas=2), FakeNode(A, "A", is_gone=True), one, FakeNode(C, "r"))

    def dies():
        one.is_gone = True

    members.until_heard = dies
    with pytest.raises(ClusterError, match=f"{B} does not answer either"):
        fail_over(members, C)
    assert [each.owner(0) for each in members.sent] == [None] and not any("set_state" in call for call in members.calls)


def test_a_vbucket_that_begins_anew_has_the_same_owner_in_both_maps():
    nodes = FakeNode(A, "A A . .", is_gone=True), FakeNode(B, "r . A ."), FakeNode(C, ". . . A")
    members = Out(a_map("AB", "A", "B", "C"), *nodes)
    done = fail_over(members, B, lose_data=True)
    assert [each.owner(1) for each in members.sent] == [done.anew[1]] * 2


def test_a_failover_that_was_cut_off_and_is_typed_again_when_the_node_is_back_says_how_to_go_on():
    members = Out(a_map("-BC", "CB", servers=(B, C)), FakeNode(A, "A ."), FakeNode(B, "r r"), FakeNode(C, "r A"))
    with pytest.raises(ClusterError, match="out of the map already: a failover of before was cut off") as refused:
        fail_over(members, B)
    assert "headwater cluster rebalance" in str(refused.value)


def test_without_anything_to_promote_one_map_is_enough():
    members = Out(a_map("BC", "CB"), FakeNode(A, ". .", is_gone=True), FakeNode(B, "A r"), FakeNode(C, "r A"))
    fail_over(members, B)
    assert [each.servers for each in members.sent] == [(B, C)]


def test_all_refusals_are_told_at_once_and_each_is_accepted_by_its_name_alone():
    """B is behind, and has damage as well, of which who knows of the first alone must hear."""
    found = a_map("AB", servers=(A, B, C)).with_needed({0: 168})
    told = dead(found, A, B=view(B, "r", found, seqnos=[165], complete=[130], damaged={0: 2}), C=view(C, ".", found))
    with pytest.raises(ClusterError, match=r"has damaged changes .* has not caught up") as refused:
        plan_failover(told, [A], {})
    assert "in spite of all 2: --accept damaged --accept behind" in refused.value.advice
    with pytest.raises(ClusterError, match="has damaged changes") as refused:
        plan_failover(told, [A], {}, accept=[FailoverRefusal.BEHIND])
    assert "has not caught up" not in str(refused.value)
    plan = plan_failover(told, [A], {}, accept=[FailoverRefusal.BEHIND, FailoverRefusal.DAMAGED])
    assert plan.losses[0].losses == {
        FailoverRefusal.DAMAGED: "has damaged changes, and is complete up to seqno 130 of 165",
        FailoverRefusal.BEHIND: "may lack the seqnos 131 to 168",
    }
    assert (
        plan.accepted.keys() == plan_failover(told, [A], {}, force=True).accepted.keys() == plan.losses[0].losses.keys()
    )


def test_what_is_found_behind_the_first_map_alone_is_refused_though_another_refusal_was_accepted():
    found = a_map("AB").with_needed({0: 12})
    one = FakeNode(B, "r", seqnos=[10])
    members = Out(found, FakeNode(A, "A", is_gone=True), one, FakeNode(C, "."))
    members.until_heard = lambda: one.damage.update({0: 1})
    with pytest.raises(ClusterError, match="has damaged changes of the vbuckets 0, and no other"):
        fail_over(members, B, accept=[FailoverRefusal.BEHIND])
    assert not any("set_state" in call for call in members.calls)


@pytest.mark.parametrize("dead_one", ["A", "d"])
def test_a_refusal_behind_the_first_map_leaves_the_dead_node_a_member_that_may_come_back(dead_one):
    """The vbuckets stayed without an owner, and the dead node out of the map: nothing could use what it alone had."""
    known = a_map("ABC", replicas=2)
    gone, one, two = FakeNode(A, dead_one, seqnos=[10]), FakeNode(B, "r", seqnos=[10]), FakeNode(C, "r", seqnos=[2])
    for node in (gone, one, two):
        node.given = known.to_json(node.address)
    gone.is_gone = True
    members = Out(known, gone, one, two)
    members.until_heard = lambda: (one.damage.update({0: 1}), one.within.update({0: 4}))
    with pytest.raises(ClusterError, match=r"start the dead node, which has them; .* failover --accept damaged"):
        fail_over(members, B)
    assert members.known.copies(0) == (A, B, C) and members.known.version > members.sent[0].version
    assert [call[0] for call in members.calls if call[1:2] == ("map",)] == [B, C], "who does not answer hears later"
    gone.is_gone, members.calls[:] = False, []
    found = asyncio.run(members.survey([B]))
    if dead_one == "A":
        assert settle(found).is_settled
    else:
        asyncio.run(repair(members, Publisher(members, members.known), found, settle(found)))
        assert (A, "set_state", 0, State.ACTIVE) in members.calls, "the best copy of all"


def refused_behind_the_first_map(known, gone, one, two, *, meanwhile=lambda: None):
    """Return the maps of a failover that finds damage of vbucket 0 at B once its first map is everywhere."""
    for node in (gone, one, two):
        node.given = known.to_json(node.address)
    gone.is_gone = True

    def heard():
        one.damage[0], one.within[0] = 1, 4
        meanwhile()

    members = Out(known, gone, one, two)
    members.until_heard = heard
    with pytest.raises(ClusterError, match="damaged"):
        fail_over(members, B)
    return members.sent[0], members.known


def test_a_refusal_behind_the_first_map_takes_nothing_from_an_owner_that_lives():
    """Vbucket 1 was handed over from A to B, and whoever was to say so was killed: B was deposed, and C promoted."""
    gone, one = FakeNode(A, "A d", seqnos=[10, 10]), FakeNode(B, "r A", seqnos=[10, 40])
    sent, known = refused_behind_the_first_map(a_map("AB", "AC"), gone, one, FakeNode(C, ". r", seqnos=[10]))
    at_b = [ClusterMap.from_json(each.to_json(B), B) for each in (sent, known)]
    assert role(at_b[1], 1, State.ACTIVE, news(*at_b).get(1, News.NONE)).state is None
    assert known.copies(0) == (A, B) and known.copies(1) == (B, A, C)
    found = survey(known, A=view(A, "A d", known), B=view(B, "", known, error="gone"), C=view(C, ". r", known))
    with pytest.raises(ClusterError, match=f"vbuckets 1, and {B} may have more"):
        plan_failover(found, [B], {})


def test_a_refusal_behind_the_first_map_takes_nothing_from_an_owner_that_an_operator_made():
    gone, one, two = FakeNode(A, "A A"), FakeNode(B, "r r"), FakeNode(C, "r r", seqnos=[2, 10])

    def made_active():
        two.held[1] = State.ACTIVE

    _, known = refused_behind_the_first_map(a_map("ABC", "ABC", replicas=2), gone, one, two, meanwhile=made_active)
    assert known.copies(0) == (A, B, C) and not known.is_unknown(0)
    assert known.copies(1) == (C, A, B) and known.is_unknown(1)


def test_a_refusal_behind_the_first_map_remembers_that_owners_acknowledged_without_the_dead_node():
    """B acknowledged 11 and 12 by itself; then it died, and A was promoted without a word."""
    gone, one = FakeNode(A, "A r", seqnos=[10, 10]), FakeNode(B, "r A", seqnos=[10, 10])
    before = a_map("AB", "BA").with_needed({0: 3, 1: 9})
    _, known = refused_behind_the_first_map(
        before, gone, one, FakeNode(C, ". ."), meanwhile=lambda: one.high.update({1: 12})
    )
    assert known.chains == before.chains
    assert known.unknown == [1] and known.needed_at_least(1) == 10 and known.needed[0] == 3
    found = survey(known, A=view(A, "A r", known), B=view(B, "", known, error="gone"), C=view(C, ". .", known))
    with pytest.raises(ClusterError, match=f"vbuckets 1, and {B} may have more"):
        plan_failover(found, [B], {})


def test_how_far_a_copy_must_have_come_is_known_behind_a_failover_that_accepted_less_and_was_cut_off():
    """The next run was told of nothing: the first map said that nobody knows how far copies must be."""
    found = a_map("ABC", replicas=2).with_needed({0: 168})
    members = Out(found, FakeNode(A, "A", is_gone=True), FakeNode(B, "r", seqnos=[130]), FakeNode(C, "r", seqnos=[130]))
    first = asyncio.run(Failover(members, [B, C], [A], accept=[FailoverRefusal.BEHIND]).run())
    assert first.losses[0].losses == {FailoverRefusal.BEHIND: "may lack the seqnos 131 to 168"}
    known = ClusterMap.from_json(members.sent[0].to_json(B))
    assert known.unknown == [0] and known.needed_at_least(0) == 168
    next_ones = FakeNode(A, "d", is_gone=True), FakeNode(B, "r", seqnos=[130]), FakeNode(C, "r", seqnos=[130])
    with pytest.raises(
        ClusterError, match=r"has not caught up since it was added.* writes up to 168 may be at the dead"
    ):
        fail_over(Out(known, *next_ones), B)
    again = fail_over(Out(known, *next_ones), B, accept=[FailoverRefusal.BEHIND])
    assert again.losses[0].losses == first.losses[0].losses and again.after.needed == {}
    further = FakeNode(B, "r", seqnos=[130]), FakeNode(C, "r", seqnos=[168])
    assert fail_over(Out(known, next_ones[0], *further), B).after.owner(0) == C


def test_a_member_that_runs_and_has_lost_what_a_failover_had_not_asked_is_none_to_start():
    """The failover was cut off, and C came back with an empty disk: what it had can't be found by starting it."""
    found = a_map("-BC", servers=(B, C)).with_needed({0: UNKNOWN})
    nodes = FakeNode(A, "d", is_gone=True), FakeNode(B, "r", seqnos=[10]), FakeNode(C, ".")
    with pytest.raises(ClusterError, match=f"and {C}, which has no copy now, may have had more") as refused:
        fail_over(Out(found, *nodes), B)
    assert "start" not in refused.value.advice and "headwater cluster failover --accept unknown" in refused.value.advice
    done = fail_over(Out(found, *nodes), B, accept=[FailoverRefusal.UNKNOWN])
    assert done.losses[0].losses == {FailoverRefusal.UNKNOWN: f"may lack what {C} has behind seqno 10"}


def test_of_members_that_were_not_asked_only_those_that_are_away_are_to_be_started():
    found = a_map("ABC", replicas=2).with_needed({0: UNKNOWN})
    told = dead(found, A, B=view(B, "r", found, seqnos=[10]), C=view(C, ".", found))
    with pytest.raises(
        ClusterError, match=f"and {A} may have more and {C}, which has no copy now, may have had more"
    ) as refused:
        plan_failover(told, [A], {})
    assert refused.value.advice.startswith(f"start {A}; or promote what is left")


def test_what_may_be_lost_by_a_history_or_a_copy_that_was_not_asked_is_told_too():
    told, logs = two_histories(B=100, C=500)
    plan = plan_failover(told, [A], logs, accept=[FailoverRefusal.HISTORIES])
    assert plan.losses[0].losses == {FailoverRefusal.HISTORIES: f"lacks what {B} has in a history of its own"}
    found = a_map("AB").with_needed({0: UNKNOWN})
    plan = plan_failover(dead(found, A), [A], {}, accept=[FailoverRefusal.UNKNOWN])
    assert plan.losses[0].losses == {FailoverRefusal.UNKNOWN: f"may lack what {A} has behind seqno 10"}


def test_a_member_that_answers_and_has_lost_its_copy_does_not_stop_a_failover_without_an_owner():
    """C, back with an empty disk, was told of as one to start, though it answered, and the vbucket stayed ownerless."""
    members = Out(a_map("ABC", replicas=2), FakeNode(A, "A", is_gone=True), FakeNode(B, "r"), FakeNode(C, "."))
    assert fail_over(members, B).after.owner(0) == B
    assert (B, "set_state", 0, State.ACTIVE) in members.calls


def test_a_map_that_is_taken_back_forgets_no_seqno_that_a_copy_needed_before():
    """The ownerless map left it out, for all who were alive had it; the dead copy that counts again does not."""
    before = a_map("BCD", "DCB", servers=(A, B, C, D), replicas=2).with_needed({0: 100})
    seqnos = {B: [120, 10], C: [120, 10]}
    gone = view(D, "", None, error="dead")

    def look(known):
        alive = {"A": view(A, ". .", known), "C": view(C, "r r", known, seqnos=seqnos[C])}
        return survey(before, **alive, B=view(B, "A r", known, seqnos=seqnos[B]), D=gone)

    plan = plan_failover(look(before), [D], {(node, 1): ((0xAB, 0),) for node in (B, C)})
    back = taken_back(plan, look(plan.ownerless))
    assert (back.owner(0), back.is_unknown(0), back.needed_at_least(0)) == (B, True, 100)


def test_a_refusal_names_the_old_copies_of_nodes_that_left_the_cluster():
    found = a_map("A", "B", replicas=0, servers=(A, B))
    views = dead(found, A, B=view(B, ". A", found), D=view(D, "d d", found, seqnos=[1234, 8]))
    with pytest.raises(ClusterError, match=r"no copy is left of 1 vbuckets \(0\)") as refused:
        plan_failover(views, [A], {}, force=True)
    assert f"; {D}, which left the cluster, has old copies of 0, vbucket 0 up to seqno 1,234 (keep" in str(
        refused.value
    )
    assert plan_failover(views, [A], {}, force=True, lose_data=True).anew == {0: B}


@pytest.mark.parametrize("other", [{"uuid": "ef" * 16}, {"seqnos": [0]}])
def test_a_node_of_another_cluster_or_without_changes_has_no_old_copy(other):
    found, uuid = a_map("A", replicas=0, servers=(A, B)), {key: other[key] for key in other if key == "uuid"}
    former = view(D, "d", a_map("D", servers=(D,), **uuid), **{key: other[key] for key in other if key == "seqnos"})
    with pytest.raises(ClusterError, match="no copy is left of 1 vbuckets") as refused:
        plan_failover(dead(found, A, B=view(B, ".", found), D=former), [A], {}, force=True)
    assert str(D) not in str(refused.value)
