"""Plans: what they refuse, and what they find to do."""

import re

import pytest

from headwater.cluster.plan import make_plan
from headwater.errors import ClusterError, OptionError

from .views import A, B, C, D, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")


def test_a_level_cluster_needs_nothing():
    plan = make_plan(survey(LEVEL))
    assert plan.is_empty and plan.moves == [] and plan.before == LEVEL


def test_a_node_that_joins_gets_its_share():
    found = a_map("A", "A", "A", "A", servers=(A,), replicas=0)
    plan = make_plan(survey(found, B=view(B, ". . . .", None)), add=[B])
    assert plan.joining == [B] and plan.leaving == [] and not plan.is_empty
    assert plan.handovers() == {(A, B): 2} and plan.copies() == {}


def test_replicas_that_are_wanted_are_copied():
    found = a_map("A", "B", servers=(A, B), replicas=0)
    plan = make_plan(survey(found), replicas=1)
    assert plan.copies() == {A: 1, B: 1} and plan.handovers() == {}


def test_a_node_that_leaves_gives_everything_away():
    plan = make_plan(survey(LEVEL), remove=[C])
    assert plan.leaving == [C] and plan.handovers() == {(C, A): 1} and C not in plan.after.servers


def test_who_is_a_member_already_or_no_more_is_no_mistake():
    left = {D: view(D, ". . .", LEVEL)}
    assert make_plan(survey(LEVEL), add=[B], remove=[D], strangers=left).is_empty


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (view(D, "", None, error="connection refused"), f"{D} is no member and does not answer (connection refused)"),
        (view(D, ". . .", None), f"{D} is no member;"),
        (view(D, "A r .", LEVEL, this=A), f"{D} is the member {A}"),
    ],
)
def test_a_node_that_is_to_leave_and_is_no_member_is_refused(found, told):
    with pytest.raises(ClusterError, match=re.escape(told)) as caught:
        make_plan(survey(LEVEL), remove=[D], strangers={D: found})
    assert f"{A}, {B}, {C}" in str(caught.value) or "use that address" in str(caught.value)


def test_more_replicas_than_nodes_is_still_something_to_tell_the_nodes():
    found = a_map("A", servers=(A,), replicas=0)
    assert not make_plan(survey(found), replicas=1).is_empty


def test_a_member_with_an_old_map_is_told():
    plan = make_plan(survey(LEVEL, B=view(B, "r A .", LEVEL, version=(1, 6))))
    assert plan.behind == [B] and not plan.is_empty


def test_copies_that_nobody_counts_are_found():
    assert make_plan(survey(LEVEL, C="d r A")).strays == {C: [0]}


def test_the_map_follows_a_vbucket_that_was_handed_over():
    plan = make_plan(survey(LEVEL, A="d . r", B="A A ."))
    assert plan.before.chains[0] == (1, 0) and not plan.is_empty


@pytest.mark.parametrize(
    ("nodes", "add", "problem"),
    [
        ({"B": view(B, "", LEVEL, error="connection refused")}, [], "does not answer .connection refused."),
        ({"D": view(D, "", None, error="connection refused")}, [D], "does not answer"),
        ({"D": view(D, "A A", None)}, [D], "2 vbuckets, the cluster 3"),
        ({"D": view(D, "A A A", None)}, [D], "15 documents of its own"),
        ({"D": view(D, ". . .", a_map("C", "D", "C", servers=(C, D), uuid="1"))}, [D], "another cluster"),
        ({"D": view(D, ". . .", LEVEL, this=A)}, [D], "is the member node-a:11210"),
        ({"A": ". . r", "B": ". A ."}, [], "no node has a copy of the vbuckets 0"),
        ({"A": "d . r", "B": "A A .", "C": "A r A"}, [], "owned by node-b:11210 and node-c:11210"),
    ],
)
def test_what_can_not_be_done_is_refused_with_the_next_step(nodes, add, problem):
    with pytest.raises(ClusterError, match=problem) as refused:
        make_plan(survey(LEVEL, **nodes), add=add)
    assert refused.value.advice


def test_a_member_that_was_taken_out_may_join_with_what_it_has():
    found = a_map("AB", "BA", servers=(A, B))
    plan = make_plan(survey(found, C=view(C, "d d", a_map("CA", "BC", rev=2), this=C)), add=[C])
    assert plan.joining == [C]


def test_an_empty_node_with_vbuckets_of_its_own_may_join():
    found = a_map("A", "A", servers=(A,), replicas=0)
    plan = make_plan(survey(found, B=view(B, "A A", None, seqnos=[0, 0])), add=[B])
    assert plan.settlement.fenced == {0: [B], 1: [B]} and plan.handovers() == {(A, B): 1}


def test_a_node_of_another_cluster_whose_map_is_newer_does_not_make_this_one_the_other():
    """By that map A is no member, and was made dead where it owns something, as one that was taken out is."""
    ours, theirs = a_map("A", servers=(A,), replicas=0), a_map("B", servers=(B, C), replicas=0, rev=9, uuid="12" * 16)
    with pytest.raises(ClusterError, match=f"{A} is of another cluster than {B} and {C}, whose map is newer") as no:
        make_plan(survey(theirs, A=view(A, "A", ours)), add=[B])
    assert "name nodes of one cluster" in no.value.advice
    former = view(A, "A", a_map("A", servers=(A, B), replicas=0, rev=5, uuid="12" * 16))
    assert make_plan(survey(theirs, A=former)).settlement.fenced == {0: [A]}, "one that was taken out of this one is"


