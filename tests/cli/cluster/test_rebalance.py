"""`headwater cluster rebalance`: the plan as it is shown, and what the work is given and tells."""

import pytest

from headwater.cluster.proxied import Limits
from headwater.cluster.rebalance import Rebalance, RebalanceStep
from tests.cluster.fakes import FakeMembers
from tests.cluster.views import A, B, C, a_map, survey, view

ALL_ON_A = a_map("A", "A", "A", "A", servers=(A,), replicas=0)
JOIN_B = ("cluster", "rebalance", "node-a:11210", "--add", "node-b:11210")


def joining():
    return FakeMembers(found=survey(ALL_ON_A, B=view(B, ". . . .", None)))


@pytest.fixture
def works(monkeypatch):
    """Rebalances that do nothing but say so; the list gets what each was made with."""
    made = []

    def begin(self, members, seeds, *, progress=None, stopping=None, **options):
        made.append(options | {"seeds": seeds, "stops": stopping})
        self.members, self.seeds, self.progress = members, seeds, progress

    async def run(self):
        self.progress(RebalanceStep(1, 2, "vbucket 1 is on node-b:11210"))
        return ALL_ON_A

    real = Rebalance.__init__

    def either(self, *arguments, **options):
        (begin if "progress" in options else real)(self, *arguments, **options)

    monkeypatch.setattr(Rebalance, "__init__", either)
    monkeypatch.setattr(Rebalance, "run", run)
    return made


def test_the_plan_has_each_nodes_numbers_before_and_after(told):
    members = joining()
    status, shown, problems = told(members, *JOIN_B, "--dry-run")
    lines = [line.split() for line in shown.splitlines()]
    assert (status, problems) == (0, "") and members.surveyed == [((A, B), ())] and members.calls == []
    assert lines[0] == ["b:", "4", "vbuckets,", "0", "replicas"]
    assert ["node-a:11210", "4", "2", "0", "0", "0"] in lines
    assert ["node-b:11210", "0", "2", "0", "0", "2", "joins"] in lines
    assert shown.endswith("node-a:11210 hands 2 vbuckets over to node-b:11210\n")


def test_what_nobody_counts_and_what_was_left_open_is_told(told):
    found = survey(a_map("AB", "BC", "CA"), A="d . r", B="A A .", C="d r A")
    _, shown, _ = told(FakeMembers(found=found), "cluster", "rebalance", "node-a:11210", "--dry-run")
    assert "node-c:11210 deletes 1 vbucket that it should not have\n" in shown
    assert shown.endswith("what an earlier run left open is settled first; the plan may change by that\n")


def test_a_node_that_leaves_is_marked(told):
    found = survey(a_map("AB", "BC", "CA"))
    _, shown, _ = told(FakeMembers(found=found), *JOIN_B[:3], "--remove", "node-c:11210", "--dry-run")
    assert "leaves" in next(line for line in shown.splitlines() if line.strip().startswith("node-c"))


def test_a_level_cluster_is_left_alone(told):
    found = survey(a_map("AB", "BC", "CA"))
    assert told(FakeMembers(found=found), *JOIN_B[:3]) == (0, "there is nothing to do\n", "")


def test_a_no_begins_nothing(told, works):
    status, shown, problems = told(joining(), *JOIN_B, answers="n\n")
    assert (status, problems, works) == (130, "headwater: stopped\n", []) and "Begin? [y/N]" in shown


def test_the_work_is_given_what_was_asked_for_and_the_end_is_told(told, works):
    options = ("--replicas", "1", "--at-once", "3", "--patience-seconds", "7", "--remove", "node-c:11210", "--yes")
    found = a_map("AC", "CA", servers=(A, C))
    status, shown, _ = told(FakeMembers(found=survey(found, B=view(B, ". .", None))), *JOIN_B, *options)
    (made,) = works
    assert status == 0 and made.pop("stops").gently
    assert made == {
        "seeds": [A],
        "add": [B],
        "remove": [C],
        "replicas": 1,
        "vbuckets_at_once": 3,
        "limits": Limits(patience_seconds=7.0),
    }
    assert shown.splitlines()[-1].startswith("done in 0.") and shown.endswith(" vbuckets/s, map 1:7\n")
