"""`headwater cluster status`: the table, what is wrong in words and as exit status, and all of it for programs."""

import json
from dataclasses import replace

from headwater.cluster.survey import Survey
from tests.cluster.fakes import FakeMembers
from tests.cluster.views import A, B, C, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")


def rows(shown):
    """The words of each line about a node."""
    return {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.strip().startswith("node-")}


def test_a_cluster_that_is_well_is_a_table_and_one_sentence(told):
    members = FakeMembers(found=survey(LEVEL))
    status, shown, problems = told(members, "cluster", "status", "node-a:11210")
    assert (status, problems) == (0, "") and members.surveyed == [((A,), ())]
    assert shown.startswith("b: 3 vbuckets, 1 replica, map 1:7\n")
    assert rows(shown) == {f"node-{name}:11210": ["1", "1", "0", "0", "5", "0"] for name in "abc"}
    assert shown.endswith("\neach vbucket has one owner, all nodes have this map\n")


def test_a_node_that_does_not_answer_has_no_numbers_and_makes_it_status_1(told):
    found = survey(LEVEL, B=view(B, "", LEVEL, error="connection refused"))
    status, shown, problems = told(FakeMembers(found=found), "cluster", "status", "node-a:11210")
    assert status == 1 and rows(shown)["node-b:11210"] == ["-"] * 6 + ["no", "answer"]
    assert problems.startswith("headwater: node-b:11210 does not answer: connection refused")
    assert "each vbucket has one owner" not in shown and problems.count("\n") == 1


def test_a_node_with_an_older_map_is_marked(told):
    found = survey(LEVEL, C=view(C, "r . A", LEVEL, version=(1, 6)))
    status, shown, _ = told(FakeMembers(found=found), "cluster", "status", "node-a:11210")
    assert status == 1 and rows(shown)["node-c:11210"][-3:] == ["an", "older", "map"]


def test_remarks_are_told_and_are_no_failure(told):
    found = survey(LEVEL, B=view(B, "r A .", LEVEL, seqnos=[4, 10]))
    status, shown, problems = told(FakeMembers(found=found), "cluster", "status", "node-a:11210")
    assert (status, problems) == (0, "") and "\nreplicas lack 6 changes\n" in shown


def test_programs_get_one_object_whatever_the_status(told):
    whole = survey(LEVEL)
    fenced = Survey(LEVEL, {**whole.nodes, B: replace(whole.nodes[B], fenced="1 answer of 2")})
    status, shown, problems = told(FakeMembers(found=fenced), "cluster", "status", "node-a:11210", "--json")
    found = json.loads(shown)
    assert (status, found["healthy"], found["vbuckets"]) == (1, False, 3)
    assert problems == "headwater: node-b:11210 does not serve yet: 1 answer of 2\n"