def test_a_node_on_its_own_is_not_made_dead_by_the_cluster_that_it_is_named_with():
    """The names were mixed up: `rebalance D --add A`, where A is the member, and D has documents of its own."""
    found = a_map("A", servers=(A, B), replicas=0)
    with pytest.raises(ClusterError, match=f"{D} is no member of the cluster of {A} and {B}") as no:
        make_plan(survey(found, D=view(D, "A", None)), add=[A])
    assert f"--add {D}" in no.value.advice


@pytest.mark.parametrize(("add", "remove"), [([A], [A]), ([], [A, B, C])])
def test_wishes_that_contradict_each_other_are_refused(add, remove):
    with pytest.raises(OptionError):
        make_plan(survey(LEVEL), add=add, remove=remove)


@pytest.mark.parametrize("chains", [("AB", "AB"), ("AB", "BA")])
def test_a_copy_that_is_damaged_becomes_no_owner_and_counts_for_nothing(chains):
    found = a_map(*chains)
    told = survey(found, B=view(B, "r r", found, damaged={0: 1}))
    with pytest.raises(
        ClusterError, match=f"{B} has damaged changes of the vbuckets 0, and would keep or own them"
    ) as no:
        make_plan(told)
    assert f"failover --dead {B} --force" in str(no.value)
    assert make_plan(told, remove=[B]).leaving == [B]


def test_a_vbucket_whose_takeover_was_cut_gets_an_owner_before_damage_keeps_all_else_from_going_on():
    """Refused outright, it stays without an owner, though the source has it whole."""
    found = a_map("AB", "AB")
    told = survey(found, A=view(A, "d A", found), B=view(B, "p r", found, damaged={0: 1}))
    assert make_plan(told).settlement.cut == {0: (A, B)}
    settled = survey(found, A=view(A, "A A", found), B=view(B, "r r", found, damaged={0: 1}))
    with pytest.raises(ClusterError, match=f"{B} has damaged changes of the vbuckets 0"):
        make_plan(settled)


def test_the_only_whole_copies_of_a_damaged_owners_vbuckets_are_not_taken_from_it():
    """`rebalance --remove` loses nothing, it is said: the node's copies were deleted, and the owner's are damaged."""
    found = a_map("AB", "BA", servers=(A, B))
    told = survey(found, A=view(A, "A r", found, damaged={0: 1}))
    for fewer in ({"remove": [B]}, {"replicas": 0}):
        with pytest.raises(ClusterError, match=f"{A} owns the vbuckets 0 and has damaged changes") as no:
            make_plan(told, **fewer)
        assert f"rebalance --add NODE --remove {A}" in str(no.value)
    assert make_plan(told, remove=[A]).after.servers == (B,)


def test_of_two_whole_copies_beside_a_damaged_owner_one_may_go():
    found = a_map("ABC", replicas=2)
    told = survey(found, A=view(A, "A", found, damaged={0: 1}))
    assert make_plan(told, remove=[C]).after.copies(0) == (A, B)


def damaged_owner_and_stray(**stray):
    """A owns it and is damaged behind seqno 4 of 10; the map does not give C what it has."""
    found = a_map("AB", "AB")
    owner = view(A, "A A", found, seqnos=[10, 10], complete=[4, 10], damaged={0: 2})
    return survey(found, A=owner, B=view(B, ". r", found), C=view(C, "d", found, **stray))


def test_a_copy_that_the_map_does_not_name_is_not_deleted_while_the_owner_has_lost_what_it_has():
    with pytest.raises(ClusterError, match="changes that are damaged at node-a:11210: vbucket 0") as no:
        make_plan(damaged_owner_and_stray())
    assert "complete there up to seqno 10, here up to 4 of 10" in str(no.value)
    assert f"failover --dead {A} --force" in str(no.value)


@pytest.mark.parametrize("stray", [{"complete": [4]}, {"damaged": {0: 1}}, {"seqnos": [3]}])
def test_a_copy_that_the_map_does_not_name_and_that_has_no_more_than_the_owner_goes(stray):
    assert make_plan(damaged_owner_and_stray(**stray)).strays == {C: [0]}


def test_where_a_copy_of_the_map_is_whole_others_of_a_damaged_owners_vbucket_go():
    found = a_map("AB", servers=(A, B, C))
    owner = view(A, "A", found, seqnos=[10], complete=[4], damaged={0: 2})
    assert make_plan(survey(found, A=owner, C="d")).strays == {C: [0]}


def test_a_stray_copy_that_goes_too_does_not_stand_for_the_whole_ones_of_the_map():
    """Each was taken for the one that stays: the replica of the map went, and the other one with it."""
    found = a_map("AB", servers=(A, B, C))
    owner = view(A, "A", found, seqnos=[10], complete=[4], damaged={0: 2})
    with pytest.raises(ClusterError, match="node-a:11210 owns the vbuckets 0 and has damaged changes"):
        make_plan(survey(found, A=owner, C="d"), replicas=0)
