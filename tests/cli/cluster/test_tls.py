"""`headwater cluster tls`."""

from dataclasses import replace

from headwater.cluster.survey import Survey
from tests.cluster.fakes import FakeMembers
from tests.cluster.views import a_map, survey

LEVEL = a_map("AB", "BC", "CA")


def speaking(found: Survey) -> Survey:
    return replace(found, nodes={address: replace(node, tls_port=11207) for address, node in found.nodes.items()})


def test_the_nodes_call_each_other_by_tls_or_without(told):
    members = FakeMembers(found=speaking(survey(LEVEL)))
    status, shown, _ = told(members, "cluster", "tls", "node-a:11210", "--on")
    assert status == 0 and shown.startswith("the nodes call each other by TLS, map 2:")
    status, shown, _ = told(members, "cluster", "tls", "node-a:11210", "--off")
    assert status == 0 and shown.startswith("the nodes call each other without TLS, map 2:")
    assert [each.encrypted for each in members.sent] == [True, False]


def test_a_node_without_tls_is_named(told):
    status, _, problems = told(FakeMembers(found=survey(LEVEL)), "cluster", "tls", "node-a:11210")
    assert status == 1 and "node-a:11210 speaks no TLS; start it with --tls-certificate" in problems


def test_all_nodes_are_named_in_one_way(told):
    status, _, problems = told(FakeMembers(found=survey(LEVEL)), "cluster", "init", "couchbases://a", "b:1")
    assert status == 2 and "different things of TLS" in problems
