"""`headwater cluster failover`: what is shown, asked and done, and what is refused."""

import json

from headwater.wire.vbucket import State
from tests.cluster.fakes import FakeMembers, FakeNode
from tests.cluster.views import A, B, C, a_map, survey, view

LEVEL = a_map("AB", "BC", "CA")
DEAD_A = ("cluster", "failover", "node-b:11210", "--dead", "node-a:11210")


def without_a(found=LEVEL, **nodes):
    """The cluster as it is when A is dead."""
    held = [FakeNode(A, is_gone=True), FakeNode(B, "r A ."), FakeNode(C, ". r A")]
    return FakeMembers(*held, found=survey(found, A=view(A, "", found, error="connection refused"), **nodes))


def test_a_dry_run_shows_who_goes_and_who_is_promoted_and_does_nothing(told):
    members = without_a()
    status, shown, problems = told(members, *DEAD_A, "--dry-run")
    lines = [line.split() for line in shown.splitlines()]
    assert (status, problems, lines[0]) == (0, "", ["b:", "3", "vbuckets"])
    assert ["node-a:11210", "1", "0", "0", "taken", "out"] in lines and ["node-b:11210", "1", "1", "0"] in lines
    assert members.surveyed == [((B,), (A,))] and members.calls == []


def test_one_that_is_to_be_taken_for_dead_is_not_asked_for_the_others(told):
    """Asking nobody ended with an UnboundLocalError."""
    status, _, problems = told(without_a(), "cluster", "failover", "node-a:11210", "--dead", "node-a:11210", "--yes")
    assert (status, problems) == (1, "headwater: node-a:11210: to be taken for dead; name a member that lives\n")


def test_a_yes_sends_a_map_without_owners_first_then_that_with_the_new_ones_and_then_promotes(told):
    members = without_a()
    status, shown, _ = told(members, *DEAD_A, answers="y\n")
    assert status == 0 and shown.endswith("1 vbucket promoted, 0 begun anew\n") and "Go on? [y/N]" in shown
    assert [(found.servers, found.owner(0)) for found in members.sent] == [((B, C), None), ((B, C), B)]
    assert members.calls == [*(("map", found.rev) for found in members.sent), (B, "set_state", 0, State.ACTIVE)]


def test_a_no_leaves_everything_as_it_is(told):
    members = without_a()
    status, _, problems = told(members, *DEAD_A, answers="n\n")
    assert (status, problems, members.calls) == (130, "headwater: stopped\n", [])


def test_a_node_that_answers_is_not_dead(told):
    members = without_a()
    members.nodes[A] = FakeNode(A, "A . r")
    status, _, problems = told(members, *DEAD_A, "--yes")
    assert (status, members.calls) == (1, [])
    assert problems.startswith("headwater: node-a:11210 answers: it is not dead") and "--remove" in problems


def test_one_that_answers_is_fenced_first_if_that_is_forced(told):
    members = without_a()
    members.nodes[A] = FakeNode(A, "A . r")
    members.nodes[A].calls = members.calls
    assert told(members, *DEAD_A, "--yes", "--force")[0] == 0
    maps = [("map", found.rev) for found in members.sent]
    assert [call[:2] for call in members.calls] == [(A, "set_state"), *maps, (B, "set_state")] and len(maps) == 2
    assert members.nodes[A].held[0] is State.DEAD


def test_vbuckets_without_a_copy_are_begun_anew_only_if_that_is_said(told):
    alone = a_map("A", "B", "C", replicas=0)
    status, _, problems = told(without_a(alone), *DEAD_A, "--yes")
    assert status == 1 and "no copy is left of 1 vbuckets (0)" in problems and "--lose-data" in problems
    status, shown, _ = told(without_a(alone), *DEAD_A, "--yes", "--lose-data")
    assert status == 0 and shown.endswith("0 vbuckets promoted, 1 begun anew\n")


def test_who_was_taken_out_already_leaves_nothing_to_do(told):
    found = a_map("BC", "CB", servers=(B, C))
    members = FakeMembers(FakeNode(A, is_gone=True), found=survey(found))
    assert told(members, *DEAD_A) == (0, "there is nothing to do\n", "")


BEHIND = LEVEL.with_needed({0: 14})


def test_one_refusal_is_accepted_by_its_name_and_what_each_vbucket_may_lose_is_told_before_and_after(told):
    status, _, problems = told(without_a(BEHIND), *DEAD_A, "--yes")
    assert status == 1 and problems.endswith("or lose them: headwater cluster failover --accept behind\n")
    assert told(without_a(BEHIND), *DEAD_A, "--yes", "--accept", "damaged")[0] == 1
    for option in (("--accept", "behind"), ("--force",)):
        status, shown, _ = told(without_a(BEHIND), *DEAD_A, "--yes", *option)
        lines = " ".join(shown.split())
        assert status == 0 and lines.count("vbucket 0 of node-b:11210 may lack the seqnos 11 to 14") == 2
        assert lines.count("accepted (behind): node-b:11210 has not caught up") == 2


def test_what_may_be_lost_is_in_the_json(told):
    status, shown, _ = told(without_a(BEHIND), *DEAD_A, "--yes", "--accept", "behind", "--json")
    loss = json.loads(shown.splitlines()[-1])
    assert status == 0 and list(loss["accepted"]) == ["behind"]
    accepted = {"behind": "may lack the seqnos 11 to 14"}
    assert loss["losses"] == {
        "0": {"node": "node-b:11210", "seqno": 10, "complete": 10, "needed": 14, "accepted": accepted}
    }


def test_the_dead_must_be_named_as_nodes_are(told):
    assert told(without_a(), "cluster", "failover", "node-b:11210", "--dead", "node-a:x")[0] == 2
