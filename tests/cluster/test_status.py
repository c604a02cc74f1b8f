"""Judging a cluster: problems, remarks, numbers."""

import json
from dataclasses import replace

import pytest

from headwater.cluster.status import status
from headwater.cluster.survey import Survey
from headwater.wire.cluster_map import UNKNOWN

from .views import A, B, C, D, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")


def test_a_cluster_that_is_well_has_nothing_to_tell():
    found = status(survey(LEVEL))
    assert found.is_healthy and found.problems == () and found.remarks == ()
    assert [(node.active, node.replica, node.items, node.behind) for node in found.nodes] == [(1, 1, 5, 0)] * 3


@pytest.mark.parametrize(
    ("nodes", "problem"),
    [
        ({"B": view(B, "", LEVEL, error="refused")}, "node-b:11210 does not answer: refused"),
        ({"B": view(B, "r A .", LEVEL, version=(1, 6))}, "node-b:11210 has map 1:6, the newest is 1:7"),
        ({"A": ". . r", "B": ". A ."}, "no node has a copy of vbucket 0"),
        ({"A": "d . r"}, "nobody owns vbucket 0, though there are copies"),
        ({"A": "d . r", "B": "p A ."}, "the hand-over of vbucket 0 was cut"),
        ({"A": "d . r", "B": "A A ."}, "vbucket 0 changed hands, and the map does not say so"),
        ({"B": "A A ."}, "more than one node owns vbucket 0"),
        (
            {"C": view(C, ". r A", LEVEL, damaged={1: 3, 2: 1})},
            "node-c:11210 has damaged changes of vbuckets 1-2 on its disk: see its log; a replica there counts for no"
            " durable write: headwater cluster rebalance --add NODE --remove node-c:11210",
        ),
        (
            {"C": view(C, ". r A", LEVEL, damaged_batches=1)},
            "node-c:11210 has a damaged batch on its disk, which no vbucket needs, and can't be started again (see its"
            " log): headwater cluster rebalance --add NODE --remove node-c:11210",
        ),
        ({"C": ". . A"}, "node-c:11210 has no replica of vbucket 1, which the map gives it"),
    ],
)
def test_what_needs_a_hand_is_told(nodes, problem):
    found = status(survey(LEVEL, **nodes))
    assert problem in found.problems and not found.is_healthy


def test_damage_of_a_node_that_is_no_member_is_told_before_it_joins_again():
    found = status(survey(a_map("AB", servers=(A, B)), C=view(C, "r", None, damaged={0: 1})))
    assert found.problems[-1] == (
        "node-c:11210 has damaged changes of vbucket 0 on its disk: see its log; empty its folder before it joins"
    )


def test_damage_that_a_former_member_needs_no_more_is_told_before_it_joins_again():
    found = status(survey(a_map("AB", servers=(A, B)), C=view(C, "r", None, damaged_batches=2)))
    assert found.problems[-1] == (
        "node-c:11210 has 2 damaged batches on its disk, which no vbucket needs, and can't be started again (see its"
        " log); empty its folder before it joins"
    )


def test_a_node_behind_its_fence_is_told():
    told = survey(LEVEL)
    fenced = {**told.nodes, B: replace(told.nodes[B], fenced="1 answer of 2")}
    assert status(Survey(LEVEL, fenced)).problems == ("node-b:11210 does not serve yet: 1 answer of 2",)
    doubting = {**told.nodes, B: replace(told.nodes[B], in_doubt=True)}
    assert status(Survey(LEVEL, doubting)).problems == (
        "node-b:11210 stood still, and no majority has said since that it is still a member",
    )


def test_replicas_that_are_behind_are_only_remarked():
    found = status(survey(LEVEL, B=view(B, "r A .", LEVEL, seqnos=[4, 10])))
    assert found.is_healthy and found.nodes[1].behind == 6 and found.remarks == ("replicas lack 6 changes",)


def test_copies_that_are_too_far_behind_to_be_promoted_are_counted_and_the_worst_is_named():
    found = a_map("AB", "BC", "CA").with_needed({0: 9, 1: 2000})
    told = status(survey(found, B=view(B, "r A .", found, seqnos=[4, 10]), C=view(C, ". r A", found, complete=[8, 10])))
    assert told.is_healthy and told.remarks[-1] == (
        "copies of 2 vbuckets are too far behind to be promoted but by force, vbucket 1 on node-c:11210 the most:"
        " complete up to seqno 8 of 2,000; let them catch up before a node is taken out"
    )
    assert told.to_json()["lagging"] == [
        {"vbucket": 0, "address": "node-b:11210", "complete_seqno": 4, "needed_seqno": 9},
        {"vbucket": 1, "address": "node-c:11210", "complete_seqno": 8, "needed_seqno": 2000},
    ]


def test_a_failover_that_was_cut_off_before_it_knew_who_is_behind_needs_a_hand():
    told = status(survey(a_map("AB", "BC", "CA").with_needed({0: UNKNOWN, 2: 7})))
    assert told.lagging == () and told.problems == (
        "a failover or a rebalance was cut off before it knew how far copies of vbucket 0 must be to be promoted; type"
        " it again, or headwater cluster rebalance",
    )


def test_uneven_work_is_only_remarked():
    found = status(survey(a_map("AB", "AC", "AB", "AC", "AB", "AC")))
    assert found.is_healthy and "vbuckets are not where they would be best" in found.remarks[0]


def test_replicas_that_the_map_lacks_need_a_hand():
    found = status(survey(a_map("A", "BC", "CA")))
    assert found.problems == ("vbucket 0: fewer than 1 replica; headwater cluster rebalance makes them",)
    alone = status(survey(a_map("A", servers=(A,))))
    assert alone.problems == ("1 replica is wanted, 1 node has room for 0; headwater cluster rebalance --add NODE",)
    two = status(survey(a_map("AB", servers=(A, B), replicas=2)))
    assert two.problems == ("2 replicas are wanted, 2 nodes have room for 1; headwater cluster rebalance --add NODE",)


def in_groups(found, **groups):
    views = {letter: view(node, "", found) for letter, node in zip("ABC", (A, B, C), strict=True)}
    answers = survey(found).nodes
    nodes = {letter: replace(answers[each.address], group=groups[letter]) for letter, each in views.items()}
    return survey(found, **nodes)


def test_copies_that_are_in_one_group_need_a_hand_where_there_are_others():
    found = status(in_groups(LEVEL, A="east", B="east", C="west"))
    assert found.problems == (
        "vbucket 0: copies in one group, which fails as one; headwater cluster rebalance spreads them",
    )
    assert found.remarks == (), "which is not said twice"
    assert [node.group for node in found.nodes] == ["east", "east", "west"]
    assert [node["group"] for node in found.to_json()["nodes"]] == ["east", "east", "west"]
    assert status(in_groups(LEVEL, A="east", B="", C="")).is_healthy


def test_a_node_that_does_not_answer_is_in_the_group_of_the_map():
    known = LEVEL.with_groups({A: "east", C: "west"})
    told = survey(known, A=view(A, "", known, error="gone"), C=replace(survey(known).nodes[C], group="north"))
    assert told.groups == {A: "east", C: "north"}


def test_the_same_is_told_to_programs():
    told = json.loads(json.dumps(status(survey(LEVEL, C=view(C, "", LEVEL, error="gone"))).to_json()))
    assert told["healthy"] is False and told["revision"] == {"epoch": 1, "rev": 7} and told["vbuckets"] == 3
    assert [node["address"] for node in told["nodes"]] == ["node-a:11210", "node-b:11210", "node-c:11210"]
    assert told["nodes"][2]["answers"] is False and told["nodes"][0]["active"] == 1


def test_a_node_that_was_asked_and_is_no_member_is_told():
    told = survey(LEVEL, D=view(D, "d d d", LEVEL))
    (problem,) = status(told).problems
    assert problem == (
        "node-d:11210 is no member any more, and serves nothing of this; headwater cluster rebalance --add node-d:11210"
    )
    assert not status(survey(LEVEL, D=view(D, ". . .", None))).is_healthy
    assert status(survey(LEVEL, D=view(D, ". . r", LEVEL, this=A))).is_healthy, "by another address it is a member"


def test_an_old_copy_of_what_no_member_has_is_named_with_its_seqno():
    found = status(survey(LEVEL, A=". . r", B=". A .", D=view(D, "d d .", LEVEL, seqnos=[7, 7])))
    assert any(
        f"{D}, which left the cluster, has an old copy of vbucket 0, vbucket 0 up to" in problem
        for problem in found.problems
    )
